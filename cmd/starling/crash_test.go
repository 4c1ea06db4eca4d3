//go:build crashpoints

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"starling/protocol"
	"starling/testenv"
	"starling/worker"
)

// crashTask ends with a result that goes to the object store.
const crashTask = "repeat 300000"

// TestCrashAtEachStep kills a worker process at each step of a job's life and
// audits what the next worker makes of it, with one server and with three.
func TestCrashAtEachStep(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) (string, int){
		"one server":    func(t *testing.T) (string, int) { return testenv.NATS(t).URL(), 1 },
		"three servers": func(t *testing.T) (string, int) { return testenv.Cluster(t).URL(), 3 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, replicas := start(t)
			s := newSite(t, url, replicas, 3)
			for _, step := range worker.Crashpoints {
				for _, door := range []bool{true, false} {
					if !door && afterThePost(step) {
						continue
					}
					for _, attempts := range []int{3, 1} {
						t.Run(fmt.Sprintf("%s/door %t/attempts %d", step, door, attempts), func(t *testing.T) {
							t.Parallel()
							s.crash(t, step, door, attempts)
						})
					}
				}
			}
		})
	}
}

func (s *site) crash(t *testing.T, step string, door bool, attempts int) {
	pool := s.pool(t)
	job := s.dispatch(t, pool, crashTask, door, attempts)
	lost := s.hire(t, s.url, pool, step)
	lost.await(t)
	lost.kill(t)
	next := s.hire(t, s.url, pool, "")
	s.settled(t, job)
	next.kill(t)
	want := fateOf(step, door, attempts, lost.id)
	s.audit(t, job, want)
	auditRuns(t, step, false, want, lost, next)
}

// auditRuns: the lost worker ran what it came to, and the next one the guest
// only when there was no outcome and an attempt was left. One that is cut off goes
// on for as long as the job is its own.
func auditRuns(t *testing.T, step string, goesOn bool, want fate, lost, next *heldWorker) {
	t.Helper()
	ran := 0
	if !before(step, "directory made") {
		ran = 1
	}
	if goesOn && !before(step, "claimed") {
		ran = 1
	}
	if got := lost.attempts(t); got != ran {
		t.Errorf("the lost worker began %d attempts, want %d", got, ran)
	}
	again := 0
	if want.attempt == 2 || before(step, "claimed") {
		again = 1
	}
	if got := next.attempts(t); got != again {
		t.Errorf("the next worker began %d attempts, want %d", got, again)
	}
}

// fateOf is what becomes of a job whose worker is lost at a step.
//
// Source: docs/protocol.md, sections 6 and 8.
func fateOf(step string, door bool, attempts int, lost protocol.WorkerID) fate {
	v := fate{status: protocol.StatusOK, attempt: 1}
	if !before(step, "claimed") && before(step, "outcome written") {
		if attempts > 1 {
			v.attempt = 2
		} else {
			v.status, v.letters = protocol.StatusCrashed, 1
			v.detail = fmt.Sprintf("worker %s was lost while running attempt 1", lost)
		}
	}
	switch {
	case door && step == "door answered":
		v.posts = 2 // the one place
	case door:
		v.posts = 1
	}
	return v
}

func before(step, other string) bool {
	return slices.Index(worker.Crashpoints, step) < slices.Index(worker.Crashpoints, other)
}

func afterThePost(step string) bool {
	return slices.Contains([]string{"door answered", "delivered", "file rewritten"}, step)
}

// TestCrashOfTheReporter kills the worker that reports another's loss, at each
// step of that: the job still ends among the dead letters, with the parent told.
func TestCrashOfTheReporter(t *testing.T) {
	t.Parallel()
	s := newSite(t, testenv.NATS(t).URL(), 1, 3)
	for _, step := range []string{"outcome written", "file written", "task ended", "door answered", "delivered", "settling"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			pool := s.pool(t)
			job := s.dispatch(t, pool, crashTask, true, 1)
			lost := s.hire(t, s.url, pool, "guest running")
			lost.await(t)
			lost.kill(t)
			reporter := s.hire(t, s.url, pool, step)
			reporter.await(t)
			reporter.kill(t)
			next := s.hire(t, s.url, pool, "")
			s.settled(t, job)
			next.kill(t)
			want := fateOf("guest running", true, 1, lost.id)
			if step == "door answered" {
				want.posts = 2
			}
			s.audit(t, job, want)
			if n := reporter.attempts(t) + next.attempts(t); n != 0 {
				t.Errorf("%d attempts were begun after the last", n)
			}
		})
	}
}

// TestCrashpointsAreListed compares the list with the calls in the code.
func TestCrashpointsAreListed(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../worker/*.go")
	if err != nil {
		t.Fatal(err)
	}
	listed := append([]string{"handed back"}, worker.Crashpoints...) // a drain's: tests of its own
	var called []string
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, call := range regexp.MustCompile(`\tcrashpoint\("([^"]+)"\)`).FindAllStringSubmatch(string(text), -1) {
			called = append(called, call[1])
		}
	}
	slices.Sort(listed)
	slices.Sort(called)
	if !slices.Equal(called, listed) {
		t.Errorf("the code calls\n%q\nlisted are\n%q", called, listed)
	}
}
