//go:build limits

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bytecodealliance/wasmtime-go/v39"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// TestLimitsSlowBus runs a capsule that says a million things over a connection of
// 400 kB/s: the guest is held back, neighbours are joined, nothing is lost, and the
// worker does not grow.
func TestLimitsSlowBus(t *testing.T) {
	const said, size = 1_000_000, 8 // below the 8 MiB of payloads that are kept
	server := testenv.NATS(t)
	proxy := testenv.Proxy(t, server.URL())
	f := newProcessFleet(t, server.URL(), broker.InitConfig{}, testenv.Door(t))
	module, err := wasmtime.Wat2Wasm(fmt.Sprintf(`(module
		(import "murmur:stream/events@0.1.0" "emit-chunk" (func $chunk (param i32 i32)))
		(memory (export "memory") 1)
		(data (i32.const 0) "eight by")
		(func (export "_start") (local $n i32)
			(loop $again
				(call $chunk (i32.const 0) (i32.const %d))
				(local.set $n (i32.add (local.get $n) (i32.const 1)))
				(br_if $again (i32.lt_u (local.get $n) (i32.const %d))))))`, size, said))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "flood.wasm")
	if err := os.WriteFile(path, module, 0o600); err != nil {
		t.Fatal(err)
	}
	push(t, server.URL(), path, "name: flood\nversion: 1.0.0\noutput: events\n")
	w := f.hireAt(t, proxy.URL(), "slow")
	f.await(t, 1)
	warm := f.dispatchAll(t, 4, func(int) protocol.Job { return fleetJob("agent", "chatty 20000 8", f.door.URL()) })
	f.emptied(t, time.Minute, warm)
	before, most := w.memory(t), int64(0)

	proxy.Throttle(400_000)
	began := time.Now()
	job := fleetJob("flood", "flood", f.door.URL())
	if err := f.dispatch(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	watch, err := f.bus.WatchTask(ctx, job.TaskID, broker.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	text, frames := 0, 0
	for {
		e, err := watch.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("after %d frames: %v", frames, err)
		}
		if e.Hole != nil {
			t.Errorf("a hole: %+v", *e.Hole)
			continue
		}
		frames++
		if e.Frame.Kind == protocol.FrameText {
			text += len(e.Frame.Text)
		}
		most = max(most, w.memory(t))
	}
	took := time.Since(began)
	if text != said*size {
		t.Errorf("%d bytes of text arrived, want %d", text, said*size)
	}
	if took < 10*time.Second { // 8 MB at 400 kB/s
		t.Errorf("the guest was not held back: it took %s", took)
	}
	const bound = 128 << 20
	if grown := most - before; grown > bound {
		t.Errorf("the worker grew by %d MiB, want at most %d", grown>>20, bound>>20)
	}
	t.Logf("%d events in %d frames in %s; the worker had %d MiB, at most %d", said, frames, took.Round(time.Second), before>>20, most>>20)
	f.emptied(t, time.Minute, []protocol.Job{job})
	f.auditor().check(t, append(warm, job))
}

// TestLimitsObservers lets 1,500 observers follow one task, and one more that
// sleeps until it is over: all are told everything, and it holds nobody up.
func TestLimitsObservers(t *testing.T) {
	const observers = 1500
	server := testenv.NATS(t)
	f := newProcessFleet(t, server.URL(), broker.InitConfig{}, testenv.Door(t))
	job := fleetJob("agent", "turns 100", f.door.URL())
	if err := f.dispatch(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	sleeper, err := f.bus.WatchTask(t.Context(), job.TaskID, broker.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer sleeper.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var frames atomic.Int64
	var ready, watching sync.WaitGroup
	ready.Add(observers)
	for range observers {
		watching.Go(func() {
			watch, err := f.bus.WatchTask(ctx, job.TaskID, broker.WatchOptions{})
			ready.Done()
			if err != nil {
				t.Errorf("observe: %v", err)
				return
			}
			defer watch.Close()
			n, err := count(ctx, watch)
			if err != nil {
				t.Errorf("after %d frames: %v", n, err)
			}
			frames.Add(int64(n))
		})
	}
	ready.Wait()
	began := time.Now()
	f.hire(t, "w")
	watching.Wait()
	took := time.Since(began)
	alone, err := count(ctx, sleeper)
	if err != nil {
		t.Errorf("the one that slept: %v", err)
	}
	if frames.Load() != int64(alone)*observers {
		t.Errorf("%d observers were told %d frames, want %d each", observers, frames.Load(), alone)
	}
	t.Logf("%d frames to %d observers in %s, with the worker's start", alone, observers, took.Round(100*time.Millisecond))
	f.emptied(t, time.Minute, []protocol.Job{job})
	f.auditor().check(t, []protocol.Job{job})
}

// count reads a watch to its end; a hole is an error.
func count(ctx context.Context, watch *broker.Watch) (int, error) {
	for n := 0; ; n++ {
		e, err := watch.Next(ctx)
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err == nil && e.Hole != nil {
			err = fmt.Errorf("hole %+v", *e.Hole)
		}
		if err != nil {
			return n, err
		}
	}
}

// TestLimitsQueue queues 10,000 jobs over 100 pools: the figures of all are told,
// and the workers of one pool run its jobs and no others.
func TestLimitsQueue(t *testing.T) {
	const jobs, pools = 10_000, 100
	server := testenv.NATS(t)
	init := broker.InitConfig{}
	for n := range pools {
		init.Pools = append(init.Pools, fmt.Sprint("pool-", n))
	}
	f := newProcessFleet(t, server.URL(), init, testenv.Door(t))
	began := time.Now()
	all := f.dispatchAll(t, jobs, func(i int) protocol.Job {
		job := fleetJob("noop", "nothing", f.door.URL())
		job.Pool = init.Pools[i%pools]
		return job
	})
	t.Logf("%d jobs queued in %s", jobs, time.Since(began).Round(time.Second))
	began = time.Now()
	stats, err := f.bus.PoolStats(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the figures of %d pools in %s", len(stats), time.Since(began).Round(time.Millisecond))
	if len(stats) != pools {
		t.Errorf("%d pools, want %d", len(stats), pools)
	}
	for _, s := range stats {
		if s.Pending != jobs/pools {
			t.Errorf("pool %s has %d jobs waiting, want %d", s.Pool, s.Pending, jobs/pools)
		}
	}
	f.hire(t, "w", "--pool", "pool-37", "--slots", "8")
	var mine []protocol.Job
	for i, job := range all {
		if i%pools == 37 {
			mine = append(mine, job)
		}
	}
	f.mirror.waitFinal(t, len(mine))
	testenv.Eventually(t, time.Minute, func() error {
		left, err := jobsIn(t.Context(), f.url)
		if err == nil && left != jobs-jobs/pools {
			err = fmt.Errorf("%d jobs left, want %d", left, jobs-jobs/pools)
		}
		return err
	})
	audit := f.auditor()
	if err := audit.audit(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
	if audit.counts["outcome ok"] != len(mine) || audit.counts["posts"] != len(mine) {
		t.Errorf("of the pool that is served:\n%s", audit.table())
	}
}

// TestLimitsBacklog runs 10,000 jobs that wait when the workers come.
func TestLimitsBacklog(t *testing.T) {
	const jobs = 10_000
	f := newProcessFleet(t, testenv.NATS(t).URL(), broker.InitConfig{}, testenv.Door(t))
	all := f.dispatchAll(t, jobs, func(int) protocol.Job { return fleetJob("noop", "nothing", f.door.URL()) })
	began := time.Now()
	w := f.hire(t, "w", "--slots", "8")
	f.mirror.waitFinal(t, jobs)
	took := time.Since(began)
	f.emptied(t, 2*time.Minute, all)
	t.Logf("%d jobs in %s, %.0f a second; the worker has %d MiB", jobs, took.Round(time.Second), jobs/took.Seconds(), w.memory(t)>>20)
	f.auditor().check(t, all)
}

// TestLimitsNamespaces keeps 30 fleets on one server apart. Each reserves the bytes
// that its jobs may take.
func TestLimitsNamespaces(t *testing.T) {
	const namespaces = 30
	url := testenv.NATS(t).URL()
	began := time.Now()
	for n := range namespaces {
		ns := fmt.Sprint("fleet-", n)
		if got := starling(t, "", "init", "--namespace", ns, "--max-job-bytes", "1048576", "--url", url); got.status != exitOK {
			t.Fatalf("init %s: %s", ns, got.err)
		}
	}
	t.Logf("%d namespaces in %s", namespaces, time.Since(began).Round(100*time.Millisecond))
	dir := capsuleDir(t, testenv.WAT(t, "noop"), "name: noop\nversion: 1.0.0\n")
	for n := range namespaces {
		ns := fmt.Sprint("fleet-", n)
		if n > 0 {
			if got := starling(t, "", "dispatch", "noop@1.0.0", "--task", "x", "--namespace", ns, "--allow-unserved", "--url", url); got.status != exitNotFound {
				t.Errorf("%s has a capsule that was pushed to another: status %d", ns, got.status)
			}
		}
		if got := starling(t, "", "capsule", "push", dir, "--namespace", ns, "--url", url); got.status != exitOK {
			t.Fatalf("push to %s: %s", ns, got.err)
		}
		if got := starling(t, "", "dispatch", "noop@1.0.0", "--task", "x", "--namespace", ns, "--allow-unserved", "--url", url); got.status != exitOK {
			t.Fatalf("dispatch in %s: %s", ns, got.err)
		}
		if got := starling(t, "", "ps", "--namespace", ns, "--url", url); strings.Count(got.out, "noop@1.0.0") != 1 {
			t.Errorf("%s shows:\n%s", ns, got.out)
		}
	}
}

// smallDisk is a file system of so many bytes, and needs root.
func smallDisk(t *testing.T, bytes int) string {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("a small disk needs root: CI must run this test")
		}
		t.Skip("a small disk needs root: it is mounted")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		t.Fatalf("mount a small disk: %v", err)
	}
	t.Cleanup(func() {
		testenv.Eventually(t, 30*time.Second, func() error { return syscall.Unmount(dir, 0) })
	})
	return dir
}

// fill writes a file that takes all the room, and says how to free it.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "ballast")
	ballast, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ballast.Close() }()
	for _, size := range []int{1 << 20, 4 << 10, 1} {
		for chunk := make([]byte, size); err == nil; {
			_, err = ballast.Write(chunk)
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		err = nil
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLimitsServersDiskIsFull fills the disk under the server's store under load:
// what cannot be stored is refused or unclear and never said to be queued, and when
// there is room again and the server was restarted everything ends as it should.
func TestLimitsServersDiskIsFull(t *testing.T) {
	disk := smallDisk(t, 96<<20)
	server := testenv.NATS(t, testenv.WithOptions(func(o *testenv.ServerOptions) { o.StoreDir = filepath.Join(disk, "store") }))
	f := newProcessFleet(t, server.URL(), broker.InitConfig{}, testenv.Door(t))
	f.hire(t, "w")
	f.await(t, 1)
	jobs := f.dispatchAll(t, 60, func(i int) protocol.Job { return mixedJob(i, f.door.URL()) })
	f.mirror.waitFinal(t, 20)
	free := fill(t, disk)
	var refused result
	testenv.EventuallyTrue(t, 2*time.Minute, "a job that is not taken", func() bool {
		session, delegation := string(protocol.NewSessionID()), string(protocol.NewDelegationID())
		refused = starling(t, strings.Repeat("x", 100_000), "dispatch", "noop@1.0.0", "--allow-unserved",
			"--session", session, "--delegation", delegation, "--url", f.url)
		return refused.status != exitOK
	})
	t.Logf("a full disk: status %d: %s", refused.status, refused.err)
	if refused.status != exitNoBus && refused.status != exitRefused && refused.status != exitFailure {
		t.Errorf("status %d", refused.status)
	}
	testenv.EventuallyTrue(t, 2*time.Minute, "the worker says that the bus takes nothing", func() bool {
		return strings.Contains(f.said(t), "the bus takes no")
	})
	free()
	server.Restart()
	f.emptied(t, 4*time.Minute, jobs)
	f.auditor().check(t, jobs)
}

// TestLimitsWorkersDiskIsFull fills the disk under a worker's work root: tasks that
// it cannot begin are handed back, cost no attempt, and run elsewhere.
func TestLimitsWorkersDiskIsFull(t *testing.T) {
	disk := smallDisk(t, 8<<20)
	f := newProcessFleet(t, testenv.NATS(t).URL(), broker.InitConfig{AckWait: 5 * time.Second}, testenv.Door(t))
	f.hire(t, "full", "--work-root", filepath.Join(disk, "work"), "--slots", "2")
	f.await(t, 1)
	first := f.dispatchAll(t, 4, func(i int) protocol.Job { return mixedJob(i, f.door.URL()) })
	f.emptied(t, time.Minute, first)
	free := fill(t, disk)
	jobs := f.dispatchAll(t, 24, func(i int) protocol.Job { return mixedJob(i, f.door.URL()) })
	testenv.EventuallyTrue(t, time.Minute, "the worker says that its disk is full", func() bool {
		return strings.Contains(f.said(t), "no space left on device")
	})
	f.hire(t, "w")
	f.emptied(t, 3*time.Minute, append(jobs, first...))
	free()
	more := f.dispatchAll(t, 12, func(i int) protocol.Job { return mixedJob(i, f.door.URL()) })
	f.emptied(t, time.Minute, more)
	f.auditor().check(t, append(append(jobs, first...), more...))
}

// TestLimitsRunOnASmallDisk: one task needs little room for its server's store, and
// without that is told where to find it.
func TestLimitsRunOnASmallDisk(t *testing.T) {
	for _, c := range []struct {
		bytes, status int
		says          string
	}{
		{8 << 20, exitOK, "ok (session ended"},
		{300 << 10, exitFailure, "name another place with TMPDIR"},
	} {
		run := program(t, runArgs(t, "run", testenv.WAT(t, "noop"), "--task", "x")...)
		run.Env = append(run.Env, "TMPDIR="+smallDisk(t, c.bytes))
		said, err := run.CombinedOutput()
		if status := exitCode(err); status != c.status {
			t.Errorf("run with %d bytes = %d, want %d\n%s", c.bytes, status, c.status, said)
		}
		contains(t, fmt.Sprintf("run with %d bytes", c.bytes), string(said), c.says)
	}
}
