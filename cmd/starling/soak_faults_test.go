//go:build soak

package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"starling/testenv"
)

// agenda is what happens when, in seconds from the start of the load.
type agenda []event

type event struct {
	at float64
	do func()
}

func (a *agenda) add(at float64, do func()) { *a = append(*a, event{at, do}) }

// next takes the earliest event.
func (a *agenda) next() event {
	first := 0
	for i, e := range *a {
		if e.at < (*a)[first].at {
			first = i
		}
	}
	e := (*a)[first]
	*a = slices.Delete(*a, first, first+1)
	return e
}

// elapsed is how long the load has run, in seconds.
func (s *soak) elapsed() float64 { return time.Since(s.began).Seconds() }

// later does something so many seconds from now.
func (s *soak) later(in float64, do func()) { s.agenda.add(s.elapsed()+in, do) }

// The faults of workers, and how long they last, in seconds. Those that end a worker
// come last: a steady one is spared.
var soakFaults = []struct {
	name        string
	least, most float64
	begin       func(s *soak, st *seat, last float64)
}{
	{"worker stalled past the ack wait", soakAckWait.Seconds() + 1, soakAckWait.Seconds() + 5, (*soak).stall},
	{"worker stalled for less", 0.5, soakAckWait.Seconds() / 2, (*soak).stall},
	{"worker's connections cut", 0, 0, (*soak).cut},
	{"worker cut off", 1, soakAckWait.Seconds() + 4, (*soak).cutOff},
	{"worker's way to the bus held up", 1, soakAckWait.Seconds() + 4, func(s *soak, st *seat, last float64) { s.holdUp(st, testenv.ToServer, last) }},
	{"worker's way from the bus held up", 1, soakAckWait.Seconds() + 4, func(s *soak, st *seat, last float64) { s.holdUp(st, testenv.ToClient, last) }},
	{"sandbox process killed", 0, 0, (*soak).killSandbox},
	{"worker killed", 0.1, 4, (*soak).kill},
	{"worker killed", 0.1, 4, (*soak).kill},
	{"worker drained", 0.1, 2, (*soak).drain},
}

const soakSpared = 7 // of soakFaults may befall a steady worker

// plan draws all faults from the seed. A fault that meets a worker which is hurt
// already is left out.
func (s *soak) plan(random *rand.Rand) {
	s.planDoors(random)
	end := s.params.duration.Seconds()
	for at := 3.0; at < end; at += 1 + 3*random.Float64() {
		st := s.seats[random.IntN(len(s.seats))]
		n := len(soakFaults)
		if st.steady {
			n = soakSpared
		}
		fault := soakFaults[random.IntN(n)]
		last := fault.least + random.Float64()*(fault.most-fault.least)
		s.agenda.add(at, func() {
			if st.busy {
				return
			}
			s.count[fault.name]++
			fault.begin(s, st, last)
		})
	}
	for at := 12.0; at < end-10; at += 15 + 15*random.Float64() {
		server, way, last := random.IntN(len(s.cluster.Servers)), random.IntN(3), 0.5+4*random.Float64()
		s.agenda.add(at, func() { s.loseServer(s.cluster.Servers[server], way == 0, last) })
	}
	for at := 0.0; at < end; at += 2 {
		s.agenda.add(at, s.samples.take)
	}
	s.agenda.add(end, s.load.end)
	for at := 0.5; at < end; at++ {
		s.agenda.add(at, func() {
			for _, st := range s.seats {
				st.watch()
			}
		})
	}
}

// run lives through the agenda. With its last event every fault has ended.
func (s *soak) run() {
	for len(s.agenda) > 0 {
		e := s.agenda.next()
		if wait := e.at - s.elapsed(); wait > 0 {
			timer := time.NewTimer(time.Duration(wait * float64(time.Second)))
			<-timer.C
		}
		e.do()
	}
}

func (s *soak) stall(st *seat, last float64) {
	if ended, _ := st.gone(); ended {
		return
	}
	from := time.Now()
	st.busy, st.stopped = true, true
	testenv.Freeze(s.t, st.worker.command.Process.Pid)
	why := "it was stalled"
	if last < soakAckWait.Seconds() {
		why = "" // that excuses no lost task, but what it could not renew for other reasons, as it says itself
	}
	id := st.id
	s.over(st, last, why, from, func() {
		st.resume()
		s.audit.paused(id, from, time.Now())
	})
}

// over ends a fault of a seat after so many seconds. What it excuses is given by why,
// "" for nothing.
func (s *soak) over(st *seat, last float64, why string, from time.Time, undo func()) {
	id := st.id
	s.later(last, func() {
		undo()
		st.busy = false
		if why != "" {
			s.audit.hurt(id, why, from, time.Now().Add(soakAckWait)) // its next renewals are due by then
		}
	})
}

func (s *soak) cut(st *seat, _ float64) {
	st.proxied((*testenv.FaultProxy).Cut)
	now := time.Now()
	s.audit.hurt(st.id, "its connections were cut", now, now.Add(soakAckWait))
}

func (s *soak) cutOff(st *seat, last float64) {
	st.busy = true
	from := time.Now()
	st.proxied((*testenv.FaultProxy).Down)
	s.over(st, last, "it was cut off", from, func() { st.proxied((*testenv.FaultProxy).Resume) })
}

func (s *soak) holdUp(st *seat, d testenv.Direction, last float64) {
	st.busy = true
	from := time.Now()
	st.proxied(func(p *testenv.FaultProxy) { p.Stall(d) })
	s.over(st, last, "its connections were stalled", from, func() { st.proxied((*testenv.FaultProxy).Resume) })
}

func (s *soak) killSandbox(st *seat, _ float64) {
	if pids := st.sandboxes(); len(pids) > 0 {
		_ = syscall.Kill(pids[s.sandboxKills%len(pids)], syscall.SIGKILL) // it may have ended
		s.sandboxKills++
	}
}

func (s *soak) kill(st *seat, last float64) {
	from := time.Now()
	st.ending = true
	st.worker.kill(s.t)
	st.noteEnd("killed")
	s.audit.died(st.id, time.Now())
	st.busy = true
	s.over(st, last, "it was killed", from, st.start)
}

// drain asks a worker to leave and gives its seat to another once it has.
func (s *soak) drain(st *seat, last float64) {
	if ended, _ := st.gone(); ended {
		return
	}
	st.busy, st.ending = true, true
	st.worker.signal(s.t, syscall.SIGTERM)
	asked := time.Now()
	var look func()
	look = func() {
		ended, status := st.gone()
		if !ended && time.Since(asked) < time.Minute {
			s.later(0.3, look)
			return
		}
		st.noteEnd(fmt.Sprintf("drained since %s, status %d", asked.Format(time.StampMilli), status))
		switch {
		case !ended:
			s.t.Errorf("worker %s does not leave within a minute of a drain", st.id)
			st.worker.kill(s.t)
		case status == exitNoBus:
			s.count["drain ended without a bus"]++
		case status == -1: // SIGTERM came before it listened, so before it took anything
			s.count["drain before the worker listened"]++
		case status != exitOK:
			s.t.Errorf("worker %s ends with status %d after a drain", st.id, status)
		}
		st.busy = false
		st.start()
	}
	s.later(last+1, look)
}

// loseServer ends a server, by lame duck or as a crash would, and starts it again.
// It waits until the loss of the one before is made good, as operators do: a cluster
// bears the loss of one.
func (s *soak) loseServer(server *testenv.ServerProcess, lameDuck bool, last float64) {
	if s.elapsed() > s.params.duration.Seconds() {
		return
	}
	if s.serverDown != nil || len(s.cluster.Servers) > 1 && s.cluster.Whole() != nil {
		s.later(1, func() { s.loseServer(server, lameDuck, last) })
		return
	}
	s.serverFaults = append(s.serverFaults, fmt.Sprintf("%s %s, lame duck %t, for %.0f s", time.Now().Format(time.StampMilli), server.Name(), lameDuck, last))
	if lameDuck {
		s.count["server in lame duck"]++
		server.LameDuck()
	} else {
		s.count["server killed"]++
		server.Kill()
	}
	s.serverDown = server
	from := time.Now()
	s.later(last, func() {
		s.startServer()
		s.audit.deliversAgain("a server was lost", from, time.Now().Add(2*soakAckWait)) // what it knew of renewals may be gone
	})
}

func (s *soak) startServer() {
	s.serverDown.Start()
	s.serverDown = nil
	if len(s.cluster.Servers) > 1 {
		return
	}
	// The bucket of workers is in memory: one server alone forgets it.
	testenv.Eventually(s.t, time.Minute, func() error { return s.fleet.bus.Init(s.t.Context(), s.topology()) })
}

// healed waits until all that was hurt works again.
func (s *soak) healed() {
	s.t.Helper()
	s.cluster.Ready()
	for _, st := range s.seats {
		testenv.Eventually(s.t, time.Minute, func() error {
			if ended, _ := st.gone(); !ended {
				return nil
			}
			st.start()
			return fmt.Errorf("%s had ended", st.id)
		})
	}
	s.fleet.await(s.t, len(s.seats))
}
