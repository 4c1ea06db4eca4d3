package sandbox_test

import (
	"context"
	"sync/atomic"
	"testing"

	"starling/protocol"
	"starling/sandbox"
	"starling/testenv"
)

// TestCompilingIsToldOnceAndOnlyWhenItIs: what is in the cache is only checked.
func TestCompilingIsToldOnceAndOnlyWhenItIs(t *testing.T) {
	t.Parallel()
	type preparer interface {
		Prepare(ctx context.Context, module string, digest protocol.Digest) error
	}
	module := spec(t, testenv.WAT(t, "noop"))
	for name, open := range map[string]func(sandbox.Config) preparer{
		"process": func(c sandbox.Config) preparer {
			return newSupervisor(t, func(cfg *sandbox.ProcessConfig) { cfg.Config = c })
		},
		"in process": func(c sandbox.Config) preparer { return newEngineWith(t, c) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var begun, over atomic.Int64
			cfg := sandbox.Config{CacheDir: t.TempDir(), Compiling: func(digest protocol.Digest) func() {
				if begun.Add(1); digest != module.Digest {
					t.Errorf("compiling %s, want %s", digest, module.Digest)
				}
				return func() { over.Add(1) }
			}}
			first := open(cfg)
			for n, p := range []preparer{first, first, open(cfg)} { // from memory, then from the disk
				if err := p.Prepare(t.Context(), module.Module, module.Digest); err != nil {
					t.Fatal(err)
				}
				if begun.Load() != 1 || over.Load() != 1 {
					t.Errorf("after %d: %d begun and %d over, want one compilation", n+1, begun.Load(), over.Load())
				}
			}
		})
	}
}
