package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
	"github.com/spf13/cobra"

	"starling/protocol"
	"starling/testenv"
)

// access is how one server is reached: by the settings of a kind of TLS or
// credential.
type access struct {
	name     string
	server   *testenv.Server
	url      string
	settings []accessSetting
	secrets  []string // what no error and no log may show
}

// accessSetting is one setting of an access, as a flag, a variable and a member
// of a context of the nats command.
type accessSetting struct{ flag, variable, member, value string }

// ways are the ways of saying an access to a command. Each gives the flags to
// add, after it has set what is not a flag.
var ways = map[string]func(t *testing.T, a access) []string{
	"flags": func(_ *testing.T, a access) []string {
		args := []string{"--url", a.url}
		for _, s := range a.settings {
			args = append(args, "--"+s.flag, s.value)
		}
		return args
	},
	"variables": func(t *testing.T, a access) []string {
		t.Setenv("STARLING_URL", a.url)
		for _, s := range a.settings {
			t.Setenv(s.variable, s.value)
		}
		return nil
	},
	"context": func(t *testing.T, a access) []string {
		members := map[string]string{"url": a.url}
		for _, s := range a.settings {
			members[s.member] = s.value
		}
		natsContext(t, "fleet", members)
		return []string{"--context", "fleet"}
	},
}

// natsContext writes a context of the nats command where commands look for it.
func natsContext(t *testing.T, name string, members map[string]string) {
	t.Helper()
	home := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", home)
	dir := filepath.Join(home, "nats", "context")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(members)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// pki is the certificates of a test.
type pki struct {
	ca             *testenv.Authority
	server, client testenv.KeyPair
}

func newPKI(t *testing.T) pki {
	t.Helper()
	ca, tomorrow := testenv.CertificateAuthority(t), time.Now().Add(24*time.Hour)
	return pki{ca: ca, server: ca.Server("server", tomorrow), client: ca.Client("client", tomorrow)}
}

// confTLSServer is a server with the configuration of docs/configuration.md.
func confTLSServer(t *testing.T, p pki, cert testenv.KeyPair, mutual bool) *testenv.Server {
	t.Helper()
	block := blocks(t, "docs/configuration.md", "nats tls")[0]
	if !mutual {
		block = strings.Replace(block, "verify: true", "verify: false", 1)
	}
	for name, value := range map[string]string{"SERVER_CERT": cert.Cert, "SERVER_KEY": cert.Key, "CA": p.ca.File} {
		t.Setenv(name, value)
	}
	loaded := confBlock(t, block)
	return testenv.NATS(t, testenv.WithOptions(func(o *server.Options) {
		o.TLSConfig, o.TLSVerify, o.TLSTimeout = loaded.TLSConfig, loaded.TLSVerify, loaded.TLSTimeout
	}))
}

// confBlock is a configuration as the server reads it.
func confBlock(t *testing.T, text string) *server.Options {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	loaded, err := server.ProcessConfigFile(path)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return loaded
}

func secured(s *testenv.Server) string { return "tls://" + strings.TrimPrefix(s.URL(), "nats://") }

func caSetting(p pki) accessSetting {
	return accessSetting{"tls-ca", "STARLING_TLS_CA", "ca", p.ca.File}
}

func clientSettings(pair testenv.KeyPair) []accessSetting {
	return []accessSetting{
		{"tls-cert", "STARLING_TLS_CERT", "cert", pair.Cert},
		{"tls-key", "STARLING_TLS_KEY", "key", pair.Key},
	}
}

func credsSetting(path string) accessSetting {
	return accessSetting{"creds", "STARLING_CREDS", "creds", path}
}

func nkeySetting(path string) accessSetting {
	return accessSetting{"nkey", "STARLING_NKEY", "nkey", path}
}

func byTLS(t *testing.T) access {
	p := newPKI(t)
	s := confTLSServer(t, p, p.server, false)
	return access{name: "TLS", server: s, url: secured(s), settings: []accessSetting{caSetting(p)}}
}

func byMutualTLS(t *testing.T) access {
	p := newPKI(t)
	s := confTLSServer(t, p, p.server, true)
	return access{
		name: "mutual TLS", server: s, url: secured(s), settings: append(clientSettings(p.client), caSetting(p)),
		secrets: pemLines(t, p.client.Key),
	}
}

func byCreds(t *testing.T) access {
	operator := testenv.OperatorMode(t)
	path := filepath.Join(t.TempDir(), "user.creds")
	token, seed := operator.Creds(path, time.Time{})
	s := testenv.NATS(t, operator.Option())
	return access{name: "creds", server: s, url: s.URL(), settings: []accessSetting{credsSetting(path)}, secrets: []string{token, seed}}
}

func byNKey(t *testing.T) access {
	path, seed, public := nkeySeed(t)
	t.Setenv("PUBLIC_KEY", public)
	loaded := confBlock(t, blocks(t, "docs/configuration.md", "nats nkey")[0])
	s := testenv.NATS(t, testenv.WithOptions(func(o *server.Options) { o.Nkeys = loaded.Nkeys }))
	return access{name: "NKey", server: s, url: s.URL(), settings: []accessSetting{nkeySetting(path)}, secrets: []string{seed}}
}

// nkeySeed is a file of a new user's seed.
func nkeySeed(t *testing.T) (path, seed, public string) {
	t.Helper()
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	secret, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	if public, err = pair.PublicKey(); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "user.nk")
	if err := os.WriteFile(path, secret, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, string(secret), public
}

// pemLines are the lines between a PEM file's marks.
func pemLines(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(strings.Fields(string(text)), func(line string) bool { return len(line) < 16 })
}

func (a access) hidden(t *testing.T, what string, got result) {
	t.Helper()
	for _, secret := range a.secrets {
		if strings.Contains(got.out+got.err, secret) {
			t.Errorf("%s shows a secret:\n%s%s", what, got.out, got.err)
		}
	}
}

// connecting are the commands that connect, with arguments and the status that
// only the bus can tell: what was found there, or was not.
func connecting(capsule, key string) map[string]struct {
	args   []string
	status int
} {
	type c = struct {
		args   []string
		status int
	}
	return map[string]c{
		"init":            {nil, exitOK},
		"doctor":          {nil, exitOK},
		"ps":              {nil, exitOK},
		"workers":         {nil, exitOK},
		"stats":           {nil, exitOK},
		"dlq ls":          {nil, exitOK},
		"capsule push":    {[]string{capsule}, exitOK},
		"capsule ls":      {nil, exitOK},
		"capsule inspect": {[]string{"hello@1.0.0"}, exitOK},
		"result":          {[]string{key}, exitOK},
		"watch":           {[]string{key}, exitOK},
		"cancel":          {[]string{key}, exitFailure}, // it has ended
		"capsule rm":      {[]string{"none@1.0.0"}, exitNotFound},
		"dispatch":        {[]string{"none@1.0.0", "--task", "x", "--allow-unserved"}, exitNotFound},
		"drain":           {[]string{"wrk_none"}, exitNotFound},
		"dlq show":        {[]string{"tsk_none"}, exitNotFound},
		"dlq retry":       {[]string{"tsk_none"}, exitNotFound},
		"dlq drop":        {[]string{"tsk_none"}, exitNotFound},
		"redeliver":       {[]string{"ses_none.dlg_0", "--door", "http://127.0.0.1:1", "--trust", "trusted"}, exitNotFound},
		"worker":          {nil, exitOK}, // as long as the others
	}
}

// connectingCommands are the commands that have a setting for the servers.
func connectingCommands() []string {
	var found []string
	var walk func(prefix string, cmd *cobra.Command)
	walk = func(prefix string, cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			if sub.Flags().Lookup("url") != nil {
				found = append(found, prefix+sub.Name())
			}
			walk(prefix+sub.Name()+" ", sub)
		}
	}
	walk("", (&app{}).root())
	return found
}

func TestEveryCommandConnectsByEachKindOfCredential(t *testing.T) {
	capsule := hello(t)
	for _, open := range []func(*testing.T) access{byTLS, byMutualTLS, byCreds, byNKey} {
		a := open(t)
		for name, way := range ways {
			t.Run(a.name+" by "+name, func(t *testing.T) { everyCommand(t, a, capsule, way(t, a)) })
		}
	}
}

// everyCommand runs them all, with a worker that does a job.
func everyCommand(t *testing.T, a access, capsule string, flags []string) {
	do := func(args ...string) result {
		got := starling(t, "", append(args, flags...)...)
		a.hidden(t, args[0], got)
		return got
	}
	must := func(args ...string) string {
		got := do(args...)
		if got.status != exitOK {
			t.Fatalf("starling %v = %d\n%s", args, got.status, got.err)
		}
		return got.out
	}
	must("init")
	must("capsule", "push", capsule)
	dismiss := employ(t, a, flags)
	rec := decoded[protocol.Record](t, must("dispatch", "hello@1.0.0", "--task", "x", "--wait", "--json", "--allow-unserved"))
	table := connecting(capsule, rec.Key())
	for _, command := range connectingCommands() {
		want, ok := table[command]
		if !ok {
			t.Errorf("`starling %s` connects and is not in this test: add it to connecting", command)
			continue
		}
		delete(table, command)
		if command == "worker" {
			continue // it did the job
		}
		before := connections(t, a.server)
		if got := do(append(strings.Fields(command), want.args...)...); got.status != want.status {
			t.Errorf("starling %s = %d, want %d\n%s%s", command, got.status, want.status, got.out, got.err)
		}
		if connections(t, a.server) == before {
			t.Errorf("starling %s did not connect to the server", command)
		}
	}
	for command := range table {
		t.Errorf("`starling %s` does not connect (any more): take it out of connecting", command)
	}
	dismiss()
}

// employ starts a worker as a process; the returned function ends it.
func employ(t *testing.T, a access, flags []string) (dismiss func()) {
	t.Helper()
	var said output
	worker := startWorkerProcess(t, exec.Command, "", filepath.Join(t.TempDir(), "work"), &said,
		append([]string{"--sandbox", "inprocess", "--log-level", "info"}, flags...)...)
	return func() {
		testenv.EventuallyTrue(t, 30*time.Second, "a job is settled", func() bool { return strings.Contains(said.String(), `"job settled"`) })
		if err := worker.insist(t); err != nil {
			t.Errorf("worker: %v\n%s", err, said.String())
		}
		a.hidden(t, "worker", result{err: said.String()})
	}
}

// connections counts the connections that a server has ever had.
func connections(t *testing.T, s *testenv.Server) uint64 {
	t.Helper()
	v, err := s.NATS().Varz(&server.VarzOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return v.TotalConnections
}

// TestConnectingPageCommand runs the page's own command.
func TestConnectingPageCommand(t *testing.T) {
	p := newPKI(t)
	s := confTLSServer(t, p, p.server, true)
	shell(t, blocks(t, "docs/configuration.md", "sh tls")[0], "SERVER="+secured(s), "CA="+p.ca.File,
		"CLIENT_CERT="+p.client.Cert, "CLIENT_KEY="+p.client.Key)
	want(t, "operator", "ps", "--url", secured(s), "--tls-ca", p.ca.File, "--tls-cert", p.client.Cert, "--tls-key", p.client.Key)
}
