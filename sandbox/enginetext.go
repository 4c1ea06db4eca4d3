package sandbox

import (
	"fmt"
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

// instancesIn is the number of instances at which the engine's limiter refused one
// more; 0: the text is about something else.
func instancesIn(text string) (n uint64) {
	for _, cause := range engineCauses(text) {
		if _, err := fmt.Sscanf(cause, "resource limit exceeded: instance count too high at %d", &n); err == nil {
			return n
		}
	}
	return 0
}

// trapText is the root cause of a trap; what comes before it is the guest's stack.
func trapText(text string) string {
	causes := engineCauses(text)
	if len(causes) == 0 {
		return "unknown"
	}
	return cut(strings.TrimPrefix(causes[len(causes)-1], "wasm trap: "), 512)
}
