package pawl

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawlrun/pawl/fault"
)

// maxRefused is how many step calls a branch may make after its suspension before its goroutine is ended.
const maxRefused = 1000

// branch is one line of a body's execution: the body itself, or a function that a [Group] runs. It belongs to one
// goroutine; over may be read by any.
type branch struct {
	x    *execution
	ctx  context.Context // of its steps; ends with the run's cancel request, and when a sibling fails
	mu   sync.Mutex      // held while a step runs, which is how nested and concurrent ones are caught
	open *Group          // whose Wait has not been called; guarded by mu
	over atomic.Bool     // it is suspended, and begins nothing new

	done atomic.Bool // its function has returned
	side bool        // siblings of it run at the same time
	main atomic.Bool // it is the body, which has not returned yet
	cut  bool        // it has come by what only follows from a sibling's failure

	waits   []waitOn // what it is suspended for; nothing if the whole execution stops
	refused int
	err     error // what its function returned, of a branch of a group
}

// enter refuses a step call that a branch may not make at all. mu is held.
func (b *branch) enter(path string) error {
	switch {
	case b.done.Load() && b.over.Load():
		return ErrSuspended
	case b.done.Load():
		return misuse(b.x, path, fault.ReasonNestedStep, "the function that was given this Run has returned: its steps must end before it does")
	case b.open != nil:
		return misuse(b.x, path, fault.ReasonNestedStep, "this Run is closed while its Group is open: use the branch's own Run, or call the Group's Wait first")
	}
	return nil
}

// suspend ends this execution of the branch.
func (b *branch) suspend() error {
	b.over.Store(true)
	return ErrSuspended
}

// waitFor suspends the branch until the row has been settled or its time has come.
func (b *branch) waitFor(row *StepRow) error {
	b.waits = append(b.waits, waitOn{step: row.Name, attempt: row.Attempt})
	b.x.mu.Lock()
	b.x.blind = b.x.blind || b.x.ctx.Err() == nil
	b.x.mu.Unlock()
	return b.suspend()
}

// release suspends the branch, and with it the execution: the run goes on elsewhere, or here after delay.
func (b *branch) release(delay time.Duration) error {
	b.x.halt(func() { b.x.released, b.x.delay = true, delay })
	return b.suspend()
}

// later suspends the body for a while, because something that it needs cannot be reached now.
func (b *branch) later() error { return b.release(2 * time.Second) }

// ask suspends the body by a question about the whole run. The first one counts.
func (b *branch) ask(en *EntryRow) error {
	b.x.halt(func() {
		if b.x.blocked == nil {
			b.x.blocked = en
		}
	})
	return b.suspend()
}

func (b *branch) undecodable(path string, err error) error {
	x := b.x
	if x.dry != nil {
		x.dry.note(path, fmt.Sprintf("stored value does not decode: %v", err))
		return b.suspend()
	}
	return b.ask(x.entry(AskDecode, path, fmt.Sprintf("stored value of step %q does not decode: %v", path, err)))
}

// refuse answers a step call that may not run any more. A body that loops on refused calls is ended.
func (b *branch) refuse() error {
	b.refused++
	if b.refused > maxRefused {
		b.x.logger().Warn("body goes on calling steps after its suspension and is ended")
		runtime.Goexit()
	}
	return ErrSuspended
}

// orphaned reports whether the branch is to begin nothing because a sibling has failed.
func (b *branch) orphaned() bool { return context.Cause(b.ctx) == fault.ErrSiblingFailed } //nolint:errorlint // the cause itself

// close is called when the branch's function has returned. A step that it left running in a goroutine ends before that.
func (b *branch) close() {
	b.done.Store(true)
	b.mu.Lock()
	b.mu.Unlock() //nolint:staticcheck // only waited for
}

// leave ends what the branch has left open when its function returns, and reports that as the mistake it is.
func (b *branch) leave() error {
	g := b.open
	if g == nil {
		return nil
	}
	g.cancel(fault.ErrSiblingFailed)
	g.wg.Wait()
	if b.over.Load() {
		return nil
	}
	return misuse(b.x, "", fault.ReasonNestedStep, "the function returned while a Group of it was open: call its Wait first")
}

// stopped reports whether the whole execution begins nothing any more.
func (x *execution) stopped() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.halted || x.failed != nil || x.hold.Err() != nil
}

// halt notes, once and under the lock, why the whole execution stops.
func (x *execution) halt(why func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.halted = true
	why()
}

// finally runs what [Run.Finally] was given, unless the body only waits, and gives the first error.
func (x *execution) finally(root *branch) (first error) {
	root.open = nil // a Group that was left open has ended
	for {
		x.mu.Lock()
		n := len(x.finals)
		if n == 0 || root.over.Load() || x.halted {
			x.mu.Unlock()
			return first
		}
		fn := x.finals[n-1]
		x.finals = x.finals[:n-1]
		x.mu.Unlock()
		b := &branch{x: x, ctx: x.life()}
		b.run(&Run{x: x, branch: b, shield: true}, fn)
		if b.over.Load() {
			root.over.Store(true)
			root.waits = append(root.waits, b.waits...)
		}
		if first == nil {
			first = b.err
		}
	}
}

// begins and ends note which steps are running, for those who look at the worker.
func (x *execution) begins(path string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.steps = append(x.steps, runningStep{path, time.Now()})
}

func (x *execution) ends(path string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	i := slices.IndexFunc(x.steps, func(s runningStep) bool { return s.path == path })
	x.steps = slices.Delete(x.steps, i, i+1)
}
