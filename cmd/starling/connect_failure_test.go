package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"starling/testenv"
)

// TestAConnectionThatFailsSaysWhatToDo tells what happened, to which server or
// file, and what to do, and no secret.
func TestAConnectionThatFailsSaysWhatToDo(t *testing.T) {
	p, stranger := newPKI(t), newPKI(t)
	yesterday, tomorrow := time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	tls, mutual := confTLSServer(t, p, p.server, false), confTLSServer(t, p, p.server, true)
	expired := confTLSServer(t, p, p.ca.Server("expired", yesterday), false)
	lapsed, forged := p.ca.Client("lapsed", yesterday), stranger.ca.Client("forged", tomorrow)
	creds, key := byCreds(t), byNKey(t)
	plain := testenv.NATS(t)
	token := testenv.NATS(t, testenv.WithOptions(func(o *server.Options) { o.Authorization = "t0ken-right" }))
	ann := testenv.NATS(t, testenv.WithUsers(testenv.User{Name: "ann", Password: "s3cret-right"}))

	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	otherCreds, oldCreds := filepath.Join(dir, "other.creds"), filepath.Join(dir, "old.creds")
	jwt1, seed1 := testenv.OperatorMode(t).Creds(otherCreds, time.Time{})
	jwt2, seed2 := testenv.OperatorMode(t).Creds(oldCreds, yesterday)
	otherKey, seed3, _ := nkeySeed(t)
	missing := filepath.Join(dir, "missing")
	secrets := slices.Concat([]string{jwt1, jwt2, seed1, seed2, seed3, "s3cret", "t0ken"}, creds.secrets, key.secrets,
		pemLines(t, lapsed.Key), pemLines(t, forged.Key), pemLines(t, p.client.Key))

	for _, c := range []struct {
		name   string
		args   string
		env    map[string]string
		status int
		says   []string
	}{
		{
			name: "another authority", args: "--url " + secured(tls) + " --tls-ca " + stranger.ca.File, status: exitNoBus,
			says: []string{"not trusted", secured(tls), stranger.ca.File, "--tls-ca (STARLING_TLS_CA)"},
		},
		{
			name: "no authority", args: "--url " + tls.URL(), status: exitNoBus,
			says: []string{"not trusted", tls.URL(), "--tls-ca (STARLING_TLS_CA)"},
		},
		{
			name: "the server's certificate has expired", args: "--url " + secured(expired) + " --tls-ca " + p.ca.File, status: exitNoBus,
			says: []string{"not trusted", secured(expired), "expired", "renew the server's certificate"},
		},
		{
			name: "another name than the certificate's", args: "--url " + strings.Replace(secured(tls), "127.0.0.1", "localhost", 1) + " --tls-ca " + p.ca.File,
			status: exitNoBus, says: []string{"not trusted", "tls://localhost:", "by a name that its certificate holds"},
		},
		{
			name: "no client certificate", args: "--url " + secured(mutual) + " --tls-ca " + p.ca.File, status: exitDenied,
			says: []string{"refused", secured(mutual), "asks for a client certificate", "--tls-cert (STARLING_TLS_CERT)", "--tls-key (STARLING_TLS_KEY)"},
		},
		{
			name: "an expired client certificate", args: "--url " + secured(mutual) + " --tls-ca " + p.ca.File + " --tls-cert " + lapsed.Cert + " --tls-key " + lapsed.Key,
			status: exitDenied, says: []string{"refused", secured(mutual), lapsed.Cert, "expired at", "renew it"},
		},
		{
			name: "a stranger's client certificate", args: "--url " + secured(mutual) + " --tls-ca " + p.ca.File + " --tls-cert " + forged.Cert + " --tls-key " + forged.Key,
			status: exitDenied, says: []string{"refused", secured(mutual), forged.Cert, "have it signed"},
		},
		{
			name: "a certificate and another's key", args: "--url " + secured(mutual) + " --tls-ca " + p.ca.File + " --tls-cert " + p.client.Cert + " --tls-key " + forged.Key,
			status: exitUsage, says: []string{p.client.Cert, forged.Key, "--tls-cert (STARLING_TLS_CERT)", "its key"},
		},
		{
			name: "a certificate without its key", args: "--url " + secured(mutual) + " --tls-cert " + p.client.Cert,
			status: exitUsage, says: []string{"--tls-cert (STARLING_TLS_CERT)", "--tls-key (STARLING_TLS_KEY)", "give both"},
		},
		{
			name: "TLS where there is none", args: "--url " + plain.URL() + " --tls-ca " + p.ca.File,
			status: exitUsage, says: []string{plain.URL(), "offers no TLS", "--tls-ca (STARLING_TLS_CA)"},
		},
		{
			name: "TLS before the server speaks", args: "--url " + secured(tls) + " --tls-first --tls-ca " + p.ca.File,
			status: exitUsage, says: []string{secured(tls), "speaks before TLS", "--tls-first (STARLING_TLS_FIRST)"},
		},
		{
			name: "creds of another operator", args: "--url " + creds.url + " --creds " + otherCreds, status: exitDenied,
			says: []string{"refused the credentials", creds.url, otherCreds, "of a user of this server"},
		},
		{
			name: "creds that ended", args: "--url " + creds.url + " --creds " + oldCreds, status: exitDenied,
			says: []string{"refused the credentials", creds.url, oldCreds, "expired at", "get a new one"},
		},
		{
			name: "a seed where creds should be", args: "--url " + creds.url + " --creds " + otherKey, status: exitUsage,
			says: []string{"--creds (STARLING_CREDS)", otherKey, "no user credentials", "nsc"},
		},
		{
			name: "another NKey", args: "--url " + key.url + " --nkey " + otherKey, status: exitDenied,
			says: []string{"refused the credentials", key.url, otherKey, "public key"},
		},
		{
			name: "no credentials", args: "--url " + key.url, status: exitDenied,
			says: []string{"refused the credentials", key.url, "none are set", "--creds (STARLING_CREDS)", "STARLING_TOKEN"},
		},
		{
			name: "no seed in the file", args: "--url " + key.url + " --nkey " + file("n", "s3cret"), status: exitUsage,
			says: []string{"--nkey (STARLING_NKEY)", filepath.Join(dir, "n"), "no NKey seed"},
		},
		{
			name: "no certificate in the file", args: "--url " + secured(tls) + " --tls-ca " + file("a", "s3cret"), status: exitUsage,
			says: []string{"--tls-ca (STARLING_TLS_CA)", filepath.Join(dir, "a"), "no certificate"},
		},
		{
			name: "files that are not there", args: "--url " + key.url + " --tls-ca " + missing + "1 --tls-cert " + missing + "2 --tls-key " + missing + "3 --creds " + missing + "4",
			status: exitUsage,
			says:   []string{missing + "1", missing + "2", missing + "3", missing + "4", "no such file", "that this user can read", "--creds (STARLING_CREDS)"},
		},
		{
			name: "a file that cannot be read", args: "--url " + key.url + " --nkey " + dir, status: exitUsage,
			says: []string{"--nkey (STARLING_NKEY)", dir, "is a directory"},
		},
		{
			name: "two kinds", args: "--url " + key.url + " --nkey " + otherKey + " --creds " + otherCreds, status: exitUsage,
			says: []string{"--creds (STARLING_CREDS) and --nkey (STARLING_NKEY)", "one kind"},
		},
		{
			name: "a wrong password", args: "--url " + ann.URL() + " --user ann", env: map[string]string{"STARLING_PASSWORD": "s3cret-wrong"},
			status: exitDenied, says: []string{"refused the credentials", ann.URL(), "user ann"},
		},
		{
			name: "a wrong token", args: "--url " + token.URL(), env: map[string]string{"STARLING_TOKEN": "t0ken-wrong"},
			status: exitDenied, says: []string{"refused the credentials", token.URL(), "check the token"},
		},
		{
			name: "a wrong password in the URL", args: "--url " + strings.Replace(ann.URL(), "//", "//ann:s3cret-wrong@", 1),
			status: exitDenied, says: []string{"refused the credentials", "127.0.0.1", "in the URL"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			for _, command := range []string{"ps", "worker"} { // the second one logs
				got := starling(t, "", append(runArgsOf(t, command), strings.Fields(c.args)...)...)
				if got.status != c.status {
					t.Errorf("starling %s = %d, want %d\n%s", command, got.status, c.status, got.err)
				}
				contains(t, "stderr of "+command, got.err, c.says...)
				access{secrets: secrets}.hidden(t, command, got)
			}
		})
	}
	t.Run("a context's file that is not there", func(t *testing.T) {
		natsContext(t, "fleet", map[string]string{"url": creds.url, "creds": missing})
		got := starling(t, "", "ps", "--context", "fleet")
		if got.status != exitUsage {
			t.Errorf("ps = %d, want %d", got.status, exitUsage)
		}
		contains(t, "stderr", got.err, `context "fleet"`, missing, "no such file")
	})
}

// runArgsOf is a command with the directories of its own that a worker needs.
func runArgsOf(t *testing.T, command string) []string {
	if command == "worker" {
		return runArgs(t, command)
	}
	return []string{command}
}
