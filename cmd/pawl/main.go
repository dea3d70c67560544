// Command pawl looks at the runs of a Pawl database and decides about them. It has no workflows of its own but the demo's:
// those are in the programs that call cli.Main, which have the same commands.
package main

import (
	"github.com/spf13/cobra"

	"github.com/pawlrun/pawl/cli"
	"github.com/pawlrun/pawl/internal/demo"
)

func main() {
	cli.MainWith(cli.Options{Name: "pawl", Commands: []*cobra.Command{demo.Command()}})
}
