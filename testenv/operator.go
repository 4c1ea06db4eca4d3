package testenv

import (
	"os"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
)

// Operator is who signs the accounts of a server in operator mode: its users
// are known by JWTs alone.
type Operator struct {
	t        testing.TB
	operator nkeys.KeyPair
	system   nkeys.KeyPair // account
	account  nkeys.KeyPair // of the fleet, with JetStream
}

// OperatorMode makes an operator with an account for a fleet.
func OperatorMode(t testing.TB) *Operator {
	t.Helper()
	return &Operator{
		t: t, operator: keys(t, nkeys.CreateOperator), system: keys(t, nkeys.CreateAccount), account: keys(t, nkeys.CreateAccount),
	}
}

func keys(t testing.TB, create func() (nkeys.KeyPair, error)) nkeys.KeyPair {
	t.Helper()
	pair, err := create()
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func public(t testing.TB, pair nkeys.KeyPair) string {
	t.Helper()
	key, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Option puts a server into operator mode.
func (o *Operator) Option() Option {
	o.t.Helper()
	operator := jwt.NewOperatorClaims(public(o.t, o.operator))
	resolver := &server.MemAccResolver{}
	for _, pair := range []nkeys.KeyPair{o.system, o.account} {
		account := jwt.NewAccountClaims(public(o.t, pair))
		if pair == o.account {
			account.Limits.JetStreamLimits = jwt.JetStreamLimits{
				MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit,
			}
		}
		token, err := account.Encode(o.operator)
		if err != nil {
			o.t.Fatal(err)
		}
		if err := resolver.Store(account.Subject, token); err != nil {
			o.t.Fatal(err)
		}
	}
	return WithOptions(func(options *server.Options) {
		options.TrustedOperators = []*jwt.OperatorClaims{operator}
		options.AccountResolver = resolver
		options.SystemAccount = public(o.t, o.system)
	})
}

// Creds writes a .creds file of a new user of the fleet's account, whose JWT ends
// at a time; the zero time: never. It gives the two secrets in it.
func (o *Operator) Creds(path string, ends time.Time) (token, seed string) {
	o.t.Helper()
	pair := keys(o.t, nkeys.CreateUser)
	user := jwt.NewUserClaims(public(o.t, pair))
	if !ends.IsZero() {
		user.Expires = ends.Unix()
	}
	token, err := user.Encode(o.account)
	if err != nil {
		o.t.Fatal(err)
	}
	secret, err := pair.Seed()
	if err != nil {
		o.t.Fatal(err)
	}
	content, err := jwt.FormatUserConfig(token, secret)
	if err != nil {
		o.t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		o.t.Fatal(err)
	}
	return token, string(secret)
}
