package worker_test

import (
	"os"
	"path/filepath"
	"testing"

	"starling/protocol"
	"starling/testenv"
)

// TestDamagedModule fetches a capsule again whose copy on this host is not what
// was pushed: the parent must not hear of a fault of this host's disk.
func TestDamagedModule(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	module := guest(t, say("whole "+string(protocol.NewTaskID()))) // nobody has compiled it before
	capsule := f.push(t, "damaged", module)
	t.Cleanup(func() {
		compiled, _ := filepath.Glob(filepath.Join(testenv.CompiledCache(t), "compiled", capsule.Digest.Hex()+"*"))
		for _, path := range compiled {
			_ = os.Remove(path)
		}
	})
	m := f.newMember(t, f.server.URL(), nil)
	path := filepath.Join(m.cfg.CacheDir, "modules", capsule.Digest.Hex()+".wasm")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, module[:len(module)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	m.start(t)
	rec, _ := f.run(t, f.job(capsule, "x"))
	if rec.Status != protocol.StatusOK || rec.Returned != 0 {
		t.Errorf("status = %s, returned %d, want ok at once: %s", rec.Status, rec.Returned, rec.Outcome.Detail)
	}
	if got, err := os.ReadFile(path); err != nil || protocol.DigestOf(got) != capsule.Digest {
		t.Errorf("the damaged copy is still there: %v", err)
	}
}
