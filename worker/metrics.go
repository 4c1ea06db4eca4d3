package worker

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"starling/broker"
	"starling/protocol"
)

// metrics count what a worker does. All are declared here; their labels come
// from closed sets, never from a job.
type metrics struct {
	taken      *prometheus.CounterVec // by lane
	settled    *prometheus.CounterVec // by outcome
	attempts   prometheus.Counter
	handedBack prometheus.Counter
	left       prometheus.Counter
	lostClaims prometheus.Counter
	dead       *prometheus.CounterVec // by reason
	cache      *prometheus.CounterVec // by result
	posts      *prometheus.CounterVec // by result

	queueWait *prometheus.HistogramVec // by lane
	prepare   prometheus.Histogram
	guest     prometheus.Histogram
	report    prometheus.Histogram
	post      prometheus.Histogram
}

var (
	// quick is for what takes a millisecond when all is well.
	quick = prometheus.ExponentialBuckets(0.0005, 2, 16) // to 16 s
	// slow is for what takes as long as an agent does.
	slow = prometheus.ExponentialBuckets(0.005, 2.5, 16) // to 78 min
)

// newMetrics declares the metrics of w. A nil registry has none.
func newMetrics(registry prometheus.Registerer, w *Worker) *metrics {
	registered := prometheus.WrapRegistererWith(prometheus.Labels{"pool": w.cfg.Pool}, registry)
	declare := promauto.With(registered)
	counter := func(name, help string) prometheus.Counter {
		return declare.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	counters := func(name, help, label string, values ...string) *prometheus.CounterVec {
		c := declare.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
		for _, value := range values { // there from the start, so that a rate has its first step
			c.WithLabelValues(value)
		}
		return c
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return declare.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	}
	gauge := func(name, help string, value func() float64) {
		declare.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	total := func(name, help string, value func(broker.Stats) uint64) {
		declare.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(value(w.bus.Stats())) })
	}
	if registry != nil {
		registered.MustRegister(newQueueMetrics(w))
	}
	lanes := []string{string(protocol.LaneUser), string(protocol.LanePeer), string(protocol.LaneBackground)}

	gauge("starling_slots", "Guests that may run at a time.", func() float64 { return float64(w.cfg.Slots) })
	gauge("starling_slots_busy", "Slots that hold a job.", func() float64 { return float64(w.busy()) })
	gauge("starling_guests_running", "Guests that run now.", func() float64 { return float64(w.running.count()) })
	gauge("starling_reports_running", "Ended tasks that are being reported outside a slot.", func() float64 { return float64(len(w.reports)) })
	gauge("starling_ready", "1 while the worker takes jobs and can run them.", func() float64 { return oneIf(w.Ready() == nil) })
	gauge("starling_draining", "1 once the worker drains.", func() float64 { return oneIf(w.draining.Load()) })
	gauge("starling_bus_connected", "1 while the bus can be spoken to.", func() float64 { return oneIf(w.bus.Connected()) })
	total("starling_bus_reconnects_total", "Connections to the bus that were made again.", func(s broker.Stats) uint64 { return s.Reconnects })
	total("starling_frames_published_total", "Frames published, repeats included.", func(s broker.Stats) uint64 { return s.Frames })
	total("starling_frames_resent_total", "Frames published again because no ack came.", func(s broker.Stats) uint64 { return s.Resent })
	declare.NewCounterFunc(prometheus.CounterOpts{
		Name: "starling_sandbox_process_deaths_total", Help: "Sandbox processes that died under a guest or idle.",
	}, func() float64 { return float64(w.guests.Deaths()) })
	queueWait := declare.NewHistogramVec(prometheus.HistogramOpts{
		Name: "starling_queue_wait_seconds", Help: "From the dispatch to the first claim.", Buckets: slow,
	}, []string{"lane"})
	for _, lane := range lanes {
		queueWait.WithLabelValues(lane)
	}
	return &metrics{
		taken: counters("starling_jobs_taken_total", "Deliveries of jobs.", "lane", lanes...),
		settled: counters("starling_jobs_settled_total", "Jobs that were completed, by the outcome of their delegation.", "outcome",
			string(protocol.StatusOK), string(protocol.StatusError), string(protocol.StatusCrashed), string(protocol.StatusTerminated)),
		attempts:   counter("starling_attempts_total", "Attempts begun."),
		handedBack: counter("starling_tasks_handed_back_total", "Tasks returned to the queue: by a drain, or because this host could not run them."),
		left:       counter("starling_jobs_left_total", "Jobs left to be redelivered."),
		lostClaims: counter("starling_claims_lost_total", "Jobs that another worker, or a canceller, took over."),
		dead: counters("starling_dead_letters_total", "Jobs that became dead letters.", "reason",
			string(protocol.DeadUnreadable), string(protocol.DeadMismatch), string(protocol.DeadNoRecord), string(protocol.DeadAttemptsSpent)),
		cache:     counters("starling_capsule_cache_total", "Capsules looked up on this host.", "result", "hit", "miss"),
		posts:     counters("starling_posts_total", "Completions posted to parents' doors, by how the last try ended.", "result", "delivered", "failed"),
		queueWait: queueWait,
		prepare:   histogram("starling_prepare_seconds", "From the claim to the start of the guest: fetch and compile.", quick),
		guest:     histogram("starling_guest_seconds", "Run time of guests.", slow),
		report:    histogram("starling_report_seconds", "From the end of the guest to the settled job, post included.", quick),
		post:      histogram("starling_post_seconds", "One completion posted, with all its tries.", quick),
	}
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// waited notes how long a first attempt was queued.
func (m *metrics) waited(rec protocol.Record, now time.Time) {
	if rec.Attempt == 1 {
		m.queueWait.WithLabelValues(string(rec.Lane)).Observe(max(0, now.Sub(rec.SubmittedAt.Std()).Seconds()))
	}
}
