package protocol

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// shape is what stands under a key of a manifest, as its errors say it.
type shape string

const (
	shapeText   shape = "a text"
	shapeTexts  shape = "a list of texts"
	shapeNumber shape = "a whole number"
	shapeTree   shape = "a mapping of keys to values"
)

// checkShape compares a manifest with manifestKeys, so that what does not fit is
// told with its key, its line and what belongs there, rather than with the types
// of a program. Unknown keys are no matter of it.
func checkShape(document *yaml.Node) error {
	if document.Kind != yaml.DocumentNode || len(document.Content) == 0 {
		return nil // an empty file: every member is missing, which Validate says
	}
	return errors.Join(treeShape("", document.Content[0], manifestKeys)...)
}

func treeShape(prefix string, n *yaml.Node, tree map[string]any) []error {
	n = resolved(n)
	if isNull(n) {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		what := prefix
		if what == "" {
			what = "the manifest"
		}
		return []error{misfit(what, n, shapeTree)}
	}
	var problems []error
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i].Value, resolved(n.Content[i+1])
		name := key
		if prefix != "" {
			name = prefix + "." + key
		}
		switch below := tree[key].(type) {
		case map[string]any:
			problems = append(problems, treeShape(name, value, below)...)
		case shape:
			problems = append(problems, leafShape(name, value, below)...)
		}
	}
	return problems
}

func leafShape(name string, n *yaml.Node, want shape) []error {
	if isNull(n) {
		return nil
	}
	fits := true
	switch want {
	case shapeText:
		fits = n.Kind == yaml.ScalarNode
	case shapeNumber:
		fits = n.Kind == yaml.ScalarNode && wholeNumber(n)
	case shapeTexts:
		if n.Kind != yaml.SequenceNode {
			fits = false
			break
		}
		var problems []error
		for i, entry := range n.Content {
			if entry = resolved(entry); entry.Kind != yaml.ScalarNode {
				problems = append(problems, misfit(name+"["+strconv.Itoa(i)+"]", entry, shapeText))
			}
		}
		return problems
	}
	if fits {
		return nil
	}
	return []error{misfit(name, n, want)}
}

// wholeNumber takes 1, 0x1 and 1e3, and neither a fraction nor a quoted number.
func wholeNumber(n *yaml.Node) bool {
	switch n.Tag {
	case "!!int":
		var v int64
		return n.Decode(&v) == nil
	case "!!float":
		var v float64
		return n.Decode(&v) == nil && v == math.Trunc(v) && math.Abs(v) < 1<<63
	}
	return false
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// resolved follows an alias.
func resolved(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

// misfit says what stands where something else belongs.
func misfit(name string, n *yaml.Node, want shape) error {
	have := "a mapping"
	switch n.Kind {
	case yaml.SequenceNode:
		have = "a list"
	case yaml.ScalarNode:
		have = map[string]string{
			"!!int": "the number ", "!!float": "the number ", "!!bool": "the word ",
		}[n.Tag]
		if have == "" {
			have = "the text "
		}
		have += strconv.Quote(clip(n.Value, 64))
	}
	return fmt.Errorf("%w: line %d: %s is %s: it is %s", ErrManifest, n.Line, clip(name, 128), have, want)
}

// yamlText is what the YAML reader says, without its own words for it.
func yamlText(err error) string {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	text = strings.TrimSpace(strings.TrimPrefix(text, "unmarshal errors:"))
	return strings.ReplaceAll(text, "\n  ", "; ")
}
