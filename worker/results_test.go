package worker_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"starling/protocol"
)

// TestWhatAnswers are the sources of an answer, in their order, in both modes.
//
// Source: docs/protocol.md, section 5, Output.
func TestWhatAnswers(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.hire(t, nil)
	const fragments = `{"event":"text-delta","text":"a"}` + "\n" + `{"event":"text-delta","text":"b"}` + "\n"
	const whole = `{"event":"text","text":"whole"}` + "\n"
	const call = `{"event":"tool-call","id":"c","name":"t","input":{}}` + "\n" + `{"event":"tool-result","id":"c","output":"o","is_error":false}` + "\n"
	for name, c := range map[string]struct {
		steps  []step
		events bool
		scope  string
		task   string
		answer string
		file   string // content of out/result.txt below the work directory
	}{
		"text: all of stdout":                   {steps: []step{say("one "), say("two")}, answer: "one two", file: "one two"},
		"text: out/result.txt before stdout":    {steps: []step{say("noise"), mkdir("out"), file("out/result.txt", "mine", 0)}, answer: "mine", file: "mine"},
		"text: an empty out/result.txt is one":  {steps: []step{say("noise"), mkdir("out"), file("out/result.txt", "", 0)}},
		"text: bytes that are no UTF-8":         {steps: []step{say("a\xffb")}, answer: "a\uFFFDb", file: "a\uFFFDb"},
		"events: out/result.txt before texts":   {steps: []step{echo(), mkdir("out"), file("out/result.txt", "mine", 0)}, events: true, task: whole, answer: "mine", file: "mine"},
		"events: turn-end before all":           {steps: []step{echo(), mkdir("out"), file("out/result.txt", "mine", 0)}, events: true, task: `{"event":"turn-end","result":"said"}`, answer: "said", file: "mine"},
		"events: the last whole text":           {steps: []step{echo()}, events: true, task: fragments + whole + fragments, answer: "whole", file: "whole"},
		"events: fragments without a whole":     {steps: []step{echo()}, events: true, task: fragments, answer: "ab", file: "ab"},
		"events: only since the last result":    {steps: []step{echo()}, events: true, task: whole + call + fragments, answer: "ab", file: "ab"},
		"events: nothing since the last result": {steps: []step{echo()}, events: true, task: whole + fragments + call},
		"scope: the file is under the guest's root": {
			steps: []step{say("noise"), mkdir("out"), file("out/result.txt", "mine", 0)}, scope: "agent/home", answer: "mine", file: "mine",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			capsule := f.push(t, strings.NewReplacer(" ", "-", ":", "", "/", "", ".", "", "'", "").Replace(name), guest(t, c.steps...), func(m *protocol.Manifest) {
				if c.events {
					m.Output = protocol.OutputEvents
				}
				m.Capabilities.Filesystem.Scope = c.scope
			})
			e := f.end(t, f.job(capsule, "task\n"+c.task))
			if r := e.response(); r == nil || r.Text != c.answer || !r.Final || r.Append {
				t.Errorf("response = %+v, want %q, final, not appended", r, c.answer)
			}
			if got := e.file(t, "out/result.txt"); got != c.file {
				t.Errorf("out/result.txt = %q, want %q", got, c.file)
			}
		})
	}
}

// TestResultPath is the order in which a result file is looked for.
func TestResultPath(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.hire(t, nil)
	own := f.job(protocol.CapsuleRef{}, "x")
	own.Capsule = f.push(t, "own", guest(t, mkdir("out"), file("out/result_"+string(own.TaskID)+".txt", "by task", 0), file("out/result.txt", "common", 0)))
	e := f.end(t, own)
	if got, want := e.rec.Outcome.ResultPath, "out/result_"+string(own.TaskID)+".txt"; got != want {
		t.Errorf("result_path = %q, want %q", got, want)
	}
}

// TestLargeResult is the object store's part: a response over 256 KiB is cut at
// a character and marked, and the whole is stored.
func TestLargeResult(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.hire(t, nil)
	// At the bound a result is whole; one character past it, it is cut.
	for name, c := range map[string]struct {
		unit  string
		count int
		cut   int // bytes of the response; 0: whole
	}{
		"at the bound":         {"x", 256 << 10, 0},
		"one past the bound":   {"x", 256<<10 + 1, 256 << 10},
		"cut at a character":   {"€", 100_000, 256<<10 - 1},
		"eight times the size": {"y", 2 << 20, 256 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			whole := strings.Repeat(c.unit, c.count)
			// The job has a bound too: the guest writes what it has in pieces.
			steps := make([]step, 0, c.count/1000+1)
			for n := c.count; n > 0; n -= 1000 {
				piece := strings.Repeat(c.unit, min(n, 1000))
				steps = append(steps, func(p *program) { p.do("(call $put (i32.const 1) %s)", p.shared(piece)) })
			}
			job := f.job(f.push(t, strings.ReplaceAll(name, " ", "-"), guest(t, steps...)), "x")
			e := f.end(t, job)
			o, r := e.rec.Outcome, e.response()
			if e.file(t, "out/result.txt") != whole {
				t.Error("out/result.txt is not the whole result")
			}
			if c.cut == 0 {
				if o.ResultObject != nil || r.Truncated || r.Text != whole {
					t.Errorf("result_object = %+v, truncated %t, %d bytes; want the whole and no object", o.ResultObject, r.Truncated, len(r.Text))
				}
				return
			}
			if !r.Truncated || r.Text != whole[:c.cut] {
				t.Errorf("response has %d bytes, truncated %t; want %d, truncated", len(r.Text), r.Truncated, c.cut)
			}
			want := &protocol.ResultObject{
				Bucket: "starling-results", Name: string(job.DelegationID) + "/" + string(o.SessionID) + ".txt",
				Digest: string(protocol.DigestOf([]byte(whole))), Size: int64(len(whole)),
			}
			if diff := cmp.Diff(want, o.ResultObject); diff != "" {
				t.Errorf("result_object (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want, r.Object); diff != "" {
				t.Errorf("the response's object (-want +got):\n%s", diff)
			}
			var stored bytes.Buffer
			if err := f.bus.FetchResult(t.Context(), *o.ResultObject, &stored); err != nil || stored.String() != whole {
				t.Errorf("FetchResult = %d bytes, %v; want the whole result", stored.Len(), err)
			}
		})
	}
}

// TestWorkDirectory is what an attempt finds and leaves on the host.
func TestWorkDirectory(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.hire(t, nil)
	capsule := f.push(t, "scoped", guest(t, say("done")), func(m *protocol.Manifest) { m.Capabilities.Filesystem.Scope = "agent/home" })
	e := f.end(t, f.job(capsule, "the task"))
	dir := e.rec.Workdir
	if want := filepath.Join(m.cfg.WorkRoot, string(e.rec.SessionID), "work"); dir != want || !filepath.IsAbs(dir) {
		t.Errorf("workdir = %q, want %q", dir, want)
	}
	for path, want := range map[string]os.FileMode{
		dir: 0o700 | os.ModeDir, filepath.Dir(dir): 0o700 | os.ModeDir, filepath.Join(dir, "agent/home"): 0o700 | os.ModeDir,
		filepath.Join(dir, "completion.json"): 0o600,
	} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("mode of %s = %s, want %s", path, info.Mode(), want)
		}
	}
	if got := e.file(t, "agent/home/task.md"); got != "the task" {
		t.Errorf("task.md in the scope = %q, want the task", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "task.md")); err == nil {
		t.Error("task.md is also outside the guest's root")
	}
	left, err := filepath.Glob(filepath.Join(dir, ".completion*"))
	if err != nil || len(left) != 0 {
		t.Errorf("temporary files left: %v, %v", left, err)
	}
}

// TestAFileNamedOutKeepsItsContent: the result is written where the protocol says,
// and what the guest wrote under the directory's name is put aside.
func TestAFileNamedOutKeepsItsContent(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.hire(t, nil)
	e := f.end(t, f.job(f.push(t, "flat", guest(t, say("said"), file("out", "work", 0))), "x"))
	if got := e.rec.Outcome.ResultPath; got != "out/result.txt" || e.file(t, got) != "said" {
		t.Errorf("result_path = %q, want out/result.txt with the result", got)
	}
	aside, err := filepath.Glob(filepath.Join(e.rec.Workdir, ".out.*.old"))
	if err != nil || len(aside) != 1 {
		t.Fatalf("what was out is %q, %v, want one file", aside, err)
	}
	if content, err := os.ReadFile(aside[0]); err != nil || string(content) != "work" {
		t.Errorf("what was out holds %q, %v, want %q", content, err, "work")
	}
}

// TestPlantedLinksAreNotFollowed has guests put links where the host reads and
// writes.
func TestPlantedLinksAreNotFollowed(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.hire(t, nil)
	up := strings.Repeat("../", 20) + "etc"
	for name, c := range map[string]struct {
		steps  []step
		link   string // must be planted: the test proves nothing otherwise
		answer string
		path   string // result_path
	}{
		"result-file": {[]step{say("said"), mkdir("out"), symlink(up+"/passwd", "out/result.txt")}, "", "said", "out/result.txt"},
		"out":         {[]step{say("said"), symlink(up, "out")}, ".out.*.old", "said", "out/result.txt"},
		"out-dangles": {[]step{say("said"), symlink("nowhere", "out")}, ".out.*.old", "said", "out/result.txt"},
		"out-loops":   {[]step{say("said"), symlink("out", "out")}, ".out.*.old", "said", "out/result.txt"},
		"out-inside":  {[]step{say("said"), mkdir("real"), symlink("real", "out")}, "out", "said", "out/result.txt"},
		"result-by-task": {
			[]step{say("said"), mkdir(".murmur"), symlink(up, ".murmur/x"), symlink(up+"/passwd", "passwd")}, "passwd", "said", "out/result.txt",
		},
		"completion": {[]step{say("said"), symlink(up+"/starling", "completion.json")}, "", "said", "out/result.txt"},
		"inside":     {[]step{say("said"), mkdir("out"), file("secret", "linked", 0), symlink("../secret", "out/result.txt")}, "", "said", "out/result.txt"},
		"directory":  {[]step{say("said"), mkdir("out"), mkdir("out/result.txt")}, "", "said", "out/result.txt"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			job := f.job(f.push(t, name, guest(t, c.steps...)), "x")
			e := f.end(t, job)
			if c.link != "" {
				found, err := filepath.Glob(filepath.Join(e.rec.Workdir, c.link))
				if err != nil || len(found) != 1 {
					t.Fatalf("%s is %q, %v, want one", c.link, found, err)
				}
				if info, err := os.Lstat(found[0]); err != nil || info.Mode()&os.ModeSymlink == 0 {
					t.Errorf("%s is no link: %v", c.link, err)
				}
			}
			if r := e.response(); r == nil || r.Text != c.answer {
				t.Errorf("response = %+v, want %q", r, c.answer)
			}
			switch got := e.rec.Outcome.ResultPath; {
			case got != c.path:
				t.Errorf("result_path = %q, want %q", got, c.path)
			default:
				info, err := os.Lstat(filepath.Join(e.rec.Workdir, got))
				if err != nil || !info.Mode().IsRegular() || e.file(t, got) != c.answer {
					t.Errorf("%s is no regular file with the answer: %v", got, err)
				}
			}
			info, err := os.Lstat(filepath.Join(e.rec.Workdir, "completion.json"))
			if err != nil || !info.Mode().IsRegular() {
				t.Errorf("completion.json is no regular file: %v", err)
			}
			e.checkTold(t, f, job)
		})
	}
}
