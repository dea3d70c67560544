package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlrun/pawl"
)

// flagOf is how an answer is given on the command line.
type flagOf struct {
	choice pawl.Choice
	name   string
	use    string
	help   string
}

// answerFlags are the flags of resolve, in the order of its help.
func answerFlags() []flagOf {
	return []flagOf{
		{pawl.AnswerHappened, "happened", "--happened JSON", "the effect happened; JSON is the step's result"},
		{pawl.AnswerDidNotHappen, "did-not-happen", "--did-not-happen", "it did not happen: try again"},
		{pawl.AnswerGiveUp, "give-up", "--give-up", "nobody will ever know: end the run"},
		{pawl.AnswerResume, "resume", "--resume", "go on at the first unfinished step"},
		{pawl.AnswerCancel, "cancel", "--cancel", "end the run as cancelled"},
		{pawl.AnswerAccept, "accept", "--accept", "finish as the new code ended, without the unvisited steps"},
		{pawl.AnswerTakeResult, "take-result", "--take-result", "the renamed step takes the finished one's result"},
		{pawl.AnswerRunIt, "run-it", "--run-it", "it is a new step: run it"},
		{pawl.AnswerAcknowledge, "acknowledge", "--acknowledge", "seen"},
	}
}

func answerFlag(c pawl.Choice) flagOf {
	for _, f := range answerFlags() {
		if f.choice == c {
			return f
		}
	}
	return flagOf{choice: c, use: string(c)} // unreachable unless the engine has a new answer
}

type resolveFlags struct {
	person
	attempt  int
	lookedAt string
	yes      bool
}

func (a *app) resolveCmd() *cobra.Command {
	var f resolveFlags
	cmd := &cobra.Command{
		Use:   "resolve ENTRY ANSWER",
		Short: "Answer an inbox entry",
		Long: `Answer an inbox entry. Which answers an entry takes, and what was sent, ` + "`inbox show ENTRY`" + ` tells.

"Did not happen" lets the effect be sent again. It counts only if you began to look after the attempt was over: you are
asked whether you did, or say so with --yes (I have looked just now) or --looked-at TIME.`,
		Example: "  " + a.o.name() + ` resolve 0199 --happened '"msg-17"' --reason "found in Sent"` + "\n  " +
			a.o.name() + " resolve 0199 --did-not-happen --looked-at 2026-03-01T12:00:00Z",
		Args: takes(1, "ENTRY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			answer, err := f.answer(cmd)
			if err != nil {
				return err
			}
			return a.with(cmd, look, func(ctx context.Context, s *session) error {
				en, err := s.entry(ctx, args[0])
				if err != nil {
					return err
				}
				return s.resolve(ctx, en, answer, &f)
			})
		},
	}
	for _, x := range answerFlags() {
		if x.choice == pawl.AnswerHappened {
			cmd.Flags().String(x.name, "", x.help)
		} else {
			cmd.Flags().Bool(x.name, false, x.help)
		}
	}
	cmd.Flags().IntVar(&f.attempt, "attempt", 0, "the attempt that you looked at (default the one the entry is about now)")
	cmd.Flags().StringVar(&f.lookedAt, "looked-at", "", "when you began to look: RFC 3339, or YYYY-MM-DD HH:MM in local time")
	cmd.Flags().BoolVar(&f.yes, "yes", false, "with --did-not-happen: yes, I have looked after the attempt was over")
	f.flags(cmd)
	return cmd
}

// answer reads the one answer from the flags.
func (f *resolveFlags) answer(cmd *cobra.Command) (a pawl.Answer, err error) {
	var given []string
	for _, x := range answerFlags() {
		flag := cmd.Flags().Lookup(x.name)
		if flag.Changed && flag.Value.String() != "false" {
			given = append(given, "--"+x.name)
			a.Choice = x.choice
			if x.choice == pawl.AnswerHappened {
				a.Result = []byte(flag.Value.String())
			}
		}
	}
	switch {
	case len(given) == 0:
		return a, usage(cmd, "an answer is missing: `inbox show %s` lists those that the entry takes", cmd.Flags().Arg(0))
	case len(given) > 1:
		return a, usage(cmd, "%s: only one answer can be given", strings.Join(given, " and "))
	case f.attempt < 0:
		return a, usage(cmd, "--attempt must not be negative")
	case f.lookedAt != "" && a.Choice != pawl.AnswerDidNotHappen:
		return a, usage(cmd, "--looked-at belongs to --did-not-happen")
	}
	if a.Choice == pawl.AnswerHappened {
		if err := checkJSON(cmd, "the result", a.Result); err != nil {
			return a, err
		}
	}
	if f.lookedAt != "" {
		a.Looked, err = parseTime(f.lookedAt)
		if err != nil {
			return a, usage(cmd, "--looked-at: %w", err)
		}
	}
	return a, nil
}

func parseTime(s string) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	for _, layout := range []string{"2006-01-02 15:04", "2006-01-02 15:04:05"} {
		if t, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is no time: want something like %s", s, "2026-03-01T12:00:00Z")
}

func (s *session) resolve(ctx context.Context, en *pawl.Entry, a pawl.Answer, f *resolveFlags) error {
	if !slices.Contains(en.Choices, a.Choice) {
		err := usage(s.cmd, "entry %s (%s) does not take %s", en.ID, about(en), "--"+answerFlag(a.Choice).name)
		err.next = "what it takes: " + s.a.command("inbox show "+string(en.ID))
		return err
	}
	act := f.act()
	a.Entry, a.Attempt, a.By, a.Reason = en.ID, en.Attempt, act.By, act.Reason
	if f.attempt > 0 {
		a.Attempt = f.attempt
	}
	if a.Choice == pawl.AnswerDidNotHappen {
		if err := s.looked(ctx, en, &a, f.yes); err != nil {
			return err
		}
	}
	if err := s.Resolve(ctx, a); err != nil {
		return err
	}
	if a.Choice == pawl.AnswerAcknowledge && s.a.format == text {
		return s.a.say("acknowledged")
	}
	return s.acted(ctx, "answered: "+strings.ReplaceAll(string(a.Choice), "_", " "), en.Run)
}

// looked finds out when the person began to look.
func (s *session) looked(ctx context.Context, en *pawl.Entry, a *pawl.Answer, yes bool) error {
	now, err := s.Now(ctx)
	if err != nil {
		return err
	}
	switch {
	case !en.Closed.IsZero(): // the engine says who has answered
		return nil
	case a.Looked.After(now):
		return usage(s.cmd, "--looked-at %s is in the future: it is %s now", when(a.Looked), when(now))
	case !a.Looked.IsZero():
		return nil
	case !en.Over:
		a.Looked = now // too early, and the engine says until when
		return nil
	}
	if !yes && s.a.prompt == nil {
		err := usage(s.cmd, "did you look after %s, when the attempt was over?", when(en.OverAt))
		err.next = "if you did, say so with --yes or with --looked-at TIME; if not, look first"
		return err
	}
	question := fmt.Sprintf("Did you look after %s, when attempt %d was over?", when(en.OverAt), en.Attempt)
	if err := s.a.confirm(s.cmd, yes, question); err != nil {
		return err
	}
	a.Looked = now
	return nil
}
