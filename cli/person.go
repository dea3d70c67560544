package cli

import (
	"cmp"
	"os"
	"os/user"

	"github.com/spf13/cobra"

	"github.com/pawlrun/pawl"
)

// person is who does something and why; both are kept in the audit trail.
type person struct {
	as, reason string
}

func (p *person) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.as, "as", "", "who does this (default the system's user@host)")
	cmd.Flags().StringVar(&p.reason, "reason", "", "why, for the audit trail")
}

func (p *person) act() pawl.Act { return pawl.Act{By: cmp.Or(p.as, login()), Reason: p.reason} }

// login is the system's user@host.
func login() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		return name
	}
	return name + "@" + host
}
