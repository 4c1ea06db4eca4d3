package broker_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"starling/broker"
	"starling/testenv"
)

// TestRemovedJobsLoseNoOther: the job of a lost worker is redelivered, however
// many jobs an operator takes out of the stream meanwhile. A purge by subject
// makes the server forget deliveries that wait for their ack.
func TestRemovedJobsLoseNoOther(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	if err := b.Init(t.Context(), broker.InitConfig{AckWait: time.Second}); err != nil {
		t.Fatal(err)
	}
	held := newJob()
	dispatched(t, b, held)
	lost := take(t, b, broker.TakerConfig{Slots: 1}) // never settles what it takes
	lost.next(t)

	w := take(t, b, broker.TakerConfig{Slots: 100})
	back, stop := make(chan struct{}), make(chan struct{})
	var worker sync.WaitGroup
	worker.Go(func() {
		var once sync.Once
		for {
			select {
			case d := <-w.deliveries:
				if err := d.Ack(t.Context()); err != nil {
					t.Error(err)
				}
				if place, err := d.Place(); err == nil && place.Task == held.TaskID {
					once.Do(func() { close(back) })
				}
				d.Release()
			case <-stop:
				return
			}
		}
	})
	defer worker.Wait()
	defer close(stop)

	var parents sync.WaitGroup
	for range 6 {
		parents.Go(func() {
			for range 30 {
				job := newJob()
				dispatched(t, b, job)
				_, err := b.Cancel(t.Context(), job.Spawner.SessionID, job.DelegationID, broker.CancelOptions{RemoveJob: true})
				if err != nil && !errors.Is(err, broker.ErrFinal) {
					t.Errorf("Cancel() = %v", err)
				}
			}
		})
	}
	parents.Wait()
	select {
	case <-back:
	case <-time.After(within):
		queued := len(storedOn(t, testenv.JetStream(t, s.URL()), jobsStream, "starling.jobs.default.user."+string(held.TaskID)))
		t.Errorf("the lost worker's job was not redelivered; %d of it in the stream", queued)
	}
}
