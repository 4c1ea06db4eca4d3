package broker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// connectError words a failed first connect. asked: the server asked for a client
// certificate.
func connectError(ctx context.Context, cfg Config, asked bool, err error) error {
	where := cfg.redactedURL()
	if errors.Is(err, ErrConfig) {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w at %s: %w", ErrNoServer, where, context.Cause(ctx))
	}
	if fix := cfg.distrust(err); fix != "" {
		return fmt.Errorf("%w: %s: %v: %s", ErrTLS, where, untangled(err), fix)
	}
	var first tls.RecordHeaderError
	var network net.Error
	switch {
	case isAuth(err):
		return fmt.Errorf("%w at %s: %v: %s", ErrAuth, where, err, cfg.credential(time.Now()))
	case errors.Is(err, nats.ErrSecureConnRequired):
		return fmt.Errorf("%w: %s: %v: it wants TLS: use a tls:// URL, or %s", ErrConfig, where, err, cfg.name("TLSCA"))
	case errors.Is(err, nats.ErrSecureConnWanted):
		return fmt.Errorf("%w: %s: %v: it offers no TLS: turn it on there, or use a nats:// URL and none of %s, %s and %s",
			ErrConfig, where, err, cfg.name("TLSCA"), cfg.name("TLSCert"), cfg.name("TLSFirst"))
	case errors.As(err, &first):
		return fmt.Errorf("%w: %s: it speaks before TLS: leave out %s", ErrConfig, where, cfg.name("TLSFirst"))
	case errors.As(err, &network) && network.Timeout():
		return fmt.Errorf("%w at %s: %v: set the right URL; if it wants TLS before it speaks, set %s", ErrNoServer, where, err, cfg.name("TLSFirst"))
	case asked && cutOff(err):
		return fmt.Errorf("%w at %s: %v: %s", ErrAuth, where, untangled(err), cfg.certificate(time.Now()))
	}
	return fmt.Errorf("%w at %s: %v: start one there, or set the right URL", ErrNoServer, where, err)
}

// isAuth reports whether the server refused who asks.
func isAuth(err error) bool {
	return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked) ||
		errors.Is(err, nats.ErrAccountAuthExpired) || errors.Is(err, nats.ErrNkeysNotSupported)
}

// distrust says what to do about a certificate of the server that was not
// accepted, "" when that was not the failure.
func (c Config) distrust(err error) string {
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var host x509.HostnameError
	var roots x509.SystemRootsError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "renew the server's certificate, or set this host's clock"
	case errors.As(err, &host):
		return "connect by a name that its certificate holds, or give it one with this name"
	case errors.As(err, &unknown) && c.TLSCA != "":
		return fmt.Sprintf("none of the authorities in %s signed its certificate: name the file of the one that did by %s", c.TLSCA, c.name("TLSCA"))
	case errors.As(err, &unknown), errors.As(err, &roots):
		return fmt.Sprintf("this host knows no authority that signed its certificate: name the authority's file by %s", c.name("TLSCA"))
	case errors.As(err, &invalid), errors.As(err, new(*tls.CertificateVerificationError)):
		return "give the server a certificate that is for servers"
	}
	return ""
}

// cutOff reports whether the server ended the connection without a word of its
// own. In TLS 1.3 a client has ended its handshake when the server looks at its
// certificate: the refusal comes as an alert, or as the end of the connection
// when that is faster.
func cutOff(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// certificate says what to do when the server asked for a client certificate and
// then ended the connection.
func (c Config) certificate(now time.Time) string {
	if c.TLSCert == "" {
		return fmt.Sprintf("it asks for a client certificate and none is set: give one by %s and %s", c.name("TLSCert"), c.name("TLSKey"))
	}
	if pair, err := c.clientCertificate(); err == nil && pair.Leaf != nil && now.After(pair.Leaf.NotAfter) {
		return fmt.Sprintf("the client certificate %s expired at %s: renew it", c.TLSCert, pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("it did not take the client certificate %s: have it signed, for clients, by an authority that the server trusts", c.TLSCert)
}

// untangled is the innermost words of a TLS failure, which come wrapped in three
// layers that each say TLS.
func untangled(err error) string {
	var verification *tls.CertificateVerificationError
	if errors.As(err, &verification) {
		return verification.Err.Error()
	}
	return strings.TrimPrefix(err.Error(), "nats: ")
}
