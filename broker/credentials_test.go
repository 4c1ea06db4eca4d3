package broker_test

import (
	"bytes"
	"crypto/tls"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"starling/broker"
	"starling/testenv"
)

func TestEachKindOfCredentialIsTaken(t *testing.T) {
	t.Parallel()
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	withKey := testenv.NATS(t, testenv.WithOptions(func(o *server.Options) { o.Nkeys = []*server.NkeyUser{{Nkey: public}} }))
	withToken := testenv.NATS(t, testenv.WithOptions(func(o *server.Options) { o.Authorization = "t0ken" }))
	withUser := testenv.NATS(t, testenv.WithUsers(testenv.User{Name: "ann", Password: "pw"}))
	for name, cfg := range map[string]broker.Config{
		"NKey":         {URL: withKey.URL(), NKeyFile: write(t, dir, "seed", string(seed))},
		"token":        {URL: withToken.URL(), Token: "t0ken"},
		"user":         {URL: withUser.URL(), User: "ann", Password: "pw"},
		"in the URL":   {URL: strings.Replace(withUser.URL(), "nats://", "nats://ann:pw@", 1)},
		"several URLs": {URL: "nats://" + freeAddress(t) + ", " + withUser.URL(), User: "ann", Password: "pw"},
	} {
		b, err := broker.Connect(t.Context(), cfg)
		if err != nil {
			t.Errorf("Connect() by %s = %v", name, err)
			continue
		}
		if err := b.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	}
}

func TestTLSIsSpokenWithOwnAuthoritiesAndCertificates(t *testing.T) {
	t.Parallel()
	ca, tomorrow := testenv.CertificateAuthority(t), time.Now().Add(24*time.Hour)
	host, client := ca.Server("server", tomorrow), ca.Client("client", tomorrow)
	for _, first := range []bool{false, true} {
		s := testenv.NATS(t, testenv.WithOptions(func(o *server.Options) {
			o.TLSConfig = serverTLS(t, host, ca)
			o.TLSHandshakeFirst = first
		}))
		cfg := broker.Config{
			URL: s.URL(), TLSCA: ca.File, TLSCert: client.Cert, TLSKey: client.Key, TLSFirst: first,
		}
		b, err := broker.Connect(t.Context(), cfg)
		if err != nil {
			t.Fatalf("Connect() with TLSFirst %t = %v", first, err)
		}
		if err := b.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
		cfg.TLSCA = ""
		_, err = broker.Connect(t.Context(), cfg)
		wantError(t, "Connect() without the authority", err, broker.ErrTLS, "certificate")
		if first {
			cfg.TLSFirst, cfg.ConnectTimeout = false, 200*time.Millisecond
			_, err = broker.Connect(t.Context(), cfg)
			wantError(t, "Connect() that waits for the server's word", err, broker.ErrNoServer, "TLSFirst")
		}
	}
}

// serverTLS wants client certificates.
func serverTLS(t *testing.T, pair testenv.KeyPair, ca *testenv.Authority) *tls.Config {
	t.Helper()
	cfg, err := server.GenTLSConfig(&server.TLSConfigOpts{CertFile: pair.Cert, KeyFile: pair.Key, CaFile: ca.File, Verify: true})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestCredentialsAreRenewedWhileConnected: a connection whose creds ended is
// refused again and again, and stands again once the file is renewed. The client
// by itself gives up for ever after the second refusal.
func TestCredentialsAreRenewedWhileConnected(t *testing.T) {
	t.Parallel()
	operator := testenv.OperatorMode(t)
	s := testenv.NATS(t, operator.Option())
	path := filepath.Join(t.TempDir(), "user.creds")
	_, seed := operator.Creds(path, time.Now().Add(2*time.Second))
	log := &said{}
	b, err := broker.Connect(t.Context(), broker.Config{URL: s.URL(), CredsFile: path, Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	testenv.EventuallyTrue(t, 30*time.Second, "three refusals", func() bool {
		return strings.Count(log.String(), "expired at") >= 3 && strings.Contains(log.String(), path)
	})
	if b.Connected() {
		t.Error("Connected() with creds that ended")
	}
	token, renewed := operator.Creds(path, time.Time{})
	testenv.EventuallyTrue(t, 30*time.Second, "connected again", b.Connected)
	if err := b.Init(t.Context(), broker.InitConfig{}); err != nil {
		t.Errorf("Init() with renewed creds = %v", err)
	}
	for _, secret := range []string{seed, token, renewed} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log shows a secret:\n%s", log)
		}
	}
}

// TestASeedIsNotSentAsAJWT: the client would send a creds file without a JWT as
// the JWT itself.
func TestASeedIsNotSentAsAJWT(t *testing.T) {
	t.Parallel()
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	path := write(t, t.TempDir(), "seed", string(seed))
	_, err = broker.Connect(t.Context(), broker.Config{URL: "nats://" + freeAddress(t), CredsFile: path})
	wantError(t, "Connect() with a seed for creds", err, broker.ErrConfig, "no user credentials", path)
}

// said is a log that is read while it is written.
type said struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}
