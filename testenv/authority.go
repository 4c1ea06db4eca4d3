package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority signs certificates.
type Authority struct {
	t    testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey

	// File is its own certificate, as PEM.
	File string
}

// KeyPair is a certificate and its key, as PEM files.
type KeyPair struct{ Cert, Key string }

// CertificateAuthority makes an authority whose files last as long as the test.
func CertificateAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t, dir: t.TempDir()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "testenv authority"},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	pair := a.sign("ca", template)
	a.File = pair.Cert
	return a
}

// Server is a certificate for 127.0.0.1 that ends at a time.
func (a *Authority) Server(name string, ends time.Time) KeyPair {
	a.t.Helper()
	return a.sign(name, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotAfter: ends,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
}

// Client is a client's certificate that ends at a time.
func (a *Authority) Client(name string, ends time.Time) KeyPair {
	a.t.Helper()
	return a.sign(name, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotAfter: ends, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// sign makes a key and its certificate; the first one is the authority's own.
func (a *Authority) sign(name string, template *x509.Certificate) KeyPair {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	} else {
		template.SerialNumber = big.NewInt(time.Now().UnixNano())
		template.NotBefore = a.cert.NotBefore
		template.KeyUsage = x509.KeyUsageDigitalSignature
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	if a.cert == nil {
		if a.cert, err = x509.ParseCertificate(der); err != nil {
			a.t.Fatal(err)
		}
		a.key = key
	}
	bytes, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return KeyPair{Cert: a.write(name+".pem", "CERTIFICATE", der), Key: a.write(name+"-key.pem", "PRIVATE KEY", bytes)}
}

func (a *Authority) write(name, kind string, der []byte) string {
	a.t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}
