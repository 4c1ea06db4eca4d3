package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"starling/broker"
	"starling/cmd/starling/internal/floor"
	"starling/protocol"
)

// benchFlags say what is measured.
type benchFlags struct {
	Jobs     int `json:"jobs"`
	Slots    int `json:"slots"`
	InFlight int `json:"in_flight"`
	Rounds   int `json:"rounds"`
	door     bool
	json     bool
}

func (a *app) benchCommand() *cobra.Command {
	f := &benchFlags{}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure jobs/s and latency of a no-op capsule beside a floor done by hand",
		Long: `Measure, on a server of its own in a process of its own, how many no-op jobs a
worker does and how long one takes from dispatch to its terminal frame; beside
it, in the same run, a floor: the same bus operations, the same files and a bare
instantiation by hand, without the product. The product is measured twice: with
guests in sandbox processes, as workers run them, and with guests in its own
process. The floor instantiates in its own process too. Machines are noisy: the
ratios are what counts. The rounds alternate and the medians are printed.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.bench(cmd.Context(), f) },
	}
	cmd.Flags().IntVar(&f.Jobs, "jobs", 2000, "jobs per side and round")
	cmd.Flags().IntVar(&f.Slots, "slots", 32, "jobs that run at a time")
	cmd.Flags().IntVar(&f.InFlight, "in-flight", 64, "jobs that are dispatched and have not ended, in the closed loop")
	cmd.Flags().IntVar(&f.Rounds, "rounds", 5, "rounds")
	cmd.Flags().BoolVar(&f.door, "door", false, "tell a door of each end")
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	cmd.AddCommand(a.benchServerCommand())
	return cmd
}

// sample is what one side did in one round.
type sample struct {
	JobsPerSecond float64 `json:"jobs_per_second"`
	P50MS         float64 `json:"p50_ms"`
	P99MS         float64 `json:"p99_ms"`
	WorkerCPUUS   float64 `json:"worker_cpu_us_per_job"`
	ServerCPUUS   float64 `json:"server_cpu_us_per_job"`
}

// side is the product or the floor.
type side struct {
	dispatch func(context.Context) (subject string, err error)
	observer *floor.Observer
	// children are the ids of the processes whose processor time is the side's too.
	children func() []int
}

// The sides of a bench.
const (
	sideFloor     = "floor"
	sideProcess   = sandboxProcess
	sideInProcess = sandboxInProcess
)

var sideNames = []string{sideFloor, sideProcess, sideInProcess}

func (a *app) bench(ctx context.Context, f *benchFlags) (err error) {
	if f.Jobs < 1 || f.Slots < 1 || f.InFlight < 1 || f.Rounds < 1 {
		return &usageError{errors.New("--jobs, --slots, --in-flight and --rounds are at least 1")}
	}
	var all closers
	defer func() { err = errors.Join(err, all.close()) }()
	dir, err := os.MkdirTemp("", "starling-bench-*")
	if err != nil {
		return err
	}
	all.add(func() error { return os.RemoveAll(dir) })
	server, err := startBenchServer(ctx, filepath.Join(dir, "server"))
	if err != nil {
		return err
	}
	all.add(server.close)
	door := ""
	if f.door {
		url, closeDoor, err := openBenchDoor()
		if err != nil {
			return err
		}
		all.add(closeDoor)
		door = url
	}
	sides, err := a.startSides(ctx, &all, f, server.url, dir, door)
	if err != nil {
		return err
	}
	samples := map[string][]sample{}
	for round := range f.Rounds {
		for i := range sideNames {
			name := sideNames[(round+i)%len(sideNames)]
			s, err := measure(ctx, sides[name], f, server)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			samples[name] = append(samples[name], s)
			fmt.Fprintf(a.err, "round %d %-9s %7.0f jobs/s  p50 %.2f ms\n", round+1, name, s.JobsPerSecond, s.P50MS)
		}
	}
	return a.printBench(f, samples)
}

// startSides starts the floor, and the product in two namespaces of one server.
func (a *app) startSides(ctx context.Context, all *closers, f *benchFlags, url, dir, door string) (map[string]side, error) {
	sides := map[string]side{}
	var err error
	if sides[sideFloor], err = startFloorSide(ctx, all, f, url, filepath.Join(dir, sideFloor), door); err != nil {
		return nil, err
	}
	for _, name := range []string{sideProcess, sideInProcess} {
		if sides[name], err = a.startProductSide(ctx, all, f, url, filepath.Join(dir, name), door, name); err != nil {
			return nil, err
		}
	}
	return sides, nil
}

// printBench prints the medians and their ratios to the floor's.
func (a *app) printBench(f *benchFlags, samples map[string][]sample) error {
	median := map[string]sample{}
	for _, name := range sideNames {
		median[name] = medians(samples[name])
	}
	if f.json {
		out := map[string]any{"settings": f, "door": f.door, sideFloor: median[sideFloor]}
		for _, name := range []string{sideProcess, sideInProcess} {
			out[name] = median[name]
			out[name+"_throughput_ratio"] = median[name].JobsPerSecond / median[sideFloor].JobsPerSecond
			out[name+"_latency_ratio"] = median[name].P50MS / median[sideFloor].P50MS
		}
		return a.printJSON(out)
	}
	table := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\tfloor\tprocess\tratio\tinprocess\tratio\t")
	row := func(name, format string, of func(sample) float64) {
		least, process, inProcess := of(median[sideFloor]), of(median[sideProcess]), of(median[sideInProcess])
		fmt.Fprintf(table, "%s\t"+format+"\t"+format+"\t%.2f\t"+format+"\t%.2f\t\n",
			name, least, process, process/least, inProcess, inProcess/least)
	}
	row("jobs/s", "%.0f", func(s sample) float64 { return s.JobsPerSecond })
	row("p50 ms, one at a time", "%.2f", func(s sample) float64 { return s.P50MS })
	row("p99 ms, one at a time", "%.2f", func(s sample) float64 { return s.P99MS })
	row("worker CPU µs/job", "%.0f", func(s sample) float64 { return s.WorkerCPUUS })
	row("server CPU µs/job", "%.0f", func(s sample) float64 { return s.ServerCPUUS })
	return table.Flush()
}

func medians(all []sample) sample {
	median := func(of func(sample) float64) float64 {
		var values []float64
		for _, s := range all {
			values = append(values, of(s))
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	return sample{
		JobsPerSecond: median(func(s sample) float64 { return s.JobsPerSecond }),
		P50MS:         median(func(s sample) float64 { return s.P50MS }),
		P99MS:         median(func(s sample) float64 { return s.P99MS }),
		WorkerCPUUS:   median(func(s sample) float64 { return s.WorkerCPUUS }),
		ServerCPUUS:   median(func(s sample) float64 { return s.ServerCPUUS }),
	}
}

func startFloorSide(ctx context.Context, all *closers, f *benchFlags, url, dir, door string) (side, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return side{}, err
	}
	hand, err := floor.Start(ctx, floor.Config{URL: url, Slots: f.Slots, Dir: dir, Module: floor.Noop, Door: door, Files: true})
	if err != nil {
		return side{}, err
	}
	all.add(func() error { hand.Close(); return nil })
	observer, err := floor.Observe(url, floor.Tasks())
	if err != nil {
		return side{}, err
	}
	all.add(func() error { observer.Close(); return nil })
	return side{dispatch: hand.Dispatch, observer: observer}, nil
}

// startProductSide starts a worker whose guests run where it says.
func (a *app) startProductSide(ctx context.Context, all *closers, f *benchFlags, url, dir, door, where string) (side, error) {
	log := a.quietLogger()
	connect := func(frames bool) (*broker.Bus, error) {
		bus, err := broker.Connect(ctx, broker.Config{URL: url, Namespace: protocol.Namespace("bench-" + where), SeparateFrames: frames, Logger: log})
		if err == nil {
			all.add(bus.Close)
		}
		return bus, err
	}
	bus, err := connect(false)
	if err != nil {
		return side{}, err
	}
	if err := bus.Init(ctx, broker.InitConfig{}); err != nil {
		return side{}, err
	}
	own, err := connect(true)
	if err != nil {
		return side{}, err
	}
	staff, err := startBenchWorker(ctx, all, f, own, dir, where, log)
	if err != nil {
		return side{}, err
	}
	children := func() []int { return nil }
	if processes, ok := staff.guests.(interface{ PIDs() []int }); ok {
		children = processes.PIDs
	}
	entry, err := bus.PushCapsule(ctx, protocol.DefaultManifest("noop", "1.0.0"), floor.Noop)
	if err != nil {
		return side{}, err
	}
	observer, err := floor.Observe(url, bus.Namespace().TaskSubject("*"))
	if err != nil {
		return side{}, err
	}
	all.add(func() error { observer.Close(); return nil })
	return side{children: children, observer: observer, dispatch: func(ctx context.Context) (string, error) {
		job := newJob(entry.CapsuleEntry, "nothing", nil, nil)
		if door != "" {
			job.Spawner.URL, job.Spawner.Trust = door, protocol.Trusted
		}
		_, err := bus.Dispatch(ctx, job, broker.DispatchOptions{})
		return bus.Namespace().TaskSubject(job.TaskID), err
	}}, nil
}

// startBenchWorker returns once the worker takes jobs.
func startBenchWorker(ctx context.Context, all *closers, f *benchFlags, bus *broker.Bus, dir, where string, log *slog.Logger) (*staff, error) {
	settings := workerSettings{Slots: f.Slots, WorkRoot: filepath.Join(dir, "work"), CacheDir: filepath.Join(dir, "cache")}
	cfg, err := settings.config(protocol.DefaultPool)
	if err != nil {
		return nil, err
	}
	cfg.PullExpires = time.Second // its drain is waited for
	var places sandboxSettings
	if err := bind(pflag.NewFlagSet("", pflag.ContinueOnError), &places); err != nil {
		return nil, err
	}
	places.Sandbox = where
	told, err := completionSettings{}.config(log)
	if err != nil {
		return nil, err
	}
	staff, err := newStaff(cfg, places, told, bus, nil, log, nil)
	if err != nil {
		return nil, err
	}
	all.add(staff.closers.close)
	done, ready := make(chan error, 1), make(chan struct{})
	go func() { done <- staff.worker.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
		all.add(func() error { staff.worker.Drain(); return <-done })
		return staff, nil
	case err := <-done:
		return nil, err
	}
}

// measure runs a closed loop for the rate, then one job at a time for the
// latency.
func measure(ctx context.Context, s side, f *benchFlags, server *benchServer) (sample, error) {
	if _, err := loop(ctx, s, min(f.Jobs, 200), f.InFlight); err != nil { // warm
		return sample{}, err
	}
	serverBefore, err := server.cpu()
	if err != nil {
		return sample{}, err
	}
	ownBefore, began := s.cpu(), time.Now()
	if _, err := loop(ctx, s, f.Jobs, f.InFlight); err != nil {
		return sample{}, err
	}
	took, own := time.Since(began), s.cpu()-ownBefore
	serverAfter, err := server.cpu()
	if err != nil {
		return sample{}, err
	}
	latencies, err := loop(ctx, s, min(f.Jobs, 300), 1)
	if err != nil {
		return sample{}, err
	}
	slices.Sort(latencies)
	perJob := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(f.Jobs) }
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return sample{
		JobsPerSecond: float64(f.Jobs) / took.Seconds(),
		P50MS:         ms(latencies[len(latencies)/2]), P99MS: ms(latencies[len(latencies)*99/100]),
		WorkerCPUUS: perJob(own), ServerCPUUS: perJob(serverAfter - serverBefore),
	}, nil
}

// loop dispatches jobs, inFlight at a time, and gives how long each took from
// dispatch to its terminal frame.
func loop(ctx context.Context, s side, jobs, inFlight int) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	tickets := make(chan struct{}, jobs)
	for range jobs {
		tickets <- struct{}{}
	}
	close(tickets)
	var mu sync.Mutex
	var latencies []time.Duration
	var problems []error
	var group sync.WaitGroup
	for range inFlight {
		group.Go(func() {
			for range tickets {
				took, err := once(ctx, s)
				mu.Lock()
				latencies = append(latencies, took)
				problems = append(problems, err)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return latencies, errors.Join(problems...)
}

func once(ctx context.Context, s side) (time.Duration, error) {
	began := time.Now()
	subject, err := s.dispatch(ctx)
	if err != nil {
		return 0, err
	}
	select {
	case ended := <-s.observer.Ended(subject):
		return ended.Sub(began), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("%s did not end: %w", subject, ctx.Err())
	}
}

// openBenchDoor takes everything.
func openBenchDoor() (url string, closeDoor func() error, err error) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":null,"result":{}}`)
	})
	return serve("127.0.0.1:0", handler)
}
