package guest_test

import (
	"context"
	"errors"
	"fmt"

	"starling/sandbox/guest"
)

// A capsule that streams its answer. Run on the host, the events are lines.
func Example() {
	guest.TextDelta("The answer ")
	guest.TextDelta("is 42.")
	guest.TurnEnd("The answer is 42.")
	// Output:
	// {"event":"text-delta","text":"The answer "}
	// {"event":"text-delta","text":"is 42."}
	// {"event":"turn-end","result":"The answer is 42."}
}

// A tool call is started, written, completed and answered.
func ExampleToolCall() {
	guest.ToolCallStarted("call-1", "search")
	guest.ToolCallProgress("call-1", 11)
	guest.ToolCall("call-1", "search", `{"q":"larks"}`)
	guest.ToolResult("call-1", "3 results", false)
	// Output:
	// {"event":"tool-call-started","id":"call-1","name":"search"}
	// {"event":"tool-call-progress","id":"call-1","input_bytes":11}
	// {"event":"tool-call","id":"call-1","name":"search","input":{"q":"larks"}}
	// {"event":"tool-result","id":"call-1","output":"3 results","is_error":false}
}

func ExampleTurnFailed() {
	guest.TurnFailed(guest.FailQuota, `the model said "later"`)
	// Output:
	// {"event":"turn-failed","kind":"quota","message":"the model said \"later\""}
}

func ExampleUsage_Emit() {
	guest.Usage{Input: 1200, Output: 80}.Emit()
	// Output:
	// {"event":"usage","input":1200,"output":80,"cache_read":0,"cache_creation":0,"thinking":0}
}

// A long task looks now and then whether it still has to be done.
func ExampleCanceled() {
	for step := range 3 {
		if guest.Canceled() {
			guest.TurnFailed(guest.FailCanceled, "stopped when asked")
			return
		}
		fmt.Println("step", step)
	}
	// Output:
	// step 0
	// step 1
	// step 2
}

// A request, or anything else that takes a context, ends when the task is
// canceled.
func ExampleContext() {
	ctx, stop := guest.Context(context.Background())
	defer stop()
	if errors.Is(context.Cause(ctx), guest.ErrCanceled) {
		guest.TurnFailed(guest.FailCanceled, "stopped when asked")
		return
	}
	guest.TurnEnd("done in time")
	// Output:
	// {"event":"turn-end","result":"done in time"}
}
