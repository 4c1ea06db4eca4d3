package protocol_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"starling/protocol"
)

// golden are the cases of testdata/completion.json. They are kept as they came:
// where one disagrees with the code, the code is wrong.
type golden struct {
	Detail []struct {
		Name     string
		InBytes  int `json:"in_bytes"`
		Prefix   string
		Char     string
		OutBytes int `json:"out_bytes"`
		Marked   bool
	}
	Handles []struct {
		In           string
		Env          string
		OK           bool
		Address      bool
		Reason       string
		ReasonPrefix string `json:"reason_prefix"`
	}
	Headers []struct {
		Origin, Trust *string
		Want          [3]string
	}
	Outcomes []struct {
		Name    string
		Outcome json.RawMessage
		Text    string
		File    string
	}
	MessageIDs []struct {
		DelegationID protocol.DelegationID `json:"delegation_id"`
		Want         protocol.MessageID
	} `json:"message_ids"`
}

func readGolden(t *testing.T) golden {
	t.Helper()
	data, err := os.ReadFile("testdata/completion.json")
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(data, &g); err != nil {
		t.Fatal(err)
	}
	return g
}

func TestGoldenDetails(t *testing.T) {
	t.Parallel()
	cases := readGolden(t).Detail
	if len(cases) == 0 {
		t.Fatal("the golden file has no details")
	}
	for _, c := range cases {
		in := c.Prefix + strings.Repeat(c.Char, (c.InBytes-len(c.Prefix))/len(c.Char))
		if len(in) != c.InBytes {
			t.Fatalf("%s: the input has %d bytes, want %d", c.Name, len(in), c.InBytes)
		}
		want := in[:c.OutBytes]
		if c.Marked {
			want += " […]"
		}
		if got := protocol.Bound(in); got != want {
			t.Errorf("%s: Bound has %d bytes and ends in %q, want %d and %q", c.Name,
				len(got), got[len(got)-8:], len(want), want[len(want)-8:])
		}
	}
}

func TestGoldenHandles(t *testing.T) {
	t.Parallel()
	cases := readGolden(t).Handles
	if len(cases) == 0 {
		t.Fatal("the golden file has no handles")
	}
	for _, c := range cases {
		got, err := protocol.ParseSpawnerEnv(c.In)
		switch {
		case c.Env == "absent":
			if got != nil || err != nil {
				t.Errorf("ParseSpawnerEnv(%q) = %v, %v, want no parent", c.In, got, err)
			}
		case c.OK:
			if err != nil || got == nil || got.HasAddress() != c.Address {
				t.Errorf("ParseSpawnerEnv(%q) = %v, %v, want a handle, with an address: %v", c.In, got, err, c.Address)
			}
		default:
			reason := reasonOf(t, err)
			if c.ReasonPrefix == "" && reason != c.Reason ||
				c.ReasonPrefix != "" && (!strings.HasPrefix(reason, c.ReasonPrefix) || reason == c.ReasonPrefix) {
				t.Errorf("ParseSpawnerEnv(%q): the reason is %q, want %q%q", c.In, reason, c.Reason, c.ReasonPrefix)
			}
		}
	}
}

func TestGoldenHeaders(t *testing.T) {
	t.Parallel()
	cases := readGolden(t).Headers
	if len(cases) == 0 {
		t.Fatal("the golden file has no headers")
	}
	value := func(s *string) string {
		if s == nil {
			return "" // net/http does not tell an absent header from an empty one
		}
		return *s
	}
	for _, c := range cases {
		got := protocol.Classify(value(c.Origin), value(c.Trust))
		want := protocol.Class{Origin: protocol.Origin(c.Want[0]), Trust: protocol.Trust(c.Want[1]), Lane: protocol.Lane(c.Want[2])}
		if got != want {
			t.Errorf("Classify(%q, %q) = %v, want %v", value(c.Origin), value(c.Trust), got, want)
		}
	}
}

func TestGoldenOutcomes(t *testing.T) {
	t.Parallel()
	cases := readGolden(t).Outcomes
	if len(cases) == 0 {
		t.Fatal("the golden file has no outcomes")
	}
	for _, c := range cases {
		o, err := protocol.ParseOutcome(c.Outcome)
		if err != nil {
			t.Errorf("%s: ParseOutcome = %v", c.Name, err)
			continue
		}
		if got := o.Text(); got != c.Text {
			t.Errorf("%s: Text() = %q, want %q", c.Name, got, c.Text)
		}
		if got, err := o.File(); err != nil || string(got) != c.File {
			t.Errorf("%s: File() = %q, %v, want %q", c.Name, got, err, c.File)
		}
	}
}

func TestGoldenMessageIDs(t *testing.T) {
	t.Parallel()
	cases := readGolden(t).MessageIDs
	if len(cases) == 0 {
		t.Fatal("the golden file has no message ids")
	}
	for _, c := range cases {
		if got := protocol.CompletionMessageID(c.DelegationID); got != c.Want {
			t.Errorf("CompletionMessageID(%s) = %s, want %s", c.DelegationID, got, c.Want)
		}
	}
}
