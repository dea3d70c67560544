package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

const modulePath = "github.com/pawlrun/pawl"

// build says what a program was built from.
type build struct {
	Program   string     `json:"program"`
	Pawl      string     `json:"pawl"`
	Revision  string     `json:"revision"`
	Go        string     `json:"go"`
	Workflows []workflow `json:"workflows"`
}

type workflow struct {
	Workflow string `json:"workflow"`
	Version  string `json:"version"`
}

func (b build) String() string {
	return fmt.Sprintf("%s: pawl %s, revision %s, %s", b.Program, b.Pawl, b.Revision, b.Go)
}

func (a *app) build() build {
	b := build{Program: a.o.name(), Pawl: "(devel)", Revision: "unknown", Go: runtime.Version(), Workflows: []workflow{}}
	for _, id := range a.workflows() {
		b.Workflows = append(b.Workflows, workflow(id))
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == modulePath && m.Version != "" {
			b.Pawl = m.Version
		}
	}
	modified := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			b.Revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = " (modified)"
		}
	}
	b.Revision += modified
	return b
}

func (a *app) versionCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print versions and the workflows of this program",
		Example: "  " + a.o.name() + " version -o json",
		Args:    takes(0),
		RunE: func(*cobra.Command, []string) error {
			b := a.build()
			if a.format != text {
				return a.printJSON(b)
			}
			if err := a.say("%s", b); err != nil {
				return err
			}
			t := newTable()
			for _, w := range b.Workflows {
				t.row(w.Workflow, w.Version)
			}
			return a.columns(t, "  ")
		},
	}
}
