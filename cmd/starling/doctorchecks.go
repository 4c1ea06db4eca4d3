package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"starling/broker"
	"starling/protocol"
	"starling/sandbox"
)

const (
	// A clock that differs by less is of no matter to deadlines of seconds; by more
	// than clockProblem a deadline of a minute is no longer one.
	clockWarning = 2 * time.Second
	clockProblem = 30 * time.Second

	// roomWarning and roomProblem are how full a store may be.
	roomWarning = 0.80
	roomProblem = 0.95

	// lostAfter is how long a record may stand without its job: a dispatch writes
	// one after the other, and repairs itself for some seconds.
	lostAfter = time.Minute
	// maxDeadlines bounds the queued jobs that are read for their deadline, the oldest
	// first: a long queue has others.
	maxDeadlines = 1000
	// maxNamed bounds how many of a kind are named, and maxKey a key that is named, which
	// anybody with the right may have written.
	maxNamed = 5
	maxKey   = 80
)

// confinement looks at the kernel of the host that the doctor runs on.
func (x *examination) confinement() {
	missing := sandbox.MissingConfinement()
	for _, what := range missing {
		x.say("sandbox", warning, "", "a worker on this host would confine its sandbox processes less: %s", what)
	}
	if len(missing) == 0 {
		x.say("sandbox", fine, "", "the kernel of this host has no_new_privs, seccomp and Landlock for sandbox processes")
	}
}

// account reports whether there is a JetStream to look at.
func (x *examination) account(ctx context.Context) bool {
	account, err := x.bus.Account(ctx)
	if err != nil {
		x.failed("jetstream", err)
		return !errors.Is(err, broker.ErrNoJetStream)
	}
	x.full("jetstream", fmt.Sprintf("disk of the account, %d streams", account.Streams), account.Store, account.MaxStore,
		"raise the account's limit, or the servers' max_file_store")
	if account.MaxMemory > 0 {
		x.full("jetstream", "memory of the account", account.Memory, account.MaxMemory, "raise the account's limit, or the servers' max_memory_store")
	}
	return true
}

// full judges what is used of a limit; a limit below 1 is none.
func (x *examination) full(name, what string, used, limit int64, fix string) {
	if limit < 1 {
		x.say(name, fine, "", "%s: %d used, no limit here (the servers' own are not seen)", what, used)
		return
	}
	share := float64(used) / float64(limit)
	status := fine
	if share >= roomProblem {
		status = problem
	} else if share >= roomWarning {
		status = warning
	} else {
		fix = ""
	}
	x.say(name, status, fix, "%s: %d of %d used (%d%%)", what, used, limit, int(share*100))
}

// topology reports whether the namespace can be looked at further.
func (x *examination) topology(ctx context.Context) bool {
	in, err := x.bus.Inspect(ctx)
	if err != nil {
		x.failed("streams", err)
		return false
	}
	x.inspected = in
	ns := x.bus.Namespace()
	if len(in.Streams) == 0 {
		x.say("streams", problem, x.bus.Command("init")+", with an operator's rights; or --namespace names another", "namespace %s is not initialized: it has no stream", ns)
		return false
	}
	for _, d := range in.Differences {
		fix := "another program made it, or another version: make it as it should be with the nats command, or delete it when it is empty and run " + x.bus.Command("init")
		if d.Fixable {
			fix = x.bus.Command("init") + " puts it right"
			if d.Setting == "replicas" {
				fix = x.bus.Command("init --replicas " + d.Want)
			}
		}
		if d.Setting == "" {
			x.say("streams", problem, fix, "%s is missing", d.Thing)
			continue
		}
		status := problem
		if d.Setting == "replicas" {
			status = warning
		}
		x.say("streams", status, fix, "%s has %s %s, not %s", d.Thing, d.Setting, d.Have, d.Want)
	}
	x.servers()
	if len(in.Differences) == 0 {
		x.say("streams", fine, "", "%d streams and buckets, %d consumers are as init makes them", len(in.Streams), len(in.Pools)*len(protocol.Lanes()))
	}
	registry, err := x.bus.Registry(ctx)
	if err != nil && !errors.Is(err, broker.ErrNotInitialized) {
		x.failed("workers", err)
	}
	x.workers = registry.Workers
	x.unreadableWorkers(registry.Unreadable)
	return true
}

// unreadableWorkers is one line for all entries of the registry that cannot be read.
func (x *examination) unreadableWorkers(entries []broker.UnreadableWorker) {
	if len(entries) == 0 {
		return
	}
	var named []string
	for _, e := range entries[:min(len(entries), maxNamed)] {
		named = append(named, fmt.Sprintf("%s (%s)", shortened(e.Key, maxKey), shortened(cell(e.Err.Error()), 2*maxKey)))
	}
	if more := len(entries) - len(named); more > 0 {
		named = append(named, fmt.Sprintf("%d more", more))
	}
	x.say("workers", warning,
		fmt.Sprintf("`nats kv del %s KEY` removes one; an entry lives 30 s, so what is there again is written by a program that is no worker of this version", x.bus.Namespace().WorkerBucket()),
		"%d entries of the registry cannot be read: %s", len(entries), joined(named))
}

// servers names those that streams miss: a line for all that are not there, and one
// for all that are behind.
func (x *examination) servers() {
	gone := map[string]bool{}
	for _, s := range x.inspected.Streams {
		for _, server := range s.Offline {
			gone[server] = true
		}
	}
	offline, behind := missed{what: "offline"}, missed{what: "behind"}
	for _, s := range x.inspected.Streams {
		var late []string
		lost := slices.Clone(s.Offline)
		for _, server := range s.Behind { // each stream's leader learns by itself who is gone
			if gone[server] {
				lost = append(lost, server)
			} else {
				late = append(late, server)
			}
		}
		offline.add(s.Name, lost)
		behind.add(s.Name, late)
	}
	offline.say(x, "start it again; `nats server report jetstream` shows each server's state")
	behind.say(x, "it catches up by itself when it has just come back; `nats server report jetstream` shows each server's state")
}

// missed are servers that streams miss.
type missed struct {
	what             string
	servers, streams []string
}

func (m *missed) add(stream string, servers []string) {
	if len(servers) == 0 {
		return
	}
	m.streams = append(m.streams, stream)
	for _, server := range servers {
		if !slices.Contains(m.servers, server) {
			m.servers = append(m.servers, server)
		}
	}
}

func (m *missed) say(x *examination, fix string) {
	if len(m.servers) == 0 {
		return
	}
	slices.Sort(m.servers)
	who := "server " + m.servers[0] + " is"
	if len(m.servers) > 1 {
		who = "servers " + joined(m.servers) + " are"
	}
	x.say("servers", warning, fix, "%s %s: %d of %d streams and buckets lack replicas: %s",
		who, m.what, len(m.streams), len(x.inspected.Streams), joined(m.streams))
}

// clock compares clocks with the server's: this host's, and each worker's.
func (x *examination) clock() {
	judge := func(who string, off, precision time.Duration) {
		status, fix := fine, ""
		if off.Abs() > clockWarning+precision {
			status, fix = warning, "let every host follow one time (NTP): deadlines and ages are judged by these clocks"
		}
		if off.Abs() > clockProblem+precision {
			status = problem
		}
		x.say("clock", status, fix, "%s is %s off the server's, within %s", who, off.Round(time.Millisecond), precision.Round(time.Millisecond))
	}
	if !x.inspected.ServerTime.IsZero() {
		judge("this host's", -x.inspected.Clock, x.inspected.Precision)
	}
	for _, w := range x.workers {
		if w.StoredAt.IsZero() {
			continue
		}
		if off := w.SeenAt.Std().Sub(w.StoredAt); off.Abs() > clockWarning {
			judge("the clock of worker "+string(w.WorkerID)+" on "+w.Host, off, time.Second)
		}
	}
}

// room looks for streams that are nearly full, or never have room for what they are for.
func (x *examination) room() {
	tight := false
	for _, s := range x.inspected.Streams {
		if s.MaxBytes > 0 && s.MaxBytes < s.LeastBytes {
			tight = true
			x.say("room", problem, x.bus.Command(fmt.Sprintf("init %s %d", s.LimitFlag, s.LeastBytes))+", or more",
				"stream %s may hold %d bytes, and %s can need %d", s.Name, s.MaxBytes, s.Largest, s.LeastBytes)
		}
		for _, limit := range []struct {
			what, flag string
			used, max  int64
		}{{"bytes", s.LimitFlag, int64(s.Bytes), s.MaxBytes}, {"messages", s.MessagesFlag, int64(s.Messages), s.MaxMsgs}} {
			if limit.max > 0 && float64(limit.used) >= roomWarning*float64(limit.max) {
				tight = true
				raise := "where it was set"
				if limit.flag != "" {
					raise = "with " + x.bus.Command("init "+limit.flag+" N")
				}
				x.full("room", "stream "+s.Name+", "+limit.what, limit.used, limit.max, "let workers catch up, or raise its limit "+raise)
			}
		}
	}
	if !tight {
		x.say("room", fine, "", "no stream is near its limit")
	}
}

// pools compares declared with served ones.
func (x *examination) pools(ctx context.Context) {
	var workers []protocol.WorkerInfo
	for _, w := range x.workers {
		workers = append(workers, w.WorkerInfo)
	}
	declared := map[string]bool{}
	for _, pool := range x.inspected.Pools {
		declared[pool] = true
		p, err := x.bus.PoolStatsOf(ctx, pool, workers)
		if err != nil {
			x.failed("pools", err)
			continue
		}
		served, err := x.bus.PoolServed(ctx, pool)
		start := x.bus.Command("worker --pool " + p.Pool)
		waiting := p.Pending + uint64(max(p.InProgress, 0))
		switch {
		case err != nil:
			x.failed("pools", err)
		case served:
			x.say("pools", fine, "", "%s: %d workers, %d of %d slots busy, %d jobs wait", p.Pool, p.Workers, p.Busy, p.Slots, p.Pending)
		case waiting > 0:
			x.say("pools", problem, start, "%s: nobody takes its jobs, and %d are queued", p.Pool, waiting)
		default:
			x.say("pools", warning, start, "%s: declared, and nobody takes its jobs", p.Pool)
		}
	}
	for _, w := range x.workers {
		if !declared[w.Pool] {
			x.say("pools", problem, x.bus.Command("init --pools "+w.Pool), "worker %s works for pool %s, which is not declared", w.WorkerID, w.Pool)
		}
	}
}
