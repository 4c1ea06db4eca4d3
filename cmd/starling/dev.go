package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"starling/broker"
	"starling/protocol"
)

type devFlags struct {
	store, door string
	port        int

	pool       poolSettings
	worker     workerSettings
	sandbox    sandboxSettings
	completion completionSettings
	monitor    monitorSettings
}

func (a *app) devCommand() *cobra.Command {
	f := &devFlags{}
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a server, a worker and a door on this host, for trying things",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.dev(cmd.Context(), f) },
	}
	cmd.Flags().StringVar(&f.store, "store", "", "directory of the server's data; empty: starling/dev in the user's cache directory")
	cmd.Flags().IntVar(&f.port, "port", 4222, "port of the server on 127.0.0.1; -1: any free")
	cmd.Flags().StringVar(&f.door, "door-listen", "127.0.0.1:7777", "address of the door")
	return bindAll(cmd, &f.pool, &f.worker, &f.sandbox, &f.completion, &f.monitor)
}

func (a *app) dev(ctx context.Context, f *devFlags) (err error) {
	log := a.logger()
	if f.store == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return &usageError{fmt.Errorf("no cache directory: say --store: %w", err)}
		}
		f.store = filepath.Join(cache, "starling", "dev")
	}
	cfg := fleetConfig{
		server: broker.ServerConfig{StoreDir: f.store, Host: "127.0.0.1", Port: f.port},
		bus:    broker.Config{Name: "starling dev", Logger: log}, init: defaultPools(f.pool.Pool), monitor: f.monitor,
		sandbox: f.sandbox,
	}
	if err = f.sandbox.validate(); err != nil {
		return err
	}
	if cfg.worker, err = f.worker.config(f.pool.Pool); err != nil {
		return err
	}
	if cfg.completion, err = f.completion.config(log); err != nil {
		return err
	}
	if err := checkListen("--door-listen", f.door); err != nil {
		return err
	}
	signals, restore := stopSignals()
	defer restore()
	session := protocol.NewSessionID()
	door, url, closeDoor, err := openDoor(f.door, session)
	if err != nil {
		return f.taken(ctx, err)
	}
	defer func() { err = errors.Join(err, closeDoor()) }()
	fleet, err := startFleet(context.WithoutCancel(ctx), cfg, log)
	if errors.Is(err, broker.ErrPortTaken) {
		return fmt.Errorf("%w: give the server a free port with --port, or -1 for any", err)
	}
	if err != nil {
		return err
	}
	defer func() {
		stop := a.onSignal(signals, "stopping at once", fleet.staff.worker.Stop)
		err = errors.Join(err, fleet.stop())
		stop()
	}()
	fmt.Fprintf(a.err, `starling dev is ready: server %s, pool %s, door %s of session %s

  starling capsule push sandbox/guest/examples/hello --url %[1]s
  starling dispatch hello@1.0.0 --url %[1]s --task 'greet the fleet' --follow
  starling dispatch hello@1.0.0 --url %[1]s --task 'greet the fleet' --session %[4]s --door %[3]s

Ctrl-C ends it.
`, fleet.server.ClientURL(), f.pool.Pool, url, session)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-signals:
			fmt.Fprintf(a.err, "starling: stopping; running tasks may end within %s, and Ctrl-C once more ends them at once\n", cfg.worker.DrainTimeout)
			return nil
		case got := <-door.Received():
			fmt.Fprintf(a.out, "the door was told:\n%s\n\n", printable(got.Text))
		}
	}
}

// taken explains a door that cannot listen: mostly another dev runs, and has the
// server's port too.
func (f *devFlags) taken(ctx context.Context, err error) error {
	alone := fmt.Errorf("%w: give the door a free address with --door-listen, such as 127.0.0.1:0 for any", err)
	server := net.JoinHostPort("127.0.0.1", strconv.Itoa(f.port))
	if !errors.Is(err, syscall.EADDRINUSE) || f.port <= 0 {
		return alone
	}
	conn, dialErr := new(net.Dialer).DialContext(ctx, "tcp", server)
	if dialErr != nil {
		return alone
	}
	_ = conn.Close() // it was only asked whether somebody listens
	return fmt.Errorf("%w, and something listens at %s, where the server should: does another `starling dev` run? "+
		"Use that one, or give this one its own --port, --door-listen and --store", err, server)
}

// onSignal says a line and calls do at the next signal, unless stop is called before.
// stop waits for both.
func (a *app) onSignal(signals <-chan os.Signal, says string, do func()) (stop func()) {
	done := make(chan struct{})
	var listening sync.WaitGroup
	listening.Go(func() {
		select {
		case <-signals:
			fmt.Fprintln(a.err, "starling: "+says)
			do()
		case <-done:
		}
	})
	return func() { close(done); listening.Wait() }
}
