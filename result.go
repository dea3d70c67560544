package pawl

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pawlrun/pawl/fault"
)

// await blocks until the run, or the last one that it has continued as, is terminal and returns its result's JSON. made is when
// the run was started, if its caller did that; h is not nil if it began here then.
func (e *Engine) await(ctx context.Context, id RunID, made time.Time, h *here) ([]byte, error) {
	for {
		run, err := e.awaitEnd(ctx, id, made, h)
		switch {
		case err != nil:
			return nil, err
		case run.Successor == "":
			return e.outcome(run)
		}
		id, made, h = run.Successor, time.Time{}, nil
	}
}

// awaitEnd blocks until the run is terminal and returns it, with its result. made and h are those of await.
func (e *Engine) awaitEnd(ctx context.Context, id RunID, made time.Time, h *here) (*RunRow, error) {
	var over chan struct{} // closed when the execution that began here is
	if h != nil {
		over = h.done
	}
	pause := 10 * time.Millisecond
	young := time.Until(made.Add(notBefore)) // too young to have ended where another process works on it
	if young > 0 {
		pause = notBefore
	}
	ended := e.watch(id)
	defer e.unwatch(id, ended)
	for {
		run, wait := &RunRow{State: Running}, time.Second
		if !e.holds(id) { // else a worker of this process will say how it ends, unless it loses it
			if final := h.ended(); final != nil {
				return final, nil
			}
			var err error
			if young > 0 {
				wait, young = young, 0
			} else {
				wait, pause = pause, min(pause*2, time.Second)
				run, err = e.stored(ctx, id)
			}
			if err != nil {
				return nil, fmt.Errorf("result of run %s: %w", id, err)
			}
			if run.State.Terminal() {
				return run, nil
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("result of run %s, which is %s: %w", id, run.State, context.Cause(ctx))
		case <-over:
			if timer.Stop(); h.final != nil {
				return h.final, nil
			}
			over = nil
		case final := <-ended:
			if timer.Stop(); final != nil {
				return final, nil
			}
		case <-timer.C:
		}
	}
}

// notBefore is how long after its start a run is first asked for that nobody here works on.
const notBefore = 2 * time.Millisecond

// ended is how the run has ended, if that is known here.
func (h *here) ended() *RunRow {
	if h == nil {
		return nil
	}
	select {
	case <-h.done:
		return h.final
	default:
		return nil
	}
}

// stored reads the run, with its result if it has succeeded.
func (e *Engine) stored(ctx context.Context, id RunID) (run *RunRow, err error) {
	err = e.store.View(ctx, func(ctx context.Context, tx Txn) (err error) {
		if run, err = tx.LockRun(ctx, id); err == nil && run.State == Succeeded {
			_, run.Result, err = tx.Payload(ctx, id)
		}
		return err
	})
	return run, err
}

// holds reports whether a worker of this process has the run, or will have it in a moment, and has not lost it.
func (e *Engine) holds(id RunID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.workers, func(w *worker) bool { return w.keeps(id) })
}

func (e *Engine) outcome(run *RunRow) ([]byte, error) {
	switch run.State {
	case Succeeded:
		return e.open(run.Result)
	case Cancelled:
		return nil, fmt.Errorf("run %s: %w", run.ID, ErrCancelled)
	default:
		f := &fault.Fault{Class: fault.OutcomeUnknown, Reason: fault.ReasonUnrecognized}
		if run.Fault != nil {
			f = run.Fault
		}
		return nil, &Error{Run: run.ID, Fault: *f}
	}
}

func (e *Engine) watch(id RunID) chan *RunRow {
	ch := make(chan *RunRow, 1)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiters[id] = append(e.waiters[id], ch)
	return ch
}

func (e *Engine) unwatch(id RunID, ch chan *RunRow) {
	e.mu.Lock()
	defer e.mu.Unlock()
	left := slices.DeleteFunc(e.waiters[id], func(c chan *RunRow) bool { return c == ch })
	if len(left) == 0 {
		delete(e.waiters, id)
		return
	}
	e.waiters[id] = left
}

// changed wakes those in this process who wait for the run, and tells them how it has ended if that is known.
func (e *Engine) changed(id RunID, final *RunRow) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ch := range e.waiters[id] {
		if final != nil { // it says more than what has not been taken yet
			select {
			case <-ch:
			default:
			}
		}
		select {
		case ch <- final:
		default:
		}
	}
}
