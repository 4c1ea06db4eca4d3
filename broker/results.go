package broker

import (
	"context"
	"errors"
	"fmt"
	"io"

	"starling/protocol"
)

// PutResult stores a large result under a name of its own attempt. It is never
// overwritten: the same content again is fine, another is [ErrResultExists]. It
// blocks until all of it is acked.
//
// Source: docs/protocol.md, section 2, large results.
func (b *Bus) PutResult(ctx context.Context, delegation protocol.DelegationID, session protocol.SessionID, content []byte) (protocol.ResultObject, error) {
	if err := errors.Join(protocol.ValidateDelegationID("delegation_id", delegation), protocol.ValidateName("session_id", string(session))); err != nil {
		return protocol.ResultObject{}, err
	}
	result := protocol.ResultObject{
		Bucket: b.ns.ResultBucket(), Name: protocol.ResultObjectName(delegation, session),
		Digest: string(protocol.DigestOf(content)), Size: int64(len(content)),
	}
	_, same, err := b.putObject(ctx, result.Bucket, result.Name, content)
	if err != nil {
		return protocol.ResultObject{}, fmt.Errorf("storing result %s: %w", result.Name, err)
	}
	if !same {
		return protocol.ResultObject{}, fmt.Errorf("%w: %s holds other content: an attempt has one result", ErrResultExists, result.Name)
	}
	return result, nil
}

// FetchResult writes a stored result to w and checks its digest. A result that
// is not there, or no longer (7 days), is [ErrResultMissing]. On any error w may
// have got some of the bytes; after [ErrDigestMismatch] they are not to be used.
func (b *Bus) FetchResult(ctx context.Context, result protocol.ResultObject, w io.Writer) error {
	digest := protocol.Digest(result.Digest)
	if err := digest.Validate(); err != nil {
		return fmt.Errorf("result %s: %w", result.Name, err)
	}
	if result.Bucket != b.ns.ResultBucket() {
		return fmt.Errorf("%w: it is in bucket %q, and this namespace's is %s", ErrResultMissing, result.Bucket, b.ns.ResultBucket())
	}
	o, err := patiently(ctx, staleWait, func() (object, error) { return b.findObject(ctx, result.Bucket, result.Name) })
	if err == nil && o.info.Size != uint64(max(result.Size, 0)) {
		return fmt.Errorf("%w: result %s has %d bytes, not %d", ErrDigestMismatch, result.Name, o.info.Size, result.Size)
	}
	if err == nil {
		_, err = b.copyObject(ctx, o, digest, w)
	}
	if errors.Is(err, errNotStored) {
		return fmt.Errorf("%w: %s: results are kept for 7 days", ErrResultMissing, result.Name)
	}
	return err
}
