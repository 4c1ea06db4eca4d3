package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"starling/testenv"
)

// workerProcess is a worker in a process of its own.
type workerProcess struct {
	command *exec.Cmd
	done    chan error // holds how it ended
}

func startWorkerProcess(t *testing.T, command func(string, ...string) *exec.Cmd, url, dir string, log io.Writer, args ...string) *workerProcess {
	t.Helper()
	return startProcess(t, workerCommand(t, command, url, dir, log, args...))
}

// workerCommand is a worker that does not run yet, made by command: on this host
// by [exec.Command].
func workerCommand(t *testing.T, command func(string, ...string) *exec.Cmd, url, dir string, log io.Writer, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{"worker", "--work-root", dir, "--cache-dir", testenv.CompiledCache(t), "--log-level", "warn"}, args...)
	if url != "" { // else args or the environment say where
		args = append(args, "--url", url)
	}
	process := command(self, args...)
	process.Env = append(os.Environ(), asProgram+"=1")
	process.Stderr = log
	return process
}

func startProcess(t *testing.T, process *exec.Cmd) *workerProcess {
	t.Helper()
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	w := &workerProcess{command: process, done: make(chan error, 1)}
	go func() { w.done <- process.Wait() }()
	t.Cleanup(func() { w.kill(t) })
	return w
}

// kill ends the process with SIGKILL and waits until it is gone. Idempotent.
func (w *workerProcess) kill(t *testing.T) {
	t.Helper()
	_ = w.command.Process.Kill() // it may have ended
	w.ended(t)
}

func (w *workerProcess) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := w.command.Process.Signal(s); err != nil {
		t.Errorf("signal %s: %v", s, err)
	}
}

// insist asks the worker to stop, which waits for its open pulls, some 10 s, and then
// again, which does not. It says how it ended.
func (w *workerProcess) insist(t *testing.T) error {
	t.Helper()
	w.signal(t, syscall.SIGTERM)
	again := time.NewTimer(2 * sameStop)
	defer again.Stop()
	select {
	case err := <-w.done:
		w.done <- err
	case <-again.C: // once: a third signal ends a program that is about to end
		w.signal(t, syscall.SIGINT)
	}
	return w.ended(t)
}

// ended waits until the worker has ended and says how.
func (w *workerProcess) ended(t *testing.T) error {
	t.Helper()
	select {
	case err := <-w.done:
		w.done <- err
		return err
	case <-time.After(90 * time.Second):
		t.Error("a worker does not end")
		return nil
	}
}

// exitCode is a program's exit status; err is of [workerProcess.ended].
func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return -1
}
