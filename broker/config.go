package broker

import (
	"log/slog"
	"time"

	"starling/protocol"
)

// Secret is a password or a token. It redacts itself wherever it is printed or
// logged.
type Secret string

// Config says how to reach the bus. The zero value is the selected context of
// the nats command line tool if there is one, else a server on this host.
type Config struct {
	// URL is one or more servers, comma-separated: nats://, tls://, ws://,
	// wss://. Empty: the context's, else nats://127.0.0.1:4222.
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

	// SeparateFrames gives frames a connection of their own, so that a flood of
	// them cannot delay an ack. Workers set it.
	SeparateFrames bool

	// ConnectTimeout bounds one dial and handshake; 0: 5 s.
	ConnectTimeout time.Duration

	// Logger gets the connection's life; nil: slog.DiscardHandler.
	Logger *slog.Logger
}
