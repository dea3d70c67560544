package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pawlrun/pawl"
)

func (a *app) doctorCmd() *cobra.Command {
	var who person
	var afterRestore, yes, force bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the database: invariants, stuck runs, unsafe settings",
		Long: `Check the database: invariants that its rows can show, runs that are stuck, settings that are unsafe. It writes nothing.
Exit 1 if an invariant is broken; warnings alone exit 0.

After the database was restored from a backup, or lost commits in a failover, stop all workers and run it with
--after-restore before any is started: each effect of an open run that may have happened since the backup becomes
uncertain, so that a probe or a person is asked before it is sent again. It refuses while a worker with a living lease
holds a run (exit 4), unless --force says that those workers are gone; a worker that holds none it cannot see.`,
		Example: "  " + a.o.name() + " doctor\n  " + a.o.name() + " doctor --after-restore --reason 'restored the backup of 02:00'",
		Args:    takes(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range []string{"as", "reason", "yes", "force"} {
				if !afterRestore && cmd.Flags().Changed(name) {
					return usage(cmd, "--%s belongs to --after-restore", name)
				}
			}
			return a.with(cmd, look, func(ctx context.Context, s *session) error {
				if !afterRestore {
					return s.doctor(ctx)
				}
				if err := s.noWorkers(ctx, force); err != nil {
					return err
				}
				question := "Marks the unfinished effects of all open runs as uncertain; no worker may run. Go on?"
				if err := a.confirm(cmd, yes, question); err != nil {
					return err
				}
				return s.afterRestore(ctx, who.act())
			})
		},
	}
	cmd.Flags().BoolVar(&afterRestore, "after-restore", false, "treat the database as restored from a backup; stop all workers first")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask before --after-restore")
	cmd.Flags().BoolVar(&force, "force", false, "with --after-restore: the workers whose leases are living are gone for sure")
	who.flags(cmd)
	return cmd
}

// noWorkers refuses to go on while a worker with a living lease holds a run. Those that hold none are in no list.
func (s *session) noWorkers(ctx context.Context, force bool) error {
	var owners []pawl.WorkerID
	for q := (pawl.RunQuery{States: []pawl.RunState{pawl.Running}, Limit: 1000}); ; {
		page, next, err := s.Runs(ctx, q)
		if err != nil {
			return err
		}
		for i := range page {
			if id := page[i].Owner; id != "" && !slices.Contains(owners, id) {
				owners = append(owners, id)
			}
		}
		if next == "" {
			break
		}
		q.After = next
	}
	var living []string
	err := s.store.View(ctx, func(ctx context.Context, tx pawl.Txn) error {
		living = nil
		for _, id := range owners {
			w, err := tx.Worker(ctx, id)
			if err != nil {
				return err
			}
			if w != nil && w.Alive {
				living = append(living, fmt.Sprintf("%s (process %d on %s)", w.ID, w.PID, w.Hostname))
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case len(living) == 0 || force:
		s.a.note("careful: an idle worker cannot be seen from here; make sure that no worker runs on this database")
		return nil
	}
	return &failure{exitConflict, fmt.Errorf("%s with a living lease: %s", count(len(living), "worker", "workers"), strings.Join(living, ", ")),
		"stop all workers and repeat the command; if these are gone already, wait until their leases are over, or say --force"}
}

// finding is a [pawl.Finding] as JSON.
type finding struct {
	Level  string     `json:"level"`
	Rule   string     `json:"rule"`
	Run    pawl.RunID `json:"run,omitempty"`
	Text   string     `json:"text"`
	Advice string     `json:"advice,omitempty"`
}

func (s *session) doctor(ctx context.Context) error {
	found, err := s.Doctor(ctx)
	if err != nil {
		return err
	}
	broken := 0
	for i := range found {
		if found[i].Level == "error" {
			broken++
		}
	}
	if err := s.printFindings(found); err != nil {
		return err
	}
	if broken > 0 {
		return &failure{exitFailed, fmt.Errorf("%s in the database", count(broken, "error", "errors")), "follow the advice above before anything else runs"}
	}
	return nil
}

func (s *session) printFindings(found []pawl.Finding) error {
	if s.a.format != text {
		var list []finding
		for _, f := range found {
			list = append(list, finding(f))
		}
		return printList(s.a, list)
	}
	if len(found) == 0 {
		return s.a.say("ok")
	}
	t := newTable("LEVEL", "RULE", "RUN", "FOUND", "WHAT TO DO")
	for _, f := range found {
		t.row(f.Level, f.Rule, cmp.Or(string(f.Run), "-"), f.Text, f.Advice)
	}
	return s.a.columns(t, "")
}

func (s *session) afterRestore(ctx context.Context, act pawl.Act) error {
	n, err := s.AfterRestore(ctx, act, func(id pawl.RunID) { s.a.note("run %s", id) })
	if err != nil {
		return &failure{codeOf(err), fmt.Errorf("after %s: %w", count(n, "run", "runs"), err), "repeat the command: what is done stays done"}
	}
	if s.a.format != text {
		return s.a.printJSON(struct {
			Runs int `json:"runs"`
		}{n})
	}
	return s.a.say("%s dealt with; what is uncertain now is in %s when a worker has come by", count(n, "open run", "open runs"), s.a.command("inbox"))
}
