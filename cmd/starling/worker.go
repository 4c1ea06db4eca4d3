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
	var where sandboxSettings
	var told completionSettings
	var watched monitorSettings
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Work for one pool of a fleet",
		Long: `Take jobs of one pool, run them and report. SIGTERM, SIGINT or SIGHUP drains: no job
is taken any more, running tasks may end within the drain timeout and are handed
back after it. A second signal, half a second later or more, hands them back at once.

Variables (flags of the same words win over them):

` + variableTable(&bus, &pool, &settings, &where, &told, &watched, &logSettings{}) + `
OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_ENDPOINT and its like) turn traces on.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.work(cmd.Context(), bus, pool, settings, where, told, watched)
		},
	}
	return bindAll(cmd, &bus, &pool, &settings, &where, &told, &watched)
}

func (a *app) work(
	ctx context.Context, buses busSettings, pool poolSettings, settings workerSettings, where sandboxSettings,
	told completionSettings, watched monitorSettings,
) (err error) {
	if a.log.LogFormat == "" {
		a.log.LogFormat = "json"
	}
	log := a.logger()
	if err := where.validate(); err != nil {
		return err
	}
	cfg, err := settings.config(pool.Pool)
	if err != nil {
		return err
	}
	completions, err := told.config(log)
	if err != nil {
		return err
	}
	var all closers
	defer func() { err = errors.Join(err, all.close()) }()
	tracing, err := startTracing(ctx, "starling worker", log)
	if err != nil {
		return err
	}
	all.add(tracing.close)
	cfg.Tracer = tracing
	monitor, err := watched.listen(ctx, log)
	if err != nil {
		return err
	}
	all.add(monitor.close)
	busCfg := buses.config("starling worker "+string(cfg.WorkerID), log)
	busCfg.SeparateFrames = true
	bus, err := broker.Connect(ctx, busCfg)
	if err != nil {
		return err
	}
	all.add(bus.Close)
	staff, err := newStaff(cfg, where, completions, bus, monitor, log, nil)
	if err != nil {
		return err
	}
	all.add(staff.closers.close)
	signals, restore := stopSignals()
	defer restore()
	done := make(chan error, 1)
	go func() { done <- staff.worker.Run(ctx, nil) }()
	stop, meaning := staff.worker.Drain, "drain; a second one hands running tasks back at once"
	for {
		select {
		case err := <-done:
			return ifDenied(err, settings.WorkerID == "", "a user that is one worker's has its id: name it with --worker-id (STARLING_WORKER_ID)")
		case sig := <-signals:
			log.Info("signal", "signal", sig.String(), "meaning", meaning)
			stop()
			stop, meaning = staff.worker.Stop, "hand everything back at once" // what a second one means
		}
	}
}
