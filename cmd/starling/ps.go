package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"starling/broker"
	"starling/protocol"
)

func (a *app) psCommand() *cobra.Command {
	var buses busSettings
	var f psFlags
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List delegations: those that wait or run, or all, or those whose parent was not told",
		Long: `List delegations in the order they were submitted: those that wait or run; with
--all ended ones too; with --undelivered those that ended and whose parent should
have been told and was not, and why. TOLD is yes, failed, no (not yet) or - (there
is nobody to tell). The delegation's id is what watch, result, cancel and redeliver
take.`,
		Example: "  starling ps --undelivered",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withBus(cmd.Context(), buses, func(bus *broker.Bus) error { return a.ps(cmd.Context(), bus, f) })
		},
	}
	cmd.Flags().BoolVarP(&f.all, "all", "a", false, "ended ones too")
	cmd.Flags().BoolVar(&f.undelivered, "undelivered", false, "ended ones whose parent was not told")
	cmd.Flags().BoolVar(&f.json, "json", false, "one record a line")
	return bindAll(cmd, &buses)
}

type psFlags struct{ all, undelivered, json bool }

func (a *app) ps(ctx context.Context, bus *broker.Bus, f psFlags) error {
	var listed []protocol.Record
	unclear := false // whether somebody is still to be told
	for rec, err := range bus.Delegations(ctx) {
		if errors.Is(err, protocol.ErrRecord) {
			fmt.Fprintf(a.err, "starling: warning: %s\n", cell(err.Error()))
			continue
		}
		if err != nil {
			return err
		}
		if !f.all && !f.undelivered && rec.Status.Final() || f.undelivered && !rec.Status.Final() {
			continue
		}
		if t := told(rec, nil); f.undelivered && t != "failed" && t != "-" {
			continue
		} else if rec.Status.Final() && t == "-" {
			unclear = true
		}
		listed = append(listed, rec)
	}
	queued, err := map[protocol.TaskID]bool(nil), error(nil)
	if unclear {
		if queued, err = bus.QueuedJobs(ctx); err != nil {
			return err
		}
	}
	slices.SortStableFunc(listed, func(a, b protocol.Record) int {
		return cmp.Or(a.SubmittedAt.Std().Compare(b.SubmittedAt.Std()), cmp.Compare(a.DelegationID, b.DelegationID))
	})
	table := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	last := "WORKER"
	if f.undelivered {
		last = "WHY"
	}
	if !f.json {
		fmt.Fprintln(table, "DELEGATION\tCAPSULE\tPOOL\tLANE\tSTATUS\tTRY\tAGE\tTOLD\t"+last)
	}
	for _, rec := range listed {
		t := told(rec, queued)
		if f.undelivered && t == "-" {
			continue
		}
		if f.json {
			if err := a.printJSON(rec); err != nil {
				return err
			}
			continue
		}
		why := dash(string(rec.WorkerID))
		if f.undelivered {
			why = dash(cell(rec.Outcome.DeliveryError))
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", rec.DelegationID, cell(rec.Capsule.String()), cell(rec.Pool), cell(string(rec.Lane)),
			rec.Status, rec.Attempt, age(rec.SubmittedAt), t, cell(why))
	}
	return table.Flush()
}

// told is whether the parent was. The ledger does not hold the door's address: an
// ended delegation without a word about it is to be told while its job is queued,
// and has nobody to tell once that is gone.
func told(rec protocol.Record, queued map[protocol.TaskID]bool) string {
	switch {
	case rec.Outcome == nil, rec.Outcome.ParentEnded():
		return "-"
	case rec.Outcome.Delivered:
		return "yes"
	case rec.Outcome.DeliveryError != "":
		return "failed"
	case queued[rec.TaskID]:
		return "no"
	}
	return "-"
}

func age(t protocol.Time) string {
	if t.IsZero() {
		return "-"
	}
	return short(time.Since(t.Std()))
}

// short is a duration in its two largest units.
func short(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
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
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\t%d\t%d\t%d\t%s\t%s\t%s\n", w.WorkerID, cell(w.Pool), cell(w.Host), w.PID, cell(w.Version),
			w.Busy, w.Slots, w.JobsDone, workerState(w), age(w.StartedAt), age(w.SeenAt))
	}
	return table.Flush()
}

func workerState(w protocol.WorkerInfo) string {
	if w.Draining {
		return "draining"
	}
	return "working"
}
