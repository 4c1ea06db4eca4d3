package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// cliContext is the part of a context of the nats command line tool that a Bus
// can use, and the members that it refuses rather than ignores, since a
// connection without them would go elsewhere or fail without a reason.
type cliContext struct {
	URL      string `json:"url"`
	User     string `json:"user"`
	Password Secret `json:"password"`
	Token    Secret `json:"token"`
	Creds    string `json:"creds"`
	NKey     string `json:"nkey"`
	CA       string `json:"ca"`
	Cert     string `json:"cert"`
	Key      string `json:"key"`
	TLSFirst bool   `json:"tls_first"`
	Inbox    string `json:"inbox_prefix"`

	NSC       string `json:"nsc"`
	Socks     string `json:"socks_proxy"`
	UserJWT   string `json:"user_jwt"`
	Domain    string `json:"jetstream_domain"`
	APIPrefix string `json:"jetstream_api_prefix"`
	WinStore  string `json:"windows_cert_store"`
}

// withContext fills the fields that are not set from the context.
func (c Config) withContext() (Config, error) {
	dir := c.ContextDir
	if dir == "" {
		dir = defaultContextDir()
	}
	name, err := c.contextName(dir)
	if name == "" || err != nil {
		return c, err
	}
	x, err := readContext(dir, name)
	if err != nil {
		return c, err
	}
	if len(c.credentials()) == 0 {
		c.User, c.Password, c.Token = x.User, x.Password, x.Token
		c.CredsFile, c.NKeyFile = expandHome(x.Creds), expandHome(x.NKey)
	}
	for _, field := range []struct {
		set   *string
		value string
	}{
		{&c.URL, x.URL},
		{&c.TLSCA, expandHome(x.CA)},
		{&c.TLSCert, expandHome(x.Cert)},
		{&c.TLSKey, expandHome(x.Key)},
		{&c.InboxPrefix, x.Inbox},
	} {
		if *field.set == "" {
			*field.set = field.value
		}
	}
	c.TLSFirst = c.TLSFirst || x.TLSFirst
	c.Context = name
	return c, nil
}

// contextName is the named context, else the selected one, else "".
func (c Config) contextName(dir string) (string, error) {
	if c.Context != "" {
		return c.Context, nil
	}
	selected, err := os.ReadFile(filepath.Join(dir, "context.txt"))
	if errors.Is(err, fs.ErrNotExist) || dir == "" {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("%w: the selected nats context: %w", ErrConfig, err)
	}
	return strings.TrimSpace(string(selected)), nil
}

func readContext(dir, name string) (cliContext, error) {
	refuse := func(format string, args ...any) (cliContext, error) {
		return cliContext{}, fmt.Errorf("%w: nats context %q: "+format, append([]any{ErrConfig, name}, args...)...)
	}
	if strings.ContainsAny(name, `/\`) || name == "." || name == ".." {
		return refuse("a name has no path in it")
	}
	data, err := os.ReadFile(filepath.Join(dir, "context", name+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return refuse("%s has none of that name: list them with `nats context ls`", filepath.Join(dir, "context"))
	}
	if err != nil {
		return refuse("%w", err)
	}
	var x cliContext
	if err := json.Unmarshal(data, &x); err != nil {
		return refuse("its file is not readable JSON") // the parser may quote a secret
	}
	for _, member := range []struct{ name, value string }{
		{"nsc", x.NSC},
		{"socks_proxy", x.Socks},
		{"user_jwt", x.UserJWT},
		{"jetstream_domain", x.Domain},
		{"jetstream_api_prefix", x.APIPrefix},
		{"windows_cert_store", x.WinStore},
	} {
		if member.value != "" {
			return refuse("it sets %s, which is not supported: use a context without it", member.name)
		}
	}
	return x, nil
}

// defaultContextDir is where the nats command line tool keeps its contexts. It
// is the one place of the package that looks at the environment: the rule is
// that tool's.
func defaultContextDir() string {
	if dir := os.Getenv("XDG_CONFIG_HOME"); dir != "" {
		return filepath.Join(dir, "nats")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".config", "nats")
}

func expandHome(path string) string {
	rest, ok := strings.CutPrefix(path, "~/")
	if !ok {
		return path
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return path
	}
	return filepath.Join(home, rest)
}
