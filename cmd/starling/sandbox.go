package main

import (
	"github.com/spf13/cobra"

	"starling/sandbox"
)

// sandboxCommand is what a worker starts to run guests in: see
// [sandbox.Supervisor].
func (a *app) sandboxCommand() *cobra.Command {
	return &cobra.Command{
		Use: "sandbox", Hidden: true, Args: noArgs,
		Short: "Run guests for a worker, which starts this itself",
		RunE: func(*cobra.Command, []string) error {
			if status := sandbox.ProcessMain(); status != 0 {
				return &silentError{status}
			}
			return nil
		},
	}
}
