package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"starling/broker"
	"starling/protocol"
)

// Exit statuses, documented in docs/configuration.md.
const (
	exitOK         = 0
	exitFailure    = 1
	exitUsage      = 2
	exitTaskFailed = 3 // the capsule ran and failed
	exitCrashed    = 4 // it crashed, was refused, or its worker was lost
	exitTerminated = 5 // it was canceled, or its deadline passed
	exitNotFound   = 6
	exitRefused    = 7 // queue or ledger full, pool not served or not declared
	exitNoBus      = 8
	exitDenied     = 9

	exitInterrupted = 130 // as shells say SIGINT; also when nobody reads any more what is shown of a task
)

// usageError is wrong usage or configuration.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

// silentError ends a command with a status after everything was said.
type silentError struct{ status int }

func (e *silentError) Error() string { return fmt.Sprintf("exit status %d", e.status) }

// outcomeError is a silentError for a delegation that did not end well.
func outcomeError(status protocol.Status) error {
	switch status {
	case protocol.StatusOK:
		return nil
	case protocol.StatusError:
		return &silentError{exitTaskFailed}
	case protocol.StatusTerminated:
		return &silentError{exitTerminated}
	default:
		return &silentError{exitCrashed}
	}
}

// oneArg refuses another number of arguments with a sentence.
func oneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			return nil
		}
		there := ""
		if len(args) > 1 {
			there = fmt.Sprintf(", and there are %d arguments", len(args))
		}
		return &usageError{fmt.Errorf("%s takes %s%s; %s", cmd.CommandPath(), what, there, seeHelp(cmd))}
	}
}

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return &usageError{fmt.Errorf("%s takes no arguments, and there is %q; %s", cmd.CommandPath(), args[0], seeHelp(cmd))}
}

// unknownCommand refuses what is no command of a group, and names those that
// are nearly called so.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = "did you mean " + strings.Join(near, " or ") + "? "
	}
	return &usageError{fmt.Errorf("%s has no command %q; %s%s", cmd.CommandPath(), args[0], hint, seeHelp(cmd))}
}

// seeHelp points to what a command takes.
func seeHelp(cmd *cobra.Command) string { return "see " + cmd.CommandPath() + " --help" }

// classes maps error classes to exit statuses and to what to do about them,
// where the error itself does not say so.
var classes = []struct {
	class  error
	status int
	advice string
}{
	{broker.ErrNoServer, exitNoBus, "--url (STARLING_URL) says where"},
	{broker.ErrTLS, exitNoBus, ""},
	{broker.ErrNoJetStream, exitNoBus, ""},
	{broker.ErrOldServer, exitNoBus, ""},
	{broker.ErrUnavailable, exitNoBus, "try again"},
	{broker.ErrUnclear, exitNoBus, ""},
	{broker.ErrAuth, exitDenied, ""},
	{broker.ErrDenied, exitDenied, "ask the operator for the right"},
	{broker.ErrNotInitialized, exitNotFound, "it needs an operator's rights"},
	{broker.ErrUnknownCapsule, exitNotFound, ""},
	{broker.ErrCapsuleMissing, exitNotFound, ""},
	{broker.ErrNoRecord, exitNotFound, "see `starling ps`"},
	{broker.ErrUnknownWorker, exitNotFound, ""},
	{broker.ErrNoDeadLetter, exitNotFound, ""},
	{broker.ErrWorkerTaken, exitFailure, ""},
	{broker.ErrResultMissing, exitNotFound, ""},
	{broker.ErrQueueFull, exitRefused, ""}, // it names its flag, as the next does
	{broker.ErrLedgerFull, exitRefused, ""},
	{broker.ErrPoolUnserved, exitRefused, "--allow-unserved queues it all the same"},
	{broker.ErrPoolUndeclared, exitRefused, ""},
	{broker.ErrFinal, exitFailure, ""},
	{protocol.ErrRecord, exitFailure, ""}, // before what is wrong in it, which is nobody's argument
	{protocol.ErrCapsuleEntry, exitFailure, ""},
	{broker.ErrConfig, exitUsage, ""},
	{protocol.ErrSpawner, exitUsage, ""},
	{protocol.ErrManifest, exitUsage, ""},
	{protocol.ErrName, exitUsage, ""},
	{protocol.ErrJob, exitUsage, ""},
	{protocol.ErrJobTooLarge, exitUsage, ""},
}

// exitStatus maps an error to the program's exit status.
func exitStatus(err error) int {
	var silent *silentError
	var usage *usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &silent):
		return silent.status
	case errors.As(err, &usage):
		return exitUsage
	case errors.Is(err, context.Canceled), errors.Is(err, errUnread):
		return exitInterrupted
	}
	for _, c := range classes {
		if errors.Is(err, c.class) {
			return c.status
		}
	}
	return exitFailure
}

// explain is the error for a person: what happened, to what, and what to do.
func explain(err error) string {
	for _, c := range classes {
		if errors.Is(err, c.class) && c.advice != "" {
			return err.Error() + "; " + c.advice
		}
	}
	return err.Error()
}

// ifDenied adds what a user with narrow rights may have left out to an error of the
// bus's permissions.
func ifDenied(err error, leftOut bool, hint string) error {
	if !leftOut || !errors.Is(err, broker.ErrDenied) {
		return err
	}
	return fmt.Errorf("%w; %s", err, hint)
}
