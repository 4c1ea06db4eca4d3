//go:build crashpoints

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"starling/protocol"
	"starling/testenv"
)

// history is all that the bus's mirror said of each delegation, in order.
type history struct {
	mu      sync.Mutex
	records map[protocol.DelegationID][]protocol.Record
}

func listenHistory(t *testing.T, nc *nats.Conn) *history {
	t.Helper()
	h := &history{records: make(map[protocol.DelegationID][]protocol.Record)}
	subscribe(t, nc, "starling.delegations.>", func(m *nats.Msg) {
		if rec, err := protocol.ParseRecord(m.Data); err == nil {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.records[rec.DelegationID] = append(h.records[rec.DelegationID], rec)
		}
	})
	return h
}

func (h *history) of(job protocol.Job) []protocol.Record {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]protocol.Record(nil), h.records[job.DelegationID]...)
}

// final waits until the mirror says all that a settled job's ledger does.
func (h *history) final(t *testing.T, job protocol.Job) protocol.Record {
	t.Helper()
	var last protocol.Record
	testenv.Eventually(t, crashSoon, func() error {
		all := h.of(job)
		if last = all[len(all)-1]; !last.Status.Final() {
			return fmt.Errorf("it is %s", last.Status)
		}
		if o := last.Outcome; job.Spawner.HasAddress() && !o.ParentEnded() && !o.Delivered {
			return errors.New("it is not delivered")
		}
		return nil
	})
	return last
}

// ackLog is every acknowledgement that passed, by task.
type ackLog struct {
	mu   sync.Mutex
	seen []jobAck
}

type jobAck struct {
	stream uint64 // sequence of the job
	count  uint64 // of the delivery
	word   string
}

func listenAcks(t *testing.T, nc *nats.Conn) *ackLog {
	t.Helper()
	l := &ackLog{}
	// $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>
	subscribe(t, nc, "$JS.ACK.STARLING_JOBS.>", func(m *nats.Msg) {
		tokens := strings.Split(m.Subject, ".")
		count, _ := strconv.ParseUint(tokens[len(tokens)-5], 10, 64)
		seq, _ := strconv.ParseUint(tokens[len(tokens)-4], 10, 64)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.seen = append(l.seen, jobAck{seq, count, string(m.Data)})
	})
	return l
}

// of are the acknowledgements of one delivery.
func (l *ackLog) of(mark protocol.DeliveryMark) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var words []string
	for _, a := range l.seen {
		if a.stream == mark.Sequence && a.count == mark.Count {
			words = append(words, a.word)
		}
	}
	return words
}

func subscribe(t *testing.T, nc *nats.Conn, subject string, take func(*nats.Msg)) {
	t.Helper()
	_, err := nc.Subscribe(subject, take) // ends with the connection
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// stored are the messages of a stream on a subject, in order.
func (s *site) stored(t *testing.T, stream, subject string) []*jetstream.RawStreamMsg {
	t.Helper()
	from := s.stream(t, stream)
	var all []*jetstream.RawStreamMsg
	for next := uint64(1); ; {
		m, err := from.GetMsg(t.Context(), next, jetstream.WithGetMsgSubject(subject))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
		next = m.Sequence + 1
	}
}

func (s *site) frames(t *testing.T, job protocol.Job) []*jetstream.RawStreamMsg {
	t.Helper()
	return s.stored(t, "STARLING_TASKS", s.bus.Namespace().TaskSubject(job.TaskID))
}

// fate is what must have become of a job whose worker was lost.
type fate struct {
	status  protocol.Status
	attempt int
	detail  string
	posts   int
	letters int
}

// audit compares all that is told of a job with the fate.
func (s *site) audit(t *testing.T, job protocol.Job, want fate) {
	t.Helper()
	rec := s.history.final(t, job)
	o := rec.Outcome
	got := fate{
		rec.Status, rec.Attempt, o.Detail, len(s.door.PostsOf(job.DelegationID)),
		len(s.stored(t, "STARLING_DLQ", s.bus.Namespace().DeadLetterSubject(job.Pool, job.TaskID))),
	}
	if got != want {
		t.Errorf("it ended as %+v, want %+v", got, want)
	}
	if o.Delivered != (want.posts > 0) || o.DeliveryError != "" {
		t.Errorf("delivered %t %q after %d posts", o.Delivered, o.DeliveryError, want.posts)
	}
	s.auditHistory(t, job)
	s.auditFrames(t, job, rec)
	for _, p := range s.door.PostsOf(job.DelegationID) {
		if p.MessageID != protocol.CompletionMessageID(job.DelegationID) || p.Text != o.Text() {
			t.Errorf("post %s says\n%s\nwant %s\n%s", p.MessageID, p.Text, protocol.CompletionMessageID(job.DelegationID), o.Text())
		}
	}
	s.auditFile(t, rec)
}

// auditHistory: one outcome, and nothing after it but its delivery.
func (s *site) auditHistory(t *testing.T, job protocol.Job) {
	t.Helper()
	var first string
	for i, rec := range s.history.of(job) {
		if !rec.Status.Final() {
			if first != "" {
				t.Errorf("record %d is %s after an outcome", i, rec.Status)
			}
			continue
		}
		story := *rec.Outcome
		story.Delivered, story.DeliveryError = false, ""
		text, err := json.Marshal(story)
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = string(text)
		}
		if string(text) != first {
			t.Errorf("a second outcome on the mirror:\n%s\nafter\n%s", text, first)
		}
	}
}

// auditFrames: each attempt's frames without holes, of one session, none twice;
// one terminal status, last of all.
func (s *site) auditFrames(t *testing.T, job protocol.Job, rec protocol.Record) {
	t.Helper()
	type attempt struct {
		session string
		seqs    []int
	}
	attempts := make(map[int]*attempt)
	terminals := 0
	for _, m := range s.frames(t, job) {
		seq, _ := strconv.Atoi(m.Header.Get(protocol.HeaderSeq))
		n, _ := strconv.Atoi(m.Header.Get(protocol.HeaderAttempt))
		if attempts[n] == nil {
			attempts[n] = &attempt{session: m.Header.Get("Starling-Session")}
		}
		if got := m.Header.Get("Starling-Session"); got != attempts[n].session {
			t.Errorf("attempt %d has frames of sessions %s and %s", n, attempts[n].session, got)
		}
		if terminals > 0 {
			t.Errorf("a frame after the task's end: attempt %d, number %d", n, seq)
		}
		if strings.HasSuffix(m.Header.Get("Nats-Msg-Id"), ".end") {
			terminals++
			f, err := protocol.ParseFrame(m.Header.Get, m.Data)
			if err != nil || f.State != rec.Ending.State || f.Text != rec.Ending.Message || n != rec.Attempt {
				t.Errorf("terminal status = %+v, %v, of attempt %d; want the record's %+v of %d", f.Frame, err, n, *rec.Ending, rec.Attempt)
			}
			if seq != 0 && seq != len(attempts[n].seqs)+1 {
				t.Errorf("terminal status has number %d after %d frames", seq, len(attempts[n].seqs))
			}
			continue
		}
		if attempts[n].seqs = append(attempts[n].seqs, seq); seq != len(attempts[n].seqs) {
			t.Errorf("attempt %d has the frames %v, want no hole and none twice", n, attempts[n].seqs)
		}
	}
	if terminals != 1 {
		t.Errorf("%d terminal statuses, want one", terminals)
	}
	for n := range attempts {
		if n > rec.Attempt {
			t.Errorf("frames of attempt %d, the record knows %d", n, rec.Attempt)
		}
	}
}

// auditFile: no file tells another outcome than the ledger.
func (s *site) auditFile(t *testing.T, rec protocol.Record) {
	t.Helper()
	roots, err := filepath.Glob(filepath.Join(s.dir, "wrk_*", "*", "work", protocol.CompletionFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range roots {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		told, err := protocol.ParseOutcome(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if told.DelegationID != rec.DelegationID {
			continue
		}
		if told.Delivered, told.DeliveryError = rec.Outcome.Delivered, rec.Outcome.DeliveryError; told.ResultObject != nil {
			if rec.Outcome.ResultObject == nil || *told.ResultObject != *rec.Outcome.ResultObject {
				t.Errorf("%s names the object %+v, the ledger %+v", name, told.ResultObject, rec.Outcome.ResultObject)
			}
			told.ResultObject = rec.Outcome.ResultObject
		}
		if told != *rec.Outcome {
			t.Errorf("%s tells %+v, the ledger %+v", name, told, *rec.Outcome)
		}
	}
}
