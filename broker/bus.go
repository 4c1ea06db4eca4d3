package broker

import (
	"context"
	"log/slog"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"starling/protocol"
)

// Bus is a connection to the message bus of one fleet: NATS JetStream under one
// namespace. It is safe for concurrent use. Close it once.
type Bus struct {
	ns  protocol.Namespace
	log *slog.Logger

	// nc carries pulls, acks, the ledger and requests; frames has a connection
	// of its own so that a flood of frames cannot delay an ack. Without
	// Config.SeparateFrames both are the same.
	nc       *nats.Conn
	js       jetstream.JetStream
	frames   *nats.Conn
	framesJS jetstream.JetStream

	denials denials // of both connections
}

// Connect connects and makes one round trip before it returns.
func Connect(ctx context.Context, cfg Config) (*Bus, error) {
	panic("being written")
}

// Namespace is the fleet's.
func (b *Bus) Namespace() protocol.Namespace { return b.ns }

// Close flushes and closes both connections.
func (b *Bus) Close() error { panic("being written") }
