package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"starling/broker"
)

// verdict is how a check ended.
type verdict string

const (
	fine    verdict = "ok"
	warning verdict = "warning" // look at it; the fleet works, or that part could not be looked at
	problem verdict = "problem" // something does not work, or will not
)

// check is a line of the doctor's.
type check struct {
	Check  string  `json:"check"`
	Status verdict `json:"status"`
	Text   string  `json:"text"`
	Fix    string  `json:"fix,omitempty"`
}

// examination is what a doctor found so far.
type examination struct {
	bus    *broker.Bus
	checks []check

	inspected broker.Inspection
	workers   []broker.SeenWorker
}

func (x *examination) say(name string, status verdict, fix, format string, args ...any) {
	x.checks = append(x.checks, check{Check: name, Status: status, Text: fmt.Sprintf(format, args...), Fix: fix})
}

// failed notes a check that could not be made. What may not be asked is a warning:
// nothing says that it is bad.
func (x *examination) failed(name string, err error) {
	switch {
	case errors.Is(err, broker.ErrDenied):
		x.say(name, warning, "run doctor with an operator's rights", "this user may not look: %v", err)
	case errors.Is(err, broker.ErrNotInitialized):
		x.say(name, problem, x.bus.Command("init")+", with an operator's rights", "%v", err)
	default:
		x.say(name, problem, "", "%v", err)
	}
}

// worst is the verdict of the whole.
func (x *examination) worst() verdict {
	worst := fine
	for _, c := range x.checks {
		if c.Status == problem || c.Status == warning && worst == fine {
			worst = c.Status
		}
	}
	return worst
}

func (a *app) doctorCommand() *cobra.Command {
	var buses busSettings
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look a fleet over: its server, streams, rights, clocks, room, pools, and what is stuck",
		Long: `Look a fleet over and say of each part whether it is ok, with a warning or a
problem and what to do. It changes nothing. An operator's rights see all of it;
with narrower ones it says what it may not look at. Exits 0 without a problem,
warnings or not, and 1 with one.`,
		Example: "  starling doctor\n  starling doctor --json | jq '.checks[] | select(.status != \"ok\")'",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			x, err := a.examine(cmd.Context(), buses)
			if err != nil {
				return err
			}
			if err := a.printChecks(x, asJSON); err != nil {
				return err
			}
			if x.worst() == problem {
				return &silentError{exitFailure}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "one object with every check")
	return bindAll(cmd, &buses)
}

// examine makes every check. Its error is wrong usage alone: what is wrong with
// the fleet is a check.
func (a *app) examine(ctx context.Context, buses busSettings) (*examination, error) {
	x := &examination{}
	quiet := *a
	quiet.log.LogLevel = "error" // what a check is denied it says itself
	bus, err := buses.connect(ctx, "starling doctor", quiet.logger())
	if errors.Is(err, broker.ErrConfig) {
		return nil, err
	}
	if err != nil {
		x.say("bus", problem, "", "%s", explain(err))
		return x, nil
	}
	defer func() { _ = bus.Close() }() // nothing was written
	x.bus = bus
	name, url, version := bus.Server()
	x.say("server", fine, "", "%s at %s runs NATS %s", name, url, version)
	x.confinement()
	if !within(ctx, x.account) {
		return x, nil
	}
	within(ctx, func(ctx context.Context) bool { x.rights(ctx); return true })
	if within(ctx, x.topology) {
		x.clock()
		x.room()
		for _, look := range []func(context.Context){x.pools, x.ledger, x.deadLetters} {
			within(ctx, func(ctx context.Context) bool { look(ctx); return true })
		}
	} else {
		x.say("skipped", warning, "", "without the streams these were not looked at: clock, room, pools, delegations, dead letters")
	}
	return x, nil
}

// lookWithin bounds each part of the examination: streams without a leader would be
// waited for until they have one.
const lookWithin = 10 * time.Second

func within(ctx context.Context, look func(context.Context) bool) bool {
	ctx, cancel := context.WithTimeoutCause(ctx, lookWithin, fmt.Errorf("no answer within %s: has the cluster enough servers?", lookWithin))
	defer cancel()
	return look(ctx)
}

func (a *app) printChecks(x *examination, asJSON bool) error {
	if asJSON {
		return a.printJSON(map[string]any{"status": x.worst(), "checks": x.checks})
	}
	width := 0
	for _, c := range x.checks {
		width = max(width, len(c.Check))
	}
	for _, c := range x.checks {
		fmt.Fprintf(a.out, "%-8s %-*s %s\n", c.Status, width, c.Check, cell(c.Text))
		if c.Fix != "" {
			fmt.Fprintf(a.out, "%-8s %-*s -> %s\n", "", width, "", cell(c.Fix))
		}
	}
	n := 0
	for _, c := range x.checks {
		if c.Status != fine {
			n++
		}
	}
	_, err := fmt.Fprintf(a.out, "\n%s: %d checks, %d to look at\n", x.worst(), len(x.checks), n)
	return err
}

// rights says which roles the connected user can act as.
func (x *examination) rights(ctx context.Context) {
	rights, err := x.bus.UserRights(ctx)
	if err != nil {
		x.say("rights", warning, "allow it to publish $SYS.REQ.USER.INFO to have them checked",
			"this user's rights are not known: %v", err)
		return
	}
	pools := []string{"default"}
	if named, err := x.bus.PoolNames(ctx); err == nil && len(named) > 0 {
		pools = named
	}
	roles := []broker.RoleRights{broker.OperatorRights()}
	for _, pool := range pools {
		roles = append(roles, x.bus.WorkerRights(pool))
	}
	roles = append(roles, x.bus.ParentRights(), x.bus.ObserverRights())
	user := "the user without a name"
	if rights.User != "" {
		user = "user " + rights.User
	}
	var can []string
	for _, role := range roles {
		if len(rights.Lacks(role)) == 0 {
			can = append(can, role.Role)
		}
	}
	switch {
	case slices.Contains(can, "operator"):
		x.say("rights", fine, "", "%s is an operator: it may do everything", user)
	case len(can) > 0:
		for _, role := range can {
			x.say("rights", fine, "", "%s has what a %s needs", user, role)
		}
	default:
		for _, role := range roles[1:] {
			lacks := rights.Lacks(role)
			more := ""
			if len(lacks) > 3 {
				more = fmt.Sprintf(" and %d more", len(lacks)-3)
				lacks = lacks[:3]
			}
			x.say("rights", warning, "docs/configuration.md, Rights, lists what each role needs",
				"to be a %s, %s lacks: %s%s", role.Role, user, joined(lacks), more)
		}
	}
}

func joined(texts []string) string {
	out := ""
	for i, text := range texts {
		if i > 0 {
			out += ", "
		}
		out += text
	}
	return out
}
