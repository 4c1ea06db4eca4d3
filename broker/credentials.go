package broker

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// checkFiles reads each file that is named, to tell one that is missing, or of
// another kind, from one that the server refuses. No error repeats content.
func (c Config) checkFiles() []error {
	var problems []error
	for _, file := range []struct {
		field, path string
		check       func(content []byte) error
	}{
		{"CredsFile", c.CredsFile, checkCreds},
		{"NKeyFile", c.NKeyFile, checkSeed},
		{"TLSCA", c.TLSCA, checkAuthorities},
		{"TLSCert", c.TLSCert, nil}, // the pair is checked below
		{"TLSKey", c.TLSKey, nil},
	} {
		if file.path == "" {
			continue
		}
		content, err := os.ReadFile(file.path)
		var cannot *fs.PathError
		switch {
		case errors.As(err, &cannot):
			err = fmt.Errorf("%s: %w: name a file that this user can read", file.path, cannot.Err)
		case err == nil && file.check != nil:
			if err = file.check(content); err != nil {
				err = fmt.Errorf("%s holds %w", file.path, err)
			}
		}
		clear(content)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", c.name(file.field), err))
		}
	}
	if len(problems) == 0 && c.TLSCert != "" && c.TLSKey != "" {
		if _, err := c.clientCertificate(); err != nil {
			problems = append(problems, err)
		}
	}
	return problems
}

// checkCreds wants both parts. The client would send a file without a JWT as the
// JWT itself: a seed would go to the server.
func checkCreds(content []byte) error {
	const none = "no user credentials: a .creds file has a JWT and a seed, as `nsc generate creds` writes it"
	pair, err := nkeys.ParseDecoratedUserNKey(content)
	if err != nil {
		return errors.New(none)
	}
	pair.Wipe()
	if token, err := nkeys.ParseDecoratedJWT(content); err != nil || strings.Count(token, ".") != 2 {
		return errors.New(none)
	}
	return nil
}

func checkSeed(content []byte) error {
	pair, err := nkeys.ParseDecoratedNKey(content)
	if err != nil {
		return errors.New("no NKey seed: it is one line that begins with SU")
	}
	pair.Wipe()
	return nil
}

// nkeyOption reads the public key of a seed file. The seed is read again for each
// signature and not kept.
func nkeyOption(cfg Config) nats.Option {
	option, err := nats.NkeyOptionFromSeed(cfg.NKeyFile)
	if err != nil { // it was readable a moment ago
		return func(*nats.Options) error {
			return fmt.Errorf("%w: %s: %s holds no NKey seed", ErrConfig, cfg.name("NKeyFile"), cfg.NKeyFile)
		}
	}
	return option
}

// credential says what the server was shown, and what to do when it refused it.
func (c Config) credential(now time.Time) string {
	switch {
	case c.CredsFile != "":
		if end, ok := expiry(c.CredsFile); ok && !now.Before(end) {
			return fmt.Sprintf("the creds file %s expired at %s: get a new one", c.CredsFile, end.UTC().Format(time.RFC3339))
		}
		return fmt.Sprintf("check that the creds file %s is of a user of this server, and not revoked", c.CredsFile)
	case c.NKeyFile != "":
		return fmt.Sprintf("check that the public key of the NKey file %s is one of this server's users", c.NKeyFile)
	case c.User != "":
		return fmt.Sprintf("check the user %s and its password", c.User)
	case c.Token != "":
		return "check the token"
	case strings.Contains(c.URL, "@"):
		return "check the user and password, or the token, in the URL"
	}
	return fmt.Sprintf("it wants credentials and none are set: give %s, %s, %s or %s",
		c.name("CredsFile"), c.name("NKeyFile"), c.name("User"), c.name("Token"))
}

// expiry is when the JWT of a creds file ends, if it does.
func expiry(path string) (end time.Time, ok bool) {
	content, err := os.ReadFile(path)
	if err != nil {
		return end, false
	}
	defer clear(content)
	token, err := nkeys.ParseDecoratedJWT(content)
	if err != nil {
		return end, false
	}
	_, rest, _ := strings.Cut(token, ".")
	payload, _, _ := strings.Cut(rest, ".")
	claims, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil {
		return end, false
	}
	var c struct {
		Expires int64 `json:"exp"` // seconds since 1970; 0: never
	}
	if json.Unmarshal(claims, &c) != nil || c.Expires == 0 {
		return end, false
	}
	return time.Unix(c.Expires, 0), true
}
