package broker

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"starling/protocol"
)

// DeadLetter is a job that cannot run, as it was queued, and why.
//
// Source: docs/protocol.md, section 10.
type DeadLetter struct {
	Sequence uint64 // of the stream
	Pool     string
	TaskID   protocol.TaskID
	At       time.Time // when it was stored
	Reason   protocol.DeadLetterReason
	Detail   string
	Header   map[string][]string // the job's own, without what the bus and the letter added
	Body     []byte              // hostile, and with the door's address in it
}

// ErrNoDeadLetter: no dead letter of that task.
var ErrNoDeadLetter = errors.New("no such dead letter")

// DeadLetters lists the dead letters of a pool, or of all with "", the oldest
// first. It needs an operator's rights. After an error it ends.
func (b *Bus) DeadLetters(ctx context.Context, pool string) iter.Seq2[DeadLetter, error] {
	filter := b.ns.DeadLetterSubject("*", "*")
	if pool != "" {
		filter = b.ns.DeadLetterSubject(pool, "*")
	}
	return b.deadLetters(ctx, filter)
}

// DeadLettersOf are the dead letters of a task, the oldest first: mostly one. None
// is [ErrNoDeadLetter].
func (b *Bus) DeadLettersOf(ctx context.Context, task protocol.TaskID) ([]DeadLetter, error) {
	if err := protocol.ValidateName("task_id", string(task)); err != nil {
		return nil, err
	}
	var letters []DeadLetter
	for letter, err := range b.deadLetters(ctx, b.ns.DeadLetterSubject("*", task)) {
		if err != nil {
			return nil, err
		}
		letters = append(letters, letter)
	}
	if len(letters) == 0 {
		return nil, fmt.Errorf("%w: of task %s: see `starling dlq ls`", ErrNoDeadLetter, task)
	}
	return letters, nil
}

func (b *Bus) deadLetters(ctx context.Context, filter string) iter.Seq2[DeadLetter, error] {
	return func(yield func(DeadLetter, error) bool) {
		for m, err := range b.scan(ctx, b.nc, b.ns.DeadLetterStream(), filter, 1) {
			if err != nil {
				yield(DeadLetter{}, fmt.Errorf("listing dead letters: %w", err))
				return
			}
			if !yield(readLetter(m), nil) {
				return
			}
		}
	}
}

func readLetter(m stored) DeadLetter {
	tokens := strings.Split(m.subject, ".") // the stream takes no other shape
	letter := DeadLetter{
		Sequence: m.seq, At: m.at, Pool: tokens[len(tokens)-2], TaskID: protocol.TaskID(tokens[len(tokens)-1]),
		Reason: protocol.DeadLetterReason(m.header.Get(protocol.HeaderReason)), Detail: m.header.Get(protocol.HeaderDetail),
		Header: map[string][]string{}, Body: m.data,
	}
	for name, values := range m.header {
		if carriesOver(name) {
			letter.Header[name] = values
		}
	}
	return letter
}

// carriesOver reports whether a header is the job's own: not an instruction to the
// server, nor Starling's word about one place of the job.
func carriesOver(name string) bool {
	lower := strings.ToLower(name)
	return !strings.HasPrefix(lower, "nats-") && !strings.HasPrefix(lower, "starling-")
}

// Retry is the job of a letter as a new delegation of the same parent: a
// delegation has one outcome, and this one's stays as it is. Its ids come out of
// the letter, so that a retry that was cut short is repeated as the same
// delegation. A body that cannot be read is
// [protocol.ErrJob].
func (d DeadLetter) Retry() (protocol.Job, error) {
	job, err := protocol.ParseJob(d.Body)
	if err != nil {
		return protocol.Job{}, err
	}
	message := *job.Message
	message.ID = d.mint("msg_")
	job.Message = &message
	job.DelegationID, job.TaskID = protocol.DelegationID(d.mint("dlg_")), protocol.TaskID(d.mint("tsk_"))
	job.Spawner.DelegationID = job.DelegationID
	return job, nil
}

// mint makes an id of the form of section 1 that is always the same for a letter:
// its time, and a hash of the rest.
func (d DeadLetter) mint(prefix string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %s %d %d %x", prefix, d.Pool, d.TaskID, d.Sequence, d.At.UnixNano(), sha256.Sum256(d.Body)))
	id := sum[:16]
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(max(d.At.UnixMilli(), 0)))
	copy(id, ms[2:])
	id[6], id[8] = id[6]&0x0f|0x70, id[8]&0x3f|0x80 // a version 7 UUID
	return prefix + hex.EncodeToString(id)
}

// RemoveDeadLetter removes one. It needs an operator's rights; one that is gone is
// no error.
func (b *Bus) RemoveDeadLetter(ctx context.Context, letter DeadLetter) error {
	stream := b.ns.DeadLetterStream()
	err := b.deleteMessage(ctx, stream, letter.Sequence)
	if err == nil {
		return nil
	}
	for m, readErr := range b.scan(ctx, b.nc, stream, b.ns.DeadLetterSubject(letter.Pool, letter.TaskID), letter.Sequence) {
		if readErr != nil || m.seq == letter.Sequence {
			return fmt.Errorf("removing the dead letter of %s: %w", letter.TaskID, err)
		}
	}
	return nil
}
