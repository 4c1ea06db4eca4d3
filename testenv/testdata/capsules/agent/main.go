// Command agent is the capsule of many behaviours that tests run. The first word
// of its task says which, the rest are the behaviour's arguments.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"starling/sandbox/guest"
)

func main() {
	task, err := guest.Task()
	if err != nil {
		fmt.Fprintln(os.Stderr, "read task:", err)
		os.Exit(2)
	}
	words := strings.Fields(task)
	if len(words) == 0 {
		words = []string{"cat"}
	}
	behaviour, ok := behaviours[words[0]]
	if !ok {
		fmt.Fprintln(os.Stderr, "no such behaviour:", words[0])
		os.Exit(2)
	}
	behaviour(task, words[1:])
}

// behaviours are given the whole task and the words after the first.
var behaviours = map[string]func(task string, args []string){
	// echo prints the task.
	"echo": func(task string, _ []string) { fmt.Print(task) },
	// cat reads stdin again, at its end, and prints how many bytes it got.
	"cat": func(task string, _ []string) {
		again, err := io.ReadAll(os.Stdin)
		fmt.Printf("%d then %d bytes, error %v\n", len(task), len(again), err)
	},
	// fail STATUS writes two lines to stderr and exits.
	"fail": func(_ string, args []string) {
		fmt.Fprintln(os.Stderr, "something is wrong")
		fmt.Fprintln(os.Stderr, "giving up")
		os.Exit(number(args, 0, 3))
	},
	// panic ends as Go programs do.
	"panic": func(string, []string) { panic("a bug in the capsule") },
	// sleeper waits until it is canceled, then ends its turn.
	"sleeper": func(string, []string) {
		guest.Note("ready")
		for !guest.Canceled() {
			time.Sleep(5 * time.Millisecond)
		}
		guest.TurnFailed(guest.FailCanceled, "stopped when asked")
	},
	// asker computes until its context says that it was canceled.
	"asker": func(string, []string) {
		ctx, stop := guest.Context(context.Background())
		defer stop()
		guest.Note("ready")
		for ctx.Err() == nil {
		}
		guest.TurnFailed(guest.FailCanceled, context.Cause(ctx).Error())
	},
	// talker talks until a context made from the task's is done.
	"talker": func(string, []string) {
		task, stop := guest.Context(context.Background())
		defer stop()
		ctx, cancel := context.WithTimeout(task, time.Hour)
		defer cancel()
		guest.Note("ready")
		for said := false; !said; {
			select {
			case <-ctx.Done():
				guest.TurnFailed(guest.FailCanceled, context.Cause(ctx).Error())
				said = true
			default:
				guest.ThinkingDelta("x")
			}
		}
	},
	// stubborn says that it is ready and never stops.
	"stubborn": func(string, []string) {
		guest.Note("ready")
		forever()
	},
	// again waits for ever in the first attempt and ends in any later one.
	"again": func(string, []string) {
		if guest.CurrentSession().Attempt > 1 {
			return
		}
		guest.TextDelta("waiting")
		forever()
	},
	// endless says that it waits, in any attempt, and never stops.
	"endless": func(string, []string) {
		guest.TextDelta("waiting")
		forever()
	},
	// nap MILLISECONDS sleeps and prints "rested".
	"nap": func(_ string, args []string) {
		time.Sleep(time.Duration(number(args, 0, 10)) * time.Millisecond)
		fmt.Print("rested")
	},
	// chatty COUNT SIZE emits so many fragments of so many bytes.
	"chatty": func(_ string, args []string) {
		count, text := number(args, 0, 1000), strings.Repeat("x", number(args, 1, 10))
		for range count {
			guest.TextDelta(text)
		}
		guest.TurnEnd("said " + strconv.Itoa(count) + " fragments")
	},
	// lines COUNT prints so many numbered lines to stdout.
	"lines": func(_ string, args []string) {
		out := bufio.NewWriter(os.Stdout)
		for n := range number(args, 0, 1000) {
			fmt.Fprintln(out, n)
		}
		_ = out.Flush()
	},
	// files reads task.md and writes out/result.txt.
	"files": func(string, []string) {
		task, err := os.ReadFile("task.md")
		check(err)
		check(guest.WriteResult("result of: " + string(task)))
		fmt.Print("wrote it")
	},
	// ls prints every path below "/".
	"ls": func(string, []string) {
		check(filepath.WalkDir("/", func(path string, entry os.DirEntry, err error) error {
			if err == nil {
				fmt.Println(path)
			}
			return err
		}))
	},
	// write PATH TEXT writes a file and prints what came of it.
	"write": func(_ string, args []string) {
		fmt.Printf("%v\n", os.WriteFile(args[0], []byte(args[1]), 0o644))
	},
	// read PATH prints a file.
	"read": func(_ string, args []string) {
		text, err := os.ReadFile(args[0])
		check(err)
		os.Stdout.Write(text)
	},
	// hostile WAY tries to change what lies below /lib/data and /ref.
	"hostile": func(_ string, args []string) { hostile(args[0]) },
	// env prints the environment and the arguments.
	"env": func(string, []string) {
		fmt.Printf("%q\n%q\n%+v\n", os.Args, os.Environ(), guest.CurrentSession())
	},
	// spend TOKENS STEPS uses so many tokens in each of so many steps.
	"spend": func(_ string, args []string) {
		tokens, steps := number(args, 0, 100), number(args, 1, 10)
		for n := 1; n <= steps; n++ {
			guest.Text("step " + strconv.Itoa(n))
			guest.Usage{Input: int64(n * tokens)}.Emit()
		}
		guest.TurnEnd("spent it all")
	},
	// turns COUNT makes so many turns, each with a text and a tool call.
	"turns": func(_ string, args []string) {
		for n := 1; n <= number(args, 0, 3); n++ {
			id := "call-" + strconv.Itoa(n)
			guest.TextDelta("turn " + strconv.Itoa(n))
			guest.ToolCallStarted(id, "tool")
			guest.ToolCallProgress(id, 10)
			guest.ToolCall(id, "tool", `{"n":`+strconv.Itoa(n)+`}`)
			guest.ToolResult(id, "output "+strconv.Itoa(n), false)
		}
		guest.TurnEnd("done")
	},
	// calls COUNT makes so many tool calls.
	"calls": func(_ string, args []string) {
		for n := range number(args, 0, 10) {
			guest.ToolCall(strconv.Itoa(n), "tool", "")
		}
		guest.TurnEnd("done")
	},
	// memory MEGABYTES allocates and touches so much.
	"memory": func(_ string, args []string) {
		var kept [][]byte
		for range number(args, 0, 1) {
			piece := make([]byte, 1<<20)
			for i := range piece {
				piece[i] = 1
			}
			kept = append(kept, piece)
		}
		fmt.Print(len(kept))
	},
	// repeat COUNT says a little and ends the turn with so many bytes.
	"repeat": func(_ string, args []string) {
		guest.TextDelta("see the result")
		guest.TurnEnd(strings.Repeat("x", number(args, 0, 10)))
	},
	// end RESULT ends the turn; failed KIND MESSAGE fails it.
	"end":    func(_ string, args []string) { guest.TurnEnd(strings.Join(args, " ")) },
	"failed": func(_ string, args []string) { guest.TurnFailed(guest.FailureKind(args[0]), args[1]) },
}

// forever keeps a processor busy.
func forever() {
	for n := 0; ; n++ {
		_ = n
	}
}

// hostile prints what came of each try; it goes on after failures.
func hostile(way string) {
	try := func(what string, err error) { fmt.Printf("%s: %v\n", what, err) }
	switch way {
	case "link":
		try("link", os.Link("/ref/c", "/mine"))
		try("write", os.WriteFile("/mine", []byte("changed"), 0o644))
		try("rename out", os.Rename("/ref/c", "/mine"))
		try("rename in", os.Rename("/lib/own", "/ref/c"))
	case "root":
		// Descriptor 3 is "/": a path through it does not meet the other grants.
		root, err := os.OpenRoot("/")
		try("open root", err)
		if err == nil {
			try("write", root.WriteFile("ref/c", []byte("changed"), 0o644))
			try("write", root.WriteFile("lib/data/a", []byte("changed"), 0o644))
			try("remove", root.RemoveAll("ref"))
		}
	case "rename":
		try("rename", os.Rename("/lib", "/moved"))
		try("write", os.WriteFile("/moved/data/a", []byte("changed"), 0o644))
		try("mkdir", os.MkdirAll("/lib/data", 0o755))
		try("remove", os.RemoveAll("/ref"))
		try("file", os.WriteFile("/ref", []byte("changed"), 0o644))
	case "symlink":
		try("rename", os.Rename("/lib", "/moved"))
		try("symlink", os.Symlink("moved", "/lib"))
		try("mkdir", os.MkdirAll("/moved/data", 0o755))
		try("write", os.WriteFile("/moved/data/a", []byte("changed"), 0o644))
	case "times":
		try("chtimes", os.Chtimes("/ref/c", time.Unix(1, 0), time.Unix(1, 0)))
		try("truncate", os.Truncate("/ref/c", 0))
		_, err := os.OpenFile("/ref/c", os.O_RDONLY|os.O_TRUNC, 0)
		try("open truncating", err)
		_, err = os.OpenFile("/ref/c", os.O_RDWR|os.O_APPEND, 0)
		try("open for appending", err)
		try("remove", os.Remove("/ref/c"))
	}
}

func number(args []string, i, otherwise int) int {
	if i >= len(args) {
		return otherwise
	}
	n, err := strconv.Atoi(args[i])
	check(err)
	return n
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
