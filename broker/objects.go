package broker

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"starling/protocol"
)

// Objects are written and read in the format of NATS object stores (ADR-20), so
// that `nats object` works on them, but not through the client's own calls: those
// overwrite what is there, and read through a consumer, which needs rights that
// workers do not have.

// chunkBytes is the size of a chunk, that of the client.
const chunkBytes = 128 << 10

// putTries is how often a write whose answers were lost is begun again.
const putTries = 5

// object is what the store says about one.
type object struct {
	info jetstream.ObjectInfo
	seq  uint64 // of its description
	ours bool   // it was written by this call
}

func chunkSubject(bucket, id string) string { return "$O." + bucket + ".C." + id }

func metaSubject(bucket, name string) string {
	return "$O." + bucket + ".M." + base64.URLEncoding.EncodeToString([]byte(name))
}

// objectDigest is a digest as object stores write it.
func objectDigest(d protocol.Digest) string {
	raw, _ := hex.DecodeString(d.Hex()) // d is of DigestOf or was validated
	return "SHA-256=" + base64.URLEncoding.EncodeToString(raw)
}

// findObject reads an object's description. A missing or deleted one is
// [errNotStored]; the sequence of a deleted one is there all the same.
func (b *Bus) findObject(ctx context.Context, bucket, name string) (object, error) {
	m, err := b.last(ctx, b.frames, objStream(bucket), metaSubject(bucket, name))
	if err != nil {
		return object{}, err
	}
	o := object{seq: m.seq}
	if err := json.Unmarshal(m.data, &o.info); err != nil {
		return o, fmt.Errorf("%w: the description of %s in %s is unreadable: %w", ErrRefused, name, bucket, err)
	}
	if o.info.Deleted {
		return o, fmt.Errorf("%w: %s was deleted from %s", errNotStored, name, bucket)
	}
	return o, nil
}

// putObject writes an object unless one of that name is there. It returns the
// one that is there in the end, and whether that is this one.
func (b *Bus) putObject(ctx context.Context, bucket, name string, content []byte) (object, bool, error) {
	digest := objectDigest(protocol.DigestOf(content))
	var (
		lost  time.Time // when another's description was in the way
		after uint64    // what was written over then
	)
	for tries := 0; ; {
		o, err := b.findObject(ctx, bucket, name)
		if err == nil {
			return o, o.info.Digest == digest, nil
		}
		if !errors.Is(err, errNotStored) {
			return object{}, false, err
		}
		if behind := !lost.IsZero() && o.seq == after; behind && time.Since(lost) < staleWait {
			if err := pause(ctx, staleEvery); err != nil {
				return object{}, false, err
			}
			continue // a replica that is behind does not show the other's yet
		}
		if tries++; tries > putTries {
			return object{}, false, fmt.Errorf("%w: others keep writing %s in %s", ErrUnavailable, name, bucket)
		}
		after = o.seq
		o, won, err := b.writeObject(ctx, bucket, name, digest, content, after)
		if won {
			return o, true, nil
		}
		if err != nil && (tries == putTries || !errors.Is(err, ErrUnavailable)) {
			return object{}, false, err
		}
		lost = time.Now()
	}
}

// writeObject writes chunks under a fresh id, then the description under the
// expectation that it still is the one of sequence after. Neither an error nor a
// win means that another came first, or this one by an answer that was lost: so its
// chunks stay. They go one by one: resent ones would change their order.
func (b *Bus) writeObject(ctx context.Context, bucket, name, digest string, content []byte, after uint64) (object, bool, error) {
	id, stream := nuid.Next(), objStream(bucket)
	chunks := 0
	for rest := content; len(rest) > 0; chunks++ {
		n := min(len(rest), chunkBytes)
		m := nats.NewMsg(chunkSubject(bucket, id))
		m.Header.Set(protocol.HeaderMsgID, id+"."+strconv.Itoa(chunks)) // a repeat is dropped
		m.Data, rest = rest[:n], rest[n:]
		err := repeated(ctx, func(ctx context.Context) error {
			_, err := b.store(ctx, b.frames, stream, m)
			return err
		})
		if err != nil {
			return object{}, false, err
		}
	}
	o := object{info: jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: name, Opts: &jetstream.ObjectMetaOptions{ChunkSize: chunkBytes}},
		Bucket:     bucket, NUID: id, Size: uint64(len(content)), Chunks: uint32(chunks), Digest: digest, ModTime: time.Now().UTC(),
	}}
	seq, err := b.writeMeta(ctx, o, after)
	if err == nil {
		o.seq, o.ours = seq, true
		return o, true, nil
	}
	if errors.Is(err, errWrongSequence) {
		return object{}, false, nil
	}
	return object{}, false, err
}

func (b *Bus) writeMeta(ctx context.Context, o object, after uint64) (uint64, error) {
	m := nats.NewMsg(metaSubject(o.info.Bucket, o.info.Name))
	m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(after, 10))
	if after > 0 {
		m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	}
	var err error
	if m.Data, err = json.Marshal(o.info); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return b.store(ctx, b.frames, objStream(o.info.Bucket), m)
}

// copyObject writes an object's bytes to w, gives how many, and checks their digest.
// Chunks that are not readable yet are waited for, at most 2 s without any progress.
// Missing bytes are errNotStored, wrong ones [ErrDigestMismatch].
func (b *Bus) copyObject(ctx context.Context, o object, digest protocol.Digest, w io.Writer) (written uint64, err error) {
	hash, next := sha256.New(), uint64(1)
	progress := time.Now()
	for written < o.info.Size {
		for chunk, err := range b.scan(ctx, b.frames, objStream(o.info.Bucket), chunkSubject(o.info.Bucket, o.info.NUID), next) {
			if err != nil {
				return written, err
			}
			if written += uint64(len(chunk.data)); written > o.info.Size {
				return written, fmt.Errorf("%w: %s in %s has more than its %d bytes", ErrDigestMismatch, o.info.Name, o.info.Bucket, o.info.Size)
			}
			hash.Write(chunk.data) // a hash never fails
			if _, err := w.Write(chunk.data); err != nil {
				return written, fmt.Errorf("writing %s: %w", o.info.Name, err)
			}
			next, progress = chunk.seq+1, time.Now()
		}
		if written < o.info.Size {
			if time.Since(progress) > staleWait {
				return written, fmt.Errorf("%w: %d of %d bytes of %s in %s", errNotStored, written, o.info.Size, o.info.Name, o.info.Bucket)
			}
			if err := pause(ctx, staleEvery); err != nil {
				return written, err
			}
		}
	}
	if got := protocol.Digest("sha256:" + hex.EncodeToString(hash.Sum(nil))); got != digest {
		return written, fmt.Errorf("%w: %s in %s has %s, not %s", ErrDigestMismatch, o.info.Name, o.info.Bucket, got, digest)
	}
	return written, nil
}

// replaceObject writes content over an object some of whose chunks are gone, and
// removes the rest of them, which nobody could use. When another wrote over it
// first, the object is not ours and the error nil. An object that the stream's leader
// has whole is [ErrUnavailable]: the replica that was read is behind. It needs the
// right to purge.
func (b *Bus) replaceObject(ctx context.Context, broken object, digest protocol.Digest, content []byte) (object, error) {
	bucket, name := broken.info.Bucket, broken.info.Name
	held, err := b.led(ctx, objStream(bucket), chunkSubject(bucket, broken.info.NUID))
	if err != nil {
		return object{}, err
	}
	if held >= uint64(broken.info.Chunks) {
		return object{}, fmt.Errorf("%w: the server that was asked does not have all of %s in %s yet", ErrUnavailable, name, bucket)
	}
	o, won, err := b.writeObject(ctx, bucket, name, objectDigest(digest), content, broken.seq)
	if err != nil || !won {
		return object{}, err
	}
	return o, b.purgeChunks(ctx, broken)
}

// deleteObject marks an object deleted and removes its chunks. It needs the
// right to purge.
func (b *Bus) deleteObject(ctx context.Context, o object) error {
	gone := object{info: o.info}
	gone.info.Deleted, gone.info.Size, gone.info.Chunks, gone.info.Digest = true, 0, 0, ""
	if _, err := b.writeMeta(ctx, gone, o.seq); err != nil {
		return err
	}
	return b.purgeChunks(ctx, o)
}

func (b *Bus) purgeChunks(ctx context.Context, o object) error {
	stream, err := b.js.Stream(ctx, objStream(o.info.Bucket))
	if err == nil {
		err = stream.Purge(ctx, jetstream.WithPurgeSubject(chunkSubject(o.info.Bucket, o.info.NUID)))
	}
	return b.classified(ctx, err)
}
