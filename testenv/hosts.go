//go:build linux

package testenv

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The hosts' network, of the addresses that RFC 2544 keeps for tests. The test
// itself is on it too, as the last host.
const (
	hostsNet = "198.18.77"
	testHost = 254
)

// Network is a switch and the hosts on it: network namespaces, each joined to a
// bridge in one more namespace. Nothing of it is visible from the machine's own
// network but one address of the test's.
type Network struct {
	t     testing.TB
	name  string // prefix of all names
	Hosts []*Host
}

// Host is a network namespace with an address.
type Host struct {
	t         testing.TB
	namespace string
	Addr      string // IP address
}

// Hosts makes a network of n hosts and removes it with the test. It needs root,
// and the programs ip and iptables. Without root the test is skipped, unless CI
// is set; whatever else is missing fails it.
func Hosts(t testing.TB, n int) *Network {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("hosts need root: CI must run this test")
		}
		t.Skip("hosts need root: network namespaces cannot be made without")
	}
	network := &Network{t: t, name: fmt.Sprintf("st%d", os.Getpid()%1_000_000)}
	bridge := network.name + "sw"
	must := func(args ...string) {
		t.Helper()
		if err := runCommand(args...); err != nil {
			if os.Getenv("CI") == "" && strings.Contains(err.Error(), "Operation not permitted") {
				t.Skipf("hosts: network namespaces are forbidden here: %v", err)
			}
			t.Fatalf("hosts: %v (packages iproute2 and iptables; root)", err)
		}
	}
	t.Cleanup(network.remove)
	must("ip", "netns", "add", bridge)
	must("ip", "-n", bridge, "link", "add", "br0", "type", "bridge")
	must("ip", "-n", bridge, "link", "set", "br0", "up")
	plug := func(namespace, link string, number int) {
		t.Helper()
		port := fmt.Sprintf("p%d", number)
		in := func(args ...string) []string { return args }
		if namespace != "" {
			in = func(args ...string) []string { return append([]string{"ip", "-n", namespace}, args[1:]...) }
		}
		must(in("ip", "link", "add", link, "type", "veth", "peer", "name", port, "netns", bridge)...)
		must("ip", "-n", bridge, "link", "set", port, "master", "br0", "up")
		must(in("ip", "addr", "add", fmt.Sprintf("%s.%d/24", hostsNet, number), "dev", link)...)
		must(in("ip", "link", "set", link, "up")...)
	}
	plug("", network.name, testHost)
	for i := range n {
		h := &Host{t: t, namespace: fmt.Sprintf("%sh%d", network.name, i+1), Addr: fmt.Sprintf("%s.%d", hostsNet, i+1)}
		must("ip", "netns", "add", h.namespace)
		network.Hosts = append(network.Hosts, h)
		must("ip", "-n", h.namespace, "link", "set", "lo", "up")
		plug(h.namespace, "eth0", i+1)
	}
	return network
}

func (n *Network) remove() {
	err := runCommand("ip", "netns", "del", n.name+"sw") // its ports go, and with them the other ends
	for _, h := range n.Hosts {
		err = errors.Join(err, runCommand("ip", "netns", "del", h.namespace))
	}
	if err != nil && !n.t.Failed() && !n.t.Skipped() {
		n.t.Errorf("hosts: %v", err)
	}
}

func runCommand(args ...string) error {
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Command is a command that runs on the host. The process that it starts is the
// command's own, so that it can be signalled.
func (h *Host) Command(name string, args ...string) *exec.Cmd {
	return exec.Command("ip", append([]string{"netns", "exec", h.namespace, name}, args...)...)
}

// Lose makes the host lose so many percent of the packets that come to it, and of
// those that it sends, beside what it loses already.
func (h *Host) Lose(incoming, outgoing int) {
	h.t.Helper()
	for _, way := range []struct {
		chain, device string
		percent       int
	}{{"INPUT", "-i", incoming}, {"OUTPUT", "-o", outgoing}} {
		if way.percent == 0 {
			continue
		}
		rule := []string{"ip", "netns", "exec", h.namespace, "iptables", "-w", "-A", way.chain, way.device, "eth0"}
		if way.percent < 100 {
			rule = append(rule, "-m", "statistic", "--mode", "random", "--probability", fmt.Sprintf("%.2f", float64(way.percent)/100))
		}
		if err := runCommand(append(rule, "-j", "DROP")...); err != nil {
			h.t.Fatalf("hosts: %v", err)
		}
	}
}

// CutOff makes the host lose everything: nobody is told.
func (h *Host) CutOff() { h.t.Helper(); h.Lose(100, 100) }

// Heal ends what Lose and CutOff began.
func (h *Host) Heal() {
	h.t.Helper()
	if err := runCommand("ip", "netns", "exec", h.namespace, "iptables", "-w", "-F"); err != nil {
		h.t.Fatalf("hosts: %v", err)
	}
}

// Lost is how many packets the host has lost since it was last healed.
func (h *Host) Lost() int {
	h.t.Helper()
	out, err := h.Command("iptables", "-w", "-nvxL").Output()
	if err != nil {
		h.t.Fatalf("hosts: iptables: %v", err)
	}
	lost := 0
	for line := range strings.Lines(string(out)) {
		var packets int
		var bytes int
		var target string
		if n, _ := fmt.Sscan(line, &packets, &bytes, &target); n == 3 && target == "DROP" {
			lost += packets
		}
	}
	return lost
}

// Listen listens on a free port of the host. A socket stays where it was made, so
// the goroutine's thread goes there for a moment.
func (h *Host) Listen() net.Listener {
	h.t.Helper()
	var listener net.Listener
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		there, err := os.Open("/run/netns/" + h.namespace)
		if err == nil {
			defer func() { _ = there.Close() }()
			err = unix.Setns(int(there.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			listener, err = net.Listen("tcp", h.Addr+":0")
		}
		done <- err
	}()
	if err := <-done; err != nil {
		h.t.Fatalf("hosts: listen on %s: %v", h.Addr, err)
	}
	return listener
}
