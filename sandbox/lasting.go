package sandbox

import (
	"sync"
	"time"
)

// lasting finds the runs that last. Most are over within a millisecond, and what
// only a longer one needs (timers, a goroutine that waits for a cancel, the news
// that it started) would cost them more than all the rest, for each wakes a
// thread. So that is set up late, for the runs that are still there when a timer
// goes off which all share, and which goes off only while there are any.
//
// It is safe for concurrent use. The zero value with after set is ready.
type lasting struct {
	after time.Duration

	mu     sync.Mutex
	young  []*young
	round  int // how often the timer went off
	busy   bool
	armed  bool
	closed bool
	timer  *time.Timer
}

// young is a run that may be over soon. It is in one lasting at a time.
type young struct {
	grown func()
	round int
	index int // from 1; 0: in none
}

// add has grown called, on another goroutine, once the run has lasted: between
// one and two times after from now, unless it is removed before.
func (l *lasting) add(y *young, grown func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.young = append(l.young, y)
	y.grown, y.round, y.index = grown, l.round, len(l.young)
	l.busy = true
	if l.armed {
		return
	}
	l.armed = true
	if l.timer == nil {
		l.timer = time.AfterFunc(l.after, l.look)
	} else {
		l.timer.Reset(l.after)
	}
}

// remove is called when the run is over. A call of grown may be under way.
func (l *lasting) remove(y *young) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(y)
}

// drop takes y out. l.mu is held.
func (l *lasting) drop(y *young) {
	if y.index == 0 {
		return
	}
	last := l.young[len(l.young)-1]
	l.young[y.index-1], last.index = last, y.index
	l.young[len(l.young)-1] = nil
	l.young = l.young[:len(l.young)-1]
	y.index = 0
}

// look is called by the timer.
func (l *lasting) look() {
	l.mu.Lock()
	l.round++
	var grown []func()
	for i := len(l.young) - 1; i >= 0; i-- {
		if y := l.young[i]; y.round+2 <= l.round {
			grown = append(grown, y.grown)
			l.drop(y)
		}
	}
	// While runs come again and again it stays: to set it anew wakes a thread.
	if l.armed = !l.closed && (l.busy || len(l.young) > 0); l.armed {
		l.timer.Reset(l.after)
	}
	l.busy = false
	l.mu.Unlock()
	for _, f := range grown {
		f()
	}
}

// close stops the timer. Nothing is in it any more, and nothing is found from
// here on.
func (l *lasting) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
	}
}
