package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"starling/protocol"
)

// taskFlags say what is delegated.
type taskFlags struct {
	task string
	env  []string

	capabilities string
	given        func(flag string) bool
}

func (t *taskFlags) bind(cmd *cobra.Command) {
	t.given = cmd.Flags().Changed
	cmd.Flags().StringVarP(&t.task, "task", "t", "", "the task's text; without it, or as -, it is read from standard input")
	cmd.Flags().StringArrayVarP(&t.env, "env", "e", nil, "NAME=VALUE for the capsule, if its manifest allows the name; repeatable")
	cmd.Flags().StringVar(&t.capabilities, "capabilities", "",
		`JSON that narrows what the manifest asks for: {"limits":{"deadline_seconds":10}}; or @FILE`)
}

// text is the task's text.
func (a *app) text(t taskFlags) (string, error) {
	text := t.task
	if text == "" || text == "-" {
		if f, ok := a.in.(*os.File); ok && terminal(f) {
			return "", &usageError{errors.New("no task: give it with --task TEXT, or on standard input")}
		}
		data, err := io.ReadAll(io.LimitReader(a.in, protocol.MaxJobBytes+1))
		if err != nil {
			return "", fmt.Errorf("read the task from standard input: %w", err)
		}
		text = string(data)
	}
	if strings.TrimSpace(text) == "" {
		return "", &usageError{errors.New("the task is empty: give it with --task TEXT, or on standard input")}
	}
	return text, nil
}

// narrowed is what the job narrows of its capsule's capabilities.
func (t taskFlags) narrowed() (*protocol.JobCapabilities, error) {
	text := []byte(t.capabilities)
	if file, ok := strings.CutPrefix(t.capabilities, "@"); ok {
		var err error
		if text, err = os.ReadFile(file); err != nil {
			return nil, &usageError{fmt.Errorf("--capabilities %s: %w", t.capabilities, unwrapPath(err))}
		}
	}
	if !t.given("capabilities") {
		return nil, nil
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, &usageError{errors.New(`--capabilities is empty, and no JSON: {} narrows nothing, {"env":{"allow":[]}} takes all of the environment; leave the flag out to grant what the manifest asks for`)}
	}
	c, err := protocol.ParseJobCapabilities(text)
	if err != nil {
		return nil, &usageError{fmt.Errorf("--capabilities: %w", err)}
	}
	return c, nil
}

// environment is the job's environment.
func (t taskFlags) environment() (map[string]string, error) {
	env := make(map[string]string, len(t.env))
	for _, entry := range t.env {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || name == "" {
			return nil, &usageError{fmt.Errorf("--env is NAME=VALUE, and one has no %q", "=")}
		}
		env[name] = value
	}
	return env, nil
}
