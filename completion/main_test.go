package completion_test

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"starling/testenv"
)

// proxied counts what reached the proxy that the environment names. Nothing may.
var proxied atomic.Int64

// inAnEnvironment runs the tests where a proxy is configured and the
// certificate of httptest's servers is one of the system's. Both are read once
// by a process, so they are set before the first test.
type inAnEnvironment struct{ m *testing.M }

func (e inAnEnvironment) Run() int {
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		proxied.Add(1)
		_, _ = w.Write([]byte(`{"result":{}}`)) // the count is what matters
	}))
	defer proxy.Close()
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"} {
		must(os.Setenv(name, proxy.URL))
	}
	trusted := httptest.NewTLSServer(nil)
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: trusted.Certificate().Raw})
	trusted.Close()
	dir, err := os.MkdirTemp("", "completion-test-")
	must(err)
	defer func() { must(os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "ca.pem")
	must(os.WriteFile(file, block, 0o600))
	must(os.Setenv("SSL_CERT_FILE", file))
	return e.m.Run()
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func TestMain(m *testing.M) { testenv.Main(inAnEnvironment{m}) }
