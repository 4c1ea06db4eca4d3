package broker

import (
	"context"
	"io"
	"iter"
	"time"

	"starling/protocol"
)

// topology.go
type InitConfig struct {
	Pools    []string      // at least one; empty: the default pool
	Replicas int           // 0: 1 for new streams, unchanged for existing ones
	AckWait  time.Duration // 0: 30 s for new consumers
	// limits follow
}

func (b *Bus) Init(ctx context.Context, cfg InitConfig) error  { panic("being written") }
func (b *Bus) PoolNames(ctx context.Context) ([]string, error) { panic("being written") }

// server.go
type ServerConfig struct {
	StoreDir string
	Host     string
	Port     int // 0: 4222; -1: any free
	// InProcessOnly opens no port at all.
	InProcessOnly bool
}
type Server struct{}

func StartServer(ctx context.Context, cfg ServerConfig) (*Server, error) { panic("being written") }
func (s *Server) ClientURL() string                                      { panic("being written") }
func (s *Server) Close() error                                           { panic("being written") }
func ConnectServer(ctx context.Context, srv *Server, cfg Config) (*Bus, error) {
	panic("being written")
}

// capsules.go
func (b *Bus) PushCapsule(ctx context.Context, m protocol.Manifest, module []byte) (protocol.CapsuleEntry, error) {
	panic("being written")
}

// ResolveCapsule: by name and version (dispatcher). ErrUnknownCapsule.
func (b *Bus) ResolveCapsule(ctx context.Context, name, version string) (protocol.CapsuleEntry, error) {
	panic("being written")
}

// PinnedCapsule: the worker's lookup of a job's capsule, with digest:
// ErrUnknownCapsule, ErrDigestMismatch when the index says another digest.
func (b *Bus) PinnedCapsule(ctx context.Context, ref protocol.CapsuleRef) (protocol.CapsuleEntry, error) {
	panic("being written")
}
func (b *Bus) Capsules(ctx context.Context) iter.Seq2[protocol.CapsuleEntry, error] {
	panic("being written")
}
func (b *Bus) RemoveCapsule(ctx context.Context, name, version string) error { panic("being written") }

// FetchCapsule: ErrCapsuleMissing, ErrDigestMismatch (after bytes were written).
func (b *Bus) FetchCapsule(ctx context.Context, digest protocol.Digest, w io.Writer) error {
	panic("being written")
}

// results.go
func (b *Bus) PutResult(ctx context.Context, d protocol.DelegationID, s protocol.SessionID, content []byte) (protocol.ResultObject, error) {
	panic("being written")
}
func (b *Bus) FetchResult(ctx context.Context, obj protocol.ResultObject, w io.Writer) error {
	panic("being written")
}

// registry.go
type Heartbeat struct{}

// Announce puts the entry, then renews it every 10 s; info is called from the
// heartbeat's goroutine and must be safe for concurrent use.
func (b *Bus) Announce(ctx context.Context, info func() protocol.WorkerInfo) (*Heartbeat, error) {
	panic("being written")
}
func (h *Heartbeat) Beat(ctx context.Context) error  { panic("being written") }
func (h *Heartbeat) Close(ctx context.Context) error { panic("being written") }
func (b *Bus) Workers(ctx context.Context) ([]protocol.WorkerInfo, error) {
	panic("being written")
}

// service.go
type ServiceConfig struct {
	WorkerID protocol.WorkerID
	Pool     string
	Version  string // semantic; else 0.0.0 is shown
	// Drain begins a drain and returns without waiting for its end.
	Drain func(context.Context) error
	Stats func() protocol.WorkerInfo
}
type Service struct{}

func (b *Bus) Serve(ctx context.Context, cfg ServiceConfig) (*Service, error) {
	panic("being written")
}
func (s *Service) LeavePool(ctx context.Context) error { panic("being written") }
func (s *Service) Close(ctx context.Context) error     { panic("being written") }
func (b *Bus) DrainWorker(ctx context.Context, id protocol.WorkerID) error {
	panic("being written")
}
func (b *Bus) WorkerStats(ctx context.Context, id protocol.WorkerID) (protocol.WorkerInfo, error) {
	panic("being written")
}

// PoolServed reports whether a live worker takes from the pool now.
func (b *Bus) PoolServed(ctx context.Context, pool string) (bool, error) { panic("being written") }

// listing.go: ordered by last write.
func (b *Bus) Delegations(ctx context.Context) iter.Seq2[protocol.Record, error] {
	panic("being written")
}
