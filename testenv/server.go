package testenv

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// startWithin bounds the start of a server on a machine that is busy.
const startWithin = 30 * time.Second

// Server is a real NATS server with JetStream on a free port, with its store in
// the test's directory.
type Server struct {
	t       testing.TB
	options server.Options

	mu   sync.Mutex
	nats *server.Server // nil while stopped
}

// ServerOptions are the server's own.
type ServerOptions = server.Options

// Option changes how a server starts.
type Option func(*server.Options)

// WithOptions changes whatever the server's own options can say.
func WithOptions(change func(*server.Options)) Option { return change }

// WithoutJetStream starts a server that stores nothing.
func WithoutJetStream() Option { return func(o *server.Options) { o.JetStream = false } }

// WithMaxStore bounds what JetStream may store, in bytes.
func WithMaxStore(bytes int64) Option {
	return func(o *server.Options) { o.JetStreamMaxStore = bytes }
}

// WithUsers lets nobody in but these.
func WithUsers(users ...User) Option {
	return func(o *server.Options) {
		for _, u := range users {
			o.Users = append(o.Users, u.nats())
		}
	}
}

// NATS starts a server and stops it with the test.
func NATS(t testing.TB, options ...Option) *Server {
	t.Helper()
	s := &Server{t: t, options: server.Options{
		ServerName: "testenv", Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: StoreDir(t),
		JetStreamMaxStore: 8 << 30, JetStreamMaxMemory: 1 << 30,
	}}
	for _, option := range options {
		option(&s.options)
	}
	t.Cleanup(s.Stop)
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *Server) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nats != nil {
		return nil
	}
	options := s.options // the server writes into what it is given
	ns, err := server.NewServer(&options)
	if err != nil {
		return fmt.Errorf("starting a NATS server: %w", err)
	}
	fatal := &fatalLog{first: make(chan string, 1)}
	ns.SetLoggerV2(fatal, false, false, false)
	ns.Start()
	for deadline := time.Now().Add(startWithin); !ns.ReadyForConnections(20 * time.Millisecond); {
		select {
		case text := <-fatal.first:
			ns.Shutdown()
			ns.WaitForShutdown()
			return fmt.Errorf("starting a NATS server: %s", text)
		default:
		}
		if time.Now().After(deadline) {
			ns.Shutdown()
			ns.WaitForShutdown()
			return fmt.Errorf("the NATS server is not ready after %s", startWithin)
		}
	}
	s.options.Port = options.Port // the same again after a restart
	s.nats = ns
	return nil
}

// URL is where clients connect; the same after a restart.
func (s *Server) URL() string {
	return fmt.Sprintf("nats://%s:%d", s.options.Host, s.options.Port)
}

// URLFor is URL with a user's name and password in it.
func (s *Server) URLFor(u User) string {
	return fmt.Sprintf("nats://%s:%s@%s:%d", u.Name, u.Password, s.options.Host, s.options.Port)
}

// NATS is the server itself, nil while it is stopped.
func (s *Server) NATS() *server.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nats
}

// Stop shuts the server down and waits for it. Its store stays. Idempotent.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nats == nil {
		return
	}
	s.nats.Shutdown()
	s.nats.WaitForShutdown()
	s.nats = nil
}

// Restart stops the server, unless it is stopped, and starts it again on the
// same port and store.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	// Another connection may have its port for a moment.
	Eventually(s.t, startWithin, s.start)
}

// fatalLog keeps what stops a server from starting: it says so only in its log.
type fatalLog struct{ first chan string }

func (*fatalLog) Noticef(string, ...any) {}
func (*fatalLog) Warnf(string, ...any)   {}
func (*fatalLog) Errorf(string, ...any)  {}
func (*fatalLog) Debugf(string, ...any)  {}
func (*fatalLog) Tracef(string, ...any)  {}

func (l *fatalLog) Fatalf(format string, v ...any) {
	select {
	case l.first <- fmt.Sprintf(format, v...):
	default: // only the first is told
	}
}
