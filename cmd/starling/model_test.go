package main

import (
	"fmt"
	"strings"
	"testing"

	"starling/testenv"
)

// TestRunDrivesAModel runs a capsule that answers with a model, whose server and key
// the operator allows.
func TestRunDrivesAModel(t *testing.T) {
	t.Parallel()
	const key = "sk-0123456789abcdef"
	model := testenv.Model(t,
		testenv.ModelAnswer{
			Thinking: []string{"I can multiply."}, Text: []string{"Let me calculate.\n"},
			Calls: []testenv.ModelCall{{ID: "call_1", Name: "multiply", Arguments: []string{`{"a":6,`, `"b":7}`}}},
		},
		testenv.ModelAnswer{Text: []string{"6 times 7 ", "is 42."}})
	manifest := strings.ReplaceAll(readDoc(t, "testenv/testdata/capsules/llm/murmur.yaml"), "https://api.openai.com", model.Origin())
	dir := capsuleDir(t, testenv.GoCapsule(t, "llm"), manifest)
	secrets := secretsFile(t, fmt.Sprintf("OPENAI_API_KEY: {value: %s, hosts: [%q]}\n", key, model.Origin()))
	got := starling(t, "", runArgs(t, "run", dir, "--task", "What is 6 times 7?", "--env", "OPENAI_BASE_URL="+model.URL(),
		"--ceiling-network", model.Origin(), "--secrets", secrets, "--compile-timeout", "10m")...)
	if got.status != exitOK {
		t.Fatalf("status = %d, want 0\n%s%s", got.status, got.out, got.err)
	}
	contains(t, "stdout", got.out, "Let me calculate.\n", "6 times 7 is 42.")
	contains(t, "stderr", got.err, "[tool] multiply started", "[tool] multiply ended", ": 42", ": ok (session ended, ")
	if requests := model.Requests(); len(requests) != 2 || requests[0].Authorization != "Bearer "+key {
		t.Errorf("the model was asked %d times", len(requests))
	}
	if strings.Contains(got.out+got.err, key) {
		t.Error("the key is on the terminal")
	}
}

// TestRunSaysWhatACapsuleMayNotCall names the host, and what the operator allows.
func TestRunSaysWhatACapsuleMayNotCall(t *testing.T) {
	t.Parallel()
	model := testenv.Model(t)
	manifest := strings.ReplaceAll(readDoc(t, "testenv/testdata/capsules/llm/murmur.yaml"), "https://api.openai.com", model.Origin())
	got := starling(t, "", runArgs(t, "run", capsuleDir(t, testenv.GoCapsule(t, "llm"), manifest), "--task", "x", "--compile-timeout", "10m")...)
	if got.status == exitOK || len(model.Requests()) > 0 {
		t.Errorf("status = %d with %d requests, want a refusal", got.status, len(model.Requests()))
	}
	contains(t, "stderr", got.err, "capabilities.network.allow asks for "+model.Origin()+" and the operator's ceiling (STARLING_CEILING_NETWORK) is every public host")
}
