package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
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
is nobody to tell, or it has not ended). The delegation's id is what watch, result,
cancel and redeliver take.`,
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
	listed = slices.DeleteFunc(listed, func(rec protocol.Record) bool { return f.undelivered && told(rec, queued) == "-" })
	if f.json {
		return printLines(a, listed)
	}
	last := "WORKER"
	if f.undelivered {
		last = "WHY"
	}
	table := newTable(a.out, "DELEGATION", "CAPSULE", "POOL", "LANE", "STATUS", "TRY", "AGE", "TOLD", last)
	for _, rec := range listed {
		why := string(rec.WorkerID)
		if f.undelivered {
			why = rec.Outcome.DeliveryError
		}
		table.row(rec.DelegationID, rec.Capsule.String(), rec.Pool, rec.Lane, rec.Status, rec.Attempt, age(rec.SubmittedAt), told(rec, queued), why)
	}
	return table.flush()
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
		Long: `List live workers, as their heartbeats say: STATE, BUSY and DONE are of the time
under SEEN, up to 10 s ago; starling stats asks the workers themselves. One that
has not been heard of for 20 s is silent: it is gone, or the bus cannot store its
heartbeats.`,
		Args: noArgs,
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
	if asJSON {
		return printLines(a, workers)
	}
	table := newTable(a.out, "WORKER", "POOL", "STATE", "SLOTS", "BUSY", "DONE", "UP", "SEEN", "HOST", "PID", "VERSION")
	for _, w := range workers {
		state := workerState(w)
		if time.Since(w.SeenAt.Std()) > silentAfter {
			state += ", silent"
		}
		table.row(w.WorkerID, w.Pool, state, w.Slots, w.Busy, w.JobsDone, age(w.StartedAt), age(w.SeenAt), w.Host, w.PID, w.Version)
	}
	return table.flush()
}

// silentAfter is how old a worker's heartbeat may be: it is gone, or the bus cannot
// store heartbeats, or the server that was asked is behind.
const silentAfter = 2 * broker.HeartbeatEvery

func workerState(w protocol.WorkerInfo) string {
	if w.Draining {
		return "draining"
	}
	return "working"
}
