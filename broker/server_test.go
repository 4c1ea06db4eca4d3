package broker_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

func TestAnEmbeddedServerServesInsideAndOutside(t *testing.T) {
	t.Parallel()
	s, err := broker.StartServer(t.Context(), broker.ServerConfig{StoreDir: testenv.StoreDir(t), Port: -1})
	if err != nil {
		t.Fatalf("StartServer() = %v", err)
	}
	defer s.Close()
	inside, err := broker.ConnectServer(t.Context(), s, broker.Config{SeparateFrames: true})
	if err != nil {
		t.Fatalf("ConnectServer() = %v", err)
	}
	defer inside.Close()
	if err := inside.Init(t.Context(), broker.InitConfig{}); err != nil {
		t.Fatalf("Init() = %v", err)
	}
	outside := connected(t, s.ClientURL())
	if pools, err := outside.PoolNames(t.Context()); err != nil || len(pools) != 1 {
		t.Errorf("PoolNames() = %v, %v", pools, err)
	}
}

func TestAnEmbeddedServerKeepsWhatItStored(t *testing.T) {
	t.Parallel()
	dir := testenv.StoreDir(t)
	for i := range 2 {
		s, err := broker.StartServer(t.Context(), broker.ServerConfig{StoreDir: dir, InProcessOnly: true})
		if err != nil {
			t.Fatalf("StartServer() = %v", err)
		}
		if url := s.ClientURL(); url != "" {
			t.Errorf("ClientURL() = %q, want none", url)
		}
		b, err := broker.ConnectServer(t.Context(), s, broker.Config{})
		if err != nil {
			t.Fatalf("ConnectServer() = %v", err)
		}
		if err := b.Init(t.Context(), broker.InitConfig{}); err != nil {
			t.Fatalf("Init() = %v", err)
		}
		if i == 0 {
			if _, err := b.PushCapsule(t.Context(), protocol.DefaultManifest("a", "1"), []byte("x")); err != nil {
				t.Fatal(err)
			}
		} else if _, err := b.ResolveCapsule(t.Context(), "a", "1"); err != nil {
			t.Errorf("ResolveCapsule() after a restart = %v", err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		s.Close()
		s.Close() // idempotent
	}
}

func TestAnEmbeddedServerThatCannotStartSaysWhy(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	started := time.Now()
	_, err = broker.StartServer(t.Context(), broker.ServerConfig{StoreDir: testenv.StoreDir(t), Port: port})
	wantError(t, "a port that is taken", err, broker.ErrPortTaken, "address already in use")
	_, err = broker.StartServer(t.Context(), broker.ServerConfig{StoreDir: "/proc/nowhere", Port: -1})
	wantError(t, "a store that cannot be written", err, broker.ErrUnavailable, "/proc/nowhere")
	if took := time.Since(started); took > 10*time.Second {
		t.Errorf("it took %s to say so", took)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s, err := broker.StartServer(ctx, broker.ServerConfig{StoreDir: testenv.StoreDir(t), Port: -1}); err == nil {
		s.Close() // it was quicker
	}
	for text, cfg := range map[string]broker.ServerConfig{
		"StoreDir": {}, "Port": {StoreDir: "x", Port: 65536}, "MaxStoreBytes": {StoreDir: "x", MaxStoreBytes: -1},
	} {
		_, err := broker.StartServer(t.Context(), cfg)
		wantError(t, "StartServer()", err, broker.ErrConfig, text)
	}
}

func TestAnEmbeddedServerIsQuiet(t *testing.T) {
	t.Parallel()
	var logged bytes.Buffer
	s, err := broker.StartServer(t.Context(), broker.ServerConfig{
		StoreDir: testenv.StoreDir(t), Port: -1, Logger: slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelInfo})),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if strings.Contains(logged.String(), "INFO") || strings.Contains(logged.String(), "ERROR") {
		t.Errorf("it logged:\n%s", logged.String())
	}
}

// TestTwoServersDoNotShareAStore would lose what either of them stored.
func TestTwoServersDoNotShareAStore(t *testing.T) {
	t.Parallel()
	cfg := broker.ServerConfig{StoreDir: testenv.StoreDir(t), InProcessOnly: true}
	first, err := broker.StartServer(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	_, err = broker.StartServer(t.Context(), cfg)
	wantError(t, "a second server", err, broker.ErrConfig, cfg.StoreDir, "another embedded server has the store")
	first.Close()
	second, err := broker.StartServer(t.Context(), cfg)
	if err != nil {
		t.Fatalf("after the first was closed: %v", err)
	}
	second.Close()
	second.Close()
}
