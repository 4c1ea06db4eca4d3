package worker_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"starling/protocol"
	"starling/worker"
)

// environment is what the agent printed of its environment.
func environment(t *testing.T, e ended) map[string]string {
	t.Helper()
	r := e.response()
	if r == nil {
		t.Fatalf("no environment: the task ended %s %q", e.rec.Ending.State, e.rec.Ending.Message)
	}
	lines := strings.Split(r.Text, "\n")
	env := map[string]string{}
	for _, quoted := range regexp.MustCompile(`"(?:[^"\\]|\\.)*"`).FindAllString(lines[1], -1) {
		var pair string
		if _, err := fmt.Sscanf(quoted, "%q", &pair); err != nil {
			t.Fatal(err)
		}
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	return env
}

// TestEnvironmentGrants is the table of what a guest's environment holds.
//
// Source: docs/protocol.md, section 5, Grants.
func TestEnvironmentGrants(t *testing.T) {
	for name, value := range map[string]string{
		"STARLING_TEST_BOTH": "worker's", "STARLING_TEST_LISTED": "worker's", "STARLING_TEST_UNLISTED": "worker's",
		"STARLING_TEST_TOKEN": "worker's", "STARLING_TEST_API_KEY": "worker's", "STARLING_TEST_NOT_ALLOWED": "worker's",
	} {
		t.Setenv(name, value)
	}
	f := newFleet(t)
	f.hire(t, func(c *worker.Config) {
		c.Ceiling = worker.Ceiling{
			Env: []string{
				"STARLING_TEST_BOTH", "STARLING_TEST_LISTED", "STARLING_TEST_TOKEN", "STARLING_TEST_API_KEY", "STARLING_TEST_NOT_ALLOWED",
				"STARLING_TEST_UNSET", "MURMUR_SESSION_ID",
			},
			CredentialEnv: []string{"STARLING_TEST_API_KEY", "OTHER_SECRET"},
		}
	})
	capsule := f.agent(t, func(m *protocol.Manifest) {
		m.Capabilities.Env.Allow = []string{
			"STARLING_TEST_BOTH", "STARLING_TEST_JOB", "STARLING_TEST_LISTED", "STARLING_TEST_UNLISTED", "STARLING_TEST_TOKEN",
			"STARLING_TEST_API_KEY", "STARLING_TEST_UNSET", "OTHER_SECRET", "MURMUR_SESSION_ID", "MURMUR_SPAWNER", "STARLING_ATTEMPT",
		}
	})
	job := f.job(capsule, "env", func(j *protocol.Job) {
		j.Env = map[string]string{
			"STARLING_TEST_BOTH": "job's", "STARLING_TEST_JOB": "job's", "OTHER_SECRET": "job's",
			"MURMUR_SESSION_ID": "forged", "MURMUR_SPAWNER": "forged", "STARLING_ATTEMPT": "99",
		}
	})
	e := f.end(t, job)
	got := environment(t, e)
	want := map[string]string{
		"STARLING_TEST_BOTH":    "job's",    // the job's before the worker's
		"STARLING_TEST_JOB":     "job's",    // the ceiling's list is about the worker's values
		"STARLING_TEST_LISTED":  "worker's", // allowed and on the ceiling's list
		"STARLING_TEST_API_KEY": "worker's", // credential-shaped, and the operator says so
		"OTHER_SECRET":          "job's",    // the same

		"MURMUR_SPAWNER": fmt.Sprintf(`{"session_id":%q,"context_id":%q,"delegation_id":%q}`,
			job.Spawner.SessionID, job.Spawner.ContextID, job.DelegationID),
		"MURMUR_SESSION_ID":      string(e.rec.SessionID),
		"MURMUR_CAPSULE_NAME":    "agent",
		"MURMUR_CAPSULE_VERSION": "1.0.0",
		"STARLING_DELEGATION_ID": string(job.DelegationID),
		"STARLING_TASK_ID":       string(job.TaskID),
		"STARLING_CONTEXT_ID":    string(job.ContextID()),
		"STARLING_MESSAGE_ID":    job.Message.ID,
		"STARLING_ATTEMPT":       "1",
	}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s = %q, want %q", name, got[name], value)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		t.Errorf("the guest also sees %v", got)
	}
}

// TestGrantsThatRefuse are jobs and manifests that ask for more than they may.
func TestGrantsThatRefuse(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.hire(t, func(c *worker.Config) {
		c.Ceiling = worker.Ceiling{MemoryBytes: 1 << 20, DeadlineSeconds: 10, WorkdirBytes: 1 << 20}
	})
	module := guest(t, say("ran"))
	for name, c := range map[string]struct {
		limits func(*protocol.Limits)
		env    map[string]string
		allow  []string
		why    string // "": it runs
	}{
		"at the ceiling": {},
		"memory past it": {limits: func(l *protocol.Limits) { l.MemoryBytes++ }, why: "capabilities.limits.memory_bytes asks for 1048577 and the operator's ceiling (STARLING_CEILING_MEMORY_BYTES) is 1048576"},
		"what is not said": {
			limits: func(l *protocol.Limits) { l.MemoryBytes = protocol.DefaultLimits().MemoryBytes },
			why:    "capabilities.limits.memory_bytes asks for 536870912 (the default of a manifest) and the operator's ceiling (STARLING_CEILING_MEMORY_BYTES) is 1048576",
		},
		"deadline past it":   {limits: func(l *protocol.Limits) { l.DeadlineSeconds++ }, why: "capabilities.limits.deadline_seconds asks for 11 and the operator's ceiling (STARLING_CEILING_DEADLINE_SECONDS) is 10"},
		"directory past it":  {limits: func(l *protocol.Limits) { l.WorkdirBytes++ }, why: "capabilities.limits.workdir_bytes asks for 1048577 and the operator's ceiling (STARLING_CEILING_WORKDIR_BYTES) is 1048576"},
		"allowed name":       {env: map[string]string{"LANG": "C"}, allow: []string{"LANG"}},
		"name not allowed":   {env: map[string]string{"LANG": "C"}, allow: []string{"LANGUAGE"}, why: "LANG"},
		"case matters":       {env: map[string]string{"lang": "C"}, allow: []string{"LANG"}, why: "lang"},
		"credential-shaped":  {env: map[string]string{"GITHUB_TOKEN": "s3cr3t"}, allow: []string{"GITHUB_TOKEN"}, why: "GITHUB_TOKEN, which looks like a credential; the operator's ceiling (STARLING_CEILING_CREDENTIAL_ENV) does not list it"},
		"in lower case, too": {env: map[string]string{"db_password": "s3cr3t"}, allow: []string{"db_password"}, why: "db_password"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			capsule := f.push(t, strings.NewReplacer(" ", "-", ",", "").Replace(name), module, func(m *protocol.Manifest) {
				l := &m.Capabilities.Limits
				l.MemoryBytes, l.DeadlineSeconds, l.WorkdirBytes = 1<<20, 10, 1<<20
				if c.limits != nil {
					c.limits(l)
				}
				m.Capabilities.Env.Allow = c.allow
			})
			e := f.end(t, f.job(capsule, "x", func(j *protocol.Job) { j.Env = c.env }))
			if c.why == "" {
				if e.rec.Status != protocol.StatusOK {
					t.Errorf("status = %s %q, want ok", e.rec.Status, e.rec.Ending.Message)
				}
				return
			}
			o := e.rec.Outcome
			if e.rec.Ending.State != "TASK_STATE_REJECTED" || o.Status != protocol.StatusCrashed || !strings.Contains(o.Detail, c.why) ||
				o.Detail != "the capsule did not start: "+e.rec.Ending.Message {
				t.Errorf("ended %s, %s, %q; want rejected, crashed, naming %q", e.rec.Ending.State, o.Status, o.Detail, c.why)
			}
			if strings.Contains(o.Detail, "s3cr3t") {
				t.Errorf("detail %q shows the value", o.Detail)
			}
			if slices.ContainsFunc(e.frames, func(f protocol.ReceivedFrame) bool { return f.Kind != protocol.FrameStatus }) {
				t.Errorf("a refused capsule has frames: %+v", e.frames)
			}
		})
	}
}

// TestAJobNarrowsWhatItsCapsuleGets, and never gets it more.
//
// Source: docs/protocol.md, section 3.
func TestAJobNarrowsWhatItsCapsuleGets(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.hire(t, func(c *worker.Config) { c.Ceiling = worker.Ceiling{MemoryBytes: 64 << 20, TableElements: 10000} })
	asks := func(m *protocol.Manifest) {
		m.Capabilities.Env.Allow = []string{"LANG", "TZ"}
		m.Capabilities.Limits.MemoryBytes, m.Capabilities.Limits.TableElements = 128<<20, 20000
	}
	agent, spinning := f.agent(t, asks), f.push(t, "spinning", guest(t, forever()), asks)
	within := `"memory_bytes":67108864,"table_elements":10000`
	for name, c := range map[string]struct {
		capsule protocol.CapsuleRef
		task    string
		env     map[string]string
		job     string
		says    string // of the ending, or the response when it completes
	}{
		"a manifest over the ceiling": {capsule: agent, task: "env", job: `{}`, says: "memory_bytes asks for 134217728 and the operator's ceiling (STARLING_CEILING_MEMORY_BYTES) is 67108864"},
		"one table over the ceiling": {
			capsule: agent, task: "env", job: `{"limits":{"memory_bytes":67108864}}`,
			says: "table_elements asks for 20000 and the operator's ceiling (STARLING_CEILING_TABLE_ELEMENTS) is 10000",
		},
		"narrowed to the ceiling": {capsule: agent, task: "env", env: map[string]string{"TZ": "UTC"}, job: `{"limits":{` + within + `}}`, says: "TZ=UTC"},
		"a shorter deadline": {
			capsule: spinning, task: "x", job: `{"limits":{"deadline_seconds":1,` + within + `}}`,
			says: "exceeded its 1s deadline",
		},
		"more than the manifest": {
			capsule: agent, task: "env", job: `{"limits":{"deadline_seconds":601,` + within + `}}`,
			says: "the job's capabilities.limits.deadline_seconds is 601, and the capsule's manifest has 600",
		},
		"an environment without the name that it sets": {
			capsule: agent, task: "env", env: map[string]string{"TZ": "UTC"}, job: `{"env":{"allow":["LANG"]},"limits":{` + within + `}}`,
			says: "the job sets the environment variable TZ, which is not granted (capabilities.env.allow is LANG)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			capabilities, err := protocol.ParseJobCapabilities([]byte(c.job))
			if err != nil {
				t.Fatal(err)
			}
			e := f.end(t, f.job(c.capsule, c.task, func(j *protocol.Job) { j.Env, j.Capabilities = c.env, capabilities }))
			got := e.rec.Ending.Message
			if r := e.response(); r != nil {
				got = r.Text
			}
			if !strings.Contains(got, c.says) {
				t.Errorf("ended %s with %q, want %q", e.rec.Ending.State, got, c.says)
			}
		})
	}
}

// TestAJobMakesMoreOfTheDirectoryReadOnly than its capsule's manifest does.
func TestAJobMakesMoreOfTheDirectoryReadOnly(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.hire(t, nil)
	capsule := f.push(t, "writer", guest(t, mkdir("keep"), file("keep/x", "x", 1)))
	for _, narrowed := range []bool{false, true} {
		e := f.end(t, f.job(capsule, "x", func(j *protocol.Job) {
			if narrowed {
				j.Capabilities = &protocol.JobCapabilities{Filesystem: &protocol.JobFilesystem{ReadOnly: []string{"keep"}}}
			}
		}))
		_, err := os.Stat(filepath.Join(e.rec.Workdir, "keep", "x"))
		if written := err == nil; written == narrowed {
			t.Errorf("narrowed %t: the guest's file is there: %t, %v", narrowed, written, err)
		}
	}
}

// TestCeilingsThatMakeNoSense are refused with their variable, each by itself.
func TestCeilingsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]worker.Ceiling{
		"":                                      {Env: []string{"LANG", "_x1"}, MemoryBytes: 1},
		"STARLING_CEILING_MEMORY_BYTES is -1":   {MemoryBytes: -1},
		"STARLING_CEILING_TABLE_ELEMENTS is -1": {TableElements: -1},
		"STARLING_CEILING_INSTANCES is -1":      {Instances: -1},
		"STARLING_CEILING_DEADLINE_SECONDS is -1: it is at least 1, or 0 for no ceiling": {DeadlineSeconds: -1},
		"STARLING_CEILING_WORKDIR_BYTES is -1":                                           {WorkdirBytes: -1},
		`STARLING_CEILING_ENV has "A B"`:                                                 {Env: []string{"LANG", "A B"}},
		`STARLING_CEILING_CREDENTIAL_ENV has "="`:                                        {CredentialEnv: []string{"="}},
		"STARLING_CEILING_NETWORK":                                                       {Network: []string{"a b"}},
	} {
		cfg := worker.Config{Ceiling: c, WorkRoot: "/work", CacheDir: "/cache"}
		err := cfg.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("Validate() = %v, want %q", err, want)
		}
	}
}
