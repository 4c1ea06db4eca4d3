package sandbox

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// pipeVersion is the version of the protocol between a worker and its sandbox
// processes. Both are the same binary, unless somebody configured another.
const pipeVersion = 5

// maxMessageBytes bounds a message: the largest is an ending with 8 MiB of
// stdout, each byte of which may have become a U+FFFD of three.
const maxMessageBytes = 32 << 20

// messageKind is the first byte of a message.
type messageKind byte

// The messages. Each side takes the other's only.
const (
	// From the worker. hello comes first, once per process.
	msgHello messageKind = 'H' // JSON, hello
	msgRun   messageKind = 'R' // remoteSpec
	msgPing  messageKind = 'P' // is anybody there: empty
	// On the control pipe, with the number of the run:
	msgCancel messageKind = 'C' // the guest should stop by itself
	msgStop   messageKind = 'S' // the guest is interrupted
	msgRoomIs messageKind = 'M' // the answer to msgRoom, in bytes
	// On the control pipe, with the numbers of the run and of the request:
	msgHTTPHead messageKind = 'a' // the head of its response
	msgHTTPBody messageKind = 'b' // a piece of its body
	msgHTTPDone messageKind = 'z' // it is over: an errno, 0 is none, and a sentence

	// From the process.
	msgReady    messageKind = 'h' // JSON, ready
	msgPong     messageKind = 'p' // the answer to a ping: empty
	msgStarted  messageKind = 's' // the guest runs from here on: empty
	msgEvent    messageKind = 'e' // a driver event
	msgStderr   messageKind = 'd' // a piece of stderr
	msgEnding   messageKind = 'r' // an Ending: the process takes the next guest
	msgCompiled messageKind = 'c' // JSON, compileAnswer
	msgRoom     messageKind = 'm' // how much may the guest still write: empty
	// With the number of a request:
	msgHTTPSend  messageKind = 'q' // its head and its body
	msgHTTPRead  messageKind = 'w' // the guest read so many bytes of the response
	msgHTTPClose messageKind = 'x' // the guest wants nothing more of it
)

// errBadMessage says that the other side does not keep to the protocol.
var errBadMessage = errors.New("bad message")

// conn is what carries the messages: a [duplex].
type conn interface {
	io.ReadWriteCloser
	SetDeadline(time.Time) error
}

// pipe is one end of a connection that passes messages. A message is the length of
// what follows (4 bytes, little endian), its kind, and its body. Sends may be
// concurrent; receives are one goroutine's.
type pipe struct {
	conn conn
	in   *bufio.Reader
	body []byte // of the last message received

	mu     sync.Mutex // guards what follows
	out    encoder    // messages that were not written yet
	wrote  time.Time  // the last time
	timer  *time.Timer
	armed  bool
	broken error // of a write that nobody waited for
}

func newPipe(conn conn) *pipe {
	return &pipe{conn: conn, in: bufio.NewReaderSize(conn, 16<<10)}
}

// keptBytes is how large a buffer may be that is kept for the next message.
const keptBytes = 256 << 10

// send writes a message, and what waits before it, with one system call. It
// blocks while the other side does not read.
func (p *pipe) send(kind messageKind, body func(*encoder)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.add(kind, body); err != nil {
		return err
	}
	return p.flush()
}

// sendWithin is send that gives up when the other side does not read for so long.
// Then a part of the message may have been written, and nothing more can be sent.
func (p *pipe) sendWithin(d time.Duration, kind messageKind, body func(*encoder)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.add(kind, body); err != nil {
		return err
	}
	err := p.conn.SetDeadline(time.Now().Add(d))
	if err == nil {
		err = p.flush()
	}
	if err != nil {
		p.broken = err
		return err
	}
	return p.conn.SetDeadline(time.Time{})
}

// The bounds of a message that may wait for others.
const (
	sendDelay  = time.Millisecond
	sendBuffer = 32 << 10
)

// sendSoon is send for one of many messages: those that come within a
// millisecond of the last write are written together. The first of them, and a
// buffer that is full, are written at once.
func (p *pipe) sendSoon(kind messageKind, body func(*encoder)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.add(kind, body); err != nil {
		return err
	}
	if len(p.out.b) >= sendBuffer || time.Since(p.wrote) >= sendDelay {
		return p.flush()
	}
	if p.armed {
		return nil
	}
	p.armed = true
	if p.timer == nil {
		p.timer = time.AfterFunc(sendDelay, p.hasten)
	} else {
		p.timer.Reset(sendDelay)
	}
	return nil
}

// sendLater is send for a message that waits for the next one, or for hasten.
func (p *pipe) sendLater(kind messageKind, body func(*encoder)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.add(kind, body)
}

// hasten writes what waits. Whoever sends next hears that it failed.
func (p *pipe) hasten() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = false
	p.broken = cmp.Or(p.broken, p.flush())
}

// add puts a message behind those that wait. p.mu is held.
func (p *pipe) add(kind messageKind, body func(*encoder)) error {
	if p.broken != nil {
		return p.broken
	}
	at := len(p.out.b)
	p.out.b = append(p.out.b, 0, 0, 0, 0, byte(kind))
	if body != nil {
		body(&p.out)
	}
	size := len(p.out.b) - at - 4
	if size > maxMessageBytes {
		p.out.b = p.out.b[:at]
		return fmt.Errorf("%w: it would have %d bytes", errBadMessage, size)
	}
	binary.LittleEndian.PutUint32(p.out.b[at:], uint32(size))
	return nil
}

// flush writes what waits. p.mu is held.
func (p *pipe) flush() error {
	if len(p.out.b) == 0 {
		return nil
	}
	_, err := p.conn.Write(p.out.b)
	p.wrote = time.Now()
	if p.out.b = p.out.b[:0]; cap(p.out.b) > keptBytes {
		p.out.b = nil
	}
	return err
}

// receive reads the next message. Its body is valid until the next call. What
// is announced is not believed before it is there: a large body grows with what
// arrives.
func (p *pipe) receive() (messageKind, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(p.in, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.LittleEndian.Uint32(head[:])
	if size < 1 || size > maxMessageBytes {
		return 0, nil, fmt.Errorf("%w: its length is %d", errBadMessage, size)
	}
	left := int(size) - 1
	if cap(p.body) > keptBytes {
		p.body = nil
	}
	p.body = p.body[:0]
	for left > 0 {
		piece := min(left, keptBytes)
		at := len(p.body)
		p.body = append(p.body, make([]byte, piece)...)
		if _, err := io.ReadFull(p.in, p.body[at:]); err != nil {
			return 0, nil, errors.Join(err, io.ErrUnexpectedEOF)
		}
		left -= piece
	}
	return messageKind(head[4]), p.body, nil
}

// encoder appends values to a message.
type encoder struct{ b []byte }

func (e *encoder) num(n int64) { e.b = binary.AppendVarint(e.b, n) }

func (e *encoder) yes(v bool) {
	if v {
		e.b = append(e.b, 1)
		return
	}
	e.b = append(e.b, 0)
}

func (e *encoder) str(s string) {
	e.b = binary.AppendUvarint(e.b, uint64(len(s)))
	e.b = append(e.b, s...)
}

func (e *encoder) strs(list []string) {
	e.b = binary.AppendUvarint(e.b, uint64(len(list)))
	for _, s := range list {
		e.str(s)
	}
}

// decoder takes values from a message. After the first value that is not there
// all others are zero, and err says so.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail() {
	d.b = nil
	if d.err == nil {
		d.err = fmt.Errorf("%w: it ends too early", errBadMessage)
	}
}

func (d *decoder) num() int64 {
	n, size := binary.Varint(d.b)
	if size <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[size:]
	return n
}

func (d *decoder) yes() bool {
	if len(d.b) == 0 || d.b[0] > 1 {
		d.fail()
		return false
	}
	v := d.b[0] == 1
	d.b = d.b[1:]
	return v
}

func (d *decoder) bytes() []byte {
	n, size := binary.Uvarint(d.b)
	if size <= 0 || n > uint64(len(d.b)-size) {
		d.fail()
		return nil
	}
	b := d.b[size : size+int(n)]
	d.b = d.b[size+int(n):]
	return b
}

func (d *decoder) str() string { return string(d.bytes()) }

func (d *decoder) strs() []string {
	n, size := binary.Uvarint(d.b)
	if size <= 0 || n > uint64(len(d.b)-size) { // each takes a byte at least
		d.fail()
		return nil
	}
	d.b = d.b[size:]
	var list []string
	for range n {
		list = append(list, d.str())
		if d.err != nil {
			return nil
		}
	}
	return list
}

// end reports what went wrong, or that something is left.
func (d *decoder) end() error {
	if d.err == nil && len(d.b) > 0 {
		d.err = fmt.Errorf("%w: %d bytes too many", errBadMessage, len(d.b))
	}
	return d.err
}
