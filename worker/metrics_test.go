package worker_test

import (
	"fmt"
	"sort"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
	"starling/worker"
)

// values are a registry's counters and gauges, and its histograms' counts, by
// name and labels but the pool's: `name{label="value"}`.
func values(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, label := range m.GetLabel() {
				if label.GetName() == "pool" {
					if label.GetValue() != protocol.DefaultPool {
						t.Errorf("%s is of the pool %q", name, label.GetValue())
					}
					continue
				}
				name += fmt.Sprintf("{%s=%q}", label.GetName(), label.GetValue())
			}
			switch {
			case m.GetHistogram() != nil:
				all[name] = float64(m.GetHistogram().GetSampleCount())
			case m.GetCounter() != nil:
				all[name] = m.GetCounter().GetValue()
			default:
				all[name] = m.GetGauge().GetValue()
			}
		}
	}
	return all
}

// eventuallyCounts waits until the metrics say what is wanted.
func eventuallyCounts(t *testing.T, registry *prometheus.Registry, want map[string]float64) {
	t.Helper()
	testenv.Eventually(t, soon, func() error {
		got := values(t, registry)
		var wrong []string
		for name, value := range want {
			if have, ok := got[name]; !ok || have != value {
				wrong = append(wrong, fmt.Sprintf("%s is %v (there: %t), want %v", name, have, ok, value))
			}
		}
		if sort.Strings(wrong); len(wrong) > 0 {
			return fmt.Errorf("%s", strings.Join(wrong, "\n"))
		}
		return nil
	})
}

func TestMetricsCountWhatBecomesOfJobs(t *testing.T) {
	t.Parallel()
	f := newFleet(t, testenv.Accept(), testenv.Raw(500, ""), testenv.Raw(500, ""), testenv.Accept())
	registry := prometheus.NewRegistry()
	f.hire(t, func(c *worker.Config) { c.Metrics, c.Slots = registry, 1 })
	capsule := f.agent(t)
	for _, task := range []string{"echo hi", "fail 3", "panic"} {
		f.run(t, f.job(capsule, task))
	}
	broken := f.job(capsule, "x", func(j *protocol.Job) { j.Origin = protocol.OriginEvent })
	f.publish(t, f.subject(broken), []byte("{"), nil)
	f.letter(t, protocol.DefaultPool, broken.TaskID)
	eventuallyCounts(t, registry, map[string]float64{
		`starling_jobs_taken_total{lane="user"}`:            3,
		`starling_jobs_taken_total{lane="bg"}`:              1,
		`starling_jobs_taken_total{lane="peer"}`:            0,
		`starling_jobs_settled_total{outcome="ok"}`:         1,
		`starling_jobs_settled_total{outcome="error"}`:      2,
		`starling_jobs_settled_total{outcome="crashed"}`:    0,
		`starling_jobs_settled_total{outcome="terminated"}`: 0,
		`starling_dead_letters_total{reason="unreadable"}`:  1,
		`starling_dead_letters_total{reason="mismatch"}`:    0,
		`starling_posts_total{result="delivered"}`:          2,
		`starling_posts_total{result="failed"}`:             1,
		`starling_post_seconds`:                             3,
		`starling_attempts_total`:                           3,
		`starling_guest_seconds`:                            3,
		`starling_prepare_seconds`:                          3,
		`starling_report_seconds`:                           3,
		`starling_queue_wait_seconds{lane="user"}`:          3,
		`starling_slots`:                                    1,
		`starling_slots_busy`:                               0,
		`starling_guests_running`:                           0,
		`starling_ready`:                                    1,
		`starling_bus_connected`:                            1,
		`starling_frames_resent_total`:                      0,
		`starling_sandbox_process_deaths_total`:             0,
		`starling_pool_pending{lane="user"}`:                0,
		`starling_pool_oldest_age_seconds{lane="user"}`:     0,
		`starling_tasks_handed_back_total`:                  0,
		`starling_claims_lost_total`:                        0,
	})
}

func TestMetricsShowAQueueAndAHandBack(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	registry := prometheus.NewRegistry()
	m := f.hire(t, func(c *worker.Config) { c.Metrics, c.Slots = registry, 1 })
	job := f.dispatch(t, f.job(f.push(t, "busy", guest(t, say("ready"), untilCanceled())), "x"))
	f.saying(t, job, "ready")
	for range 2 {
		f.dispatch(t, f.job(job.Capsule, "later", func(j *protocol.Job) { j.Origin = protocol.OriginEvent }))
	}
	eventuallyCounts(t, registry, map[string]float64{
		`starling_guests_running`:                1,
		`starling_slots_busy`:                    1,
		`starling_pool_in_progress{lane="user"}`: 1,
	})
	testenv.Eventually(t, soon, func() error {
		got := values(t, registry)
		waiting := got[`starling_pool_pending{lane="bg"}`] + got[`starling_pool_in_progress{lane="bg"}`]
		if waiting != 2 {
			return fmt.Errorf("%v jobs of the lane bg, want 2", waiting)
		}
		return nil
	})
	m.Stop()
	m.ended(t)
	eventuallyCounts(t, registry, map[string]float64{
		`starling_tasks_handed_back_total`: 1, `starling_draining`: 1, `starling_ready`: 0, `starling_guests_running`: 0,
	})
}

// TestMetricsWithAWorkersRights lack the one that needs more.
func TestMetricsWithAWorkersRights(t *testing.T) {
	t.Parallel()
	f, url, as := restricted(t, func(*testenv.User) {})
	registry := prometheus.NewRegistry()
	f.hireAt(t, url, func(c *worker.Config) { as(c); c.Metrics, c.Slots = registry, 1 })
	job := f.dispatch(t, f.job(f.push(t, "busy", guest(t, say("ready"), untilCanceled())), "x"))
	f.saying(t, job, "ready")
	for range 3 { // the first may be given back, and then does not count as waiting
		f.dispatch(t, f.job(job.Capsule, "later", func(j *protocol.Job) { j.Origin = protocol.OriginEvent }))
	}
	testenv.EventuallyTrue(t, soon, "jobs that wait", func() bool { return values(t, registry)[`starling_pool_pending{lane="bg"}`] >= 2 })
	if age, ok := values(t, registry)[`starling_pool_oldest_age_seconds{lane="bg"}`]; ok {
		t.Errorf("the oldest job is %v s old, by a worker that may not read it", age)
	}
	if _, err := f.bus.Cancel(t.Context(), job.Spawner.SessionID, job.DelegationID, broker.CancelOptions{}); err != nil {
		t.Errorf("Cancel() = %v", err)
	}
}
