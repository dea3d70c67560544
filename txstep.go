package pawl

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/pgset"
)

// TxDB is a database of the user's own in which a transaction step keeps its record. [TxIn] and package postgres make
// them.
type TxDB interface {
	Begin(ctx context.Context) (TxSession, error)
}

// TxSession is a transaction of a [TxDB].
type TxSession interface {
	Conn
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// TxTable is the statement that makes the table of [TxIn]. bytes is the type for bytes: BYTEA or BLOB.
func TxTable(bytes string) string {
	return `CREATE TABLE IF NOT EXISTS pawl_tx (
	op_key     TEXT PRIMARY KEY,
	state      TEXT NOT NULL CHECK (state IN ('done', 'void')),
	run        TEXT NOT NULL,
	step       TEXT NOT NULL,
	attempt    BIGINT NOT NULL,
	input_hash ` + bytes + ` NOT NULL,
	value      ` + bytes + `
)`
}

// txTry is one call of a step in the store's own database.
type txTry struct {
	s       *stepRun
	row     *StepRow
	op      stepOp
	carried []stepOp // results that were not durable yet and go with it
	taken   bool     // carried is, and the run's writes wait
}

// callTx runs a step in the store's own database: the user's statements, then the results that are still buffered and
// the step's row, and last the fence, so that of two transactions for one step only one commits.
func (s *stepRun) callTx(ctx context.Context, row *StepRow) (value []byte, f *fault.Fault) {
	x, prev, fresh := s.x, s.row, *row
	t := &txTry{s: s, row: row, op: s.move(row, StepSucceeded)}
	defer t.release()
	if t.alone() {
		t.take() // the transaction holds the one write lock, so a flush would wait behind it
	}
	unknown := false
	for try := 0; ; try++ {
		var err error
		if value, f, err = t.once(ctx, unknown); err == nil {
			x.e.hooks.Reach(hooks.ResultWritten, string(x.row.ID), row.Name)
			return value, nil
		}
		switch {
		case f == nil && errors.Is(err, ErrCommitUnknown):
			// Not there means not landed yet. The next try's fence waits until the old transaction has ended.
			unknown = true
			if pause(x.hold, backoff(try, 50*time.Millisecond, time.Second)) == nil {
				continue
			}
		case aborted(f) && try < 10:
			if pause(ctx, backoff(try, 5*time.Millisecond, 500*time.Millisecond)) == nil {
				continue
			}
		}
		s.row, *row = prev, fresh
		if errors.Is(err, errRefused) && f == nil {
			return nil, &fault.Fault{Class: fault.AccessDenied, Outcome: fault.OutcomeRejected, Err: errRefused}
		}
		if errors.Is(err, ErrLeaseLost) && f == nil {
			x.lose(err)
			return nil, leaseLost()
		}
		if f == nil {
			f = fault.FromContext(s.base, ctx, err)
		}
		return nil, undone(f)
	}
}

// aborted: by the database, for reasons of concurrency.
func aborted(f *fault.Fault) bool {
	return f != nil && (f.Reason == fault.ReasonSerialization || f.Reason == fault.ReasonDeadlock)
}

func (t *txTry) alone() bool { return t.s.x.e.oneWriter() }

// take makes the run's other writes wait and takes what they have not written yet.
func (t *txTry) take() {
	if t.taken {
		return
	}
	x := t.s.x
	x.writing.take()
	x.mu.Lock()
	defer x.mu.Unlock()
	t.taken, t.carried, x.buf = true, x.buf, nil
}

// release lets the run's writes go on, and gives back what was not written.
func (t *txTry) release() {
	if !t.taken {
		return
	}
	x := t.s.x
	x.mu.Lock()
	x.buf = append(t.carried, x.buf...)
	if len(x.buf) > 0 && x.timer != nil {
		x.timer.Reset(x.e.o.flushDelay())
	}
	x.mu.Unlock()
	x.writing.leave()
}

func leaseLost() *fault.Fault {
	return &fault.Fault{Class: fault.Canceled, Reason: fault.ReasonLeaseLost, Outcome: fault.OutcomeRejected}
}

// undone is the fault of a transaction that was rolled back: a lost connection is transient, because it took the
// transaction with it.
func undone(f *fault.Fault) *fault.Fault {
	switch f.Reason {
	case fault.ReasonConnectionLost, fault.ReasonAdminShutdown, fault.ReasonCrashShutdown:
		f.Class, f.Outcome = fault.Transient, fault.OutcomeRejected
	default:
	}
	return f
}

// once is one try. With unknown set, an earlier one may have landed or be on its way: the fence comes first, which
// waits for its end, and if the row is there the step has succeeded.
func (t *txTry) once(ctx context.Context, unknown bool) (value []byte, f *fault.Fault, err error) {
	x, row := t.s.x, t.row
	var sent time.Duration
	var renewed bool
	q := x.write(nil, nil)
	var written []StepRow
	err = x.e.store.UpdateSQL(ctx, x.e.o.lease()/3, func(ctx context.Context, tx Txn, user *sql.Tx) (err error) {
		value, f, renewed, written = nil, nil, false, nil
		if unknown {
			var landed bool
			if value, landed, err = t.landed(ctx, tx); err != nil || landed {
				return err
			}
		}
		if err := t.s.mayBegin(ctx, tx); err != nil {
			return err
		}
		began := time.Now()
		if value, f = t.s.guarded(ctx, row, attempt{tx: user}); f != nil {
			return f
		}
		row.Begun = AtWrite - micro(time.Since(began))
		row.Value, row.ValueSize = value, len(value)
		t.take()
		now, err := tx.Now(ctx)
		if errors.Is(err, sql.ErrTxDone) && ctx.Err() == nil {
			f = &fault.Fault{Class: fault.InvalidRequest, Reason: fault.ReasonInvalidValue, Outcome: fault.OutcomeMaybeExecuted,
				Message: "the callback ended the transaction itself; what it wrote may be committed without a journal row"}
			return f
		}
		if err != nil {
			return err
		}
		if sent = x.w.boot(); t.alone() {
			if renewed, err = tx.ExtendLease(ctx, x.w.id.ID); err != nil {
				return err
			}
		}
		q.ops = append(slices.Clone(t.carried), t.op)
		if written, err = t.journal(ctx, tx, q, now, unknown); err != nil {
			return err
		}
		return t.s.mayCommit(ctx, tx, now)
	})
	if err != nil {
		return value, f, err
	}
	q.landed(written)
	x.durable(len(t.carried))
	t.carried = nil
	if renewed {
		x.w.extended(sent)
	}
	return value, f, nil
}

// landed reports whether an earlier try has committed. The fence is locked, so none is on its way any more.
func (t *txTry) landed(ctx context.Context, tx Txn) (value []byte, landed bool, err error) {
	if _, err := t.s.x.e.fence(ctx, tx, t.s.x.write(nil, nil)); err != nil {
		return nil, false, err
	}
	there, err := tx.Step(ctx, t.row.Run, t.row.Name)
	if err != nil || there == nil || there.State != StepSucceeded || there.Attempt != t.row.Attempt || there.Epoch != t.row.Epoch {
		return nil, false, err
	}
	*t.row = *there
	return there.Value, true, nil
}

// journal writes the carried results and the step's row, and then the fence.
func (t *txTry) journal(ctx context.Context, tx Txn, q *write, now int64, unknown bool) ([]StepRow, error) {
	e := t.s.x.e
	written, _, err := e.applyOps(ctx, tx, q, now, unknown)
	if err != nil {
		return nil, err
	}
	e.hooks.Reach(hooks.TxCommitting, string(t.row.Run), t.row.Name)
	run, err := e.fence(ctx, tx, q)
	if err != nil {
		return nil, err
	}
	if run.Lost > 0 {
		run.Lost = 0
		return written, tx.SaveRun(ctx, run)
	}
	return written, nil
}

const (
	recordInsert = `INSERT INTO pawl_tx (op_key, state, run, step, attempt, input_hash) VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (op_key) DO NOTHING`
	recordSelect = `SELECT state, run, input_hash, value FROM pawl_tx WHERE op_key = $1`
	recordRevive = `UPDATE pawl_tx SET state = 'done', run = $2, attempt = $3, input_hash = $4
		WHERE op_key = $1 AND state = 'void' AND run <> $2`
	recordResult = `UPDATE pawl_tx SET value = $2 WHERE op_key = $1`
)

// callForeign runs a step in a transaction on the user's own database, under a record that is unique by operation key.
// The record is written first, so a second transaction for the key waits for this one and then returns its result.
func (s *stepRun) callForeign(ctx context.Context, row *StepRow) ([]byte, *fault.Fault) {
	for try := 0; ; try++ {
		value, f := s.tryForeign(ctx, row)
		if f == nil {
			s.x.e.hooks.Reach(hooks.ForeignDone, string(row.Run), row.Name)
			return value, nil
		}
		again := f.Reason == fault.ReasonCommitUnknown || f.Reason == fault.ReasonSerialization || f.Reason == fault.ReasonDeadlock
		if !again || try >= 10 || pause(ctx, backoff(try, 20*time.Millisecond, time.Second)) != nil {
			return nil, undone(f)
		}
	}
}

func (s *stepRun) tryForeign(ctx context.Context, row *StepRow) (value []byte, f *fault.Fault) {
	ses, err := s.c.db.Begin(ctx)
	if err != nil {
		return nil, fault.FromContext(s.base, ctx, fault.NotSent(err))
	}
	defer func() { // after Commit this does nothing
		_ = ses.Rollback(context.WithoutCancel(ctx))
	}()
	value, found, err := s.record(ctx, ses, row, "done")
	if err != nil {
		return nil, s.recordFault(ctx, err)
	}
	if found {
		return value, nil
	}
	if value, f = s.guarded(ctx, row, attempt{user: ses}); f != nil {
		return nil, f
	}
	if _, err := ses.Exec(ctx, recordResult, string(s.key), value); err != nil {
		return nil, fault.FromContext(s.base, ctx, err)
	}
	s.x.e.hooks.Reach(hooks.TxCommitting, string(row.Run), row.Name)
	if err := ses.Commit(ctx); err != nil {
		f := fault.FromContext(s.base, ctx, err)
		if !f.Outcome.Proven() {
			f.Class, f.Reason = fault.OutcomeUnknown, fault.ReasonCommitUnknown
		}
		return nil, f
	}
	return value, nil
}

// errVoid is a record that calls the step off.
var errVoid = errors.New("the step was called off under its key")

// record writes the step's record in the given state, or finds the one that is there: found is true with the value of
// a transaction that has committed.
func (s *stepRun) record(ctx context.Context, ses TxSession, row *StepRow, state string) (value []byte, found bool, err error) {
	n, err := ses.Exec(ctx, recordInsert, string(s.key), state, string(row.Run), row.Name, row.Attempt, s.hash)
	if err != nil || n == 1 {
		return nil, false, err
	}
	var was, run string
	var hash []byte
	rows, err := ses.Query(ctx, recordSelect, string(s.key))
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = rows.Close() }() // closed below; this is for the errors between
	if !rows.Next() {
		return nil, false, fmt.Errorf("record of key %s vanished: %w", s.key, errors.Join(rows.Err(), ErrConflict))
	}
	if err := rows.Scan(&was, &run, &hash, &value); err != nil {
		return nil, false, err
	}
	if err := rows.Close(); err != nil {
		return nil, false, err
	}
	switch {
	case was == "void" && run != string(row.Run) && state == "done":
		// Called off by an earlier run of the lineage. No transaction under that record can commit any more, so this
		// run may take it over; a rival waits on the row.
		n, err := ses.Exec(ctx, recordRevive, string(s.key), string(row.Run), row.Attempt, s.hash)
		if err == nil && n != 1 {
			err = ErrConflict
		}
		return nil, false, err
	case was == "void":
		return nil, false, errVoid
	case state == "done" && !slices.Equal(hash, s.hash): // called off, it does not matter what it was done for
		return nil, false, fault.ReasonKeyConflict
	}
	return value, true, nil
}

// recordFault explains why the record could not be used.
func (s *stepRun) recordFault(ctx context.Context, err error) *fault.Fault {
	f := fault.FromContext(s.base, ctx, err)
	switch {
	case errors.Is(err, errVoid):
		f.Class, f.Reason, f.Outcome = fault.Canceled, fault.ReasonRunCanceled, fault.OutcomeRejected
	case f.Reason == fault.ReasonSchema, f.Class != fault.Transient && strings.Contains(f.Message, "pawl_tx"):
		// A missing table has a code of its own on PostgreSQL; SQLite has only the text for it.
		f.Class, f.Reason, f.Outcome = fault.InvalidRequest, fault.ReasonSchema, fault.OutcomeRejected
		f.Message = "the database has no table pawl_tx: run `pawl migrate --tx-table URL` (" + f.Message + ")"
	}
	return f
}

// callOff settles a transaction of a cancelled run that may still be under way: a record under its key says void, so
// that it can never commit, or the record of its commit is found.
func (s *stepRun) callOff() (value []byte, err error, done bool) {
	x := s.x
	ctx, cancel := context.WithTimeout(x.hold, 30*time.Second)
	defer cancel()
	row := s.next(s.row)
	row.Attempt = s.row.Attempt
	found := false
	ses, err := s.c.db.Begin(ctx)
	if err == nil {
		defer func() { _ = ses.Rollback(context.WithoutCancel(ctx)) }()
		value, found, err = s.record(ctx, ses, row, "void")
	}
	if err == nil && !found {
		err = ses.Commit(ctx)
	}
	switch {
	case err != nil && !errors.Is(err, errVoid):
		x.logger().Warn("transaction elsewhere could not be called off", "step", s.path, "err", err)
		return nil, s.b.later(), true
	case found:
		op := s.move(row, StepSucceeded)
		row.Value, row.ValueSize = value, len(value)
		x.buffer(op)
		json, err := x.e.open(value)
		return json, err, true
	}
	op := s.move(row, StepFailed)
	row.Fault = &fault.Fault{Class: fault.Canceled, Reason: fault.ReasonRunCanceled, Outcome: fault.OutcomeRejected,
		Message: "called off before it committed"}
	if s.b.orphaned() {
		row.Fault.Reason = fault.ReasonSiblingFailed
	}
	x.buffer(op)
	return nil, row.stored(), true
}

// sqlTxDB is a user's *sql.DB.
type sqlTxDB struct{ db *sql.DB }

func (d sqlTxDB) Begin(ctx context.Context) (TxSession, error) {
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	if !strings.Contains(strings.ToLower(fmt.Sprintf("%T", d.db.Driver())), "sqlite") {
		if _, err := tx.ExecContext(ctx, pgset.Strengthen); err != nil { // SQLite after all, under a wrapper
			_ = tx.Rollback()
			if tx, err = d.db.BeginTx(ctx, nil); err != nil {
				return nil, err
			}
		}
	}
	return &sqlSession{sqlConn{tx}, tx}, nil
}

type sqlSession struct {
	sqlConn
	tx *sql.Tx
}

func (s *sqlSession) Commit(context.Context) error   { return s.tx.Commit() }
func (s *sqlSession) Rollback(context.Context) error { return s.tx.Rollback() }
