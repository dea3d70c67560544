package pawl

import (
	"context"
	"sync"
	"time"
)

// Hints only save time: a worker that hears none finds the same runs with its next poll. Nothing is read from one but
// "look now".

const (
	// hintEvery is the least time between two hints of an engine.
	hintEvery = 2 * time.Millisecond
	// hintAfterError is the same after one that failed.
	hintAfterError = time.Second
	// hintTimeout bounds what a start waits for a hint while the database is slow.
	hintTimeout = 250 * time.Millisecond
)

// hinter is an engine's hints to workers of other processes.
type hinter struct {
	mu   sync.Mutex // guards both below
	busy bool       // a hint is on its way, or went out a moment ago
	more bool       // another one is to follow it
}

// offer makes workers look for n new runs of v: those of this process, and those of others unless there is room here.
func (e *Engine) offer(ctx context.Context, v VersionID, n int) {
	if n == 0 {
		return
	}
	e.nudge()
	if e.defs[v] == nil || e.room() < n {
		e.hint(ctx)
	}
}

// room is how many runs the workers of this process could take at once, as far as one can tell.
func (e *Engine) room() (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, w := range e.workers {
		n += w.room()
	}
	return n
}

// hint tells workers of other processes that runs may be due. It never fails, and the caller waits for one statement at
// most: of callers that come together the first one sends, and one hint more covers all that came since.
func (e *Engine) hint(ctx context.Context) {
	h := &e.hints
	h.mu.Lock()
	if h.busy {
		h.more = true
		h.mu.Unlock()
		return
	}
	h.busy = true
	h.mu.Unlock()
	e.sendHint(context.WithoutCancel(ctx)) // the hint is also for those who come meanwhile
}

// sendHint sends one and, where more were asked for by the time the next may go out, that one.
func (e *Engine) sendHint(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, hintTimeout)
	defer cancel()
	next := hintEvery
	if err := e.store.Hint(within); err != nil {
		next = hintAfterError
	}
	time.AfterFunc(next, func() {
		h := &e.hints
		h.mu.Lock()
		again := h.more
		h.more, h.busy = false, again
		h.mu.Unlock()
		if again {
			e.sendHint(ctx)
		}
	})
}

// room is how many runs the worker could take at once, as far as one can tell.
func (w *worker) room() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.boot() >= w.renewed+w.trust() {
		return 0
	}
	return w.free()
}

// listens hears the hints of other processes until ctx ends. Each is an early poll; any number that come during one are
// one more. A worker that is full needs none: it looks when a slot is free.
func (w *worker) listens(ctx context.Context) {
	err := w.e.store.Listen(ctx, func() {
		if w.room() <= 0 {
			w.busy()
			return
		}
		select {
		case w.heard <- struct{}{}:
		default:
		}
	})
	if ctx.Err() == nil {
		w.e.log.Warn("no hints of other processes are heard, due runs are found by polling", "worker", w.id.ID, "err", err)
	}
}
