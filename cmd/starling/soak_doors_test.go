//go:build soak

package main

import (
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"starling/protocol"
	"starling/testenv"
)

// The moods of a door.
const (
	moodUp      = "takes it"
	moodSlow    = "takes it late"
	moodLost    = "takes it and gives no answer"
	moodHalf    = "takes it and gives half an answer"
	moodHang    = "hangs"
	mood500     = "says 500"
	mood429     = "says 429"
	moodRefuse  = "refuses"
	moodReject  = "rejects"
	moodDown    = "is down"
	moodDialect = "speaks another dialect"
)

var badMoods = []string{moodSlow, moodLost, moodHalf, moodHang, mood500, mood429, moodRefuse, moodReject, moodDown}

// soakParent is a parent's session and its door, whose mood changes.
type soakParent struct {
	t       *testing.T
	session protocol.SessionID
	speaks  string // method of the dialect; "": both
	addr    string
	handler http.Handler

	mu     sync.Mutex
	mood   string
	server *http.Server // nil while the door is down
	served chan struct{}
	book   []*bookedPost
	downs  []misery
}

func newSoakParent(t *testing.T, i int) *soakParent {
	t.Helper()
	p := &soakParent{t: t, session: protocol.NewSessionID(), mood: moodUp, speaks: []string{"message/send", "SendMessage", ""}[i%3]}
	// The recorder reads the posts; the door itself listens where it can be shut.
	p.handler = testenv.Door(t, p.answer)
	p.open("127.0.0.1:0")
	t.Cleanup(p.shut)
	return p
}

func (p *soakParent) url() string { return "http://" + p.addr + "/a2a" }

func (p *soakParent) open(addr string) {
	p.t.Helper()
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		p.t.Fatal(err)
	}
	server, served := &http.Server{Handler: p.handler, ReadHeaderTimeout: time.Minute}, make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // says that it was shut
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addr, p.server, p.served = listener.Addr().String(), server, served
}

// shut closes the door, and the connections of posts that are under way.
func (p *soakParent) shut() {
	p.mu.Lock()
	server, served := p.server, p.served
	p.server = nil
	p.mu.Unlock()
	if server != nil {
		_ = server.Close()
		<-served
	}
}

// turn changes the mood.
func (p *soakParent) turn(mood string) {
	p.t.Helper()
	p.mu.Lock()
	was := p.mood
	p.mood = mood
	switch {
	case mood == moodDown && was != moodDown:
		p.downs = append(p.downs, misery{from: time.Now(), to: time.Now().Add(24 * time.Hour)})
		for _, entry := range slices.Backward(p.book) { // what is on its way may be lost with the connection
			if time.Since(entry.At) > 2*time.Second {
				break
			}
			entry.answered = false
		}
	case mood != moodDown && was == moodDown:
		p.downs[len(p.downs)-1].to = time.Now()
	}
	addr := p.addr
	p.mu.Unlock()
	switch {
	case mood == moodDown:
		p.shut()
	case was == moodDown:
		p.open(addr)
	}
}

// answer is what the recorder asks for each post.
func (p *soakParent) answer(w http.ResponseWriter, r *http.Request, post testenv.Post) {
	entry := &bookedPost{Post: post}
	p.mu.Lock()
	entry.mood = p.mood
	if p.speaks != "" && p.speaks != post.Method {
		entry.mood = moodDialect
	}
	switch entry.mood {
	case moodUp, moodSlow, moodLost, moodHalf:
		entry.taken = true
	}
	p.book = append(p.book, entry)
	p.mu.Unlock()
	switch entry.mood {
	case moodSlow:
		late := time.NewTimer(1500 * time.Millisecond)
		defer late.Stop()
		select {
		case <-late.C:
		case <-r.Context().Done():
			return
		}
		testenv.Accept()(w, r, post)
	case moodUp:
		testenv.Accept()(w, r, post)
	case moodLost:
		testenv.Drop()(w, r, post)
	case moodHalf:
		testenv.HalfBody()(w, r, post)
	case moodHang:
		testenv.Hang(nil)(w, r, post)
	case mood500:
		testenv.Raw(http.StatusInternalServerError, `{"oops":true}`)(w, r, post)
	case mood429:
		w.Header().Set("Retry-After", "1")
		testenv.Raw(http.StatusTooManyRequests, "")(w, r, post)
	case moodRefuse:
		testenv.Refuse(-32603, "not now")(w, r, post)
	case moodReject:
		testenv.Reject()(w, r, post)
	case moodDialect:
		testenv.Refuse(-32601, "no such method")(w, r, post)
	}
	if entry.taken && (entry.mood == moodUp || entry.mood == moodSlow) {
		flushed := http.NewResponseController(w).Flush()
		p.mu.Lock()
		// A worker waits for 3 s: an answer near that may come too late for it.
		entry.answered = flushed == nil && r.Context().Err() == nil && p.mood != moodDown && time.Since(entry.At) < 2*time.Second
		p.mu.Unlock()
	}
}

// read copies the book.
func (p *soakParent) read() []bookedPost {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []bookedPost
	for _, entry := range p.book {
		all = append(all, *entry)
	}
	return all
}

// book is what all doors were told.
func (s *soak) book() []bookedPost {
	var all []bookedPost
	for _, p := range s.parents {
		all = append(all, p.read()...)
	}
	return all
}

// unheard excuses a door that no post reached: it was down, or shut meanwhile.
func (s *soak) unheard(job protocol.Job, rec protocol.Record) string {
	for _, p := range s.parents {
		if job.Spawner.URL != p.url() {
			continue
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		down := slices.ContainsFunc(p.downs, func(m misery) bool { return m.to.After(rec.EndedAt.Std()) })
		switch {
		case down && strings.Contains(rec.Outcome.DeliveryError, "failed to connect"):
			return "the door was down"
		case down:
			return "the door was shut meanwhile"
		}
	}
	return ""
}

// planDoors gives every door moods until the end: it takes half of the time.
func (s *soak) planDoors(random *rand.Rand) {
	for _, p := range s.parents {
		for at := 4 + 4*random.Float64(); at < s.params.duration.Seconds(); {
			mood, for_ := badMoods[random.IntN(len(badMoods))], 1+4*random.Float64()
			s.agenda.add(at, func() { s.count["door "+mood]++; p.turn(mood) })
			s.agenda.add(at+for_, func() { p.turn(moodUp) })
			at += for_ + 2 + 6*random.Float64()
		}
	}
}
