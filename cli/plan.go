package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

// planned is a command that shows a plan before it carries it out.
type planned struct {
	person
	o        pawl.PlanOptions
	planOnly bool
	yes      bool
}

func (a *app) plannedCmd(p *planned, use, short, long, example string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Long: long + `

The plan is shown first: what happens to each step (reuse its result, rerun it, ask a person, refused, unused), under
which key, and what it may cost at worst. You are asked whether to go on, or say --yes. A plan that has something in its
way is shown and not carried out (exit 4).`,
		Example: "  " + a.o.name() + " " + example,
		Args:    takes(1, "RUN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd, look, func(ctx context.Context, s *session) error { return s.planned(ctx, p, args[0]) })
		},
	}
	cmd.Flags().BoolVar(&p.planOnly, "plan", false, "only show the plan")
	cmd.Flags().BoolVar(&p.yes, "yes", false, "carry it out without asking")
	p.flags(cmd)
	return cmd
}

func (a *app) retryCmd() *cobra.Command {
	p := &planned{o: pawl.PlanOptions{Mode: pawl.PlanRetry}}
	cmd := a.plannedCmd(p, "retry RUN", "Continue a failed or cancelled run in a new one",
		`Make a new run, linked to a failed or cancelled one, that inherits what is finished and continues, with the same
operation keys. The old run stays as it is.`, "runs retry 0199 --plan")
	cmd.Flags().StringArrayVar(&p.o.NewKey, "new-key", nil, "give this step a new operation key (repeatable), if the far end replays a stored error")
	return cmd
}

func (a *app) forkCmd() *cobra.Command {
	p := &planned{o: pawl.PlanOptions{Mode: pawl.PlanFork}}
	cmd := a.plannedCmd(p, "fork RUN", "Re-execute a run from a step on, in a new run",
		`Make a new run, linked to an old one, that re-executes from a step on, or all of it. A once step that would happen again
needs --repeat STEP.`, "runs fork 0199 --from score --repeat notify")
	cmd.Flags().StringVar(&p.o.From, "from", "", "the first step to re-execute, with everything begun after it")
	cmd.Flags().BoolVar(&p.o.FromStart, "from-start", false, "re-execute everything")
	cmd.Flags().StringArrayVar(&p.o.Repeat, "repeat", nil, "this once step may happen again (repeatable)")
	cmd.Flags().BoolVar(&p.o.NewKeys, "new-keys", false, "operation keys of its own, so that the far end does everything again; it may run beside its origin")
	cmd.Flags().StringArrayVar(&p.o.NewKey, "new-key", nil, "give this step a new operation key (repeatable)")
	return cmd
}

func (a *app) moveCmd() *cobra.Command {
	p := &planned{o: pawl.PlanOptions{Mode: pawl.PlanMove}}
	cmd := a.plannedCmd(p, "move RUN --to VERSION", "Let an unfinished run go on under another version",
		`Let an unfinished run that no worker holds go on under another version of its workflow, which this program must have.`,
		"runs move 0199 --to v2")
	cmd.Flags().StringVar(&p.o.Version, "to", "", "the version to move to")
	return cmd
}

// check refuses flags that do not make a plan.
func (p *planned) check(cmd *cobra.Command) error {
	switch {
	case p.planOnly && p.yes:
		return usage(cmd, "--plan only shows, --yes carries out: give one of them")
	case p.o.Mode == pawl.PlanFork && p.o.From == "" && !p.o.FromStart:
		return usage(cmd, "a fork needs --from STEP or --from-start")
	case p.o.Mode == pawl.PlanFork && p.o.From != "" && p.o.FromStart:
		return usage(cmd, "give either --from STEP or --from-start")
	case p.o.Mode == pawl.PlanMove && p.o.Version == "":
		return usage(cmd, "a move needs --to VERSION")
	}
	return nil
}

func (s *session) planned(ctx context.Context, p *planned, arg string) error {
	if err := p.check(s.cmd); err != nil {
		return err
	}
	id, err := s.run(ctx, arg)
	if err != nil {
		return err
	}
	plan, err := s.Plan(ctx, id, p.o)
	if err != nil {
		return err
	}
	if s.a.format == text {
		for i, why := range plan.Refusals {
			plan.Refusals[i] = asFlags(why)
		}
		if len(plan.Steps) > 0 || len(plan.Refusals) == 0 {
			err = s.printPlan(ctx, plan)
		}
	} else if p.planOnly || len(plan.Refusals) > 0 {
		err = s.a.printJSON(plan)
	}
	switch {
	case err != nil:
		return err
	case len(plan.Refusals) > 0:
		return &failure{exitConflict, fmt.Errorf("cannot %s run %s: %s", p.o.Mode, id, strings.Join(plan.Refusals, "; ")), s.unrefuse(plan)}
	case p.planOnly:
		return nil
	}
	if err := s.a.confirm(s.cmd, p.yes, "Carry it out?"); err != nil {
		return err
	}
	return s.carryOut(ctx, plan, p.act())
}

// asFlags names flags where the engine names the fields of its options.
func asFlags(why string) string { return strings.ReplaceAll(why, "in Repeat", "with --repeat") }

// unrefuse says what may help against a plan's refusals.
func (s *session) unrefuse(p *pawl.Plan) string {
	switch p.Options.Mode {
	case pawl.PlanMove:
		return fmt.Sprintf("%s tells how the run stands, %s which versions this program has",
			s.a.command("runs show "+string(p.Run)), s.a.command("version"))
	case pawl.PlanFork, pawl.PlanRetry:
	}
	return "change the command accordingly, or look closer: " + s.a.command("runs show "+string(p.Run))
}

// carriedOut is what carrying out a plan prints as JSON.
type carriedOut struct {
	Run  pawl.RunID `json:"run"`
	Plan *pawl.Plan `json:"plan"`
}

func (s *session) carryOut(ctx context.Context, p *pawl.Plan, act pawl.Act) error {
	var id pawl.RunID
	var err error
	switch p.Options.Mode {
	case pawl.PlanRetry:
		id, err = s.Retry(ctx, p, act)
	case pawl.PlanFork:
		id, err = s.Fork(ctx, p, act)
	case pawl.PlanMove:
		id, err = p.Run, s.Move(ctx, p, act)
	default: // unreachable unless a new mode has no command
		err = errors.New("unknown mode of plan")
	}
	if err != nil {
		return err
	}
	if s.a.format != text {
		return s.a.printJSON(carriedOut{id, p})
	}
	if p.Options.Mode == pawl.PlanMove {
		return s.acted(ctx, "moved to "+p.Options.Version, id)
	}
	return s.a.say("new run %s", id)
}

func (s *session) printPlan(ctx context.Context, p *pawl.Plan) error {
	row, err := s.row(ctx, p.Run)
	if err != nil {
		return err
	}
	to := ""
	if p.Options.Mode == pawl.PlanMove {
		to = " to " + p.Options.Version
	}
	if err := s.a.say("plan: %s run %s%s (%s %s, %s)", p.Options.Mode, p.Run, clean(to), clean(row.Workflow), row.Version, row.State); err != nil {
		return err
	}
	t := newTable("STEP", "KIND", "STATE", "THEN", "KEY", "CALLS", "COST", "WHY")
	for i := range p.Steps {
		x := &p.Steps[i]
		calls := "-"
		if x.Calls > 0 {
			calls = fmt.Sprintf("≤%d", x.Calls)
		}
		t.row(x.Name, kindText(x), cmp.Or(string(x.State), "-"), string(x.Fate), keyText(x), calls, cmp.Or(dollars(x.Cost), "-"), asFlags(x.Why))
	}
	if len(p.Steps) == 0 {
		t.row("(no steps yet)")
	}
	if err := s.a.columns(t, "  "); err != nil {
		return err
	}
	if p.PaidCalls > 0 {
		cost := ""
		if p.Cost > 0 {
			cost = fmt.Sprintf(", at the last price %s (estimate)", dollars(p.Cost))
		}
		return s.a.say("  at worst %s%s", count(p.PaidCalls, "paid call", "paid calls"), cost)
	}
	return nil
}

func kindText(s *pawl.PlannedStep) string {
	if s.Paid {
		return s.Kind.String() + ", paid"
	}
	return s.Kind.String()
}

// keyText shows the beginning of the step's operation key, which is enough to find it at the far end.
func keyText(s *pawl.PlannedStep) string {
	switch {
	case len(s.Key) > 12:
		return string(s.Key[:12]) + "…"
	case s.Key != "":
		return string(s.Key)
	case (s.Kind == fault.KindKeyed || s.Kind == fault.KindOnce) && (s.Fate == pawl.Rerun || s.Fate == pawl.Ask) && s.State != "":
		return "(new)"
	}
	return "-"
}
