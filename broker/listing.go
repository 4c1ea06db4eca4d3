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
	bucket := b.ns.LedgerBucket()
	return func(yield func(protocol.Record, error) bool) {
		for m, err := range b.scan(ctx, b.nc, kvStream(bucket), kvSubject(bucket, ">"), 1) {
			if err != nil {
				yield(protocol.Record{}, fmt.Errorf("listing the ledger: %w", err))
				return
			}
			if m.deleted() {
				continue
			}
			record, err := protocol.ParseRecord(m.data)
			if err != nil {
				err = fmt.Errorf("%s: %w", strings.TrimPrefix(m.subject, kvSubject(bucket, "")), err)
			}
			if !yield(record, err) {
				return
			}
		}
	}
}
