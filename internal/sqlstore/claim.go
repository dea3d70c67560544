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
// oldest of all, after their head start. Eight things are on purpose:
//
//   - The rows that are locked are found again through {anyof}, which stays a look-up for each; a join can flip to a scan of all runs.
//     {byid} does the same for SQLite, where {row} is the id. A row that was changed between the statement's snapshot and its lock is
//     somewhere else by then and not taken: the next claim finds it.
//   - The owners whose lease is over are found first, so that a claim with nobody expired is one probe of the workers.
//   - Parameters stand in a CAST or a sum: SQLite looks at a bare one when it plans, at its limit and for partial indexes, and plans the
//     statement anew for each value.
//   - Owners are believed to be lost only while the store's clock is where the worker expects it: a clock that has just
//     stepped expires every lease at once, before any heartbeat can have noticed.
//   - taken_state, taken_owner and taken_claimed get the old values, because RETURNING has only the new ones; the last one, for a
//     run that nobody had, gets when it was due.
//   - The statement itself looks whether a queue is free, so that a pause holds from its commit on, whatever this process
//     knows. A backlog that may not be touched is not read.
//   - An arm has a priority, and is read in the order of the index up to what is due: what is due later is not read.
//   - It may be read from where the last claim stopped, see [backlog].
const (
	claimHead = `WITH take AS MATERIALIZED (SELECT at FROM (`
	claimArm  = `SELECT id, due - CAST(%[4]s AS BIGINT) * 60000000 AS due, at FROM (SELECT id, due, {row} AS at FROM pawl_runs{bydue}
	WHERE workflow = CAST(%[1]s AS TEXT) AND version = CAST(%[2]s AS TEXT) AND queue = CAST(%[3]s AS TEXT) AND share = ''
		AND priority = CAST(%[4]s AS BIGINT) AND due <= {now}%[5]s%[7]s
		AND NOT EXISTS (SELECT 1 FROM pawl_queues AS q WHERE q.name = CAST(%[3]s AS TEXT) AND q.special)
	ORDER BY due, id LIMIT $3 + 0{skip}) AS a%[6]d`
	claimLost = `SELECT id, due, at FROM (SELECT id, claimed AS due, {row} AS at FROM pawl_runs{byowner}
	WHERE owner {anyof}SELECT w.id FROM pawl_workers w WHERE w.id <> $1 AND ` + expired + `{end}
		AND state = 'running' AND (%[1]s)%[2]s
		AND queue NOT IN (SELECT q.name FROM pawl_queues AS q WHERE q.paused_at IS NOT NULL)
		AND (CAST(%[3]s AS BIGINT) = 0 OR {now} BETWEEN CAST(%[3]s AS BIGINT) - 1000000 AND CAST(%[3]s AS BIGINT) + 1000000) ORDER BY claimed, id LIMIT $3 + 0{skip}) AS lost`
	claimTail = `) AS due ORDER BY due, id LIMIT $3 + 0)
` + claimSet + `
WHERE {row} {anyof}SELECT at FROM take{end}
` + claimGives

	claimSet = `UPDATE pawl_runs{byid} SET taken_state = state, taken_owner = owner, taken_claimed = coalesce(due, claimed), state = 'running',
	epoch = epoch + 1, token = $2, owner = $1,
	claimed = {now}, started = coalesce(started, {now}), due = NULL, builds = coalesce(builds, $4)`
	claimGives = `RETURNING ` + runColumns + `, input, taken_state, taken_owner, taken_claimed`

	notSuspect = ` AND lost < 2`
	notBefore  = ` AND due >= CAST(%s AS BIGINT)`
)

// claimShape is what the text of a claim depends on. There are few of them.
type claimShape struct {
	pairs   int
	ways    string // the position of each way's version, a rune each
	lost    bool   // also runs of lost owners
	suspect bool   // also suspect runs
	from    bool   // not what was due before a time
}

// claimText has parameters after the fourth: a workflow and a version each, then for each way its queue and priority, then the
// clock that the worker expects, or the time from which on.
func claimText(c claimShape) string {
	var b strings.Builder
	guard, from := notSuspect, ""
	if c.suspect {
		guard = ""
	}
	param := func(n int) string { return "$" + strconv.Itoa(n) }
	ways := []rune(c.ways)
	last := param(5 + 2*c.pairs + 2*len(ways))
	if c.from {
		from = fmt.Sprintf(notBefore, last)
	}
	b.WriteString(claimHead)
	for i, at := range ways {
		if i > 0 {
			b.WriteString("\nUNION ALL ")
		}
		version, queue := 5+2*int(at), 5+2*c.pairs+2*i
		fmt.Fprintf(&b, claimArm, param(version), param(version+1), param(queue), param(queue+1), guard, i, from)
	}
	if c.lost {
		b.WriteString("\nUNION ALL ")
		fmt.Fprintf(&b, claimLost, anyPair(c.pairs, 5), guard, last)
	}
	b.WriteString(claimTail)
	return b.String()
}

// claimText gives the text of each shape once.
func (s *Store) claimText(c claimShape) string {
	if text, ok := s.claims.Load(c); ok {
		return text.(string)
	}
	text := claimText(c)
	s.claims.Store(c, text)
	return text
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
	for i := range taken {
		if taken[i].From != pawl.Running {
			taken[i].Before = 0
		}
	}
	if err != nil {
		return taken, fmt.Errorf("claim runs: %w", err)
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
	args := make([]any, 0, 4*len(c.Has)+1)
	for _, v := range c.Has {
		args = append(args, v.Workflow, v.Version)
	}
	var ways []rune
	for i, v := range c.Has {
		ways = append(ways, rune(i))
		args = append(args, v.Workflow, int64(0))
		for _, w := range flows[v.Workflow].ways {
			ways = append(ways, rune(i))
			args = append(args, w.queue, w.priority)
		}
	}
	plain := len(ways) == len(c.Has) // else there are priorities, which count from the moment they are there
	if b := s.backlogOf(c); b != nil && plain {
		taken, err = s.claimOf(ctx, c, claimShape{pairs: 1, ways: "\x00", suspect: c.Suspect, from: true},
			[]any{b.version.Workflow, b.version.Version, b.version.Workflow, int64(0), b.due})
		if err != nil || len(taken) == c.Limit {
			s.keepBacklog(c.Worker, b.after(taken))
			return taken, err
		}
		c.Limit -= len(taken)
	}
	if c.Expired {
		args = append(args, c.Clock)
	}
	more, err := s.claimOf(ctx, c, claimShape{pairs: len(c.Has), ways: string(ways), lost: c.Expired, suspect: c.Suspect}, args)
	if plain && err == nil {
		s.keepBacklog(c.Worker, newBacklog(c, more))
	}
	return append(taken, more...), err
}

// claimOf is one such statement. args are its parameters after the fourth.
func (s *Store) claimOf(ctx context.Context, c pawl.Claim, shape claimShape, args []any) (taken []pawl.Claimed, err error) {
	query := s.claimText(shape)
	args = append([]any{string(c.Worker), c.Token, int64(c.Limit), str(c.Build)}, args...)
	if s.d.Send != nil {
		err = s.again(ctx, func() error {
			taken = nil
			return s.sent(ctx, func(ctx context.Context, conn *sql.Conn) error {
				return s.d.Send(ctx, conn, []Call{{s.texts.get(query), args, collect(&taken, claimedDest, min(c.Limit, 100))}})
			})
		})
	} else {
		err = s.Update(ctx, func(ctx context.Context, tx pawl.Txn) error {
			taken = nil
			if err := tx.(*txn).rows(ctx, query, args, collect(&taken, claimedDest, min(c.Limit, 100))); err != nil {
				return err
			}
			return s.keepClaims(tx.(*txn), taken)
		})
	}
	if err != nil {
		return nil, err
	}
	return taken, nil
}

// keepClaims keeps the fences in a transaction that has changed nothing but what it has taken.
func (s *Store) keepClaims(t *txn, taken []pawl.Claimed) error {
	d, ok := t.c.(*Direct)
	if !ok {
		return nil
	}
	if err := d.keepFences(s.turns); err != nil {
		return err
	}
	for i := range taken { // taken back with the claims, should they be undone
		d.fences.hold[taken[i].Row.ID] = fence{taken[i].Row.Epoch, taken[i].Row.Token}
	}
	return nil
}

// claimedDest leaves in Before, for a run that nobody had, when it was due.
func claimedDest(c *pawl.Claimed) []any {
	return append(runDest(&c.Row), zero(&c.Row.Input), zero(&c.From), zero(&c.Owner), zero(&c.Before))
}
