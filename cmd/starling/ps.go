package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"starling/broker"
	"starling/protocol"
)

func (a *app) psCommand() *cobra.Command {
	var buses busSettings
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List delegations: those that wait or run, or all",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withBus(cmd.Context(), buses, func(bus *broker.Bus) error { return a.ps(cmd.Context(), bus, all, asJSON) })
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "ended ones too")
	cmd.Flags().BoolVar(&asJSON, "json", false, "one record a line")
	return bindAll(cmd, &buses)
}

func (a *app) ps(ctx context.Context, bus *broker.Bus, all, asJSON bool) error {
	table := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	if !asJSON {
		fmt.Fprintln(table, "DELEGATION\tCAPSULE\tPOOL\tLANE\tSTATUS\tATTEMPT\tAGE\tWORKER\tTOLD")
	}
	for rec, err := range bus.Delegations(ctx) {
		if err != nil {
			return err
		}
		if rec.Status.Final() && !all {
			continue
		}
		if asJSON {
			if err := a.printJSON(rec); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", rec.Key(), rec.Capsule, rec.Pool, rec.Lane, rec.Status,
			rec.Attempt, age(rec.SubmittedAt), dash(string(rec.WorkerID)), told(rec))
	}
	return table.Flush()
}

// told is whether the parent was.
func told(rec protocol.Record) string {
	switch {
	case rec.Outcome == nil:
		return "-"
	case rec.Outcome.Delivered:
		return "yes"
	case rec.Outcome.DeliveryError != "":
		return "failed"
	default:
		return "no"
	}
}

func age(t protocol.Time) string {
	if t.IsZero() {
		return "-"
	}
	return time.Since(t.Std()).Round(time.Second).String()
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func (a *app) workersCommand() *cobra.Command {
	var buses busSettings
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "workers",
		Short: "List live workers",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withBus(cmd.Context(), buses, func(bus *broker.Bus) error { return a.workers(cmd.Context(), bus, asJSON) })
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "one worker a line")
	return bindAll(cmd, &buses)
}

func (a *app) workers(ctx context.Context, bus *broker.Bus, asJSON bool) error {
	workers, err := bus.Workers(ctx)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	if !asJSON {
		fmt.Fprintln(table, "WORKER\tPOOL\tHOST\tPID\tVERSION\tBUSY\tSLOTS\tDONE\tSTATE\tUP\tSEEN")
	}
	for _, w := range workers {
		if asJSON {
			if err := a.printJSON(w); err != nil {
				return err
			}
			continue
		}
		state := "working"
		if w.Draining {
			state = "draining"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\t%d\t%d\t%d\t%s\t%s\t%s\n", w.WorkerID, w.Pool, printable(w.Host), w.PID, w.Version,
			w.Busy, w.Slots, w.JobsDone, state, age(w.StartedAt), age(w.SeenAt))
	}
	return table.Flush()
}
