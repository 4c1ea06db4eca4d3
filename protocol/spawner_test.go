package protocol_test

import (
	"errors"
	"strings"
	"testing"

	"starling/protocol"
)

const (
	reasonURLAlone   = "it carries a 'url' with no 'trust'; a completion address is both or neither"
	reasonTrustAlone = "it carries a 'trust' with no 'url'; a completion address is both or neither"
)

// reasonOf takes the reason out of the sentence that refuses a launch, and
// checks the sentence to the letter.
func reasonOf(t *testing.T, err error) string {
	t.Helper()
	const head = "MURMUR_SPAWNER does not carry a readable spawner handle: "
	const tail = "; a delegated child must be able to tell its spawner that it finished, so the launch is refused rather than run unreportable"
	var refused *protocol.SpawnerEnvError
	if !errors.As(err, &refused) || !errors.Is(err, protocol.ErrSpawner) {
		t.Fatalf("the error is %v, want a SpawnerEnvError that is ErrSpawner", err)
	}
	if err.Error() != head+refused.Reason+tail {
		t.Errorf("the sentence is %q, want %q", err, head+refused.Reason+tail)
	}
	return refused.Reason
}

// TestSpawnerReasons has a test for each row of the table of docs/protocol.md,
// section 4, and for the order of the rows: each input also breaks every later
// row that it can.
func TestSpawnerReasons(t *testing.T) {
	t.Parallel()
	tests := []struct{ row, in, want string }{
		{"1 not JSON", `{"url":`, "it is not JSON: unexpected end of JSON input"},
		{"1 text after the handle", `{} {}`, "it is not JSON: invalid character '{' after top-level value"},
		{"2 url alone", `{"url":"http://x"}`, reasonURLAlone},
		{"2 url alone, not even a string", `{"url":7}`, reasonURLAlone},
		{"2 null url counts as present", `{"url":null,"session_id":"s","context_id":"c","delegation_id":"dlg_1"}`, reasonURLAlone},
		{"3 trust alone", `{"trust":"maybe"}`, reasonTrustAlone},
		{"3 null trust counts as present", `{"trust":null,"session_id":"s","context_id":"c","delegation_id":"dlg_1"}`, reasonTrustAlone},
		{"4 trust empty", `{"url":"","trust":""}`, "it carries no 'trust'"},
		{"4 trust null", `{"url":null,"trust":null}`, "it carries no 'trust'"},
		{"4 trust a number", `{"url":"","trust":1}`, "it carries no 'trust'"},
		{"4 trust an object", `{"url":"","trust":{"trust":"trusted"}}`, "it carries no 'trust'"},
		{"5 trust unknown", `{"url":"","trust":"maybe"}`, "'maybe' is not a trust class"},
		{"5 trust in another case", `{"url":"","trust":"UNTRUSTED"}`, "'UNTRUSTED' is not a trust class"},
		{"5 trust with a space", `{"url":"","trust":"trusted "}`, "'trusted ' is not a trust class"},
		{"6 url empty", `{"url":"","trust":"trusted"}`, "it carries no 'url'"},
		{"6 url null", `{"url":null,"trust":"untrusted"}`, "it carries no 'url'"},
		{"6 url a list", `{"url":["http://x"],"trust":"trusted"}`, "it carries no 'url'"},
		{"7 no session_id", `{"url":"http://x","trust":"trusted"}`, "it carries no 'session_id'"},
		{"7 session_id empty", `{"session_id":""}`, "it carries no 'session_id'"},
		{"7 session_id null", `{"session_id":null}`, "it carries no 'session_id'"},
		{"7 session_id a number", `{"session_id":7}`, "it carries no 'session_id'"},
		{"7 JSON that is no object: null", `null`, "it carries no 'session_id'"},
		{"7 JSON that is no object: a number", `7`, "it carries no 'session_id'"},
		{"7 JSON that is no object: true", `true`, "it carries no 'session_id'"},
		{"7 JSON that is no object: a list of handles", `[{"session_id":"s","context_id":"c","delegation_id":"dlg_1"}]`, "it carries no 'session_id'"},
		{"8 no context_id", `{"session_id":"s"}`, "it carries no 'context_id'"},
		{"8 context_id of another case", `{"session_id":"s","Context_id":"c"}`, "it carries no 'context_id'"},
		{"9 no delegation_id", `{"session_id":"s","context_id":"c"}`, "it carries no 'delegation_id'"},
		{"9 delegation_id a boolean", `{"session_id":"s","context_id":"c","delegation_id":true}`, "it carries no 'delegation_id'"},
	}
	for _, tt := range tests {
		t.Run(tt.row, func(t *testing.T) {
			t.Parallel()
			s, err := protocol.ParseSpawnerEnv(tt.in)
			if s != nil {
				t.Fatalf("ParseSpawnerEnv(%s) = %v, want no handle", tt.in, s)
			}
			if got := reasonOf(t, err); got != tt.want {
				t.Errorf("ParseSpawnerEnv(%s): the reason is %q, want %q", tt.in, got, tt.want)
			}
			if _, err := protocol.ParseSpawner([]byte(tt.in)); !errors.Is(err, protocol.ErrSpawner) || !strings.HasSuffix(err.Error(), tt.want) {
				t.Errorf("ParseSpawner(%s) = %v, want ErrSpawner and %q", tt.in, err, tt.want)
			}
		})
	}
}

func TestSpawnerAbsentOrBlankIsNoParent(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"", " ", "\t\r\n "} {
		if s, err := protocol.ParseSpawnerEnv(value); s != nil || err != nil {
			t.Errorf("ParseSpawnerEnv(%q) = %v, %v, want nil, nil", value, s, err)
		}
		if _, err := protocol.ParseSpawner([]byte(value)); !errors.Is(err, protocol.ErrSpawner) {
			t.Errorf("ParseSpawner(%q) = %v, want ErrSpawner: only the variable may be blank", value, err)
		}
	}
}

func TestSpawnerForms(t *testing.T) {
	t.Parallel()
	const full = `{"session_id":"ses_1","context_id":"ctx_1","delegation_id":"dlg_1","url":"http://10.0.0.7:7777","trust":"trusted"}`
	const lineage = `{"session_id":"ses_1","context_id":"ctx_1","delegation_id":"dlg_1"}`
	s, err := protocol.ParseSpawnerEnv(" \n" + full + "\t")
	if err != nil {
		t.Fatal(err)
	}
	if s.String() != full || !s.HasAddress() {
		t.Errorf("String() = %s, want %s", s, full)
	}
	if got := s.Lineage(); got.String() != lineage || got.HasAddress() {
		t.Errorf("Lineage() = %s, want %s", got, lineage)
	}
}

// FuzzParseSpawner: a handle that was read is written so that it is read again,
// and has an address wholly or not at all.
func FuzzParseSpawner(f *testing.F) {
	for _, seed := range []string{
		`{"session_id":"ses_1","context_id":"ctx_1","delegation_id":"dlg_1","url":"http://a/<&>","trust":"trusted"}`,
		`{"session_id":"ses_1","context_id":"ctx_1","delegation_id":"dlg_1"}`,
		`{"url":null,"trust":"trusted"}`, `[]`, `null`, " {\"session_id\":\"\xff\"}", `{"session_id":"\ud800","context_id":"c","delegation_id":"d"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := protocol.ParseSpawner(data)
		if err != nil {
			if !errors.Is(err, protocol.ErrSpawner) || s != (protocol.Spawner{}) {
				t.Fatalf("ParseSpawner(%q) = %v, %v, want ErrSpawner and nothing else", data, s, err)
			}
			return
		}
		if s.SessionID == "" || s.ContextID == "" || s.DelegationID == "" || (s.URL == "") != (s.Trust == "") {
			t.Fatalf("ParseSpawner(%q) = %+v: a member is missing", data, s)
		}
		again, err := protocol.ParseSpawnerEnv(s.String())
		if err != nil || *again != s {
			t.Errorf("%+v is written %s and read %+v, %v", s, s, again, err)
		}
	})
}
