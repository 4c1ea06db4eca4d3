package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// serverStart bounds how long the embedded server may take to listen.
const serverStart = 20 * time.Second

// ServerConfig says how the embedded server runs. It is one server without
// users, for one machine: a fleet has a cluster of its own.
type ServerConfig struct {
	// StoreDir is where JetStream keeps its files. Required.
	StoreDir string
	// Host to listen on; empty: 127.0.0.1. Whoever reaches it may do everything.
	Host string
	// Port to listen on; 0: 4222; -1: any free one.
	Port int
	// InProcessOnly listens nowhere: only [ConnectServer] reaches it.
	InProcessOnly bool
	// MaxStoreBytes bounds what JetStream stores; 0: three quarters of the disk.
	MaxStoreBytes int64
	// Logger gets the server's warnings and errors, and the rest at debug; nil:
	// discarded.
	Logger *slog.Logger
}

// Validate checks every field; problems are [ErrConfig].
func (c ServerConfig) Validate() error {
	switch {
	case c.StoreDir == "":
		return fmt.Errorf("%w: StoreDir is empty: name the directory of the embedded server", ErrConfig)
	case c.Port < -1 || c.Port > 65535:
		return fmt.Errorf("%w: Port is %d: it is 1 to 65535, 0 for 4222 or -1 for any free one", ErrConfig, c.Port)
	case c.MaxStoreBytes < 0:
		return fmt.Errorf("%w: MaxStoreBytes is negative", ErrConfig)
	}
	return nil
}

// Server is an embedded NATS server with JetStream. Whoever starts it closes it.
type Server struct {
	nats *server.Server
	lock *os.File // of the store; closing it frees the store
}

// storeLock is the file by which one server at a time has a store: two would
// write over each other's streams.
const storeLock = "starling.lock"

// lockStore takes the store for this process, or says that another has it. The
// kernel frees it when the process ends, however it ends.
func lockStore(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("%w: the embedded server does not start: its store: %w", ErrUnavailable, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, storeLock), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w: the embedded server does not start: its store: %w", ErrUnavailable, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		err = fmt.Errorf("%w: another embedded server has the store %s: stop it, or name another directory (--store)", ErrConfig, dir)
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// StartServer starts a server and returns when it takes connections. The
// server handles no signals. Errors are [ErrConfig], [ErrUnavailable] when it
// does not come up, and ctx's.
func StartServer(ctx context.Context, cfg ServerConfig) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	lock, err := lockStore(cfg.StoreDir)
	if err != nil {
		return nil, err
	}
	options := &server.Options{
		ServerName: "starling", Host: cmp.Or(cfg.Host, "127.0.0.1"), Port: cmp.Or(cfg.Port, server.DEFAULT_PORT),
		DontListen: cfg.InProcessOnly, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: cfg.StoreDir, JetStreamMaxStore: cmp.Or(cfg.MaxStoreBytes, -1), JetStreamMaxMemory: -1,
	}
	ns, err := server.NewServer(options)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: embedded server: %v", ErrConfig, err), lock.Close())
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	logger := &serverLog{log: log.With("component", "nats-server"), fatal: make(chan string, 1)}
	ns.SetLoggerV2(logger, false, false, false)
	s := &Server{nats: ns, lock: lock}
	ns.Start()
	if err := s.ready(ctx, logger.fatal); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// ready waits until the server listens and JetStream runs. What keeps it from
// starting reaches us only through its log.
func (s *Server) ready(ctx context.Context, fatal <-chan string) error {
	ctx, cancel := context.WithTimeout(ctx, serverStart)
	defer cancel()
	for {
		select {
		case text := <-fatal:
			if strings.Contains(text, "address already in use") {
				return fmt.Errorf("%w: the embedded server does not start: %s", ErrPortTaken, text)
			}
			return fmt.Errorf("%w: the embedded server does not start: %s", ErrUnavailable, text)
		default:
		}
		if s.nats.ReadyForConnections(10*time.Millisecond) && s.nats.JetStreamEnabled() {
			return nil
		}
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("%w: the embedded server does not start: %w", ErrUnavailable, err)
		}
	}
}

// ClientURL is where other processes connect; "" when the server listens
// nowhere.
func (s *Server) ClientURL() string {
	if s.nats.Addr() == nil {
		return ""
	}
	return s.nats.ClientURL()
}

// Close stops the server and waits until its files are closed. Idempotent.
// Close what is connected to it first.
func (s *Server) Close() {
	s.nats.Shutdown()
	s.nats.WaitForShutdown()
	_ = s.lock.Close() // nothing was written to it; a second Close is an error of no matter
}

// ConnectServer connects to an embedded server inside the process, without a
// socket. Of cfg it uses Namespace, Name, InboxPrefix, SeparateFrames,
// ConnectTimeout and Logger. Errors are those of [Connect].
func ConnectServer(ctx context.Context, s *Server, cfg Config) (*Bus, error) {
	cfg = Config{
		URL: DefaultURL, Namespace: cfg.Namespace, Name: cfg.Name, InboxPrefix: cfg.InboxPrefix,
		SeparateFrames: cfg.SeparateFrames, ConnectTimeout: cfg.ConnectTimeout, Logger: cfg.Logger,
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return connect(ctx, cfg.withDefaults(), nats.InProcessServer(s.nats))
}

// serverLog passes the server's log on. Its chatter is for debugging only.
type serverLog struct {
	log   *slog.Logger
	fatal chan string // the first text; the server would exit the process here
}

func (l *serverLog) Noticef(format string, v ...any) { l.log.Debug("nats", "text", line(format, v)) }

func (l *serverLog) Debugf(format string, v ...any) { l.log.Debug("nats", "text", line(format, v)) }

func (l *serverLog) Tracef(format string, v ...any) { l.log.Debug("nats", "text", line(format, v)) }
func (l *serverLog) Warnf(format string, v ...any)  { l.log.Warn("nats", "text", line(format, v)) }
func (l *serverLog) Errorf(format string, v ...any) { l.log.Error("nats", "text", line(format, v)) }

func (l *serverLog) Fatalf(format string, v ...any) {
	text := line(format, v)
	l.log.Error("nats", "text", text)
	select {
	case l.fatal <- text:
	default: // only the first is told
	}
}

func line(format string, v []any) string { return strings.TrimSpace(fmt.Sprintf(format, v...)) }
