package completion_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"starling/completion"
	"starling/protocol"
	"starling/testenv"
)

func TestNoListener(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	wantError(t, deliver(t, once(t), "http://user:s3cret@"+addr+"/t0ken?key=s3cret"), "failed to connect to "+addr+": connection refused")
}

func TestRetryIsOneAndLoggedOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	const backoff = 30 * time.Millisecond
	cfg := completion.Config{Backoff: backoff, Logger: slog.New(slog.NewJSONHandler(&log, nil))}
	door := testenv.Door(t, testenv.Refuse(-32000, "first"), testenv.Refuse(-32000, "second"))
	wantError(t, deliver(t, newBridge(t, cfg), door.URL()), "second")
	posts := door.Posts()
	if len(posts) != 2 {
		t.Fatalf("the door got %d posts, want 2", len(posts))
	}
	if wait := posts[1].At.Sub(posts[0].At); wait < backoff {
		t.Errorf("the second post came after %s, want at least %s", wait, backoff)
	}
	if posts[0].MessageID != posts[1].MessageID || posts[0].Text != posts[1].Text {
		t.Errorf("the posts say %s %q and %s %q, want one id and one text", posts[0].MessageID, posts[0].Text, posts[1].MessageID, posts[1].Text)
	}
	var line struct {
		Level        string
		DelegationID protocol.DelegationID `json:"delegation_id"`
		Error        string
	}
	if err := json.Unmarshal(log.Bytes(), &line); err != nil || line.Level != "WARN" || line.DelegationID != "dlg_1" || line.Error != "first" {
		t.Errorf("the log has %s, %v, want one line, a warning of the first refusal", log.String(), err)
	}
}

func TestRetryDelivers(t *testing.T) {
	t.Parallel()
	door := testenv.Door(t, testenv.Drop(), testenv.Accept())
	if err := deliver(t, newBridge(t, completion.Config{Backoff: time.Millisecond}), door.URL()); err != nil {
		t.Errorf("Deliver = %v, want the second try to deliver", err)
	}
}

// TestMoreTries: more tries, with backoff, are an operator's setting; the log
// still has one line.
func TestMoreTries(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	cfg := completion.Config{Tries: 4, Backoff: 10 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	door := testenv.Door(t, testenv.Reject())
	wantError(t, deliver(t, newBridge(t, cfg), door.URL()), rejected)
	posts := door.Posts()
	if len(posts) != 4 || strings.Count(log.String(), "\n") != 1 {
		t.Fatalf("%d posts and the log %q, want 4 and one line", len(posts), log.String())
	}
	for i, least := range []time.Duration{10, 20, 40} {
		if wait := posts[i+1].At.Sub(posts[i].At); wait < least*time.Millisecond {
			t.Errorf("wait %d is %s, want at least %d ms", i, wait, least)
		}
	}
}

func TestCancelEndsTheWait(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	door := testenv.Door(t, func(w http.ResponseWriter, r *http.Request, p testenv.Post) {
		testenv.Refuse(-32000, "first")(w, r, p)
		cancel()
	})
	b := newBridge(t, completion.Config{Backoff: time.Hour})
	err := b.Deliver(ctx, handle("dlg_1", door.URL()), outcome("dlg_1"), "")
	// The answer and the cancel race for the first try.
	if err == nil || err.Error() != "first" && !errors.Is(err, context.Canceled) {
		t.Errorf("Deliver = %v, want the first refusal or the cancel", err)
	}
}

func TestHangingDoor(t *testing.T) {
	t.Parallel()
	b := newBridge(t, completion.Config{Tries: 1, Timeout: 50 * time.Millisecond})
	wantError(t, deliver(t, b, testenv.Door(t, testenv.Hang(nil)).URL()), "the door did not answer within 50ms")

	// One that listens and never accepts, or never says hello.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for _, scheme := range []string{"http", "https"} {
		if err := deliver(t, b, scheme+"://"+l.Addr().String()); err == nil || !strings.Contains(err.Error(), "within 50ms") && !strings.Contains(err.Error(), "timeout") {
			t.Errorf("%s: Deliver = %v, want it to end after 50 ms", scheme, err)
		}
	}

	// One that sends its answer's body without an end, slowly.
	slow := testenv.Door(t, func(w http.ResponseWriter, r *http.Request, _ testenv.Post) {
		_, _ = w.Write([]byte(`{`))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	if err := deliver(t, b, slow.URL()); err == nil || !strings.HasSuffix(err.Error(), "the door did not answer within 50ms") {
		t.Errorf("Deliver = %v, want it to end after 50 ms", err) // before the first byte where the machine is busy
	}
}

func TestAnswerBound(t *testing.T) {
	t.Parallel()
	const bound = 1 << 20
	b := once(t)
	pad := func(n int) string { return `{"result":{}` + strings.Repeat(" ", n-len(`{"result":{}}`)) + `}` }
	if err := deliver(t, b, testenv.Door(t, testenv.Raw(200, pad(bound))).URL()); err != nil {
		t.Errorf("an answer of 1 MiB: Deliver = %v, want nil", err)
	}
	const over = "the door's answer is over 1048576 bytes"
	wantError(t, deliver(t, b, testenv.Door(t, testenv.Raw(200, pad(bound+1))).URL()), over)
	wantError(t, deliver(t, b, testenv.Door(t, testenv.EndlessBody()).URL()), over)
}

func TestBrokenAnswers(t *testing.T) {
	t.Parallel()
	reset := func(w http.ResponseWriter, _ *http.Request, _ testenv.Post) {
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}
	}
	says := func(raw string) testenv.Answer {
		return func(w http.ResponseWriter, _ *http.Request, _ testenv.Post) {
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_, _ = conn.Write([]byte(raw))
				_ = conn.Close()
			}
		}
	}
	b := once(t)
	for rule, tt := range map[string]struct {
		answer testenv.Answer
		want   string
	}{
		"no answer":        {testenv.Drop(), "EOF"},
		"half a body":      {testenv.HalfBody(), "the door's answer broke off: unexpected EOF"},
		"connection reset": {reset, "connection reset by peer"},
		"no HTTP":          {says("SSH-2.0-x\r\n\r\n"), "malformed HTTP"},
		"endless headers":  {says("HTTP/1.1 200 OK\r\n" + strings.Repeat("X: "+strings.Repeat("x", 1000)+"\r\n", 200)), "exceeded"},
	} {
		if err := deliver(t, b, testenv.Door(t, tt.answer).URL()); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: Deliver = %v, want an error that says %s", rule, err, tt.want)
		}
	}
}

// TestRuleIsCheckedWhereItIsDialled: on addresses that a name resolves to, too.
func TestRuleIsCheckedWhereItIsDialled(t *testing.T) {
	t.Parallel()
	door := testenv.Door(t)
	_, port, err := net.SplitHostPort(door.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	local := completion.AddressRule{Deny: prefixes(t, "127.0.0.0/8,::1")}
	far := completion.AddressRule{Allow: prefixes(t, "10.0.0.0/8")}
	for _, tt := range []struct {
		rule completion.AddressRule
		host string
	}{
		{local, "127.0.0.1"},
		{local, "localhost"},
		{local, "[::ffff:127.0.0.1]"},
		{far, "127.0.0.1"},
		{far, "localhost"},
		{completion.AddressRule{}, "169.254.169.254"},
		{completion.AddressRule{}, "[::ffff:169.254.169.254]"},
		{completion.AddressRule{}, "[64:ff9b::a9fe:a9fe]"},
		{completion.AddressRule{}, "[2002:a9fe:a9fe::1]"},
		{completion.AddressRule{}, "[fe80::1]"},
		{completion.AddressRule{}, "224.0.0.1"},
		{completion.AddressRule{}, "0.0.0.0"},
		{completion.AddressRule{}, "[::]"},
	} {
		// Another try would not end within the test's patience, and there is none.
		b := newBridge(t, completion.Config{Rule: tt.rule, Backoff: time.Hour})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err := b.Deliver(ctx, handle("dlg_1", "http://"+tt.host+":"+port), outcome("dlg_1"), "")
		if ctx.Err() != nil {
			t.Errorf("%s: Deliver waited for another try", tt.host)
		}
		cancel()
		if !errors.Is(err, completion.ErrAddress) || !strings.Contains(err.Error(), "failed to connect") {
			t.Errorf("%s: Deliver = %v, want ErrAddress and failed to connect", tt.host, err)
		}
	}
	if n := len(door.Posts()); n != 0 {
		t.Errorf("the door got %d posts through a rule that denies it", n)
	}
	allowed := completion.AddressRule{Allow: prefixes(t, "127.0.0.1,::1")}
	if err := deliver(t, newBridge(t, completion.Config{Rule: allowed, Tries: 1}), door.URL()); err != nil {
		t.Errorf("Deliver to an allowed door = %v", err)
	}
}
