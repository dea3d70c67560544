package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlrun/pawl"
)

// scheduleFlags are what a schedule is, as flags.
type scheduleFlags struct {
	cron, zone, at           string
	every                    time.Duration
	starts, ends             string
	overlap, catchUp         string
	jitter, window, deadline time.Duration
	most, maxRuns, priority  int
	queue, version           string
}

func (f *scheduleFlags) table(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.cron, "cron", "", "cron expression: 5 fields, 6 with the seconds first, or @daily; needs --zone")
	cmd.Flags().StringVar(&f.zone, "zone", "", "IANA time zone of --cron, such as Europe/Berlin or UTC")
	cmd.Flags().DurationVar(&f.every, "every", 0, "at the multiples of this since 1970 in UTC, such as 10m")
	cmd.Flags().StringVar(&f.at, "at", "", "once, at this time (RFC 3339), or this long from now, such as 90m")
}

func (f *scheduleFlags) flags(cmd *cobra.Command) {
	f.table(cmd)
	cmd.Flags().StringVar(&f.starts, "starts", "", "no instant before this time (RFC 3339)")
	cmd.Flags().StringVar(&f.ends, "ends", "", "no instant after this time (RFC 3339)")
	cmd.Flags().DurationVar(&f.jitter, "jitter", 0, "put each instant off by less than this, always the same")
	cmd.Flags().StringVar(&f.overlap, "overlap", "", "while a run has not ended: skip (default), buffer_one, allow or cancel_previous")
	cmd.Flags().StringVar(&f.catchUp, "catch-up", "", "of what was due without a worker: latest (default), none or all")
	cmd.Flags().DurationVar(&f.window, "window", 0, "how old the latest may be to be caught up (default 24h)")
	cmd.Flags().IntVar(&f.most, "most", 0, "how many are caught up with --catch-up all")
	cmd.Flags().IntVar(&f.maxRuns, "max-runs", 0, "how many runs it starts before it is over")
	cmd.Flags().DurationVar(&f.deadline, "deadline", 0, "how long each run may take")
	cmd.Flags().StringVar(&f.queue, "queue", "", "where the runs wait (default the workflow's name)")
	cmd.Flags().IntVar(&f.priority, "priority", 0, "minutes of head start over other runs, -100 to 100")
}

// timetable is what the flags say, and whether they say anything.
func (f *scheduleFlags) timetable(cmd *cobra.Command) (t pawl.Timetable, given bool, err error) {
	n := 0
	for _, name := range []string{"cron", "every", "at"} {
		if cmd.Flags().Changed(name) {
			n++
		}
	}
	switch {
	case n > 1:
		return t, false, usage(cmd, "give one of --cron, --every and --at")
	case f.zone != "" && !cmd.Flags().Changed("cron"):
		return t, false, usage(cmd, "--zone belongs to --cron: intervals are in UTC")
	case n == 0:
		return t, false, nil
	case cmd.Flags().Changed("cron"):
		if f.zone == "" {
			return t, false, usage(cmd, "--cron needs --zone: an IANA name such as Europe/Berlin, or UTC")
		}
		t, err = pawl.ParseTimetable("cron " + f.cron + " in " + f.zone)
	case cmd.Flags().Changed("every"):
		t, err = pawl.ParseTimetable("every " + f.every.String())
	default:
		at, perr := parseAt(f.at)
		if perr != nil {
			return t, false, usage(cmd, "--at %s: want a time such as 2030-01-02T15:04:05Z, or a duration such as 90m", f.at)
		}
		t, err = pawl.ParseTimetable("at " + at.Format(time.RFC3339Nano))
	}
	if err != nil {
		return t, false, usage(cmd, "%w", err)
	}
	return t, true, nil
}

// apply puts what the flags say into a spec.
func (f *scheduleFlags) apply(cmd *cobra.Command, s *pawl.ScheduleSpec) error {
	table, given, err := f.timetable(cmd)
	if err != nil {
		return err
	}
	if given {
		s.When = table
	}
	for _, bound := range []struct {
		flag, text string
		to         *time.Time
	}{{"starts", f.starts, &s.Starts}, {"ends", f.ends, &s.Ends}} {
		if !cmd.Flags().Changed(bound.flag) {
			continue
		}
		*bound.to = time.Time{}
		if bound.text == "" {
			continue
		}
		if *bound.to, err = time.Parse(time.RFC3339, bound.text); err != nil {
			return usage(cmd, "--%s %s: want a time such as 2030-01-02T15:04:05Z", bound.flag, bound.text)
		}
	}
	for flag, set := range map[string]func(){
		"jitter": func() { s.Jitter = f.jitter }, "overlap": func() { s.Overlap = pawl.OverlapPolicy(f.overlap) },
		"catch-up": func() { s.CatchUp = pawl.CatchUpPolicy(f.catchUp) }, "window": func() { s.Window = f.window },
		"most": func() { s.CatchUpMost = f.most }, "max-runs": func() { s.MaxRuns = f.maxRuns }, "deadline": func() { s.Deadline = f.deadline },
		"queue": func() { s.Queue = f.queue }, "priority": func() { s.Priority = f.priority }, "version": func() { s.Version = f.version },
	} {
		if cmd.Flags().Changed(flag) {
			set()
		}
	}
	return nil
}

func (a *app) schedulesCreateCmd() *cobra.Command {
	var f scheduleFlags
	var who person
	cmd := &cobra.Command{
		Use:   "create SCHEDULE WORKFLOW [JSON | - | @FILE]",
		Short: "Make a schedule that starts runs of a workflow",
		Long: `Make a schedule that starts runs of one of this program's workflows. The JSON is the input of the runs; in its strings
{{at}}, {{date}} and {{time}} stand for the instant by the clock of the zone, {{unix}} for it in seconds, {{schedule}} for
the name. The runs are of the newest version that the worker has, unless --version pins one.`,
		Example: "  " + a.o.name() + ` schedules create nightly report '{"Day":"{{date}}"}' --cron '0 2 * * *' --zone Europe/Berlin`,
		Args:    takes(2, "SCHEDULE", "WORKFLOW", "JSON"),
		RunE: func(cmd *cobra.Command, args []string) error {
			def, err := a.workflow(args[1], f.version)
			if err != nil {
				return err
			}
			spec := pawl.ScheduleSpec{Name: args[0], Workflow: pawl.NameOf(def).Workflow}
			if err := f.apply(cmd, &spec); err != nil {
				return err
			}
			if spec.Input, err = a.input(cmd, args[2:]); err != nil {
				return err
			}
			if spec.When == (pawl.Timetable{}) {
				return usage(cmd, "when? give --cron and --zone, --every or --at")
			}
			if err := spec.Check(); err != nil {
				return usage(cmd, "%w", err)
			}
			return a.with(cmd, write, func(ctx context.Context, s *session) error {
				if err := s.CreateSchedule(ctx, spec, who.act()); err != nil {
					return badInput(cmd, err)
				}
				return s.showSchedule(ctx, args[0])
			})
		},
	}
	f.flags(cmd)
	cmd.Flags().StringVar(&f.version, "version", "", "version of the workflow (default the newest that the worker has)")
	who.flags(cmd)
	return cmd
}

func (a *app) schedulesEditCmd() *cobra.Command {
	var f scheduleFlags
	var who person
	cmd := &cobra.Command{
		Use:   "edit SCHEDULE",
		Short: "Change a schedule, from now on",
		Long: `Change a schedule, from now on: the next revision has no instants of the past. What no flag names stays as it is. A schedule
that code declares stays as it is edited, also if the code changes; delete it to have what code says.`,
		Example: "  " + a.o.name() + " schedules edit nightly --cron '0 4 * * *' --zone Europe/Berlin",
		Args:    takes(1, "SCHEDULE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var none pawl.ScheduleSpec
			if err := f.apply(cmd, &none); err != nil { // before the database is opened
				return err
			}
			return a.with(cmd, look, func(ctx context.Context, s *session) error {
				err := s.EditSchedule(ctx, args[0], func(spec *pawl.ScheduleSpec) error {
					if err := f.apply(cmd, spec); err != nil {
						return err
					}
					if err := spec.Check(); err != nil {
						return usage(cmd, "%w", err)
					}
					return nil
				}, who.act())
				if err != nil {
					return badInput(cmd, err)
				}
				return s.showSchedule(ctx, args[0])
			})
		},
	}
	f.flags(cmd)
	who.flags(cmd)
	return cmd
}

// onScheduleCmd is a command that does one thing to a schedule and shows it then.
func (a *app) onScheduleCmd(verb, short, why string, act func(*pawl.Engine, context.Context, string, pawl.Act) error) *cobra.Command {
	var who person
	cmd := &cobra.Command{
		Use:     verb + " SCHEDULE",
		Short:   short,
		Example: "  " + a.o.name() + " schedules " + verb + " nightly --reason " + why,
		Args:    takes(1, "SCHEDULE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd, look, func(ctx context.Context, s *session) error {
				if err := act(s.Engine, ctx, args[0], who.act()); err != nil {
					return err
				}
				return s.showSchedule(ctx, args[0])
			})
		},
	}
	who.flags(cmd)
	return cmd
}

func (a *app) schedulesDeleteCmd() *cobra.Command {
	var who person
	var yes bool
	cmd := &cobra.Command{
		Use:   "delete SCHEDULE",
		Short: "Delete a schedule; its runs and its ledger stay",
		Long: `Delete a schedule. Its runs go on and its ledger stays. What code declares comes back when a worker of that code starts:
pause it instead.`,
		Example: "  " + a.o.name() + " schedules delete nightly --yes",
		Args:    takes(1, "SCHEDULE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd, look, func(ctx context.Context, s *session) error {
				d, err := s.ShowSchedule(ctx, args[0])
				if err != nil {
					return err
				}
				if err := a.confirm(cmd, yes, fmt.Sprintf("Deletes schedule %s of %s (%s). Go on?", d.Name, d.Workflow, d.When)); err != nil {
					return err
				}
				if err := s.DeleteSchedule(ctx, args[0], who.act()); err != nil {
					return err
				}
				if d.Coded {
					a.note("code declares it: a worker of that code makes it again when it starts")
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	who.flags(cmd)
	return cmd
}

func (a *app) schedulesTriggerCmd() *cobra.Command {
	var who person
	var key, at string
	cmd := &cobra.Command{
		Use:   "trigger SCHEDULE",
		Short: "Let a schedule be due now",
		Long: `Let a schedule be due now, or at an instant of the past of which nothing is in the ledger yet. The overlap policy holds, a
pause does not. With --key, however often it is said, it is done once.`,
		Example: "  " + a.o.name() + " schedules trigger nightly --key ticket-4711",
		Args:    takes(1, "SCHEDULE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			t := pawl.Trigger{Act: who.act(), Key: key}
			if at != "" {
				var err error
				if t.At, err = time.Parse(time.RFC3339, at); err != nil {
					return usage(cmd, "--at %s: want a time such as 2030-01-02T15:04:05Z", at)
				}
			}
			return a.with(cmd, look, func(ctx context.Context, s *session) error {
				o, isNew, err := s.TriggerSchedule(ctx, args[0], t)
				if err != nil {
					return badInput(cmd, err)
				}
				if !isNew {
					a.note("this was decided before, %s", when(o.Decided))
				}
				if a.format != text {
					return a.printJSON(o)
				}
				return a.ledger([]pawl.Occurrence{o})
			})
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "the same key is one trigger")
	cmd.Flags().StringVar(&at, "at", "", "an instant of the past (RFC 3339; default now)")
	who.flags(cmd)
	return cmd
}

func (a *app) schedulesBackfillCmd() *cobra.Command {
	var who person
	var from, to string
	cmd := &cobra.Command{
		Use:   "backfill SCHEDULE --from TIME --to TIME",
		Short: "Start runs for instants that were missed or paused",
		Long: `Start runs for the instants from --from to --to, both included, that have none because they were missed or paused, or were
before the schedule was made. Those that were skipped stay so. The overlap policy does not hold: all are queued at once.`,
		Example: "  " + a.o.name() + " schedules backfill nightly --from 2026-03-01T00:00:00Z --to 2026-03-04T00:00:00Z",
		Args:    takes(1, "SCHEDULE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var bounds [2]time.Time
			for i, b := range []struct{ flag, text string }{{"from", from}, {"to", to}} {
				var err error
				if bounds[i], err = time.Parse(time.RFC3339, b.text); err != nil {
					return usage(cmd, "--%s %s: want a time such as 2030-01-02T15:04:05Z", b.flag, b.text)
				}
			}
			return a.with(cmd, look, func(ctx context.Context, s *session) error {
				all, err := s.BackfillSchedule(ctx, args[0], bounds[0], bounds[1], who.act())
				if err != nil {
					return badInput(cmd, err)
				}
				if a.format != text {
					return printList(a, all)
				}
				if len(all) == 0 {
					a.note("every instant in that time has a run or was skipped")
				}
				return a.ledger(all)
			})
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "the first instant (RFC 3339)")
	cmd.Flags().StringVar(&to, "to", "", "the last instant (RFC 3339)")
	who.flags(cmd)
	return cmd
}
