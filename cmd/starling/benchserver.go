package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"starling/broker"
)

// benchServer is a server in a process of its own, so that its processor time
// can be told from the worker's.
type benchServer struct {
	url     string
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
}

func startBenchServer(ctx context.Context, store string) (*benchServer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &benchServer{command: exec.CommandContext(ctx, self, "bench", "server", store)}
	s.command.Stderr = os.Stderr
	if s.in, err = s.command.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.out = bufio.NewReader(out)
	if err := s.command.Start(); err != nil {
		return nil, err
	}
	line, err := s.out.ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the bench's server did not start: %w", err), s.close())
	}
	s.url = strings.TrimSpace(line)
	return s, nil
}

// cpu asks the server for the processor time it has used.
func (s *benchServer) cpu() (time.Duration, error) {
	if _, err := fmt.Fprintln(s.in); err != nil {
		return 0, err
	}
	line, err := s.out.ReadString('\n')
	if err != nil {
		return 0, err
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	return time.Duration(ns), err
}

func (s *benchServer) close() error { return errors.Join(s.in.Close(), s.command.Wait()) }

// benchServerCommand is the other end: it prints its URL, then its processor
// time for each line it reads, and ends with its input.
func (a *app) benchServerCommand() *cobra.Command {
	return &cobra.Command{
		Use: "server STORE", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			server, err := broker.StartServer(cmd.Context(), broker.ServerConfig{StoreDir: args[0], Port: -1})
			if err != nil {
				return err
			}
			defer server.Close()
			fmt.Fprintln(a.out, server.ClientURL())
			lines := bufio.NewScanner(a.in)
			for lines.Scan() {
				fmt.Fprintln(a.out, processCPU().Nanoseconds())
			}
			return lines.Err()
		},
	}
}

// processCPU is the processor time of this process.
func processCPU() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// cpu is the processor time of this process and of the side's children.
func (s side) cpu() time.Duration {
	total := processCPU()
	if s.children == nil {
		return total
	}
	for _, pid := range s.children() {
		total += childCPU(pid)
	}
	return total
}

// childCPU is the processor time of a process that lives, as Linux tells it; 0
// elsewhere.
func childCPU(pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), ") ") // behind the name
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	const tick = time.Second / 100
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * tick
}
