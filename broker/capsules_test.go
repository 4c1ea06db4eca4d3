package broker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

func module(seed uint64, size int) []byte {
	b := make([]byte, size)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(b) // never fails
	return b
}

func capsules(t *testing.T, b *broker.Bus) []string {
	t.Helper()
	var names []string
	for entry, err := range b.Capsules(t.Context()) {
		if err != nil {
			t.Fatalf("Capsules() = %v", err)
		}
		names = append(names, entry.Manifest.Name+"@"+entry.Manifest.Version)
	}
	slices.Sort(names)
	return names
}

func TestAPushedCapsuleIsResolvedAndFetched(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	pushAndFetch(t, b, s.URL())
}

func TestAPushedCapsuleIsResolvedAndFetchedAtThreeReplicas(t *testing.T) {
	t.Parallel()
	b, c := onCluster(t)
	pushAndFetch(t, b, c.URL())
}

func pushAndFetch(t *testing.T, b *broker.Bus, url string) {
	for i, size := range []int{1, 128 << 10, 128<<10 + 1, 3<<20 + 17} {
		m := protocol.DefaultManifest("summarizer", fmt.Sprintf("1.%d_x+y", i))
		m.Description = "sums up"
		code := module(uint64(size), size)
		entry, err := b.PushCapsule(t.Context(), m, code)
		if err != nil {
			t.Fatalf("PushCapsule(%d bytes) = %v", size, err)
		}
		if entry.Digest != protocol.DigestOf(code) || entry.Size != int64(size) {
			t.Errorf("PushCapsule() = %+v", entry)
		}
		for what, resolve := range map[string]func() (protocol.CapsuleEntry, error){
			"ResolveCapsule": func() (protocol.CapsuleEntry, error) { return b.ResolveCapsule(t.Context(), m.Name, m.Version) },
			"PinnedCapsule": func() (protocol.CapsuleEntry, error) {
				return b.PinnedCapsule(t.Context(), protocol.CapsuleRef{Name: m.Name, Version: m.Version, Digest: entry.Digest})
			},
			"a second push": func() (protocol.CapsuleEntry, error) {
				pushed, err := b.PushCapsule(t.Context(), m, code)
				if !pushed.Existing || pushed.Mended {
					t.Errorf("a second push = %+v, want an existing one", pushed)
				}
				return pushed.CapsuleEntry, err
			},
		} {
			got, err := resolve()
			if err != nil {
				t.Fatalf("%s = %v", what, err)
			}
			if diff := cmp.Diff(fmt.Sprintf("%+v", entry.CapsuleEntry), fmt.Sprintf("%+v", got)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		var got bytes.Buffer
		if err := b.FetchCapsule(t.Context(), entry.Digest, &got); err != nil {
			t.Fatalf("FetchCapsule(%d bytes) = %v", size, err)
		}
		if !bytes.Equal(got.Bytes(), code) {
			t.Errorf("FetchCapsule(%d bytes) gave other bytes", size)
		}
		// The client's own call reads the same object, once the replica that it
		// asks has it: unlike FetchCapsule it takes a replica that is behind at
		// its word.
		store, err := testenv.JetStream(t, url).ObjectStore(t.Context(), "starling-capsules")
		if err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, 10*time.Second, func() error {
			theirs, err := store.GetBytes(t.Context(), entry.Digest.Object())
			if err == nil && !bytes.Equal(theirs, code) {
				err = fmt.Errorf("other bytes, %d of them", len(theirs))
			}
			if err != nil {
				return fmt.Errorf("the client reads the object of %d bytes: %w", size, err)
			}
			return nil
		})
	}
}

func TestAVersionIsPushedOnce(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	m := protocol.DefaultManifest("a", "1")
	if _, err := b.PushCapsule(t.Context(), m, []byte("one")); err != nil {
		t.Fatal(err)
	}
	_, err := b.PushCapsule(t.Context(), m, []byte("two"))
	wantError(t, "another module", err, broker.ErrCapsuleExists, "a@1", "another version")
	changed := m
	changed.Capabilities.Limits.DeadlineSeconds++
	_, err = b.PushCapsule(t.Context(), changed, []byte("one"))
	wantError(t, "another manifest", err, broker.ErrCapsuleExists, "another manifest", "another version")
	if _, err := b.PushCapsule(t.Context(), protocol.DefaultManifest("a", "2"), []byte("one")); err != nil {
		t.Errorf("the same module under another version = %v", err)
	}
	_, err = b.PushCapsule(t.Context(), protocol.Manifest{}, []byte("x"))
	wantError(t, "no manifest", err, protocol.ErrManifest)
	_, err = b.PushCapsule(t.Context(), protocol.DefaultManifest("b", "1"), nil)
	wantError(t, "an empty module", err, protocol.ErrManifest, "empty module")
	if got := capsules(t, b); !slices.Equal(got, []string{"a@1", "a@2"}) {
		t.Errorf("Capsules() = %v", got)
	}
}

func TestPushesAtOnceAreOneCapsule(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	pushAtOnce(t, b)
}

func TestPushesAtOnceAreOneCapsuleAtThreeReplicas(t *testing.T) {
	t.Parallel()
	b, _ := onCluster(t)
	pushAtOnce(t, b)
}

func pushAtOnce(t *testing.T, b *broker.Bus) {
	for round := range 4 {
		m := protocol.DefaultManifest("a", fmt.Sprint(round))
		codes := [2][]byte{module(uint64(round), 300<<10), module(uint64(round)+100, 300<<10)}
		errs := make([]error, 8)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() { _, errs[i] = b.PushCapsule(t.Context(), m, codes[i%2]) })
		}
		wg.Wait()
		entry, err := b.ResolveCapsule(t.Context(), "a", m.Version)
		if err != nil {
			t.Fatal(err)
		}
		winner := 0
		if entry.Digest == protocol.DigestOf(codes[1]) {
			winner = 1
		}
		for i, err := range errs {
			if i%2 == winner && err != nil {
				t.Errorf("a push of the winning module = %v", err)
			}
			if i%2 != winner && !errors.Is(err, broker.ErrCapsuleExists) {
				t.Errorf("a push of the losing module = %v, want ErrCapsuleExists", err)
			}
		}
		if err := b.FetchCapsule(t.Context(), entry.Digest, io.Discard); err != nil {
			t.Errorf("FetchCapsule() = %v", err)
		}
	}
}

func TestUnknownCapsulesAreAnErrorAtOnce(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	started := time.Now()
	_, err := b.ResolveCapsule(t.Context(), "nope", "1.0")
	wantError(t, "ResolveCapsule()", err, broker.ErrUnknownCapsule, "nope@1.0", "push it")
	if took := time.Since(started); took > time.Second {
		t.Errorf("ResolveCapsule() took %s", took)
	}
	_, err = b.ResolveCapsule(t.Context(), "no.pe", "1 0")
	wantError(t, "a bad name", err, protocol.ErrName, "capsule.name", "capsule.version")
	err = b.RemoveCapsule(t.Context(), "nope", "1")
	wantError(t, "RemoveCapsule()", err, broker.ErrUnknownCapsule, "no nope@1 to remove", "`starling capsule ls`")
	if strings.Contains(err.Error(), "push") {
		t.Errorf("RemoveCapsule() = %v: nobody who removes wants to push", err)
	}
	_, err = b.PinnedCapsule(t.Context(), protocol.CapsuleRef{Name: "nope", Version: "1"})
	wantError(t, "PinnedCapsule()", err, broker.ErrUnknownCapsule)
}

// TestAnEntryThatCannotBeRead is no capsule, and can be removed and pushed again.
func TestAnEntryThatCannotBeRead(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	other, err := b.PushCapsule(t.Context(), protocol.DefaultManifest("b", "1"), []byte("one"))
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(other)
	if err != nil {
		t.Fatal(err)
	}
	index, err := testenv.JetStream(t, s.URL()).KeyValue(t.Context(), "starling-capsule-index")
	if err != nil {
		t.Fatal(err)
	}
	for value, says := range map[string]string{"{": "JSON", `{"digest":"none"}`: "digest", string(body): "stands b@1"} {
		if _, err := index.Put(t.Context(), protocol.CapsuleKey("a", "1"), []byte(value)); err != nil {
			t.Fatal(err)
		}
		_, err = b.ResolveCapsule(t.Context(), "a", "1")
		wantError(t, "ResolveCapsule()", err, protocol.ErrCapsuleEntry, "a@1", says, "starling capsule rm a@1")
		_, err = b.PinnedCapsule(t.Context(), protocol.CapsuleRef{Name: "a", Version: "1"})
		wantError(t, "PinnedCapsule()", err, protocol.ErrCapsuleEntry, "a@1", says)
		_, err = b.PushCapsule(t.Context(), protocol.DefaultManifest("a", "1"), []byte("one"))
		wantError(t, "PushCapsule()", err, protocol.ErrCapsuleEntry, "a@1", says, "starling capsule rm")
		if err := b.RemoveCapsule(t.Context(), "a", "1"); err != nil {
			t.Errorf("RemoveCapsule() = %v", err)
		}
		_, err = b.ResolveCapsule(t.Context(), "a", "1")
		wantError(t, "ResolveCapsule() after", err, broker.ErrUnknownCapsule)
	}
	if _, err := b.PushCapsule(t.Context(), protocol.DefaultManifest("a", "1"), []byte("one")); err != nil {
		t.Errorf("PushCapsule() = %v", err)
	}
	if err := b.FetchCapsule(t.Context(), other.Digest, io.Discard); err != nil {
		t.Errorf("FetchCapsule() of what b@1 needs = %v", err)
	}
}

func TestAJobOfAnotherDigestIsAMismatch(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	if _, err := b.PushCapsule(t.Context(), protocol.DefaultManifest("a", "1"), []byte("one")); err != nil {
		t.Fatal(err)
	}
	_, err := b.PinnedCapsule(t.Context(), protocol.CapsuleRef{Name: "a", Version: "1", Digest: protocol.DigestOf([]byte("two"))})
	wantError(t, "PinnedCapsule()", err, broker.ErrDigestMismatch, "a@1", "dispatch it again")
	if errors.Is(err, broker.ErrUnknownCapsule) {
		t.Errorf("PinnedCapsule() = %v is also ErrUnknownCapsule", err)
	}
}

func TestAWorkerWaitsForAnEntryThatIsNotThereYet(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	found := make(chan error, 1)
	go func() {
		_, err := b.PinnedCapsule(t.Context(), protocol.CapsuleRef{Name: "a", Version: "1", Digest: protocol.DigestOf([]byte("one"))})
		found <- err
	}()
	if _, err := b.PushCapsule(t.Context(), protocol.DefaultManifest("a", "1"), []byte("one")); err != nil {
		t.Fatal(err)
	}
	if err := <-found; err != nil {
		t.Errorf("PinnedCapsule() = %v", err)
	}
}

func TestRemoveCapsuleKeepsAModuleThatAnotherEntryUses(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	code := module(1, 300<<10)
	for _, version := range []string{"1", "2"} {
		if _, err := b.PushCapsule(t.Context(), protocol.DefaultManifest("a", version), code); err != nil {
			t.Fatal(err)
		}
	}
	digest := protocol.DigestOf(code)
	if err := b.RemoveCapsule(t.Context(), "a", "1"); err != nil {
		t.Fatalf("RemoveCapsule() = %v", err)
	}
	if err := b.FetchCapsule(t.Context(), digest, io.Discard); err != nil {
		t.Errorf("FetchCapsule() = %v", err)
	}
	if err := b.RemoveCapsule(t.Context(), "a", "2"); err != nil {
		t.Fatalf("RemoveCapsule() = %v", err)
	}
	wantError(t, "FetchCapsule()", b.FetchCapsule(t.Context(), digest, io.Discard), broker.ErrCapsuleMissing, string(digest), "push")
	if got := capsules(t, b); len(got) != 0 {
		t.Errorf("Capsules() = %v", got)
	}
	js := testenv.JetStream(t, s.URL())
	stream, err := js.Stream(t.Context(), "OBJ_starling-capsules")
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n != 1 {
		t.Errorf("the store holds %d messages, want the marker alone", n)
	}
	// And all of it once more, over the markers.
	if _, err := b.PushCapsule(t.Context(), protocol.DefaultManifest("a", "1"), code); err != nil {
		t.Fatalf("PushCapsule() after RemoveCapsule = %v", err)
	}
	var got bytes.Buffer
	if err := b.FetchCapsule(t.Context(), digest, &got); err != nil || !bytes.Equal(got.Bytes(), code) {
		t.Errorf("FetchCapsule() after all = %d bytes, %v", got.Len(), err)
	}
}

func TestAPushPutsBackAModuleThatIsMissing(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	entry, err := b.PushCapsule(t.Context(), protocol.DefaultManifest("a", "1"), []byte("one"))
	if err != nil {
		t.Fatal(err)
	}
	store, err := testenv.JetStream(t, s.URL()).ObjectStore(t.Context(), "starling-capsules")
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Delete(t.Context(), entry.Digest.Object()); err != nil {
		t.Fatal(err)
	}
	pushed, err := b.PushCapsule(t.Context(), protocol.DefaultManifest("a", "1"), []byte("one"))
	if err != nil || !pushed.Existing || !pushed.Mended {
		t.Fatalf("PushCapsule() = %+v, %v, want the entry that was there, mended", pushed, err)
	}
	if err := b.FetchCapsule(t.Context(), entry.Digest, io.Discard); err != nil {
		t.Errorf("FetchCapsule() = %v", err)
	}
}

// TestAPushPutsBackChunksThatWerePurged, all of them or one, and leaves nothing of the
// broken object behind. Of pushes at once one mends it and all succeed.
func TestAPushPutsBackChunksThatWerePurged(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	purgeAndPush(t, b, s.URL())
}

func TestAPushPutsBackChunksThatWerePurgedAtThreeReplicas(t *testing.T) {
	t.Parallel()
	b, c := onCluster(t)
	purgeAndPush(t, b, c.URL())
}

func purgeAndPush(t *testing.T, b *broker.Bus, url string) {
	const chunks = "$O.starling-capsules.C.>"
	m, code := protocol.DefaultManifest("a", "1"), module(1, 300<<10) // three chunks
	first, err := b.PushCapsule(t.Context(), m, code)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := testenv.JetStream(t, url).Stream(t.Context(), "OBJ_starling-capsules")
	if err != nil {
		t.Fatal(err)
	}
	purgeAll := func() error { return stream.Purge(t.Context(), jetstream.WithPurgeSubject(chunks)) }
	deleteOne := func() error {
		chunk, err := stream.GetLastMsgForSubject(t.Context(), chunks)
		if err != nil {
			return err
		}
		return stream.DeleteMsg(t.Context(), chunk.Sequence)
	}
	for _, c := range []struct {
		lose   func() error
		pushes int
	}{{purgeAll, 1}, {deleteOne, 1}, {deleteOne, 3}} {
		testenv.EventuallyTrue(t, 30*time.Second, "a module without its chunks is missing", func() bool { // a replica may be behind
			lost := c.lose()
			err := b.FetchCapsule(t.Context(), first.Digest, io.Discard)
			return lost == nil && errors.Is(err, broker.ErrCapsuleMissing)
		})
		wantError(t, "FetchCapsule()", b.FetchCapsule(t.Context(), first.Digest, io.Discard), broker.ErrCapsuleMissing, "push the capsule again")
		var mended atomic.Int64
		var pushing sync.WaitGroup
		for range c.pushes {
			pushing.Go(func() {
				pushed, err := b.PushCapsule(t.Context(), m, code)
				if err != nil || !pushed.Existing || pushed.PushedAt != first.PushedAt {
					t.Errorf("PushCapsule() = %+v, %v, want the first entry", pushed, err)
				}
				if pushed.Mended {
					mended.Add(1)
				}
			})
		}
		pushing.Wait()
		if n := mended.Load(); n != 1 {
			t.Errorf("%d of %d pushes mended the module, want 1", n, c.pushes)
		}
		var got bytes.Buffer
		if err := b.FetchCapsule(t.Context(), first.Digest, &got); err != nil || !bytes.Equal(got.Bytes(), code) {
			t.Errorf("FetchCapsule() after it = %d bytes, %v", got.Len(), err)
		}
		info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(chunks))
		if err != nil {
			t.Fatal(err)
		}
		if n := len(info.State.Subjects); n != 1 && c.pushes == 1 {
			t.Errorf("the store has chunks of %d objects, want those of the new one", n)
		}
	}
}

func TestTamperedModulesAreADigestMismatch(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	store, err := testenv.JetStream(t, s.URL()).ObjectStore(t.Context(), "starling-capsules")
	if err != nil {
		t.Fatal(err)
	}
	digest := protocol.DigestOf([]byte("good"))
	if _, err := store.Put(t.Context(), jetstream.ObjectMeta{Name: digest.Object()}, bytes.NewReader([]byte("evil"))); err != nil {
		t.Fatal(err)
	}
	wantError(t, "FetchCapsule()", b.FetchCapsule(t.Context(), digest, io.Discard), broker.ErrDigestMismatch, string(digest))
	_, err = b.PushCapsule(t.Context(), protocol.DefaultManifest("a", "1"), []byte("good"))
	wantError(t, "PushCapsule()", err, broker.ErrDigestMismatch, digest.Object())
	wantError(t, "a bad digest", b.FetchCapsule(t.Context(), "md5:1", io.Discard), protocol.ErrName)
}

func TestFetchCapsuleEndsWithItsWriterAndItsContext(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	entry, err := b.PushCapsule(t.Context(), protocol.DefaultManifest("a", "1"), module(1, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	full := errors.New("disk full")
	if err := b.FetchCapsule(t.Context(), entry.Digest, failing{full}); !errors.Is(err, full) {
		t.Errorf("FetchCapsule() into a full disk = %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.FetchCapsule(ctx, entry.Digest, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("FetchCapsule() without time = %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestObjectsSurviveLostAnswers(t *testing.T) {
	t.Parallel()
	_, s := initialized(t)
	p := testenv.Proxy(t, s.URL())
	b := connected(t, p.URL())
	var mu sync.Mutex
	n := 0
	p.DropAnswers(func(_ string, payload []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		n++
		return n%7 == 0
	})
	code := module(5, 1<<20)
	entry, err := b.PushCapsule(t.Context(), protocol.DefaultManifest("a", "1"), code)
	if err != nil {
		t.Fatalf("PushCapsule() with lost answers = %v", err)
	}
	var got bytes.Buffer
	if err := b.FetchCapsule(t.Context(), entry.Digest, &got); err != nil || !bytes.Equal(got.Bytes(), code) {
		t.Errorf("FetchCapsule() with lost answers = %d bytes, %v", got.Len(), err)
	}
	if p.Dropped() == 0 {
		t.Error("nothing was lost")
	}
}
