package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"starling/broker"
	"starling/protocol"
)

// capsules is this host's copy of the capsule store: modules on disk by digest,
// manifests in memory for a while. It is safe for concurrent use.
type capsules struct {
	bus     *broker.Bus
	dir     string // <cache>/modules
	metrics *metrics

	flight singleflight.Group
	// download fetches a module under the cache's own life, not its first
	// asker's; close ends that life and waits.
	download  func(entry protocol.CapsuleEntry, path string) error
	stop      context.CancelFunc
	downloads sync.WaitGroup

	mu      sync.Mutex
	entries map[protocol.CapsuleRef]cachedEntry // guarded by mu
}

type cachedEntry struct {
	entry   protocol.CapsuleEntry
	expires time.Time
}

const (
	// manifestTTL is how long an index entry is believed. A version is never
	// pushed twice with another content, so only a removal can be missed.
	manifestTTL        = 30 * time.Second
	maxCachedManifests = 1024
)

func newCapsules(ctx context.Context, bus *broker.Bus, cacheDir string, m *metrics) (*capsules, error) {
	dir := filepath.Join(cacheDir, "modules")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("capsule cache: %w", err)
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	c := &capsules{bus: bus, dir: dir, metrics: m, stop: stop, entries: make(map[protocol.CapsuleRef]cachedEntry)}
	c.download = func(entry protocol.CapsuleEntry, path string) error { return c.fetch(life, entry, path) }
	return c, nil
}

// close ends the downloads under way and waits for them.
func (c *capsules) close() {
	c.stop()
	c.downloads.Wait()
}

// capsule is one that can be run.
type capsule struct {
	protocol.CapsuleEntry
	path string // of the module on this host
}

// find resolves a job's capsule and makes sure that its module is on this host.
// A capsule that cannot be had is a refusal; other errors are the bus's or the
// disk's.
func (c *capsules) find(ctx context.Context, ref protocol.CapsuleRef) (capsule, error) {
	entry, err := c.entry(ctx, ref)
	if err != nil {
		return capsule{}, refuseUnknown(err)
	}
	found := capsule{entry, filepath.Join(c.dir, entry.Digest.Hex()+".wasm")}
	if _, err := os.Stat(found.path); err == nil {
		c.metrics.cache.WithLabelValues("hit").Inc()
		return found, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return capsule{}, fmt.Errorf("capsule cache: %w", err)
	}
	c.metrics.cache.WithLabelValues("miss").Inc()
	return found, c.get(ctx, found)
}

// get downloads a capsule's module to its place, whatever is there.
func (c *capsules) get(ctx context.Context, wanted capsule) error {
	done := make(chan error, 1) // the asker may be gone
	c.downloads.Go(func() {
		_, err, _ := c.flight.Do(string(wanted.Digest), func() (any, error) {
			return nil, c.download(wanted.CapsuleEntry, wanted.path)
		})
		done <- err
	})
	select {
	case err := <-done:
		return refuseUnknown(err)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// refuseUnknown turns what no retry can mend into a refusal.
func refuseUnknown(err error) error {
	if errors.Is(err, broker.ErrUnknownCapsule) || errors.Is(err, broker.ErrCapsuleMissing) ||
		errors.Is(err, broker.ErrDigestMismatch) || errors.Is(err, protocol.ErrCapsuleEntry) {
		return &refusal{err.Error()}
	}
	return err
}

func (c *capsules) entry(ctx context.Context, ref protocol.CapsuleRef) (protocol.CapsuleEntry, error) {
	c.mu.Lock()
	cached, ok := c.entries[ref]
	c.mu.Unlock()
	if ok && time.Now().Before(cached.expires) {
		return cached.entry, nil
	}
	entry, err := c.bus.PinnedCapsule(ctx, ref)
	if err != nil {
		return protocol.CapsuleEntry{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.entries) >= maxCachedManifests {
		clear(c.entries)
	}
	c.entries[ref] = cachedEntry{entry, time.Now().Add(manifestTTL)}
	return entry, nil
}

// fetchTimeout bounds one download.
const fetchTimeout = 5 * time.Minute

// fetch downloads a module beside its place and renames it, so that what is in
// the cache is whole.
func (c *capsules) fetch(ctx context.Context, entry protocol.CapsuleEntry, path string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	if err := os.MkdirAll(c.dir, 0o700); err != nil { // somebody may have removed it
		return fmt.Errorf("capsule cache: %w", err)
	}
	f, err := os.CreateTemp(c.dir, ".fetch-*")
	if err != nil {
		return fmt.Errorf("capsule cache: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	err = c.bus.FetchCapsule(ctx, entry.Digest, f)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("fetch capsule %s@%s: %w", entry.Manifest.Name, entry.Manifest.Version, err)
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("capsule cache: %w", err)
	}
	return nil
}
