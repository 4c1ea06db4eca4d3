package protocol_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"starling/protocol"
)

func TestTimeHasThreeDigits(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"2026-11-29T12:00:00Z":                "2026-11-29T12:00:00.000Z",
		"2026-11-29T12:00:00.1Z":              "2026-11-29T12:00:00.100Z",
		"2026-11-29T12:00:00.120Z":            "2026-11-29T12:00:00.120Z",
		"2026-11-29T12:00:00.123999999Z":      "2026-11-29T12:00:00.123Z",
		"2026-11-29T23:30:00.5-01:00":         "2026-11-30T00:30:00.500Z",
		"0001-01-01T00:00:00.001Z":            "0001-01-01T00:00:00.001Z",
		"9999-12-31T23:59:59.999Z":            "9999-12-31T23:59:59.999Z",
		"2026-11-29T12:00:00.000000001+05:30": "2026-11-29T06:30:00.000Z",
	} {
		var got protocol.Time
		if err := json.Unmarshal([]byte(`"`+in+`"`), &got); err != nil {
			t.Errorf("Unmarshal(%s) = %v", in, err)
			continue
		}
		if got.String() != want {
			t.Errorf("Unmarshal(%s) = %s, want %s", in, got, want)
		}
		if text, err := json.Marshal(got); err != nil || string(text) != `"`+want+`"` {
			t.Errorf("Marshal(%s) = %s, %v, want %q", in, text, err, want)
		}
	}
	local := time.Date(2026, 11, 29, 12, 0, 0, 1_999_999, time.FixedZone("", 3600))
	if got := protocol.NewTime(local).String(); got != "2026-11-29T11:00:00.001Z" {
		t.Errorf("NewTime(%s) = %s, want UTC, cut to milliseconds", local, got)
	}
}

func TestTimeZeroAndNull(t *testing.T) {
	t.Parallel()
	got := protocol.NewTime(time.Now())
	if err := json.Unmarshal([]byte(`null`), &got); err != nil || !got.IsZero() {
		t.Errorf("Unmarshal(null) = %s, %v, want the zero value", got, err)
	}
	body, err := json.Marshal(struct {
		T protocol.Time `json:"t,omitzero"`
	}{})
	if err != nil || string(body) != `{}` {
		t.Errorf("Marshal = %s, %v, want a zero time left out", body, err)
	}
}

func TestTimeRefusals(t *testing.T) {
	t.Parallel()
	for rule, in := range map[string]string{
		"a number":                   `1764417600`,
		"an object":                  `{}`,
		"nothing":                    `""`,
		"a day":                      `"2026-11-29"`,
		"no zone":                    `"2026-11-29T12:00:00"`,
		"a space":                    `"2026-11-29 12:00:00Z"`,
		"an impossible day":          `"2026-02-30T12:00:00Z"`,
		"a year of five digits":      `"10000-01-01T00:00:00Z"`,
		"year 10000 once it is UTC":  `"9999-12-31T23:59:59-23:00"`,
		"a year below 0 once in UTC": `"0000-01-01T00:00:00+23:00"`,
	} {
		var got protocol.Time
		err := json.Unmarshal([]byte(in), &got)
		if err == nil {
			t.Errorf("%s: Unmarshal(%s) = %s, want an error", rule, in, got)
			continue
		}
		if strings.Contains(err.Error(), "protocol.Time") {
			t.Errorf("%s: %v speaks of Go types", rule, err)
		}
	}
}
