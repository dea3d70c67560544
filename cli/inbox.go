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

func (a *app) inboxCmd() *cobra.Command {
	var p page
	var q pawl.InboxQuery
	var run, kind string
	cmd := &cobra.Command{
		Use:   "inbox",
		Short: "List what people owe an answer to, oldest first",
		Long: `List what people owe an answer to, oldest first: effects that may or may not have happened, runs that a person must let
go on, approvals. ` + "`inbox show ENTRY`" + ` tells all about one of them and how to answer it, ` + "`resolve ENTRY`" + ` answers it;
approvals have ` + "`approve`, `reject` and `edit`" + `.`,
		Example: "  " + a.o.name() + " inbox --kind uncertain",
		Args:    cobra.ArbitraryArgs, // an unknown command is reported by RunE
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && (args[0] == "list" || args[0] == "ls") {
				args = nil
			}
			switch {
			case len(args) > 0:
				err := usage(cmd, "unknown command %q", args[0])
				err.next = "to look at one entry: " + a.command("inbox show "+quote(args[0]))
				return err
			case kind != "" && !slices.Contains(pawl.EntryKinds(), pawl.EntryKind(kind)):
				return usage(cmd, "--kind: unknown kind %q: want one of %v", kind, pawl.EntryKinds())
			}
			if err := p.check(cmd); err != nil {
				return err
			}
			q.Kind = pawl.EntryKind(kind)
			return a.with(cmd, look, func(ctx context.Context, s *session) error { return s.inbox(ctx, &p, q, run) })
		},
	}
	cmd.Flags().StringVar(&run, "run", "", "only entries of this run")
	cmd.Flags().StringVar(&kind, "kind", "", fmt.Sprintf("only entries of this kind: %v", pawl.EntryKinds()))
	cmd.Flags().BoolVar(&q.All, "all", false, "answered ones too")
	p.flags(cmd)
	cmd.AddCommand(&cobra.Command{
		Use:     "show ENTRY",
		Short:   "Show all about one entry, and how to answer it",
		Example: "  " + a.o.name() + " inbox show 0199",
		Args:    takes(1, "ENTRY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd, look, func(ctx context.Context, s *session) error { return s.showEntry(ctx, args[0]) })
		},
	})
	return cmd
}

func (s *session) inbox(ctx context.Context, p *page, q pawl.InboxQuery, run string) error {
	var err error
	if run != "" {
		if q.Run, err = s.run(ctx, run); err != nil {
			return err
		}
	}
	entries, more, err := collect(p, func(after pawl.Cursor, limit int) ([]pawl.Entry, pawl.Cursor, error) {
		q.After, q.Limit = after, limit
		return s.Inbox(ctx, q)
	})
	if err != nil {
		return err
	}
	if more != "" {
		defer s.a.note("there may be more: --after %s, or --limit 0 for all", more)
	}
	if s.a.format != text {
		return printList(s.a, entriesOf(entries))
	}
	if len(entries) == 0 {
		s.a.note("nothing waits for an answer")
		return nil
	}
	t := newTable("ENTRY", "KIND", "WORKFLOW", "KEY", "STEP", "OPENED", "QUESTION")
	for i := range entries {
		en := &entries[i]
		text := en.Detail
		switch {
		case !en.Closed.IsZero():
			text = answerText(en)
		case en.Kind == pawl.AskGate:
			text = gateQuestion(en)
		}
		t.row(string(en.ID), string(en.Kind), en.Workflow+" "+en.Version, cmp.Or(string(en.Key), "-"), cmp.Or(en.Step, "-"), when(en.Opened), text)
	}
	return s.a.columns(t, "")
}

func answerText(en *pawl.Entry) string {
	text := fmt.Sprintf("answered by %s at %s: %s", en.By, when(en.Closed), en.Choice)
	if en.Reason != "" {
		text += ", because: " + en.Reason
	}
	return text
}

func (s *session) showEntry(ctx context.Context, arg string) error {
	en, err := s.entry(ctx, arg)
	if err != nil {
		return err
	}
	d, err := s.Show(ctx, en.Run)
	if err != nil {
		return err
	}
	d.Evidence = slices.DeleteFunc(d.Evidence, func(ev pawl.Evidence) bool { return ev.Step != en.Step })
	if s.a.format != text && en.Kind == pawl.AskGate {
		return s.gateJSON(ctx, en.ID)
	}
	if s.a.format != text {
		return s.a.printJSON(struct {
			entry
			Evidence []evidence `json:"evidence"`
		}{entry{*en, raw(en.Input)}, append([]evidence{}, detailOf(d).Evidence...)})
	}
	t := newTable()
	t.row("run", string(en.Run))
	t.row("workflow", en.Workflow+" "+en.Version)
	t.row("state", string(d.State))
	t.fact("key", string(en.Key))
	if err := s.a.columns(t, ""); err != nil {
		return err
	}
	if en.Kind == pawl.AskGate {
		return s.showGate(ctx, en)
	}
	if err := s.a.printQuestion(en); err != nil {
		return err
	}
	return s.a.section("evidence", len(d.Evidence), evidenceTable(d.Evidence))
}

// printQuestion shows an entry and the command for each answer.
func (a *app) printQuestion(en *pawl.Entry) error {
	title := "question"
	if !en.Closed.IsZero() {
		title = "answered question"
	}
	if err := a.say("\n%s %s: %s", title, en.ID, clean(about(en))); err != nil {
		return err
	}
	t := newTable()
	t.row("what", en.Detail)
	t.row("opened", when(en.Opened))
	if en.Attempt > 0 {
		t.row("attempt", strings.TrimSpace(fmt.Sprintf("%d, begun %s", en.Attempt, when(en.Begun))))
	}
	t.fact("sent", compact(en.Input, shownBytes))
	t.fact("under key", string(en.OpKey))
	switch {
	case !en.Closed.IsZero():
		t.row("answer", answerText(en))
	case en.OverAt.IsZero():
	case en.Over:
		t.row("over since", when(en.OverAt)+"; look after that, then answer")
	default:
		t.row("careful", "may still happen until "+when(en.OverAt)+`; "did not happen" counts only if you looked after that`)
	}
	if err := a.columns(t, "  "); err != nil || !en.Closed.IsZero() {
		return err
	}
	answers := newTable()
	for _, c := range en.Choices {
		answers.row(a.line(fmt.Sprintf("resolve %s %s", en.ID, answerFlag(c).use)), answerFlag(c).help)
	}
	if en.Kind == pawl.AskVersion {
		answers.row(a.line(fmt.Sprintf("runs move %s --to VERSION", en.Run)), "go on under another version")
	}
	if err := a.say("  answers"); err != nil {
		return err
	}
	return a.columns(answers, "    ")
}
