package sandbox

import (
	"sync"
	"testing"

	"starling/protocol"
)

// TestGuestsAreSpreadOverThePools: what runs at a time shares a pool only when it must,
// every place is found, and what was left is taken again.
func TestGuestsAreSpreadOverThePools(t *testing.T) {
	t.Parallel()
	m := machines{pools: []*pool{{number: 0, guests: 3}, {number: 1, guests: 1}, {number: 2, guests: 2}}}
	limits := protocol.DefaultLimits()
	took := func() int {
		if p := m.take(limits); p != nil {
			return p.number
		}
		return -1
	}
	for i, want := range []int{0, 1, 2, 0, 2, 0, -1, -1} {
		if got := took(); got != want {
			t.Errorf("guest %d is in pool %d, want %d", i, got, want)
		}
	}
	m.pools[1].leave()
	for i, want := range []int{1, -1} {
		if got := took(); got != want {
			t.Errorf("guest %d after one was gone is in pool %d, want %d", i, got, want)
		}
	}
	m.pools[2].leave()
	limits.TableElements++
	if p := m.take(limits); p != nil {
		t.Errorf("a guest with a larger limit than a pool has is in pool %d", p.number)
	}
}

// TestAPlaceHasOneGuest also when many ask at a time.
func TestAPlaceHasOneGuest(t *testing.T) {
	t.Parallel()
	m := machines{pools: []*pool{{number: 0, guests: 2}, {number: 1, guests: 1}}}
	var inside [2]struct {
		sync.Mutex
		now, most int
	}
	count := func(n, by int) {
		x := &inside[n]
		x.Lock()
		defer x.Unlock()
		x.now += by
		x.most = max(x.most, x.now)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 10_000 {
				if p := m.take(protocol.DefaultLimits()); p != nil {
					count(p.number, 1)
					count(p.number, -1)
					p.leave()
				}
			}
		})
	}
	all.Wait()
	if inside[0].most > 2 || inside[1].most > 1 {
		t.Errorf("%d and %d guests at a time, want 2 and 1 at most", inside[0].most, inside[1].most)
	}
	for range 3 {
		if m.take(protocol.DefaultLimits()) == nil {
			t.Error("a place was lost")
		}
	}
}
