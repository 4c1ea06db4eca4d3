package protocol_test

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"starling/protocol"
)

func TestIDForms(t *testing.T) {
	t.Parallel()
	// Version 7: the 13th digit is 7, the 17th is 8, 9, a or b.
	body := `[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}$`
	for prefix, mint := range map[string]func() string{
		"dlg_": func() string { return string(protocol.NewDelegationID()) },
		"tsk_": func() string { return string(protocol.NewTaskID()) },
		"ctx_": func() string { return string(protocol.NewContextID()) },
		"ses_": func() string { return string(protocol.NewSessionID()) },
		"wrk_": func() string { return string(protocol.NewWorkerID()) },
		"msg_": func() string { return string(protocol.NewMessageID()) },
		"req_": func() string { return string(protocol.NewRequestID()) },
		"":     protocol.NewTempName,
	} {
		first, second := mint(), mint()
		if !regexp.MustCompile("^" + prefix + body).MatchString(first) {
			t.Errorf("an id is %q, want %s and a version 7 UUID in hex", first, prefix)
		}
		if first == second {
			t.Errorf("%q was minted twice", first)
		}
		if prefix != "" {
			if err := protocol.ValidateName("id", first); err != nil {
				t.Errorf("ValidateName(%q) = %v, want nil", first, err)
			}
		}
	}
	if id := protocol.NewDelegationID(); protocol.ValidateDelegationID("delegation_id", id) != nil {
		t.Errorf("ValidateDelegationID(%q) refuses what was minted", id)
	}
}

func TestDelegationIDsSortByTime(t *testing.T) {
	t.Parallel()
	ids := make([]protocol.DelegationID, 10_000)
	for i := range ids {
		ids[i] = protocol.NewDelegationID()
	}
	if !slices.IsSorted(ids) {
		t.Error("ids that were minted one after the other do not sort by time")
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	const long = 64
	tests := []struct {
		rule          string
		value         string
		name, version bool
	}{
		{"a letter", "a", true, true},
		{"every kind of character", "aZ09_-", true, true},
		{"64 characters", strings.Repeat("x", long), true, true},
		{"65 characters", strings.Repeat("x", long+1), false, false},
		{"nothing", "", false, false},
		{"a dot", "1.2.0", false, true},
		{"a plus", "1+b", false, true},
		{"a space", "a b", false, false},
		{"a newline at the end", "a\n", false, false},
		{"a star, a wildcard of subjects", "*", false, false},
		{"the other wildcard", ">", false, false},
		{"a slash", "a/b", false, false},
		{"a letter beyond ASCII", "é", false, false},
		{"a NUL", "a\x00", false, false},
	}
	for _, tt := range tests {
		for kind, err := range map[string]error{
			"name": protocol.ValidateName("pool", tt.value), "version": protocol.ValidateVersion("pool", tt.value),
		} {
			want := kind == "name" && tt.name || kind == "version" && tt.version
			if (err == nil) != want {
				t.Errorf("%s: the %s %q is taken: %v, want %v (%v)", tt.rule, kind, tt.value, err == nil, want, err)
			}
			if err != nil && (!errors.Is(err, protocol.ErrName) || !strings.Contains(err.Error(), "pool")) {
				t.Errorf("%s: %v is no ErrName that has the field's name", tt.rule, err)
			}
		}
	}
	if err := protocol.ValidateName("pool", strings.Repeat("é", 10_000)); len(err.Error()) > 300 {
		t.Errorf("the error repeats %d bytes of the name", len(err.Error()))
	}
}

func TestValidateDelegationID(t *testing.T) {
	t.Parallel()
	for id, want := range map[protocol.DelegationID]bool{
		"dlg_0": true, "dlg_0192f0c0aabb7ccd8eeff00112233445": true,
		"dlg_": false, "": false, "dlg_A": false, "dlg_g": false, "tsk_0": false, "xdlg_0": false, "dlg_0-1": false,
		protocol.DelegationID("dlg_" + strings.Repeat("0", 60)): true,
		protocol.DelegationID("dlg_" + strings.Repeat("0", 61)): false,
	} {
		err := protocol.ValidateDelegationID("delegation_id", id)
		if (err == nil) != want {
			t.Errorf("ValidateDelegationID(%q) = %v, want it taken: %v", id, err, want)
		}
		if err != nil && (!errors.Is(err, protocol.ErrName) || !strings.Contains(err.Error(), "delegation_id")) {
			t.Errorf("ValidateDelegationID(%q) = %v, want an ErrName with the field's name", id, err)
		}
	}
}

func TestDigest(t *testing.T) {
	t.Parallel()
	const sum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" // of "abc", FIPS 180-2
	d := protocol.DigestOf([]byte("abc"))
	if d != "sha256:"+sum || d.Hex() != sum || d.Object() != "sha256-"+sum {
		t.Errorf("DigestOf(abc) = %s, %s, %s, want %s in three forms", d, d.Hex(), d.Object(), sum)
	}
	if err := d.Validate(); err != nil {
		t.Errorf("Validate(%s) = %v, want nil", d, err)
	}
	for _, bad := range []protocol.Digest{
		"", "sha256:", sum, "sha256-" + sum, "sha512:" + sum, protocol.Digest("sha256:" + sum[1:]), "sha256:" + sum + "0",
		protocol.Digest("sha256:" + strings.ToUpper(sum)), "sha256:" + sum + "\n",
	} {
		if err := bad.Validate(); !errors.Is(err, protocol.ErrName) || !strings.Contains(err.Error(), "digest") {
			t.Errorf("Validate(%q) = %v, want an ErrName that says digest", bad, err)
		}
	}
}
