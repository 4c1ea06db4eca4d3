package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"starling/protocol"
)

// removedWait is how long a name that was removed is looked for: more than a
// replica may be behind, and no silent wait.
const removedWait = 150 * time.Millisecond

var errRemoved = fmt.Errorf("%w: it was removed", errNotStored)

// Pushed is a capsule that is in the store.
type Pushed struct {
	protocol.CapsuleEntry
	Existing bool // it was entered before, at PushedAt
	Mended   bool // an existing one's module was not whole in the store, and is again
}

// PushCapsule stores a module under its digest and enters it in the index under
// its name and version. Pushing the same again returns the first entry, and puts
// back what the store has lost of the module: all of it is read for that. A
// version that was pushed with another module or manifest is [ErrCapsuleExists].
// It needs an operator's rights and blocks until everything is acked; a push that
// failed half way is repeated as it was.
//
// Source: docs/protocol.md, section 2, capsules.
func (b *Bus) PushCapsule(ctx context.Context, m protocol.Manifest, module []byte) (Pushed, error) {
	if err := m.Validate(); err != nil {
		return Pushed{}, err
	}
	if len(module) == 0 {
		return Pushed{}, fmt.Errorf("%w: capsule %s@%s has an empty module", protocol.ErrManifest, m.Name, m.Version)
	}
	entry := protocol.CapsuleEntry{
		Digest: protocol.DigestOf(module), Size: int64(len(module)), Manifest: m, PushedAt: protocol.NewTime(time.Now()),
	}
	// An entry that is there decides before a byte is uploaded.
	if have, err := b.sameEntry(ctx, entry); err == nil || !errors.Is(err, errNotStored) {
		if err != nil {
			return Pushed{}, err
		}
		o, err := b.putModule(ctx, entry.Digest, module, 0)
		if err != nil {
			return Pushed{}, err
		}
		return Pushed{CapsuleEntry: have, Existing: true, Mended: o.ours}, nil
	}
	o, err := b.putModule(ctx, entry.Digest, module, 0)
	if err != nil {
		return Pushed{}, err
	}
	have, err := b.enter(ctx, entry)
	if err != nil {
		return Pushed{}, err
	}
	// Another's RemoveCapsule may have taken the module before the entry was seen.
	if _, err = b.putModule(ctx, entry.Digest, module, o.seq); err != nil {
		return Pushed{}, err
	}
	return Pushed{CapsuleEntry: have, Existing: have.PushedAt != entry.PushedAt}, nil
}

// putModule stores a module unless the store has it whole. One of the sequence known
// was looked at before.
func (b *Bus) putModule(ctx context.Context, digest protocol.Digest, module []byte, known uint64) (object, error) {
	for range putTries {
		o, same, err := b.putObject(ctx, b.ns.CapsuleBucket(), digest.Object(), module)
		if err != nil {
			return o, fmt.Errorf("storing module %s: %w", digest, err)
		}
		if !same {
			return o, fmt.Errorf("%w: object %s holds other bytes than its name says: remove the capsule and push it again", ErrDigestMismatch, digest.Object())
		}
		if o.ours || o.seq == known {
			return o, nil
		}
		if _, err = b.copyObject(ctx, o, digest, io.Discard); err == nil {
			return o, nil
		}
		if errors.Is(err, ErrDigestMismatch) {
			return o, fmt.Errorf("%w: remove the capsule and push it again", err)
		}
		if errors.Is(err, errNotStored) {
			o, err = b.replaceObject(ctx, o, digest, module)
		}
		if err != nil {
			return o, fmt.Errorf("storing module %s again: %w", digest, err)
		}
		if o.ours {
			return o, nil
		}
	}
	return object{}, fmt.Errorf("%w: others keep writing module %s", ErrUnavailable, digest)
}

// enter creates the entry. A refused or unanswered write is followed by a read,
// which may be old.
func (b *Bus) enter(ctx context.Context, entry protocol.CapsuleEntry) (protocol.CapsuleEntry, error) {
	body, err := json.Marshal(entry)
	if err != nil {
		return protocol.CapsuleEntry{}, fmt.Errorf("%w: %w", protocol.ErrManifest, err)
	}
	bucket, key := b.ns.CapsuleIndexBucket(), protocol.CapsuleKey(entry.Manifest.Name, entry.Manifest.Version)
	after, started := uint64(0), time.Now()
	for tries := 0; tries < putTries || time.Since(started) < staleWait; tries++ {
		m := nats.NewMsg(kvSubject(bucket, key))
		m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(after, 10))
		m.Data = body
		_, werr := b.store(ctx, b.nc, kvStream(bucket), m)
		if werr == nil {
			return entry, nil
		}
		if err = werr; !errors.Is(werr, errWrongSequence) && !errors.Is(werr, ErrUnavailable) {
			break
		}
		if err := pause(ctx, staleEvery); err != nil {
			return protocol.CapsuleEntry{}, err
		}
		have, rerr := b.sameEntry(ctx, entry)
		if rerr == nil || !errors.Is(rerr, errNotStored) {
			return have, rerr
		}
		if after, rerr = b.markerOf(ctx, bucket, key); rerr != nil {
			return protocol.CapsuleEntry{}, rerr
		}
	}
	return protocol.CapsuleEntry{}, fmt.Errorf("entering capsule %s@%s: %w", entry.Manifest.Name, entry.Manifest.Version, err)
}

// markerOf is the sequence of a removed key's marker, 0 when it never was or when
// an entry stands there: a write that names 0 is refused then and looks again.
// With the entry's own sequence it would write over what an older read did not see.
func (b *Bus) markerOf(ctx context.Context, bucket, key string) (uint64, error) {
	m, err := b.last(ctx, b.nc, kvStream(bucket), kvSubject(bucket, key))
	if errors.Is(err, errNotStored) || err == nil && !m.deleted() {
		return 0, nil
	}
	return m.seq, err
}

// sameEntry returns the index's entry when it says what entry does; none is
// [errNotStored], another [ErrCapsuleExists].
func (b *Bus) sameEntry(ctx context.Context, entry protocol.CapsuleEntry) (protocol.CapsuleEntry, error) {
	name, version := entry.Manifest.Name, entry.Manifest.Version
	have, err := b.entry(ctx, name, version)
	if err != nil {
		return protocol.CapsuleEntry{}, err
	}
	if have.Digest != entry.Digest {
		return protocol.CapsuleEntry{}, fmt.Errorf("%w: %s@%s is %s, and this module is %s: push it under another version", ErrCapsuleExists, name, version, have.Digest, entry.Digest)
	}
	was, err1 := json.Marshal(have.Manifest)
	is, err2 := json.Marshal(entry.Manifest)
	if err1 != nil || err2 != nil || !bytes.Equal(was, is) {
		return protocol.CapsuleEntry{}, fmt.Errorf("%w: %s@%s was pushed with another manifest: push it under another version", ErrCapsuleExists, name, version)
	}
	return have, nil
}

// entry reads the index once.
func (b *Bus) entry(ctx context.Context, name, version string) (protocol.CapsuleEntry, error) {
	if err := errors.Join(protocol.ValidateName("capsule.name", name), protocol.ValidateVersion("capsule.version", version)); err != nil {
		return protocol.CapsuleEntry{}, err
	}
	bucket := b.ns.CapsuleIndexBucket()
	m, err := b.last(ctx, b.nc, kvStream(bucket), kvSubject(bucket, protocol.CapsuleKey(name, version)))
	if err != nil {
		return protocol.CapsuleEntry{}, err
	}
	if m.deleted() {
		return protocol.CapsuleEntry{}, fmt.Errorf("%w: %s@%s", errRemoved, name, version)
	}
	entry, err := entryUnder(protocol.CapsuleKey(name, version), m.data)
	if err != nil {
		return entry, fmt.Errorf("%s@%s: %w: remove it with `%s`, and push the capsule again", name, version, err, b.Command("capsule rm "+name+"@"+version))
	}
	return entry, nil
}

// entryUnder reads what stands under a key of the index.
func entryUnder(key string, value []byte) (protocol.CapsuleEntry, error) {
	entry, err := protocol.ParseCapsuleEntry(value)
	if err == nil && protocol.CapsuleKey(entry.Manifest.Name, entry.Manifest.Version) != key {
		return protocol.CapsuleEntry{}, fmt.Errorf("%w: under key %s stands %s@%s", protocol.ErrCapsuleEntry, key, entry.Manifest.Name, entry.Manifest.Version)
	}
	return entry, err
}

// ResolveCapsule reads what the index says of a name and a version: one direct
// get. When a replica does not have it, the stream's leader decides whether it is
// [ErrUnknownCapsule]; a name that was removed is so after 150 ms. An entry that
// cannot be read is [protocol.ErrCapsuleEntry].
func (b *Bus) ResolveCapsule(ctx context.Context, name, version string) (protocol.CapsuleEntry, error) {
	read := func() (protocol.CapsuleEntry, error) { return b.entry(ctx, name, version) }
	entry, err := read()
	switch {
	case errors.Is(err, errRemoved): // perhaps pushed again since
		entry, err = patiently(ctx, removedWait, read)
	case errors.Is(err, errNotStored):
		bucket := b.ns.CapsuleIndexBucket()
		if held, lerr := b.led(ctx, kvStream(bucket), kvSubject(bucket, protocol.CapsuleKey(name, version))); lerr != nil {
			return entry, lerr
		} else if held > 0 {
			entry, err = patiently(ctx, staleWait, read)
		}
	}
	return entry, b.unknownCapsule(err, name, version)
}

// PinnedCapsule is the worker's look at the index: a job says name, version and
// digest, and the index has the manifest. An entry of another digest is
// [ErrDigestMismatch], none [ErrUnknownCapsule]; both only after 2 s, since the
// dispatcher saw the entry and this read may be older. One that cannot be read is
// [protocol.ErrCapsuleEntry]. A ref without a digest takes what the index says.
func (b *Bus) PinnedCapsule(ctx context.Context, ref protocol.CapsuleRef) (protocol.CapsuleEntry, error) {
	read := func() (protocol.CapsuleEntry, error) {
		entry, err := b.entry(ctx, ref.Name, ref.Version)
		if err == nil && ref.Digest != "" && entry.Digest != ref.Digest {
			return entry, &otherDigest{ref: ref, have: entry.Digest}
		}
		return entry, err
	}
	entry, err := patiently(ctx, staleWait, read)
	return entry, b.unknownCapsule(err, ref.Name, ref.Version)
}

// otherDigest is an [ErrDigestMismatch] that may be cured by reading again.
type otherDigest struct {
	ref  protocol.CapsuleRef
	have protocol.Digest
}

func (e *otherDigest) Error() string {
	return fmt.Sprintf("%v: the job wants %s as %s, and the index has %s: dispatch it again", ErrDigestMismatch, e.ref, e.ref.Digest, e.have)
}

func (e *otherDigest) Is(target error) bool {
	return target == ErrDigestMismatch || target == errNotStored
}

func (b *Bus) unknownCapsule(err error, name, version string) error {
	if errors.Is(err, errNotStored) && !errors.Is(err, ErrDigestMismatch) {
		return fmt.Errorf("%w: %s@%s: push it, or see what there is with `%s`", ErrUnknownCapsule, name, version, b.Command("capsule ls"))
	}
	return err
}

// Capsules lists the index, by the time of the push. After an error it ends; an
// entry that cannot be read is an error of its own and the list goes on. It
// holds one page at a time.
func (b *Bus) Capsules(ctx context.Context) iter.Seq2[protocol.CapsuleEntry, error] {
	return list(ctx, b, b.ns.CapsuleIndexBucket(), entryUnder)
}

// RemoveCapsule takes a version out of the index, and its module out of the
// store when no other entry names it. Jobs that wait for it will be refused. It
// needs an operator's rights. A version that is not there is
// [ErrUnknownCapsule]. An entry that cannot be read is taken out, and whatever
// module it named stays.
func (b *Bus) RemoveCapsule(ctx context.Context, name, version string) error {
	entry, err := b.ResolveCapsule(ctx, name, version)
	unreadable := errors.Is(err, protocol.ErrCapsuleEntry)
	switch {
	case errors.Is(err, ErrUnknownCapsule):
		return fmt.Errorf("%w: there is no %s@%s to remove: `%s` lists what there is", ErrUnknownCapsule, name, version, b.Command("capsule ls"))
	case err != nil && !unreadable:
		return err
	}
	bucket, key := b.ns.CapsuleIndexBucket(), protocol.CapsuleKey(name, version)
	marker := nats.NewMsg(kvSubject(bucket, key))
	marker.Header.Set(headerKVOperation, "DEL")
	if _, err := b.store(ctx, b.nc, kvStream(bucket), marker); err != nil {
		return fmt.Errorf("removing capsule %s@%s: %w", name, version, err)
	}
	if unreadable {
		return nil
	}
	if user, err := b.userOf(ctx, entry.Digest, key); user != "" || err != nil {
		return err
	}
	o, err := b.findObject(ctx, b.ns.CapsuleBucket(), entry.Digest.Object())
	if errors.Is(err, errNotStored) {
		return nil
	}
	if err == nil {
		err = b.deleteObject(ctx, o)
	}
	if err != nil {
		return fmt.Errorf("removing module %s: %w", entry.Digest, err)
	}
	user, err := b.userOf(ctx, entry.Digest, key)
	if user != "" {
		return fmt.Errorf("%w: %s was pushed with the same module while it was removed: push it again", ErrCapsuleMissing, user)
	}
	return err
}

// userOf names an entry of the digest other than the key's, or "".
func (b *Bus) userOf(ctx context.Context, digest protocol.Digest, key string) (string, error) {
	for entry, err := range b.Capsules(ctx) {
		switch {
		case errors.Is(err, protocol.ErrCapsuleEntry):
			continue // nobody can run it, so it keeps no module
		case err != nil:
			return "", err
		case entry.Digest == digest && protocol.CapsuleKey(entry.Manifest.Name, entry.Manifest.Version) != key:
			return entry.Manifest.Name + "@" + entry.Manifest.Version, nil
		}
	}
	return "", nil
}

// FetchCapsule writes a module to w, chunk by chunk with direct gets, and checks
// its digest. A module that the store lacks, after some seconds of looking, is
// [ErrCapsuleMissing]. On any error w may have got some of the bytes; after
// [ErrDigestMismatch] they are not to be used.
func (b *Bus) FetchCapsule(ctx context.Context, digest protocol.Digest, w io.Writer) error {
	if err := digest.Validate(); err != nil {
		return err
	}
	find := func() (object, error) { return b.findObject(ctx, b.ns.CapsuleBucket(), digest.Object()) }
	o, err := patiently(ctx, staleWait, find)
	if err == nil {
		var written uint64
		written, err = b.copyObject(ctx, o, digest, w)
		if errors.Is(err, errNotStored) && written == 0 { // perhaps it was put back, and this was the broken one
			if now, ferr := find(); ferr == nil && now.seq != o.seq {
				_, err = b.copyObject(ctx, now, digest, w)
			}
		}
	}
	if errors.Is(err, errNotStored) {
		return fmt.Errorf("%w: %s is not whole in the store: push the capsule again, which puts it back", ErrCapsuleMissing, digest)
	}
	return err
}
