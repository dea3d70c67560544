package pawl

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/host"
)

// worker is one call of [Engine.Work].
type worker struct {
	e     *Engine
	id    WorkerRow
	has   []VersionID
	space string

	stopping atomic.Bool   // begin no step any more; set under the engine's mutex
	freed    chan struct{} // capacity 1: a slot is free again
	beat     chan struct{} // capacity 1: renew now
	heard    chan struct{} // capacity 1: a hint of another process
	claiming atomic.Int64  // claims sent; odd while one is in flight
	wg       sync.WaitGroup
	cleanup  sync.WaitGroup  // evidence on its way …
	reports  context.Context // … and how long that is tried
	pruned   RunID           // where the next look for old lineages begins; its loop's own
	hold     context.Context // of all executions, see there …
	life     context.Context // … likewise

	mu      sync.Mutex // guards all below
	live    map[RunID]*execution
	born    map[RunID]bool // runs on their way that are started as this worker's
	idle    bool           // the last claim found nothing more, and nothing has been said to be due since
	suspect RunID          // the suspect run this process executes
	renewed time.Duration  // boot clock when the last good renewal was sent
	clock   int64          // the store's clock at that renewal …
	clockAt time.Duration  // … and the boot clock when its answer came
	server  string
	calm    time.Duration // boot clock before which expired leases are left alone
}

// ErrAbandoned is what Work returns if steps did not end although their contexts had been cancelled. Their runs are
// left to the expiry of the lease.
var ErrAbandoned = errors.New("steps were still running when the worker stopped")

// Work claims runs and executes them until ctx ends. It renews the worker's lease meanwhile. Then it claims nothing
// more, lets running steps finish for Options.Drain, cancels what is left, releases the runs without spending an
// attempt, and returns nil when its goroutines are gone, or [ErrAbandoned]. Trouble with the database is waited out;
// an error before the worker is registered is returned at once.
func (e *Engine) Work(ctx context.Context) error {
	if len(e.defs) == 0 {
		return errors.New("pawl: Work without definitions: pass the workflows to New")
	}
	w, err := newWork(ctx, e)
	if err != nil {
		return err
	}
	e.log.Info("worker started", "worker", w.id.ID, "build", w.id.Build, "slots", e.o.slots(), "lease", e.o.lease(), "retention", e.o.Retention)
	base := context.WithoutCancel(ctx)
	hold, drop := context.WithCancelCause(base)
	life, stop := context.WithCancelCause(hold)
	loops, endLoops := context.WithCancel(base)
	defer endLoops()
	defer drop(fault.ErrLeaseLost)

	reports, endReports := context.WithCancel(base)
	defer endReports()
	w.reports, w.hold, w.life = reports, hold, life

	var bg sync.WaitGroup
	bg.Go(func() { w.beats(loops) })
	bg.Go(func() { w.listens(loops) })
	bg.Go(func() { w.sweeps(loops, "sweep", w.sweepOnce) })
	if e.o.Retention > 0 {
		bg.Go(func() { w.sweeps(loops, "retention", w.prune) })
	}
	e.employ(w)
	w.claims(ctx)
	e.dismiss(w)
	e.log.Info("worker stops", "worker", w.id.ID, "running", w.running(), "drain", e.o.drain())
	err = w.drain(stop)
	endLoops()
	bg.Wait()
	last := time.AfterFunc(evidenceTimeout, endReports)
	w.cleanup.Wait()
	last.Stop()
	if err == nil {
		out, cancel := context.WithTimeout(base, 5*time.Second)
		defer cancel()
		if uerr := e.store.Unregister(out, w.id.ID); uerr != nil {
			e.log.Warn("worker could not take its leave, its lease runs out", "worker", w.id.ID, "err", uerr)
		}
	}
	e.log.Info("worker stopped", "worker", w.id.ID)
	return err
}

func newWork(ctx context.Context, e *Engine) (*worker, error) {
	me := host.Self()
	w := &worker{e: e, has: e.Workflows(), beat: make(chan struct{}, 1), freed: make(chan struct{}, 1),
		heard: make(chan struct{}, 1), live: make(map[RunID]*execution), born: make(map[RunID]bool)}
	w.id = WorkerRow{ID: newWorkerID(), Lease: e.o.lease(), Hostname: host.Describe(), Machine: me.Machine, Boot: me.Boot,
		PIDNS: me.PIDNS, PID: me.PID, ProcessStart: me.Start, Build: e.build()}
	if err := e.store.View(ctx, func(ctx context.Context, tx Txn) (err error) {
		w.space, err = e.namespace(ctx, tx)
		return err
	}); err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	if err := e.store.Register(ctx, w.id, w.has); err != nil {
		return nil, fmt.Errorf("register worker: %w", err)
	}
	for try := 0; ; try++ { // nothing is claimed before the store's clock is known
		err := w.renew(ctx)
		if err == nil {
			return w, nil
		}
		e.log.Warn("first heartbeat failed", "worker", w.id.ID, "try", try+1, "err", err)
		if pause(ctx, backoff(try, 100*time.Millisecond, time.Second)) != nil {
			return nil, fmt.Errorf("first heartbeat: %w", err)
		}
	}
}

// boot is the clock that trust in the lease is measured by: it goes on while the machine sleeps.
func (w *worker) boot() time.Duration {
	if h := w.e.hooks; h != nil && h.Boot != nil {
		return h.Boot()
	}
	if d, ok := host.BootTime(); ok {
		return d
	}
	return time.Since(processStart)
}

var processStart = time.Now() // monotonic zero where the system has no boot clock

// now estimates the store's clock, for decisions that are checked again or may be late. No stored time comes from it.
func (w *worker) now() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.clock + micro(w.boot()-w.clockAt)
}

// trusted reports whether the lease certainly still holds, so that an effect may begin.
func (w *worker) trusted() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.boot() < w.renewed+w.trust()
}

func (w *worker) trust() time.Duration {
	lease := w.e.o.lease()
	return lease - lease/6
}

func (w *worker) running() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.live)
}

// beatSoon asks for a heartbeat now.
func (w *worker) beatSoon() {
	select {
	case w.beat <- struct{}{}:
	default:
	}
}

// beats renews the lease at a third of it. If the trust in it ends, every run is dropped.
func (w *worker) beats(ctx context.Context) {
	every := w.e.o.lease() / 3
	timer := time.NewTimer(every)
	defer timer.Stop()
	for try := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-w.beat:
		}
		next := every
		if err := w.renew(ctx); err != nil {
			if ctx.Err() != nil {
				return
			}
			try++
			if try&(try-1) == 0 { // not one line a try while a database is away
				w.e.log.Warn("heartbeat failed", "worker", w.id.ID, "try", try, "err", err)
			}
			next = backoff(try, 100*time.Millisecond, every/4)
			if !w.trusted() {
				w.dropAll()
			}
		} else {
			try = 0
		}
		timer.Reset(next)
	}
}

// renew is one heartbeat: it compares the runs held in memory with those the store says are ours.
func (w *worker) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, w.e.o.lease()/3)
	defer cancel()
	held, sent := w.snapshot(), w.boot()
	b, err := w.e.store.Heartbeat(ctx, w.id)
	if err != nil {
		return err
	}
	owned := make(map[RunID]Held, len(b.Runs))
	for _, h := range b.Runs {
		owned[h.Run] = h
	}
	for id, x := range held {
		h, ours := owned[id]
		switch {
		case x.ending.Load(), w.holds(id) != x:
		case !ours || h.Epoch != x.row.Epoch:
			x.logger().Warn("run was taken over")
			x.lose(fmt.Errorf("heartbeat: %w", ErrLeaseLost))
		case h.Cancel:
			x.quit(fault.ErrRunCanceled)
		}
	}
	w.note(b, sent) // only now, so that no run that was lost meanwhile is trusted for a moment
	return w.releaseUnknown(ctx, held, owned)
}

// releaseUnknown gives back runs that are ours by the record and not in memory: the reply to their claim was lost.
func (w *worker) releaseUnknown(ctx context.Context, held map[RunID]*execution, owned map[RunID]Held) error {
	if hooks.Broken(hooks.W2) {
		return nil
	}
	busy := w.claiming.Load()%2 == 1
	for id, h := range owned {
		if held[id] != nil || w.knows(id) {
			continue
		}
		if busy { // the claim that is in flight may be what made it ours: look again
			w.beatSoon()
			return nil
		}
		// Every claim sent before the read has been answered. One sent since gives a later epoch.
		if ok, err := w.e.store.ReleaseLost(ctx, w.id.ID, id, h.Epoch); err != nil {
			return err
		} else if ok {
			w.e.log.Warn("released a run that this worker owned without knowing", "run", id)
			w.e.nudge()
		}
	}
	return nil
}

// note keeps what a heartbeat says about time. A store's clock that stepped, or another server, stops the taking of
// expired leases for one full lease: they may have expired by the step alone.
func (w *worker) note(b *Beat, sent time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.boot()
	if w.clockAt > 0 {
		step := time.Duration(b.Now-w.clock)*time.Microsecond - (at - w.clockAt)
		slack := time.Second + (at - sent)
		if !hooks.Broken(hooks.W13) && (step > slack || step < -slack || w.server != b.Server) {
			w.calm = at + w.e.o.lease()
			w.e.log.Warn("the store's clock stepped or its server changed: expired leases are left alone for one lease",
				"step", step, "server", b.Server)
		}
	}
	w.renewed, w.clock, w.clockAt, w.server = sent, b.Now, at, b.Server
}

// extended notes that a transaction, sent when the boot clock showed sent, renewed a lease that was not over yet.
func (w *worker) extended(sent time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.renewed = max(w.renewed, sent)
}

func (w *worker) snapshot() map[RunID]*execution {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.live)
}

func (w *worker) holds(id RunID) *execution {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.live[id]
}

func (w *worker) dropAll() {
	for _, x := range w.snapshot() {
		x.logger().Warn("lease could not be renewed in time, the run is dropped")
		x.lose(fmt.Errorf("lease not renewed: %w", ErrLeaseLost))
	}
}

// knows reports whether the run is here or on its way.
func (w *worker) knows(id RunID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.live[id] != nil || w.born[id]
}

// lookAgain is how long after a claim that found too little the store is first asked when the next run is due.
const lookAgain = 5 * time.Millisecond

// claims takes due runs while ctx lives. It is woken by starts in this process and, while more was due than there were
// slots, by their ends; otherwise it polls, also when another process hints. A poll only reads when the next run is due; it looks for runs of lost workers,
// which takes the write lock on SQLite, six times a lease.
func (w *worker) claims(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	searched := time.Time{}
	fruitless := lookAgain
	for {
		look := false // only whether anything is due
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			look = time.Since(searched) < w.e.o.lease()/6
		case <-w.heard:
			look = true
		case <-w.e.wake:
			fruitless = lookAgain
		case <-w.freed:
			if w.isIdle() {
				continue
			}
		}
		if look {
			if next := w.nextDue(ctx); next > 0 {
				timer.Reset(next)
				continue
			}
		}
		searched = time.Now()
		got, full, err := w.claimOnce(ctx)
		next := w.e.o.poll()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			w.e.log.Warn("claim failed", "worker", w.id.ID, "err", err)
		case full: // the end of a run wakes this loop
		case got > 0:
			next, fruitless = lookAgain, lookAgain
		default: // what is due and was not given is in other hands
			next = fruitless
			fruitless = min(2*fruitless, max(w.e.o.poll()/10, lookAgain))
		}
		timer.Reset(next)
	}
}

// isIdle reports whether a free slot is of no use now, because nothing is due.
func (w *worker) isIdle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.idle
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
	w.idle = free > 0 // a start that comes meanwhile takes it back
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
	for i := range runs {
		w.begin(runs[i], nil)
	}
	w.claiming.Add(1)
	if err != nil { // it may have been committed: the next heartbeat finds such runs and releases them
		w.beatSoon()
	}
	if len(runs) == free || err != nil {
		w.busy()
	}
	return len(runs), len(runs) == free, err
}

// free is how many slots are. The mutex is held.
func (w *worker) free() int { return w.e.o.slots() - len(w.live) - len(w.born) }

// busy notes that runs may be due.
func (w *worker) busy() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.idle = false
}

// reserve makes a run that is about to be started this worker's own, if a slot is free and nothing older waits for it. The
// run begins with [worker.begin]; if it was not started, cancel gives the slot back.
func (w *worker) reserve(row *RunRow) (ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopping.Load() || !w.idle || w.free() <= 0 || w.boot() >= w.renewed+w.trust() {
		return false
	}
	row.State, row.Epoch, row.Token, row.Owner, row.Builds = Running, 1, rand.Int64(), w.id.ID, w.id.Build
	w.born[row.ID] = true
	w.wg.Add(1) // so that the worker does not end before it is known what became of the start
	return true
}

// unreserve is for a run that was not begun. It may have been started all the same: then the next heartbeat finds it.
func (w *worker) unreserve(id RunID) {
	w.mu.Lock()
	delete(w.born, id)
	w.mu.Unlock()
	w.wg.Done()
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

// begin executes a claimed run in a goroutine of its own. h, unless it is nil, gets to know how that ended.
func (w *worker) begin(c Claimed, h *here) {
	x := &execution{e: w.e, w: w, row: c.Row, from: c.From, lost: c.Owner, before: c.Before}
	x.hold, x.drop = context.WithCancelCause(w.hold)
	x.life, x.stop = context.WithCancelCause(x.hold)
	x.ctx, x.quit = context.WithCancelCause(x.life)
	unhook := context.AfterFunc(w.life, func() { x.stop(context.Cause(w.life)) })
	if c.Row.CancelAt > 0 {
		x.quit(fault.ErrRunCanceled)
	}
	w.mu.Lock()
	w.live[c.Row.ID] = x
	born := w.born[c.Row.ID]
	delete(w.born, c.Row.ID)
	w.mu.Unlock()
	w.wg.Go(func() {
		defer func() {
			unhook()
			x.drop(fault.ErrLeaseLost)
			w.mu.Lock()
			if w.live[c.Row.ID] == x { // not a later claim of the same run
				delete(w.live, c.Row.ID)
			}
			w.mu.Unlock()
			w.free1()
			if h != nil {
				x.writing.Lock()
				h.final = x.final
				x.writing.Unlock()
				close(h.done)
			}
		}()
		x.def = w.e.defs[VersionID{c.Row.Workflow, c.Row.Version}]
		x.run()
		w.unsuspect(w.hold, c.Row.ID)
		if w.stopping.Load() { // it may have been released, for others to take
			w.e.hint(w.hold)
		}
	})
	if born {
		w.wg.Done()
	}
}

// drain waits for the executions to let go of their runs.
func (w *worker) drain(stop context.CancelCauseFunc) error {
	done := make(chan struct{})
	go func() {
		w.wg.Wait()
		close(done)
	}()
	if w.await(done, w.e.o.drain()) {
		return nil
	}
	stop(fault.ErrStopping)
	if w.await(done, max(w.e.o.drain()/4, time.Second)) {
		return nil
	}
	var names []string
	for id, x := range w.snapshot() {
		x.mu.Lock()
		names = append(names, fmt.Sprintf("%s in run %s, since %v", x.step, id, time.Since(x.since).Round(time.Second)))
		x.mu.Unlock()
	}
	slices.Sort(names)
	return fmt.Errorf("%w: %q", ErrAbandoned, names)
}

func (w *worker) await(done chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// sweeps does, from time to time, what no single run asks for.
func (w *worker) sweeps(ctx context.Context, what string, once func(context.Context) error) {
	if h := w.e.hooks; h != nil && h.NoSweep {
		return
	}
	every := min(w.e.o.lease(), 15*time.Second)
	timer := time.NewTimer(every)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if err := once(ctx); err != nil && ctx.Err() == nil {
			w.e.log.Warn(what+" failed", "worker", w.id.ID, "err", err)
		}
		timer.Reset(every)
	}
}

const (
	versionGrace = time.Minute
	keepWorkers  = 24 * time.Hour
)

// sweepOnce blocks runs whose version nobody has, keeps what is known of dead processes, and removes dead workers' rows.
func (w *worker) sweepOnce(ctx context.Context) error {
	stray, back, err := w.e.store.Stray(ctx, versionGrace, 100)
	if err != nil {
		return err
	}
	for _, id := range stray {
		if err := w.e.strayVersion(ctx, id); err != nil {
			return err
		}
	}
	for _, id := range back {
		if err := w.e.versionBack(ctx, id); err != nil {
			return err
		}
	}
	open, err := w.e.store.ListInbox(ctx, InboxQuery{Kind: AskUncertain})
	if err != nil {
		return err
	}
	asked := make(map[RunID]bool)
	for i := range open {
		if asked[open[i].Run] {
			continue
		}
		asked[open[i].Run] = true
		if err := w.e.noteDead(ctx, open[i].Run); err != nil {
			return err
		}
	}
	return w.e.store.Tidy(ctx, keepWorkers)
}
