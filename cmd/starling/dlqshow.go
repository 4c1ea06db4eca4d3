package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"starling/broker"
)

func (a *app) dlqShow() *cobra.Command {
	var body, asJSON bool
	cmd := &cobra.Command{
		Use:   "show TASK",
		Short: "Show why a job cannot run, its headers and its body",
		Long: `Show why a job cannot run, its headers and its body. The door's address, the values
of its environment and of headers that look like credentials are left out. --body
prints the body alone, as it was queued, secrets and all.`,
		Example: "  starling dlq show tsk_0190",
	}
	cmd.Flags().BoolVar(&body, "body", false, "print the body as it was queued, with its secrets")
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON object a letter")
	return a.letterCommand(cmd, func(_ context.Context, _ *broker.Bus, letters []broker.DeadLetter) error {
		for _, l := range letters {
			if err := a.showLetter(l, body, asJSON); err != nil {
				return err
			}
		}
		return nil
	})
}

func (a *app) showLetter(l broker.DeadLetter, body, asJSON bool) error {
	if body {
		if terminal(a.out) {
			fmt.Fprintln(a.out, printable(string(l.Body)))
			return nil
		}
		_, err := a.out.Write(l.Body)
		return err
	}
	shown := struct {
		letter
		Headers map[string][]string `json:"headers"`
		Body    any                 `json:"body"` // null when it is no JSON object
	}{asLetter(l), map[string][]string{}, nil}
	for name, values := range l.Header {
		if secretName(name) {
			values = []string{redacted}
		}
		shown.Headers[name] = values
	}
	if job := withoutSecrets(l.Body); job != nil {
		shown.Body = job
	}
	if asJSON {
		return a.printJSON(shown)
	}
	fmt.Fprintf(a.out, "task:     %s\npool:     %s\nstored:   %s\nreason:   %s\ndetail:   %s\n", cell(string(l.TaskID)), cell(l.Pool),
		shown.At.Std().Format(time.RFC3339), cell(string(l.Reason)), cell(l.Detail))
	for _, name := range slices.Sorted(maps.Keys(shown.Headers)) {
		fmt.Fprintf(a.out, "header:   %s: %s\n", cell(name), cell(strings.Join(shown.Headers[name], ", ")))
	}
	if shown.Body == nil {
		fmt.Fprintf(a.out, "body:     %d bytes that are no JSON object; --body prints them\n", len(l.Body))
		return nil
	}
	text, err := json.MarshalIndent(shown.Body, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.out, "%s\n", harmlessJSON(text))
	return err
}

const redacted = "[redacted]"

// withoutSecrets is a job's body without the door's address and the values of its
// environment, whatever case their names have; nil when it is no JSON object. What
// stands there and is no object is left out whole.
func withoutSecrets(body []byte) map[string]any {
	var job map[string]any
	if err := json.Unmarshal(body, &job); err != nil || job == nil {
		return nil
	}
	for name, value := range job {
		members, isObject := value.(map[string]any)
		switch strings.ToLower(name) {
		case "env", "environment":
			for key := range members {
				members[key] = redacted
			}
		case "spawner":
			for key := range members {
				if !slices.Contains([]string{"session_id", "context_id", "delegation_id", "trust"}, key) {
					members[key] = redacted
				}
			}
		default:
			continue
		}
		if !isObject {
			job[name] = redacted
		}
	}
	return job
}

// secretName reports whether a header's name looks like it carries a credential.
func secretName(name string) bool {
	upper := strings.ToUpper(name)
	for _, word := range []string{"KEY", "TOKEN", "SECRET", "PASSW", "CREDENTIAL", "AUTH", "COOKIE", "PRIVATE"} {
		if strings.Contains(upper, word) {
			return true
		}
	}
	return false
}
