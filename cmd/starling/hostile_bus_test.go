package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"starling/protocol"
)

// nasty is a text that steers a terminal, turns a line, makes lines of its own and is
// no UTF-8.
const nasty = "\x1b[31mred\x1b]0;title\x07\u202eevil\u2028\n\n\t\x9b2J\xff\xfe"

// raw publishes what a party with the rights for it could, past every check.
func raw(t *testing.T, nc *nats.Conn, subject string, header nats.Header, body []byte) {
	t.Helper()
	answer, err := nc.RequestMsg(&nats.Msg{Subject: subject, Header: header, Data: body}, 20*time.Second)
	if err != nil {
		t.Fatalf("publish %s: %v", subject, err)
	}
	if strings.Contains(string(answer.Data), `"error"`) {
		t.Fatalf("publish %s: %s", subject, answer.Data)
	}
}

// jsonNasty is nasty as it stands inside of JSON, whose texts are UTF-8.
func jsonNasty(t *testing.T) string {
	t.Helper()
	text, err := json.Marshal(nasty)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Trim(string(text), `"`)
}

// hostileBus fills every bucket and stream that the looking commands read.
func hostileBus(t *testing.T, url string) {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	text := jsonNasty(t)
	huge := strings.Repeat("x", 50<<10)
	record := func(delegation, more string) {
		raw(t, nc, "$KV.starling-delegations.ses_evil."+delegation, nil, []byte(
			`{"delegation_id":"`+delegation+`","task_id":"tsk_`+delegation+`","spawner":{"session_id":"ses_evil"},`+more+`}`))
	}
	const named = `"pool":"default","lane":"user","capsule":{"name":"evil","version":"3.0"},`
	record("dlg_01", `"status":"working","pool":"`+text+`","lane":"`+text+`","capsule":{"name":"`+text+`","version":"`+text+`"},"worker_id":"`+text+`","attempt":-7,"submitted_at":"9999-12-31T23:59:59.999Z"`)
	record("dlg_02", named+`"status":"ok","outcome":{"status":"`+text+`","duration_ms":-9223372036854775808,"workdir":"/`+text+`","worker_id":"`+text+`","delivery_error":"`+text+`"},"ending":{"state":"`+text+`","message":"`+text+`"}`)
	record("dlg_03", named+`"status":"error","workdir":"`+huge+`","outcome":{"status":"error"},"ending":{"message":"x"}`)
	record("dlg_04", `"status":"dancing"`)
	record("dlg_05", named+`"status":"submitted","context_id":"`+text+`","origin":"`+text+`","trust":"`+text+`"`)
	record("dlg_06", named+`"status":"crashed","outcome":{"status":"crashed","workdir":"`+strings.Repeat("../", 300)+`"},"ending":{"message":""}`)
	record("dlg_10", named+`"status":"working","workdir":"`+text+`","submitted_at":"9999-12-31T23:59:59.999Z"`)
	record("dlg_11", named+`"status":"working","worker_id":"`+text+`"`)
	record("dlg_12", `"pool":"`+huge+`","lane":"user","capsule":{"name":"evil","version":"3.0"},"status":"submitted"`)
	raw(t, nc, "$KV.starling-delegations.ses_evil.dlg_07", nil, []byte(nasty))
	raw(t, nc, "$KV.starling-delegations.ses_evil.dlg_08", nil, []byte(`{"delegation_id":"`+text+`"}`))
	raw(t, nc, "$KV.starling-delegations.ses_evil.dlg_09", nil, []byte("null"))

	raw(t, nc, "$KV.starling-workers.wrk_evil", nil, []byte(
		`{"worker_id":"wrk_evil","pool":"`+text+`","host":"`+text+`","version":"`+text+`","pid":-1,"slots":9223372036854775807,"busy":-3,"jobs_done":-1,"seen_at":"0001-01-01T00:00:00Z"}`))
	raw(t, nc, "$KV.starling-workers.wrk_large", nil, []byte(`{"worker_id":"wrk_large","pool":"default","host":"`+huge+`","slots":1}`))
	raw(t, nc, "$KV.starling-workers.wrk_none", nil, []byte(nasty))

	raw(t, nc, "$KV.starling-capsule-index.evil.1_2E0", nil, []byte(nasty))
	raw(t, nc, "$KV.starling-capsule-index.evil.2_2E0", nil, []byte(
		`{"digest":"`+text+`","size":-1,"manifest":{"name":"`+text+`"}}`))
	raw(t, nc, "$KV.starling-capsule-index.evil.3_2E0", nil, []byte(
		`{"digest":"sha256:`+strings.Repeat("0", 64)+`","size":-1,"manifest":{"name":"evil","version":"3.0","output":"text","description":"`+text+`","inference":{"max_turns":1}},"pushed_at":"2026-01-01T00:00:00.000Z"}`))

	for i, body := range []string{nasty, `{"env":"` + text + `","spawner":[1],"message":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`, ""} {
		raw(t, nc, fmt.Sprintf("starling.dlq.default.tsk_evil%d", i), nats.Header{
			protocol.HeaderReason: {nasty}, protocol.HeaderDetail: {nasty + huge}, "X-Evil": {nasty}, "Authorization": {"secret"},
		}, []byte(body))
	}
	raw(t, nc, "starling.dlq."+strings.Repeat("p", 300)+".tsk_"+strings.Repeat("t", 300), nil, []byte("x"))

	raw(t, nc, "starling.tasks.tsk_dlg_01", nil, []byte(nasty))
	raw(t, nc, "starling.tasks.tsk_dlg_01", nats.Header{"Starling-Frame": {nasty}, "Starling-Attempt": {"-1"}, "Starling-Seq": {"99999999999999999999"}}, []byte("{}"))
}

// harmless fails when a text would steer a terminal.
func harmless(t *testing.T, what, text string) {
	t.Helper()
	if !utf8.ValidString(text) {
		t.Errorf("%s prints what is no UTF-8:\n%q", what, text)
	}
	if i := strings.IndexFunc(text, steers); i >= 0 {
		t.Errorf("%s prints what steers a terminal: %q", what, text[max(0, i-40):min(len(text), i+40)])
	}
}

// TestCommandsOnAHostileBus: whatever stands in buckets and streams, the commands that
// look print what is good, warn of what is not, and steer no terminal.
func TestCommandsOnAHostileBus(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	o.must("capsule", "push", hello(t))
	good := strings.TrimSpace(o.must("dispatch", "hello@1.0.0", "--task", "x", "--wait", "--json"))
	rec := decoded[protocol.Record](t, good)
	hostileBus(t, f.server.ClientURL())

	for _, c := range []struct {
		command  string
		statuses []int
		out      []string
		err      []string
	}{
		{"ps", []int{exitOK}, []string{"dlg_05", "dlg_10"}, []string{"dlg_01", "dlg_04", "dlg_07", "dlg_08", "dlg_09", "dlg_11", "dlg_12"}},
		{"ps --all", []int{exitOK}, []string{string(rec.DelegationID), "dlg_02", "dlg_03"}, nil},
		{"ps --all --json", []int{exitOK}, []string{string(rec.DelegationID)}, nil},
		{"ps --undelivered", []int{exitOK}, []string{"dlg_02"}, nil},
		{"workers", []int{exitOK}, []string{string(f.staff.worker.ID()), "wrk_large"}, []string{"wrk_none", "wrk_evil"}},
		{"workers --json", []int{exitOK}, []string{string(f.staff.worker.ID())}, nil},
		{"stats", []int{exitOK}, []string{string(f.staff.worker.ID())}, nil},
		{"stats --json", []int{exitOK}, []string{string(f.staff.worker.ID())}, nil},
		{"capsule ls", []int{exitOK}, []string{"hello@1.0.0", "evil@3.0"}, []string{"evil.1_2E0", "evil.2_2E0"}},
		{"capsule inspect evil@1.0", []int{exitFailure}, nil, []string{"capsule index"}},
		{"capsule inspect evil@3.0", []int{exitOK}, []string{"evil"}, nil},
		{"dlq ls", []int{exitOK}, []string{"tsk_evil0", "tsk_evil1", "tsk_evil2"}, nil},
		{"dlq ls --json", []int{exitOK}, []string{"tsk_evil0"}, nil},
		{"dlq show tsk_evil0", []int{exitOK}, []string{"no JSON object", redacted}, nil},
		{"dlq show tsk_evil1", []int{exitOK}, []string{"tsk_evil1", redacted}, nil},
		{"dlq show tsk_evil1 --json", []int{exitOK}, []string{"tsk_evil1"}, nil},
		{"dlq retry tsk_evil0", []int{exitUsage}, nil, []string{"cannot be retried", "dlq show tsk_evil0 --body"}},
		{"dlq drop tsk_evil2", []int{exitOK}, nil, []string{"dropped"}},
		{"result ses_evil.dlg_02", []int{exitFailure}, nil, nil},
		{"result ses_evil.dlg_03", []int{exitTaskFailed}, nil, nil},
		{"result ses_evil.dlg_06", []int{exitCrashed}, nil, nil},
		{"result ses_evil.dlg_07", []int{exitFailure}, nil, []string{"bad ledger record"}},
		{"watch ses_evil.dlg_02 --live", []int{exitOK}, nil, []string{"dlg_02"}},
		{"cancel ses_evil.dlg_11", []int{exitFailure}, nil, []string{"bad ledger record", "worker_id"}},
		{"cancel ses_evil.dlg_04", []int{exitFailure}, nil, []string{"bad ledger record"}},
		{"doctor", []int{exitOK, exitFailure}, []string{"delegations", "dead letters"}, nil},
		{"doctor --json", []int{exitOK, exitFailure}, []string{"delegations"}, nil},
		{"capsule rm evil@3.0", []int{exitOK}, nil, []string{"removed"}},
	} {
		got := o.do(strings.Fields(c.command)...)
		ok := false
		for _, status := range c.statuses {
			ok = ok || got.status == status
		}
		if !ok {
			t.Errorf("starling %s = %d, want %v\n%s", c.command, got.status, c.statuses, got.err)
		}
		contains(t, "starling "+c.command, got.out, c.out...)
		contains(t, "stderr of starling "+c.command, got.err, c.err...)
		harmless(t, "starling "+c.command, got.out)
		harmless(t, "starling "+c.command+" on stderr", got.err)
		if strings.Contains(got.out+got.err, "panic") || strings.Contains(got.out+got.err, "secret") {
			t.Errorf("starling %s panicked or told a secret:\n%s%s", c.command, got.out, got.err)
		}
		if len(got.err) > 16<<10 {
			t.Errorf("starling %s says %d bytes on stderr", c.command, len(got.err))
		}
	}
}
