package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"starling/broker"
	"starling/protocol"
)

// withBus connects for one command.
func (a *app) withBus(ctx context.Context, s busSettings, do func(*broker.Bus) error) (err error) {
	bus, err := s.connect(ctx, "starling", a.quietLogger())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bus.Close()) }()
	return do(bus)
}

// delegationRef names a delegation: by its ledger key (SESSION.DELEGATION), or by
// its delegation or task id alone.
type delegationRef struct {
	session    protocol.SessionID
	delegation protocol.DelegationID
	task       protocol.TaskID
}

// parseDelegation judges the form before anything is asked of the bus.
func parseDelegation(what string) (delegationRef, error) {
	session, delegation, isKey := strings.Cut(what, ".")
	ref, err := delegationRef{}, error(nil)
	switch {
	case isKey:
		ref.session, ref.delegation = protocol.SessionID(session), protocol.DelegationID(delegation)
		err = errors.Join(protocol.ValidateName("session", session), protocol.ValidateDelegationID("delegation", ref.delegation))
	case strings.HasPrefix(what, "dlg_"):
		ref.delegation = protocol.DelegationID(what)
		err = protocol.ValidateDelegationID("delegation", ref.delegation)
	case strings.HasPrefix(what, "tsk_"):
		ref.task = protocol.TaskID(what)
		err = protocol.ValidateName("task", what)
	default:
		err = errors.New("it is SESSION.DELEGATION as `starling dispatch` prints it, or a delegation id (dlg_…) or task id (tsk_…)")
	}
	if err != nil {
		return ref, &usageError{fmt.Errorf("%q names no delegation: %w", clipped(what), err)}
	}
	return ref, nil
}

// clipped is an argument for an error that repeats it, of 140 bytes at most.
func clipped(s string) string {
	if len(s) > 140 {
		return strings.ToValidUTF8(s[:140], "") + "…"
	}
	return s
}

// findRecord finds a delegation. By its delegation or task id alone that reads the
// whole ledger and so needs an operator's rights.
func findRecord(ctx context.Context, bus *broker.Bus, ref delegationRef) (broker.Entry, error) {
	if ref.session != "" {
		return bus.ReadRecord(ctx, ref.session, ref.delegation, 0)
	}
	for rec, err := range bus.Delegations(ctx) {
		if errors.Is(err, protocol.ErrRecord) {
			continue // another's
		}
		if err != nil {
			return broker.Entry{}, ifDenied(err, true, "by its id alone it is looked for in the whole ledger: name it SESSION.DELEGATION, as dispatch printed it")
		}
		if ref.delegation != "" && rec.DelegationID == ref.delegation || ref.task != "" && rec.TaskID == ref.task {
			return bus.ReadRecord(ctx, rec.Spawner.SessionID, rec.DelegationID, 0)
		}
	}
	return broker.Entry{}, fmt.Errorf("%w: %s%s", broker.ErrNoRecord, ref.delegation, ref.task)
}

// printJSON writes one object on one line.
func (a *app) printJSON(v any) error { return json.NewEncoder(jsonWriter{a.out}).Encode(v) }

// printLines writes one object a line.
func printLines[T any](a *app, values []T) error {
	for _, v := range values {
		if err := a.printJSON(v); err != nil {
			return err
		}
	}
	return nil
}
