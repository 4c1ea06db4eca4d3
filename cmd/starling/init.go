package main

import (
	"fmt"
	"strconv"
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
	MaxJobs        int64         `split_words:"true" default:"0" desc:"jobs that may wait or run; 0: 1000000 for a new namespace, else unchanged"`
	MaxJobBytes    int64         `split_words:"true" default:"0" desc:"bytes of them; 0: 1 GiB for a new namespace, else unchanged"`
	MaxFrameBytes  byteLimit     `split_words:"true" default:"0" desc:"bytes of all frames; none: as much as the account may; 0: none for a new namespace, else unchanged"`
	MaxLedgerBytes byteLimit     `split_words:"true" default:"0" desc:"bytes of the ledger; none and 0: as --max-frame-bytes"`
	MaxResultBytes byteLimit     `split_words:"true" default:"0" desc:"bytes of large results; none and 0: as --max-frame-bytes"`
}

// byteLimit is a number of bytes, or [broker.NoLimit], which is written none. It is a
// flag's value and a variable's.
type byteLimit int64

const unlimited = "none"

// Set reads a number that is not negative, or none.
func (l *byteLimit) Set(text string) error {
	if text == unlimited {
		*l = broker.NoLimit
		return nil
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err == nil {
		*l = byteLimit(n)
	}
	return err
}

func (l *byteLimit) String() string {
	if *l == broker.NoLimit {
		return unlimited
	}
	return strconv.FormatInt(int64(*l), 10)
}

// Type is what the help calls the value.
func (*byteLimit) Type() string { return "bytes" }

func (s initSettings) config() broker.InitConfig {
	return broker.InitConfig{
		Pools: s.Pools, Replicas: s.Replicas, AckWait: s.AckWait, MaxJobs: s.MaxJobs, MaxJobBytes: s.MaxJobBytes,
		MaxFrameBytes: int64(s.MaxFrameBytes), MaxLedgerBytes: int64(s.MaxLedgerBytes), MaxResultBytes: int64(s.MaxResultBytes),
		Names: namesOf(&s, nil),
	}
}

func (a *app) initCommand() *cobra.Command {
	var buses busSettings
	var settings initSettings
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Create the streams and buckets of a namespace, or declare further pools",
		Long: `Create every stream, consumer and bucket of the namespace, with an operator's
rights: run it once for a fleet, before its first worker.

It can be repeated while the fleet works. What exists stays, and so does every
setting whose flag is 0 or left out; pools that are named and not there yet are
added; no pool is taken away. A flag that is given changes what exists, where
that is possible: replicas, limits, and the ack wait of the pools that are named.
A stream that another program made otherwise is an error, and nothing is changed.`,
		Example: "  starling init\n  starling init --replicas 3 --pools default,gpu\n  starling init --max-jobs 2000000 --max-frame-bytes none",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg := settings.config()
			if err := cfg.Validate(); err != nil {
				return err // before anything connects
			}
			return a.withBus(cmd.Context(), buses, func(bus *broker.Bus) error {
				if err := bus.Init(cmd.Context(), cfg); err != nil {
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
