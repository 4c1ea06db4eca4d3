package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"starling/broker"
	"starling/protocol"
)

// initSettings are what `starling init` creates.
type initSettings struct {
	Pools          []string      `default:"default" desc:"pools to declare, comma-separated; those of earlier calls stay"`
	Replicas       int           `default:"0" desc:"of every stream: 1, 3 or 5; 0: 1 for new ones, unchanged for existing ones"`
	AckWait        time.Duration `split_words:"true" default:"0s" desc:"how long a worker may be silent before its job goes to another; 0: 30s for new pools"`
	MaxJobs        int64         `split_words:"true" default:"0" desc:"jobs that may wait or run; 0: 1000000"`
	MaxJobBytes    int64         `split_words:"true" default:"0" desc:"bytes of them; 0: 1 GiB"`
	MaxFrameBytes  int64         `split_words:"true" default:"0" desc:"bytes of all frames; 0: as much as the account may"`
	MaxLedgerBytes int64         `split_words:"true" default:"0" desc:"bytes of the ledger; 0: as much as the account may"`
	MaxResultBytes int64         `split_words:"true" default:"0" desc:"bytes of large results; 0: as much as the account may"`
}

func (s initSettings) config() broker.InitConfig {
	return broker.InitConfig{
		Pools: s.Pools, Replicas: s.Replicas, AckWait: s.AckWait, MaxJobs: s.MaxJobs, MaxJobBytes: s.MaxJobBytes,
		MaxFrameBytes: s.MaxFrameBytes, MaxLedgerBytes: s.MaxLedgerBytes, MaxResultBytes: s.MaxResultBytes,
	}
}

// validate judges the settings before anything connects, by the names that their
// user knows.
func (s initSettings) validate() error {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	for _, pool := range s.Pools {
		if err := protocol.ValidateName("--pools (STARLING_POOLS): a pool", pool); err != nil {
			problems = append(problems, err)
		}
	}
	switch s.Replicas {
	case 0, 1, 3, 5:
	default:
		bad("--replicas (STARLING_REPLICAS) is %d: it is 1, 3 or 5", s.Replicas)
	}
	if s.AckWait != 0 && s.AckWait < 100*time.Millisecond {
		bad("--ack-wait (STARLING_ACK_WAIT) is %s: it is at least 100ms, and more than a worker may stall", s.AckWait)
	}
	for _, n := range []struct {
		flag  string
		value int64
	}{
		{"max-jobs", s.MaxJobs},
		{"max-job-bytes", s.MaxJobBytes},
		{"max-frame-bytes", s.MaxFrameBytes},
		{"max-ledger-bytes", s.MaxLedgerBytes},
		{"max-result-bytes", s.MaxResultBytes},
	} {
		if n.value < 0 {
			bad("--%s is %d: leave it 0 for the default", n.flag, n.value)
		}
	}
	if err := errors.Join(problems...); err != nil {
		return &usageError{err}
	}
	return nil
}

func (a *app) initCommand() *cobra.Command {
	var buses busSettings
	var settings initSettings
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Create the streams and buckets of a namespace, or declare further pools",
		Long: `Create every stream, consumer and bucket of the namespace, with an operator's
rights. It can be repeated: what exists stays, new pools are added.`,
		Example: "  starling init --replicas 3 --pools default,gpu",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := settings.validate(); err != nil {
				return err
			}
			return a.withBus(cmd.Context(), buses, func(bus *broker.Bus) error {
				if err := bus.Init(cmd.Context(), settings.config()); err != nil {
					return err
				}
				pools, err := bus.PoolNames(cmd.Context())
				if err != nil {
					return err
				}
				if asJSON {
					return a.printJSON(map[string]any{"namespace": bus.Namespace(), "pools": pools})
				}
				fmt.Fprintf(a.err, "namespace %s is ready; pools: %s\n", bus.Namespace(), strings.Join(pools, ", "))
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the namespace and its pools as JSON")
	return bindAll(cmd, &buses, &settings)
}

// defaultPools is what dev and run declare.
func defaultPools(pool string) broker.InitConfig {
	if pool == "" {
		pool = protocol.DefaultPool
	}
	return broker.InitConfig{Pools: []string{pool}}
}
