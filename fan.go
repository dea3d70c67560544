package pawl

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/payload"
)

const (
	itemPage  = 1000 // finished items read at once
	valuePage = 100  // the same with their values
)

// fan is one execution of a batch.
type fan struct {
	s     *stepRun
	c     *batchCall
	ended []bool // by position: it needs no run, or has had its one of this execution

	mu    sync.Mutex // guards all below
	sum   batchSummary
	waits []waitOn
	over  bool  // an item is suspended
	cut   bool  // an item was cut off by a cancel, the deadline or a failed sibling
	bad   error // an item that cannot be hashed
}

// fanOut is the step call of a batch.
func (s *stepRun) fanOut() ([]byte, error) {
	x := s.x
	x.begins(s.path)
	defer x.ends(s.path)
	x.e.hooks.Reach(hooks.StepReached, string(x.row.ID), s.path)
	f := &fan{s: s, c: s.c.batch, ended: make([]bool, s.c.batch.n)}
	if s.row != nil || x.row.Parent != "" {
		if err := f.resume(); err != nil {
			x.logger().Error("items of a batch could not be read", "step", s.path, "err", err)
			return nil, s.b.later()
		}
	}
	if f.bad == nil {
		if err := f.begin(); err != nil {
			return nil, err
		}
		f.items()
	}
	switch {
	case x.stopped():
		return nil, s.b.suspend()
	case f.bad != nil:
		f.letGo()
		return nil, f.bad
	case f.over: // an item may wait on WithoutCancel; the others end when the run is woken by the end of its context
		s.b.waits = append(append(s.b.waits, f.waits...), waitOn{step: s.path, items: true})
		return nil, s.b.suspend()
	case s.base.Err() != nil && (f.cut || f.missing() > 0):
		f.letGo()
		if err := s.admit(); err != nil {
			return nil, err
		}
		return nil, s.cutOff("ended before the batch did")
	}
	return f.finish()
}

// letGo is for items that were begun and are not to go on. What is uncertain about them is asked at the run's end.
func (f *fan) letGo() {
	x, path := f.s.x, f.s.path
	if f.s.b.orphaned() {
		for _, row := range x.j.itemRows(path) {
			if !row.State.Finished() {
				x.orphan(row)
			}
		}
	}
	x.j.dropItems(path, func(string) bool { return true })
}

// begin records the batch, or that it is called with other items than before.
func (f *fan) begin() error {
	s, x := f.s, f.s.x
	switch {
	case s.row == nil:
		if err := s.first(); err != nil {
			return err
		}
		s.keep(x.buffer(stepOp{insert: true, row: &StepRow{Run: x.row.ID, Name: s.path, Kind: s.c.kind, State: StepWaiting, Attempt: 1,
			Epoch: x.row.Epoch, InputHash: s.hash, Begun: AtWrite, Items: f.c.n}}))
	case !slices.Equal(s.row.InputHash, s.hash) && !slices.Equal(s.row.OtherHash, s.hash):
		row := *s.row
		row.OtherHash, row.Items = s.hash, f.c.n
		s.keep(x.buffer(stepOp{mark: true, row: &row}))
	}
	return nil
}

// resume finds out which items have ended, by a walk over the stored ones beside the sorted ids. Items that were begun and are
// not there any more are nobody's: what is uncertain about them is asked at the run's end.
func (f *fan) resume() error {
	k := 0
	for it, err := range f.s.x.endedItems(f.s.path) {
		if err != nil {
			return err
		}
		f.count(it.Item, it.State, nil)
		for k < f.c.n && f.c.ids[f.c.order[k]] < it.Item {
			k++
		}
		if k == f.c.n || f.c.ids[f.c.order[k]] != it.Item {
			f.sum.Vanished++
			f.note("item has ended and is not in the batch any more", it.Item, f.sum.Vanished)
			continue
		}
		i := f.c.order[k]
		f.ended[i] = true
		hash, err := f.hash(i)
		if err == nil && !slices.Equal(hash, it.InputHash) {
			f.sum.Changed++
			f.note("item has changed since it was run; what is stored holds", it.Item, f.sum.Changed)
		}
	}
	f.s.x.j.dropItems(f.s.path, func(id string) bool { _, found := f.c.find(id); return !found })
	if f.sum.Failed == 0 {
		return nil
	}
	first, err := f.s.x.fullItem(&ItemRow{Run: f.s.x.row.ID, Batch: f.s.path, Item: f.sum.Item})
	if err == nil && first.Fault != nil {
		f.sum.Fault = first.Fault
	}
	return err
}

// note logs the first few of what may be many.
func (f *fan) note(what, item string, n int) {
	if n <= 10 {
		f.s.x.logger().Warn(what, "batch", f.s.path, "item", item)
	}
}

// hash is an item's input hash. One that has none ends the batch.
func (f *fan) hash(i int) ([]byte, error) {
	hash, err := f.c.hash(i)
	if err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.bad = misuse(f.s.x, f.s.path, fault.ReasonInvalidValue, fmt.Sprintf("batch: item %q: %v", f.c.ids[i], err))
	}
	return hash, err
}

// count adds an item that has ended.
func (f *fan) count(id string, state ItemState, failure *fault.Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if state == ItemDone {
		f.sum.Done++
		return
	}
	f.sum.Failed++
	if f.sum.Fault == nil || id < f.sum.Item {
		f.sum.Item, f.sum.Fault = id, &fault.Fault{}
		if failure != nil {
			*f.sum.Fault = *failure
		}
	}
}

// missing counts the items that have not ended.
func (f *fan) missing() int { return f.c.n - (f.sum.Done + f.sum.Failed - f.sum.Vanished) }

// items runs what has not ended, each item in a goroutine of its own, and waits for them.
func (f *fan) items() {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, f.c.limit)
	var next time.Time
	for i := range f.ended {
		if f.ended[i] {
			continue
		}
		slots <- struct{}{}
		if f.c.rate > 0 {
			f.pace(&next)
		}
		if f.halted() {
			return
		}
		if f.skips(i) {
			<-slots
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			f.item(i)
		})
	}
}

// pace waits until the next item may begin, or until none may any more.
func (f *fan) pace(next *time.Time) {
	for !f.halted() {
		left := time.Until(*next)
		if left <= 0 || f.s.base.Err() != nil {
			break
		}
		_ = pause(f.s.base, min(left, time.Second)) // its end is seen by halted
	}
	if now := time.Now(); next.Before(now) {
		*next = now
	}
	*next = next.Add(time.Duration(min(float64(time.Second)/f.c.rate, float64(10*365*24*time.Hour))))
}

// halted reports whether no item is to be begun any more.
func (f *fan) halted() bool {
	x := f.s.x
	if x.w.stopping.Load() && !x.stopped() {
		_ = f.s.b.release(0)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bad != nil || x.stopped() || x.dying() || x.unstorable() != nil
}

// skips says that the item was not begun before, and is not to be: after another has failed, or the end of the context. One that
// was begun may have to compensate then.
func (f *fan) skips(i int) bool {
	if f.s.base.Err() == nil && !(f.c.stop && f.failed()) {
		return false
	}
	return !f.s.x.j.begun(itemPath(f.s.path, f.c.ids[i]))
}

func (f *fan) failed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sum.Failed > 0
}

// item runs one item.
func (f *fan) item(i int) {
	s := f.s
	hash, err := f.hash(i)
	if err != nil {
		return
	}
	b := &branch{x: s.x, ctx: s.b.ctx}
	run := *s.run
	run.branch, run.scope = b, itemPath(s.path, f.c.ids[i])
	var json []byte
	defer func() { f.end(i, hash, b, json) }() // deferred: the function may end its goroutine
	b.run(&run, func(run *Run) (err error) {
		if json, err = f.c.run(run, i); err != nil && !b.over.Load() {
			err = tame(err)
		}
		return err
	})
}

// end keeps what an item has come to. It rides with the run's next write, after the results that it depends on.
func (f *fan) end(i int, hash []byte, b *branch, json []byte) {
	s, x, id := f.s, f.s.x, f.c.ids[i]
	if b.over.Load() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.over, f.waits = true, append(f.waits, b.waits...)
		return
	}
	if b.err != nil && s.base.Err() != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.cut = true
		return
	}
	row := &ItemRow{Run: x.row.ID, Batch: s.path, Item: id, State: ItemDone, Epoch: x.row.Epoch, InputHash: hash}
	err := b.err
	if err == nil {
		if row.Value, err = x.e.seal(json); err != nil {
			err = notStorable("the item's result", err)
		}
	}
	if err != nil {
		row.State, row.Value, row.Fault = ItemFailed, nil, bodyFault(err)
		row.Fault.Message = payload.Clean(row.Fault.Message, 1000)
	}
	row.ValueSize = len(row.Value)
	x.buffer(stepOp{item: row})
	x.j.forget(itemPath(s.path, id))
	f.count(id, row.State, row.Fault)
}

// finish ends the batch. It is a failed step if items have failed, and so is run again by a manual retry.
func (f *fan) finish() ([]byte, error) {
	s, x := f.s, f.s.x
	f.sum.Missing = f.missing()
	json, err := encode(f.sum)
	if err != nil {
		return nil, misuse(x, s.path, fault.ReasonNotStorable, err.Error())
	}
	row := *s.row
	row.State, row.Epoch, row.Ended = StepSucceeded, x.row.Epoch, AtWrite
	if row.Value, err = x.e.seal(json); err != nil {
		return nil, misuse(x, s.path, fault.ReasonNotStorable, err.Error())
	}
	row.ValueSize = len(row.Value)
	if first := f.sum.Fault; first != nil {
		failure := *first
		failure.Message = fmt.Sprintf("%d items failed, %d were not begun; first %q: %s", f.sum.Failed, f.sum.Missing, f.sum.Item, first.Message)
		row.State, row.Fault = StepFailed, &failure
	}
	s.keep(x.buffer(stepOp{row: &row, attempt: row.Attempt}))
	if row.State == StepFailed {
		return nil, row.stored()
	}
	return s.b.opened(s.path, row.Value)
}

// join makes ops durable, with all that is buffered before them. Unlike [execution.commit] it is content if the write of
// another item's step has done so: many items begin a step at the same time, and a step of an item depends on nothing that others
// have got meanwhile.
func (x *execution) join(ops []stepOp) error {
	x.mu.Lock()
	x.buf = append(x.buf, ops...)
	x.asked += len(ops)
	mine := x.asked
	done, err := x.got >= mine, x.failed
	x.mu.Unlock()
	if len(ops) == 0 && (done || err != nil) {
		return err
	}
	x.writing.take()
	defer x.writing.leave()
	x.mu.Lock()
	done, err = x.got >= mine, x.failed
	if err == nil {
		err = x.spoiled
	}
	if err != nil && !done { // they must not get through with the run's end
		x.buf = slices.DeleteFunc(x.buf, func(op stepOp) bool {
			return op.row != nil && slices.ContainsFunc(ops, func(o stepOp) bool { return o.row == op.row })
		})
	}
	x.mu.Unlock()
	switch {
	case done && len(ops) > 0: // what has landed is on record, whatever has become of the run since: its caller looks at that
		return nil
	case done || err != nil:
		return err
	}
	if err := x.commitLocked(nil, nil); err != nil && !x.has(mine) {
		return err
	}
	return nil
}

// has reports whether the first n of what was to become durable are.
func (x *execution) has(n int) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.got >= n
}

// durable notes that the first n of what was to become durable is.
func (x *execution) durable(n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.got += n
}

// commit makes ops of the step, and what it may depend on, durable.
func (s *stepRun) commit(ops ...stepOp) error {
	if itemScope(s.path) != "" {
		return s.x.join(ops)
	}
	return s.x.commit(ops, nil)
}

// putItem writes an item that has ended.
func putItem(ctx context.Context, tx Txn, it *ItemRow, unknown bool) error {
	if unknown {
		there, err := tx.Item(ctx, it.Run, it.Batch, it.Item)
		if err != nil || there != nil && there.Epoch == it.Epoch {
			return err
		}
	}
	err := tx.AddItem(ctx, it)
	if errors.Is(err, ErrStepExists) {
		return fmt.Errorf("item %q of batch %q: %w: %w", it.Item, it.Batch, err, ErrLeaseLost)
	}
	return storable(itemPath(it.Batch, it.Item), err)
}

// items reads items page by page. An error is the last of the sequence.
func (x *execution) items(q ItemQuery) iter.Seq2[*ItemRow, error] {
	return paged(x, q.Limit, func(it *ItemRow) string { return it.Item }, func(ctx context.Context, tx Txn, after string) ([]ItemRow, error) {
		q.After = after
		return tx.Items(ctx, q)
	})
}

// endedItems reads what a batch that goes on needs of its items. A page is read while the one before it is gone through.
func (x *execution) endedItems(batch string) iter.Seq2[*EndedItem, error] {
	read := func(ctx context.Context, tx Txn, after string) ([]EndedItem, error) {
		return tx.EndedItems(ctx, x.row.ID, batch, after, itemPage)
	}
	type page struct {
		items []EndedItem
		err   error
	}
	return func(yield func(*EndedItem, error) bool) {
		ahead := make(chan page)
		enough := make(chan struct{})
		defer close(enough)
		go func() {
			defer close(ahead)
			for after := ""; ; {
				var p page
				p.items, p.err = readPage(x, after, read)
				select {
				case ahead <- p:
				case <-enough:
					return
				}
				if p.err != nil || len(p.items) < itemPage {
					return
				}
				after = p.items[itemPage-1].Item
			}
		}()
		for p := range ahead {
			if p.err != nil {
				yield(nil, p.err)
				return
			}
			for i := range p.items {
				if !yield(&p.items[i], nil) {
					return
				}
			}
		}
	}
}

// paged reads rows in pages of so many, each from the id after which it begins.
func paged[T any](x *execution, size int, id func(*T) string, read func(ctx context.Context, tx Txn, after string) ([]T, error)) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		for after := ""; ; {
			page, err := readPage(x, after, read)
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range page {
				if !yield(&page[i], nil) {
					return
				}
			}
			if len(page) < size {
				return
			}
			after = id(&page[size-1])
		}
	}
}

func readPage[T any](x *execution, after string, read func(ctx context.Context, tx Txn, after string) ([]T, error)) (page []T, err error) {
	err = x.view(func(ctx context.Context, tx Txn) (err error) {
		page, err = read(ctx, tx, after)
		return err
	})
	return page, err
}

// view reads; a plan does so in its own transaction.
func (x *execution) view(read func(context.Context, Txn) error) error {
	if x.dry != nil {
		return read(x.hold, x.dry.tx)
	}
	return x.e.store.View(x.hold, read)
}

// itemSource is where the results of a batch are read from.
type itemSource struct {
	run  *Run
	path string
	err  error
}

// each reads the items that have ended. What this execution has not written yet is written first.
func (src *itemSource) each(state ItemState, values bool) iter.Seq[*ItemRow] {
	x, b := src.run.x, src.run.branch
	return func(yield func(*ItemRow) bool) {
		if x.dry == nil && x.commit(nil, nil) != nil {
			src.err = b.suspend()
			return
		}
		q := ItemQuery{Run: x.row.ID, Batch: src.path, State: state, Limit: itemPage, Values: values}
		if values {
			q.Limit = valuePage
		}
		for it, err := range x.items(q) {
			if err == nil && values && it.Value == nil && it.ValueSize > 0 {
				it, err = x.fullItem(it)
			}
			if err != nil {
				x.logger().Error("items of a batch could not be read", "step", src.path, "err", err)
				src.err = b.later()
				return
			}
			if !yield(it) {
				return
			}
		}
	}
}

// fullItem reads an item with its value, which the pages leave out.
func (x *execution) fullItem(it *ItemRow) (full *ItemRow, err error) {
	err = x.view(func(ctx context.Context, tx Txn) (err error) {
		if full, err = tx.Item(ctx, it.Run, it.Batch, it.Item); err == nil && full == nil {
			err = ErrNotFound
		}
		return err
	})
	return full, err
}

// decode reads a done item's value into out, or asks a person about it.
func (src *itemSource) decode(it *ItemRow, out any) bool {
	path := itemPath(it.Batch, it.Item)
	json, err := src.run.branch.opened(path, it.Value)
	if err != nil {
		src.err = err
		return false
	}
	if err := decode(json, out); err != nil {
		src.err = src.run.branch.undecodable(path, err)
		return false
	}
	return true
}
