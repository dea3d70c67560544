package pawl

import (
	"context"
	"fmt"
	"slices"

	"github.com/pawlrun/pawl/fault"
)

// lookUp consults the journal. It is done with a step that is finished, and with one that may not be begun here.
func (b *branch) lookUp(r *Run, c *stepCall, path string, hash []byte) (row *StepRow, value []byte, err error, done bool) {
	x := b.x
	row, first := x.j.visit(path)
	if !first {
		return nil, nil, b.twice(path), true
	}
	if c.o.gated() || c.kind == fault.KindGate {
		x.gated.Store(true)
		x.passGates(path)
	}
	switch {
	case row != nil && row.Orphaned:
		err = siblingFailed(x, path)
	case row != nil && row.State.Finished():
		value, err = b.reuse(row, x.askedHash(c, path, row, hash))
	case x.dry != nil:
		err = b.rehearse(r, c, path, row)
	default:
		return row, nil, nil, false
	}
	return row, value, err, true
}

// twice answers the second call of one name: a mistake, or a loop that goes on after the suspension.
func (b *branch) twice(path string) error {
	if b.over.Load() {
		return b.refuse()
	}
	return misuse(b.x, path, fault.ReasonDuplicateStep, "the name is used twice in this run: give each item of a loop its own scope with run.Item")
}

// rehearse is a step of a plan's replay: the first one without a finished row ends it.
func (b *branch) rehearse(r *Run, c *stepCall, path string, row *StepRow) error {
	if b.over.Load() {
		return b.refuse()
	}
	x := b.x
	if n := x.openGate(path); c.o.ask != nil && n > 0 {
		c, path = c.question(r, path, "", n, c.o.ask, nil), gatePath(path, n)
		row = x.j.row(path)
	}
	x.dry.reach(c, path, row)
	return b.suspend()
}

// reuse returns what a finished row holds.
func (b *branch) reuse(row *StepRow, hash []byte) ([]byte, error) {
	x := b.x
	if x.j.allPassed() && !b.over.Load() {
		x.quietN.Store(false)
	}
	if !slices.Equal(row.InputHash, hash) && !slices.Equal(row.OtherHash, hash) && row.TakenFrom == "" && x.dry == nil && x.ctx.Err() == nil {
		row.OtherHash = hash
		x.buffer(stepOp{row: row, mark: true})
	}
	if row.State != StepSucceeded {
		return nil, b.failure(row)
	}
	value := row.Value
	if value == nil && row.ValueSize > 0 {
		full, err := x.full(row.Name)
		if err != nil {
			x.logger().Error("stored result could not be read", "step", row.Name, "err", err)
			return nil, b.later()
		}
		value = full.Value
	}
	return b.opened(row.Name, value)
}

// opened is the JSON of a stored result.
func (b *branch) opened(step string, value []byte) ([]byte, error) {
	json, err := b.x.e.open(value)
	if err != nil {
		return nil, b.undecodable(step, err)
	}
	return json, nil
}

// full reads a row with its input and its value, which the pages of the journal leave out.
func (x *execution) full(name string) (row *StepRow, err error) {
	read := func(ctx context.Context, tx Txn) (err error) {
		if row, err = tx.Step(ctx, x.row.ID, name); err == nil && row == nil {
			err = ErrNotFound
		}
		return err
	}
	if x.dry != nil {
		err = read(x.hold, x.dry.tx)
	} else {
		err = x.e.store.View(x.hold, read)
	}
	if err != nil {
		return nil, fmt.Errorf("read step %q: %w", name, err)
	}
	return row, nil
}
