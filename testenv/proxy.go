package testenv

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Direction is the way of bytes through a [FaultProxy].
type Direction int

// The directions.
const (
	ToServer Direction = 1 << iota
	ToClient
	Both = ToServer | ToClient
)

// FaultProxy stands between clients and a server and fails on demand. It speaks plain
// TCP and knows where a NATS message ends, so that it can lose whole ones.
type FaultProxy struct {
	target   string
	listener net.Listener
	wg       sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	down    bool
	stalled Direction
	changed chan struct{} // closed and replaced when stalled changes
	drop    func(subject string, payload []byte) bool
	dropped int
	hidden  string // subject of stored messages that clients are told do not exist; "": none
	refused int
	rate    int // bytes per second to the server, on each connection; 0: any
	links   map[*link]struct{}
}

// link is one client's connection and its way on.
type link struct {
	client, server net.Conn
	done           chan struct{}
	once           sync.Once
}

func (l *link) close() {
	l.once.Do(func() {
		close(l.done)
		_ = l.client.Close() // its reader sees it, whatever this says
		_ = l.server.Close()
	})
}

// Proxy starts a proxy in front of the server at target, a URL or host:port,
// and stops it with the test.
func Proxy(t testing.TB, target string) *FaultProxy {
	t.Helper()
	if u, err := url.Parse(target); err == nil && u.Host != "" {
		target = u.Host
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &FaultProxy{target: target, listener: listener, changed: make(chan struct{}), links: map[*link]struct{}{}}
	p.wg.Add(1)
	go p.accept()
	t.Cleanup(p.close)
	return p
}

// URL is where clients connect.
func (p *FaultProxy) URL() string { return "nats://" + p.listener.Addr().String() }

// Cut closes all connections. New ones pass.
func (p *FaultProxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.close()
	}
}

// Down closes all connections and every new one, until Resume.
func (p *FaultProxy) Down() {
	p.mu.Lock()
	p.down = true
	p.mu.Unlock()
	p.Cut()
}

// Stall holds all bytes of a direction back, until Resume. Connections stay, and
// new ones are accepted.
func (p *FaultProxy) Stall(d Direction) { p.set(func() { p.stalled |= d }) }

// Resume ends Down and Stall: what was held back passes.
func (p *FaultProxy) Resume() { p.set(func() { p.stalled, p.down = 0, false }) }

// DropAnswers loses every message to a client that drop says yes to, until it is
// called with nil. drop is called from several goroutines, gets the subject that
// the message is sent to and its body, headers first when there are any, and
// must not keep the body.
func (p *FaultProxy) DropAnswers(drop func(subject string, payload []byte) bool) {
	p.set(func() { p.drop = drop })
}

// HideStored makes every answer that carries the stored message of a subject say that
// there is none, as a replica that was cut off before it was written does; "" ends it.
func (p *FaultProxy) HideStored(subject string) { p.set(func() { p.hidden = subject }) }

// Dropped is how many messages were lost.
func (p *FaultProxy) Dropped() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dropped
}

// Refused is how many connections came while the proxy was down.
func (p *FaultProxy) Refused() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}

// Throttle lets only so many bytes a second pass to the server on each connection;
// 0: as many as come.
func (p *FaultProxy) Throttle(bytesPerSecond int) { p.set(func() { p.rate = bytesPerSecond }) }

func (p *FaultProxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *FaultProxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.listener.Close() // ends accept
	p.Cut()
	p.wg.Wait()
}

func (p *FaultProxy) accept() {
	defer p.wg.Done()
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Add(1)
		go func() {
			defer p.wg.Done()
			p.serve(client)
		}()
	}
}

func (p *FaultProxy) serve(client net.Conn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = client.Close() // the server is away, and so are we
		return
	}
	l := &link{client: client, server: server, done: make(chan struct{})}
	defer l.close()
	p.mu.Lock()
	refuse := p.closed || p.down
	if refuse {
		p.refused++
	} else {
		p.links[l] = struct{}{}
	}
	p.mu.Unlock()
	if refuse {
		return
	}
	back := make(chan struct{})
	go func() {
		defer close(back)
		defer l.close()
		_ = p.toClient(l) // how a connection ended is its two ends' matter
	}()
	_ = p.toServer(l)
	l.close()
	<-back
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

var errLinkClosed = errors.New("link closed")

// pass waits while the direction is stalled.
func (p *FaultProxy) pass(l *link, d Direction) error {
	for {
		p.mu.Lock()
		stalled, changed := p.stalled&d != 0, p.changed
		p.mu.Unlock()
		if !stalled {
			return nil
		}
		select {
		case <-changed:
		case <-l.done:
			return errLinkClosed
		}
	}
}

func (p *FaultProxy) toServer(l *link) error {
	buffer := make([]byte, 32<<10)
	for {
		n, err := l.client.Read(buffer)
		if n > 0 {
			if err := p.pass(l, ToServer); err != nil {
				return err
			}
			if _, err := l.server.Write(buffer[:n]); err != nil {
				return err
			}
			if err := p.slowDown(l, n); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

// slowDown waits as long as n bytes take at the throttled rate.
func (p *FaultProxy) slowDown(l *link, n int) error {
	p.mu.Lock()
	rate := p.rate
	p.mu.Unlock()
	if rate == 0 {
		return nil
	}
	timer := time.NewTimer(time.Duration(n) * time.Second / time.Duration(rate))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-l.done:
		return errLinkClosed
	}
}

// toClient passes protocol lines, and messages as a whole or not at all. It
// flushes when the server pauses.
func (p *FaultProxy) toClient(l *link) error {
	r, w := bufio.NewReaderSize(l.server, 64<<10), bufio.NewWriterSize(l.client, 64<<10)
	var payload []byte
	for {
		if r.Buffered() == 0 {
			if err := w.Flush(); err != nil {
				return err
			}
		}
		line, err := r.ReadString('\n')
		if err != nil {
			return err
		}
		subject, size, isMessage, err := parseMessageLine(line)
		if err != nil {
			return err
		}
		if isMessage {
			if cap(payload) < size+2 {
				payload = make([]byte, size+2)
			}
			payload = payload[:size+2]
			if _, err := io.ReadFull(r, payload); err != nil {
				return err
			}
		}
		if err := p.pass(l, ToClient); err != nil {
			return err
		}
		if isMessage && p.drops(subject, payload[:size]) {
			continue
		}
		if isMessage && p.hides(payload[:size]) {
			const none = "NATS/1.0 404 Message Not Found\r\n\r\n"
			fields := strings.Fields(line)
			fields[len(fields)-1], fields[len(fields)-2] = strconv.Itoa(len(none)), strconv.Itoa(len(none))
			line, payload = strings.Join(fields, " ")+"\r\n", []byte(none+"\r\n")
		}
		if _, err := w.WriteString(line); err != nil {
			return err
		}
		if isMessage {
			if _, err := w.Write(payload); err != nil {
				return err
			}
		}
	}
}

func (p *FaultProxy) hides(payload []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hidden != "" && bytes.Contains(payload, []byte("\r\nNats-Subject: "+p.hidden+"\r\n"))
}

func (p *FaultProxy) drops(subject string, payload []byte) bool {
	p.mu.Lock()
	drop := p.drop
	p.mu.Unlock()
	if drop == nil || !drop(subject, payload) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropped++
	return true
}

// parseMessageLine reads "MSG subject sid [reply] size" and "HMSG subject sid
// [reply] headers size".
func parseMessageLine(line string) (subject string, size int, isMessage bool, err error) {
	fields := strings.Fields(line)
	if len(fields) < 4 || fields[0] != "MSG" && fields[0] != "HMSG" {
		return "", 0, false, nil
	}
	size, err = strconv.Atoi(fields[len(fields)-1])
	if err != nil {
		return "", 0, false, fmt.Errorf("the server sent %q", line)
	}
	return fields[1], size, true, nil
}
