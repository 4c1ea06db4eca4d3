package completion_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"starling/completion"
)

func prefixes(t *testing.T, list string) []netip.Prefix {
	t.Helper()
	p, err := completion.ParsePrefixes(list)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestAddressRule has the default rule of docs/protocol.md, section 9, with
// every form in which an IPv4 address hides in an IPv6 one.
func TestAddressRule(t *testing.T) {
	t.Parallel()
	tests := []struct{ rule, addr, why string }{
		{"any host", "93.184.216.34", ""},
		{"loopback", "127.0.0.1", ""},
		{"private", "10.0.0.7", ""},
		{"any host, IPv6", "2606:2800:220:1::1", ""},
		{"loopback, IPv6", "::1", ""},
		{"unique local", "fd00::1", ""},
		{"mapped, of a good one", "::ffff:10.0.0.7", ""},
		{"link-local", "169.254.169.254", "link-local"},
		{"link-local at its edges", "169.254.0.0", "link-local"},
		{"link-local at its edges", "169.254.255.255", "link-local"},
		{"beside link-local", "169.253.255.255", ""},
		{"link-local, IPv6", "fe80::1", "link-local"},
		{"link-local, with a zone", "fe80::1%eth0", "link-local"},
		{"multicast", "224.0.0.1", "multicast"},
		{"multicast at its edge", "239.255.255.255", "multicast"},
		{"multicast, IPv6", "ff02::1", "multicast"},
		{"unspecified", "0.0.0.0", "unspecified"},
		{"unspecified, IPv6", "::", "unspecified"},
		{"mapped link-local", "::ffff:169.254.169.254", "link-local"},
		{"local-use NAT64 of link-local, /96", "64:ff9b:1::a9fe:a9fe", "link-local"},
		{"local-use NAT64 of link-local, /48", "64:ff9b:1:a9fe:a9:fe00::", "link-local"},
		{"local-use NAT64 of link-local, /64", "64:ff9b:1:0:a9:fea9:fe00:0", "link-local"},
		{"local-use NAT64 of a good one", "64:ff9b:1::5db8:d822", ""},
		{"mapped link-local, in hex", "::ffff:a9fe:a9fe", "link-local"},
		{"mapped unspecified", "::ffff:0.0.0.0", "unspecified"},
		{"mapped multicast", "::ffff:224.0.0.1", "multicast"},
		{"NAT64 link-local", "64:ff9b::169.254.169.254", "link-local"},
		{"NAT64 unspecified", "64:ff9b::", "unspecified"},
		{"NAT64 of a good one", "64:ff9b::10.0.0.7", ""},
		{"6to4 link-local", "2002:a9fe:a9fe::1", "link-local"},
		{"6to4 multicast", "2002:e000:0001::", "multicast"},
		{"6to4 of a good one", "2002:0a00:0007::1", ""},
		{"IPv4-compatible link-local", "::169.254.169.254", "link-local"},
	}
	for _, tt := range tests {
		err := completion.AddressRule{}.Check(netip.MustParseAddr(tt.addr))
		switch {
		case tt.why == "" && err != nil:
			t.Errorf("%s: Check(%s) = %v, want nil", tt.rule, tt.addr, err)
		case tt.why != "" && (!errors.Is(err, completion.ErrAddress) || !strings.Contains(err.Error(), tt.why)):
			t.Errorf("%s: Check(%s) = %v, want an ErrAddress that says %s", tt.rule, tt.addr, err, tt.why)
		}
	}
}

func TestAddressLists(t *testing.T) {
	t.Parallel()
	tests := []struct {
		rule, allow, deny, addr string
		want                    bool
	}{
		{"denied network", "", "10.0.0.0/8", "10.1.2.3", false},
		{"beside the denied network", "", "10.0.0.0/8", "11.0.0.0", true},
		{"denied address", "", "127.0.0.1", "127.0.0.1", false},
		{"denied IPv4, dialled as mapped", "", "10.0.0.0/8", "::ffff:10.1.2.3", false},
		{"denied IPv4, dialled through NAT64", "", "10.0.0.0/8", "64:ff9b::10.1.2.3", false},
		{"denied IPv4, dialled through 6to4", "", "10.0.0.0/8", "2002:0a01:0203::", false},
		{"a mapped network denied", "", "::ffff:10.0.0.0/104", "10.1.2.3", false},
		{"a mapped address denied", "", "::ffff:10.1.2.3", "10.1.2.3", false},
		{"all of NAT64 denied", "", "64:ff9b::/96", "64:ff9b::11.1.2.3", false},
		{"all of 6to4 denied", "", "2002::/16", "2002:0b01:0203::", false},
		{"allowed network", "10.0.0.0/8", "", "10.1.2.3", true},
		{"beside the allowed network", "10.0.0.0/8", "", "11.0.0.0", false},
		{"another family than the allowed", "10.0.0.0/8", "", "2606::1", false},
		{"allowed IPv4, dialled as mapped", "10.0.0.0/8", "", "::ffff:10.1.2.3", true},
		{"all of NAT64 allowed", "64:ff9b::/96", "", "64:ff9b::11.1.2.3", true},
		{"deny wins over allow", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", false},
		{"the rest of what is allowed", "10.0.0.0/8", "10.1.0.0/16", "10.2.2.3", true},
		{"no list allows link-local", "169.254.0.0/16", "", "169.254.169.254", false},
		{"no list allows link-local through NAT64", "64:ff9b::/96", "", "64:ff9b::169.254.169.254", false},
		{"no list allows the unspecified", "0.0.0.0/0", "", "0.0.0.0", false},
		{"a zone does not hide an address", "", "fd00::/8", "fd00::1%eth0", false},
	}
	for _, tt := range tests {
		rule := completion.AddressRule{Allow: prefixes(t, tt.allow), Deny: prefixes(t, tt.deny)}
		err := rule.Check(netip.MustParseAddr(tt.addr))
		if (err == nil) != tt.want || err != nil && !errors.Is(err, completion.ErrAddress) {
			t.Errorf("%s: Check(%s) = %v, want it allowed: %v", tt.rule, tt.addr, err, tt.want)
		}
	}
}

func TestParsePrefixes(t *testing.T) {
	t.Parallel()
	got, err := completion.ParsePrefixes(" 10.1.2.3/8, ,127.0.0.1,fd00::1/8,::1 ")
	want := []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("127.0.0.1/32"),
		netip.MustParsePrefix("fd00::/8"), netip.MustParsePrefix("::1/128"),
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("ParsePrefixes = %v, %v, want %v", got, err, want)
	}
	for _, bad := range []string{"localhost", "10.0.0.0/33", "10.0.0", "10.0.0.1;10.0.0.2", "10.0.0.0/8/8"} {
		if got, err := completion.ParsePrefixes("::1," + bad); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("ParsePrefixes(%q) = %v, %v, want an error that names it", bad, got, err)
		}
	}
}
