package worker

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	oteltrace "go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"starling/protocol"
)

// Config says how a worker works. Validate fills in the defaults.
type Config struct {
	WorkerID protocol.WorkerID // default: a new one
	Pool     string            // default: "default"
	Slots    int               // guests at a time; default 4
	Host     string            // as the registry shows it
	Version  string            // of the program, as the registry shows it

	WorkRoot  string        // absolute; a directory per attempt below it
	CacheDir  string        // absolute; capsules by digest
	Retention time.Duration // how long work directories are kept; default 7 days, as the ledger

	PullExpires  time.Duration // how long an idle pull stays open, which a drain outlasts; default 10 s
	DrainTimeout time.Duration // what runs past it is handed back; default 30 s
	CancelGrace  time.Duration // between a cancel and the kill; default 10 s
	Reports      int           // ended jobs that report outside a slot at a time; default 4 × Slots, at least 256

	Ceiling Ceiling
	Secrets Secrets // that capsules may be granted

	Metrics prometheus.Registerer    // where the worker's metrics are registered; nil: nowhere
	Tracer  oteltrace.TracerProvider // of the spans of jobs; nil: traces are passed on only
}

// Validate fills in the defaults and joins all problems.
func (c *Config) Validate() error {
	if c.WorkerID == "" {
		c.WorkerID = protocol.NewWorkerID()
	}
	if c.Pool == "" {
		c.Pool = protocol.DefaultPool
	}
	if c.Slots == 0 {
		c.Slots = 4
	}
	if c.Retention == 0 {
		c.Retention = 7 * 24 * time.Hour
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = 30 * time.Second
	}
	if c.CancelGrace == 0 {
		c.CancelGrace = 10 * time.Second
	}
	if c.Tracer == nil {
		c.Tracer = noop.NewTracerProvider()
	}
	if c.Reports == 0 {
		c.Reports = max(256, 4*c.Slots)
	}
	problems := []error{
		protocol.ValidateName("worker id", string(c.WorkerID)),
		protocol.ValidateName("pool", c.Pool),
	}
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if c.Slots < 1 || c.Slots > 4096 {
		bad("slots is %d: it is 1 to 4096", c.Slots)
	}
	if c.Reports < 1 {
		bad("reports is %d: it is at least 1", c.Reports)
	}
	for name, d := range map[string]time.Duration{
		"retention": c.Retention, "drain timeout": c.DrainTimeout, "cancel grace": c.CancelGrace,
	} {
		if d < 0 {
			bad("%s is %s: it is positive", name, d)
		}
	}
	for name, dir := range map[string]string{"work root": c.WorkRoot, "cache directory": c.CacheDir} {
		if !filepath.IsAbs(dir) {
			bad("%s is %q: it is an absolute path", name, dir)
		}
	}
	c.Ceiling.validate(bad)
	return errors.Join(problems...)
}

// validate says with bad what makes no sense.
func (c Ceiling) validate(bad func(format string, args ...any)) {
	for variable, most := range map[string]int64{
		"STARLING_CEILING_MEMORY_BYTES": c.MemoryBytes, "STARLING_CEILING_TABLE_ELEMENTS": c.TableElements,
		"STARLING_CEILING_INSTANCES": c.Instances, "STARLING_CEILING_DEADLINE_SECONDS": c.DeadlineSeconds,
		"STARLING_CEILING_WORKDIR_BYTES": c.WorkdirBytes,
	} {
		if most < 0 {
			bad("%s is %d: it is at least 1, or 0 for no ceiling", variable, most)
		}
	}
	for variable, names := range map[string][]string{
		"STARLING_CEILING_ENV": c.Env, "STARLING_CEILING_CREDENTIAL_ENV": c.CredentialEnv,
	} {
		for _, name := range names {
			if !protocol.ValidEnvName(name) {
				bad("%s has %q: it is a list of environment names, comma-separated", variable, name)
			}
		}
	}
	for _, entry := range c.Network {
		if _, err := protocol.ParseNetworkRule(entry); err != nil {
			bad("network ceiling (STARLING_CEILING_NETWORK): %w", err)
		}
	}
}
