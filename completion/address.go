package completion

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"starling/protocol"
)

// AddressRule says which addresses a door may have. The zero value allows any
// but link-local, multicast and unspecified ones, which no rule can allow.
//
// Source: docs/protocol.md, section 9.
type AddressRule struct {
	Allow []netip.Prefix // when there are any, only these
	Deny  []netip.Prefix // never these
}

// ErrAddress says that the operator's rule does not allow a door's address.
var ErrAddress = errors.New("the door's address is not allowed")

// ParsePrefixes reads a comma-separated list of addresses and CIDR ranges.
func ParsePrefixes(list string) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for _, entry := range strings.Split(list, ",") {
		entry = strings.TrimSpace(entry)
		if entry == "" {
			continue
		}
		if addr, err := netip.ParseAddr(entry); err == nil {
			addr = addr.Unmap()
			prefixes = append(prefixes, netip.PrefixFrom(addr, addr.BitLen()))
			continue
		}
		p, err := netip.ParsePrefix(entry)
		if err != nil {
			return nil, fmt.Errorf("%q is neither an address nor a CIDR range", entry)
		}
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		prefixes = append(prefixes, p.Masked())
	}
	return prefixes, nil
}

// Check judges one address, as it is dialled; an IPv4 address inside an IPv6
// one is judged as what it reaches, and the lists may name either form. The
// error is [ErrAddress].
func (r AddressRule) Check(addr netip.Addr) error {
	dialled := addr.Unmap().WithZone("")
	for _, reached := range protocol.Reached(addr) {
		if err := r.checkReached(dialled, reached); err != nil {
			return err
		}
	}
	return nil
}

func (r AddressRule) checkReached(dialled, addr netip.Addr) error {
	refuse := func(why string) error { return fmt.Errorf("%w: %s %s", ErrAddress, addr, why) }
	switch {
	case addr.IsUnspecified():
		return refuse("is unspecified")
	case addr.IsLinkLocalUnicast():
		return refuse("is link-local")
	case addr.IsMulticast():
		return refuse("is multicast")
	case contains(r.Deny, addr) || contains(r.Deny, dialled):
		return refuse("is on the deny list")
	case len(r.Allow) > 0 && !contains(r.Allow, addr) && !contains(r.Allow, dialled):
		return refuse("is not on the allow list")
	}
	return nil
}

func contains(prefixes []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// connectError is a door that could not be reached. Its text names the address
// that was asked for and never the URL.
type connectError struct {
	address string
	err     error
}

func (e *connectError) Error() string {
	return "failed to connect to " + e.address + ": " + e.err.Error()
}

func (e *connectError) Unwrap() error { return e.err }

// dial connects to a door. The check runs on each address that is really
// dialled, after the name was resolved, so a name cannot be rebound in between.
func (r AddressRule) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{ControlContext: func(_ context.Context, _, dialled string, _ syscall.RawConn) error {
		target, err := netip.ParseAddrPort(dialled)
		if err != nil {
			return fmt.Errorf("%w: it cannot be read", ErrAddress)
		}
		return r.Check(target.Addr())
	}}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, &connectError{address: address, err: dialCause(err)}
	}
	return conn, nil
}

// dialCause strips what net puts around the reason: the operation and the
// address, which connectError says already.
func dialCause(err error) error {
	if errors.Is(err, ErrAddress) {
		for inner := err; inner != nil; inner = errors.Unwrap(inner) {
			if op := (*net.OpError)(nil); !errors.As(inner, &op) {
				return inner
			}
		}
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return errors.New(dns.Err)
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
