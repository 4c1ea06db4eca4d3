package broker

import (
	"context"
	"fmt"
	"iter"
	"strings"

	"starling/protocol"
)

// Delegations lists the ledger, the record that was written first first. It
// holds one page at a time, so a caller can filter a ledger of any size. It needs
// the right to read the whole ledger. After an error it ends; a record that
// cannot be read is an error of its own ([protocol.ErrRecord]) and the list goes
// on. Records are as a replica has them, which may be 100 ms old.
func (b *Bus) Delegations(ctx context.Context) iter.Seq2[protocol.Record, error] {
	return list(ctx, b, b.ns.LedgerBucket(), recordUnder)
}

// list gives what stands in a bucket, in the order it was written in. After an
// error of the bus it ends; a value that cannot be read is an error of its own
// and the list goes on.
func list[T any](ctx context.Context, b *Bus, bucket string, parse func(key string, value []byte) (T, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for m, err := range b.scan(ctx, b.nc, kvStream(bucket), kvSubject(bucket, ">"), 1) {
			if err != nil {
				var none T
				yield(none, fmt.Errorf("listing %s: %w", bucket, err))
				return
			}
			if m.deleted() {
				continue
			}
			key := strings.TrimPrefix(m.subject, kvSubject(bucket, ""))
			value, err := parse(key, m.data)
			if err != nil {
				err = fmt.Errorf("%s: %w", key, err)
			}
			if !yield(value, err) {
				return
			}
		}
	}
}
