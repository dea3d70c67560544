package pawl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/payload"
)

// execution is one claim of one run by one worker. The goroutine that prepares, and ends, the execution owns everything but what
// mu and writing guard.
type execution struct {
	e   *Engine
	w   *worker
	def *definition
	row RunRow // as claimed

	hold context.Context // ends when the run is not ours any more; writes live by it
	ctx  context.Context // of hold; ends also when the run is cancelled, or when the worker cancels what is still running at its end
	drop context.CancelCauseFunc
	quit context.CancelCauseFunc

	j       *journal
	early   *journal // as it was read with those of other runs
	input   []byte
	from    RunState
	lost    WorkerID // the owner it was taken from …
	before  int64    // … and when that one had claimed it
	slot    bool     // it has a slot of a queue with limits
	dry     *dryRun  // a plan's replay: nothing is executed or written
	ending  atomic.Bool
	parting bool               // guarded by the worker's mutex
	cost    atomic.Int64       // estimated, of the attempts so far, if it is limited or since this claim
	finals  []func(*Run) error // of Run.Finally; guarded by mu
	quietN  atomic.Bool        // finished steps are being passed
	late    bool               // the deadline had passed before this execution began
	gated   atomic.Bool        // the body has come by a gate

	lifeOnce sync.Once
	alive    context.Context // see life
	unhooks  func() bool

	logOnce sync.Once
	log     *slog.Logger // see logger

	mu       sync.Mutex // guards all down to steps
	buf      []stepOp   // results the body has, not yet durable …
	spare    []stepOp   // … and room for the next ones
	asked    int        // how many changes were to become durable so far …
	got      int        // … and how many of these have, in this order
	timer    *time.Timer
	failed   error // the run is lost: the first write that did not succeed
	spoiled  error // a row that the store can never take; the run fails by it
	halted   bool  // no branch begins anything any more, because of …
	released bool  // … the worker, which stops, or something that cannot be reached
	delay    time.Duration
	cut      string    // what the deadline cut off, for the fault of the run
	blind    bool      // the body waits for something that it came by before its context ended
	blocked  *EntryRow // … a question about the whole run
	steps    []runningStep

	writing turn          // held over a write, so that those of one run come one after the other
	final   *RunRow       // how the run has ended, with its result; guarded by writing
	answer  chan struct{} // see waiting; guarded by writing
}

// runningStep is a step that is running, and since when.
type runningStep struct {
	path  string
	since time.Time
}

// turn is a mutex whose waiters, in a synctest bubble, do not stop the clock.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

func (t turn) take()  { t <- struct{}{} }
func (t turn) leave() { <-t }

// try takes the turn if nobody has it.
func (t turn) try() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

func (x *execution) quiet() bool { return x.quietN.Load() }

// life is a context of hold that ends also when the worker cancels what is still running at its end, but not when the run is
// cancelled. It is made when it is asked for: most runs need none.
func (x *execution) life() context.Context {
	x.lifeOnce.Do(func() {
		if x.w == nil {
			x.alive = x.hold
			return
		}
		ctx, stop := context.WithCancelCause(x.hold)
		x.alive, x.unhooks = ctx, context.AfterFunc(x.w.life, func() { stop(context.Cause(x.w.life)) })
	})
	return x.alive
}

// dying reports whether life has ended.
func (x *execution) dying() bool { return x.hold.Err() != nil || x.w.life.Err() != nil }

// unhook lets go of the worker's context. No life is asked for any more.
func (x *execution) unhook() {
	x.lifeOnce.Do(func() {})
	if x.unhooks != nil {
		x.unhooks()
	}
}

// logger is made when there is something to say, for most runs have nothing.
func (x *execution) logger() *slog.Logger {
	x.logOnce.Do(func() {
		x.log = x.e.log.With("run", x.row.ID, "workflow", x.row.Workflow)
	})
	return x.log
}

// cancelled: a person asked for it, which this execution has been told.
func (x *execution) cancelled() bool {
	return errors.Is(context.Cause(x.ctx), fault.ErrRunCanceled)
}

// lose drops the run: nothing of it is written from here on.
func (x *execution) lose(cause error) {
	x.mu.Lock()
	if x.failed == nil {
		x.failed = cause
	}
	x.mu.Unlock()
	x.drop(ErrLeaseLost)
}

// run executes the claimed run from its journal to the end of this execution.
func (x *execution) run() {
	e := x.e
	e.hooks.Reach(hooks.Claimed, string(x.row.ID), "")
	if err := x.prepare(); err != nil {
		x.abandon(err)
		return
	}
	switch {
	case x.row.Intended != "": // given up while its last worker had it: the end is decided, nothing is begun any more
		x.end(&runEnd{release: true})
		return
	case x.blocked != nil:
		x.end(&runEnd{block: x.blocked})
		return
	}
	x.body(func(root *branch, result []byte, err error) {
		e.hooks.Reach(hooks.BodyDone, string(x.row.ID), "")
		x.conclude(root, result, err)
	})
}

// abandon lets go of a run that could not be prepared, without a word about its steps.
func (x *execution) abandon(err error) {
	if errors.Is(err, ErrLeaseLost) {
		x.logger().Info("run was taken over before it began here", "err", err)
		return
	}
	x.logger().Error("run could not be prepared, it is released", "err", err)
	x.end(&runEnd{release: true, delay: 2 * time.Second})
}

// body calls the workflow's function, turns a panic into its error, and calls then with what came of it: deferred, because
// a body that never stops calling refused steps, or a callback, may end this goroutine by Goexit.
func (x *execution) body(then func(root *branch, result []byte, err error)) {
	root := &branch{x: x, ctx: x.ctx}
	root.main.Store(true)
	var result []byte
	var err error
	returned := false
	defer func() {
		p := recover()
		root.main.Store(false)
		switch {
		case root.over.Load() || returned:
		case p != nil:
			x.logger().Error("body panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			result, err = nil, bodyPanic(p)
		default:
			result, err = nil, bodyPanic("runtime.Goexit was called")
		}
		if left := root.leave(); left != nil {
			err = left
		}
		if final := x.finally(root); final != nil && (err == nil || goesOn(err)) {
			err = tame(final)
		}
		root.close()
		then(root, result, err)
	}()
	if result, err = x.def.body(&Run{x: x, branch: root}, x.input); err != nil && !root.over.Load() {
		err = x.told(err)
	}
	returned = true
}

// tamed is a body's error in its stored form.
type tamed struct{ *fault.Fault }

// tame calls the methods of a body's error here, where a panic in one of them is caught, and nowhere else.
func tame(err error) error {
	if errors.Is(err, errInput) {
		return err
	}
	return tamed{bodyFault(err)}
}

func bodyPanic(p any) error {
	f := fault.FromPanic(p)
	f.Class, f.Outcome = fault.InvalidRequest, fault.OutcomeRejected
	return f
}

// conclude turns what the body returned into the run's end.
func (x *execution) conclude(root *branch, result []byte, err error) {
	suspended := root.over.Load()
	switch {
	case x.hold.Err() != nil:
		x.logger().Info("run is not ours any more, its end is dropped", "cause", context.Cause(x.hold))
		_ = x.commit(nil, nil) // fails, and so reports what is buffered as evidence
	case x.blocked != nil:
		x.end(&runEnd{block: x.blocked})
	case x.released:
		x.end(&runEnd{release: true, delay: x.delay})
	case suspended && len(root.waits) == 0: // a write that failed; its cause is kept
		x.end(&runEnd{release: true, delay: 2 * time.Second})
	case suspended:
		x.end(&runEnd{suspend: root.waits, cancels: x.ctx.Err() != nil && !x.blind})
	default:
		x.finish(result, err)
	}
}

func (x *execution) finish(result []byte, err error) {
	if errors.Is(err, errInput) {
		x.end(&runEnd{block: x.entry(AskDecode, "", err.Error())})
		return
	}
	end := x.meant(result, err)
	cutOff := end.finish == Cancelled || end.fault != nil && end.fault.Reason == fault.ReasonRunDeadline
	if names := x.j.unvisited(); len(names) > 0 && !cutOff {
		detail := fmt.Sprintf("the body ended (%s) without coming by %q, which it once ran: renamed or removed?", end.finish, names)
		x.end(&runEnd{block: x.entry(AskDiverged, names[0], detail), intend: end.finish, fault: end.fault, result: end.result, next: end.next})
		return
	}
	x.end(end)
}

// meant is the end that follows from what the body has returned.
func (x *execution) meant(result []byte, err error) *runEnd {
	end := &runEnd{finish: Succeeded}
	next, _ := err.(*continuation) //nolint:errorlint // told has looked into it
	switch {
	case next != nil:
		end.result, end.next = next.input, next.hash
	case err == nil:
		if end.result, err = x.e.seal(result); err != nil {
			err = notStorable("the run's result", err)
		}
	}
	cut := !errors.Is(err, fault.ReasonPanic) // a panic is a mistake of its own, whatever else has happened
	switch {
	case x.row.CancelAt > 0, err != nil && cut && x.cancelled(): // asked for before this execution began, or meanwhile
		end = &runEnd{finish: Cancelled}
	case x.late, err != nil && cut && x.overdue():
		end = &runEnd{finish: Failed, fault: x.missed()}
	case err != nil && next == nil:
		end = &runEnd{finish: Failed, fault: bodyFault(err)}
	}
	return end
}

// bodyFault is the stored form of what a body returned: a failed step's fault as it is, anything else as an error of
// the body's own, which no repetition changes.
func bodyFault(err error) *fault.Fault {
	if t, ok := errors.AsType[tamed](err); ok {
		return t.Fault
	}
	if se, ok := errors.AsType[*Error](err); ok {
		f := se.Fault
		f.Message = payload.Clean(err.Error(), 4096)
		return &f
	}
	f := fault.From(err)
	if f.Class == fault.OutcomeUnknown {
		f.Class, f.Outcome = fault.InvalidRequest, fault.OutcomeRejected
	}
	f.Err = nil
	return f
}

func (x *execution) entry(kind EntryKind, step, detail string) *EntryRow {
	return &EntryRow{Run: x.row.ID, Step: step, Kind: kind, Detail: payload.Clean(detail, 1000)}
}

// end writes the last results with the run's end.
func (x *execution) end(end *runEnd) {
	if end.fault != nil {
		end.fault.Err = nil
	}
	x.ending.Store(true)
	x.w.parts(x)
	end.alone = x.gated.Load()
	err := x.unstorable()
	if err == nil {
		err = x.commit(nil, end)
	}
	if errors.Is(err, errUnstorable) { // the end itself must get through: say what could not be stored
		err = x.commit(nil, &runEnd{finish: Failed, fault: bodyFault(notStorable("a journal row", err))})
	}
	if err != nil {
		x.logger().Warn("the run's end was not written here", "err", err)
		return
	}
	x.e.hooks.Reach(hooks.Ended, string(x.row.ID), "")
	x.e.changed(x.row.ID, x.final)
	others := end.next != nil || x.final != nil && x.final.Called // its successor, or who waits for it, may be due at once
	if others || x.final == nil {
		x.e.nudge()
	}
	if others {
		x.e.hint(x.hold)
	}
}

// commit makes the buffered results and ops durable, in this order, with the run's end if there is one.
func (x *execution) commit(ops []stepOp, end *runEnd) error {
	x.writing.take()
	defer x.writing.leave()
	return x.commitLocked(ops, end)
}

func (x *execution) commitLocked(ops []stepOp, end *runEnd) error {
	x.mu.Lock()
	all := append(x.buf, ops...)
	x.buf = nil
	x.asked += len(ops)
	if x.timer != nil {
		x.timer.Stop()
	}
	failed := x.failed
	x.mu.Unlock()
	if failed != nil {
		x.report(all)
		return failed
	}
	if len(all) == 0 && end == nil {
		return nil
	}
	defer x.reuse(all)
	var one [1][]stepOp
	parts := apart(one[:0], all)
	if end != nil && len(parts[len(parts)-1]) >= manyOps && !end.shares(&x.row) {
		parts = append(parts, nil)
	}
	ended := true
	defer func() {
		if ended {
			x.lose(errEnded)
			x.report(all)
		}
	}()
	for i, part := range parts {
		var last *runEnd
		if i == len(parts)-1 {
			last = end
		}
		if err := x.land(part, last); err != nil {
			ended = false
			if !errors.Is(err, errUnstorable) {
				x.lose(err)
				x.report(all)
			}
			return err
		}
		all = all[len(part):]
	}
	ended = false
	return nil
}

var errEnded = errors.New("the write ended its goroutine, or panicked")

// reuse keeps the room of what has been written.
func (x *execution) reuse(ops []stepOp) {
	if cap(ops) > keptOps {
		return
	}
	clear(ops)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.spare = ops[:0]
}

const keptOps = 16

// land writes ops, and the run's end, as a whole.
func (x *execution) land(ops []stepOp, end *runEnd) error {
	q := x.write(ops, end)
	if x.answer == nil {
		x.answer = make(chan struct{}, 1)
	}
	q.waiting.answer = x.answer
	err := x.e.writer.write(x.hold, q)
	x.final = q.final
	if errors.Is(err, errUnstorable) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.spoiled = err
	}
	if err != nil {
		return err
	}
	x.durable(len(ops))
	for i := range ops {
		if row := ops[i].row; row != nil && row.State != StepInFlight && !ops[i].mark {
			x.e.hooks.Reach(hooks.ResultWritten, string(x.row.ID), row.Name)
		}
	}
	return nil
}

func (x *execution) write(ops []stepOp, end *runEnd) *write {
	return &write{run: &x.row, ops: ops, end: end}
}

// buffer keeps a result that the body may have before it is durable. It is written with the run's next write, or on
// its own after the flush delay. The row is copied, because that write is another goroutine's; the copy is returned,
// and has the times that the store gave it once a commit has returned.
func (x *execution) buffer(op stepOp) *StepRow {
	if op.item == nil {
		row := *op.row
		op.row = &row
	}
	x.hand(op)
	return op.row
}

// hand is buffer for a row that the caller has no more use for: in its journal there is the same one, whose times may change.
func (x *execution) hand(op stepOp) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.buf == nil {
		x.buf, x.spare = x.spare, nil
	}
	x.buf = append(x.buf, op)
	x.asked++
	switch {
	case len(x.buf) > 1:
	case x.timer == nil:
		x.timer = time.AfterFunc(x.e.o.flushDelay(), x.flush)
	default:
		x.timer.Reset(x.e.o.flushDelay())
	}
}

// looksFirst reports whether something that is buffered has to look at stored rows under the run's lock.
func (x *execution) looksFirst() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.ContainsFunc(x.buf, func(op stepOp) bool { return op.also != nil })
}

// flush writes what is buffered, unless a write is under way: then it comes back. It does not wait on the mutex, which
// a Tx step's callback may hold for long.
func (x *execution) flush() {
	if x.writing.try() {
		defer x.writing.leave()
		_ = x.commitLocked(nil, nil) // a failure is kept in x.failed
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.buf) > 0 {
		x.timer.Reset(x.e.o.flushDelay())
	}
}

// report hands what could not be written to the inbox, as evidence about its attempts.
func (x *execution) report(ops []stepOp) {
	for i := range ops {
		if ops[i].effects {
			x.w.evidence(x, ops[i].row)
		}
	}
}

// unstorable is the error of a row that could not be stored; nil if there is none.
func (x *execution) unstorable() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.spoiled
}
