package pawl

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
)

// writer is the one place of a process through which journals are written. Changes that come while a transaction is under
// way share the next one: nobody waits for company, but who has to wait finds some.
//
// Who finds nobody at work sends its own change, with those that come at the same moment. What has come meanwhile is then sent by
// a goroutine that goes on for as long as more comes: who has been answered goes on beside it. The changes of one run need no
// order here, because its execution waits for each.
type writer struct {
	e     *Engine
	slots chan struct{} // transactions of a change by itself that may be open
	most  int           // shared transactions that may be under way

	mu    sync.Mutex // guards all below
	queue []*waiting
	under int // shared transactions under way
	last  int // how many changes the one had that was answered last
}

// waiting is a change on its way.
type waiting struct {
	change Change
	size   int
	batch  *batch        // that it has become part of; guarded by the writer's mutex
	left   bool          // nobody waits for the answer; guarded by it
	answer chan struct{} // capacity 1: err is set. Nobody else uses it meanwhile
	err    error
}

// batch is one shared transaction. It is given up only when none of its changes is wanted any more.
type batch struct {
	all    []*waiting
	wanted int // guarded by the writer's mutex
	ctx    context.Context
	cancel context.CancelFunc
	now    int64
	err    error
}

const (
	batchChanges = 1000
	batchBytes   = 4 << 20
	// Two small transactions cost more than one, so a second one has to wait for company: for most of those who have been answered
	// last to come back with their next change.
	secondLeast, secondMost = 8, 250
)

func newWriter(e *Engine) *writer {
	w := &writer{e: e, slots: make(chan struct{}, 8), most: 2}
	if e.oneWriter() { // waiting for it in order beats polling for it
		w.slots, w.most = make(chan struct{}, 1), 1
	}
	return w
}

// join makes the change durable in a transaction with those of other runs. If ctx ends, it returns without having
// written, or waits, if a transaction is under way, until that is given up.
func (w *writer) join(ctx context.Context, c Change) error {
	return w.enter(ctx, &waiting{change: c, answer: make(chan struct{}, 1)})
}

// enter is join for a change that somebody has room for.
func (w *writer) enter(ctx context.Context, me *waiting) error {
	me.size = me.change.size()
	w.mu.Lock()
	w.queue = append(w.queue, me)
	send := w.under < w.most && w.enough(w.under)
	if send {
		w.under++
	}
	w.mu.Unlock()
	if send {
		runtime.Gosched() // who is about to come does so first: with one processor, nobody would otherwise
		stop := context.AfterFunc(ctx, func() { w.leave(me) })
		if b := w.next(ctx); b != nil {
			w.lead(ctx, b)
		}
		stop()
	}
	select {
	case <-me.answer:
	case <-ctx.Done():
		if w.leave(me) {
			return context.Cause(ctx)
		}
		<-me.answer
	}
	return me.err
}

// enough reports whether what waits is worth a transaction beside others that are under way. mu is held.
func (w *writer) enough(others int) bool {
	n := len(w.queue)
	return n > 0 && (others == 0 || n >= min(max(secondLeast, w.last*3/4), secondMost))
}

// leave takes the change back, and reports false if it has been sent.
func (w *writer) leave(me *waiting) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := me.batch
	if me.left {
		return b == nil
	}
	me.left = true
	if b == nil {
		i := slices.Index(w.queue, me)
		w.queue = slices.Delete(w.queue, i, i+1)
		return true
	}
	if b.wanted--; b.wanted == 0 {
		b.cancel()
	}
	return false
}

// next makes a batch of what waits, as far as it fits. Nil if too little does; then one transaction less is under way.
func (w *writer) next(ctx context.Context) *batch {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.enough(w.under - 1) {
		w.under--
		return nil
	}
	n, size := 0, 0
	for n < len(w.queue) && n < batchChanges && (n == 0 || size+w.queue[n].size <= batchBytes) {
		size += w.queue[n].size
		n++
	}
	b := &batch{all: slices.Clone(w.queue[:n]), wanted: n}
	b.ctx, b.cancel = context.WithCancel(context.WithoutCancel(ctx))
	w.queue = slices.Delete(w.queue, 0, n)
	for _, m := range b.all {
		m.batch = b
	}
	return b
}

// lead sends the first batch; what has come meanwhile goes on at once.
func (w *writer) lead(ctx context.Context, b *batch) {
	defer w.answer(b)
	defer w.pass(ctx)
	w.send(b)
}

// send writes a batch.
func (w *writer) send(b *batch) {
	defer b.cancel()
	b.err = fmt.Errorf("%w: the writing of a batch ended its goroutine", ErrCommitUnknown)
	defer func() {
		if v := recover(); v != nil {
			b.err = fmt.Errorf("%w: writing a batch panicked: %v\n%s", ErrCommitUnknown, v, debug.Stack())
		}
	}()
	room := changesRoom.Get().(*[]Change)
	changes := (*room)[:0]
	for _, m := range b.all {
		changes = append(changes, m.change)
	}
	b.now, b.err = w.e.store.Write(b.ctx, changes)
	clear(changes)
	*room = changes
	changesRoom.Put(room)
}

// changesRoom has slices that nobody uses, for the changes of a batch.
var changesRoom = sync.Pool{New: func() any { return new([]Change) }}

// answer tells those whose changes a batch had what has become of it.
func (w *writer) answer(b *batch) {
	w.mu.Lock()
	w.last = len(b.all)
	w.mu.Unlock()
	for _, m := range b.all {
		if m.err = b.err; m.err == nil {
			m.change.resolve(b.now)
		}
		m.answer <- struct{}{}
	}
}

// pass ends one transaction under way, and has what waits sent by another one.
func (w *writer) pass(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.enough(w.under - 1) {
		w.under--
		return
	}
	go w.drain(ctx)
}

// drain sends what waits until nothing does, whatever becomes of ctx. A goroutine for each batch would have to wait for its turn
// among those that are answered.
func (w *writer) drain(ctx context.Context) {
	for {
		b := w.next(ctx)
		if b == nil {
			return
		}
		w.follow(ctx, b)
		if !w.e.oneWriter() {
			runtime.Gosched() // a round trip costs more than it saves to go at once
		}
	}
}

// follow sends a batch, and has another goroutine go on should this one be ended.
func (w *writer) follow(ctx context.Context, b *batch) {
	ended := true
	defer func() {
		w.answer(b)
		if ended {
			go w.drain(ctx)
		}
	}()
	w.send(b)
	ended = false
}

// size is about what the change sends.
func (c *Change) size() int {
	n := 500
	for _, rows := range [][]*StepRow{c.Insert, c.Settle} {
		for _, row := range rows {
			n += 300 + len(row.Value) + len(row.Input)
		}
	}
	for _, it := range c.Items {
		n += 300 + len(it.Value)
	}
	if c.End != nil {
		n += len(c.End.Result)
	}
	if c.Start != nil {
		n += len(c.Start.Input)
	}
	return n
}

// resolve gives the rows the times that were stored.
func (c *Change) resolve(now int64) {
	for _, rows := range [][]*StepRow{c.Insert, c.Settle} {
		for _, row := range rows {
			row.Resolve(now)
		}
	}
	if r := c.Start; r != nil {
		r.Created = now
		if r.State == Running {
			r.Claimed, r.Started = now, now
		} else {
			r.Due = max(r.Due, now)
		}
		if r.TimeLimit > 0 {
			r.Deadline = max(r.Due, now) + r.TimeLimit
		}
	}
}
