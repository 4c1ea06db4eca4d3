package completion_test

import (
	"context"
	"fmt"
	"net/http/httptest"

	"starling/completion"
	"starling/protocol"
)

// A parent in Go mounts a door and reads what it took.
func ExampleDoor() {
	door, err := completion.NewDoor(completion.DoorConfig{SessionID: "ses_parent"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer door.Close()
	server := httptest.NewServer(door)
	defer server.Close()

	bridge, err := completion.NewBridge(completion.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer bridge.Close()
	handle := protocol.Spawner{
		SessionID: "ses_parent", ContextID: "ctx_parent", DelegationID: "dlg_0a",
		URL: server.URL, Trust: protocol.Trusted,
	}
	o := protocol.Outcome{
		DelegationID: "dlg_0a", CapsuleName: "hello", CapsuleVersion: "1.0.0", SessionID: "ses_child",
		Status: protocol.StatusOK, ResultPath: "out/result.txt", Workdir: "/srv/w", DurationMS: 42,
	}
	for range 2 { // told twice, handed on once
		if err := bridge.Deliver(context.Background(), handle, o, ""); err != nil {
			fmt.Println(err)
		}
	}
	got := <-door.Received()
	fmt.Println(got.DelegationID, got.Class.Origin, got.Class.Trust, len(door.Received()))
	fmt.Println(got.Text)
	// Output:
	// dlg_0a completion trusted 0
	// Delegated capsule finished.
	// delegation_id: dlg_0a
	// capsule: hello@1.0.0
	// session_id: ses_child
	// status: ok
	// duration_ms: 42
	// workdir: /srv/w
	// result: out/result.txt (in that workdir)
	//
	// The child's own output is in that file and is not reproduced here.
}

// A door that has closed rejects the news, and the error says so.
func ExampleBridge() {
	door, err := completion.NewDoor(completion.DoorConfig{SessionID: "ses_parent"})
	if err != nil {
		fmt.Println(err)
		return
	}
	door.Close()
	server := httptest.NewServer(door)
	defer server.Close()

	bridge, err := completion.NewBridge(completion.Config{Tries: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer bridge.Close()
	handle := protocol.Spawner{
		SessionID: "ses_parent", ContextID: "ctx_parent", DelegationID: "dlg_0a",
		URL: server.URL, Trust: protocol.Trusted,
	}
	err = bridge.Deliver(context.Background(), handle, protocol.Outcome{DelegationID: "dlg_0a", Status: protocol.StatusOK}, "")
	fmt.Println(err)
	// Output:
	// the parent rejected the completion: its queue is full or its session has stopped taking work
}
