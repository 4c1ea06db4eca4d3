package broker_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"strings"
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
	ca, cert, key := certificate(t)
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(ca))
	dir := t.TempDir()
	for _, first := range []bool{false, true} {
		s := testenv.NATS(t, testenv.WithOptions(func(o *server.Options) {
			o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
			o.TLSHandshakeFirst = first
		}))
		cfg := broker.Config{
			URL: s.URL(), TLSCA: write(t, dir, "ca", ca), TLSCert: write(t, dir, "cert", cert), TLSKey: write(t, dir, "key", key), TLSFirst: first,
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
		wantError(t, "Connect() without the authority", err, broker.ErrNoServer, "certificate")
	}
}

// certificate is one that signs itself, for 127.0.0.1, and its key.
func certificate(t *testing.T) (ca, cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	bytes, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return cert, cert, string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: bytes}))
}
