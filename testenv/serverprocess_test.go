package testenv

import (
	"net"
	"strings"
	"testing"
)

// TestAPortThatIsTakenMeanwhile: a server of the first try finds another's listener
// on one of its ports, none of the second does.
func TestAPortThatIsTakenMeanwhile(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	for name, place := range map[string]int{"of clients": 0, "of the cluster": clusterSize, "of the monitor": 2 * clusterSize} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tries := 0
			c := onFreePorts(t, 3*clusterSize, func(addrs []string) []ServerConfig {
				if tries++; tries == 1 {
					addrs[place] = l.Addr().String()
				}
				return threeServers(addrs)
			})
			if tries != 2 || strings.Contains(c.URL(), l.Addr().String()) {
				t.Errorf("%d tries, then %s", tries, c.URL())
			}
		})
	}
}
