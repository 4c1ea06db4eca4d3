package egress

import "testing"

// TestASecretIsTakenOutWhereverItIsSplit cuts an echo at every place.
func TestASecretIsTakenOutWhereverItIsSplit(t *testing.T) {
	t.Parallel()
	const value, text, want = "sk-abcabcd", "x sk-abcsk-abcabcd sk-abc", "x sk-abc[secret] sk-abc"
	for i := range len(text) {
		r := newRedactor([]Secret{{Name: "A", Value: value}})
		got := string(r.write([]byte(text[:i]))) + string(r.write([]byte(text[i:]))) + string(r.rest())
		if got != want {
			t.Errorf("cut at %d: %q, want %q", i, got, want)
		}
	}
}
