package pawl

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
)

// writer is the one place of a process through which journals are written. Changes that come while a transaction is under
// way share the next one: nobody waits for company, but who has to wait finds some.
//
// There is no goroutine for it. Who comes first leads: it sends what is waiting, its own change included, gives each of
// the others its answer, and passes the lead to one of those who came meanwhile. The changes of one run need no order
// here, because its execution waits for each.
type writer struct {
	e     *Engine
	slots chan struct{} // transactions of a change by itself that may be open
	most  int           // shared transactions that may be under way

	mu      sync.Mutex // guards all below
	queue   []*waiting
	leaders int
}

// waiting is a change on its way.
type waiting struct {
	change Change
	size   int
	batch  *batch        // that it has become part of; guarded by the writer's mutex
	answer chan struct{} // capacity 1: err is set, or, with lead, the lead is passed
	lead   bool
	err    error
}

// batch is one shared transaction. It is given up only when none of its changes is wanted any more.
type batch struct {
	all    []*waiting
	wanted int // guarded by the writer's mutex
	cancel context.CancelFunc
}

const (
	batchChanges = 1000
	batchBytes   = 4 << 20
	// A second shared transaction pays only with many waiting: it takes its share of them, and two small ones cost
	// more than one.
	secondLeader = 250
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
	me := &waiting{change: c, size: c.size(), answer: make(chan struct{}, 1)}
	w.mu.Lock()
	w.queue = append(w.queue, me)
	lead := w.leaders == 0 || w.leaders < w.most && len(w.queue) >= secondLeader
	if lead {
		w.leaders++
		me.lead = true // so that no other leader takes it along
	}
	w.mu.Unlock()
	if !lead {
		select {
		case <-me.answer:
		case <-ctx.Done():
			if w.leave(me) {
				return context.Cause(ctx)
			}
			<-me.answer
		}
		if !me.lead {
			return me.err
		}
	}
	w.lead(ctx, me)
	return me.err
}

// leave takes the change back, if it has not been sent and the lead has not been passed to it.
func (w *writer) leave(me *waiting) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if b := me.batch; b != nil {
		if b.wanted--; b.wanted == 0 {
			b.cancel()
		}
		return false
	}
	i := slices.Index(w.queue, me)
	if i < 0 || me.lead {
		return false
	}
	w.queue = slices.Delete(w.queue, i, i+1)
	return true
}

// lead sends what is waiting, with me among it, and passes the lead on.
func (w *writer) lead(ctx context.Context, me *waiting) {
	txCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	runtime.Gosched() // who is about to come does so first: with one processor, nobody would otherwise
	b := w.take(me, cancel)
	stop := context.AfterFunc(ctx, func() { w.leave(me) })
	changes := make([]Change, len(b.all))
	for i, m := range b.all {
		changes[i] = m.change
	}
	var now int64
	err := errors.New("the writing of a batch panicked")
	defer func() {
		stop()
		for _, m := range b.all {
			if m.err = err; err == nil {
				m.change.resolve(now)
			}
			if m != me {
				m.answer <- struct{}{}
			}
		}
		w.pass()
	}()
	now, err = w.e.store.Write(txCtx, changes)
}

// take makes a batch of me and of as many others as fit.
func (w *writer) take(me *waiting, cancel context.CancelFunc) *batch {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := &batch{all: []*waiting{me}, cancel: cancel}
	size := me.size
	left := w.queue[:0]
	for i, m := range w.queue {
		switch {
		case m == me:
		case m.lead, len(b.all) >= batchChanges, size+m.size > batchBytes:
			left = append(left, w.queue[i])
		default:
			size += m.size
			b.all = append(b.all, m)
		}
	}
	clear(w.queue[len(left):])
	w.queue = left
	for _, m := range b.all {
		m.batch, m.lead = b, false
	}
	b.wanted = len(b.all)
	return b
}

// pass gives the lead to the first that waits.
func (w *writer) pass() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.queue {
		if !m.lead {
			m.lead = true
			m.answer <- struct{}{}
			return
		}
	}
	w.leaders--
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
