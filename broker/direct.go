package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Direct gets are answered by any replica of a stream. They need no consumer and
// no right to make one, and may be about 100 ms old at three replicas.
//
// Source: NATS ADR-31.

const (
	// A page is at most this much, so that it fits a subscription and a lost one
	// costs little.
	pageMessages = 512
	pageBytes    = 1 << 20

	// staleWait is how long a read that finds nothing may be repeated where the
	// answer must be there, every staleEvery.
	staleWait  = 2 * time.Second
	staleEvery = 20 * time.Millisecond
)

// errNotStored is internal: the stream holds no message of that subject.
var errNotStored = errors.New("not stored")

// stored is a message of a stream.
type stored struct {
	subject string
	seq     uint64
	at      time.Time
	header  nats.Header
	data    []byte
}

// deleted reports whether it is the marker of a key that was removed.
func (m stored) deleted() bool {
	op := m.header.Get(headerKVOperation)
	return op == "DEL" || op == "PURGE" || m.header.Get("Nats-Marker-Reason") != ""
}

// last reads the last message of a subject; none is [errNotStored].
func (b *Bus) last(ctx context.Context, nc *nats.Conn, stream, subject string) (stored, error) {
	var answer *nats.Msg
	err := repeated(ctx, func(ctx context.Context) (err error) {
		answer, err = b.request(ctx, nc, &nats.Msg{Subject: "$JS.API.DIRECT.GET." + stream + "." + subject})
		return err
	})
	if errors.Is(err, errNoResponders) {
		return stored{}, b.absent(ctx, stream)
	}
	if err != nil {
		return stored{}, err
	}
	switch status := answer.Header.Get(headerStatus); status {
	case "":
		return readStored(answer)
	case "404":
		return stored{}, fmt.Errorf("%w: %s", errNotStored, subject)
	default:
		return stored{}, fmt.Errorf("%w: direct get of %s: %s %s", ErrRefused, subject, status, answer.Header.Get("Description"))
	}
}

// patiently repeats a read while it finds nothing, for at most within: a direct
// get may be answered by a replica that is behind.
func patiently[T any](ctx context.Context, within time.Duration, read func() (T, error)) (T, error) {
	started := time.Now()
	for {
		value, err := read()
		if !errors.Is(err, errNotStored) || time.Since(started) >= within {
			return value, err
		}
		if err := pause(ctx, staleEvery); err != nil {
			return value, err
		}
	}
}

// led is how many messages the stream has on subject, by its leader's word: unlike a
// direct get that is never old.
func (b *Bus) led(ctx context.Context, stream, subject string) (uint64, error) {
	body, err := json.Marshal(map[string]string{"subjects_filter": subject})
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	var answer *nats.Msg
	err = repeated(ctx, func(ctx context.Context) (err error) {
		answer, err = b.request(ctx, b.nc, &nats.Msg{Subject: "$JS.API.STREAM.INFO." + stream, Data: body})
		return err
	})
	if errors.Is(err, errNoResponders) {
		return 0, b.absent(ctx, stream)
	}
	if err != nil {
		return 0, err
	}
	var info struct {
		Error *jetstream.APIError `json:"error"`
		State struct {
			Subjects map[string]uint64 `json:"subjects"`
		} `json:"state"`
	}
	if err := json.Unmarshal(answer.Data, &info); err != nil {
		return 0, fmt.Errorf("%w: the state of stream %s is unreadable: %w", ErrRefused, stream, err)
	}
	if info.Error != nil {
		return 0, b.classified(ctx, info.Error)
	}
	return info.State.Subjects[subject], nil
}

func readStored(m *nats.Msg) (stored, error) {
	s := stored{subject: m.Header.Get(jetstream.SubjectHeader), header: m.Header, data: m.Data}
	var err error
	if s.seq, err = strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64); err != nil {
		return stored{}, fmt.Errorf("%w: a direct get without a sequence", ErrRefused)
	}
	s.at, _ = time.Parse(time.RFC3339Nano, m.Header.Get(jetstream.TimeStampHeaer)) // zero when it is none
	return s, nil
}

// scan reads all messages of a stream that match filter, from sequence from, in
// order, page by page: it holds at most a page. After an error it ends.
func (b *Bus) scan(ctx context.Context, nc *nats.Conn, stream, filter string, from uint64) iter.Seq2[stored, error] {
	return func(yield func(stored, error) bool) {
		pages, err := b.newPages(nc, stream, filter)
		if err != nil {
			yield(stored{}, b.failure(ctx, "", err))
			return
		}
		defer pages.close()
		for more := true; more; {
			var page []stored
			if page, more, err = pages.next(ctx, max(from, 1)); err != nil {
				yield(stored{}, err)
				return
			}
			for _, m := range page {
				if !yield(m, nil) {
					return
				}
				from = m.seq + 1
			}
		}
	}
}

// pages reads a stream in batches. It is one goroutine's.
type pages struct {
	bus            *Bus
	nc             *nats.Conn
	stream, filter string
	inbox          string
	sub            *nats.Subscription
	asked          int
}

func (b *Bus) newPages(nc *nats.Conn, stream, filter string) (*pages, error) {
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox + ".*")
	if err != nil {
		return nil, err
	}
	return &pages{bus: b, nc: nc, stream: stream, filter: filter, inbox: inbox, sub: sub}, nil
}

func (p *pages) close() { _ = p.sub.Unsubscribe() } // fails only when the connection is gone

// next reads a page from a sequence on and reports whether there may be more. Of
// a page that does not come whole it gives what came in order; when that is
// nothing it asks again, under another subject, so that two never mix.
func (p *pages) next(ctx context.Context, from uint64) (page []stored, more bool, err error) {
	for range answerTries {
		page, more, err = p.ask(ctx, from)
		if !errors.Is(err, ErrUnavailable) || ctx.Err() != nil {
			return page, more, err
		}
		if len(page) > 0 {
			return page, true, nil
		}
	}
	return nil, false, err
}

func (p *pages) ask(ctx context.Context, from uint64) ([]stored, bool, error) {
	body, err := json.Marshal(struct {
		Seq      uint64 `json:"seq"`
		NextFor  string `json:"next_by_subj"`
		Batch    int    `json:"batch"`
		MaxBytes int    `json:"max_bytes"`
	}{from, p.filter, pageMessages, pageBytes})
	if err != nil {
		return nil, false, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	subject := "$JS.API.DIRECT.GET." + p.stream
	guarded, done := p.bus.guard(ctx, subject)
	defer done()
	p.asked++
	reply := p.inbox + "." + strconv.Itoa(p.asked)
	if err := p.nc.PublishRequest(subject, reply, body); err != nil {
		return nil, false, p.bus.failure(guarded, subject, err)
	}
	var page []stored
	// Every message of a batch, and its end, name the sequence before it, so that
	// one that was lost shows.
	before := "0"
	whole := func(m *nats.Msg) error {
		if got := m.Header.Get(jetstream.LastSequenceHeader); got != before {
			return fmt.Errorf("%w: a part of a page of %s was lost", ErrUnavailable, p.stream)
		}
		return nil
	}
	for {
		m, err := p.sub.NextMsgWithContext(guarded)
		if err != nil {
			if err = p.bus.failure(guarded, subject, err); errors.Is(err, errNoResponders) {
				err = p.bus.absent(ctx, p.stream)
			}
			return page, false, err
		}
		if m.Subject != reply {
			continue // of a page that was given up
		}
		switch m.Header.Get(headerStatus) {
		case "":
			one, err := readStored(m)
			if err = errors.Join(err, whole(m)); err != nil {
				return page, false, err
			}
			page, before = append(page, one), m.Header.Get(jetstream.SequenceHeader)
		case "204": // the end of the batch
			if err := whole(m); err != nil {
				return page, false, err
			}
			return page, len(page) > 0 && m.Header.Get("Nats-Num-Pending") != "0", nil
		case "404":
			return page, false, nil
		case statusNoResponders:
			return page, false, p.bus.absent(ctx, p.stream)
		default:
			return page, false, fmt.Errorf("%w: reading %s: %s", ErrRefused, p.stream, m.Header.Get("Description"))
		}
	}
}

// kvStream and kvSubject are where a key of a bucket is stored; objStream that
// of an object store. They are conventions of NATS, ADR-8 and ADR-20.
func kvStream(bucket string) string       { return "KV_" + bucket }
func kvSubject(bucket, key string) string { return "$KV." + bucket + "." + key }
func objStream(bucket string) string      { return "OBJ_" + bucket }
