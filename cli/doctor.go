package cli

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pawlrun/pawl"
)

func (a *app) doctorCmd() *cobra.Command {
	var who person
	var afterRestore, yes bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the database: invariants, stuck runs, unsafe settings",
		Long: `Check the database: invariants that its rows can show, runs that are stuck, settings that are unsafe. It writes nothing.
Exit 1 if an invariant is broken; warnings alone exit 0.

After the database was restored from a backup, or lost commits in a failover, stop all workers and run it with
--after-restore before any is started: each effect of an open run that may have happened since the backup becomes
uncertain, so that a probe or a person is asked before it is sent again.`,
		Example: "  " + a.o.name() + " doctor\n  " + a.o.name() + " doctor --after-restore --reason 'restored the backup of 02:00'",
		Args:    takes(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd, look, func(ctx context.Context, s *session) error {
				if !afterRestore {
					return s.doctor(ctx)
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
	who.flags(cmd)
	return cmd
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
