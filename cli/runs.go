package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/pawlrun/pawl"
)

func (a *app) runsCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "runs",
		Aliases: []string{"run"},
		Short:   "List runs, look at one, decide about one",
		Long: `List runs, look at one, decide about one. Three words that are never the same thing: show only looks, resume lets the
same run go on at its first unfinished step, retry makes a new run that continues what the old one had finished.`,
		Args: cobra.ArbitraryArgs, // an unknown command is reported by RunE
		RunE: group,
	}
	cmd.AddCommand(a.listCmd(), a.showCmd(), a.resumeCmd(), a.retryCmd(), a.forkCmd(), a.moveCmd(), a.cancelCmd())
	return cmd
}

// page is how much of a list is asked for.
type page struct {
	limit int
	after string
}

func (p *page) flags(cmd *cobra.Command) {
	cmd.Flags().IntVar(&p.limit, "limit", 100, "how many at most; 0 means all")
	cmd.Flags().StringVar(&p.after, "after", "", "go on after this id, the last one of the page before")
}

func (p *page) check(cmd *cobra.Command) error {
	if p.limit < 0 {
		return usage(cmd, "--limit must not be negative")
	}
	if _, err := uuid.Parse(p.after); p.after != "" && (err != nil || len(p.after) != 36) {
		err := usage(cmd, "--after: %q is no id", p.after)
		err.next = "give the whole id that the page before names at its end"
		return err
	}
	return nil
}

// collect reads pages of a list until there are enough. more is where the next one would begin.
func collect[T any](p *page, read func(after pawl.Cursor, limit int) ([]T, pawl.Cursor, error)) (all []T, more pawl.Cursor, err error) {
	more = pawl.Cursor(p.after)
	for {
		want := 1000
		if p.limit > 0 {
			want = min(want, p.limit-len(all))
		}
		var items []T
		items, more, err = read(more, want)
		all = append(all, items...)
		if err != nil || more == "" || p.limit > 0 && len(all) >= p.limit {
			return all, more, err
		}
	}
}

func (a *app) listCmd() *cobra.Command {
	var p page
	var states []string
	var q pawl.RunQuery
	var key, lineage string
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List runs, newest first",
		Example: "  " + a.o.name() + " runs list --state blocked,failed",
		Args:    takes(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := p.check(cmd); err != nil {
				return err
			}
			for _, name := range states {
				state, err := pawl.ParseRunState(name)
				if err != nil {
					return usage(cmd, "--state: %w", err)
				}
				q.States = append(q.States, state)
			}
			q.Key = pawl.Key(key)
			return a.with(cmd, look, func(ctx context.Context, s *session) error { return s.list(ctx, &p, q, lineage) })
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&states, "state", nil, "only runs in these states: "+stateNames())
	flags.StringVar(&q.Workflow, "workflow", "", "only runs of this workflow")
	flags.StringVar(&key, "key", "", "only runs with this product key")
	flags.StringVar(&lineage, "lineage", "", "only this run and its retries and forks")
	p.flags(cmd)
	return cmd
}

func stateNames() string {
	var names []string
	for _, s := range pawl.RunStates() {
		names = append(names, string(s))
	}
	return strings.Join(names, ", ")
}

func (s *session) list(ctx context.Context, p *page, q pawl.RunQuery, lineage string) error {
	if lineage != "" {
		id, err := s.run(ctx, lineage)
		if err != nil {
			return err
		}
		row, err := s.row(ctx, id)
		if err != nil {
			return err
		}
		q.Lineage = row.Lineage
	}
	runs, more, err := collect(p, func(after pawl.Cursor, limit int) ([]pawl.RunInfo, pawl.Cursor, error) {
		q.After, q.Limit = after, limit
		return s.Runs(ctx, q)
	})
	if err != nil {
		return err
	}
	if more != "" {
		defer s.a.note("there may be more: --after %s, or --limit 0 for all", more)
	}
	if s.a.format != text {
		return printList(s.a, runs)
	}
	if len(runs) == 0 {
		s.a.note("no such runs; %s begins one", s.a.command("start WORKFLOW JSON"))
		return nil
	}
	return s.a.columns(runTable(runs), "")
}

func runTable(runs []pawl.RunInfo) *table {
	t := newTable("RUN", "WORKFLOW", "STATE", "KEY", "CREATED", "TOOK", "NOTE")
	for i := range runs {
		r := &runs[i]
		took := ""
		if !r.Ended.IsZero() && !r.Started.IsZero() {
			took = span(r.Ended.Sub(r.Started))
		}
		t.row(string(r.ID), r.Workflow+" "+r.Version, string(r.State), cmp.Or(string(r.Key), "-"), when(r.Created), cmp.Or(took, "-"), runNote(r))
	}
	return t
}

// runNote is what is worth knowing about a run besides its state.
func runNote(r *pawl.RunInfo) string {
	var notes []string
	if r.Relation != pawl.Original {
		notes = append(notes, fmt.Sprintf("%s of %s", r.Relation, r.Parent))
	}
	if r.Cancel && !r.State.Terminal() {
		notes = append(notes, "cancel requested")
	}
	if r.State == pawl.Waiting && !r.Due.IsZero() || r.State == pawl.Queued && r.Due.After(time.Now()) {
		notes = append(notes, "due "+when(r.Due))
	}
	if r.Fault != nil {
		notes = append(notes, r.Fault.Error())
	}
	return strings.Join(notes, "; ")
}
