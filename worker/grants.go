package worker

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"starling/protocol"
	"starling/sandbox"
)

// Ceiling is what the operator lets capsules have, whatever their manifests ask
// for. The zero value allows every manifest within the protocol's own bounds
// and gives nothing of the worker's environment.
//
// Source: docs/protocol.md, section 5, Grants.
type Ceiling struct {
	// Env are names whose value in the worker's own environment a capsule gets
	// when its manifest allows the name and the job sets no value.
	Env []string
	// CredentialEnv are credential-shaped names (a key, a token, a password)
	// that capsules may be given; no other such name is.
	CredentialEnv []string
	// Network are the hosts that capsules may call, as network.allow has them.
	// Empty is any public host that a manifest lists, and no other: an address that
	// is not public must stand here too.
	Network []string
	// Most a manifest, narrowed by the job, may ask for; 0 is no ceiling.
	MemoryBytes     int64
	TableElements   int64
	Instances       int64
	DeadlineSeconds int64
	WorkdirBytes    int64
}

// refusal is why a capsule is not started: the parent is told.
type refusal struct{ why string }

func (r *refusal) Error() string { return r.why }

// check compares the limits of a run with the ceiling.
func (c Ceiling) check(l protocol.Limits) error {
	byDefault := protocol.DefaultLimits()
	for _, limit := range []struct {
		key                      string
		asked, allowed, fallback int64
	}{
		{"memory_bytes", l.MemoryBytes, c.MemoryBytes, byDefault.MemoryBytes},
		{"table_elements", l.TableElements, c.TableElements, byDefault.TableElements},
		{"instances", l.Instances, c.Instances, byDefault.Instances},
		{"deadline_seconds", l.DeadlineSeconds, c.DeadlineSeconds, byDefault.DeadlineSeconds},
		{"workdir_bytes", l.WorkdirBytes, c.WorkdirBytes, byDefault.WorkdirBytes},
	} {
		if limit.allowed > 0 && limit.asked > limit.allowed {
			asked := strconv.FormatInt(limit.asked, 10)
			if limit.asked == limit.fallback {
				asked += " (the default of a manifest)"
			}
			return &refusal{fmt.Sprintf("capabilities.limits.%s asks for %s and the operator's ceiling (STARLING_CEILING_%s) is %d",
				limit.key, asked, strings.ToUpper(limit.key), limit.allowed)}
		}
	}
	return nil
}

// granted are the capabilities of a run: what the manifest asks for, narrowed by
// the job, within the operator's ceiling.
func (w *Worker) granted(job protocol.Job, manifest protocol.Manifest) (protocol.Capabilities, error) {
	c, err := manifest.Capabilities.Narrow(job.Capabilities)
	if err != nil {
		return c, &refusal{strings.ReplaceAll(err.Error(), "\n", "; ")}
	}
	if err := w.cfg.Ceiling.checkNetwork(c.Network); err != nil {
		return c, err
	}
	return c, w.cfg.Ceiling.check(c.Limits)
}

// checkNetwork compares the hosts of a run with the ceiling.
func (c Ceiling) checkNetwork(n protocol.Network) error {
	for _, entry := range n.Allow {
		rule, err := protocol.ParseNetworkRule(entry)
		if err != nil {
			return &refusal{"capabilities.network.allow: " + err.Error()}
		}
		address, err := netip.ParseAddr(rule.Host)
		public := err != nil || sandbox.PublicAddress(address)
		if (len(c.Network) > 0 || !public) && !(protocol.Network{Allow: c.Network}).Covers(entry) {
			return &refusal{fmt.Sprintf("capabilities.network.allow asks for %s and the operator's ceiling (STARLING_CEILING_NETWORK) is %s",
				entry, cmp.Or(strings.Join(c.Network, ", "), "every public host and no other: one that is not public is listed there"))}
		}
	}
	return nil
}

// network is what the guest may call, and with which secrets. The capabilities were
// granted.
func (a *attempt) network() sandbox.Network {
	var n sandbox.Network
	for _, entry := range a.manifest.Capabilities.Network.Allow {
		if rule, err := protocol.ParseNetworkRule(entry); err == nil { // checkNetwork has refused others
			n.Allow = append(n.Allow, rule)
		}
	}
	var unknown []string
	n.Secrets, unknown = a.w.cfg.Secrets.granted(a.manifest.Capabilities.Secrets)
	if unknown != nil { // the guest is not told which: names are the operator's
		a.log.Warn("the capsule asks for secrets that this worker does not have: they go into the file of STARLING_SECRETS, or --secrets", "secrets", unknown)
	}
	n.Misdirected = a.misdirected()
	return n
}

// misdirected warns once of each secret that the guest wants to send where it is not
// bound to. The guest is not told why: names and hosts are the operator's.
func (a *attempt) misdirected() func(sandbox.Secret, string, string) {
	var warned sync.Map // by name
	return func(s sandbox.Secret, origin, header string) {
		if _, before := warned.LoadOrStore(s.Name, true); before {
			return
		}
		var hosts []string
		for _, r := range s.Hosts {
			hosts = append(hosts, r.String())
		}
		a.log.Warn("a secret was asked for where it is not bound to: the request was refused",
			"secret", s.Name, "origin", origin, "header", header, "bound_hosts", hosts, "bound_headers", s.Headers)
	}
}

// environment is the guest's whole environment: what the manifest allows, the
// job's value before the worker's, and the runtime's own names last, which
// nothing can shadow.
func (w *Worker) environment(job protocol.Job, manifest protocol.Manifest, session protocol.SessionID, attempt int) (map[string]string, error) {
	allowed := manifest.Capabilities.Env.Allow
	env := make(map[string]string, len(allowed)+9)
	for _, name := range slices.Sorted(maps.Keys(job.Env)) {
		switch {
		case !slices.Contains(allowed, name):
			return nil, &refusal{fmt.Sprintf("the job sets the environment variable %s, which is not granted (capabilities.env.allow is %s)",
				name, cmp.Or(strings.Join(allowed, ", "), "empty"))}
		case credentialShaped(name) && !slices.Contains(w.cfg.Ceiling.CredentialEnv, name):
			return nil, &refusal{fmt.Sprintf("the job sets the environment variable %s, which looks like a credential;"+
				" the operator's ceiling (STARLING_CEILING_CREDENTIAL_ENV) does not list it", name)}
		}
		env[name] = job.Env[name]
	}
	for _, name := range allowed {
		if _, set := env[name]; set || !slices.Contains(w.cfg.Ceiling.Env, name) {
			continue
		}
		if credentialShaped(name) && !slices.Contains(w.cfg.Ceiling.CredentialEnv, name) {
			continue
		}
		if value, ok := os.LookupEnv(name); ok {
			env[name] = value
		}
	}
	maps.Copy(env, map[string]string{
		protocol.SpawnerEnv:      job.Spawner.Lineage().String(),
		"MURMUR_SESSION_ID":      string(session),
		"MURMUR_CAPSULE_NAME":    job.Capsule.Name,
		"MURMUR_CAPSULE_VERSION": job.Capsule.Version,
		"STARLING_DELEGATION_ID": string(job.DelegationID),
		"STARLING_TASK_ID":       string(job.TaskID),
		"STARLING_CONTEXT_ID":    string(job.ContextID()),
		"STARLING_MESSAGE_ID":    job.Message.ID,
		"STARLING_ATTEMPT":       strconv.Itoa(attempt),
	})
	return env, nil
}

// credentialShaped reports whether a name looks like it holds a secret.
func credentialShaped(name string) bool {
	upper := strings.ToUpper(name)
	for _, word := range []string{"KEY", "TOKEN", "SECRET", "PASSW", "PASSPHRASE", "CREDENTIAL", "AUTH", "COOKIE", "PRIVATE"} {
		if strings.Contains(upper, word) {
			return true
		}
	}
	return false
}
