package main

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"starling/broker"
)

// TestASecondDevNamesBothPorts: one message, whichever of them is seen first.
func TestASecondDevNamesBothPorts(t *testing.T) {
	t.Parallel()
	server, err := broker.StartServer(t.Context(), broker.ServerConfig{StoreDir: t.TempDir(), Host: "127.0.0.1", Port: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	door, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = door.Close() })
	_, port, _ := strings.Cut(strings.TrimPrefix(server.ClientURL(), "nats://"), ":")
	got := starling(t, "", runArgs(t, "dev", "--store", t.TempDir(), "--port", port, "--door-listen", door.Addr().String())...)
	if got.status != exitFailure {
		t.Errorf("status = %d, want %d", got.status, exitFailure)
	}
	contains(t, "stderr", got.err, door.Addr().String(), fmt.Sprintf("127.0.0.1:%s", port), "does another `starling dev` run?", "--store")
}
