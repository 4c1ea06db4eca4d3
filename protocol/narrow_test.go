package protocol_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"starling/protocol"
)

// asks are the capabilities of a manifest that asks for something of each kind.
func asks() protocol.Capabilities {
	return protocol.Capabilities{
		Filesystem: protocol.Filesystem{Scope: "data", ReadOnly: []string{"in"}},
		Env:        protocol.EnvGrant{Allow: []string{"LANG", "TZ"}},
		Network:    protocol.Network{Allow: []string{"https://api.example.com", "db.example.com:5432", "cdn.example.com"}},
		Secrets:    protocol.Secrets{Allow: []string{"MODEL", "SEARCH"}},
		Limits: protocol.Limits{
			MemoryBytes: 1000, TableElements: 100, Instances: 10, DeadlineSeconds: 60, WorkdirBytes: 5000,
		},
	}
}

// TestAJobNarrowsItsCapsule is what a job may say of capabilities.
//
// Source: docs/protocol.md, section 3.
func TestAJobNarrowsItsCapsule(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		job  string
		want func(*protocol.Capabilities)
	}{
		"nothing":     {`{}`, func(*protocol.Capabilities) {}},
		"null":        {`null`, func(*protocol.Capabilities) {}},
		"one limit":   {`{"limits":{"memory_bytes":999}}`, func(c *protocol.Capabilities) { c.Limits.MemoryBytes = 999 }},
		"equal limit": {`{"limits":{"deadline_seconds":60}}`, func(*protocol.Capabilities) {}},
		"all limits": {
			`{"limits":{"memory_bytes":1,"table_elements":2,"instances":3,"deadline_seconds":4,"workdir_bytes":5}}`,
			func(c *protocol.Capabilities) {
				c.Limits = protocol.Limits{MemoryBytes: 1, TableElements: 2, Instances: 3, DeadlineSeconds: 4, WorkdirBytes: 5}
			},
		},
		"part of the environment": {`{"env":{"allow":["TZ"]}}`, func(c *protocol.Capabilities) { c.Env.Allow = []string{"TZ"} }},
		"no environment":          {`{"env":{"allow":[]}}`, func(c *protocol.Capabilities) { c.Env.Allow = nil }},
		"part of the network": {
			`{"network":{"allow":["https://cdn.example.com","cdn.example.com:8080","https://api.example.com:443"]}}`,
			func(c *protocol.Capabilities) {
				c.Network.Allow = []string{"https://cdn.example.com", "cdn.example.com:8080", "https://api.example.com:443"}
			},
		},
		"one secret":     {`{"secrets":{"allow":["MODEL"]}}`, func(c *protocol.Capabilities) { c.Secrets.Allow = []string{"MODEL"} }},
		"no secrets":     {`{"secrets":{}}`, func(c *protocol.Capabilities) { c.Secrets.Allow = nil }},
		"no network":     {`{"network":{}}`, func(c *protocol.Capabilities) { c.Network.Allow = nil }},
		"more read-only": {`{"filesystem":{"read_only":["out"]}}`, func(c *protocol.Capabilities) { c.Filesystem.ReadOnly = []string{"in", "out"} }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			job, err := protocol.ParseJobCapabilities([]byte(c.job))
			if err != nil {
				t.Fatal(err)
			}
			own, want := asks(), asks()
			got, err := own.Narrow(job)
			if err != nil {
				t.Fatal(err)
			}
			c.want(&want)
			if len(got.Env.Allow)+len(want.Env.Allow) == 0 {
				got.Env.Allow = nil
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Narrow(%s) (-want +got):\n%s", c.job, diff)
			}
			if diff := cmp.Diff(asks(), own); diff != "" {
				t.Errorf("the manifest was changed:\n%s", diff)
			}
		})
	}
}

// TestAJobThatAsksForMoreIsNotGranted: the error has what was asked and what is
// allowed.
func TestAJobThatAsksForMoreIsNotGranted(t *testing.T) {
	t.Parallel()
	for job, says := range map[string][]string{
		`{"limits":{"memory_bytes":1001}}`:                                      {"capabilities.limits.memory_bytes is 1001", "has 1000"},
		`{"limits":{"deadline_seconds":61,"instances":11}}`:                     {"limits.deadline_seconds is 61", "limits.instances is 11", "has 10"},
		`{"env":{"allow":["TZ","HOME"]}}`:                                       {"env.allow has HOME", "has LANG, TZ"},
		`{"secrets":{"allow":["MODEL","OTHER"]}}`:                               {"secrets.allow has OTHER", "has MODEL, SEARCH"},
		`{"network":{"allow":["evil.example.com"]}}`:                            {"network.allow has evil.example.com", "https://api.example.com"},
		`{"network":{"allow":["http://api.example.com"]}}`:                      {"network.allow has http://api.example.com"},
		`{"network":{"allow":["api.example.com"]}}`:                             {"network.allow has api.example.com"}, // any scheme is more than https
		`{"network":{"allow":["https://api.example.com:8443"]}}`:                {"network.allow has https://api.example.com:8443"},
		`{"network":{"allow":["db.example.com"]},"limits":{"memory_bytes":10}}`: {"network.allow has db.example.com"}, // any port is more than one
	} {
		c, err := protocol.ParseJobCapabilities([]byte(job))
		if err != nil {
			t.Fatal(err)
		}
		_, err = asks().Narrow(c)
		for _, text := range says {
			if !errors.Is(err, protocol.ErrGrant) || !strings.Contains(err.Error(), text) {
				t.Errorf("Narrow(%s) = %v, want ErrGrant with %q", job, err, text)
			}
		}
	}
}

// manyReadOnly are job capabilities with n paths.
func manyReadOnly(n int) string {
	paths := make([]string, n)
	for i := range paths {
		paths[i] = fmt.Sprintf("%q", fmt.Sprint("d", i))
	}
	return `{"filesystem":{"read_only":[` + strings.Join(paths, ",") + `]}}`
}

// TestNarrowCountsReadOnlyPaths: the manifest's and the job's have one bound.
func TestNarrowCountsReadOnlyPaths(t *testing.T) {
	t.Parallel()
	own := asks() // of one
	for n, fits := range map[int]bool{protocol.MaxReadOnly - 1: true, protocol.MaxReadOnly: false} {
		job, err := protocol.ParseJobCapabilities([]byte(manyReadOnly(n)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := own.Narrow(job); errors.Is(err, protocol.ErrGrant) == fits {
			t.Errorf("Narrow() with %d more = %v, want fits: %v", n, err, fits)
		}
	}
}

func TestBadJobCapabilities(t *testing.T) {
	t.Parallel()
	for capabilities, says := range map[string]string{
		`[]`:                                      "capabilities",
		`{"limits":{"memory_bytes":0}}`:           "capabilities.limits.memory_bytes is 0",
		`{"limits":{"memory_bytes":-1}}`:          "capabilities.limits.memory_bytes is -1",
		`{"limits":{"memory_bytes":"1"}}`:         "memory_bytes",
		`{"limits":{"fuel":1}}`:                   `unknown key "capabilities.limits.fuel"`,
		`{"Limits":{}}`:                           `unknown key "capabilities.Limits"`,
		`{"filesystem":{"scope":"a"}}`:            `unknown key "capabilities.filesystem.scope"`,
		`{"filesystem":{"read_only":["../x"]}}`:   "capabilities.filesystem.read_only[0]",
		manyReadOnly(65):                          "capabilities.filesystem.read_only has 65 paths: at most 64",
		`{"env":{"allow":["A B"]}}`:               "capabilities.env.allow[0]",
		`{"network":{"allow":["*.example.com"]}}`: "capabilities.network.allow[0]",
	} {
		body := strings.TrimSuffix(fullJob, "}") + `,"capabilities":` + capabilities + `}`
		if _, err := protocol.ParseJob([]byte(body)); !errors.Is(err, protocol.ErrJob) || !strings.Contains(err.Error(), says) ||
			strings.Count(err.Error(), protocol.ErrJob.Error()) != 1 {
			t.Errorf("ParseJob(… %s) = %v, want one ErrJob with %q", capabilities, err, says)
		}
	}
}

func TestJobCapabilitiesRoundTrip(t *testing.T) {
	t.Parallel()
	body := strings.TrimSuffix(fullJob, "}") +
		`,"capabilities":{"filesystem":{"read_only":["in"]},"env":{"allow":["A"]},"network":{},"limits":{"memory_bytes":65536}}}`
	job, err := protocol.ParseJob([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := job.Encode(); err != nil || string(again) != body {
		t.Errorf("Encode() = %s, %v, want %s", again, err, body)
	}
	if job.Capabilities.Network == nil || !slices.Equal(job.Capabilities.Env.Allow, []string{"A"}) {
		t.Errorf("capabilities = %+v", job.Capabilities)
	}
}
