package sandbox

import (
	"regexp"
	"strings"
)

// causeNumber is how the engine numbers causes when there are several.
var causeNumber = regexp.MustCompile(`^\d+: `)

// engineCauses is the lines of an error of the engine's, from the outermost to
// the root, without the host's own stack, which it adds when RUST_BACKTRACE is
// set.
func engineCauses(text string) []string {
	text, _, _ = strings.Cut(text, "\n\nStack backtrace:")
	var causes []string
	for line := range strings.Lines(text) {
		line = causeNumber.ReplaceAllString(strings.TrimSpace(line), "")
		if line != "" && line != "Caused by:" {
			causes = append(causes, line)
		}
	}
	return causes
}

// engineText is an error of the engine's in one line.
func engineText(text string) string {
	return cut(strings.Join(engineCauses(text), ": "), 512)
}

// trapText is the root cause of a trap; what comes before it is the guest's stack.
func trapText(text string) string {
	causes := engineCauses(text)
	if len(causes) == 0 {
		return "unknown"
	}
	return cut(strings.TrimPrefix(causes[len(causes)-1], "wasm trap: "), 512)
}
