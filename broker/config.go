package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"starling/protocol"
)

// DefaultURL is the server of a Config that names none and finds no context.
const DefaultURL = "nats://127.0.0.1:4222"

// Secret is a password or a token. It redacts itself wherever it is printed or
// logged.
type Secret string

// String never shows the value.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "[redacted]"
}

// GoString never shows the value.
func (s Secret) GoString() string { return s.String() }

// LogValue never shows the value.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText never shows the value.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Config says how to reach the bus. The zero value is the selected context of
// the nats command line tool if there is one, else a server on this host.
type Config struct {
	// URL is one or more servers, comma-separated: nats://, tls://, ws:// or
	// wss://. Empty: the context's, else [DefaultURL].
	URL string
	// Namespace is the fleet's; empty: protocol.DefaultNamespace.
	Namespace protocol.Namespace
	// Name is the connection's, as the server's monitoring shows it; empty:
	// "starling".
	Name string

	// Context is the name of a context of the nats command line tool. Fields set
	// here win over it. Empty: the selected one, but only when neither URL nor
	// any credential is set.
	Context string
	// ContextDir is the directory that holds context.txt and context/; empty:
	// $XDG_CONFIG_HOME/nats, else ~/.config/nats.
	ContextDir string

	// At most one of CredsFile, NKeyFile, User and Token.
	CredsFile string // path of a .creds file (JWT and seed)
	NKeyFile  string // path of an NKey seed file
	User      string
	Password  Secret
	Token     Secret

	TLSCA    string // path of a PEM file of authorities
	TLSCert  string // path of a PEM client certificate, with TLSKey
	TLSKey   string // path of its PEM key
	TLSFirst bool   // handshake before the server's INFO

	// InboxPrefix is where answers come to; empty: _INBOX. Parties with narrow
	// rights have one each.
	InboxPrefix string

	// SeparateFrames gives frames, modules and results a connection of their own,
	// so that a flood of them cannot delay an ack. Workers set it.
	SeparateFrames bool

	// Names are what errors call the fields, by field, for users who know them as
	// flags; a field that is missing is called by its own name.
	Names map[string]string

	// ConnectTimeout bounds one dial and handshake; 0: 5 s.
	ConnectTimeout time.Duration

	// Logger gets the connection's life; nil: discarded.
	Logger *slog.Logger
}

// Validate checks every field, and that the named files can be read and hold
// what they should. It joins all problems; each is [ErrConfig] and names its
// field and the fix.
func (c Config) Validate() error {
	var problems []error
	bad := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...))
	}
	if c.Namespace != "" {
		if err := c.Namespace.Validate(); err != nil {
			bad("%s: %w", c.name("Namespace"), err)
		}
	}
	for _, raw := range c.servers() {
		if err := validURL(raw); err != nil {
			bad("%s: %w", c.name("URL"), err)
		}
	}
	if ways := c.credentials(); len(ways) > 1 {
		bad("%s are set: give one kind of credential", strings.Join(ways, " and "))
	}
	if c.Password != "" && c.User == "" {
		bad("%s is set without %s: give both", c.name("Password"), c.name("User"))
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		bad("%s and %s belong together: give both", c.name("TLSCert"), c.name("TLSKey"))
	}
	for _, err := range c.checkFiles() {
		bad("%w", err)
	}
	if c.InboxPrefix != "" && (strings.ContainsAny(c.InboxPrefix, "*> \t\r\n") ||
		strings.HasPrefix(c.InboxPrefix, ".") || strings.HasSuffix(c.InboxPrefix, ".") || strings.Contains(c.InboxPrefix, "..")) {
		bad("%s is %q: it is a subject without wildcards, such as _INBOX_w1", c.name("InboxPrefix"), c.InboxPrefix)
	}
	if c.ConnectTimeout < 0 {
		bad("ConnectTimeout is %s: it is positive, or 0 for 5s", c.ConnectTimeout)
	}
	return errors.Join(problems...)
}

// String is the configuration without its secrets.
func (c Config) String() string {
	return fmt.Sprintf("url=%s namespace=%s context=%s user=%s", c.redactedURL(), c.Namespace, c.Context, c.User)
}

// LogValue is the configuration without its secrets.
func (c Config) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("url", c.redactedURL()), slog.String("namespace", string(c.Namespace)),
		slog.String("context", c.Context), slog.String("user", c.User),
		slog.String("creds_file", c.CredsFile), slog.String("nkey_file", c.NKeyFile),
	)
}

func (c Config) servers() []string {
	var servers []string
	for s := range strings.SplitSeq(c.URL, ",") {
		if s = strings.TrimSpace(s); s != "" {
			servers = append(servers, s)
		}
	}
	return servers
}

func (c Config) redactedURL() string {
	servers := c.servers()
	for i, s := range servers {
		servers[i] = redactURL(s)
	}
	return strings.Join(servers, ",")
}

// credentials names the kinds that are set.
func (c Config) credentials() []string {
	var ways []string
	for _, way := range []struct {
		name string
		set  bool
	}{
		{"CredsFile", c.CredsFile != ""},
		{"NKeyFile", c.NKeyFile != ""},
		{"User", c.User != ""},
		{"Token", c.Token != ""},
	} {
		if way.set {
			ways = append(ways, c.name(way.name))
		}
	}
	return ways
}

// name is what errors call a field.
func (c Config) name(field string) string {
	if name, ok := c.Names[field]; ok {
		return name
	}
	return field
}

// filled is the configuration with the context and the defaults filled in.
func (c Config) filled() (Config, error) {
	if c.Context != "" || c.URL == "" && len(c.credentials()) == 0 {
		var err error
		if c, err = c.withContext(); err != nil {
			return c, err
		}
	}
	if c.URL == "" {
		c.URL = DefaultURL
	}
	return c.withDefaults(), nil
}

func (c Config) withDefaults() Config {
	if c.Namespace == "" {
		c.Namespace = protocol.DefaultNamespace
	}
	if c.Name == "" {
		c.Name = "starling"
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = 5 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// redactURL hides whatever stands before the host, and a text that is no URL.
func redactURL(raw string) string {
	u, err := parseServer(raw)
	if err != nil {
		return "[not a URL]"
	}
	if u.User != nil {
		u.User = url.User("redacted")
	}
	u.RawQuery, u.Fragment = "", ""
	return u.String()
}

func parseServer(raw string) (*url.URL, error) {
	if !strings.Contains(raw, "://") {
		raw = "nats://" + raw
	}
	return url.Parse(raw)
}

func validURL(raw string) error {
	u, err := parseServer(raw)
	if err != nil {
		// The parser's text would show the secret.
		return errors.New("one of the servers is no URL: it is nats://host:port")
	}
	switch u.Scheme {
	case "nats", "tls", "ws", "wss":
	default:
		return fmt.Errorf("%s: the scheme is nats, tls, ws or wss", redactURL(raw))
	}
	if u.Hostname() == "" {
		return fmt.Errorf("%s: it has no host", redactURL(raw))
	}
	return nil
}
