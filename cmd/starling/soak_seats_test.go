//go:build soak

package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"starling/testenv"
)

// seat is where one worker after the other works: a work root, a way to the bus, and
// a process.
type seat struct {
	soak    *soak
	name    string
	pool    string
	dir     string
	steady  bool // its worker is never ended
	proxies []*testenv.FaultProxy

	worker  *workerProcess
	id      string // of the worker
	hired   int
	http    string
	ending  bool // its end was asked for
	busy    bool // a fault goes on
	stopped bool // by SIGSTOP
}

// start hires the seat's next worker.
func (st *seat) start() {
	t := st.soak.t
	t.Helper()
	var urls []string
	for _, p := range st.proxies {
		urls = append(urls, p.URL())
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") // free a moment ago is good enough
	if err != nil {
		t.Fatal(err)
	}
	st.http = listener.Addr().String()
	_ = listener.Close()
	st.id, st.ending = fmt.Sprintf("%s-%d", st.name, st.hired), false
	st.hired++
	level := "warn"
	if os.Getenv(soakLog) != "" {
		level = "info"
	}
	st.worker = startWorkerProcess(t, exec.Command, strings.Join(urls, ","), st.dir, st.soak.fleet.log, "--log-level", level,
		"--worker-id", st.id, "--pool", st.pool, "--slots", "4", "--drain-timeout", "2s", "--cancel-grace", "1s",
		"--retention", soakRetention.String(), "--completion-timeout", "3s", "--http", st.http,
		"--cache-dir", filepath.Join(st.soak.fleet.dir, "cache"))
}

// gone reports whether the worker has ended, and how.
func (st *seat) gone() (bool, int) {
	select {
	case err := <-st.worker.done:
		st.worker.done <- err
		return true, exitCode(err)
	default:
		return false, 0
	}
}

// noteEnd notes how the worker ended, for [soak.explain].
func (st *seat) noteEnd(how string) {
	st.soak.ends = append(st.soak.ends, fmt.Sprintf("%s %s %s", time.Now().Format(time.StampMilli), st.id, how))
}

// watch is a service manager: it starts a worker again that ended because there was
// no bus. Nothing else may end one that was not told to.
func (st *seat) watch() {
	ended, status := st.gone()
	if !ended || st.ending {
		return
	}
	if status != exitNoBus {
		st.soak.t.Errorf("worker %s ended with status %d by itself", st.id, status)
	}
	st.noteEnd(fmt.Sprintf("by itself, status %d", status))
	st.soak.count["worker started without a bus, and again"]++
	st.start()
}

// sandboxes are the sandbox processes of the worker.
func (st *seat) sandboxes() []int {
	var pids []int
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", st.worker.command.Process.Pid))
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		for word := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func (st *seat) proxied(do func(*testenv.FaultProxy)) {
	for _, p := range st.proxies {
		do(p)
	}
}

func (st *seat) resume() {
	if !st.stopped {
		return
	}
	st.stopped = false
	st.worker.signal(st.soak.t, syscall.SIGCONT)
}
