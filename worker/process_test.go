package worker_test

import (
	"strings"
	"syscall"
	"testing"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
	"starling/worker"
)

// processes are the ids of a worker's sandbox processes.
func (m *member) pids(t *testing.T) []int {
	t.Helper()
	if m.processes == nil {
		t.Skip("guests run in the test's process (-inprocess)")
	}
	return m.processes.PIDs()
}

func kill(t *testing.T, pids []int, sig syscall.Signal) {
	t.Helper()
	if len(pids) != 1 {
		t.Fatalf("sandbox processes %v, want one", pids)
	}
	if err := syscall.Kill(pids[0], sig); err != nil {
		t.Fatal(err)
	}
}

func TestASandboxProcessThatDiesIsTheCrashOfItsJobAlone(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.hire(t, func(c *worker.Config) { c.Slots = 1 })
	pids := m.pids(t)
	long := f.dispatch(t, f.job(f.push(t, "long", guest(t, say("ready"), forever())), "x"))
	f.saying(t, long, "ready")
	kill(t, pids, syscall.SIGKILL)
	rec := f.settled(t, long)
	const detail = "the capsule ended without recording a completion (signal: killed)"
	if rec.Status != protocol.StatusCrashed || rec.Outcome.Detail != detail || rec.Outcome.ReportedBy != protocol.ReportedByLauncher ||
		rec.Attempt != 1 || rec.Returned != 0 {
		t.Errorf("record %+v with outcome %+v, want crashed with %q after one attempt", rec, rec.Outcome, detail)
	}
	if posts := f.door.Posts(); len(posts) != 1 || !strings.Contains(posts[0].Text, "status: crashed\n") {
		t.Errorf("the door got %v, want the crash", posts)
	}
	next, _ := f.run(t, f.job(f.push(t, "next", guest(t, say("ready"))), "x"))
	if next.Status != protocol.StatusOK {
		t.Errorf("the next job: %+v, want ok", next.Outcome)
	}
}

// TestNeighboursInASandboxProcess are handed back without a charge when another
// had to be killed, and charged when nobody knows whose fault it was.
func TestNeighboursInASandboxProcess(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		attempts int
		blamed   bool // the parent ends one, which does not stop
		want     protocol.Status
		returned int
	}{
		{"another had to be killed", 1, true, protocol.StatusOK, 1},
		{"nobody knows whose fault it was", 2, false, protocol.StatusOK, 0},
		{"nobody knows, and no attempt is left", 1, false, protocol.StatusCrashed, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			m := f.newMember(t, f.server.URL(), func(c *worker.Config) { c.Slots = 2 }, 2)
			m.start(t)
			pids := m.pids(t)
			long := f.dispatch(t, f.job(f.push(t, "long", guest(t, say("ready"), forever())), "x",
				func(j *protocol.Job) { j.MaxAttempts = 1 }))
			// It ends well the second time: what it made the first time is another directory.
			again := f.dispatch(t, f.job(f.agent(t), "again", func(j *protocol.Job) { j.MaxAttempts = c.attempts }))
			f.saying(t, long, "ready")
			f.saying(t, again, "waiting")
			if c.blamed {
				testenv.Freeze(t, pids[0])
				if _, err := f.bus.Cancel(t.Context(), long.Spawner.SessionID, long.DelegationID, broker.CancelOptions{}); err != nil {
					t.Fatal(err)
				}
			} else {
				kill(t, pids, syscall.SIGKILL)
			}
			rec := f.settled(t, again)
			if rec.Status != c.want || rec.Returned != c.returned {
				t.Errorf("the neighbour: %s after attempt %d with %d returned, %+v; want %s with %d",
					rec.Status, rec.Attempt, rec.Returned, rec.Outcome, c.want, c.returned)
			}
			want := protocol.StatusCrashed
			if c.blamed {
				want = protocol.StatusTerminated
			}
			if rec := f.settled(t, long); rec.Status != want {
				t.Errorf("the other: %+v, want %s", rec.Outcome, want)
			}
		})
	}
}
