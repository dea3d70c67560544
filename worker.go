package pawl

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

	stopping  atomic.Bool     // begin no step any more; set under the engine's mutex
	freed     chan struct{}   // capacity 1: a slot is free again
	beat      chan struct{}   // capacity 1: renew now
	heard     chan struct{}   // capacity 1: a hint of another process
	tables    chan struct{}   // capacity 1: look at schedules now
	claiming  atomic.Int64    // claims sent; odd while one is in flight
	crew      *crew           // executes runs
	cleanup   sync.WaitGroup  // evidence on its way …
	reports   context.Context // … and how long that is tried
	strangers []string        // schedules that are not in this build's code; their loop's own
	pruned    RunID           // where the next look for old lineages begins; its loop's own
	hold      context.Context // of all executions, see there …
	life      context.Context // … likewise

	mu      sync.Mutex // guards all below
	live    map[RunID]*execution
	born    map[RunID]bool // runs on their way that are started as this worker's
	asked   int            // slots that a claim on its way may fill
	parting int            // runs in live of which only the end is still to be written
	idle    bool           // the last claim found nothing more, and nothing has been said to be due since
	suspect RunID          // the suspect run this process executes
	renewed time.Duration  // boot clock when the last good renewal was sent
	clock   int64          // the store's clock at that renewal …
	clockAt time.Duration  // … and the boot clock when its answer came
	server  string
	calm    time.Duration // boot clock before which expired leases are left alone
	lapse   time.Duration // boot clock when the first lease of another worker is over, as of that renewal; 0 never
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
	if err := e.reconcile(ctx); err != nil {
		return err
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
	bg.Go(func() { w.sweeps(loops, "deleting old events", w.pruneEvents) })
	bg.Go(func() { w.schedules(ctx) })
	if e.o.Retention > 0 {
		bg.Go(func() { w.sweeps(loops, "retention", w.prune) })
		bg.Go(func() { w.sweeps(loops, "retention of the ledger", w.pruneOccurrences) })
	}
	e.employ(w)
	w.claims(ctx)
	e.dismiss(w)
	e.log.Info("worker stops", "worker", w.id.ID, "running", w.running(), "drain", e.o.drain())
	err = w.drain(stop)
	w.crew.leave(err == nil)
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
		heard: make(chan struct{}, 1), tables: make(chan struct{}, 1), crew: newCrew(), live: make(map[RunID]*execution), born: make(map[RunID]bool)}
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
		w.crew.shed()
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
	if w.lapse = 0; b.Lapse > 0 {
		w.lapse = at + b.Lapse + time.Millisecond // a lease is over after its last moment
	}
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

// keeps is knows without what it has lost.
func (w *worker) keeps(id RunID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x := w.live[id]; x != nil {
		return x.hold.Err() == nil
	}
	return w.born[id]
}

// drain waits for the executions to let go of their runs.
func (w *worker) drain(stop context.CancelCauseFunc) error {
	done := make(chan struct{})
	go func() {
		w.crew.busy.Wait()
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
		for _, s := range x.steps {
			names = append(names, fmt.Sprintf("%s in run %s, since %v", s.path, id, time.Since(s.since).Round(time.Second)))
		}
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
