package cli

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // time zones are known wherever the binary runs

	"github.com/spf13/cobra"

	"github.com/pawlrun/pawl"
)

func (a *app) schedulesCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "schedules",
		Aliases: []string{"schedule"},
		Short:   "List schedules, make one, pause one, see what became of its instants",
		Long: `List schedules, make one, pause one, see what became of its instants. Workers start the runs; any number of them, and none
of them is special. Each instant has a line in the ledger: the run that was started, or why there is none.`,
		Args: cobra.ArbitraryArgs, // an unknown command is reported by RunE
		RunE: group,
	}
	cmd.AddCommand(a.schedulesListCmd(), a.schedulesShowCmd(), a.schedulesLedgerCmd(), a.schedulesNextCmd(), a.schedulesCreateCmd(), a.schedulesEditCmd(),
		a.onScheduleCmd("pause", "Let a schedule start no runs until it is resumed", `"the customer asked"`, (*pawl.Engine).PauseSchedule),
		a.onScheduleCmd("resume", "End the pause of a schedule; what was due meanwhile is not caught up", `"it is over"`, (*pawl.Engine).ResumeSchedule),
		a.schedulesTriggerCmd(), a.schedulesBackfillCmd(), a.schedulesDeleteCmd())
	return cmd
}

func (a *app) schedulesListCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List schedules",
		Example: "  " + a.o.name() + " schedules list",
		Args:    takes(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd, look, func(ctx context.Context, s *session) error {
				var all []pawl.ScheduleInfo
				for after := pawl.Cursor(""); ; {
					page, next, err := s.Schedules(ctx, after, 1000)
					if err != nil {
						return err
					}
					all = append(all, page...)
					if after = next; next == "" {
						break
					}
				}
				if a.format != text {
					return printList(a, all)
				}
				if len(all) == 0 {
					a.note("there is no schedule; a program declares its own, or see %s", a.command("schedules create --help"))
					return nil
				}
				t := newTable("SCHEDULE", "WORKFLOW", "WHEN", "NEXT", "NOTE")
				for i := range all {
					t.row(all[i].Name, all[i].Workflow, all[i].When.String(), cmp.Or(when(all[i].Next), "-"), scheduleNote(&all[i]))
				}
				return a.columns(t, "")
			})
		},
	}
}

func scheduleNote(s *pawl.ScheduleInfo) string {
	var notes []string
	if !s.Paused.IsZero() {
		notes = append(notes, "PAUSED by "+s.PausedBy+" "+when(s.Paused)+strings.TrimSuffix(": "+s.PausedWhy, ": "))
	}
	if s.Next.IsZero() {
		notes = append(notes, "over")
	}
	if s.Streak > 0 {
		notes = append(notes, "no run for "+count(s.Streak, "instant", "instants"))
	}
	if !s.Buffered.IsZero() {
		notes = append(notes, when(s.Buffered)+" waits for run "+string(s.Waits))
	}
	if s.Edited {
		notes = append(notes, "edited")
	}
	return strings.Join(notes, ", ")
}

func (a *app) schedulesShowCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "show SCHEDULE",
		Short:   "Show a schedule with its next ten instants and its last ten",
		Example: "  " + a.o.name() + " schedules show nightly",
		Args:    takes(1, "SCHEDULE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd, look, func(ctx context.Context, s *session) error { return s.showSchedule(ctx, args[0]) })
		},
	}
}

func (s *session) showSchedule(ctx context.Context, name string) error {
	a := s.a
	d, err := s.ShowSchedule(ctx, name)
	if err != nil {
		return err
	}
	if a.format != text {
		return a.printJSON(d)
	}
	t := newTable()
	t.fact("schedule", d.Name)
	t.fact("workflow", strings.TrimSpace(d.Workflow+" "+d.Version))
	t.fact("when", d.When.String())
	t.fact("starts", when(d.Starts))
	t.fact("ends", when(d.Ends))
	t.fact("jitter", span(d.Jitter))
	t.fact("overlap", string(cmp.Or(d.Overlap, pawl.OverlapSkip)))
	t.fact("catch-up", catchUp(&d.ScheduleSpec))
	if d.MaxRuns > 0 {
		t.fact("runs", fmt.Sprintf("%d of %d", d.Started, d.MaxRuns))
	}
	t.fact("deadline", span(d.Deadline))
	t.fact("queue", d.Queue)
	t.fact("input", compact([]byte(d.Template), 200))
	t.fact("revision", strconv.Itoa(d.Revision)+", "+when(d.Changed))
	t.fact("note", scheduleNote(&d.ScheduleInfo))
	if err := a.columns(t, ""); err != nil {
		return err
	}
	if err := a.instants(d.Upcoming, d.When.Location()); err != nil {
		return err
	}
	return a.ledger(d.Ledger)
}

func catchUp(s *pawl.ScheduleSpec) string {
	switch s.CatchUp {
	case pawl.CatchUpNone:
		return "none"
	case pawl.CatchUpAll:
		return fmt.Sprintf("all up to %d", s.CatchUpMost)
	case pawl.CatchUpLatest:
	}
	return "latest within " + span(cmp.Or(s.Window, 24*time.Hour))
}

// instants prints what is to come, by the clock of the zone and in UTC.
func (a *app) instants(all []time.Time, zone *time.Location) error {
	if len(all) == 0 {
		a.note("no instant is left")
		return nil
	}
	t := newTable("NEXT, UTC", strings.ToUpper("in "+zone.String()))
	for _, at := range all {
		t.row(when(at), at.In(zone).Format("Mon 2006-01-02 15:04:05 -07:00"))
	}
	return a.columns(t, "")
}

// ledger prints what became of instants.
func (a *app) ledger(all []pawl.Occurrence) error {
	if len(all) == 0 {
		return nil
	}
	t := newTable("INSTANT", "STATE", "RUN", "LATE", "NOTE")
	for i := range all {
		o := &all[i]
		note := o.Reason
		if o.Other != "" {
			note += " by run " + string(o.Other)
		}
		if !o.Until.IsZero() {
			note += fmt.Sprintf(", %d instants up to %s", o.Count, when(o.Until))
		}
		if o.By != "" {
			note += ", " + o.By
		}
		t.row(when(o.At), string(o.State), cmp.Or(string(o.Run), "-"), cmp.Or(o.Late, "-"), strings.TrimPrefix(strings.TrimSpace(note), ", "))
	}
	return a.columns(t, "")
}

func (a *app) schedulesLedgerCmd() *cobra.Command {
	var limit int
	var after string
	cmd := &cobra.Command{
		Use:   "ledger SCHEDULE",
		Short: "List what became of a schedule's instants, newest first",
		Long: `List what became of a schedule's instants, newest first: the run that was started, or why there is none. That of a deleted
schedule is there too.`,
		Example: "  " + a.o.name() + " schedules ledger nightly --limit 100 -o jsonl",
		Args:    takes(1, "SCHEDULE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 1 || limit > 1000 {
				return usage(cmd, "--limit is %d: want 1 to 1000", limit)
			}
			return a.with(cmd, look, func(ctx context.Context, s *session) error {
				all, next, err := s.Occurrences(ctx, args[0], pawl.Cursor(after), limit)
				if err != nil {
					return err
				}
				if next != "" {
					defer a.note("more with --after %s", next)
				}
				if a.format != text {
					return printList(a, all)
				}
				if len(all) == 0 {
					a.note("nothing has become due of a schedule %q", args[0])
				}
				return a.ledger(all)
			})
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 100, "how many")
	cmd.Flags().StringVar(&after, "after", "", "where a former page ended")
	return cmd
}

func (a *app) schedulesNextCmd() *cobra.Command {
	var f scheduleFlags
	var n int
	var after string
	cmd := &cobra.Command{
		Use:   "next [SCHEDULE]",
		Short: "Print the next instants of a schedule, or of a timetable",
		Long: `Print the next instants of a schedule, by the clock of its zone and in UTC. With --cron and --zone, or --every, no schedule
and no database is needed.`,
		Example: "  " + a.o.name() + " schedules next nightly\n  " + a.o.name() + " schedules next --cron '30 2 * * *' --zone Europe/Berlin --after 2026-03-28T00:00:00Z -n 3",
		Args:    takes(0, "SCHEDULE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			from := time.Now()
			if after != "" {
				var err error
				if from, err = parseAt(after); err != nil {
					return usage(cmd, "--after %s: want a time such as 2030-01-02T15:04:05Z, or a duration such as 90m", after)
				}
			}
			if n < 1 || n > 1000 {
				return usage(cmd, "-n is %d: want 1 to 1000", n)
			}
			table, given, err := f.timetable(cmd)
			switch {
			case err != nil:
				return err
			case given == (len(args) == 1):
				return usage(cmd, "give a SCHEDULE, or a timetable with --cron and --zone, --every or --at")
			case given:
				return a.printInstants((&pawl.ScheduleSpec{When: table}).Instants(from, n), table.Location())
			}
			return a.with(cmd, look, func(ctx context.Context, s *session) error {
				d, err := s.ShowSchedule(ctx, args[0])
				if err != nil {
					return err
				}
				return a.printInstants(d.Instants(from, n), d.When.Location())
			})
		},
	}
	f.table(cmd)
	cmd.Flags().IntVarP(&n, "count", "n", 10, "how many")
	cmd.Flags().StringVar(&after, "after", "", "after this time (RFC 3339), or this long from now (default now)")
	return cmd
}

func (a *app) printInstants(all []time.Time, zone *time.Location) error {
	if a.format != text {
		return printList(a, all)
	}
	return a.instants(all, zone)
}
