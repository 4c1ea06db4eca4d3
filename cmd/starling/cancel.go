package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"starling/broker"
	"starling/protocol"
)

func (a *app) cancelCommand() *cobra.Command {
	var buses busSettings
	var asJSON, keep bool
	cmd := &cobra.Command{
		Use:   "cancel DELEGATION",
		Short: "End a delegation: the capsule is asked to stop, and killed after the grace",
		Long: `End a delegation. One that is queued ends at once. The capsule of one that runs is
asked to stop, has the worker's grace (STARLING_CANCEL_GRACE, 10s unless set), and
is then killed; the command waits until it is gone. The parent that ended it is
not told at its door.`,
		Example: "  starling cancel ses_0190.dlg_0190",
		Args:    oneArg(delegationArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, err := parseDelegation(args[0])
			if err != nil {
				return err
			}
			return a.withBus(cmd.Context(), buses, func(bus *broker.Bus) error {
				ctx := cmd.Context()
				entry, err := findRecord(ctx, bus, ref)
				if err != nil {
					return err
				}
				rec := entry.Record
				answered := func() {}
				if rec.Status == protocol.StatusWorking {
					answered = a.unlessQuick("%s was asked to stop; waiting until its guest is gone, at most its worker's STARLING_CANCEL_GRACE (10s unless set)", rec.WorkerID)
				}
				done, err := bus.Cancel(ctx, rec.Spawner.SessionID, rec.DelegationID, broker.CancelOptions{RemoveJob: !keep})
				answered()
				if errors.Is(err, broker.ErrFinal) {
					return fmt.Errorf("%w, and nothing was changed", err)
				}
				if o := done.Record.Outcome; errors.Is(err, broker.ErrDenied) && o != nil && o.ParentEnded() {
					// It ended in the queue: whoever takes its job drops it.
					fmt.Fprintln(a.err, "starling: its job stays queued for the worker that takes it: only an operator takes it away (--keep-job says so beforehand)")
					err = nil
				}
				if err != nil {
					return err
				}
				if done.GuestMayRun {
					fmt.Fprintln(a.err, "starling: its worker did not answer: the capsule may still run until the worker notices")
				}
				return a.printRecord(done.Record, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the record as JSON")
	cmd.Flags().BoolVar(&keep, "keep-job", false, "leave a queued job to the worker that takes it; needs no operator's rights")
	return bindAll(cmd, &buses)
}
