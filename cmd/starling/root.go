package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
)

// streams are where a command reads and writes. Data goes to out, everything
// else to err.
type streams struct {
	in  io.Reader
	out io.Writer
	err io.Writer
}

// terminal reports whether w is one.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// app is what every command has.
type app struct {
	streams
	log logSettings
}

// run is the program: it returns the exit status.
func run(ctx context.Context, args []string, s streams) int {
	a := &app{streams: s}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	err := root.ExecuteContext(ctx)
	var silent *silentError
	unread := errors.Is(err, syscall.EPIPE) // `starling … | head`: its reader has what it wanted
	if err != nil && !unread && !errors.As(err, &silent) {
		fmt.Fprintln(s.err, "starling: "+printable(explain(err)))
	}
	return exitStatus(err)
}

func (a *app) root() *cobra.Command {
	var asVersion bool
	root := &cobra.Command{
		Use:   "starling",
		Short: "Run packaged AI agents on a fleet of workers over NATS",
		Long: `Starling runs packaged AI agents ("capsules", compiled to WebAssembly) on a fleet
of workers over NATS JetStream.

  starling run FILE.wasm --task TEXT     one task, everything embedded
  starling dev                           a server, a worker and a door on this host
  starling worker                        one worker of a fleet

Exit statuses: 0 success, 1 failure, 2 wrong usage or configuration,
3 the task failed, 4 it crashed or was refused, 5 it was canceled or ran into its
deadline, 6 no such thing, 7 the queue or the ledger is full or the pool is not served,
8 the bus cannot be reached, 9 the bus denied it.`,
		Args: func(cmd *cobra.Command, args []string) error { return unknownCommand(cmd, args) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asVersion {
				return thisBuild().print(a.out)
			}
			return cmd.Help()
		},
		SilenceUsage: true, SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return a.log.validate() },
	}
	root.SetFlagErrorFunc(flagError)
	root.Flags().BoolVar(&asVersion, "version", false, "print what starling version prints")
	if err := bind(root.PersistentFlags(), &a.log); err != nil {
		root.PersistentPreRunE = func(*cobra.Command, []string) error { return err }
	}
	root.AddCommand(
		a.runCommand(), a.devCommand(), a.workerCommand(), a.initCommand(), a.capsuleCommand(),
		a.dispatchCommand(), a.watchCommand(), a.resultCommand(), a.cancelCommand(),
		a.psCommand(), a.workersCommand(), a.drainCommand(), a.statsCommand(), a.dlqCommand(), a.redeliverCommand(), a.doctorCommand(), a.doorCommand(), a.benchCommand(), a.sandboxCommand(), a.versionCommand(),
	)
	wrapHelp(root)
	root.InitDefaultCompletionCmd() // else it is added after this
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			cmd.Short = "Write completion for your shell: bash, zsh, fish or powershell"
			cmd.Args, cmd.RunE = unknownCommand, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
	return root
}

// helpWidth is the longest line of --help, in columns.
const helpWidth = 100

// wrapHelp wraps the flags in the help of a command and of those below it.
func wrapHelp(cmd *cobra.Command) {
	cmd.SetUsageTemplate(strings.ReplaceAll(cmd.UsageTemplate(), ".FlagUsages ", fmt.Sprintf(".FlagUsagesWrapped %d ", helpWidth)))
}

// logger writes to stderr: text for people, or JSON.
func (a *app) logger() *slog.Logger {
	for _, name := range unknownVariables() {
		fmt.Fprintf(a.err, "starling: warning: the environment variable %s is not one of Starling's\n", name)
	}
	options := &slog.HandlerOptions{Level: a.log.level()}
	if a.log.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(a.err, options))
	}
	return slog.New(slog.NewTextHandler(a.err, options))
}

// quietLogger is logger for a command that says itself what happens: unless the
// operator asks for another level, only warnings and errors.
func (a *app) quietLogger() *slog.Logger {
	quiet := *a
	if quiet.log.LogLevel == "info" {
		quiet.log.LogLevel = "warn"
	}
	return quiet.logger()
}
