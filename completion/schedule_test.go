package completion_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"starling/completion"
	"starling/testenv"
)

// TestADoorThatIsDownForTenMinutes: the schedule of the tries, by a clock of the
// test's own. The port, the connections and the posts are real.
func TestADoorThatIsDownForTenMinutes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		tries      int           // at 0, 1, 3, 7, 15, … seconds
		down, ends time.Duration // ends: when Deliver does
		told       bool
	}{
		{name: "the default", tries: 2, down: 10 * time.Minute, ends: time.Second},
		{name: "the default, and a blink", tries: 2, down: 500 * time.Millisecond, ends: time.Second, told: true},
		{name: "eleven tries", tries: 11, down: 10 * time.Minute, ends: 1023 * time.Second, told: true},
		{name: "ten tries", tries: 10, down: 10 * time.Minute, ends: 511 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			port := testenv.ClosedPort(t)
			// The door is outside the bubble: the clock stands still while a goroutine in
			// it waits for the network.
			opens, open := make(chan struct{}), make(chan struct{})
			var door *testenv.RecordingDoor
			go func() {
				defer close(open)
				if _, ok := <-opens; ok {
					door = testenv.DoorOn(t, port.Open())
				}
			}()
			synctest.Test(t, func(t *testing.T) {
				b, err := completion.NewBridge(completion.Config{Tries: c.tries})
				if err != nil {
					t.Fatal(err)
				}
				defer b.Close()
				timer := time.AfterFunc(c.down, func() { opens <- struct{}{}; <-open })
				began := time.Now()
				err = b.Deliver(t.Context(), handle("dlg_1", "http://"+port.Addr()), outcome("dlg_1"), "")
				if timer.Stop() {
					close(opens)
					<-open
				}
				if took := time.Since(began); took != c.ends {
					t.Errorf("Deliver took %s, want %s", took, c.ends)
				}
				if told := err == nil; told != c.told {
					t.Errorf("Deliver = %v, want it told: %t", err, c.told)
				}
				if err != nil && !strings.Contains(err.Error(), "failed to connect to "+port.Addr()) {
					t.Errorf("Deliver = %v, want that nobody listens", err)
				}
			})
			if door != nil && len(door.Posts()) != 1 {
				t.Errorf("the door got %d posts, want one", len(door.Posts()))
			}
		})
	}
}
