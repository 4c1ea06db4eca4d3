package sandbox

import (
	"os"
	"strings"
	"time"

	"starling/protocol"
	"starling/sandbox/internal/egress"
)

// HostileProcess is the program of a sandbox process that breaks the protocol in the
// way that it is told by name. hanging and endless are servers that it may reach.
func HostileProcess(how, hanging, endless string) int {
	both, err := openData(0)
	if err != nil {
		return 1
	}
	stops, err := openControl(0)
	if err != nil {
		return 1
	}
	data, control := newPipe(both), newPipe(stops)
	var h hello
	if err := data.receiveJSON(msgHello, &h); err != nil || h.Run == nil {
		return 1
	}
	if err := data.sendJSON(msgReady, ready{Version: pipeVersion}); err != nil {
		return 1
	}
	_, body, err := data.receive()
	if err != nil {
		return 0 // it was never used
	}
	if _, err := decodeSpec(body); err != nil {
		return 1
	}
	p := hostileProcess{data: data, control: control, hanging: hanging}
	if !strings.Contains(how, "before the guest started") {
		p.must(data.send(msgStarted, nil))
	}
	end := Ending{Kind: Exited}
	switch how {
	case "acks of a handle there is not":
		for _, n := range []int64{0, -1, 1 << 62, -1 << 63} {
			p.number(msgHTTPRead, n, 5)
		}
	case "acks of bytes that never came":
		p.request(1, hanging, "")
		for _, n := range []int64{1 << 62, -1, -1 << 63, 1<<63 - 1} {
			p.number(msgHTTPRead, 1, n)
		}
		p.answer(msgHTTPBody)
	case "closes of a handle there is not":
		for _, n := range []int64{0, -1, 1 << 62} {
			p.number(msgHTTPClose, n)
		}
	case "ten thousand requests, closed":
		go p.discard()
		for i := range int64(10_000) {
			p.request(i+1, hanging, strings.Repeat("x", 4<<10))
			p.number(msgHTTPClose, i+1)
		}
	case "a request that is not granted", "a request before the guest started":
		p.request(1, "http://127.0.0.1:1", "")
		end.Stdout = p.answer(msgHTTPDone)
	case "a body that is too large":
		p.request(1, hanging, strings.Repeat("x", 9<<20))
		end.Stdout = p.answer(msgHTTPDone)
	case "a request that is cut off":
		p.must(data.send(msgHTTPSend, func(e *encoder) { e.num(1); e.b = append(e.b, 200, 'x') }))
	case "a request with more behind it":
		p.must(data.send(msgHTTPSend, func(e *encoder) { e.num(1); e.str("GET " + hanging + "\n"); e.str(""); e.str("more") }))
	case "a length of 4 GiB":
		_, err := data.conn.Write([]byte{0xff, 0xff, 0xff, 0xff, byte(msgHTTPSend)})
		p.must(err)
	case "17 requests":
		for i := range int64(egress.MaxInFlight + 1) {
			p.request(i+1, hanging, "")
		}
	case "bodies of 24 MiB":
		for i := range int64(3) {
			p.request(i+1, hanging, strings.Repeat("x", 8<<20))
		}
	case "a handle twice":
		p.request(1, hanging, "")
		p.request(1, hanging, "")
	case "events without an end":
		for {
			p.must(data.send(msgEvent, func(e *encoder) { encodeEvent(e, &protocol.Event{Kind: protocol.EventUsage}) }))
		}
	case "an event now and then":
		for now := time.NewTicker(200 * time.Millisecond); ; <-now.C {
			p.must(data.send(msgEvent, func(e *encoder) { encodeEvent(e, &protocol.Event{Kind: protocol.EventUsage}) }))
		}
	case "a refusal without an error", "a refusal without an error before the guest started":
		end.Kind = Refused
	case "questions for room without an end":
		go p.discard()
		for {
			p.must(data.send(msgRoom, nil))
		}
	case "a question for room that nobody has":
		p.must(data.send(msgRoom, nil))
	case "answers that are not read":
		p.request(1, endless, "")
		for {
			p.number(msgHTTPRead, 1, 1<<20)
		}
	default:
		return 1
	}
	p.must(data.send(msgEnding, func(e *encoder) { encodeEnding(e, &end) }))
	p.discard()
	return 0
}

type hostileProcess struct {
	data, control *pipe
	hanging       string
}

// must ends the process when the worker closed the pipes.
func (p *hostileProcess) must(err error) {
	if err != nil {
		os.Exit(3)
	}
}

func (p *hostileProcess) number(kind messageKind, numbers ...int64) {
	p.must(p.data.send(kind, func(e *encoder) {
		for _, n := range numbers {
			e.num(n)
		}
	}))
}

func (p *hostileProcess) request(id int64, url, body string) {
	p.must(p.data.send(msgHTTPSend, func(e *encoder) { e.num(id); e.str("POST " + url + "\n"); e.str(body) }))
}

// answer waits for a kind of answer and gives what it says.
func (p *hostileProcess) answer(kind messageKind) string {
	for {
		got, body, err := p.control.receive()
		p.must(err)
		if got == kind {
			return string(body)
		}
	}
}

func (p *hostileProcess) discard() {
	for {
		if _, _, err := p.control.receive(); err != nil {
			return
		}
	}
}
