package pawl

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
)

const (
	// lookAgain is how long after a claim that found too little the store is first asked when the next run is due.
	lookAgain = 5 * time.Millisecond
	// gather is how long a free slot waits for others while more is due than there are slots: a claim of many costs hardly more
	// than one of few, up to gatherMost or half of all slots. Where none came, as many as gatherAgain do not wait.
	gather      = 2 * time.Millisecond
	gatherMost  = 64
	gatherAgain = 16
)

// claims takes due runs while ctx lives. It is woken by starts in this process and, while more was due than there were
// slots, by their ends; otherwise it polls, also when another process hints. A poll only reads when the next run is due.
// Six times a lease, and when the lease of another worker is over, it looks for runs of lost workers too, which takes the write
// lock on SQLite.
func (w *worker) claims(ctx context.Context) {
	p := &pace{w: w, timer: time.NewTimer(0), fruitless: lookAgain}
	defer p.timer.Stop()
	search, searched := w.e.o.lease()/6, time.Time{}
	for {
		look, ok := p.wait(ctx)
		if !ok {
			return
		}
		// However often it is woken, it does not put off the search for lost workers.
		if left := min(search-time.Since(searched), w.untilLapse(search)); look && left > 0 {
			if next := w.nextDue(ctx); next > 0 {
				p.timer.Reset(min(next, left))
				continue
			}
		}
		searched = time.Now()
		w.lapsed()
		got, full, err := w.claimOnce(ctx)
		next := w.e.o.poll()
		switch {
		case err != nil:
			w.e.log.Log(ctx, failure(ctx), "claim failed", "worker", w.id.ID, "err", err)
		case full: // the end of a run wakes this loop
		case got > 0:
			next, p.fruitless = lookAgain, lookAgain
		default: // what is due and was not given is in other hands
			next = p.fruitless
			p.fruitless = min(2*p.fruitless, max(w.e.o.poll()/10, lookAgain))
		}
		p.timer.Reset(min(next, w.untilLapse(search)))
	}
}

// pace is when a worker claims.
type pace struct {
	w         *worker
	timer     *time.Timer
	fruitless time.Duration // how long to wait after a claim that got nothing
	gathers   bool          // a free slot waits for others
	hurry     int           // how many free slots are not to
}

// wait returns when there is reason to claim or, with look, only to see whether anything is due; false at the end of ctx.
func (p *pace) wait(ctx context.Context) (look, ok bool) {
	w := p.w
	for {
		look = false
		select {
		case <-ctx.Done():
			return false, false
		case <-p.timer.C:
			look = !p.gathers
		case <-w.heard:
			look = w.e.oneWriter() // elsewhere a claim that gets nothing costs no more than the look
		case <-w.e.wake:
			p.fruitless = lookAgain
		case <-w.freed:
			if w.isIdle() || p.gather() {
				continue
			}
		}
		switch {
		case p.gathers && w.vacant() <= 1:
			p.hurry = gatherAgain
		case p.hurry > 0:
			p.hurry--
		}
		p.gathers = false
		return look, true
	}
}

// gather reports whether a free slot waits for others.
func (p *pace) gather() bool {
	slots := p.w.e.o.slots()
	enough := max(slots/2, min(slots-slots/16, gatherMost))
	if p.hurry > 0 || p.w.vacant() >= enough {
		return false
	}
	if !p.gathers {
		p.gathers = true
		p.timer.Reset(gather)
	}
	return true
}

// untilLapse is how long it is until the lease of another worker is over, at most most.
func (w *worker) untilLapse(most time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lapse == 0 {
		return most
	}
	return min(most, max(0, w.lapse-w.boot()))
}

// lapsed takes note that runs of lost workers are looked for.
func (w *worker) lapsed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lapse > 0 && w.boot() >= w.lapse {
		w.lapse = 0
	}
}

// failure is how loudly something is to be said to have failed: a worker that stops breaks off what it does.
func failure(ctx context.Context) slog.Level {
	if ctx.Err() != nil {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// isIdle reports whether a free slot is of no use now, because nothing is due.
func (w *worker) isIdle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.idle
}

// vacant is how many slots are free.
func (w *worker) vacant() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.free()
}

// nextDue is how long a worker may sleep: until the next run is due, at most one poll. 0 or less means that one is due.
func (w *worker) nextDue(ctx context.Context) time.Duration {
	if due, ok, err := w.e.store.Due(ctx, w.id.ID); err == nil && ok {
		return min(w.e.o.poll(), due)
	}
	return w.e.o.poll()
}

// claimOnce fills the free slots. It reports how many runs it got and whether all slots are taken.
func (w *worker) claimOnce(ctx context.Context) (got int, full bool, err error) {
	w.mu.Lock()
	free := w.free()
	c := Claim{Worker: w.id.ID, Has: w.has, Limit: free, Token: rand.Int64(), Build: w.id.Build, Expired: w.boot() >= w.calm,
		Clock: w.clock + micro(w.boot()-w.clockAt), Suspect: w.suspect == ""}
	trusted := w.boot() < w.renewed+w.trust()
	w.idle = free > 0 && trusted // a start that comes meanwhile takes it back
	if w.idle {
		w.asked = free
	}
	w.mu.Unlock()
	if free <= 0 || !trusted {
		return 0, free <= 0, nil
	}
	if hooks.Broken(hooks.W13) {
		c.Clock = 0
	}
	if hooks.Broken(hooks.W14) {
		c.Token = 0
	}
	w.claiming.Add(1)
	runs, err := w.e.store.Claim(ctx, c)
	journals := w.readJournals(ctx, c.Token, runs)
	for i := range runs {
		w.begin(runs[i], journals[runs[i].Row.ID], nil)
	}
	w.claiming.Add(1)
	w.mu.Lock()
	w.asked = 0
	w.mu.Unlock()
	if err != nil { // it may have been committed: the next heartbeat finds such runs and releases them
		w.beatSoon()
	}
	if len(runs) == free || err != nil {
		w.busy()
	}
	return len(runs), len(runs) == free, err
}

// free is how many slots are, and are not asked for. A run whose body is done has left its slot, but of these no more count than
// there are slots, should ends not get through. The mutex is held.
func (w *worker) free() int {
	slots := w.e.o.slots()
	return slots - (len(w.live) - min(w.parting, slots)) - len(w.born) - w.asked
}

// parts notes that nothing of the run is left to do but to write its end.
func (w *worker) parts(x *execution) {
	w.mu.Lock()
	if w.live[x.row.ID] == x && !x.parting { // else it does not count any more
		x.parting = true
		w.parting++
	}
	w.mu.Unlock()
	w.free1()
}

// busy notes that runs may be due.
func (w *worker) busy() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.idle = false
}

// reserve makes a run that is about to be started this worker's own, if a slot is free and nothing older waits for it. The
// run begins with [worker.begin]; if it was not started, [worker.unreserve] gives the slot back.
func (w *worker) reserve(row *RunRow) (ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopping.Load() || !w.idle || w.free() <= 0 || w.boot() >= w.renewed+w.trust() {
		return false
	}
	row.State, row.Epoch, row.Token, row.Owner, row.Builds = Running, 1, rand.Int64(), w.id.ID, w.id.Build
	w.born[row.ID] = true
	w.crew.busy.Add(1) // so that the worker does not end before it is known what became of the start
	return true
}

// unreserve is for a run that was not begun. It may have been started all the same: then the next heartbeat finds it.
func (w *worker) unreserve(id RunID) {
	w.mu.Lock()
	delete(w.born, id)
	w.mu.Unlock()
	w.crew.busy.Done()
	w.beatSoon()
	w.free1()
}

// free1 wakes the claims, for a slot is free.
func (w *worker) free1() {
	select {
	case w.freed <- struct{}{}:
	default:
	}
}

// begin executes a claimed run in a goroutine of its own. Its journal may have been read already. h, unless it is nil, gets to
// know how that ended.
func (w *worker) begin(c Claimed, early *journal, h *here) {
	x := &execution{e: w.e, w: w, row: c.Row, from: c.From, lost: c.Owner, before: c.Before, slot: c.Slot, early: early, writing: newTurn()}
	x.hold, x.drop = context.WithCancelCause(w.hold)
	x.ctx, x.quit = context.WithCancelCause(x.hold)
	unhook := context.AfterFunc(w.life, func() { x.quit(context.Cause(w.life)) })
	if c.Row.CancelAt > 0 {
		x.quit(fault.ErrRunCanceled)
	}
	w.mu.Lock()
	old := w.live[c.Row.ID]
	if old != nil && old.parting { // it does not count any more
		old.parting = false
		w.parting--
	}
	w.live[c.Row.ID] = x
	born := w.born[c.Row.ID]
	delete(w.born, c.Row.ID)
	w.mu.Unlock()
	if old != nil && !old.ending.Load() {
		old.lose(fmt.Errorf("claimed again: %w", ErrLeaseLost))
	}
	x.def = w.e.defs[VersionID{c.Row.Workflow, c.Row.Version}]
	unwatch := x.watch()
	w.crew.do(func() {
		defer w.over(x, func() { unhook(); unwatch() }, h) // deferred, because the body may end the goroutine by Goexit
		x.run()
	})
	if born {
		w.crew.busy.Done()
	}
}

// over is the end of an execution.
func (w *worker) over(x *execution, unhook func(), h *here) {
	if p := recover(); p != nil { // nothing is said about the run
		panic(p) //nolint:forbidigo // the engine's own, passed on
	}
	w.unsuspect(w.hold, x.row.ID)
	if w.stopping.Load() { // it may have been released, for others to take
		w.e.hint(w.hold)
	}
	unhook()
	x.unhook()
	if h != nil {
		x.writing.take()
		h.final = x.final
		x.writing.leave()
	}
	w.mu.Lock()
	if w.live[x.row.ID] == x { // not a later claim of the same run
		delete(w.live, x.row.ID)
	}
	if x.parting {
		w.parting--
	}
	if h != nil { // at the same moment, so that nobody looks in the store for a run that has just ended here
		close(h.done)
	}
	w.mu.Unlock()
	x.drop(fault.ErrLeaseLost)
	if x.slot { // another run of its queue may begin, which was not due before
		w.busy()
	}
	w.free1()
}
