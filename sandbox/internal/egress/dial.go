package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
)

// dialTimeout bounds making a connection, to all addresses of a host.
const dialTimeout = 30 * time.Second

// dial resolves a name once, judges every address that it has, and connects to
// one of those.
func (c *Client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	place, err := c.conns.enter()
	if err != nil {
		return nil, err
	}
	// The transport goes on dialing for a request that was canceled.
	defer context.AfterFunc(c.conns.ctx, cancel)()
	conn, err := c.dialJudged(ctx, network, address)
	return place.take(conn, err)
}

func (c *Client) dialJudged(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	if literal, err := netip.ParseAddr(host); err == nil {
		addrs = append(addrs, literal)
	} else if addrs, err = c.cfg.Resolver.LookupNetIP(ctx, "ip", host); err != nil {
		return nil, err
	}
	if len(addrs) == 0 {
		return nil, refuse(ErrnoUnreachable, "the host %q has no address", clip(host))
	}
	for _, addr := range addrs {
		if problem := c.policy.checkAddress(host, port, addr); problem != nil {
			return nil, problem
		}
	}
	var problems []error
	for i, addr := range addrs {
		// One that does not answer leaves time for the others.
		dialer := net.Dialer{Timeout: dialTimeout / time.Duration(len(addrs)-i+1)}
		if i == len(addrs)-1 {
			dialer.Timeout = 0
		}
		conn, err := dialer.DialContext(ctx, network, net.JoinHostPort(addr.Unmap().String(), port))
		if err == nil {
			return conn, nil
		}
		problems = append(problems, err)
	}
	return nil, errors.Join(problems...)
}

// maxConns is how many connections a client has or makes at a time: more than the
// requests in flight, for those of canceled ones go away later.
const maxConns = 4 * MaxInFlight

// conns are the connections of a client, and those that are being made. It is safe
// for concurrent use.
type conns struct {
	ctx  context.Context // of connections that are being made
	stop context.CancelFunc
	work sync.WaitGroup // of those; Add only under mu

	mu     sync.Mutex // guards what follows
	closed bool
	count  int
	open   map[*trackedConn]bool
}

func newConns() *conns {
	c := &conns{open: map[*trackedConn]bool{}}
	c.ctx, c.stop = context.WithCancel(context.Background())
	return c
}

// connPlace is the right to make one connection. take ends it.
type connPlace struct{ c *conns }

func (c *conns) enter() (connPlace, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return connPlace{}, net.ErrClosed
	case c.count >= maxConns:
		return connPlace{}, refuse(ErrnoTooMany, "too many connections are open or being made: at most %d", maxConns)
	}
	c.count++
	c.work.Add(1)
	return connPlace{c}, nil
}

// take keeps the connection that was made, or gives the place back.
func (p connPlace) take(conn net.Conn, err error) (net.Conn, error) {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	defer p.c.work.Done()
	if err != nil {
		p.c.count--
		return nil, err
	}
	tracked := &trackedConn{Conn: conn, c: p.c}
	p.c.open[tracked] = true
	return tracked, nil
}

// close ends all connections, and waits for those that are being made.
func (c *conns) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.stop()
	c.work.Wait()
	c.mu.Lock()
	left := c.open
	c.open = nil
	c.mu.Unlock()
	for conn := range left {
		_ = conn.Conn.Close() // nobody uses it
	}
}

// trackedConn tells when it is closed.
type trackedConn struct {
	net.Conn
	c *conns
}

func (t *trackedConn) Close() error {
	t.c.mu.Lock()
	if t.c.open[t] {
		delete(t.c.open, t)
		t.c.count--
	}
	t.c.mu.Unlock()
	return t.Conn.Close()
}
