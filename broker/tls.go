package broker

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"github.com/nats-io/nats.go"
)

// handshake is the TLS of one connection.
type handshake struct {
	asked atomic.Bool // the server asked for a client certificate
}

// option sets TLS up. Files are read again at each connect, so that they can be
// renewed.
func (h *handshake) option(cfg Config) nats.Option {
	return func(o *nats.Options) error {
		o.Secure = o.Secure || cfg.TLSCA != "" || cfg.TLSCert != ""
		if cfg.TLSFirst {
			o.Secure, o.TLSHandshakeFirst = true, true
		}
		if !o.Secure && strings.Contains(cfg.URL, "ws://") {
			return nil // the client would speak TLS wherever it has a TLS configuration
		}
		o.TLSConfig = &tls.Config{
			MinVersion: tls.VersionTLS12,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				h.asked.Store(true)
				if cfg.TLSCert == "" {
					return &tls.Certificate{}, nil // the server decides whether none will do
				}
				return cfg.clientCertificate()
			},
		}
		if cfg.TLSCA != "" {
			o.RootCAsCB = cfg.authorities
		}
		return nil
	}
}

// authorities are the ones that the server's certificate may be signed by.
func (c Config) authorities() (*x509.CertPool, error) {
	content, err := os.ReadFile(c.TLSCA)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrConfig, c.name("TLSCA"), err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(content) {
		return nil, fmt.Errorf("%w: %s: %s holds no certificate", ErrConfig, c.name("TLSCA"), c.TLSCA)
	}
	return pool, nil
}

func checkAuthorities(content []byte) error {
	if !x509.NewCertPool().AppendCertsFromPEM(content) {
		return errors.New("no certificate: it is a PEM file of authorities")
	}
	return nil
}

// clientCertificate is what this side shows a server that asks.
func (c Config) clientCertificate() (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(c.TLSCert, c.TLSKey)
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %s and %s are no certificate with its key: %w",
			c.name("TLSCert"), c.name("TLSKey"), c.TLSCert, c.TLSKey, err)
	}
	return &pair, nil
}
