package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"starling/broker"
	"starling/protocol"
	"starling/sandbox"
)

func (a *app) capsuleCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "capsule", Short: "Push, list, inspect and remove capsules",
		Args: unknownCommand, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.capsulePush(), a.capsuleList(), a.capsuleInspect(), a.capsuleRemove())
	return cmd
}

func (a *app) capsulePush() *cobra.Command {
	var buses busSettings
	var as bare
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "push FILE.wasm|DIR",
		Short: "Store a capsule under its name and version",
		Long: `Store a capsule. A version is pushed once: another content needs another version.
Pushing the same again changes nothing, but for putting back what the store has
lost of the module.
FILE.wasm and DIR are as for starling run.`,
		Example: "  starling capsule push sandbox/guest/examples/hello --json",
		Args:    oneArg("the capsule: FILE.wasm or DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			capsule, err := a.capsuleAt(cmd.Context(), args[0], as)
			if err != nil {
				return err
			}
			if err := capsule.check(args[0], true); err != nil {
				return err
			}
			if sandbox.IsComponent(capsule.module) {
				fmt.Fprintf(a.err, "starling: warning: %s is a WASI 0.2 component: workers refuse it unless STARLING_COMPONENTS is on\n", args[0])
			}
			return a.withBus(cmd.Context(), buses, func(bus *broker.Bus) error {
				pushed, err := bus.PushCapsule(cmd.Context(), capsule.manifest, capsule.module)
				if err != nil {
					return err
				}
				entry := pushed.CapsuleEntry
				switch {
				case pushed.Mended:
					fmt.Fprintf(a.err, "starling: the store had it, since %s, and had lost bytes of its module: they are stored again, %s\n", entry.PushedAt, megabytes(int(entry.Size)))
				case pushed.Existing:
					fmt.Fprintf(a.err, "starling: the store has it already, since %s: nothing was changed\n", entry.PushedAt)
				default:
					fmt.Fprintf(a.err, "starling: stored, %s\n", megabytes(int(entry.Size)))
				}
				if asJSON {
					return a.printJSON(entry)
				}
				fmt.Fprintf(a.out, "%s@%s %s\n", entry.Manifest.Name, entry.Manifest.Version, entry.Digest)
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the store's entry as JSON")
	as.bind(cmd)
	return bindAll(cmd, &buses)
}

func (a *app) capsuleList() *cobra.Command {
	var buses busSettings
	var asJSON bool
	cmd := &cobra.Command{
		Use: "ls", Short: "List the capsules of the store", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withBus(cmd.Context(), buses, func(bus *broker.Bus) error { return a.listCapsules(cmd.Context(), bus, asJSON) })
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "one capsule a line")
	return bindAll(cmd, &buses)
}

func (a *app) listCapsules(ctx context.Context, bus *broker.Bus, asJSON bool) error {
	var table *table
	if !asJSON {
		table = newTable(a.out, "CAPSULE", "DIGEST", "BYTES", "OUTPUT", "AGE", "DESCRIPTION")
	}
	for entry, err := range bus.Capsules(ctx) {
		if errors.Is(err, protocol.ErrCapsuleEntry) {
			fmt.Fprintf(a.err, "starling: warning: %s\n", shortened(cell(err.Error()), maxLastColumn))
			continue
		}
		if err != nil {
			return err
		}
		if m := entry.Manifest; !asJSON {
			table.row(m.Name+"@"+m.Version, entry.Digest[:19], entry.Size, m.Output, age(entry.PushedAt), m.Description)
		} else if err := a.printJSON(entry); err != nil {
			return err
		}
	}
	if asJSON {
		return nil
	}
	return table.flush()
}

func (a *app) capsuleInspect() *cobra.Command {
	var buses busSettings
	var asJSON bool
	cmd := &cobra.Command{
		Use: "inspect NAME@VERSION", Short: "Show a capsule's digest and what its manifest asks for",
		Args: oneArg("a capsule: NAME@VERSION"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, err := protocol.ParseCapsuleRef(args[0])
			if err != nil {
				return err
			}
			return a.withBus(cmd.Context(), buses, func(bus *broker.Bus) error {
				entry, err := bus.ResolveCapsule(cmd.Context(), ref.Name, ref.Version)
				if err != nil {
					return err
				}
				if asJSON {
					return a.printJSON(entry)
				}
				return a.printCapsule(entry)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the store's entry as one line of JSON")
	return bindAll(cmd, &buses)
}

// printCapsule writes an entry of the store as JSON that people can read.
func (a *app) printCapsule(entry protocol.CapsuleEntry) error {
	out := json.NewEncoder(jsonWriter{a.out})
	out.SetIndent("", "  ")
	return out.Encode(entry)
}

func (a *app) capsuleRemove() *cobra.Command {
	var buses busSettings
	cmd := &cobra.Command{
		Use: "rm NAME@VERSION", Short: "Remove a capsule from the store",
		Long: `Remove a capsule from the index, and its module when no other capsule is the same
bytes. Workers that have it keep their copy; queued jobs that pinned it are
refused by workers that do not.`,
		Args: oneArg("a capsule: NAME@VERSION"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, err := protocol.ParseCapsuleRef(args[0])
			if err != nil {
				return err
			}
			return a.withBus(cmd.Context(), buses, func(bus *broker.Bus) error {
				if err := bus.RemoveCapsule(cmd.Context(), ref.Name, ref.Version); err != nil {
					return err
				}
				fmt.Fprintf(a.err, "removed %s\n", ref)
				return nil
			})
		},
	}
	return bindAll(cmd, &buses)
}
