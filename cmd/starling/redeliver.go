package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"starling/broker"
	"starling/completion"
	"starling/protocol"
)

type redeliverFlags struct {
	door, trust, spawner string
	again, json          bool
}

func (a *app) redeliverCommand() *cobra.Command {
	var buses busSettings
	var told completionSettings
	var f redeliverFlags
	cmd := &cobra.Command{
		Use:   "redeliver DELEGATION",
		Short: "Tell a parent by hand that its delegation ended",
		Long: `Post the completion of an ended delegation to its parent's door once more, with
the id and the text that every post of it has, and write down that it was
delivered. The ledger does not hold the door's address: it is that of the job's
dead letter, where there is one, else say --door or --spawner. Either may be -,
for a line of standard input, so that a secret in it is in no process list. The
operator's rule for addresses (STARLING_DOOR_ALLOW, STARLING_DOOR_DENY) holds.
What was not delivered exits 1 and changes nothing.`,
		Example: "  starling redeliver dlg_0190 --door http://10.0.0.7:7777 --trust trusted",
		Args:    oneArg(delegationArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, err := parseDelegation(args[0])
			if err != nil {
				return err
			}
			if f, err = a.doorFlags(f); err != nil {
				return err
			}
			cfg, err := told.config(a.logger())
			if err != nil {
				return err
			}
			return a.withBus(cmd.Context(), buses, func(bus *broker.Bus) error {
				return a.redeliver(cmd.Context(), bus, ref, cfg, f)
			})
		},
	}
	cmd.Flags().StringVar(&f.door, "door", "", "URL of the parent's door; - reads it")
	cmd.Flags().StringVar(&f.trust, "trust", "", "trust class of the parent behind --door: trusted or untrusted; empty: what the record says of a peer's")
	cmd.Flags().StringVar(&f.spawner, "spawner", "", "the whole handle as JSON, as MURMUR_SPAWNER carries it; - reads it")
	cmd.Flags().BoolVar(&f.again, "again", false, "also when the parent was told before")
	cmd.Flags().BoolVar(&f.json, "json", false, "print the record as JSON")
	return bindAll(cmd, &buses, &told)
}

// doorFlags reads what stands for standard input and judges the rest, before
// anything connects. No error repeats an address.
func (a *app) doorFlags(f redeliverFlags) (redeliverFlags, error) {
	if f.door != "" && f.spawner != "" {
		return f, &usageError{errors.New("--door and --spawner are two ways to say one thing: give one")}
	}
	for _, value := range []*string{&f.door, &f.spawner} {
		if *value == "-" {
			text, err := bufio.NewReader(a.in).ReadString('\n')
			if *value = strings.TrimSpace(text); *value == "" {
				return f, &usageError{fmt.Errorf("standard input holds no line: %w", err)}
			}
		}
	}
	if f.door != "" {
		if err := completion.CheckURL(f.door); err != nil {
			return f, &usageError{fmt.Errorf("--door: %w", err)}
		}
	}
	switch {
	case f.trust != "" && f.door == "":
		return f, &usageError{errors.New("--trust is the class of the parent behind --door, and there is none")}
	case f.trust != "" && f.trust != string(protocol.Trusted) && f.trust != string(protocol.Untrusted):
		return f, &usageError{fmt.Errorf("--trust is %q: it is trusted or untrusted", f.trust)}
	}
	return f, nil
}

func (a *app) redeliver(ctx context.Context, bus *broker.Bus, ref delegationRef, cfg completion.Config, f redeliverFlags) error {
	entry, err := findRecord(ctx, bus, ref)
	if err != nil {
		return err
	}
	rec := entry.Record
	switch {
	case !rec.Status.Final():
		return fmt.Errorf("delegation %s is still %s: its worker tells the parent when it ends", rec.DelegationID, rec.Status)
	case rec.Outcome.ParentEnded():
		return fmt.Errorf("delegation %s was ended by its parent, which is not told", rec.DelegationID)
	case rec.Outcome.Delivered && !f.again:
		return fmt.Errorf("the parent of delegation %s was told before: --again tells it once more", rec.DelegationID)
	}
	if queued, err := bus.JobQueued(ctx, rec); err != nil {
		return err
	} else if queued && rec.Outcome.DeliveryError == "" && !rec.Outcome.Delivered {
		return fmt.Errorf("the job of delegation %s is still queued: its worker tells the parent", rec.DelegationID)
	}
	handle, err := doorOf(ctx, bus, rec, f)
	if err != nil {
		return err
	}
	bridge, err := completion.NewBridge(cfg)
	if err != nil {
		return &usageError{err}
	}
	defer bridge.Close()
	if err := bridge.Deliver(ctx, handle, *rec.Outcome, ""); err != nil {
		return fmt.Errorf("the parent of delegation %s was not told: %w", rec.DelegationID, err)
	}
	if rec, err = writeDelivered(ctx, bus, entry); err != nil {
		return fmt.Errorf("the parent was told, and that could not be written down: %w", err)
	}
	if f.json {
		return a.printJSON(rec)
	}
	fmt.Fprintf(a.err, "the parent of %s was told\n", rec.DelegationID)
	return nil
}

// doorOf is the handle of a delegation's parent: given, or that of the job's dead
// letter.
func doorOf(ctx context.Context, bus *broker.Bus, rec protocol.Record, f redeliverFlags) (protocol.Spawner, error) {
	handle := rec.Spawner
	handle.DelegationID = rec.DelegationID
	switch {
	case f.spawner != "":
		given, err := protocol.ParseSpawner([]byte(f.spawner))
		switch {
		case err != nil:
			return handle, &usageError{fmt.Errorf("--spawner: %w", err)}
		case given.SessionID != rec.Spawner.SessionID || given.DelegationID != rec.DelegationID:
			return handle, &usageError{fmt.Errorf("--spawner is the handle of another delegation than %s", rec.Key())}
		case !given.HasAddress():
			return handle, &usageError{errors.New("--spawner is lineage only: it carries no door")}
		}
		return given, nil
	case f.door != "":
		handle.URL, handle.Trust = f.door, protocol.Trust(f.trust)
		if handle.Trust == "" && (rec.Origin == protocol.OriginPeer || rec.Origin == protocol.OriginCompletion) {
			handle.Trust = rec.Trust // inherited from the handle
		}
		if handle.Trust == "" {
			return handle, &usageError{errors.New("--trust says the class of the parent behind --door: trusted or untrusted; the ledger does not hold it")}
		}
		return handle, nil
	}
	letters, err := bus.DeadLettersOf(ctx, rec.TaskID)
	if errors.Is(err, broker.ErrNoDeadLetter) {
		return handle, &usageError{fmt.Errorf("the ledger does not hold the address of a door, and delegation %s has no dead letter that does: say --door URL, or --spawner", rec.DelegationID)}
	}
	if err != nil {
		return handle, err
	}
	for _, letter := range letters {
		job, err := protocol.ParseJob(letter.Body)
		if err == nil && job.DelegationID == rec.DelegationID && job.Spawner.SessionID == rec.Spawner.SessionID && job.Spawner.HasAddress() {
			return job.Spawner, nil
		}
	}
	return handle, &usageError{fmt.Errorf("the dead letter of delegation %s has no door: its parent did not ask to be told; --door URL tells one all the same", rec.DelegationID)}
}

// writeDelivered writes that the parent was told. Another's word of the same since
// is as good.
func writeDelivered(ctx context.Context, bus *broker.Bus, entry broker.Entry) (protocol.Record, error) {
	for {
		rec := entry.Record
		outcome := *rec.Outcome
		outcome.Delivered, outcome.DeliveryError = true, ""
		if rec.Outcome.Delivered {
			return rec, nil
		}
		rec.Outcome = &outcome
		written, err := bus.WriteRecord(ctx, rec, entry.Revision)
		var lost *broker.LostError
		if errors.As(err, &lost) && lost.Current.Record.Status.Final() {
			entry = lost.Current
			continue
		}
		return written.Record, err
	}
}
