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
	bus, err := s.connect(ctx, "starling", a.logger())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bus.Close()) }()
	return do(bus)
}

// findRecord finds a delegation by its ledger key (SESSION.DELEGATION), or by
// its delegation or task id alone, which reads the whole ledger and so needs an
// operator's rights.
func findRecord(ctx context.Context, bus *broker.Bus, what string) (broker.Entry, error) {
	if session, delegation, ok := strings.Cut(what, "."); ok {
		if err := errors.Join(protocol.ValidateName("session", session),
			protocol.ValidateDelegationID("delegation", protocol.DelegationID(delegation))); err != nil {
			return broker.Entry{}, &usageError{err}
		}
		return bus.ReadRecord(ctx, protocol.SessionID(session), protocol.DelegationID(delegation), 0)
	}
	if err := protocol.ValidateName("delegation", what); err != nil {
		return broker.Entry{}, &usageError{err}
	}
	for rec, err := range bus.Delegations(ctx) {
		if err != nil {
			return broker.Entry{}, err
		}
		if string(rec.DelegationID) == what || string(rec.TaskID) == what {
			return bus.ReadRecord(ctx, rec.Spawner.SessionID, rec.DelegationID, 0)
		}
	}
	return broker.Entry{}, fmt.Errorf("%w: %s", broker.ErrNoRecord, what)
}

// printJSON writes one object on one line.
func (a *app) printJSON(v any) error { return json.NewEncoder(a.out).Encode(v) }
