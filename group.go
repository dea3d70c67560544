package pawl

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/pawlrun/pawl/fault"
)

// Group runs branches of a body side by side. Each branch has a [Run] of its own; the one that the group was made from
// takes no step until [Group.Wait] has returned. Names of steps are those of the run, whatever the branch: they must differ
// between branches, and in which order branches come to them does not matter.
//
// A branch that waits, for a time or an event, say, is suspended by itself: its siblings go on, and the run gives its slot
// free when every branch has ended or is suspended. When a branch fails, the contexts of its siblings' steps end with
// [fault.ErrSiblingFailed], what they wait for is closed, and they begin no step any more, but under
// [Run.WithoutCancel]. All that is recorded, so that later executions of the body go the same way.
//
// A group belongs to the goroutine that made it; only the branches are others.
type Group struct {
	run     *Run
	ctx     context.Context // of the branches
	cancel  context.CancelCauseFunc
	wg      sync.WaitGroup
	slots   chan struct{} // nil without a limit
	collect bool
	waited  bool
	bad     error // a group that cannot be used

	branches []*branch
}

// Group begins a group of branches. r itself is closed until the group's Wait.
func (r *Run) Group() *Group {
	g := &Group{run: r}
	b := r.branch
	switch {
	case r.bad != nil:
		g.bad = r.bad
	case !b.mu.TryLock():
		g.bad = errors.New("a step of this branch is running")
	case b.open != nil:
		g.bad = errors.New("this run has an open Group already: call its Wait first, or use the branch's own run")
		b.mu.Unlock()
	default:
		b.open = g
		b.mu.Unlock()
	}
	if g.bad != nil {
		g.bad = misuse(r.x, r.scope, fault.ReasonNestedStep, g.bad.Error())
	}
	g.ctx, g.cancel = context.WithCancelCause(b.ctx)
	return g
}

// SetLimit bounds how many branches run at once; a suspended one does not count. It is called before the first Go, which
// blocks while as many run. 0 or less means no limit.
func (g *Group) SetLimit(n int) {
	g.slots = nil
	if n > 0 {
		g.slots = make(chan struct{}, n)
	}
}

// CollectAll lets every branch end by itself, also when one has failed. Wait then gives all their errors, joined. It is
// called before the first Go.
func (g *Group) CollectAll() { g.collect = true }

// Go runs a branch in a goroutine of its own. A panic in it, outside of its steps, is its error. After Wait it panics, which
// fails the run.
func (g *Group) Go(fn func(run *Run) error) {
	if g.waited {
		panic("pawl: Group.Go after Wait: begin another Group") //nolint:forbidigo // a mistake in the body; it fails the run
	}
	if g.bad != nil {
		return
	}
	parent := g.run.branch
	b := &branch{x: parent.x, ctx: g.ctx, side: true}
	b.over.Store(parent.over.Load()) // finished steps still answer in what a suspended body begins
	g.branches = append(g.branches, b)
	own := *g.run
	own.branch = b
	if parent.x.dry != nil { // a replay has one order
		b.run(&own, fn)
		return
	}
	if g.slots != nil {
		g.slots <- struct{}{}
	}
	g.wg.Go(func() {
		defer func() {
			if b.err != nil && !g.collect {
				g.cancel(fault.ErrSiblingFailed)
			}
			if g.slots != nil {
				<-g.slots
			}
		}()
		b.run(&own, fn)
	})
}

// run calls a branch's function and keeps its error, with a panic as one. What a suspended branch returns is ignored.
func (b *branch) run(own *Run, fn func(*Run) error) {
	err := bodyPanic("runtime.Goexit was called")
	defer func() {
		if p := recover(); p != nil {
			b.x.logger().Error("branch panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = bodyPanic(p)
		}
		if left := b.leave(); left != nil {
			err = left
		}
		b.close()
		if !b.over.Load() {
			b.err = err
		}
	}()
	err = fn(own)
}

// Wait blocks until every branch has ended or is suspended. It returns the first failure in the order of Go, but one that
// only follows another branch's; else [ErrSuspended] if a branch waits; else nil.
func (g *Group) Wait() error {
	if g.bad != nil {
		return g.bad
	}
	g.wg.Wait()
	g.waited = true
	g.cancel(nil)
	parent := g.run.branch
	parent.mu.Lock()
	mine := parent.open == g
	if mine {
		parent.open = nil
	}
	parent.mu.Unlock()
	switch {
	case !mine:
		return misuse(parent.x, g.run.scope, fault.ReasonNestedStep, "Wait of this Group was called before")
	case parent.x.stopped():
		return parent.suspend()
	}
	return g.outcome(parent)
}

// outcome is what the branches have come to, for the one that waits for them.
func (g *Group) outcome(parent *branch) error {
	var own, all []error
	var waits []waitOn
	suspended := false
	for _, b := range g.branches {
		suspended = suspended || b.over.Load()
		waits = append(waits, b.waits...)
		if b.err == nil {
			continue
		}
		all = append(all, b.err)
		if !b.cut {
			own = append(own, b.err)
		}
	}
	switch {
	case len(all) > 0 && !g.collect:
		parent.cut = parent.cut || len(own) == 0
		parent.x.orphans(waits)
		return append(own, all...)[0]
	case suspended:
		parent.waits = append(parent.waits, waits...)
		return parent.suspend()
	}
	return errors.Join(all...)
}

// orphans ends, for good, the suspended branches of a group that has failed, at the rows where they are. It rides with the run's
// next write. What nobody knows about stays a question, which the run's end waits for.
func (x *execution) orphans(waits []waitOn) {
	for _, on := range waits {
		if row := x.j.row(on.step); row != nil {
			x.orphan(row)
		}
	}
}

// orphan marks a row at which a branch is given up, and closes it if it is a wait, or between two attempts. It may have been
// settled meanwhile: then only the mark tells later executions that the branch does not go on.
func (x *execution) orphan(row *StepRow) {
	marked := *row
	marked.Orphaned = true
	x.j.put(&marked)
	x.buffer(stepOp{row: &marked, attempt: row.Attempt, also: x.markOrphan})
}

// markOrphan is [stepOp.also] of an orphan.
func (x *execution) markOrphan(ctx context.Context, tx Txn, row *StepRow, now int64) error {
	there, err := tx.Step(ctx, row.Run, row.Name)
	if err == nil && there == nil {
		err = ErrNotFound
	}
	if err != nil {
		return err
	}
	there.Orphaned = true
	switch there.State {
	case StepWaiting:
		there.Epoch = x.row.Epoch
		if err := closeWait(ctx, tx, there, fault.ReasonSiblingFailed, now); err != nil {
			return err
		}
		if there.Kind == fault.KindGate {
			if err := dropGate(ctx, tx, there, fault.ReasonSiblingFailed, now); err != nil {
				return err
			}
		}
	case StepRetrying:
		outcome := fault.OutcomeNotSent
		if there.Fault != nil {
			outcome = there.Fault.Outcome
		}
		there.State, there.Epoch, there.Ended, there.NextAt = StepFailed, x.row.Epoch, now, 0
		there.Fault = &fault.Fault{Class: fault.Canceled, Reason: fault.ReasonSiblingFailed, Outcome: outcome}
		if ok, err := tx.MoveStep(ctx, there, there.Attempt); err != nil || !ok {
			return errors.Join(err, ErrLeaseLost)
		}
	default: // settled, or a question
		if err := tx.MarkStep(ctx, there); err != nil {
			return err
		}
	}
	return errSettled
}

// orphaned ends a step call of a branch whose sibling has failed. It is on record, so that the branch ends here in later
// executions too, whichever branch is first then.
func (s *stepRun) orphaned() error {
	x := s.x
	if s.row != nil {
		x.orphan(s.row)
		return siblingFailed(x, s.path)
	}
	if n := x.openGate(s.path); s.c.o.ask != nil && n > 0 {
		if q := x.j.row(gatePath(s.path, n)); q != nil { // what it has asked is not to be answered any more
			x.orphan(q)
		}
	}
	row := s.next(nil)
	row.State, row.Begun, row.Ended, row.Key, row.Orphaned = StepFailed, AtWrite, AtWrite, "", true
	row.Fault = &fault.Fault{Class: fault.Canceled, Reason: fault.ReasonSiblingFailed, Outcome: fault.OutcomeNotSent}
	x.j.put(row)
	x.buffer(stepOp{row: row, insert: true})
	return siblingFailed(x, s.path)
}

// siblingFailed is the error of a step at which a branch ends because a sibling has failed: the same on every execution.
func siblingFailed(x *execution, path string) error {
	return &Error{Run: x.row.ID, Step: path, Fault: fault.Fault{Class: fault.Canceled, Reason: fault.ReasonSiblingFailed,
		Outcome: fault.OutcomeNotSent, Message: "another branch of the group has failed, this one has ended here"}}
}
