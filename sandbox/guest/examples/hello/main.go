// Command hello is the first capsule to run: it greets whoever the task names
// and shows on the way what a capsule can say: fragments of text, tool calls
// with progress, usage, and a result.
//
//	GOOS=wasip1 GOARCH=wasm go build -ldflags='-s -w' -o hello.wasm .
package main

import (
	"strconv"
	"strings"

	"starling/sandbox/guest"
)

func main() {
	task, err := guest.Task()
	if err != nil {
		guest.TurnFailed(guest.FailOther, "cannot read the task: "+err.Error())
		return
	}
	name := strings.TrimSpace(task)
	if name == "" {
		name = "world"
	}

	stream("Let me look who is there.\n")
	count := call("call-1", "count_letters", name, func() string {
		return strconv.Itoa(len([]rune(name)))
	})
	stream("A name of " + count + " letters. And how loud?\n")
	loud := call("call-2", "upper_case", name, func() string { return strings.ToUpper(name) })

	answer := "Hello, " + loud + "!"
	stream(answer + "\n")
	guest.Usage{Input: int64(len(task)), Output: int64(len(answer))}.Emit()
	guest.TurnEnd(answer)
}

// stream says a text word by word, as a model would.
func stream(text string) {
	for _, word := range strings.SplitAfter(text, " ") {
		guest.TextDelta(word)
	}
}

// call makes a tool call: it is written, which is the progress, then run.
func call(id, tool, argument string, run func() string) string {
	input := `{"text":` + guest.Quote(argument) + `}`
	guest.ToolCallStarted(id, tool)
	for written := 4; written < len(input); written += 4 {
		guest.ToolCallProgress(id, int64(written))
	}
	guest.ToolCall(id, tool, input)
	output := run()
	guest.ToolResult(id, output, false)
	return output
}
