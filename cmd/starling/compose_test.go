package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"go.yaml.in/yaml/v3"
)

// composeFile is what the test reads of docker-compose.yml.
type composeFile struct {
	Services map[string]struct {
		Image       string
		Build       string
		Command     []string
		Environment map[string]string
		Volumes     []string
		Restart     string
		StopSignal  string                                `yaml:"stop_signal"`
		GracePeriod string                                `yaml:"stop_grace_period"`
		DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
		Networks    []string
		Ports       []string
		Expose      []string
		HealthCheck struct {
			Test              []string
			Interval, Timeout string
			Retries           int
		}
		Deploy map[string]any
		Merged any `yaml:"<<"`
	}
	Volumes  map[string]any
	Networks map[string]any
	Name     string
	Nats     any `yaml:"x-nats"`
}

// TestComposeFile reads docker-compose.yml strictly and passes the flags in it
// to the parsers that will read them: the server's own, and this program's.
func TestComposeFile(t *testing.T) {
	t.Parallel()
	var file composeFile
	decoder := yaml.NewDecoder(strings.NewReader(readDoc(t, "docker-compose.yml")))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil {
		t.Fatal(err)
	}
	var servers []string
	for name, service := range file.Services {
		if tag := service.Image[strings.LastIndexByte(service.Image, ':')+1:]; tag == service.Image || tag == "latest" {
			t.Errorf("%s: image %q has no pinned version", name, service.Image)
		}
		for dependency := range service.DependsOn {
			if _, ok := file.Services[dependency]; !ok {
				t.Errorf("%s depends on %s, which is no service", name, dependency)
			}
		}
		if strings.HasPrefix(name, "nats-") {
			servers = append(servers, name)
			checkServerFlags(t, name, service.Command)
			if want := name + ":/data"; !slices.Contains(service.Volumes, want) {
				t.Errorf("%s: volumes = %v, want %s", name, service.Volumes, want)
			}
			continue
		}
		checkProgramFlags(t, name, service.Command)
		for variable := range service.Environment {
			if !knownVariable(variable) {
				t.Errorf("%s sets %s, which is no setting", name, variable)
			}
		}
	}
	if len(servers) != 3 {
		t.Errorf("%d servers, want 3: %v", len(servers), servers)
	}
	f := testFleet(t, monitored)
	check := file.Services["worker"].HealthCheck.Test
	_, port, _ := strings.Cut(f.staff.watched.listener.Addr().String(), ":")
	if len(check) != 4 || check[0] != "CMD" {
		t.Fatalf("the worker's health check is %q", check)
	}
	if out, err := exec.Command(check[1], check[2], strings.Replace(check[3], "9464", port, 1)).CombinedOutput(); err != nil {
		t.Errorf("the health check of a healthy worker: %v\n%s", err, out)
	}
	if err := exec.Command(check[1], check[2], strings.Replace(check[3], "9464", "1", 1)).Run(); err == nil {
		t.Error("the health check passes where no worker listens")
	}
	if w := file.Services["worker"]; w.StopSignal != "SIGTERM" || w.GracePeriod != "60s" {
		t.Errorf("worker stops by %q within %q, want SIGTERM within 60s: it drains", w.StopSignal, w.GracePeriod)
	}
}

// checkServerFlags has the server itself parse its flags.
func checkServerFlags(t *testing.T, name string, args []string) {
	t.Helper()
	flags := flagSet(name)
	options, err := server.ConfigureOptions(flags, args, func() {}, func() {}, func() {})
	if err != nil {
		t.Errorf("%s: nats-server %v: %v", name, args, err)
		return
	}
	if !options.JetStream || options.StoreDir != "/data" || options.ServerName != name || options.Cluster.Name != "starling" || len(options.Routes) != 3 {
		t.Errorf("%s: options = JetStream %t, store %q, name %q, cluster %q, %d routes", name, options.JetStream, options.StoreDir,
			options.ServerName, options.Cluster.Name, len(options.Routes))
	}
}

// checkProgramFlags parses a command of this program without running it.
func checkProgramFlags(t *testing.T, name string, args []string) {
	t.Helper()
	a := &app{streams: streams{in: strings.NewReader(""), out: &output{}, err: &output{}}}
	cmd, rest, err := a.root().Find(args)
	if err == nil {
		err = cmd.ParseFlags(rest)
	}
	if err == nil && cmd.Name() != args[0] {
		err = fmt.Errorf("no command %q", args[0])
	}
	if err != nil {
		t.Errorf("%s: starling %v: %v", name, args, err)
	}
}

func knownVariable(name string) bool {
	for _, group := range groups() {
		for _, s := range settingsOf(group) {
			if s.variable == name {
				return true
			}
		}
	}
	return false
}

// TestDockerfilePinsItsImages reads the FROM lines.
func TestDockerfilePinsItsImages(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(data)) {
		image, ok := strings.CutPrefix(line, "FROM ")
		if !ok {
			continue
		}
		n++
		if _, tag, ok := strings.Cut(strings.Fields(image)[0], ":"); !ok || tag == "latest" {
			t.Errorf("%q has no pinned version", strings.TrimSpace(line))
		}
	}
	if n != 2 {
		t.Errorf("%d images, want 2", n)
	}
}

func flagSet(name string) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(&output{})
	return flags
}
