package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pawlrun/pawl"
)

func (a *app) resumeCmd() *cobra.Command {
	var who person
	cmd := &cobra.Command{
		Use:   "resume RUN",
		Short: "Let a blocked run go on at its first unfinished step",
		Long: `Let a blocked run go on at its first unfinished step, with its counters of attempts and lost workers reset. It answers
"resume" to each of the run's questions that takes it. An uncertain step needs an answer of its own (exit 5), a finished
run a retry or fork (exit 4).`,
		Example: "  " + a.o.name() + ` runs resume 0199 --reason "the provider is back"`,
		Args:    takes(1, "RUN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd, look, func(ctx context.Context, s *session) error {
				id, err := s.run(ctx, args[0])
				if err != nil {
					return err
				}
				return s.resume(ctx, id, who.act())
			})
		},
	}
	who.flags(cmd)
	return cmd
}

func (s *session) resume(ctx context.Context, id pawl.RunID, act pawl.Act) error {
	row, err := s.row(ctx, id)
	if err != nil {
		return err
	}
	if row.State.Terminal() {
		return fmt.Errorf("resume run %s: it is %s: %w", id, row.State, pawl.ErrTerminal)
	}
	open, err := s.entries(ctx, id, false)
	if err != nil {
		return err
	}
	takesResume := func(en pawl.Entry) bool { return slices.Contains(en.Choices, pawl.AnswerResume) }
	if row.State == pawl.Blocked && len(open) > 0 && !slices.ContainsFunc(open, takesResume) {
		return s.needsAnswer(id, open)
	}
	if err := s.Resume(ctx, id, act); err != nil {
		return err
	}
	return s.acted(ctx, "resumed", id)
}

// outcome is what acts on a run print as JSON.
type outcome struct {
	Run   pawl.RunID    `json:"run"`
	State pawl.RunState `json:"state"`
}

// acted tells what an act has led to.
func (s *session) acted(ctx context.Context, what string, id pawl.RunID) error {
	row, err := s.row(ctx, id)
	if err != nil {
		return err
	}
	if s.a.format != text {
		err = s.a.printJSON(outcome{id, row.State})
	} else {
		err = s.a.say("%s; run %s is %s", what, id, row.State)
	}
	if err != nil || row.State != pawl.Blocked {
		return err
	}
	open, err := s.entries(ctx, id, false)
	if err != nil {
		return err
	}
	return s.needsAnswer(id, open)
}

// needsAnswer fails because a person must answer first, and says how.
func (s *session) needsAnswer(id pawl.RunID, entries []pawl.Entry) error {
	next := "answer it:\n"
	for i := range entries {
		if en := &entries[i]; en.Closed.IsZero() {
			next += fmt.Sprintf("    %s  %s\n", clean(about(en)), s.a.line("inbox show "+string(en.ID)))
		}
	}
	return &failure{exitPerson, fmt.Errorf("run %s is blocked: a person must answer", id), next[:len(next)-1]}
}

func about(en *pawl.Entry) string {
	if en.Step == "" {
		return string(en.Kind)
	}
	return fmt.Sprintf("%s %q", en.Kind, en.Step)
}
