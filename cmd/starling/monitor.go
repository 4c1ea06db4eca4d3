package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"starling/worker"
)

// monitorSettings say where a worker can be looked at.
type monitorSettings struct {
	HTTP string `desc:"address of /metrics, /healthz and /readyz, such as 127.0.0.1:9464; empty: none"`
}

// monitor serves a worker's metrics and health. Everything there is for
// operators: keep the address away from others.
type monitor struct {
	registry *prometheus.Registry
	listener net.Listener
	server   *http.Server
	log      *slog.Logger
	done     chan struct{}
}

// listen takes the address, so that one that is taken stops the program at once.
// A monitor without an address is nil, and may be used as such.
func (s monitorSettings) listen(ctx context.Context, log *slog.Logger) (*monitor, error) {
	if s.HTTP == "" {
		return nil, nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.HTTP)
	if err != nil {
		return nil, &usageError{fmt.Errorf("STARLING_HTTP (--http) is %q: %w: set an address that is free", s.HTTP, err)}
	}
	m := &monitor{registry: prometheus.NewRegistry(), listener: listener, log: log, done: make(chan struct{})}
	m.registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "starling_build_info", Help: "1, with the program's version.", ConstLabels: prometheus.Labels{"version": version()},
		}, func() float64 { return 1 }),
	)
	return m, nil
}

// registerer is nil without a monitor.
func (m *monitor) registerer() prometheus.Registerer {
	if m == nil {
		return nil
	}
	return m.registry
}

// serve answers until close.
func (m *monitor) serve(w *worker.Worker) {
	if m == nil {
		return
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(m.log.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError,
	}))
	mux.HandleFunc("GET /healthz", answers(w.Alive))
	mux.HandleFunc("GET /readyz", answers(w.Ready))
	m.server = &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
		ErrorLog: slog.NewLogLogger(m.log.Handler(), slog.LevelDebug),
	}
	m.log.Info("monitor listens", "address", m.listener.Addr().String())
	go func() {
		defer close(m.done)
		if err := m.server.Serve(m.listener); !errors.Is(err, http.ErrServerClosed) {
			m.log.Error("monitor ended", "error", err)
		}
	}()
}

// answers says ok, or 503 with what is wrong.
func answers(check func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if err := check(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, err)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}

// close ends what serve began.
func (m *monitor) close() error {
	if m == nil {
		return nil
	}
	if m.server == nil {
		return m.listener.Close()
	}
	err := m.server.Close()
	<-m.done
	return err
}
