//go:build fleet

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// TestFleetLosesNothing runs 500 jobs on four worker processes, of which two
// are killed and one is drained at random moments, and audits what is left.
func TestFleetLosesNothing(t *testing.T) {
	const jobs = 500
	seed := uint64(time.Now().UnixNano())
	if given, err := strconv.ParseUint(os.Getenv("FLEET_SEED"), 10, 64); err == nil {
		seed = given
	}
	t.Logf("FLEET_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	f := newProcessFleet(t, testenv.NATS(t).URL(), broker.InitConfig{AckWait: 3 * time.Second}, testenv.Door(t))
	var workers []*workerProcess
	for i := range 4 {
		workers = append(workers, f.hire(t, fmt.Sprint("w", i), "--slots", "8", "--drain-timeout", "2s"))
	}
	f.await(t, 4)

	dispatched := f.dispatchAll(t, jobs, func(i int) protocol.Job { return mixedJob(i, f.door.URL()) })
	audit := f.auditor()
	order := random.Perm(4)
	for i, fault := range []struct {
		what   string
		signal syscall.Signal
	}{{"killed", syscall.SIGKILL}, {"drained", syscall.SIGTERM}, {"killed", syscall.SIGKILL}} {
		after := jobs*(i+1)/5 + random.IntN(jobs/10)
		f.mirror.waitFinal(t, after)
		if fault.signal == syscall.SIGKILL {
			audit.lost(fmt.Sprint("w", order[i]), "killed")
		}
		workers[order[i]].signal(t, fault.signal)
		t.Logf("worker %d %s after %d outcomes", order[i], fault.what, after)
	}
	f.mirror.waitFinal(t, jobs)
	f.emptied(t, 60*time.Second, dispatched)
	audit.check(t, dispatched)
}
