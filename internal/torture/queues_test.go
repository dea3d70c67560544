//go:build unix

package torture_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

// The queues with limits. Half of the jobs wait in the first one, a quarter in the other one.
const (
	narrow = "narrow"
	paced  = "paced"
)

var limits = map[string]pawl.QueueSettings{
	narrow: {MaxRunning: 4, MaxPerShare: 2},
	paced:  {Rate: 5, Burst: 2},
}

// The database itself notes each claim in these queues, by a trigger in the claim's transaction, with how many slots are
// used then: all claims of a queue with limits come one after the other, so that none is missed.
var noteClaims = map[string][]string{
	"sqlite": {createClaims, `CREATE TRIGGER torture_claim AFTER UPDATE OF owner ON pawl_runs
WHEN NEW.owner IS NOT NULL AND NEW.epoch <> OLD.epoch AND NEW.queue IN ('narrow', 'paced')
BEGIN INSERT INTO torture_claims ` + claimed + `; END`},
	"postgres": {createClaims, `CREATE FUNCTION torture_note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO torture_claims ` + claimed + `; RETURN NULL; END $$`,
		`CREATE TRIGGER torture_claim AFTER UPDATE OF owner ON pawl_runs FOR EACH ROW
WHEN (NEW.owner IS NOT NULL AND NEW.epoch <> OLD.epoch AND NEW.queue IN ('narrow', 'paced')) EXECUTE FUNCTION torture_note()`},
}

const (
	createClaims = `CREATE TABLE torture_claims (run TEXT, queue TEXT, share TEXT, claimed BIGINT, taken BOOLEAN, used BIGINT, used_share BIGINT)`
	claimed      = `SELECT CAST(NEW.id AS TEXT), NEW.queue, NEW.share, NEW.claimed, OLD.owner IS NOT NULL,
(SELECT count(*) FROM pawl_runs WHERE queue = NEW.queue AND owner IS NOT NULL),
(SELECT count(*) FROM pawl_runs WHERE queue = NEW.queue AND share = NEW.share AND owner IS NOT NULL)`
)

// setQueues sets the limits before anything begins: while a queue gets its first one, a run may begin unseen.
func (r *rig) setQueues(ctx context.Context) error {
	for _, query := range noteClaims[r.kind] {
		if err := run1(r.own(), query); err != nil {
			return err
		}
	}
	for name, s := range limits {
		if !r.parts.queues {
			break
		}
		if err := r.control.SetQueue(ctx, name, s, pawl.Act{By: "ops"}); err != nil {
			return err
		}
	}
	return nil
}

// where gives a job its place: a queue, a share in it, a priority; some have a deadline.
func (s *staff) where() (opts []pawl.StartOption) {
	switch n := s.rnd.IntN(4) % 3; {
	case n == 0 && s.parts.queues: // a share alone would make claims heed the queue
		opts = append(opts, pawl.Queue(narrow), pawl.Share(pawl.Key(fmt.Sprint("share:", s.rnd.IntN(4)))), pawl.Priority(s.rnd.IntN(2)))
	case n == 0:
		opts = append(opts, pawl.Queue(narrow), pawl.Priority(s.rnd.IntN(2)))
	case n == 1:
		opts = append(opts, pawl.Queue(paced))
	}
	if s.rnd.IntN(5) == 0 {
		opts = append(opts, pawl.Deadline(lease+upTo(s.rnd, 8*lease)))
	}
	return opts
}

// caller is a run that waits for another one, if there is any; else the given one.
func (s *staff) caller(ctx context.Context, id pawl.RunID) pawl.RunID {
	rows, err := s.own().QueryContext(ctx, `SELECT c.run FROM pawl_calls c JOIN pawl_runs r ON r.id = c.run WHERE r.state = 'waiting' LIMIT 10`)
	if err != nil {
		return id
	}
	defer rows.Close()
	var all []pawl.RunID
	for rows.Next() {
		var caller pawl.RunID
		if rows.Scan(&caller) == nil {
			all = append(all, caller)
		}
	}
	if rows.Err() != nil || len(all) == 0 {
		return id
	}
	s.ledger.callersCancelled.Add(1)
	return all[s.rnd.IntN(len(all))]
}

// ops pauses the queues for a while now and then, and looks that who waits holds no slot (A10).
type ops struct {
	*rig
	rnd    *rand.Rand
	quit   atomic.Bool
	pauses []pause
}

// pause is a time, by the store's clock, in which a queue was surely paused.
type pause struct {
	queue    string
	from, to time.Time
}

func newOps(r *rig, seed uint64) *ops { return &ops{rig: r, rnd: rand.New(rand.NewPCG(seed, 6))} }

// work is the day of ops. It ends with ctx, and leaves nothing paused when quit is set.
func (o *ops) work(ctx context.Context) {
	for next := time.Now(); ctx.Err() == nil; <-time.After(10 * tick) {
		o.look(ctx)
		if o.parts.queues && time.Now().After(next) && !o.quit.Load() {
			name := []string{narrow, paced}[o.rnd.IntN(2)]
			o.pause(ctx, name, upTo(o.rnd, lease))
			next = time.Now().Add(lease + upTo(o.rnd, 2*lease))
		}
	}
}

// pause pauses a queue for d, and until the database hears of its end.
func (o *ops) pause(ctx context.Context, name string, d time.Duration) {
	p := pause{queue: name}
	err := o.control.PauseQueue(ctx, name, pawl.Act{By: "ops", Reason: "a look"})
	if err == nil {
		o.ledger.pauses.Add(1)
		p.from, err = o.control.Now(ctx)
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	if err == nil {
		if p.to, err = o.control.Now(ctx); err == nil {
			o.pauses = append(o.pauses, p)
		}
	}
	for ctx.Err() == nil && o.control.ResumeQueue(ctx, name, pawl.Act{By: "ops"}) != nil {
		<-time.After(tick)
	}
}

// look finds runs that wait and hold a slot.
func (o *ops) look(ctx context.Context) {
	rows, err := o.own().QueryContext(ctx, `SELECT id, state FROM pawl_runs WHERE owner IS NOT NULL AND state <> 'running'`)
	if err != nil {
		return
	}
	defer rows.Close()
	for rows.Next() {
		var id pawl.RunID
		var state string
		if rows.Scan(&id, &state) == nil {
			o.violate(id, "the run is %s, and a worker holds it", state)
		}
	}
}

// claimNote is a row of torture_claims.
type claimNote struct {
	run              pawl.RunID
	queue, share     string
	at               int64
	taken            bool // from a worker that was lost
	used, usedShared int
}

// queues checks the limits of the queues.
func (a *audit) queues(ctx context.Context) error {
	if !a.parts.queues {
		return nil
	}
	rows, err := a.own().QueryContext(ctx, `SELECT run, queue, share, claimed, taken, used, used_share FROM torture_claims`)
	if err != nil {
		return err
	}
	defer rows.Close()
	byQueue := map[string][]claimNote{}
	for rows.Next() {
		var c claimNote
		if err := rows.Scan(&c.run, &c.queue, &c.share, &c.at, &c.taken, &c.used, &c.usedShared); err != nil {
			return err
		}
		byQueue[c.queue] = append(byQueue[c.queue], c)
	}
	for name, limit := range limits {
		for _, c := range byQueue[name] {
			a.claimed[name]++
			a.used[name] = max(a.used[name], c.used)
			if limit.MaxRunning > 0 && c.used > limit.MaxRunning || limit.MaxPerShare > 0 && c.usedShared > limit.MaxPerShare {
				a.violate(c.run, "a claim made %d runs of queue %s run at once, %d of share %q", c.used, name, c.usedShared, c.share)
			}
		}
		if !a.parts.clock {
			a.paused(byQueue[name])
			a.rate(name, limit, byQueue[name])
		}
	}
	a.served()
	return rows.Err()
}

// paused: nothing begins, and nothing is taken over, while the queue is paused.
func (a *audit) paused(notes []claimNote) {
	for _, c := range notes {
		for _, p := range a.pauses {
			if at := time.UnixMicro(c.at); c.queue == p.queue && at.After(p.from) && at.Before(p.to) {
				a.violate(c.run, "it was claimed at %v, while queue %s was paused, from %v to %v", at, p.queue, p.from, p.to)
			}
		}
	}
}

// rate: in no time of Per have more begun than Rate and Burst. A worker that was stopped inside its claim, between its look at
// the rate and its update, has begun late all that one claim may take, which is a Burst.
func (a *audit) rate(name string, limit pawl.QueueSettings, notes []claimNote) {
	if limit.Rate == 0 {
		return
	}
	begun := slices.DeleteFunc(slices.Clone(notes), func(c claimNote) bool { return c.taken })
	slices.SortFunc(begun, func(x, y claimNote) int { return cmp.Compare(x.at, y.at) })
	per := cmp.Or(limit.Per, time.Second).Microseconds()
	first := 0
	for i := range begun {
		for begun[i].at-begun[first].at >= per {
			first++
		}
		n := i - first + 1
		a.most[name] = max(a.most[name], n)
		if n > limit.Rate+2*limit.Burst {
			a.violate(begun[i].run, "with it %d runs of queue %s have begun in %v", n, name, time.Duration(per)*time.Microsecond)
			return
		}
	}
}

// served: what the world has seen at once of a queue's runs is within the limits too. A call counts until somebody else has
// claimed its run: what a worker does that has lost its lease while it was frozen is not bounded. On PostgreSQL all workers
// may have lost theirs, with the server, and be calling still: there it is only counted.
func (a *audit) served() {
	type change struct {
		at   time.Time
		run  pawl.RunID
		more int
	}
	narrowed := map[pawl.RunID]pawl.Key{}
	for _, d := range a.runs {
		if d.Queue == narrow {
			narrowed[d.ID] = d.Share
		}
	}
	var changes []change
	for _, c := range a.effects.calls {
		if _, ok := narrowed[c.run]; !ok {
			continue
		}
		to := c.to
		for _, at := range a.begun[c.run] {
			if at.After(c.from) && at.Before(to) {
				to = at
			}
		}
		changes = append(changes, change{c.from, c.run, 1}, change{to, c.run, -1})
	}
	slices.SortFunc(changes, func(x, y change) int { return cmp.Or(x.at.Compare(y.at), cmp.Compare(x.more, y.more)) })
	now := map[pawl.RunID]int{}
	for _, c := range changes {
		if now[c.run] += c.more; now[c.run] == 0 {
			delete(now, c.run)
		}
		shared := 0
		for id := range now {
			if narrowed[id] == narrowed[c.run] {
				shared++
			}
		}
		a.atOnce = max(a.atOnce, len(now))
		if l := limits[narrow]; a.kind == "sqlite" && c.more > 0 && (len(now) > l.MaxRunning || shared > l.MaxPerShare) {
			a.violate(c.run, "with it the world was asked by %d runs of queue %s at once, %d of share %q", len(now), narrow, shared, narrowed[c.run])
		}
	}
}

// families: the end of a caller that was cancelled cancels what it waited for; a run that failed by its deadline had passed it.
func (a *audit) families() {
	byID := map[pawl.RunID]*pawl.RunDetail{}
	for _, d := range a.runs {
		byID[d.ID] = d
	}
	for _, d := range a.runs {
		if !d.Deadline.IsZero() {
			a.limited++
		}
		if f := d.Fault; f != nil && f.Reason == fault.ReasonRunDeadline && !d.Deadline.IsZero() {
			a.missed++
			if early := d.Deadline.Sub(d.Ended); d.State == pawl.Failed && ownDeadline(f.Message) && early > time.Second && !a.parts.clock {
				a.violate(d.ID, "the run has failed by its deadline, %v before it", early)
			}
		}
		for _, c := range d.Children {
			child := byID[c.Run]
			if child == nil || d.State != pawl.Cancelled || c.Detached || c.Found {
				continue
			}
			// By a clock that was stepped between the two ends nobody can tell which came first.
			if a.orphaned++; !a.parts.clock && child.Ended.After(d.Ended) && !child.Cancel && child.State != pawl.Cancelled {
				a.violate(child.ID, "its caller %s was cancelled and ended before it, and it was not cancelled", d.ID)
			}
		}
	}
}

// ownDeadline tells a run's own deadline from that of a child, whose fault it may have.
func ownDeadline(message string) bool {
	const own = "the run's deadline passed"
	return len(message) >= len(own) && message[:len(own)] == own
}

// paceLine says how many have begun in a second, which cannot be told if the clock was set.
func (a *audit) paceLine() string {
	if a.parts.clock {
		return "at a pace not known"
	}
	return fmt.Sprintf("at most %d in a second (of %d)", a.most[paced], limits[paced].Rate+limits[paced].Burst)
}

// queueLine is the queues' and families' line of the table.
func (a *audit) queueLine() string {
	g := &a.ledger
	text := ""
	if a.parts.queues {
		text = fmt.Sprintf("%s: queue %s was claimed %d times, at most %d at once (of %d), as seen by the world %d; queue %s %d times, %s; %d pauses\n",
			a.kind, narrow, a.claimed[narrow], a.used[narrow], limits[narrow].MaxRunning, a.atOnce, paced, a.claimed[paced], a.paceLine(), g.pauses.Load())
	}
	return text + fmt.Sprintf("%s: %d runs had a deadline, %d missed it; %d cancels of callers, %d children of cancelled callers\n",
		a.kind, a.limited, a.missed, g.callersCancelled.Load(), a.orphaned)
}
