package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"

	"github.com/pawlrun/pawl"
)

// The claim is one statement, unless a queue has something to heed: every arm takes the due runs of one workflow version, queue
// and priority from pawl_runs_claim, the last one those of expired owners from pawl_runs_owner, and the update takes the
// oldest of all, after their head start. Seven things are on purpose:
//
//   - The ids come through {anyof}, which stays a look-up by primary key; a join can flip to a scan of all runs. {byid} does
//     the same for SQLite.
//   - The owners whose lease is over are found first, so that a claim with nobody expired is one probe of the workers.
//   - Parameters stand in a CAST or a sum: SQLite looks at a bare one when it plans, at its limit and for partial indexes, and plans the
//     statement anew for each value.
//   - Owners are believed to be lost only while the store's clock is where the worker expects it: a clock that has just
//     stepped expires every lease at once, before any heartbeat can have noticed.
//   - taken_state, taken_owner and taken_claimed get the old values, because RETURNING has only the new ones.
//   - The statement itself looks whether a queue is free, so that a pause holds from its commit on, whatever this process
//     knows. A backlog that may not be touched is not read.
//   - An arm has a priority, and is read in the order of the index up to what is due: what is due later is not read.
const (
	claimHead = `WITH take AS MATERIALIZED (SELECT id FROM (`
	claimArm  = `SELECT id, due - CAST(%[4]s AS BIGINT) * 60000000 AS due FROM (SELECT id, due FROM pawl_runs{bydue}
	WHERE workflow = CAST(%[1]s AS TEXT) AND version = CAST(%[2]s AS TEXT) AND queue = CAST(%[3]s AS TEXT) AND share = ''
		AND priority = CAST(%[4]s AS BIGINT) AND due <= {now}%[5]s
		AND NOT EXISTS (SELECT 1 FROM pawl_queues AS q WHERE q.name = CAST(%[3]s AS TEXT) AND q.special)
	ORDER BY due, id LIMIT $3 + 0{skip}) AS a%[6]d`
	claimLost = `SELECT id, due FROM (SELECT id, claimed AS due FROM pawl_runs{byowner}
	WHERE owner {anyof}SELECT w.id FROM pawl_workers w WHERE w.id <> $1 AND ` + expired + `{end}
		AND state = 'running' AND (%[1]s)%[2]s
		AND queue NOT IN (SELECT q.name FROM pawl_queues AS q WHERE q.paused_at IS NOT NULL)
		AND (CAST(%[3]s AS BIGINT) = 0 OR {now} BETWEEN CAST(%[3]s AS BIGINT) - 1000000 AND CAST(%[3]s AS BIGINT) + 1000000) ORDER BY claimed, id LIMIT $3 + 0{skip}) AS lost`
	claimTail = `) AS due ORDER BY due, id LIMIT $3 + 0)
` + claimSet + `
WHERE id {anyof}SELECT id FROM take{end}
` + claimGives

	claimSet = `UPDATE pawl_runs{byid} SET taken_state = state, taken_owner = owner, taken_claimed = claimed, state = 'running',
	epoch = epoch + 1, token = $2, owner = $1,
	claimed = {now}, started = coalesce(started, {now}), due = NULL, builds = coalesce(builds, $4)`
	claimGives = `RETURNING ` + runColumns + `, input, taken_state, taken_owner, taken_claimed`

	notSuspect = ` AND lost < 2`
)

// claimText depends on how many versions and ways there are and on what may be taken, so there are few of them. The
// parameters after the fourth are a workflow and a version each, then for each way its queue and priority. ways has the
// position of each way's version.
func claimText(pairs int, ways []int, lost, suspect bool) string {
	var b strings.Builder
	guard := notSuspect
	if suspect {
		guard = ""
	}
	param := func(n int) string { return "$" + strconv.Itoa(n) }
	b.WriteString(claimHead)
	for i, at := range ways {
		if i > 0 {
			b.WriteString("\nUNION ALL ")
		}
		fmt.Fprintf(&b, claimArm, param(5+2*at), param(6+2*at), param(5+2*pairs+2*i), param(6+2*pairs+2*i), guard, i)
	}
	if lost {
		b.WriteString("\nUNION ALL ")
		fmt.Fprintf(&b, claimLost, anyPair(pairs, 5), guard, param(5+2*pairs+2*len(ways)))
	}
	b.WriteString(claimTail)
	return b.String()
}

// anyPair is the condition that a run is of one of the versions, whose parameters begin at from.
func anyPair(pairs, from int) string {
	var all []string
	for i := range pairs {
		all = append(all, fmt.Sprintf("workflow = CAST($%d AS TEXT) AND version = CAST($%d AS TEXT)", from+2*i, from+2*i+1))
	}
	return strings.Join(all, " OR ")
}

// Claim takes runs for the worker.
func (s *Store) Claim(ctx context.Context, c pawl.Claim) ([]pawl.Claimed, error) {
	if len(c.Has) == 0 || c.Limit <= 0 {
		return nil, nil
	}
	flows, err := s.flowsOf(ctx, c.Has)
	if err != nil {
		return nil, fmt.Errorf("claim runs: %w", err)
	}
	var taken []pawl.Claimed
	if isSpecial(flows) {
		taken, err = s.claimHeeding(ctx, c)
	} else {
		taken, err = s.claimFreely(ctx, c, flows)
	}
	if err != nil {
		return nil, fmt.Errorf("claim runs: %w", err)
	}
	return taken, nil
}

func isSpecial(flows map[string]flow) bool {
	for _, f := range flows {
		if f.special {
			return true
		}
	}
	return false
}

// claimFreely is the claim where no queue has anything to heed, as far as this process knows. It leaves those alone that have.
func (s *Store) claimFreely(ctx context.Context, c pawl.Claim, flows map[string]flow) (taken []pawl.Claimed, err error) {
	args := []any{string(c.Worker), c.Token, int64(c.Limit), str(c.Build)}
	for _, v := range c.Has {
		args = append(args, v.Workflow, v.Version)
	}
	var ways []int
	for i, v := range c.Has {
		ways = append(ways, i)
		args = append(args, v.Workflow, int64(0))
		for _, w := range flows[v.Workflow].ways {
			ways = append(ways, i)
			args = append(args, w.queue, w.priority)
		}
	}
	if c.Expired {
		args = append(args, c.Clock)
	}
	query := claimText(len(c.Has), ways, c.Expired, c.Suspect)
	take := func(rows pawl.Rows) error {
		if taken == nil { // the rows are large, and would be moved as more come
			taken = make([]pawl.Claimed, 0, min(c.Limit, 100))
		}
		taken = append(taken, pawl.Claimed{})
		return scanClaimed(rows, &taken[len(taken)-1])
	}
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
	return taken, err
}

func scanClaimed(rows pawl.Rows, c *pawl.Claimed) error {
	err := rows.Scan(append(runDest(&c.Row), zero(&c.Row.Input), zero(&c.From), zero(&c.Owner), zero(&c.Before))...)
	if c.From != pawl.Running {
		c.Before = 0
	}
	return err
}
