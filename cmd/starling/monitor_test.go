package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"starling/testenv"
)

func (m *monitor) url(path string) string { return "http://" + m.listener.Addr().String() + path }

// look gets a path of the monitor.
func (m *monitor) look(t *testing.T, path string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, m.url(path), nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(content)
}

func monitored(cfg *fleetConfig) { cfg.monitor.HTTP = "127.0.0.1:0" }

func TestMetricsCountAJob(t *testing.T) {
	t.Parallel()
	f := testFleet(t, monitored)
	url := f.server.ClientURL()
	for _, args := range [][]string{
		{"capsule", "push", agent(t, "text"), "--url", url},
		{"dispatch", "agent@1.0.0", "--url", url, "--task", "echo hi", "--wait"},
	} {
		if got := starling(t, "", args...); got.status != 0 {
			t.Fatalf("starling %v = %+v", args, got)
		}
	}
	want := []string{
		`starling_pool_pending{lane="user",pool="default"} 0`,
		`starling_pool_in_progress{lane="user",pool="default"} 0`,
		`starling_pool_oldest_age_seconds{lane="bg",pool="default"} 0`,
		`starling_jobs_taken_total{lane="user",pool="default"} 1`,
		`starling_jobs_taken_total{lane="bg",pool="default"} 0`,
		`starling_jobs_settled_total{outcome="ok",pool="default"} 1`,
		`starling_attempts_total{pool="default"} 1`,
		`starling_capsule_cache_total{pool="default",result="`,
		`starling_guest_seconds_count{pool="default"} 1`,
		`starling_queue_wait_seconds_count{lane="user",pool="default"} 1`,
		`starling_slots{pool="default"} 4`,
		`starling_slots_busy{pool="default"} 0`,
		`starling_ready{pool="default"} 1`,
		`starling_build_info{version="`, `go_goroutines`, `process_open_fds`,
	}
	testenv.Eventually(t, 30*time.Second, func() error { // the job is acked after its outcome
		status, body := f.staff.watched.look(t, "/metrics")
		if status != http.StatusOK {
			return fmt.Errorf("/metrics says %d", status)
		}
		for _, line := range want {
			if !strings.Contains(body, line) {
				return fmt.Errorf("/metrics lacks %s:\n%s", line, body)
			}
		}
		return nil
	})
}

func TestReadinessFollowsTheWorker(t *testing.T) {
	t.Parallel()
	f := testFleet(t, monitored)
	for _, path := range []string{"/healthz", "/readyz"} {
		if status, body := f.staff.watched.look(t, path); status != http.StatusOK || body != "ok\n" {
			t.Errorf("%s = %d %q, want 200 ok", path, status, body)
		}
	}
	f.staff.worker.Drain()
	if status, body := f.staff.watched.look(t, "/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "drains") {
		t.Errorf("/readyz of a draining worker = %d %q, want 503 and why", status, body)
	}
	if status, _ := f.staff.watched.look(t, "/healthz"); status != http.StatusOK {
		t.Errorf("/healthz of a draining worker = %d, want 200: it lives", status)
	}
}

func TestReadinessSaysThatTheBusIsAway(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	url := server.URL()
	if got := starling(t, "", "init", "--url", url); got.status != 0 {
		t.Fatalf("init = %+v", got)
	}
	m, stop := startMonitoredWorker(t, url)
	defer stop()
	testenv.EventuallyTrue(t, 30*time.Second, "ready", func() bool { status, _ := m.look(t, "/readyz"); return status == http.StatusOK })
	server.Stop()
	testenv.EventuallyTrue(t, 30*time.Second, "not ready without a bus", func() bool {
		status, body := m.look(t, "/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, "bus is away")
	})
	if status, _ := m.look(t, "/healthz"); status != http.StatusOK {
		t.Error("/healthz fails while the bus is away: a restart would not bring it back")
	}
	server.Restart()
	testenv.EventuallyTrue(t, 30*time.Second, "ready again", func() bool { status, _ := m.look(t, "/readyz"); return status == http.StatusOK })
}

// startMonitoredWorker is the worker command, in this process.
func startMonitoredWorker(t *testing.T, url string) (*monitor, func()) {
	t.Helper()
	dir := t.TempDir()
	var out output
	a := &app{streams: streams{in: strings.NewReader(""), out: &out, err: &out}}
	a.log.LogLevel, a.log.LogFormat = "info", "text"
	watched, err := monitorSettings{HTTP: "127.0.0.1:0"}.listen(t.Context(), a.logger())
	if err != nil {
		t.Fatal(err)
	}
	settings := workerSettings{Slots: 1, WorkRoot: dir + "/work", CacheDir: testenv.CompiledCache(t)}
	cfg, err := settings.config("default")
	if err != nil {
		t.Fatal(err)
	}
	told, err := completionSettings{}.config(a.logger())
	if err != nil {
		t.Fatal(err)
	}
	bus, err := busSettings{URL: url, Namespace: "starling"}.connect(t.Context(), "test", a.logger())
	if err != nil {
		t.Fatal(err)
	}
	cfg.PullExpires = 200 * time.Millisecond
	staff, err := newStaff(cfg, sandboxSettings{Sandbox: sandboxInProcess}, told, bus, watched, a.logger(), nil)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- staff.worker.Run(context.WithoutCancel(t.Context()), nil) }()
	return watched, func() {
		staff.worker.Stop()
		for _, err := range []error{<-done, staff.closers.close(), watched.close(), bus.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	}
}

func TestAMonitorWhoseAddressIsTakenSaysWhichSetting(t *testing.T) {
	t.Parallel()
	f := testFleet(t, monitored)
	got := starling(t, "", "worker", "--url", f.server.ClientURL(), "--http", f.staff.watched.listener.Addr().String())
	if got.status != exitUsage {
		t.Errorf("status %d, want %d", got.status, exitUsage)
	}
	contains(t, "stderr", got.err, "STARLING_HTTP", "--http", "in use")
}
