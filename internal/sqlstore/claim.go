package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"

	"github.com/pawlrun/pawl"
)

// The claim is one statement: every arm takes the due runs of one workflow version from pawl_runs_claim, the last one
// those of expired owners from pawl_runs_owner, and the update takes the oldest of all. Five things are on purpose:
//
//   - The ids come through {anyof}, which stays a look-up by primary key; a join can flip to a scan of all runs. {byid} does
//     the same for SQLite.
//   - The owners whose lease is over are found first, so that a claim with nobody expired is one probe of the workers.
//   - Parameters stand in a CAST or a sum: SQLite looks at a bare one when it plans, at its limit and for partial indexes, and plans the
//     statement anew for each value.
//   - Owners are believed to be lost only while the store's clock is where the worker expects it: a clock that has just
//     stepped expires every lease at once, before any heartbeat can have noticed.
//   - taken_state, taken_owner and taken_claimed get the old values, because RETURNING has only the new ones.
const (
	claimHead = `WITH take AS MATERIALIZED (SELECT id FROM (`
	claimArm  = `SELECT id, due FROM (SELECT id, due FROM pawl_runs{bydue}
	WHERE workflow = %s AND version = %s AND due <= {now}%s ORDER BY due, id LIMIT $3 + 0{skip}) AS a%d`
	claimLost = `SELECT id, due FROM (SELECT id, claimed AS due FROM pawl_runs{byowner}
	WHERE owner {anyof}SELECT w.id FROM pawl_workers w WHERE w.id <> $1 AND ` + expired + `{end}
		AND state = 'running' AND (%[1]s)%[2]s
		AND (CAST(%[3]s AS BIGINT) = 0 OR {now} BETWEEN CAST(%[3]s AS BIGINT) - 1000000 AND CAST(%[3]s AS BIGINT) + 1000000) ORDER BY claimed, id LIMIT $3 + 0{skip}) AS lost`
	claimTail = `) AS due ORDER BY due, id LIMIT $3 + 0)
UPDATE pawl_runs{byid} SET taken_state = state, taken_owner = owner, taken_claimed = claimed, state = 'running',
	epoch = epoch + 1, token = $2, owner = $1,
	claimed = {now}, started = coalesce(started, {now}), due = NULL, builds = coalesce(builds, $4)
WHERE id {anyof}SELECT id FROM take{end}
RETURNING ` + runColumns + `, input, taken_state, taken_owner, taken_claimed`

	notSuspect = ` AND lost < 2`
)

// claimText depends on how many versions there are and on what may be taken, so there are few of them.
func claimText(pairs int, lost, suspect bool) string {
	var b strings.Builder
	guard := notSuspect
	if suspect {
		guard = ""
	}
	b.WriteString(claimHead)
	var any []string
	for i := range pairs {
		workflow, version := fmt.Sprintf("CAST($%d AS TEXT)", 5+2*i), fmt.Sprintf("CAST($%d AS TEXT)", 6+2*i)
		if i > 0 {
			b.WriteString("\nUNION ALL ")
		}
		fmt.Fprintf(&b, claimArm, workflow, version, guard, i)
		any = append(any, "workflow = "+workflow+" AND version = "+version)
	}
	if lost {
		b.WriteString("\nUNION ALL ")
		fmt.Fprintf(&b, claimLost, strings.Join(any, " OR "), guard, "$"+strconv.Itoa(5+2*pairs))
	}
	b.WriteString(claimTail)
	return b.String()
}

// Claim takes runs for the worker.
func (s *Store) Claim(ctx context.Context, c pawl.Claim) ([]pawl.Claimed, error) {
	if len(c.Has) == 0 || c.Limit <= 0 {
		return nil, nil
	}
	args := []any{string(c.Worker), c.Token, int64(c.Limit), str(c.Build)}
	for _, v := range c.Has {
		args = append(args, v.Workflow, v.Version)
	}
	if c.Expired {
		args = append(args, c.Clock)
	}
	query := claimText(len(c.Has), c.Expired, c.Suspect)
	var taken []pawl.Claimed
	take := func(rows pawl.Rows) error {
		if taken == nil { // the rows are large, and would be moved as more come
			taken = make([]pawl.Claimed, 0, min(c.Limit, 100))
		}
		taken = append(taken, pawl.Claimed{})
		return scanClaimed(rows, &taken[len(taken)-1])
	}
	var err error
	if s.d.Send != nil {
		err = s.again(ctx, func() error {
			taken = nil
			return s.sent(ctx, func(ctx context.Context, conn *sql.Conn) error {
				return s.d.Send(ctx, conn, []Call{{s.texts.get(query), args, take}})
			})
		})
	} else {
		err = s.Update(ctx, func(ctx context.Context, tx pawl.Txn) error {
			taken = nil
			return tx.(*txn).rows(ctx, query, args, take)
		})
	}
	if err != nil {
		return nil, fmt.Errorf("claim runs: %w", err)
	}
	return taken, nil
}

func scanClaimed(rows pawl.Rows, c *pawl.Claimed) error {
	err := rows.Scan(append(runDest(&c.Row), zero(&c.Row.Input), zero(&c.From), zero(&c.Owner), zero(&c.Before))...)
	if c.From != pawl.Running {
		c.Before = 0
	}
	return err
}
