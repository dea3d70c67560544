package pawl

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/payload"
)

// Batch runs fn for each item, several at once, as a step whose results are kept item by item. id gives an item's stable id: 1 to
// 200 bytes, not used twice in the batch. The id alone is an item's identity. So later executions, and manual retries, which
// may get the items in another order, with new ones or without some, run those that have not ended yet and no others.
//
// fn gets a Run of its own, in which names of steps are the item's. What it returns is stored with the last of them: its
// result, or, if it fails or panics, its error. An item that has failed is not run again by the same run; a retry of the
// run by hand runs the failed and missing ones again and reuses the rest. An item whose fn waits is suspended by itself; when all
// others have ended, Batch returns [ErrSuspended]. A Batch does not nest: an item that is a batch itself is a [Child].
//
// The error is nil if every item is done, and a *[BatchError] if some have failed: the body decides what that means. The
// Results are valid with both, and are not held in memory. Any other error is one of the batch itself; a bad id is reported
// before anything runs.
func Batch[T, R any](run *Run, name string, items []T, id func(T) string, fn func(*Run, T) (R, error), opts ...BatchOption) (Results[R], error) {
	c := &batchCall{limit: 16, n: len(items), id: func(i int) string { return id(items[i]) }}
	for _, o := range opts {
		o.batch(c)
	}
	c.hash = func(i int) ([]byte, error) {
		json, err := encode(items[i])
		if err != nil {
			return nil, err
		}
		return hashOf(json)
	}
	c.run = func(run *Run, i int) ([]byte, error) {
		out, err := fn(run, items[i])
		if err != nil {
			return nil, err
		}
		json, err := encode(out)
		if err == nil {
			err = decode(json, new(R))
		}
		if err != nil {
			return nil, notStorable("the item's result", err)
		}
		return json, nil
	}
	sum, err := run.batch(name, c)
	r := Results[R]{src: &itemSource{run: run, path: run.path(name)}}
	if sum != nil {
		r.Done, r.Failed, r.Missing, r.Changed, r.Vanished = sum.Done, sum.Failed, sum.Missing, sum.Changed, sum.Vanished
	}
	return r, err
}

// BatchOption is an option of [Batch].
type BatchOption interface{ batch(*batchCall) }

type batchOption func(*batchCall)

func (f batchOption) batch(c *batchCall) { f(c) }

// AtOnce is how many items run at once; one that is suspended does not count. The default is 16.
func AtOnce(n int) BatchOption {
	return batchOption(func(c *batchCall) {
		if n < 1 {
			c.bad = cmp.Or(c.bad, fmt.Errorf("AtOnce(%d): want at least 1", n))
		}
		c.limit = n
	})
}

// Rate begins at most so many items a second, evenly, and fewer if they take longer. It is kept by this execution alone: other
// runs, and other batches of the run, have their own.
func Rate(perSecond float64) BatchOption {
	return batchOption(func(c *batchCall) {
		if !(perSecond > 0) {
			c.bad = cmp.Or(c.bad, fmt.Errorf("Rate(%v): want a positive number", perSecond))
		}
		c.rate = perSecond
	})
}

// StopOnError begins no more items once one has failed. Those that were begun end; the others are missing.
func StopOnError() BatchOption { return batchOption(func(c *batchCall) { c.stop = true }) }

// BatchError says that items of a batch have failed. It unwraps to the error of the first one, in byte order of the ids.
type BatchError struct {
	Batch   string // path of the batch's step
	Failed  int
	Missing int    // were not begun, see [StopOnError]
	Item    string // the first that failed …
	First   *Error // … and its error
}

// Error tells how many items failed, and why the first one did.
func (e *BatchError) Error() string {
	missing := ""
	if e.Missing > 0 {
		missing = fmt.Sprintf(" and %d not begun", e.Missing)
	}
	return fmt.Sprintf("batch %s: %d items failed%s, first %q: %s", e.Batch, e.Failed, missing, e.Item, e.First.Fault.Error())
}

// Unwrap gives the first item's error.
func (e *BatchError) Unwrap() error { return e.First }

// Results are what has become of the items of a [Batch]. The counts are of all items that were ever run for it.
type Results[R any] struct {
	Done     int
	Failed   int
	Missing  int // not begun, see [StopOnError]
	Changed  int // differ from what they were when they were run; what is stored holds
	Vanished int // of those that have ended, how many the batch was last called without

	src *itemSource
}

// ItemResult is what an item came to: a value, or an error like a step's.
type ItemResult[R any] struct {
	Value R
	Err   error
}

// All gives the items that have ended, in byte order of their ids. They are read a page at a time; if that fails it ends early,
// and [Results.Err] tells. It is for the body that called Batch, and not for a step's callback.
func (r Results[R]) All() iter.Seq2[string, ItemResult[R]] {
	return func(yield func(string, ItemResult[R]) bool) {
		if r.src == nil {
			return
		}
		for item := range r.src.each("", true) {
			var res ItemResult[R]
			switch {
			case item.State == ItemFailed:
				res.Err = item.stored()
			case !r.src.decode(item, &res.Value):
				return
			}
			if !yield(item.Item, res) {
				return
			}
		}
	}
}

// Failures is [Results.All] for the items that have failed.
func (r Results[R]) Failures() iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if r.src == nil {
			return
		}
		for item := range r.src.each(ItemFailed, false) {
			if !yield(item.Item, item.stored()) {
				return
			}
		}
	}
}

// Err is why a loop over the results has ended early; nil if none has. Like the error of a step, it is to be returned.
func (r Results[R]) Err() error {
	if r.src == nil {
		return nil
	}
	return r.src.err
}

// batchCall is one call of Batch without its types. Items go by their position.
type batchCall struct {
	limit int
	rate  float64
	stop  bool
	bad   error // the first thing wrong with an option

	n    int
	id   func(i int) string
	hash func(i int) ([]byte, error)
	run  func(run *Run, i int) (json []byte, err error)

	ids   []string
	order []int // positions in byte order of the ids
}

// batchSummary is the value of a batch's row.
type batchSummary struct {
	Done     int          `json:"done"`
	Failed   int          `json:"failed,omitempty"`
	Missing  int          `json:"missing,omitempty"`
	Changed  int          `json:"changed,omitempty"`
	Vanished int          `json:"vanished,omitempty"`
	Item     string       `json:"first,omitempty"` // that failed
	Fault    *fault.Fault `json:"fault,omitempty"` // of it
}

// batch is [Batch] on bytes.
func (r *Run) batch(name string, c *batchCall) (*batchSummary, error) {
	path := r.path(name)
	err := c.bad
	if err == nil && itemScope(path) != "" {
		err = errors.New("a Batch does not nest: make the item a Child run")
	}
	if err == nil {
		err = c.sort()
	}
	if err != nil {
		return nil, misuse(r.x, path, fault.ReasonInvalidValue, fmt.Sprintf("batch: %v", err))
	}
	json, err := r.step(&stepCall{name: name, kind: fault.KindBatch, in: c.digest(), batch: c})
	if row := r.x.j.row(path); err != nil && !errors.Is(err, ErrSuspended) && row.hasFailures() {
		json, err = r.branch.opened(path, row.Value)
	}
	if err != nil {
		return nil, err
	}
	sum := &batchSummary{}
	if err := decode(json, sum); err != nil {
		return nil, r.branch.undecodable(path, err)
	}
	if sum.Fault == nil {
		return sum, nil
	}
	return sum, &BatchError{Batch: path, Failed: sum.Failed, Missing: sum.Missing, Item: sum.Item,
		First: &Error{Run: r.x.row.ID, Step: itemPath(path, sum.Item), Fault: *sum.Fault}}
}

// hasFailures reports whether the row is that of a batch some of whose items have failed.
func (row *StepRow) hasFailures() bool {
	return row != nil && row.Kind == fault.KindBatch && row.State == StepFailed && row.Value != nil
}

// sort reads the ids and refuses bad ones.
func (c *batchCall) sort() error {
	c.ids, c.order = make([]string, c.n), make([]int, c.n)
	for i := range c.ids {
		c.ids[i], c.order[i] = c.id(i), i
		if err := payload.CheckName("id", c.ids[i]); err != nil {
			return fmt.Errorf("item %d: %w", i, err)
		}
	}
	slices.SortFunc(c.order, func(a, b int) int { return cmp.Or(strings.Compare(c.ids[a], c.ids[b]), a-b) })
	for k := 1; k < c.n; k++ {
		id := c.ids[c.order[k]]
		if c.ids[c.order[k-1]] != id {
			continue
		}
		end := k
		for end < c.n && end < k+9 && c.ids[c.order[end]] == id {
			end++
		}
		return fmt.Errorf("items %v have the same id %q: an id names one item of the batch", c.order[k-1:end], id)
	}
	return nil
}

// find gives the position of an item; false if the batch is not called with it.
func (c *batchCall) find(id string) (int, bool) {
	k, found := slices.BinarySearchFunc(c.order, id, func(i int, id string) int { return strings.Compare(c.ids[i], id) })
	if !found {
		return 0, false
	}
	return c.order[k], true
}

// digest stands for the set of ids, whatever their order.
func (c *batchCall) digest() string {
	h := sha256.New()
	var n [8]byte
	for _, i := range c.order {
		binary.BigEndian.PutUint64(n[:], uint64(len(c.ids[i])))
		h.Write(n[:])
		h.Write([]byte(c.ids[i]))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// stored is the error of a failed item.
func (it *ItemRow) stored() error {
	row := StepRow{Run: it.Run, Name: itemPath(it.Batch, it.Item), State: StepFailed, Fault: it.Fault}
	return row.stored()
}
