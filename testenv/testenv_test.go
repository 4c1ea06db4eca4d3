package testenv_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"starling/testenv"
)

func connect(t *testing.T, url string, options ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, append(options, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func echo(t *testing.T, nc *nats.Conn) {
	t.Helper()
	if _, err := nc.Subscribe("echo", func(m *nats.Msg) { _ = m.Respond(m.Data) }); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

func TestAServerComesBackOnItsPortWithItsStore(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	url := s.URL()
	js, err := jetstream.New(connect(t, url))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "s", []byte("x")); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	s.Stop()
	if nc, err := nats.Connect(url); err == nil {
		nc.Close()
		t.Error("a stopped server takes connections")
	}
	s.Restart()
	if s.URL() != url {
		t.Errorf("URL() = %s, was %s", s.URL(), url)
	}
	testenv.Eventually(t, 10*time.Second, func() error {
		stream, err := js.Stream(t.Context(), "S")
		if err == nil && stream.CachedInfo().State.Msgs != 1 {
			err = fmt.Errorf("it holds %d messages", stream.CachedInfo().State.Msgs)
		}
		return err
	})
}

func TestUsersHaveTheirRightsOnly(t *testing.T) {
	t.Parallel()
	u := testenv.User{Name: "u", Password: "p", Publish: []string{"a"}, Subscribe: []string{"b"}}
	s := testenv.NATS(t, testenv.WithUsers(u))
	if nc, err := nats.Connect(s.URL()); err == nil {
		nc.Close()
		t.Error("nobody is let in")
	}
	refused := make(chan error, 8)
	nc := connect(t, s.URLFor(u), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	if err := nc.Publish("a", nil); err != nil {
		t.Fatal(err)
	}
	if err := nc.Publish("b", nil); err != nil {
		t.Fatal(err)
	}
	if err := <-refused; !strings.Contains(err.Error(), `Publish to "b"`) {
		t.Errorf("refused: %v", err)
	}
}

func TestAClusterKeepsWhatOneServerTakesAway(t *testing.T) {
	t.Parallel()
	c := testenv.Cluster(t)
	js, err := jetstream.New(connect(t, c.URL()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, Replicas: 3}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "s", []byte("x")); err != nil {
		t.Fatal(err)
	}
	first := c.LeaderOf("S")
	c.Stop(first)
	testenv.EventuallyTrue(t, 20*time.Second, "another leader", func() bool { return c.LeaderOf("S") != first })
	testenv.Eventually(t, 20*time.Second, func() error { _, err := js.Publish(t.Context(), "s", []byte("y")); return err })
	c.Restart(first)
	stream, err := js.Stream(t.Context(), "S")
	if err != nil || stream.CachedInfo().State.Msgs < 2 {
		t.Errorf("after all: %v", err)
	}
}

func TestTheProxyCutsAndClientsComeBack(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	p := testenv.Proxy(t, s.URL())
	echo(t, connect(t, s.URL()))
	var cuts atomic.Int32
	nc := connect(t, p.URL(), nats.DisconnectErrHandler(func(*nats.Conn, error) { cuts.Add(1) }))
	p.Cut()
	testenv.EventuallyTrue(t, 5*time.Second, "cut", func() bool { return cuts.Load() > 0 })
	testenv.Eventually(t, 5*time.Second, func() error { _, err := nc.Request("echo", nil, time.Second); return err })
	p.Down()
	testenv.EventuallyTrue(t, 5*time.Second, "down", func() bool { return !nc.IsConnected() })
	if other, err := nats.Connect(p.URL(), nats.Timeout(time.Second)); err == nil {
		other.Close()
		t.Error("a proxy that is down takes connections")
	}
	p.Resume()
	testenv.Eventually(t, 5*time.Second, func() error { _, err := nc.Request("echo", nil, time.Second); return err })
}

func TestTheProxyStallsEachDirection(t *testing.T) {
	t.Parallel()
	for name, direction := range map[string]testenv.Direction{"to the server": testenv.ToServer, "to the client": testenv.ToClient, "both": testenv.Both} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testenv.NATS(t)
			p := testenv.Proxy(t, s.URL())
			server := connect(t, s.URL())
			var heard atomic.Int32
			if _, err := server.Subscribe("echo", func(m *nats.Msg) { heard.Add(1); _ = m.Respond(m.Data) }); err != nil {
				t.Fatal(err)
			}
			if err := server.Flush(); err != nil {
				t.Fatal(err)
			}
			nc := connect(t, p.URL())
			answers, err := nc.SubscribeSync("answers")
			if err != nil {
				t.Fatal(err)
			}
			if err := nc.Flush(); err != nil {
				t.Fatal(err)
			}
			p.Stall(direction)
			if err := nc.PublishRequest("echo", "answers", []byte("x")); err != nil {
				t.Fatal(err)
			}
			if _, err := answers.NextMsg(100 * time.Millisecond); err == nil {
				t.Error("an answer passed")
			}
			if got, want := heard.Load() == 1, direction == testenv.ToClient; got != want {
				t.Errorf("the request passed: %t, want %t", got, want)
			}
			p.Resume()
			if _, err := answers.NextMsg(5 * time.Second); err != nil {
				t.Errorf("after Resume: %v", err)
			}
		})
	}
}

func TestTheProxyLosesWholeMessages(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	p := testenv.Proxy(t, s.URL())
	echo(t, connect(t, s.URL()))
	nc := connect(t, p.URL())
	big := []byte(strings.Repeat("MSG a 1 3\r\nabc\r\n", 10_000))
	p.DropAnswers(func(_ string, payload []byte) bool { return string(payload) == "lose" })
	for i := range 20 {
		_, err := nc.Request("echo", []byte("lose"), 20*time.Millisecond)
		if err == nil {
			t.Fatal("an answer that was to be lost came")
		}
		m := nats.NewMsg("echo")
		m.Data = big
		m.Header.Set("I", fmt.Sprint(i))
		answer, err := nc.RequestMsg(m, 5*time.Second)
		if err != nil || string(answer.Data) != string(big) {
			t.Fatalf("another came as %d bytes, %v", len(answer.Data), err)
		}
	}
	if p.Dropped() != 20 {
		t.Errorf("Dropped() = %d, want 20", p.Dropped())
	}
	p.DropAnswers(nil)
	if _, err := nc.Request("echo", []byte("lose"), 5*time.Second); err != nil {
		t.Errorf("after all: %v", err)
	}
}
