package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/pawlrun/pawl"
)

func (a *app) cancelCmd() *cobra.Command {
	var who person
	cmd := &cobra.Command{
		Use:   "cancel RUN",
		Short: "Cancel a run, or ask its worker to",
		Long: `Cancel a run. One that has not begun ends at once. For any other a worker executes the body to its end, so that it can
compensate; one with an uncertain step waits for the answer first (exit 5). What has happened already is not undone. The
output says which it was. A run that has succeeded or failed before stays as it is (exit 4); so does one that is
cancelled already, and that is no error.`,
		Example: "  " + a.o.name() + ` runs cancel 0199 --reason "customer withdrew"`,
		Args:    takes(1, "RUN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd, look, func(ctx context.Context, s *session) error {
				id, err := s.run(ctx, args[0])
				if err != nil {
					return err
				}
				return s.cancel(ctx, id, who.act())
			})
		},
	}
	who.flags(cmd)
	return cmd
}

func (s *session) cancel(ctx context.Context, id pawl.RunID, act pawl.Act) error {
	before, err := s.row(ctx, id)
	if err != nil {
		return err
	}
	state, err := s.Cancel(ctx, id, act)
	if errors.Is(err, pawl.ErrTerminal) {
		text := "already finished: " + string(state)
		if row, err := s.row(ctx, id); err == nil && row.Successor != "" {
			text += ", continued as " + string(row.Successor)
		}
		return &failure{exitConflict, errors.New(text), "it stays as it is: " + s.a.command("runs show "+string(id))}
	}
	if err != nil {
		return err
	}
	if s.a.format != text {
		err = s.a.printJSON(outcome{id, state})
	} else {
		err = s.tellCancel(ctx, id, before.State, state)
	}
	if err != nil || state != pawl.Blocked {
		return err
	}
	open, err := s.entries(ctx, id, false)
	if err != nil {
		return err
	}
	return s.needsAnswer(id, open)
}

func (s *session) tellCancel(ctx context.Context, id pawl.RunID, before, state pawl.RunState) error {
	switch state {
	case pawl.Cancelled:
		if before == pawl.Cancelled {
			return s.a.say("it was cancelled already")
		}
		return s.a.say("cancelled")
	case pawl.Running:
		row, err := s.row(ctx, id)
		if err != nil {
			return err
		}
		return s.a.say("cancel requested, it is running on worker %s", row.Owner)
	case pawl.Blocked:
		return s.a.say("cancel requested, it ends when an open question is answered")
	case pawl.Queued, pawl.Waiting, pawl.Succeeded, pawl.Failed:
	}
	return s.a.say("cancel requested, the next worker executes it to its end; it is %s", state)
}
