package worker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"starling/broker"
	"starling/protocol"
)

const (
	// queueAge is how long a look at the queue serves: every worker of a pool may be
	// asked at the same time.
	queueAge = 5 * time.Second
	// queueWithin bounds one look: a bus that is away must not hold up the rest of
	// the metrics.
	queueWithin = 2 * time.Second
)

// queueMetrics are the pool's queue, asked for when the metrics are: what an
// autoscaler looks at. Every worker of a pool says the same. While the bus is away
// they are missing.
type queueMetrics struct {
	w *Worker

	pending, inProgress, oldest *prometheus.Desc

	mu     sync.Mutex // guards what follows
	looked time.Time
	lanes  map[protocol.Lane]broker.LaneStats // nil: the last look failed
	ageOff bool                               // the worker's rights do not cover it
}

func newQueueMetrics(w *Worker) *queueMetrics {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"lane"}, nil)
	}
	return &queueMetrics{
		w:          w,
		pending:    desc("starling_pool_pending", "Jobs of the pool that no worker was handed yet."),
		inProgress: desc("starling_pool_in_progress", "Jobs of the pool that were handed out and are not acked."),
		oldest:     desc("starling_pool_oldest_age_seconds", "Age of the pool's oldest pending job, 0 without one. Needs the right to read jobs."),
	}
}

// Describe implements prometheus.Collector.
func (q *queueMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{q.pending, q.inProgress, q.oldest} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (q *queueMetrics) Collect(to chan<- prometheus.Metric) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if time.Since(q.looked) > queueAge {
		q.look()
	}
	for lane, s := range q.lanes {
		gauge := func(d *prometheus.Desc, value float64) {
			to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, string(lane))
		}
		gauge(q.pending, float64(s.Pending))
		gauge(q.inProgress, float64(s.InProgress))
		if !q.ageOff {
			gauge(q.oldest, float64(s.OldestMS)/1000)
		}
	}
}

// look asks the bus. A refused age is not asked for again.
func (q *queueMetrics) look() {
	ctx, cancel := context.WithTimeout(context.Background(), queueWithin)
	defer cancel()
	lanes := make(map[protocol.Lane]broker.LaneStats)
	q.lanes = nil
	for _, lane := range protocol.Lanes() {
		stats, err := q.w.bus.LaneStats(ctx, q.w.cfg.Pool, lane, !q.ageOff)
		if errors.Is(err, broker.ErrDenied) && !q.ageOff {
			q.ageOff = true
			q.w.log.Info("the age of queued jobs is not measured: the worker may not read them")
			stats, err = q.w.bus.LaneStats(ctx, q.w.cfg.Pool, lane, false)
		}
		if err != nil {
			q.w.log.Debug("queue not measured", "error", err)
			return
		}
		lanes[lane] = stats
	}
	q.lanes, q.looked = lanes, time.Now()
}
