package protocol

import "net/netip"

var (
	nat64      = netip.MustParsePrefix("64:ff9b::/96")
	nat64Local = netip.MustParsePrefix("64:ff9b:1::/48") // RFC 8215
	sixToFour  = netip.MustParsePrefix("2002::/16")
	compatible = netip.MustParsePrefix("::/96") // IPv4-compatible, long deprecated
)

// Reached are the addresses that a connection to addr may end at: addr itself, or
// the IPv4 addresses that an IPv6 one stands for (mapped, compatible, 6to4 and
// NAT64). Of a local-use NAT64 address it gives one for each length that the
// translator's prefix may have. It is never empty, and no address has a zone.
func Reached(addr netip.Addr) []netip.Addr {
	addr = addr.Unmap().WithZone("")
	if addr.Is4() {
		return []netip.Addr{addr}
	}
	b := addr.As16()
	switch {
	case nat64.Contains(addr):
		return []netip.Addr{netip.AddrFrom4([4]byte(b[12:16]))}
	case sixToFour.Contains(addr):
		return []netip.Addr{netip.AddrFrom4([4]byte(b[2:6]))}
	case compatible.Contains(addr) && !addr.IsUnspecified() && !addr.IsLoopback():
		return []netip.Addr{netip.AddrFrom4([4]byte(b[12:16]))}
	case nat64Local.Contains(addr):
		return localNAT64(b)
	}
	return []netip.Addr{addr}
}

// localNAT64 leaves out 0.0.0.0, which every form but the one in use looks like.
//
// Source: RFC 6052, section 2.2; octet 8 is always zero.
func localNAT64(b [16]byte) []netip.Addr {
	var reached []netip.Addr
	for _, v4 := range [][4]byte{
		{b[6], b[7], b[9], b[10]}, {b[7], b[9], b[10], b[11]}, {b[9], b[10], b[11], b[12]}, {b[12], b[13], b[14], b[15]},
	} {
		if a := netip.AddrFrom4(v4); !a.IsUnspecified() {
			reached = append(reached, a)
		}
	}
	if reached == nil {
		reached = []netip.Addr{netip.IPv4Unspecified()}
	}
	return reached
}
