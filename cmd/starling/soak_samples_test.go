//go:build soak

package main

import (
	"bufio"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"starling/testenv"
)

// samples are measured every two seconds while the load runs.
type samples struct {
	s      *soak
	client *http.Client
	series map[string][]float64
	start  map[string]float64 // of idle workers before the load
	end    map[string]float64 // and after it
	store  []stored           // of the servers
}

// stored is what the servers had on disk when so many jobs were dispatched.
type stored struct {
	jobs  int
	bytes float64
}

func newSamples(s *soak) *samples {
	return &samples{
		s: s, series: make(map[string][]float64),
		client: &http.Client{Timeout: 500 * time.Millisecond, Transport: &http.Transport{DisableKeepAlives: true}},
	}
}

// idle measures the workers before they have done anything.
func (m *samples) idle() { m.start = m.idleNow() }

// settle measures them after everything was done, once what lingers has gone.
func (m *samples) settle() {
	var last string
	deadline := time.Now().Add(2 * time.Minute)
	testenv.EventuallyTrue(m.s.t, 3*time.Minute, "workers at rest", func() bool {
		m.end = m.idleNow()
		last = m.leaks()
		return last == "" || time.Now().After(deadline)
	})
	if last != "" {
		m.s.t.Errorf("workers at rest after the load: %s", last)
	}
}

// A worker at rest may keep this much more than before its first job: what is warm,
// such as sandbox processes and connections to doors.
const (
	restGoroutines = 60
	restFiles      = 60
)

func (m *samples) leaks() string {
	for name, had := range m.start {
		most := had + restGoroutines
		if strings.HasSuffix(name, "files") {
			most = had + restFiles
		}
		if m.end[name] > most {
			return fmt.Sprintf("%s: %.0f, before it %.0f", name, m.end[name], had)
		}
	}
	return ""
}

func (m *samples) idleNow() map[string]float64 {
	all := make(map[string]float64)
	for _, st := range m.s.seats {
		if !st.steady {
			continue
		}
		values, err := m.metrics(st)
		if err != nil {
			continue
		}
		all[st.name+" goroutines"] = values["go_goroutines"]
		all[st.name+" files"] = openFiles(st.worker.command.Process.Pid)
	}
	return all
}

// take measures everything that runs now.
func (m *samples) take() {
	for _, st := range m.s.seats {
		if ended, _ := st.gone(); ended || st.stopped || !st.steady {
			continue
		}
		pid := st.worker.command.Process.Pid
		m.add(st.name+" resident MiB", residentMiB(pid))
		m.add(st.name+" files", openFiles(pid))
		sandboxes, memory := st.sandboxes(), 0.0
		for _, child := range sandboxes {
			memory += residentMiB(child)
		}
		m.add(st.name+" sandbox processes", float64(len(sandboxes)))
		m.add(st.name+" sandbox resident MiB", memory)
		sessions, bytes := usage(st.dir)
		m.add(st.name+" work directories", float64(sessions))
		m.add(st.name+" work root MiB", bytes/(1<<20))
		if values, err := m.metrics(st); err == nil {
			m.add(st.name+" goroutines", values["go_goroutines"])
			m.add(st.name+" heap MiB", values["go_memstats_heap_inuse_bytes"]/(1<<20))
			m.add(st.name+" reports", values["starling_reports_running"])
		}
	}
	var memory, files float64
	for _, server := range m.s.cluster.Servers {
		if pid := server.PID(); pid != 0 {
			memory, files = max(memory, residentMiB(pid)), max(files, openFiles(pid))
		}
	}
	m.add("servers: most resident MiB", memory)
	m.add("servers: most files", files)
	_, cache := usage(filepath.Join(m.s.fleet.dir, "cache"))
	m.add("cache MiB", cache/(1<<20))
	total := 0.0
	for _, server := range m.s.cluster.Servers {
		_, bytes := usage(server.Store())
		total += bytes
	}
	m.store = append(m.store, stored{m.s.load.dispatched(), total})
}

func (m *samples) add(name string, value float64) { m.series[name] = append(m.series[name], value) }

// metrics asks a worker for its gauges.
func (m *samples) metrics(st *seat) (map[string]float64, error) {
	answer, err := m.client.Get("http://" + st.http + "/metrics")
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }() // only read
	values := make(map[string]float64)
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		name, value, ok := strings.Cut(lines.Text(), " ")
		if name, _, _ = strings.Cut(name, "{"); !ok || strings.HasPrefix(name, "#") {
			continue
		}
		if number, err := strconv.ParseFloat(value, 64); err == nil {
			values[name] += number
		}
	}
	return values, nil
}

// growth bounds how much more than in the first quartile a series may have in the
// last: a factor, and so much beside it. A leak of one goroutine, one file or 64 KiB
// a job breaks it within some minutes.
var growth = []struct {
	suffix string
	factor float64
	plus   float64
}{
	{"heap MiB", 1.5, 16},
	{"sandbox resident MiB", 1.5, 4 * 64},
	{"servers: most resident MiB", 2, 128},
	{"resident MiB", 1.5, 32},
	{"goroutines", 1.5, 80},
	{"files", 1.5, 80},
	{"sandbox processes", 1, 4},
	{"work directories", 1.5, 250},
	{"work root MiB", 1.5, 20},
	{"cache MiB", 1, 1},
}

// check prints the medians of the first and the last quarter after a warm-up, and
// fails the test where the last is too large.
func (m *samples) check(jobs int) {
	t := m.s.t
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\tfirst quarter\tlast quarter\tat most")
	for _, name := range slices.Sorted(maps.Keys(m.series)) {
		first, last := quarters(m.series[name])
		bound := 0.0
		for _, g := range growth {
			if strings.HasSuffix(name, g.suffix) {
				bound = first*g.factor + g.plus
				break
			}
		}
		if bound == 0 {
			fmt.Fprintf(table, "%s\t%.1f\t%.1f\t\n", name, first, last)
			continue
		}
		fmt.Fprintf(table, "%s\t%.1f\t%.1f\t%.1f\n", name, first, last, bound)
		if last > bound {
			t.Errorf("%s grew from %.1f to %.1f, want at most %.1f", name, first, last, bound)
		}
	}
	for name, had := range m.start {
		fmt.Fprintf(table, "%s, at rest\t%.0f\t%.0f\t\n", name, had, m.end[name])
	}
	early, late := m.storage()
	bound := 1.5*early + 64
	fmt.Fprintf(table, "servers: KiB stored per job\t%.1f\t%.1f\t%.1f\n", early, late, bound)
	_ = table.Flush()
	t.Logf("%d jobs, %.1f a second, %d of them late because 64 dispatches waited for the bus\n%s",
		jobs, float64(jobs)/m.s.params.duration.Seconds(), m.s.load.held, out.String())
	if late > bound {
		t.Errorf("the servers store %.1f KiB per job in the second half, %.1f in the first", late, early)
	}
}

// storage is what a job adds to the stores of all servers, in KiB, in the first and
// in the second half after the warm-up.
func (m *samples) storage() (early, late float64) {
	warm := m.store[len(m.store)/5:]
	per := func(from, to stored) float64 {
		return (to.bytes - from.bytes) / 1024 / float64(max(1, to.jobs-from.jobs))
	}
	return per(warm[0], warm[len(warm)/2]), per(warm[len(warm)/2], warm[len(warm)-1])
}

// quarters are the medians of the first and the last quarter of what was measured
// after the warm-up, which is a fifth of the whole.
func quarters(values []float64) (first, last float64) {
	warm := values[len(values)/5:]
	n := max(1, len(warm)/4)
	if len(warm) == 0 {
		return 0, 0
	}
	return median(warm[:n]), median(warm[len(warm)-n:])
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

func residentMiB(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	var size, resident float64
	if err != nil {
		return 0 // it has ended
	}
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		return 0
	}
	return resident * float64(os.Getpagesize()) / (1 << 20)
}

func openFiles(pid int) float64 {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0 // it has ended
	}
	return float64(len(entries))
}

// usage is how many entries a directory has and what it takes on disk, in bytes.
func usage(dir string) (entries int, bytes float64) {
	if all, err := os.ReadDir(dir); err == nil {
		entries = len(all)
	}
	_ = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil // it was removed meanwhile
		}
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			bytes += float64(info.Size())
		}
		return nil
	})
	return entries, bytes
}
