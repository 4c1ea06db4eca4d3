package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"starling/broker"
)

func (a *app) workerCommand() *cobra.Command {
	var bus busSettings
	var pool poolSettings
	var settings workerSettings
	var told completionSettings
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Work for one pool of a fleet",
		Long: `Take jobs of one pool, run them and report. SIGTERM or SIGINT drains: no job is
taken any more, running tasks may end within the drain timeout and are handed
back after it. A second signal hands them back at once.

Variables (flags of the same words win over them):

` + variableTable(&bus, &pool, &settings, &told, &logSettings{}),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.work(cmd.Context(), bus, pool, settings, told)
		},
	}
	return bindAll(cmd, &bus, &pool, &settings, &told)
}

func (a *app) work(ctx context.Context, buses busSettings, pool poolSettings, settings workerSettings, told completionSettings) (err error) {
	log := a.logger()
	cfg, err := settings.config(pool.Pool)
	if err != nil {
		return err
	}
	completions, err := told.config(log)
	if err != nil {
		return err
	}
	busCfg := buses.config("starling worker "+string(cfg.WorkerID), log)
	busCfg.SeparateFrames = true
	bus, err := broker.Connect(ctx, busCfg)
	if err != nil {
		return err
	}
	var all closers
	all.add(bus.Close)
	defer func() { err = errors.Join(err, all.close()) }()
	staff, err := newStaff(cfg, completions, bus, log)
	if err != nil {
		return err
	}
	all.add(staff.closers.close)
	signals, restore := stopSignals()
	defer restore()
	done := make(chan error, 1)
	go func() { done <- staff.worker.Run(ctx, nil) }()
	stop := staff.worker.Drain
	for {
		select {
		case err := <-done:
			return err
		case sig := <-signals:
			log.Info("signal", "signal", sig.String())
			stop()
			stop = staff.worker.Stop // what a second signal means
		}
	}
}
