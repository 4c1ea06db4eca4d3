package broker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// connected is a bus to s as the given user, closed with the test.
func connected(t *testing.T, url string, change ...func(*broker.Config)) *broker.Bus {
	t.Helper()
	cfg := broker.Config{URL: url, ContextDir: t.TempDir()}
	for _, c := range change {
		c(&cfg)
	}
	b, err := broker.Connect(t.Context(), cfg)
	if err != nil {
		t.Fatalf("Connect(%s) = %v", cfg, err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	return b
}

// initialized is a bus on a server of its own whose topology stands.
func initialized(t *testing.T, options ...testenv.Option) (*broker.Bus, *testenv.Server) {
	t.Helper()
	s := testenv.NATS(t, options...)
	b := connected(t, s.URL())
	if err := b.Init(t.Context(), broker.InitConfig{}); err != nil {
		t.Fatalf("Init() = %v", err)
	}
	return b, s
}

// as makes a connection that of a user.
func as(u testenv.User) func(*broker.Config) {
	return func(c *broker.Config) {
		c.User, c.Password, c.InboxPrefix = u.Name, broker.Secret(u.Password), u.InboxPrefix()
	}
}

func wantError(t *testing.T, what string, err, class error, texts ...string) {
	t.Helper()
	if !errors.Is(err, class) {
		t.Fatalf("%s = %v, want %v", what, err, class)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%s = %q, want a text with %q", what, err, text)
		}
	}
}

func TestConnectMakesOneRoundTripAndCloseIsIdempotent(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	for _, separate := range []bool{false, true} {
		b, err := broker.Connect(t.Context(), broker.Config{URL: s.URL(), Namespace: "fleet-1", SeparateFrames: separate})
		if err != nil {
			t.Fatalf("Connect() = %v", err)
		}
		if b.Namespace() != "fleet-1" || !b.Connected() {
			t.Errorf("Namespace() = %s, Connected() = %t", b.Namespace(), b.Connected())
		}
		want := 1
		if separate {
			want = 2
		}
		if n := s.NATS().NumClients(); n != want {
			t.Errorf("SeparateFrames %t makes %d connections, want %d", separate, n, want)
		}
		for range 2 {
			if err := b.Close(); err != nil {
				t.Errorf("Close() = %v", err)
			}
		}
		if _, err := b.PoolServed(t.Context(), "default"); !errors.Is(err, broker.ErrClosed) {
			t.Errorf("PoolServed() after Close = %v, want ErrClosed", err)
		}
		testenv.EventuallyTrue(t, 5*time.Second, "no clients", func() bool { return s.NATS().NumClients() == 0 })
	}
}

func TestConnectErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	user := testenv.User{Name: "ann", Password: "s3cret-one"}
	secured := testenv.NATS(t, testenv.WithUsers(user))
	bare := testenv.NATS(t, testenv.WithoutJetStream())
	nobody := freeAddress(t)
	dir := t.TempDir()
	for name, test := range map[string]struct {
		cfg   broker.Config
		class error
		text  string
	}{
		"no server":            {broker.Config{URL: "nats://ann:s3cret-one@" + nobody}, broker.ErrNoServer, "start one there"},
		"wrong password":       {broker.Config{URL: secured.URL(), User: "ann", Password: "s3cret-two"}, broker.ErrAuth, "check the user ann"},
		"no password":          {broker.Config{URL: secured.URL()}, broker.ErrAuth, "none are set"},
		"JetStream is off":     {broker.Config{URL: bare.URL()}, broker.ErrNoJetStream, "-js"},
		"unknown context":      {broker.Config{Context: "nope"}, broker.ErrConfig, "nats context ls"},
		"creds that are none":  {broker.Config{URL: bare.URL(), CredsFile: write(t, dir, "c", "s3cret")}, broker.ErrConfig, "no user credentials"},
		"NKey that is none":    {broker.Config{URL: bare.URL(), NKeyFile: write(t, dir, "n", "s3cret-three")}, broker.ErrConfig, "NKey seed"},
		"TLS without a server": {broker.Config{URL: "tls://" + strings.TrimPrefix(bare.URL(), "nats://")}, broker.ErrConfig, "TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.cfg.ContextDir = t.TempDir()
			b, err := broker.Connect(t.Context(), test.cfg)
			if err == nil {
				b.Close()
			}
			wantError(t, "Connect()", err, test.class, test.text)
			if strings.Contains(fmt.Sprint(err, test.cfg), "s3cret") {
				t.Errorf("the error or the configuration shows a secret: %v %v", err, test.cfg)
			}
		})
	}
}

func TestConnectEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	p := testenv.Proxy(t, s.URL())
	p.Stall(testenv.Both)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, errors.New("enough"))
	defer cancel()
	started := time.Now()
	_, err := broker.Connect(ctx, broker.Config{URL: p.URL()})
	wantError(t, "Connect()", err, broker.ErrNoServer, "enough")
	if took := time.Since(started); took > 3*time.Second {
		t.Errorf("Connect() took %s", took)
	}
}

func TestARefusedInboxIsToldAtConnect(t *testing.T) {
	t.Parallel()
	u := testenv.User{Name: "w", Password: "w", Publish: []string{">"}, Subscribe: []string{"x"}}
	s := testenv.NATS(t, testenv.WithUsers(u))
	_, err := broker.Connect(t.Context(), broker.Config{URL: s.URL(), User: "w", Password: "w"})
	wantError(t, "Connect()", err, broker.ErrDenied, "InboxPrefix")
	connected(t, s.URL(), as(u)) // with the prefix it is fine
}

func TestARefusedPublishIsToldAtOnce(t *testing.T) {
	t.Parallel()
	u := testenv.User{Name: "w", Password: "w", Publish: []string{"x"}, Subscribe: []string{"x"}}
	s := testenv.NATS(t, testenv.WithUsers(u, testenv.OperatorUser()))
	if err := connected(t, s.URL(), as(testenv.OperatorUser())).Init(t.Context(), broker.InitConfig{}); err != nil {
		t.Fatal(err)
	}
	b := connected(t, s.URL(), as(u))
	for what, call := range map[string]func() error{
		"PoolServed":     func() error { _, err := b.PoolServed(t.Context(), "default"); return err },
		"PoolNames":      func() error { _, err := b.PoolNames(t.Context()); return err },
		"Workers":        func() error { _, err := b.Workers(t.Context()); return err },
		"ResolveCapsule": func() error { _, err := b.ResolveCapsule(t.Context(), "a", "1"); return err },
		"Init":           func() error { return b.Init(t.Context(), broker.InitConfig{Pools: []string{"q"}}) },
		"Serve": func() error {
			_, err := b.Serve(t.Context(), broker.ServiceConfig{WorkerID: "wrk_1", Pool: "default"})
			return err
		},
		"Announce": func() error {
			_, err := b.Announce(t.Context(), func() protocol.WorkerInfo { return protocol.WorkerInfo{WorkerID: "wrk_1"} })
			return err
		},
		"PutResult": func() error { _, err := b.PutResult(t.Context(), "dlg_1", "ses_1", []byte("x")); return err },
	} {
		started := time.Now()
		wantError(t, what, call(), broker.ErrDenied, "docs/configuration.md")
		if took := time.Since(started); took > 2*time.Second {
			t.Errorf("%s took %s to be denied", what, took)
		}
	}
}

func TestConfigValidateJoinsAllProblems(t *testing.T) {
	t.Parallel()
	err := broker.Config{
		URL: "http://x, nats://, nats://u:s3cret@h:port", Namespace: "Big", CredsFile: "/nowhere/a.creds", Token: "s3cret", Password: "s3cret",
		TLSCert: "/nowhere/cert", InboxPrefix: "a.*", ConnectTimeout: -1,
	}.Validate()
	wantError(t, "Validate()", err, broker.ErrConfig, "URL: http://x: the scheme", "URL: nats:: it has no host", "is no URL", "Namespace",
		"CredsFile and Token are set", "Password is set without User", "TLSCert and TLSKey", "InboxPrefix", "ConnectTimeout", "/nowhere/a.creds")
	if strings.Contains(err.Error(), "s3cret") {
		t.Errorf("Validate() shows a secret: %v", err)
	}
	if err := (broker.Config{}).Validate(); err != nil {
		t.Errorf("Validate() of the zero value = %v", err)
	}
}

func TestSecretsAreRedactedEverywhere(t *testing.T) {
	t.Parallel()
	cfg := broker.Config{URL: "nats://u:s3cret@h:1,nats://s3cret@h:2", User: "u", Password: "s3cret", Token: "s3cret"}
	var logged bytes.Buffer
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("x", "config", cfg, "secret", cfg.Password)
	asJSON, err := json.Marshal(struct{ P broker.Secret }{cfg.Password})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		string(asJSON), cfg.String(), fmt.Sprintf("%v %+v %s", cfg, cfg, cfg), fmt.Sprintf("%#v", cfg.Password), logged.String(),
	} {
		if strings.Contains(text, "s3cret") {
			t.Errorf("a secret shows in %s", text)
		}
	}
}

func TestContextsOfTheNATSCommandLineToolAreRead(t *testing.T) {
	t.Parallel()
	u := testenv.User{Name: "ann", Password: "pw"}
	s := testenv.NATS(t, testenv.WithUsers(u, testenv.User{Name: "bob", Password: "pw"}))
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "context"), 0o700); err != nil {
		t.Fatal(err)
	}
	contextFile := func(name, body string) { write(t, filepath.Join(dir, "context"), name+".json", body) }
	contextFile("good", fmt.Sprintf(`{"url":%q,"user":"ann","password":"pw","description":"x"}`, s.URL()))
	contextFile("bad", `{"url":"nats://h","password":"s3cret"`)
	contextFile("domain", `{"url":"nats://h","jetstream_domain":"hub"}`)
	connect := func(cfg broker.Config) error {
		cfg.ContextDir = dir
		b, err := broker.Connect(t.Context(), cfg)
		if err == nil {
			err = b.Close()
		}
		return err
	}
	if err := connect(broker.Config{Context: "good"}); err != nil {
		t.Errorf("by name = %v", err)
	}
	if err := connect(broker.Config{Context: "good", User: "bob", Password: "pw"}); err != nil {
		t.Errorf("with another user = %v", err)
	}
	wantError(t, "with another user's wrong password", connect(broker.Config{Context: "good", User: "bob", Password: "x"}), broker.ErrAuth)
	wantError(t, "unreadable", connect(broker.Config{Context: "bad"}), broker.ErrConfig, "JSON")
	wantError(t, "unsupported", connect(broker.Config{Context: "domain"}), broker.ErrConfig, "jetstream_domain")
	wantError(t, "a path", connect(broker.Config{Context: "../good"}), broker.ErrConfig, "no path")
	write(t, dir, "context.txt", "good\n")
	if err := connect(broker.Config{}); err != nil {
		t.Errorf("the selected one = %v", err)
	}
	wantError(t, "a URL without credentials is not the selected context's", connect(broker.Config{URL: s.URL()}), broker.ErrAuth)
}

func TestABusReconnectsAndSaysWhileItIsDown(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	s.Stop()
	testenv.EventuallyTrue(t, 5*time.Second, "disconnected", func() bool { return !b.Connected() })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := b.PoolServed(ctx, "default")
	wantError(t, "PoolServed() while down", err, broker.ErrUnavailable)
	s.Restart()
	testenv.Eventually(t, 10*time.Second, func() error { _, err := b.PoolNames(t.Context()); return err })
}

func TestOldServersAreRefused(t *testing.T) {
	t.Parallel()
	address := fakeServer(t, `INFO {"server_id":"x","version":"2.10.29","max_payload":1048576,"headers":true,"jetstream":true}`)
	_, err := broker.Connect(t.Context(), broker.Config{URL: "nats://" + address})
	wantError(t, "Connect()", err, broker.ErrOldServer, "2.10.29", broker.MinServerVersion)
}

// fakeServer says info and pong: no server of that age can be had.
func fakeServer(t *testing.T, info string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				fmt.Fprintf(c, "%s\r\n", info)
				buffer := make([]byte, 4096)
				for {
					n, err := c.Read(buffer)
					if err != nil {
						return
					}
					if bytes.Contains(buffer[:n], []byte("PING")) {
						fmt.Fprint(c, "PONG\r\n")
					}
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func write(t *testing.T, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
