package testenv

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

// clusterSize is the least that survives the loss of one.
const clusterSize = 3

// ServerCluster is a JetStream cluster of three real servers in this process, for what
// answers differently at three replicas.
type ServerCluster struct {
	t       testing.TB
	Servers [clusterSize]*Server
}

// Cluster starts three servers and waits until they have a leader and know
// each other. It takes one to three seconds.
func Cluster(t testing.TB, options ...Option) *ServerCluster {
	t.Helper()
	var err error
	for range 3 { // a port that was free a moment ago may be another's now
		var c *ServerCluster
		if c, err = startCluster(t, options); err == nil {
			return c
		}
	}
	t.Fatal(err)
	return nil
}

func startCluster(t testing.TB, options []Option) (*ServerCluster, error) {
	ports, err := freePorts(clusterSize)
	if err != nil {
		return nil, err
	}
	var routes []*url.URL
	for _, port := range ports {
		routes = append(routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", port)})
	}
	c := &ServerCluster{t: t}
	dir := StoreDir(t)
	for i := range c.Servers {
		s := &Server{t: t, options: server.Options{
			ServerName: fmt.Sprintf("testenv-%d", i), Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
			JetStream: true, StoreDir: filepath.Join(dir, fmt.Sprint(i)),
			JetStreamMaxStore: 8 << 30, JetStreamMaxMemory: 1 << 30,
			// Clients must not learn of a way around a proxy.
			Cluster: server.ClusterOpts{Name: "testenv", Host: "127.0.0.1", Port: ports[i], NoAdvertise: true, PoolSize: -1},
			Routes:  routes,
		}}
		for _, option := range options {
			option(&s.options)
		}
		c.Servers[i] = s
	}
	t.Cleanup(c.stop)
	for _, s := range c.Servers {
		if err := s.start(); err != nil {
			c.stop()
			return nil, err
		}
	}
	Eventually(t, startWithin, c.ready)
	return c, nil
}

// The ports that freePorts chooses from: below those that systems give to outgoing
// connections (some from 16,000 on), one of which could take a port between the look
// and the listen.
const firstPort, ports = 10_000, 6_000

// freePorts finds ports that nobody listens on; all are held until all are found.
func freePorts(n int) ([]int, error) {
	var found []int
	var err error
	for tries := 0; len(found) < n; tries++ {
		port := firstPort + rand.IntN(ports)
		l, taken := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		switch {
		case taken != nil && tries > 100*n:
			return nil, taken
		case taken != nil:
			continue
		}
		defer func() { err = errors.Join(err, l.Close()) }()
		found = append(found, port)
	}
	return found, err
}

// ready reports what is missing until every running server knows all that run
// and one of them leads.
func (c *ServerCluster) ready() error {
	leaders, running := 0, 0
	for _, s := range c.Servers {
		ns := s.NATS()
		if ns == nil {
			continue
		}
		running++
		if ns.JetStreamIsLeader() {
			leaders++
		}
		if !ns.JetStreamIsCurrent() {
			return fmt.Errorf("%s is behind", ns.Name())
		}
		if n := len(ns.JetStreamClusterPeers()); n < clusterSize && ns.JetStreamIsLeader() {
			return fmt.Errorf("%s knows %d peers", ns.Name(), n)
		}
	}
	if leaders != 1 {
		return fmt.Errorf("%d of %d servers lead", leaders, running)
	}
	return nil
}

func (c *ServerCluster) stop() {
	for _, s := range c.Servers {
		s.Stop()
	}
}

// URL is where clients connect: all servers, comma-separated.
func (c *ServerCluster) URL() string {
	var urls []string
	for _, s := range c.Servers {
		urls = append(urls, s.URL())
	}
	return strings.Join(urls, ",")
}

// Stop stops one server. What it led elects anew.
func (c *ServerCluster) Stop(i int) { c.Servers[i].Stop() }

// Restart starts one server again and waits until the cluster is whole.
func (c *ServerCluster) Restart(i int) {
	c.t.Helper()
	c.Servers[i].Restart()
	Eventually(c.t, startWithin, c.ready)
}

// LeaderOf is the index of the server that leads a stream of the default
// account; it waits for an election that goes on.
func (c *ServerCluster) LeaderOf(stream string) int {
	c.t.Helper()
	leader := -1
	Eventually(c.t, startWithin, func() error {
		for i, s := range c.Servers {
			if ns := s.NATS(); ns != nil && ns.JetStreamIsStreamLeader(server.DEFAULT_GLOBAL_ACCOUNT, stream) {
				leader = i
				return nil
			}
		}
		return fmt.Errorf("stream %s has no leader", stream)
	})
	return leader
}
