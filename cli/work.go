package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlrun/pawl"
)

func (a *app) workCmd() *cobra.Command {
	o := a.o.Engine
	cmd := &cobra.Command{
		Use:   "work [WORKFLOW...]",
		Short: "Execute runs until SIGINT or SIGTERM",
		Long: `Execute runs of this program's workflows, or only of those named, until SIGINT or SIGTERM. Then nothing new is
claimed, running steps may finish for --drain, and what is left is handed back. A second signal ends the process at
once; its runs are then taken over when the lease is over. A SQLite database that is missing is created.`,
		Example: "  " + a.o.name() + " work --slots 20",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.work(cmd, o, args)
		},
		ValidArgsFunction: a.completeWorkflows,
	}
	flags := cmd.Flags()
	flags.IntVar(&o.Slots, "slots", o.Slots, "runs to execute at once; 0 means 100")
	flags.DurationVar(&o.Lease, "lease", o.Lease, "how long a silent worker keeps its runs; 0 means 30s, at least 2s")
	flags.DurationVar(&o.Drain, "drain", o.Drain, "how long steps may finish after the first signal; 0 means 20s")
	flags.DurationVar(&o.Poll, "poll", o.Poll, "how often to ask for due runs when nothing woke the worker; 0 means 1s")
	flags.DurationVar(&o.Retention, "retention", o.Retention, "delete lineages this long after their end, like 720h, at least 1h; 0 keeps them for ever")
	return cmd
}

func (a *app) work(cmd *cobra.Command, o pawl.Options, names []string) error {
	defs, err := a.only(names)
	if err != nil {
		return err
	}
	switch {
	case len(defs) == 0:
		return &failure{exitUsage, errors.New("this program has no workflows to work on"), a.howToDefine()}
	case o.Lease != 0 && o.Lease < 2*time.Second:
		return usage(cmd, "--lease is %v: want 2s or more", o.Lease)
	case o.Retention != 0 && o.Retention < time.Hour:
		return usage(cmd, "--retention is %v: want 0 (for ever), or 1h or more", o.Retention)
	case o.Slots < 0 || o.Drain < 0 || o.Poll < 0:
		return usage(cmd, "--slots, --drain and --poll must not be negative")
	}
	return a.withEngine(cmd, write, o, defs, slog.LevelInfo, func(ctx context.Context, s *session) error {
		ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
		ended := make(chan struct{}) // closed when Work has returned
		var wg sync.WaitGroup
		wg.Go(func() {
			select {
			case <-ctx.Done():
				stop() // from here on a signal ends the process
				a.note("stopping: steps may finish for a while; a second signal ends the process at once")
			case <-ended:
			}
		})
		err := s.Work(ctx)
		close(ended)
		wg.Wait()
		defer stop()
		switch {
		case errors.Is(err, pawl.ErrAbandoned):
			return &failure{exitFailed, err, "their runs are taken over when the lease is over"}
		case errors.Is(err, context.Canceled) && ctx.Err() != nil: // told to stop before it had begun
			return nil
		}
		return err
	})
}

// only picks the definitions of the named workflows, all if none is named.
func (a *app) only(names []string) ([]pawl.Definition, error) {
	if len(names) == 0 {
		return a.defs, nil
	}
	var picked []pawl.Definition
	for _, name := range names {
		n := len(picked)
		for _, d := range a.defs {
			if pawl.NameOf(d).Workflow == name && !slices.Contains(picked, d) {
				picked = append(picked, d)
			}
		}
		if len(picked) == n && !slices.ContainsFunc(picked, func(d pawl.Definition) bool { return pawl.NameOf(d).Workflow == name }) {
			return nil, a.unknownWorkflow(name)
		}
	}
	return picked, nil
}

func (a *app) unknownWorkflow(name string) error {
	return &failure{exitNotFound, fmt.Errorf("this program has no workflow %q", name), a.howToDefine()}
}

// workflows are those of the program; its schedules bring theirs along.
func (a *app) workflows() (all []pawl.VersionID) {
	for _, d := range a.defs {
		if id := pawl.NameOf(d); !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	return all
}

// howToDefine lists the workflows there are, or says how a program gets some.
func (a *app) howToDefine() string {
	var b strings.Builder
	if len(a.defs) > 0 {
		b.WriteString("it has:\n")
		for _, id := range a.workflows() {
			fmt.Fprintf(&b, "    %s %s\n", id.Workflow, id.Version)
		}
		b.WriteString("  use the program that has the workflow, or add it to this one:\n")
	} else {
		b.WriteString("workflows are Go functions; a program of your own, with these lines, has the same commands and its workflows:\n")
	}
	b.WriteString(`
    import "github.com/pawlrun/pawl/cli"
    var enrich = pawl.Define("enrich", "v1", enrichTicket) // func(*pawl.Run, Ticket) (Summary, error)
    func main() { cli.Main(enrich) }`)
	return b.String()
}

func (a *app) completeWorkflows(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var names []string
	for _, d := range a.defs {
		if name := pawl.NameOf(d).Workflow; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
