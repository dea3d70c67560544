package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlrun/pawl"
)

// pruneCounted is how many lineages are counted before anything is deleted.
const pruneCounted = 10_000

func (a *app) pruneCmd() *cobra.Command {
	var who person
	var olderThan time.Duration
	var planOnly, yes bool
	cmd := &cobra.Command{
		Use:   "prune --older-than DURATION",
		Short: "Delete finished runs for good",
		Long: `Delete, for good, each lineage (a run with its retries and forks) whose runs have all been finished for longer than
--older-than, with its journal. A lineage with an open question stays. Deleted runs cannot be looked at or retried any
more. Their product keys stay taken for 400 days after the end, so that nothing is started again by accident; acts of
people are kept for three years.

It is shown first how many there are. You are asked whether to go on, or say --yes. Workers do the same by themselves
with work --retention DURATION. Everything goes on meanwhile.`,
		Example: "  " + a.o.name() + " prune --older-than 720h --plan\n  " + a.o.name() + " prune --older-than 720h --yes --reason 'the disk is full'",
		Args:    takes(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case olderThan < time.Hour:
				return usage(cmd, "--older-than is %v: want 1h or more, like 720h", olderThan)
			case planOnly && yes:
				return usage(cmd, "--plan only shows, --yes carries out: give one of them")
			}
			return a.with(cmd, look, func(ctx context.Context, s *session) error {
				if err := s.showPrunable(ctx, olderThan, planOnly); err != nil || planOnly {
					return err
				}
				if err := a.confirm(cmd, yes, "They cannot be brought back. Delete them?"); err != nil {
					return err
				}
				return s.prune(ctx, olderThan, who.act())
			})
		},
	}
	cmd.Flags().DurationVar(&olderThan, "older-than", 0, "how long ago a lineage's last run ended at least, like 720h; 1h or more")
	cmd.Flags().BoolVar(&planOnly, "plan", false, "only show how many there are")
	cmd.Flags().BoolVar(&yes, "yes", false, "delete without asking")
	who.flags(cmd)
	return cmd
}

// pruned is a [pawl.Pruned] as JSON.
type pruned struct {
	Lineages int  `json:"lineages"`
	Runs     int  `json:"runs"`
	Keys     int  `json:"keys_forgotten"`
	Acts     int  `json:"acts_forgotten"`
	More     bool `json:"more,omitempty"` // of a plan: there are more than were counted
}

func (s *session) showPrunable(ctx context.Context, olderThan time.Duration, planOnly bool) error {
	sum, err := s.Prunable(ctx, olderThan, pruneCounted)
	if err != nil {
		return err
	}
	if s.a.format != text {
		if !planOnly {
			return nil
		}
		return s.a.printJSON(pruned{Lineages: sum.Lineages, Runs: sum.Runs, More: sum.More})
	}
	least := ""
	if sum.More {
		least = "at least "
	}
	return s.a.say("older than %v and finished: %s%s with %s", olderThan, least, count(sum.Lineages, "lineage", "lineages"), count(sum.Runs, "run", "runs"))
}

func (s *session) prune(ctx context.Context, olderThan time.Duration, act pawl.Act) error {
	told, now := 0, 0
	sum, err := s.Prune(ctx, olderThan, act, func(p pawl.Pruned) {
		if now += p.Lineages; now-told >= 1000 {
			s.a.note("%d lineages deleted", now)
			told = now
		}
	})
	if err != nil {
		return &failure{codeOf(err), fmt.Errorf("after %s: %w", count(sum.Lineages, "lineage", "lineages"), err), "repeat the command: what is done stays done"}
	}
	if s.a.format != text {
		return s.a.printJSON(pruned{Lineages: sum.Lineages, Runs: sum.Runs, Keys: sum.Keys, Acts: sum.Acts})
	}
	return s.a.say("deleted %s with %s; forgot %s and %s of people", count(sum.Lineages, "lineage", "lineages"), count(sum.Runs, "run", "runs"),
		count(sum.Keys, "product key", "product keys"), count(sum.Acts, "act", "acts"))
}
