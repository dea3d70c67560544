package cli

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlrun/pawl"
)

func (a *app) queuesCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "queues",
		Aliases: []string{"queue"},
		Short:   "List queues, limit one, pause one",
		Long: `List queues, limit one, pause one. A run waits in the queue of its workflow's name unless its start names another one. What
is set holds at once, for the workers of all processes, and stays over restarts.`,
		Args: cobra.ArbitraryArgs, // an unknown command is reported by RunE
		RunE: group,
	}
	cmd.AddCommand(a.queuesListCmd(), a.queuesShowCmd(), a.queuesSetCmd(), a.pauseCmd(), a.unpauseCmd())
	return cmd
}

func (a *app) queuesListCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List queues that hold runs or have settings",
		Example: "  " + a.o.name() + " queues list",
		Args:    takes(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd, look, func(ctx context.Context, s *session) error {
				queues, err := s.Queues(ctx)
				if err != nil {
					return err
				}
				if a.format != text {
					return printList(a, queues)
				}
				if len(queues) == 0 {
					a.note("no run waits or is running, and no queue has settings")
					return nil
				}
				return a.columns(queueTable(queues), "")
			})
		},
	}
}

func (a *app) lanesCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "lanes",
		Short: "List lanes that wait because a provider said so",
		Long: `List lanes that wait because a provider said so, with the time until which no step of them begins an attempt. A lane is a
provider, an account and a model, as the steps name it.`,
		Example: "  " + a.o.name() + " lanes",
		Args:    takes(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd, look, func(ctx context.Context, s *session) error {
				lanes, err := s.Lanes(ctx)
				if err != nil {
					return err
				}
				if a.format != text {
					return printList(a, lanes)
				}
				if len(lanes) == 0 {
					a.note("no lane waits")
					return nil
				}
				t := newTable("LANE", "UNTIL", "WHY")
				for _, l := range lanes {
					t.row(l.Name, when(l.Until), l.Why)
				}
				return a.columns(t, "")
			})
		},
	}
}

func queueTable(queues []pawl.QueueInfo) *table {
	t := newTable("QUEUE", "DUE", "LATER", "RUNNING", "OLDEST DUE", "LIMITS", "NOTE")
	for i := range queues {
		q := &queues[i]
		t.row(q.Name, counted(q.Due, q.More), counted(q.Later, q.More), strconv.Itoa(q.Running), cmp.Or(when(q.Oldest), "-"), limits(q), queueNote(q))
	}
	return t
}

// counted marks a number that may be higher.
func counted(n int, more bool) string {
	if more {
		return strconv.Itoa(n) + "+"
	}
	return strconv.Itoa(n)
}

func limits(q *pawl.QueueInfo) string {
	if q.Settings == (pawl.QueueSettings{}) {
		return "-"
	}
	return q.Settings.String()
}

func queueNote(q *pawl.QueueInfo) string {
	if q.Paused.IsZero() {
		return ""
	}
	note := "PAUSED by " + q.PausedBy + " " + when(q.Paused)
	if q.PausedWhy != "" {
		note += ": " + q.PausedWhy
	}
	return note
}

func (a *app) queuesShowCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "show QUEUE",
		Short:   "Show a queue with its limits",
		Example: "  " + a.o.name() + " queues show refund",
		Args:    takes(1, "QUEUE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd, look, func(ctx context.Context, s *session) error {
				q, err := s.queue(ctx, args[0])
				if err != nil {
					return err
				}
				return s.showQueue(q)
			})
		},
	}
}

// queue finds a queue; one that holds nothing and has no settings is as good as any other.
func (s *session) queue(ctx context.Context, name string) (*pawl.QueueInfo, error) {
	queues, err := s.Queues(ctx)
	if err != nil {
		return nil, err
	}
	for i := range queues {
		if queues[i].Name == name {
			return &queues[i], nil
		}
	}
	return &pawl.QueueInfo{Name: name}, nil
}

func (s *session) showQueue(q *pawl.QueueInfo) error {
	if s.a.format != text {
		return s.a.printJSON(q)
	}
	return s.a.columns(queueTable([]pawl.QueueInfo{*q}), "")
}

// rate is how many in what time, as a flag value like 100/1m.
type rate struct {
	n   int
	per time.Duration
}

func (r *rate) String() string {
	if r.n == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%v", r.n, r.per)
}

func (r *rate) Type() string { return "N/TIME" }

// Set accepts a number, for each second, or a number and a time.
func (r *rate) Set(s string) error {
	number, per, timed := strings.Cut(s, "/")
	n, err := strconv.Atoi(number)
	d := time.Duration(0)
	if err == nil && timed {
		d, err = time.ParseDuration(per)
	}
	if err != nil || n < 0 || timed && d <= 0 {
		return fmt.Errorf("want a number and a time, like 100/1m, or 0 for none")
	}
	r.n, r.per = n, d
	if n == 0 {
		r.per = 0
	}
	return nil
}

func (a *app) queuesSetCmd() *cobra.Command {
	var who person
	var want pawl.QueueSettings
	var r rate
	cmd := &cobra.Command{
		Use:   "set QUEUE",
		Short: "Change the limits of a queue",
		Long: `Change the limits of a queue. What no flag names stays as it is; 0 takes a limit away. Runs that are running go on, also if
they are more than a new limit.`,
		Example: "  " + a.o.name() + " queues set refund --max-running 10 --max-per-share 2\n  " + a.o.name() + " queues set crawl --rate 100/1m --burst 10",
		Args:    takes(1, "QUEUE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			changed := cmd.Flags().Changed
			if !changed("max-running") && !changed("max-per-share") && !changed("rate") && !changed("burst") {
				return usage(cmd, "nothing to set: give --max-running, --max-per-share, --rate or --burst")
			}
			if min(want.MaxRunning, want.MaxPerShare, want.Burst) < 0 {
				return usage(cmd, "a limit must not be negative: want 0 for none")
			}
			return a.with(cmd, look, func(ctx context.Context, s *session) error {
				q, err := s.queue(ctx, args[0])
				if err != nil {
					return err
				}
				to := q.Settings
				if changed("max-running") {
					to.MaxRunning = want.MaxRunning
				}
				if changed("max-per-share") {
					to.MaxPerShare = want.MaxPerShare
				}
				if changed("rate") {
					if to.Rate, to.Per = r.n, r.per; r.n == 0 {
						to.Burst = 0
					}
				}
				if changed("burst") {
					to.Burst = want.Burst
				}
				if err := s.SetQueue(ctx, args[0], to, who.act()); err != nil {
					return err
				}
				q.Settings = to
				return s.showQueue(q)
			})
		},
	}
	cmd.Flags().IntVar(&want.MaxRunning, "max-running", 0, "how many runs at once, over all processes")
	cmd.Flags().IntVar(&want.MaxPerShare, "max-per-share", 0, "how many of one share at once")
	cmd.Flags().Var(&r, "rate", "how many may begin in a time, like 100/1m; a number alone is for each second")
	cmd.Flags().IntVar(&want.Burst, "burst", 0, "how many of the rate at once after a pause (default all of it)")
	who.flags(cmd)
	return cmd
}

func (a *app) pauseCmd() *cobra.Command {
	var who person
	cmd := &cobra.Command{
		Use:   "pause QUEUE",
		Short: "Let no run of a queue begin or go on",
		Long: `Let no run of a queue begin or go on, until it is resumed. Runs that are running are not stopped. The pause holds for all
processes and over restarts.`,
		Example: "  " + a.o.name() + ` queues pause refund --reason "the provider is down"`,
		Args:    takes(1, "QUEUE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onQueue(cmd, args[0], func(ctx context.Context, s *session) error { return s.PauseQueue(ctx, args[0], who.act()) })
		},
	}
	who.flags(cmd)
	return cmd
}

func (a *app) unpauseCmd() *cobra.Command {
	var who person
	cmd := &cobra.Command{
		Use:     "resume QUEUE",
		Short:   "End the pause of a queue",
		Example: "  " + a.o.name() + ` queues resume refund --reason "the provider is back"`,
		Args:    takes(1, "QUEUE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onQueue(cmd, args[0], func(ctx context.Context, s *session) error { return s.ResumeQueue(ctx, args[0], who.act()) })
		},
	}
	who.flags(cmd)
	return cmd
}

// onQueue carries out an act and shows what the queue is then.
func (a *app) onQueue(cmd *cobra.Command, name string, act func(context.Context, *session) error) error {
	return a.with(cmd, look, func(ctx context.Context, s *session) error {
		if err := act(ctx, s); err != nil {
			return err
		}
		q, err := s.queue(ctx, name)
		if err != nil {
			return err
		}
		return s.showQueue(q)
	})
}
