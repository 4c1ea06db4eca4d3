package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestDashboardShowsMetricsThatExist compares docs/deploy/grafana-dashboard.json
// with what a worker serves.
func TestDashboardShowsMetricsThatExist(t *testing.T) {
	t.Parallel()
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(readDoc(t, "docs/deploy/grafana-dashboard.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	f := testFleet(t, monitored)
	_, served := f.staff.watched.look(t, "/metrics")
	name := regexp.MustCompile(`starling_[a-z_]+`)
	shown := 0
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			for _, metric := range name.FindAllString(target.Expr, -1) {
				shown++
				if !strings.Contains(served, "# TYPE "+strings.TrimSuffix(metric, "_bucket")+" ") {
					t.Errorf("panel %q shows %s, which no worker serves", panel.Title, metric)
				}
			}
		}
	}
	if shown < 10 {
		t.Errorf("the dashboard shows %d metrics", shown)
	}
}

// TestSystemdUnit passes the unit's command to this program's parser, checks that
// a drain has its time, and has systemd itself read the unit where there is one.
func TestSystemdUnit(t *testing.T) {
	t.Parallel()
	unit := readDoc(t, "docs/deploy/starling-worker@.service")
	settings := map[string]string{}
	for line := range strings.Lines(unit) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(name, "#") {
			settings[name] = strings.TrimSpace(settings[name] + " " + value)
		}
	}
	program, command, _ := strings.Cut(strings.ReplaceAll(settings["ExecStart"], "%i", "default"), " ")
	checkProgramFlags(t, "the unit", strings.Fields(command))
	drain := time.Duration(0)
	for _, assignment := range strings.Fields(settings["Environment"]) {
		variable, value, _ := strings.Cut(assignment, "=")
		if !knownVariable(variable) {
			t.Errorf("the unit sets %s, which is no setting", variable)
		}
		if variable == "STARLING_DRAIN_TIMEOUT" {
			var err error
			if drain, err = time.ParseDuration(value); err != nil {
				t.Error(err)
			}
		}
	}
	stop, err := time.ParseDuration(strings.Replace(settings["TimeoutStopSec"], "min", "m", 1))
	if err != nil || drain == 0 || stop < drain+30*time.Second {
		t.Errorf("TimeoutStopSec is %s (%v), want the drain timeout, %s, and half a minute", stop, err, drain)
	}
	if settings["KillSignal"] != "SIGTERM" || settings["KillMode"] != "mixed" {
		t.Errorf("the unit stops by %s, mode %s; want SIGTERM to the worker alone", settings["KillSignal"], settings["KillMode"])
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Log("systemd's own check is left out: there is no systemd-analyze")
		return
	}
	file := filepath.Join(t.TempDir(), "starling-worker@.service")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(unit, program, "/bin/true")), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(analyze, "verify", file).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}
