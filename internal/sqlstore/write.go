package sqlstore

import (
	"context"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

// Call is one statement of a transaction that is sent as a whole, and what reads a row of its answer.
type Call struct {
	Text string
	Args []any
	Row  func(pawl.Rows) error
}

// Write applies the changes in one transaction, see [pawl.Ledger].
func (s *Store) Write(ctx context.Context, changes []pawl.Change) (now int64, err error) {
	write := s.writeRows
	if s.d.SendBatch != nil {
		write = s.writeArrays
	}
	if err := s.ensureWays(ctx, changes); err != nil {
		return 0, fmt.Errorf("write %d changes: %w", len(changes), err)
	}
	now, err = write(ctx, changes)
	switch s.d.Classify(err) {
	case SameRow, SameMark, Refused, Invalid:
		err = fmt.Errorf("%w: %w", pawl.ErrOneByOne, err)
	case Other, Aborted, Locked, Unusable: // nothing about the changes
	}
	if err != nil {
		return 0, fmt.Errorf("write %d changes: %w", len(changes), err)
	}
	return now, nil
}

// openStates are the states of steps that keep a run from its end.
const openStates = `('waiting', 'in_flight', 'retrying', 'uncertain')`

const (
	rowFence = `SELECT 1 FROM pawl_runs{byid} WHERE id = $1 AND epoch = $2 AND token = $3 AND state = 'running'`

	rowSettle = `UPDATE pawl_steps SET state = 'succeeded', ended = $4, value = $5%s
WHERE run = $1 AND name = $2 AND attempt = $3 AND state IN ('in_flight', 'waiting')`

	rowEnd = `UPDATE pawl_runs{byid} SET state = $2, epoch = epoch + 1, token = NULL, owner = NULL, due = NULL, ended = $3, fault = $4,
	result = $5
WHERE id = $1 AND intended IS NULL AND called IS NULL AND (SELECT count(*) FROM pawl_steps{byrun} WHERE run = $1
	AND (state = 'waiting' OR state = 'in_flight' OR state = 'retrying' OR state = 'uncertain')) = 0` // as openStates, see Store.words

	rowStart = `INSERT INTO pawl_runs (id, lineage, relation, workflow, version, key_name, new_keys, queue, state, due, epoch, token,
	owner, claimed, created, started, lost, lost_total, releases, builds, input_hash, input, deadline, time_limit, priority, share)
VALUES ($1, $1, '', $2, $3, $4, FALSE, $5, $6, $7, $8, $9, $10, $11, $12, $11, 0, 0, 0, $13, $14, $15, $16, $17, $18, $19)`
)

// writeRows is Write for a database inside the process: a statement for each row costs no round trip there.
func (s *Store) writeRows(ctx context.Context, changes []pawl.Change) (now int64, err error) {
	err = s.again(ctx, func() error {
		return s.direct(ctx, func(d *Direct) (err error) {
			if err = d.keepFences(s.turns); err != nil {
				return err
			}
			if now, err = d.number(s.texts.get(selectNow)); err != nil {
				return err
			}
			for i := range changes {
				if err := s.writeChange(d, &changes[i], now); err != nil {
					return err
				}
			}
			return nil
		})
	})
	return now, err
}

func (s *Store) writeChange(d *Direct, c *pawl.Change, now int64) error {
	if c.Start != nil {
		return s.writeStart(d, c.Start, now)
	}
	if err := s.mustHold(d, c); err != nil {
		return err
	}
	for _, row := range c.Insert {
		if err := s.writeInsert(d, row, now); err != nil {
			return err
		}
	}
	for _, it := range c.Items {
		if err := s.writeItem(d, it, now); err != nil {
			return err
		}
	}
	for _, row := range c.Settle {
		if err := s.writeSettle(d, row, now); err != nil {
			return err
		}
	}
	if c.End == nil {
		return nil
	}
	delete(d.fences.hold, c.Run)
	failure, err := faultText(c.End.Fault)
	if err != nil {
		return err
	}
	if err := d.one(s.texts.get(rowEnd), string(c.Run), string(c.End.State), now, str(failure), raw(c.End.Result)); err != nil {
		return err
	}
	if r := c.End.Row; r.Key != "" && !r.NewKeys {
		_, err = d.exec(s.texts.get(endKey), r.KeyName, string(r.Key), string(r.Lineage), string(c.End.State), now)
	}
	return err
}

// mustHold is the fence of a change.
func (s *Store) mustHold(d *Direct, c *pawl.Change) error {
	claim := fence{c.Epoch, c.Token}
	if d.fences.hold[c.Run] == claim {
		return nil
	}
	held, err := d.number(s.texts.get(rowFence), string(c.Run), c.Epoch, c.Token)
	if err == nil && held != 1 {
		err = pawl.ErrOneByOne
	}
	if err == nil {
		d.fences.hold[c.Run] = claim
	}
	return err
}

func (s *Store) writeInsert(d *Direct, row *pawl.StepRow, now int64) error {
	stored := *row
	stored.Resolve(now)
	s.shaper = shaper{}
	if err := putStep(&stored, &s.shaper); err != nil {
		return err
	}
	a := args{all: s.values[:0], short: true}
	if err := putStep(&stored, &a); err != nil {
		return err
	}
	s.values = a.all
	of := shapeText{shape: s.shaper.shape, kind: row.Kind, state: row.State, first: row.Attempt == 1}
	at, words := bits.OnesCount64(of.set&(1<<kindAt-1)), 2
	if of.first {
		words = 3
	}
	_, err := d.exec(s.shaped(of, of.insert), slices.Delete(a.all, at, at+words)...)
	return err
}

func (s *Store) writeSettle(d *Direct, row *pawl.StepRow, now int64) error {
	a := args{all: append(s.values[:0], string(row.Run), row.Name, int64(row.Attempt), now, raw(row.Value)), short: true}
	putUsage(row, &a)
	s.values = a.all
	s.shaper = shaper{}
	putUsage(row, &s.shaper)
	return d.one(s.shaped(shapeText{shape: s.shaper.shape, as: settle}, rowSettleOf), a.all...)
}

func (s *Store) writeItem(d *Direct, it *pawl.ItemRow, now int64) error {
	failure, err := faultText(it.Fault)
	if err == nil {
		_, err = d.exec(insertItem, string(it.Run), it.Batch, it.Item, string(it.State), it.Epoch, now, raw(it.InputHash), str(failure), raw(it.Value))
	}
	return err
}

// insert is the statement for one row. What few words there are for stands in it, as do first attempts: a parameter costs more.
func (of shapeText) insert(shape) string {
	var names, params []string
	n := 0
	for _, at := range of.columns() {
		names = append(names, stepNames[at])
		switch {
		case at == kindAt:
			params = append(params, "'"+of.kind.String()+"'")
		case at == kindAt+1:
			params = append(params, "'"+string(of.state)+"'")
		case at == kindAt+2 && of.first:
			params = append(params, "1")
		default:
			n++
			params = append(params, fmt.Sprintf("$%d", n))
		}
	}
	return `INSERT INTO pawl_steps (` + strings.Join(names, ", ") + `) VALUES (` + strings.Join(params, ", ") + `)`
}

// kindAt is the place of a step's kind. Its state and its attempt come after it.
var kindAt = slices.Index(stepNames, "kind")

// rowSettleOf has parameters for those of the columns of usage that are in the shape.
func rowSettleOf(sh shape) string {
	var sets strings.Builder
	n := 5
	for i, name := range strings.Fields(usageNames) {
		value := "NULL"
		if sh.set&(1<<i) != 0 {
			n++
			value = fmt.Sprintf("$%d", n)
		}
		sets.WriteString(", " + name + " = " + value)
	}
	return fmt.Sprintf(rowSettle, sets.String())
}

// shapeText is which of the statements for a shape. The last three are a single row's.
type shapeText struct {
	shape
	as    int
	kind  fault.Kind
	state pawl.StepState
	first bool
}

const (
	single     = iota // one row
	arrays            // a form, of rows that differ in every column
	evenArrays        // … and of rows that differ only where rows usually do
	settle            // one row that is settled; its shape is of the columns of usage
)

// shaped gives the statement for a shape, made once.
func (s *Store) shaped(of shapeText, text func(shape) string) string {
	if q, ok := s.shapes.Load(of); ok {
		return q.(string)
	}
	q := s.texts.r.Replace(text(of.shape))
	s.shapes.Store(of, q)
	return q
}

func (s *Store) writeStart(d *Direct, r *pawl.RunRow, now int64) error {
	begin, deadline := max(r.Due, now), int64(0)
	if r.TimeLimit > 0 {
		deadline = begin + r.TimeLimit
	}
	var due, claimed any = begin, nil
	if r.State == pawl.Running {
		d.fences.hold[r.ID] = fence{r.Epoch, r.Token} // taken back with the row, should it be undone
		due, claimed = nil, now
		special, err := d.number(countSpecial, r.Queue)
		if err != nil {
			return err
		}
		if special > 0 { // it has to wait for its turn there
			return pawl.ErrOneByOne
		}
	}
	_, err := d.exec(rowStart, string(r.ID), r.Workflow, r.Version, r.KeyName, r.Queue, string(r.State), due, r.Epoch, num(r.Token),
		str(r.Owner), claimed, now, str(r.Builds), raw(r.InputHash), raw(r.Input), num(deadline), num(r.TimeLimit), int64(r.Priority), string(r.Share))
	return err
}
