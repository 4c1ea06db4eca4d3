//go:build !race

package broker_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"starling/broker"
	"starling/testenv"
)

// Not under the race detector: nats-server 2.15.2 itself has a race here.
// fileStore.UpdateConfig writes a stream's configuration under the store's lock
// and fileStore.ConsumerStore reads it without one.
func TestManyInitsAtOnceKeepEachOthersPools(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	b := connected(t, s.URL())
	var wg sync.WaitGroup
	errs := make([]error, 8)
	var want []string
	for i := range errs {
		pool := fmt.Sprintf("p%d", i)
		want = append(want, pool)
		wg.Go(func() { errs[i] = b.Init(t.Context(), broker.InitConfig{Pools: []string{pool}}) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if pools, err := b.PoolNames(t.Context()); err != nil || !slices.Equal(pools, want) {
		t.Errorf("PoolNames() = %v, %v, want %v", pools, err, want)
	}
}
