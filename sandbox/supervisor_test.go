package sandbox_test

import (
	"context"
	"testing"

	"starling/protocol"
	"starling/sandbox"
	"starling/testenv"
)

func TestSupervisorRunsAGuest(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t)
	for range 3 {
		end := s.Run(context.Background(), spec(t, testenv.WAT(t, "noop")), func(protocol.Event) {})
		if end.Kind != sandbox.Exited {
			t.Fatalf("Run = %+v, want exited", end)
		}
	}
}
