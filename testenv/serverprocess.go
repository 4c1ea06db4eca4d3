package testenv

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// asServer makes a test binary a NATS server: it names the configuration file.
const asServer = "GO_TEST_AS_NATS_SERVER"

// lameDuck is short: the least that the configuration file may say is 30 s.
const lameDuck = 3 * time.Second

// serve runs a server until a signal ends it, or its standard input does: the test's
// process is gone then.
func serve(config string) int {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	options, err := server.ProcessConfigFile(config)
	if err == nil {
		options.LameDuckDuration, options.LameDuckGracePeriod = lameDuck, lameDuck/6
		var ns *server.Server
		if ns, err = server.NewServer(options); err == nil {
			ns.ConfigureLogger()
			if err = server.Run(ns); err == nil {
				ns.WaitForShutdown()
				return 0
			}
		}
	}
	fmt.Fprintln(os.Stderr, "nats-server:", err)
	return 1
}

// ServerConfig says where a [ServerProcess] listens and what it belongs to.
type ServerConfig struct {
	Name string
	Addr string // of clients, host:port
	// Cluster is where its peers reach it, host:port, and Routes are all of the
	// cluster; empty: a server alone.
	Cluster string
	Routes  []string
	Monitor string // where it tells its health, host:port
	Store   string // directory; empty: one that goes with the test
	// Command makes the process's command; nil: exec.Command.
	Command func(name string, args ...string) *exec.Cmd
}

// ServerProcess is a NATS server in a process of its own, which can be killed.
// The package's TestMain must be [Main]. One goroutine uses it.
type ServerProcess struct {
	t       testing.TB
	cfg     ServerConfig
	file    string
	process *exec.Cmd // nil while it does not run
	exited  chan struct{}
}

// StartServerProcess starts a server, and kills it with the test. It returns at
// once: clients wait for it.
func StartServerProcess(t testing.TB, cfg ServerConfig) *ServerProcess {
	t.Helper()
	if cfg.Store == "" {
		cfg.Store = StoreDir(t)
	}
	if cfg.Command == nil {
		cfg.Command = exec.Command
	}
	s := &ServerProcess{t: t, cfg: cfg, file: filepath.Join(t.TempDir(), "nats.conf")}
	text := fmt.Sprintf("server_name: %q\nlisten: %q\nhttp: %q\nlog_file: %q\njetstream { store_dir: %q, max_file_store: 8G, max_memory_store: 1G }\n",
		cfg.Name, cfg.Addr, cfg.Monitor, s.Log(), cfg.Store)
	if cfg.Cluster != "" {
		text += fmt.Sprintf("cluster { name: testenv, listen: %q, no_advertise: true, routes: [\"nats://%s\"] }\n",
			cfg.Cluster, strings.Join(cfg.Routes, `", "nats://`))
	}
	if err := os.WriteFile(s.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	s.Start()
	return s
}

// Log is the file that the server writes its log to.
func (s *ServerProcess) Log() string { return s.file + ".log" }

// URL is where clients connect.
func (s *ServerProcess) URL() string { return "nats://" + s.cfg.Addr }

// Name is the server's, as the cluster knows it.
func (s *ServerProcess) Name() string { return s.cfg.Name }

// Store is the directory of its store.
func (s *ServerProcess) Store() string { return s.cfg.Store }

// PID is its process, 0 while it does not run.
func (s *ServerProcess) PID() int {
	if s.process == nil {
		return 0
	}
	return s.process.Process.Pid
}

// Start starts the server again on its port and store, unless it runs.
func (s *ServerProcess) Start() {
	s.t.Helper()
	if s.process != nil {
		return
	}
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	process := s.cfg.Command(self)
	process.Env = append(os.Environ(), asServer+"="+s.file)
	process.Stderr = os.Stderr
	if _, err := process.StdinPipe(); err != nil { // open until this process or that one ends
		s.t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		s.t.Fatal(err)
	}
	exited := make(chan struct{})
	s.process, s.exited = process, exited
	go func() {
		defer close(exited)
		_ = process.Wait() // a killed one says so
	}()
}

// Kill ends the server as a crash of its host would. Idempotent.
func (s *ServerProcess) Kill() { s.end(syscall.SIGKILL) }

// Stop shuts the server down. Its store stays. Idempotent.
func (s *ServerProcess) Stop() { s.end(syscall.SIGTERM) }

// LameDuck makes the server hand over what it leads, send its clients away one by
// one and end, and waits for that.
func (s *ServerProcess) LameDuck() { s.end(syscall.SIGUSR2) }

func (s *ServerProcess) end(signal syscall.Signal) {
	if s.process == nil {
		return
	}
	_ = s.process.Process.Signal(signal) // it may have ended
	select {
	case <-s.exited:
	case <-time.After(endWithin):
		s.t.Errorf("server %s does not end at %s", s.cfg.Name, signal)
		_ = s.process.Process.Kill()
		<-s.exited
	}
	s.process = nil
}

// ProcessCluster is a JetStream cluster of processes: three, or one alone.
type ProcessCluster struct {
	t       testing.TB
	Servers []*ServerProcess
}

// ClusterOfProcesses starts three servers on this host and waits until they work.
func ClusterOfProcesses(t testing.TB) *ProcessCluster {
	t.Helper()
	return onFreePorts(t, 3*clusterSize, threeServers)
}

func threeServers(addrs []string) (configs []ServerConfig) {
	for i := range clusterSize {
		configs = append(configs, ServerConfig{
			Name: fmt.Sprintf("testenv-%d", i),
			Addr: addrs[i], Cluster: addrs[clusterSize+i], Monitor: addrs[2*clusterSize+i],
		})
	}
	return configs
}

// OneServerProcess starts a server alone, as a cluster of one that has no replicas,
// and waits until it works.
func OneServerProcess(t testing.TB) *ProcessCluster {
	t.Helper()
	return onFreePorts(t, 2, func(addrs []string) []ServerConfig {
		return []ServerConfig{{Name: "testenv-0", Addr: addrs[0], Monitor: addrs[1]}}
	})
}

// onFreePorts starts a cluster on n ports of this host, and on others when one of
// them, free a moment ago, is another's by then.
func onFreePorts(t testing.TB, n int, configs func(addrs []string) []ServerConfig) *ProcessCluster {
	t.Helper()
	for try := 1; ; try++ {
		ports, err := freePorts(n)
		if err != nil {
			t.Fatal(err)
		}
		var addrs []string
		for _, port := range ports {
			addrs = append(addrs, fmt.Sprintf("127.0.0.1:%d", port))
		}
		c := startServers(t, configs(addrs))
		taken := c.taken()
		if taken == "" || try == 3 {
			c.Ready()
			return c
		}
		t.Logf("another cluster is started: %s", taken)
		for _, s := range c.Servers {
			s.Kill()
		}
	}
}

// ClusterOf starts servers that are each other's peers, and waits until they work.
func ClusterOf(t testing.TB, configs []ServerConfig) *ProcessCluster {
	t.Helper()
	c := startServers(t, configs)
	c.Ready()
	return c
}

func startServers(t testing.TB, configs []ServerConfig) *ProcessCluster {
	t.Helper()
	c := &ProcessCluster{t: t}
	var routes []string
	for _, cfg := range configs {
		if cfg.Cluster != "" {
			routes = append(routes, cfg.Cluster)
		}
	}
	for _, cfg := range configs {
		cfg.Routes = routes
		c.Servers = append(c.Servers, StartServerProcess(t, cfg))
	}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, s := range c.Servers {
			if text, err := os.ReadFile(s.Log()); err == nil {
				t.Logf("the last of the log of %s:\n%s", s.Name(), text[max(0, len(text)-4<<10):])
			}
		}
	})
	return c
}

// taken waits until each server listens or has ended, and is what one says that found
// its port taken; "" when none did.
func (c *ProcessCluster) taken() (said string) {
	c.t.Helper()
	Eventually(c.t, startWithin, func() error {
		for _, s := range c.Servers {
			text, err := os.ReadFile(s.Log())
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(text)) {
				if strings.Contains(line, "address already in use") {
					said = s.Name() + ": " + strings.TrimSpace(line)
					return nil
				}
			}
			if !strings.Contains(string(text), s.listens()) {
				return fmt.Errorf("server %s does not listen: %s", s.Name(), text)
			}
		}
		return nil
	})
	return said
}

// listens is what the server's log says once it has all its ports.
func (s *ServerProcess) listens() string {
	if s.cfg.Cluster != "" {
		return "Listening for route connections on"
	}
	return "Server is ready"
}

// URL is where clients connect: all servers, comma-separated.
func (c *ProcessCluster) URL() string {
	var urls []string
	for _, s := range c.Servers {
		urls = append(urls, s.URL())
	}
	return strings.Join(urls, ",")
}

// Ready waits until the cluster is whole, as an operator does between two restarts.
func (c *ProcessCluster) Ready() {
	c.t.Helper()
	Eventually(c.t, 3*startWithin, c.Whole)
}

// Whole is nil when every server that runs says that it is healthy and all replicas
// of all streams are current, and else says what is missing.
func (c *ProcessCluster) Whole() error {
	for _, s := range c.Servers {
		if s.process != nil {
			if err := s.healthy(); err != nil {
				return err
			}
		}
	}
	return c.ask(func(ctx context.Context, js jetstream.JetStream) error {
		const probe = "TESTENV_READY"
		if _, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: probe, Subjects: []string{"testenv.ready"}, Replicas: len(c.Servers)}); err != nil {
			return err
		}
		streams := js.ListStreams(ctx)
		for info := range streams.Info() {
			if len(c.Servers) == 1 {
				continue
			}
			if info.Cluster == nil || info.Cluster.Leader == "" {
				return fmt.Errorf("stream %s has no leader", info.Config.Name)
			}
			if len(info.Cluster.Replicas) < info.Config.Replicas-1 {
				return fmt.Errorf("stream %s knows %d peers", info.Config.Name, len(info.Cluster.Replicas))
			}
			for _, r := range info.Cluster.Replicas {
				if r.Offline || !r.Current {
					return fmt.Errorf("stream %s: %s is behind", info.Config.Name, r.Name)
				}
			}
		}
		if err := streams.Err(); err != nil {
			return err
		}
		return js.DeleteStream(ctx, probe)
	})
}

// healthy asks the server itself: JetStream, and all streams and consumers that it
// holds.
func (s *ServerProcess) healthy() error {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get("http://" + s.cfg.Monitor + "/healthz")
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }() // only read
	text, err := io.ReadAll(io.LimitReader(answer.Body, 4<<10))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("server %s: %s", s.cfg.Name, text)
	}
	return err
}

// ask connects, to whichever server answers.
func (c *ProcessCluster) ask(question func(context.Context, jetstream.JetStream) error) error {
	nc, err := nats.Connect(c.URL(), nats.Timeout(time.Second))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return question(ctx, js)
}

// LeaderOf is the server that leads a stream, or a consumer of it when one is
// named; it waits for an election that goes on.
func (c *ProcessCluster) LeaderOf(stream, consumer string) *ServerProcess {
	c.t.Helper()
	var leader *ServerProcess
	Eventually(c.t, startWithin, func() error {
		return c.ask(func(ctx context.Context, js jetstream.JetStream) error {
			name, err := leaderOf(ctx, js, stream, consumer)
			if err != nil {
				return err
			}
			for _, s := range c.Servers {
				if s.Name() == name && s.process != nil {
					leader = s
					return nil
				}
			}
			return fmt.Errorf("stream %s, consumer %q: %q leads", stream, consumer, name)
		})
	})
	return leader
}

func leaderOf(ctx context.Context, js jetstream.JetStream, stream, consumer string) (string, error) {
	var cluster *jetstream.ClusterInfo
	if consumer == "" {
		s, err := js.Stream(ctx, stream)
		if err != nil {
			return "", err
		}
		cluster = s.CachedInfo().Cluster
	} else {
		c, err := js.Consumer(ctx, stream, consumer)
		if err != nil {
			return "", err
		}
		cluster = c.CachedInfo().Cluster
	}
	if cluster == nil {
		return "", fmt.Errorf("stream %s is on one server", stream)
	}
	return cluster.Leader, nil
}
