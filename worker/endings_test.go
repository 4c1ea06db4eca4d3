package worker_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"starling/protocol"
	"starling/testenv"
)

// ended is what everybody can see of a task that has ended.
type ended struct {
	rec    protocol.Record
	frames []protocol.ReceivedFrame
}

func (e ended) terminal() protocol.ReceivedFrame { return e.frames[len(e.frames)-1] }

// response is the response frame, or nil.
func (e ended) response() *protocol.ReceivedFrame {
	for i, f := range e.frames {
		if f.Kind == protocol.FrameResponse {
			return &e.frames[i]
		}
	}
	return nil
}

// file reads a file of the work directory.
func (e ended) file(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(e.rec.Workdir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (f *fleet) end(t *testing.T, job protocol.Job) ended {
	t.Helper()
	rec, frames := f.run(t, job)
	return ended{rec, frames}
}

// situation is a row of section 8 together with the row of section 7 that it
// ends in.
type situation struct {
	status   protocol.Status
	reporter protocol.Reporter
	detail   string
	state    string
	message  string
	response *string
	result   string // content of out/result.txt; "" for launcher reports
}

func text(s string) *string { return &s }

const resources = "capsule execution exceeded its configured resource limits: "

// check compares all that is told of an ended task with its row.
func (e ended) check(t *testing.T, f *fleet, job protocol.Job, want situation) {
	t.Helper()
	o := e.rec.Outcome
	if o == nil {
		t.Fatalf("record %+v has no outcome", e.rec)
	}
	got := situation{status: o.Status, reporter: o.ReportedBy, detail: o.Detail, state: string(e.rec.Ending.State), message: e.rec.Ending.Message}
	if r := e.response(); r != nil {
		got.response = &r.Text
	}
	if o.ReportedBy == protocol.ReportedByChild {
		if o.ResultPath != "out/result.txt" {
			t.Errorf("result_path = %q, want out/result.txt", o.ResultPath)
		}
		got.result = e.file(t, o.ResultPath)
	} else if o.ResultPath != "" {
		t.Errorf("result_path of a launcher report = %q, want none", o.ResultPath)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(situation{})); diff != "" {
		t.Errorf("situation (-want +got):\n%s", diff)
	}
	if e.rec.Status != o.Status {
		t.Errorf("record's status = %s, want its outcome's %s", e.rec.Status, o.Status)
	}
	e.checkTold(t, f, job)
}

// checkTold compares frame, file and post with the record: all are made from it.
func (e ended) checkTold(t *testing.T, f *fleet, job protocol.Job) {
	t.Helper()
	o := *e.rec.Outcome
	last := e.terminal()
	if last.State != e.rec.Ending.State || last.Text != e.rec.Ending.Message {
		t.Errorf("terminal frame = %s %q, want the record's %s %q", last.State, last.Text, e.rec.Ending.State, e.rec.Ending.Message)
	}
	if o.Workdir != "" {
		file, err := o.File()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(file), e.file(t, protocol.CompletionFile)); diff != "" {
			t.Errorf("completion.json (-ledger +file):\n%s", diff)
		}
	}
	posts := f.door.PostsOf(job.DelegationID)
	if o.ParentEnded() {
		if len(posts) != 0 || o.Delivered {
			t.Errorf("the door got %d posts, delivered %t; want none", len(posts), o.Delivered)
		}
		return
	}
	if len(posts) != 1 || !o.Delivered || o.DeliveryError != "" {
		t.Fatalf("the door got %d posts, delivered %t %q; want one, delivered", len(posts), o.Delivered, o.DeliveryError)
	}
	if posts[0].Text != o.Text() || posts[0].MessageID != protocol.CompletionMessageID(job.DelegationID) {
		t.Errorf("post %s says\n%s\nwant %s\n%s", posts[0].MessageID, posts[0].Text, protocol.CompletionMessageID(job.DelegationID), o.Text())
	}
}

// TestSituations takes each way a capsule can end by itself from the job to
// everything that is told of it: causes of section 5, endings of section 7,
// situations of section 8.
func TestSituations(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.hire(t, nil)
	failed := func(message string) situation {
		return situation{protocol.StatusError, protocol.ReportedByChild, "", "TASK_STATE_FAILED", message, nil, "error: " + message}
	}
	crashed := func(trap, tail string) situation {
		return situation{
			protocol.StatusCrashed, protocol.ReportedByLauncher,
			"the capsule ended without recording a completion (" + trap + ")" + tail,
			"TASK_STATE_FAILED", "capsule execution trapped: " + trap, nil, "",
		}
	}
	finished := func(result string) situation {
		return situation{protocol.StatusOK, protocol.ReportedByChild, "", "TASK_STATE_COMPLETED", "session ended", text(result), result}
	}
	const unreachable = "wasm `unreachable` instruction executed"
	for name, c := range map[string]struct {
		steps    []step
		manifest func(*protocol.Manifest)
		task     string
		want     situation
	}{
		"finished": {steps: []step{echo()}, task: "all of stdout", want: finished("all of stdout")},
		"finished with nothing": {
			task: "x", want: situation{protocol.StatusOK, protocol.ReportedByChild, "", "TASK_STATE_COMPLETED", "session ended", text(""), ""},
		},
		"finished by an event": {
			steps: []step{echo()}, manifest: events, task: `{"event":"turn-end","result":"the answer"}`, want: finished("the answer"),
		},
		"exit status without stderr": {steps: []step{exit(7)}, task: "x", want: failed("exit status 7")},
		"exit status with the last line of stderr": {
			steps: []step{cry("first\nlast\n"), exit(3)}, task: "x", want: failed("exit status 3: last"),
		},
		"exit status in mode events": {
			steps: []step{echo(), cry("gone\n"), exit(1)}, manifest: events, task: `{"event":"text","text":"half"}`, want: failed("exit status 1: gone"),
		},
		"turn failed": {
			steps: []step{echo()}, manifest: events, task: `{"event":"turn-failed","kind":"quota","message":"no more"}`, want: failed("no more"),
		},
		"a trap after the turn ended changes nothing": {
			steps: []step{echo(), trap()}, manifest: events, task: `{"event":"turn-end","result":"kept"}` + "\n", want: finished("kept"),
		},
		"deadline": {
			steps: []step{forever()}, task: "x", manifest: func(m *protocol.Manifest) { m.Capabilities.Limits.DeadlineSeconds = 1 },
			want: failed("capsule execution exceeded its 1s deadline and was interrupted; raise capabilities.limits.deadline_seconds in murmur.yaml if the capsule legitimately needs longer"),
		},
		"memory": {
			steps: []step{growMemory(100)}, task: "x", manifest: func(m *protocol.Manifest) { m.Capabilities.Limits.MemoryBytes = 1 << 20 },
			want: failed(resources + "linear memory growth to 6815744 bytes exceeds capabilities.limits.memory_bytes (1048576)"),
		},
		"table": {
			steps: []step{growTable(101)}, task: "x", manifest: func(m *protocol.Manifest) { m.Capabilities.Limits.TableElements = 100 },
			want: failed(resources + "table growth to 101 elements exceeds capabilities.limits.table_elements (100)"),
		},
		"turns": {
			steps: []step{echo()}, task: `{"event":"text","text":"a"}` + "\n" + `{"event":"tool-result","id":"x","output":"","is_error":false}` + "\n" + `{"event":"text","text":"b"}`,
			manifest: func(m *protocol.Manifest) { events(m); m.Inference.MaxTurns = 1 },
			want:     failed("max_turns exceeded: the task used all 1 inference turns"),
		},
		"spend": {
			steps: []step{echo(), forever()}, task: `{"event":"usage","input":60,"output":41}` + "\n",
			manifest: func(m *protocol.Manifest) { events(m); m.Inference.MaxSessionTokens = 100 },
			want:     failed("spend ceiling reached: inference.max_session_tokens is 100 and this session has used 101; the operator set this limit; retrying will not get past it."),
		},
		"trap without stderr": {steps: []step{trap()}, task: "x", want: crashed(unreachable, "")},
		"trap with stderr": {
			steps: []step{cry("one\ntwo\n"), trap()}, task: "x", want: crashed(unreachable, "; its last stderr lines were:\none\ntwo"),
		},
		"trap with more than 20 lines of stderr": {
			steps: []step{cry(strings.Repeat("lost\n", 3) + strings.Repeat("kept\n", 20)), trap()}, task: "x",
			want: crashed(unreachable, "; its last stderr lines were:\n"+strings.TrimSuffix(strings.Repeat("kept\n", 20), "\n")),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var change []func(*protocol.Manifest)
			if c.manifest != nil {
				change = append(change, c.manifest)
			}
			capsule := f.push(t, strings.ReplaceAll(name, " ", "-"), guest(t, c.steps...), change...)
			job := f.job(capsule, c.task)
			f.end(t, job).check(t, f, job, c.want)
		})
	}
}

// TestTooManyToolCalls is the cause "calls" of section 5.
func TestTooManyToolCalls(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.hire(t, nil)
	job := f.job(f.agent(t, events), "calls 10001")
	message := resources + "more than 10000 tool calls"
	f.end(t, job).check(t, f, job, situation{
		protocol.StatusError, protocol.ReportedByChild, "", "TASK_STATE_FAILED", message, nil, "error: " + message,
	})
}

// TestRefusals are capsules that are refused before they start.
func TestRefusals(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.hire(t, nil)
	good := f.push(t, "good", guest(t))
	bad, err := os.ReadFile(testenv.WAT(t, "badimport"))
	if err != nil {
		t.Fatal(err)
	}
	index, err := f.js.KeyValue(t.Context(), "starling-capsule-index")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := index.Put(t.Context(), protocol.CapsuleKey("newer", "1.0.0"), []byte(`{"digest":"`+string(good.Digest)+`","manifest":{"name":"newer","version":"1.0.0","inference":{"max_turns":-4}}}`)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		capsule protocol.CapsuleRef
		change  func(*protocol.Job)
		why     string // a part of it
	}{
		"unknown capsule":              {capsule: protocol.CapsuleRef{Name: "nobody", Version: "1.0.0", Digest: good.Digest}, why: "nobody@1.0.0"},
		"an entry that cannot be read": {capsule: protocol.CapsuleRef{Name: "newer", Version: "1.0.0", Digest: good.Digest}, why: "max_turns"},
		"digest mismatch": {
			capsule: protocol.CapsuleRef{Name: "good", Version: "1.0.0", Digest: protocol.DigestOf([]byte("other"))}, why: "digest mismatch",
		},
		"a module that cannot run": {capsule: f.push(t, "bad", bad), why: "import"},
		"no module":                {capsule: f.push(t, "text", []byte("no module")), why: "wasm"},
		"a name in the job that the manifest does not allow": {
			capsule: good, change: func(j *protocol.Job) { j.Env = map[string]string{"HOME": "/"} }, why: "HOME",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			job := f.job(c.capsule, "x")
			if c.change != nil {
				c.change(&job)
			}
			e := f.end(t, job)
			why := e.rec.Ending.Message
			if !strings.Contains(why, c.why) {
				t.Errorf("refused with %q, want it to name %q", why, c.why)
			}
			e.check(t, f, job, situation{
				protocol.StatusCrashed, protocol.ReportedByLauncher, "the capsule did not start: " + why, "TASK_STATE_REJECTED", why, nil, "",
			})
		})
	}
}
