package broker_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

func TestDeadLettersAreReadAndRemoved(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	readLetters(t, b)
}

func TestDeadLettersAtThreeReplicas(t *testing.T) {
	t.Parallel()
	b, _ := onCluster(t)
	readLetters(t, b)
}

func readLetters(t *testing.T, b *broker.Bus) {
	job := newJob()
	body, err := job.Encode()
	if err != nil {
		t.Fatal(err)
	}
	dispatched(t, b, job)
	d := take(t, b, broker.TakerConfig{Slots: 1}).next(t)
	if err := d.DeadLetter(t.Context(), protocol.DeadAttemptsSpent, "why"); err != nil {
		t.Fatal(err)
	}
	var letters []broker.DeadLetter
	testenv.Eventually(t, 20*time.Second, func() (err error) { // a replica may be behind
		letters, err = b.DeadLettersOf(t.Context(), job.TaskID)
		return err
	})
	l := letters[0]
	if len(letters) != 1 || l.TaskID != job.TaskID || l.Pool != job.Pool || l.Reason != protocol.DeadAttemptsSpent || l.Detail != "why" ||
		string(l.Body) != string(body) || l.At.IsZero() {
		t.Errorf("DeadLettersOf() = %+v, want the job's", letters)
	}
	for name := range l.Header {
		if strings.HasPrefix(name, "Nats-") || strings.HasPrefix(name, "Starling-") {
			t.Errorf("header %s is not the job's own", name)
		}
	}
	again, err := l.Retry()
	if err != nil {
		t.Fatal(err)
	}
	if twice, err := l.Retry(); err != nil || twice.DelegationID != again.DelegationID || twice.TaskID != again.TaskID {
		t.Errorf("Retry() twice = %s and %s, %v; want one", again.DelegationID, twice.DelegationID, err)
	}
	if err := again.Validate(); err != nil || again.DelegationID == job.DelegationID || again.Spawner.URL != job.Spawner.URL ||
		again.Spawner.DelegationID != again.DelegationID || again.Capsule != job.Capsule || len(again.DelegationID) != len(job.DelegationID) {
		t.Errorf("Retry() = %+v, %v; want the job under new ids", again, err)
	}
	for range 2 { // gone is no error
		if err := b.RemoveDeadLetter(t.Context(), l); err != nil {
			t.Errorf("RemoveDeadLetter() = %v", err)
		}
		testenv.Eventually(t, 20*time.Second, func() error {
			if _, err := b.DeadLettersOf(t.Context(), job.TaskID); !errors.Is(err, broker.ErrNoDeadLetter) {
				return fmt.Errorf("DeadLettersOf() = %w, want %v", err, broker.ErrNoDeadLetter)
			}
			return nil
		})
	}
	for letter, err := range b.DeadLetters(t.Context(), "") {
		t.Errorf("DeadLetters() gives %+v, %v; want none", letter, err)
	}
}
