package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ErrGrant says that a job asks for more than the capsule's manifest does.
var ErrGrant = errors.New("not granted")

// JobCapabilities narrow, for one job, what the capsule's manifest asks for. A
// member that is nil leaves the manifest's as it is.
//
// Source: docs/protocol.md, section 3.
type JobCapabilities struct {
	Filesystem *JobFilesystem `json:"filesystem,omitempty"`
	Env        *EnvGrant      `json:"env,omitempty"`     // instead of the manifest's, of which it is a part
	Network    *Network       `json:"network,omitempty"` // the same
	Secrets    *Secrets       `json:"secrets,omitempty"` // the same
	Limits     *JobLimits     `json:"limits,omitempty"`
}

// JobFilesystem adds subpaths of the guest's root that refuse writes.
type JobFilesystem struct {
	ReadOnly []string `json:"read_only,omitempty"`
}

// JobLimits are lower limits; nil leaves the manifest's.
type JobLimits struct {
	MemoryBytes     *int64 `json:"memory_bytes,omitempty"`
	TableElements   *int64 `json:"table_elements,omitempty"`
	Instances       *int64 `json:"instances,omitempty"`
	DeadlineSeconds *int64 `json:"deadline_seconds,omitempty"`
	WorkdirBytes    *int64 `json:"workdir_bytes,omitempty"`
}

// jobLimit is one limit: what the job says, and where the manifest's stands.
type jobLimit struct {
	key   string
	asked *int64
	own   *int64
}

func (l *JobLimits) each(own *Limits) []jobLimit {
	return []jobLimit{
		{"memory_bytes", l.MemoryBytes, &own.MemoryBytes},
		{"table_elements", l.TableElements, &own.TableElements},
		{"instances", l.Instances, &own.Instances},
		{"deadline_seconds", l.DeadlineSeconds, &own.DeadlineSeconds},
		{"workdir_bytes", l.WorkdirBytes, &own.WorkdirBytes},
	}
}

// jobCapabilityKeys are the members that a job may have: a manifest's, but for the
// scope, which a fresh work directory gives nothing to narrow.
var jobCapabilityKeys = func() map[string]any {
	keys := maps.Clone(manifestKeys["capabilities"].(map[string]any))
	keys["filesystem"] = map[string]any{"read_only": shapeTexts}
	return keys
}()

// ParseJobCapabilities reads what a job narrows. An unknown member is refused
// where others are ignored: it would be a restriction that does not hold. Errors
// are [ErrJob].
func ParseJobCapabilities(data []byte) (*JobCapabilities, error) {
	var c *JobCapabilities
	if err := unmarshalExact(data, &c); err != nil {
		return nil, fmt.Errorf("%w: capabilities: %w", ErrJob, err)
	}
	var raw map[string]any
	if err := json.Unmarshal(data, &raw); err != nil {
		return nil, fmt.Errorf("%w: capabilities: %w", ErrJob, jsonError(err))
	}
	if unknown := unknownKeys("capabilities.", raw, jobCapabilityKeys); len(unknown) > 0 {
		slices.Sort(unknown)
		return nil, fmt.Errorf("%w: %s: a job can narrow filesystem.read_only, env.allow, network.allow, secrets.allow and limits", ErrJob, strings.Join(unknown, ", "))
	}
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrJob, err)
	}
	return c, nil
}

// Validate checks every member and joins all problems, each with its key. nil is
// valid.
func (c *JobCapabilities) Validate() error {
	if c == nil {
		return nil
	}
	asked := Capabilities{Limits: DefaultLimits()}
	if c.Filesystem != nil {
		asked.Filesystem.ReadOnly = c.Filesystem.ReadOnly
	}
	if c.Env != nil {
		asked.Env = *c.Env
	}
	if c.Network != nil {
		asked.Network = *c.Network
	}
	if c.Secrets != nil {
		asked.Secrets = *c.Secrets
	}
	if c.Limits != nil {
		for _, l := range c.Limits.each(&asked.Limits) {
			if l.asked != nil {
				*l.own = *l.asked
			}
		}
	}
	return errors.Join(asked.problems()...)
}

// Narrow is what a capsule is granted that asks for c, where a job may narrow it.
// A job that asks for more is [ErrGrant], with what it asks and what is allowed.
func (c Capabilities) Narrow(job *JobCapabilities) (Capabilities, error) {
	if job == nil {
		return c, nil
	}
	var problems []error
	bad := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("%w: the job's capabilities."+format, append([]any{ErrGrant}, args...)...))
	}
	if job.Limits != nil {
		for _, l := range job.Limits.each(&c.Limits) {
			switch {
			case l.asked == nil:
			case *l.asked > *l.own:
				bad("limits.%s is %d, and the capsule's manifest has %d", l.key, *l.asked, *l.own)
			default:
				*l.own = *l.asked
			}
		}
	}
	if job.Env != nil {
		for _, name := range job.Env.Allow {
			if !slices.Contains(c.Env.Allow, name) {
				bad("env.allow has %s, and the capsule's manifest has %s", name, listed(c.Env.Allow))
			}
		}
		c.Env.Allow = job.Env.Allow
	}
	if job.Network != nil {
		for _, entry := range job.Network.Allow {
			if !c.Network.Covers(entry) {
				bad("network.allow has %s, and the capsule's manifest has %s", clip(entry, 128), listed(c.Network.Allow))
			}
		}
		c.Network.Allow = job.Network.Allow
	}
	if job.Secrets != nil {
		for _, name := range job.Secrets.Allow {
			if !slices.Contains(c.Secrets.Allow, name) {
				bad("secrets.allow has %s, and the capsule's manifest has %s", name, listed(c.Secrets.Allow))
			}
		}
		c.Secrets.Allow = job.Secrets.Allow
	}
	if job.Filesystem != nil {
		c.Filesystem.ReadOnly = slices.Concat(c.Filesystem.ReadOnly, job.Filesystem.ReadOnly)
		if n := len(c.Filesystem.ReadOnly); n > MaxReadOnly {
			bad("filesystem.read_only has, with those of the capsule's manifest, %d paths: at most %d", n, MaxReadOnly)
		}
	}
	return c, errors.Join(problems...)
}

// Covers reports whether a rule allows nothing that n does not.
func (n Network) Covers(entry string) bool {
	asked, err := ParseNetworkRule(entry)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(n.Allow, func(allowed string) bool {
		rule, err := ParseNetworkRule(allowed)
		return err == nil && rule.Host == asked.Host &&
			(rule.Scheme == "" || rule.Scheme == asked.Scheme) && (rule.Port == "" || rule.Port == asked.Port)
	})
}

// listed is a list for a sentence.
func listed(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return clip(strings.Join(names, ", "), 512)
}
