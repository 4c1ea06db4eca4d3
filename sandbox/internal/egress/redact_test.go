package egress

import (
	"strings"
	"testing"
)

// TestASecretIsTakenOutWhereverItIsSplit cuts each echo at every two places.
func TestASecretIsTakenOutWhereverItIsSplit(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		values     []string
		text, want string
	}{
		{[]string{"sk-abcabcd"}, "x sk-abcsk-abcabcd sk-abc", "x sk-abc[secret] sk-abc"},
		{[]string{"sk-abcabcd"}, "sk-abcabcdsk-abcabcd", "[secret][secret]"},
		{[]string{"aaaaaaaa"}, "aaaaaaaaaaaaaaaaaaaa", "[secret][secret]aaaa"},
		{[]string{"abcabcabc", "abcabcabcdef"}, "abcabcabcdef abcabcabcd", "[secret] [secret]d"}, // one begins with the other
		{[]string{"12345678", "zz12345678zz"}, "zz12345678zz zz12345678 z", "[secret] zz[secret] z"},
		{[]string{`a"b/c<d e`}, `a"b/c<d e a\"b/c<d e a\"b/c\u003cd e a\"b\/c<d e a%22b%2Fc%3Cd+e a%22b%2Fc%3Cd%20e`, strings.TrimSpace(strings.Repeat("[secret] ", 6))},
		{[]string{"sk-abcabcd"}, "", ""},
	} {
		var secrets []Secret
		for _, v := range test.values {
			secrets = append(secrets, Secret{Value: v})
		}
		all := newRedactor(secrets)
		for i := range len(test.text) + 1 {
			for j := i; j <= len(test.text); j++ {
				r := all.fresh()
				got := string(r.write([]byte(test.text[:i]))) + string(r.write([]byte(test.text[i:j]))) + string(r.write([]byte(test.text[j:]))) + string(r.rest())
				if got != test.want {
					t.Fatalf("%q cut at %d and %d: %q, want %q", test.text, i, j, got, test.want)
				}
			}
		}
		if got := all.text(test.text); got != test.want {
			t.Errorf("text(%q) = %q, want %q", test.text, got, test.want)
		}
	}
}

// TestWhatIsHeldBackTellsNothing: a guess that begins a secret is held back as one is
// that does not, and a whole line never.
func TestWhatIsHeldBackTellsNothing(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"data: hello\n\n": "data: hello\n\n", "data: sk-abca\n": "data: sk-abca\n", "sk-abcabc": "", "xk-abcabc": "", "sk-abcabx": "",
		"0sk-abcabc": "0", "0sk-abcabx": "0", "sk-abcabcd": "[secret]", "line\nsk-abc": "line\n", "line\nsk-xyz": "line\n",
	} {
		r := newRedactor([]Secret{{Value: "sk-abcabcd"}})
		if got := string(r.write([]byte(text))); got != want {
			t.Errorf("write(%q) = %q, want %q", text, got, want)
		}
	}
}

// BenchmarkRedact is 1 MiB of echoes, as a hostile host may send them.
func BenchmarkRedact(b *testing.B) {
	all := newRedactor([]Secret{{Value: "12345678"}, {Value: strings.Repeat("x", maxSecretBytes)}})
	text := []byte(strings.Repeat("12345678", 32<<10/8))
	b.SetBytes(1 << 20)
	for b.Loop() {
		r := all.fresh()
		for range 32 {
			r.write(text)
		}
	}
}
