package worker

import (
	"strings"
	"testing"

	"starling/protocol"
)

// TestNetworkCeiling has what docs/protocol.md, section 5, grants of network.allow.
func TestNetworkCeiling(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		asked, ceiling []string
		want           string
	}{
		"nothing":                     {},
		"a public host":               {asked: []string{"api.example.com"}},
		"a public host of the list":   {asked: []string{"https://api.example.com"}, ceiling: []string{"api.example.com"}},
		"loopback that is listed":     {asked: []string{"http://127.0.0.1:8080"}, ceiling: []string{"127.0.0.1:8080"}},
		"loopback that is not listed": {asked: []string{"127.0.0.1:8080"}, want: "capabilities.network.allow asks for 127.0.0.1:8080 and the operator's ceiling (STARLING_CEILING_NETWORK) is every public host and no other: one that is not public is listed there"},
		"another host":                {asked: []string{"b.example"}, ceiling: []string{"a.example"}, want: "capabilities.network.allow asks for b.example and the operator's ceiling (STARLING_CEILING_NETWORK) is a.example"},
		"more ports than the list":    {asked: []string{"a.example"}, ceiling: []string{"https://a.example"}, want: "capabilities.network.allow asks for a.example and the operator's ceiling (STARLING_CEILING_NETWORK) is https://a.example"},
	} {
		got := ""
		if err := (Ceiling{Network: test.ceiling}).checkNetwork(protocol.Network{Allow: test.asked}); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// TestACeilingThatIsNoRuleIsAnErrorAtTheStart: it would refuse every task that asks
// for that host.
func TestACeilingThatIsNoRuleIsAnErrorAtTheStart(t *testing.T) {
	t.Parallel()
	c := Config{WorkRoot: "/w", CacheDir: "/c", Ceiling: Ceiling{Network: []string{"a.example", "*.b.example"}}}
	err := c.Validate()
	if err == nil || !strings.Contains(err.Error(), `STARLING_CEILING_NETWORK): "*.b.example" is no network rule`) || strings.Contains(err.Error(), `"a.example"`) {
		t.Errorf("Validate() = %v, want the rule that is none", err)
	}
}
