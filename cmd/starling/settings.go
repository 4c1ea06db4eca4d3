package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/kelseyhightower/envconfig"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"starling/broker"
	"starling/completion"
	"starling/protocol"
	"starling/sandbox"
	"starling/worker"
)

// envPrefix is the prefix of every variable.
const envPrefix = "STARLING"

// Settings come as flags over environment variables over defaults. A struct
// below is a group; each field is a variable (STARLING_ and the field's words)
// and the flag of the same words. Only this package reads the environment.

// logSettings are every command's.
type logSettings struct {
	LogLevel  string `split_words:"true" default:"info" desc:"least level that is logged: debug, info, warn or error"`
	LogFormat string `split_words:"true" desc:"json or text; empty: json for worker, text for the other commands"`
}

func (l logSettings) validate() error {
	var level slog.Level
	err := level.UnmarshalText([]byte(l.LogLevel))
	if err != nil {
		err = fmt.Errorf("STARLING_LOG_LEVEL (--log-level) is %q: it is debug, info, warn or error", l.LogLevel)
	}
	if l.LogFormat != "" && l.LogFormat != "json" && l.LogFormat != "text" {
		err = errors.Join(err, fmt.Errorf("STARLING_LOG_FORMAT (--log-format) is %q: it is json or text", l.LogFormat))
	}
	if err != nil {
		return &usageError{err}
	}
	return nil
}

func (l logSettings) level() slog.Level {
	var level slog.Level
	_ = level.UnmarshalText([]byte(l.LogLevel)) // validated before any command runs
	return level
}

// busSettings say how to reach the bus.
type busSettings struct {
	URL         string        `desc:"NATS servers, comma-separated; empty: the selected context of the nats command, else nats://127.0.0.1:4222"`
	Namespace   string        `default:"starling" desc:"first token of every subject and stream, so that fleets can share an account"`
	Context     string        `desc:"a context of the nats command by name"`
	Creds       string        `desc:"path of a .creds file"`
	Nkey        string        `desc:"path of an NKey seed file"`
	User        string        `desc:"user name"`
	Password    broker.Secret `desc:"password of the user" flag:"-"`
	Token       broker.Secret `desc:"token" flag:"-"`
	TLSCa       string        `split_words:"true" flag:"tls-ca" desc:"path of a PEM file of certificate authorities"`
	TLSCert     string        `split_words:"true" flag:"tls-cert" desc:"path of a PEM client certificate"`
	TLSKey      string        `split_words:"true" flag:"tls-key" desc:"path of the client certificate's key"`
	TLSFirst    bool          `split_words:"true" flag:"tls-first" desc:"TLS handshake before the server speaks"`
	InboxPrefix string        `split_words:"true" desc:"where answers come to; users with narrow rights have one each"`
}

func (s busSettings) config(name string, log *slog.Logger) broker.Config {
	return broker.Config{
		URL: s.URL, Namespace: protocol.Namespace(s.Namespace), Name: name, Context: s.Context,
		CredsFile: s.Creds, NKeyFile: s.Nkey, User: s.User, Password: s.Password, Token: s.Token,
		TLSCA: s.TLSCa, TLSCert: s.TLSCert, TLSKey: s.TLSKey, TLSFirst: s.TLSFirst,
		InboxPrefix: s.InboxPrefix, Logger: log, Names: busNames(),
	}
}

// busNames are the settings of the fields of a [broker.Config], for its errors.
func busNames() map[string]string {
	return namesOf(&busSettings{}, map[string]string{"STARLING_CREDS": "CredsFile", "STARLING_NKEY": "NKeyFile", "STARLING_TLS_CA": "TLSCA"})
}

// namesOf are what the user of a group calls the fields of the configuration that is
// made of it. A field of another name than its setting's stands in fields, by
// variable.
func namesOf(group any, fields map[string]string) map[string]string {
	names := map[string]string{}
	for _, s := range settingsOf(group) {
		name := s.variable
		if s.flag != "" {
			name = "--" + s.flag + " (" + s.variable + ")"
		}
		field, ok := fields[s.variable]
		if !ok {
			field = s.field
		}
		names[field] = name
	}
	return names
}

// poolSettings name a pool.
type poolSettings struct {
	Pool string `default:"default" desc:"pool of workers"`
}

// workerSettings say how a worker works.
type workerSettings struct {
	WorkerID     string        `split_words:"true" flag:"worker-id" desc:"id of the worker; empty: a new one at each start"`
	Slots        int           `default:"4" desc:"guests that run at a time"`
	WorkRoot     string        `split_words:"true" desc:"a directory per attempt is made below it; empty: starling/work in the user's cache directory"`
	CacheDir     string        `split_words:"true" desc:"capsules and their compiled form; empty: starling/cache in the user's cache directory"`
	Retention    time.Duration `default:"168h" desc:"how long work directories are kept"`
	DrainTimeout time.Duration `split_words:"true" default:"30s" desc:"how long a drain waits for running tasks before it hands them back"`
	CancelGrace  time.Duration `split_words:"true" default:"10s" desc:"how long a canceled capsule may take before it is killed"`
	Reports      int           `default:"0" desc:"ended tasks that report outside a slot at a time; 0: four per slot, at least 256"`

	CeilingEnv             []string `split_words:"true" desc:"variables of the worker's environment that capsules may be given, comma-separated"`
	CeilingCredentialEnv   []string `split_words:"true" desc:"credential-shaped names that capsules may be given, comma-separated"`
	CeilingNetwork         []string `split_words:"true" desc:"hosts that capsules may call, as network.allow has them, comma-separated; empty: any public host that a manifest lists"`
	Secrets                string   `desc:"path of a YAML file of secrets that capsules may refer to in headers of their requests; only its owner may read it"`
	CeilingMemoryBytes     int64    `split_words:"true" default:"0" desc:"most memory a manifest may ask for; 0: no ceiling"`
	CeilingTableElements   int64    `split_words:"true" default:"0" desc:"most elements of a table a manifest may ask for; 0: no ceiling"`
	CeilingInstances       int64    `split_words:"true" default:"0" desc:"most instances a manifest may ask for; 0: no ceiling"`
	CeilingDeadlineSeconds int64    `split_words:"true" default:"0" desc:"longest deadline a manifest may ask for; 0: no ceiling"`
	CeilingWorkdirBytes    int64    `split_words:"true" default:"0" desc:"largest work directory a manifest may ask for; 0: no ceiling"`
}

func (s *workerSettings) config(pool string) (worker.Config, error) {
	for _, dir := range []struct {
		value *string
		name  string
	}{{&s.WorkRoot, "work"}, {&s.CacheDir, "cache"}} {
		if *dir.value == "" {
			cache, err := os.UserCacheDir()
			if err != nil {
				return worker.Config{}, &usageError{fmt.Errorf("no cache directory: set STARLING_WORK_ROOT and STARLING_CACHE_DIR: %w", err)}
			}
			*dir.value = filepath.Join(cache, "starling", dir.name)
		}
		abs, err := filepath.Abs(*dir.value)
		if err != nil {
			return worker.Config{}, err
		}
		*dir.value = abs
	}
	host, _ := os.Hostname() // only for people
	cfg := worker.Config{
		WorkerID: protocol.WorkerID(s.WorkerID), Pool: pool, Slots: s.Slots, Host: host, Version: version(),
		WorkRoot: s.WorkRoot, CacheDir: s.CacheDir, Retention: s.Retention,
		DrainTimeout: s.DrainTimeout, CancelGrace: s.CancelGrace, Reports: s.Reports,
		Ceiling: worker.Ceiling{
			Env: s.CeilingEnv, CredentialEnv: s.CeilingCredentialEnv, Network: s.CeilingNetwork, MemoryBytes: s.CeilingMemoryBytes,
			TableElements: s.CeilingTableElements, Instances: s.CeilingInstances,
			DeadlineSeconds: s.CeilingDeadlineSeconds, WorkdirBytes: s.CeilingWorkdirBytes,
		},
	}
	err := errors.Join(cfg.Validate(),
		usableDir("STARLING_WORK_ROOT (--work-root)", s.WorkRoot), usableDir("STARLING_CACHE_DIR (--cache-dir)", s.CacheDir))
	if s.Secrets != "" {
		var problem error
		if cfg.Secrets, problem = worker.ReadSecrets(s.Secrets); problem != nil {
			err = errors.Join(err, fmt.Errorf("STARLING_SECRETS (--secrets): %w", problem))
		}
	}
	if s.Slots == 0 { // to the package that is its default
		err = errors.Join(err, fmt.Errorf("STARLING_SLOTS (--slots) is %d: it is at least 1", s.Slots))
	}
	if err != nil {
		return cfg, &usageError{err}
	}
	return cfg, nil
}

// usableDir reports a directory that is not there and cannot be made, or that cannot
// be written to. It makes nothing.
func usableDir(setting, dir string) error {
	for at := dir; ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		switch {
		case err == nil && !info.IsDir():
			return fmt.Errorf("%s is %s: %s is no directory", setting, dir, at)
		case err == nil:
			if err = unix.Access(at, unix.W_OK|unix.X_OK); err != nil {
				return fmt.Errorf("%s is %s: %s cannot be written to: %w", setting, dir, at, err)
			}
			return nil
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) || at == filepath.Dir(at):
			return fmt.Errorf("%s is %s: %w", setting, dir, unwrapPath(err))
		}
	}
}

// sandboxSettings say where guests run.
type sandboxSettings struct {
	Sandbox            string        `default:"process" desc:"where guests run: process (children of the worker, confined) or inprocess"`
	SandboxDensity     int           `split_words:"true" default:"1" desc:"guests that share a sandbox process; with more than 1, a guest that brings it down takes others along"`
	CompileTimeout     time.Duration `split_words:"true" default:"1m" desc:"of the compilation of one capsule, which runs in a process of its own"`
	CompileMemoryBytes int64         `split_words:"true" default:"3221225472" desc:"memory that one compilation may map"`
	MaxModuleBytes     int64         `split_words:"true" default:"67108864" desc:"largest wasm file that is compiled"`
	Components         string        `default:"off" desc:"on: WASI 0.2 components run too, each in a sandbox process of its own; off: they are refused"`
	ResidentBytes      int64         `split_words:"true" default:"8388608" desc:"memory that each slot keeps for its next guest, cleared; 0: none, and guests start more slowly"`
}

const (
	sandboxProcess   = "process"
	sandboxInProcess = "inprocess"

	componentsOn  = "on"
	componentsOff = "off"
)

// guests is a sandbox that is closed.
type guests interface {
	worker.Sandbox
	Close() error
}

// open starts what runs guests for a worker. compiling may be nil: see
// [sandbox.Config].
func (s sandboxSettings) open(cfg worker.Config, log *slog.Logger, compiling func(protocol.Digest) (done func())) (guests, error) {
	engine := sandbox.Config{
		CacheDir: cfg.CacheDir, MaxModuleBytes: s.MaxModuleBytes, Compiling: compiling, Logger: log,
		Guests: min(cfg.Slots, sandbox.MaxGuests), ResidentBytes: s.ResidentBytes,
	}
	if engine.ResidentBytes == 0 {
		engine.ResidentBytes = -1
	}
	if s.Sandbox == sandboxInProcess {
		return sandbox.New(engine)
	}
	processes := sandbox.ProcessConfig{
		Config: engine, WorkRoot: cfg.WorkRoot, Density: s.SandboxDensity,
		CompileTimeout: s.CompileTimeout, CompileMemoryBytes: s.CompileMemoryBytes,
		Components: s.Components == componentsOn,
	}
	return sandbox.NewSupervisor(processes)
}

// validate reports what makes no sense, by variable.
func (s sandboxSettings) validate() error {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if s.Sandbox != sandboxProcess && s.Sandbox != sandboxInProcess {
		bad("STARLING_SANDBOX (--sandbox) is %q: it is process or inprocess", s.Sandbox)
	}
	if s.Components != componentsOn && s.Components != componentsOff {
		bad("STARLING_COMPONENTS (--components) is %q: it is on or off", s.Components)
	}
	if s.Components == componentsOn && s.Sandbox == sandboxInProcess {
		bad("STARLING_COMPONENTS (--components) is on and STARLING_SANDBOX (--sandbox) is inprocess: components run in sandbox processes only")
	}
	if s.SandboxDensity < 1 || s.SandboxDensity > 64 {
		bad("STARLING_SANDBOX_DENSITY (--sandbox-density) is %d: it is 1 to 64", s.SandboxDensity)
	}
	if s.CompileTimeout < time.Second {
		bad("STARLING_COMPILE_TIMEOUT (--compile-timeout) is %s: it is at least 1s", s.CompileTimeout)
	}
	if s.CompileMemoryBytes < 256<<20 {
		bad("STARLING_COMPILE_MEMORY_BYTES (--compile-memory-bytes) is %d: it is at least 268435456", s.CompileMemoryBytes)
	}
	if s.MaxModuleBytes < 1 {
		bad("STARLING_MAX_MODULE_BYTES (--max-module-bytes) is %d: it is at least 1", s.MaxModuleBytes)
	}
	if s.ResidentBytes < 0 || s.ResidentBytes > sandbox.MaxResidentBytes {
		bad("STARLING_RESIDENT_BYTES (--resident-bytes) is %d: it is 0 to %d", s.ResidentBytes, int64(sandbox.MaxResidentBytes))
	}
	if len(problems) > 0 {
		return &usageError{errors.Join(problems...)}
	}
	return nil
}

// completionSettings say how parents are told.
type completionSettings struct {
	CompletionTimeout time.Duration `split_words:"true" default:"30s" desc:"of one post to a parent's door"`
	CompletionTries   int           `split_words:"true" default:"2" desc:"posts per completion"`
	CompletionBackoff time.Duration `split_words:"true" default:"1s" desc:"before the second post, doubled for each later one"`
	DoorAllow         []string      `split_words:"true" desc:"addresses and CIDR ranges that doors may have, comma-separated; empty: any but link-local, multicast and unspecified ones"`
	DoorDeny          []string      `split_words:"true" desc:"addresses and CIDR ranges that doors may not have, comma-separated"`
}

func (s completionSettings) config(log *slog.Logger) (completion.Config, error) {
	cfg := completion.Config{Timeout: s.CompletionTimeout, Tries: s.CompletionTries, Backoff: s.CompletionBackoff, Logger: log}
	var err, deny error
	cfg.Rule.Allow, err = completion.ParsePrefixes(strings.Join(s.DoorAllow, ","))
	cfg.Rule.Deny, deny = completion.ParsePrefixes(strings.Join(s.DoorDeny, ","))
	if err != nil {
		err = fmt.Errorf("STARLING_DOOR_ALLOW (--door-allow): %w", err)
	}
	if deny != nil {
		err = errors.Join(err, fmt.Errorf("STARLING_DOOR_DENY (--door-deny): %w", deny))
	}
	if err = errors.Join(err, cfg.Validate()); err != nil {
		return cfg, &usageError{err}
	}
	return cfg, nil
}

// groups are all settings, for the table of variables and to tell unknown ones.
func groups() []any {
	return []any{&logSettings{}, &busSettings{}, &poolSettings{}, &workerSettings{}, &sandboxSettings{}, &completionSettings{}, &monitorSettings{}, &initSettings{}}
}

// setting is one field of a group.
type setting struct {
	field, variable, flag, fallback, usage string
	value                                  reflect.Value
}

func settingsOf(group any) []setting {
	v := reflect.ValueOf(group).Elem()
	var all []setting
	for i := range v.NumField() {
		field := v.Type().Field(i)
		s := setting{
			field: field.Name, variable: envPrefix + "_" + strings.ToUpper(words(field.Name, "_")), flag: words(field.Name, "-"),
			fallback: field.Tag.Get("default"), usage: field.Tag.Get("desc"), value: v.Field(i),
		}
		if flag := field.Tag.Get("flag"); flag == "-" {
			s.flag = "" // a secret must not stand in a process list
		} else if flag != "" {
			s.flag = flag
			s.variable = envPrefix + "_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
		}
		all = append(all, s)
	}
	return all
}

// words splits a Go name at its capitals, in lower case.
func words(name, separator string) string {
	var out strings.Builder
	for i, r := range name {
		upper := r >= 'A' && r <= 'Z'
		afterLower := i > 0 && name[i-1] >= 'a' && name[i-1] <= 'z'
		if upper && afterLower {
			out.WriteString(separator)
		}
		out.WriteString(strings.ToLower(string(r)))
	}
	return out.String()
}

// bind reads a group from the environment and adds its flags, whose defaults
// the environment has set: so flags win over variables.
func bind(flags *pflag.FlagSet, group any) error {
	if err := envconfig.Process(envPrefix, group); err != nil {
		return &usageError{variableError(err)}
	}
	for _, s := range settingsOf(group) {
		if s.flag == "" {
			continue
		}
		usage := s.usage + " (" + s.variable + ")"
		switch field := s.value.Addr().Interface().(type) {
		case *string:
			flags.StringVar(field, s.flag, *field, usage)
		case *int:
			flags.IntVar(field, s.flag, *field, usage)
		case *int64:
			flags.Int64Var(field, s.flag, *field, usage)
		case *bool:
			flags.BoolVar(field, s.flag, *field, usage)
		case *time.Duration:
			flags.DurationVar(field, s.flag, *field, usage)
		case *byteLimit:
			flags.Var(field, s.flag, usage)
		case *[]string:
			flags.StringSliceVar(field, s.flag, *field, usage)
		default:
			return fmt.Errorf("bug: setting %s has type %T", s.variable, field)
		}
	}
	return nil
}

// variableError words a variable that cannot be read. Secrets are texts, which can
// always be read: no error holds one.
func variableError(err error) error {
	var parse *envconfig.ParseError
	if !errors.As(err, &parse) {
		return err
	}
	kind := expected(parse.TypeName)
	if kind == "" {
		return fmt.Errorf("%s cannot be read: it is of type %s", parse.KeyName, parse.TypeName)
	}
	return fmt.Errorf("%s is %q: it is %s", parse.KeyName, parse.Value, kind)
}

// expected says for people what a value of a type is, as envconfig and pflag name
// the type; "" where the type has no words of its own.
func expected(typeName string) string {
	switch typeName {
	case "bool":
		return "true or false"
	case "int", "int64":
		return "a whole number"
	case "main.byteLimit", "bytes":
		return "a whole number of bytes, or " + unlimited
	case "time.Duration", "duration":
		return "a duration, such as 30s or 5m"
	}
	return ""
}

// flagError words a flag's value that cannot be read, as variableError does; of other
// errors it says where the flags are listed.
func flagError(cmd *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		flag := invalid.GetFlag()
		if kind := expected(flag.Value.Type()); kind != "" {
			return &usageError{fmt.Errorf("--%s is %q: it is %s", flag.Name, invalid.GetValue(), kind)}
		}
	}
	return &usageError{fmt.Errorf("%w; %s", err, seeHelp(cmd))}
}

// bindAll adds groups to a command; the first error stops the command before
// it runs.
func bindAll(cmd *cobra.Command, all ...any) *cobra.Command {
	var problems []error
	for _, group := range all {
		problems = append(problems, bind(cmd.Flags(), group))
	}
	if err := errors.Join(problems...); err != nil {
		cmd.PreRunE = func(*cobra.Command, []string) error { return &usageError{err} }
	}
	return cmd
}

// guestVariables are what a capsule's runtime sets: a starling that is started
// inside one's environment does not warn of them.
var guestVariables = []string{
	"STARLING_DELEGATION_ID", "STARLING_TASK_ID", "STARLING_CONTEXT_ID", "STARLING_MESSAGE_ID", "STARLING_ATTEMPT",
}

// unknownVariables are STARLING_ variables that no setting reads.
func unknownVariables() []string {
	known := slices.Clone(guestVariables)
	for _, group := range groups() {
		for _, s := range settingsOf(group) {
			known = append(known, s.variable)
		}
	}
	var unknown []string
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, envPrefix+"_") && !slices.Contains(known, name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	return unknown
}
