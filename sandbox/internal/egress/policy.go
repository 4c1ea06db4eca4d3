package egress

import (
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"starling/protocol"
)

// Policy is what one run may call.
type Policy struct {
	Allow   []protocol.NetworkRule
	Secrets []Secret

	// Misdirected hears of a secret of these that was asked for to a host, or in a
	// header, which it is not bound to. nil: nobody does. It is called by several
	// goroutines at a time.
	Misdirected func(s Secret, origin, header string)
}

// checkURL judges where a request goes by name.
func (p Policy) checkURL(u *url.URL) *Error {
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return refuse(ErrnoInvalid, "the scheme %q is neither http nor https", clip(u.Scheme))
	case u.Opaque != "" || u.Hostname() == "":
		return refuse(ErrnoInvalid, "the URL names no host")
	case u.User != nil:
		return refuse(ErrnoInvalid, "the URL holds a user name: send an Authorization header")
	case !slices.ContainsFunc(p.Allow, func(r protocol.NetworkRule) bool { return r.Allows(u) }):
		return refuse(ErrnoNotGranted, "%s://%s is not granted: capabilities.network.allow is %s", u.Scheme, clip(u.Host), p.listed())
	}
	return nil
}

func (p Policy) listed() string {
	var entries []string
	for _, r := range p.Allow {
		entries = append(entries, r.String())
	}
	if entries == nil {
		return "empty"
	}
	return clip(strings.Join(entries, ", "))
}

// checkAddress judges what is dialled. Link-local and the like never pass; what
// is not public passes when a rule has the address itself.
func (p Policy) checkAddress(host, port string, addr netip.Addr) *Error {
	dialled := addr.Unmap()
	for _, reached := range protocol.Reached(addr) {
		if reached.IsLinkLocalUnicast() || metadata[reached] || dialled.IsLinkLocalUnicast() || dialled.Zone() != "" {
			return refuse(ErrnoNotGranted, "%s is at %s, which is link-local or serves metadata and is never granted", clip(host), dialled)
		}
	}
	if Public(addr) {
		return nil
	}
	literal := func(r protocol.NetworkRule) bool {
		listed, err := netip.ParseAddr(r.Host)
		return err == nil && listed.Unmap() == dialled && (r.Port == "" || r.Port == port)
	}
	if slices.ContainsFunc(p.Allow, literal) {
		return nil
	}
	return refuse(ErrnoNotGranted, "%s is at %s, which is no public address: capabilities.network.allow must list the address itself", clip(host), dialled)
}

// metadata are the addresses of cloud metadata services that are not link-local.
var metadata = map[netip.Addr]bool{
	netip.MustParseAddr("fd00:ec2::254"):   true,
	netip.MustParseAddr("100.100.100.200"): true,
	netip.MustParseAddr("168.63.129.16"):   true,
	netip.MustParseAddr("192.0.0.192"):     true,
}

// special are the ranges that are no public hosts, of the IANA registries of
// special-purpose addresses.
var special = func() []netip.Prefix {
	var all []netip.Prefix
	for _, p := range []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
		"192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
		"224.0.0.0/4", "240.0.0.0/4",
		"::/96", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16",
		"3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
	} {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}()

// Public reports whether an address is one of the public Internet. One form of
// address inside another (6to4, NAT64) is not.
func Public(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	return addr.IsValid() && !slices.ContainsFunc(special, func(p netip.Prefix) bool { return p.Contains(addr) })
}

func clip(s string) string {
	if len(s) > 256 {
		s = s[:256] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
