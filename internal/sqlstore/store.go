// Package sqlstore keeps runs in a SQL database. It has every query text of both stores, the scanning and the
// migrations; packages sqlite and postgres open the database and say in which ways it differs.
package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pawlrun/pawl"
)

// Store is the [pawl.Store] over a database that the caller has opened.
type Store struct {
	d     Dialect
	texts *texts
	write *sql.DB
	read  *sql.DB // the same as write where the database has no single writer
	lease *sql.DB // a connection kept for the renewal of workers' leases
	hot   *sql.DB // connections for what is sent as a whole; the same as write where nothing is

	// turn has room for the one transaction that may write at a time, and those who wait are served in order: so a
	// renewal waits for one transaction, however many more there are. Nil where the database has no single writer.
	turn chan struct{}
	held time.Duration // since the last gap; whoever has the turn may touch it
	// The statements of the connection that writes, room for their values and for finding a shape, and the number of turns taken: whoever has the turn may
	// touch them.
	raw    *Direct
	values []any
	shaper shaper
	turns  int64

	shapes sync.Map // shapeText → the statement that inserts such a row
	forms  sync.Map // formText → the statement
	claims sync.Map // claimShape → the statement that claims so
	ears   sync.Map // *func(), the wake of each Listen

	closed chan struct{}
	close  sync.Once // closes closed

	mu  sync.Mutex
	has map[pawl.WorkerID][]pawl.VersionID // guarded by mu: what this process's workers registered
	// Guarded by mu: what was last seen of the queues of workflows, and what is on record about where runs wait.
	flows    map[string]flow
	known    map[start]bool
	backlogs map[pawl.WorkerID]*backlog // guarded by mu: of this process's workers
}

var _ pawl.Store = (*Store)(nil)

// New returns a store over the pools, which it closes. They may be the same.
func New(d Dialect, write, read, lease, hot *sql.DB) *Store {
	s := &Store{d: d, texts: newTexts(d.Fragments), write: write, read: read, lease: lease, hot: hot,
		closed: make(chan struct{}), has: make(map[pawl.WorkerID][]pawl.VersionID), flows: make(map[string]flow), known: make(map[start]bool),
		backlogs: make(map[pawl.WorkerID]*backlog)}
	if d.OneWriter {
		s.turn = make(chan struct{}, 1)
	}
	return s
}

// Name is the dialect's.
func (s *Store) Name() string { return s.d.Name }

// Writer is the pool that writes go through.
func (s *Store) Writer() *sql.DB { return s.write }

// Close closes the pools and ends listening.
func (s *Store) Close() error {
	s.close.Do(func() { close(s.closed) })
	err := errors.Join(s.finalize(), s.write.Close())
	for _, db := range []*sql.DB{s.read, s.lease, s.hot} {
		if db != s.write {
			err = errors.Join(err, db.Close())
		}
	}
	return err
}

// Update runs fn in a write transaction, see [pawl.Ledger].
func (s *Store) Update(ctx context.Context, fn func(context.Context, pawl.Txn) error) error {
	var t *txn
	var err error
	if s.turn != nil {
		err = s.again(ctx, func() error {
			return s.direct(ctx, func(d *Direct) error {
				t = &txn{s: s, c: d}
				return fn(ctx, t)
			})
		})
	} else {
		err = s.update(ctx, s.write, func(conn *sql.Conn, tx *sql.Tx, _ func()) error {
			t = &txn{s: s, c: s.on(conn, tx)}
			return fn(ctx, t)
		})
	}
	if err == nil {
		s.committed(t)
	}
	return err
}

// UpdateSQL is Update that also hands out the transaction, see [pawl.Ledger].
func (s *Store) UpdateSQL(ctx context.Context, hold time.Duration, fn func(context.Context, pawl.Txn, *sql.Tx) error) error {
	var t *txn
	err := s.update(ctx, s.write, func(_ *sql.Conn, tx *sql.Tx, give func()) (err error) {
		ctx := ctx
		if s.turn != nil {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, hold)
			defer cancel()
			undo := context.AfterFunc(ctx, func() { // also if fn does not look at its context
				_ = tx.Rollback()
				give()
			})
			defer func() {
				if !undo() && err == nil {
					err = fmt.Errorf("the transaction took longer than %v: %w", hold, ctx.Err())
				}
			}()
		}
		t = &txn{s: s, c: pawl.SQLConn(tx)}
		return fn(ctx, t, tx)
	})
	if err == nil {
		s.committed(t)
	}
	return err
}

// renew is Update for a worker's lease: it does not wait for connections that steps may hold.
func (s *Store) renew(ctx context.Context, fn func(context.Context, *txn) error) error {
	return s.update(ctx, s.lease, func(conn *sql.Conn, tx *sql.Tx, _ func()) error { return fn(ctx, &txn{s: s, c: s.on(conn, tx)}) })
}

// update runs fn in a write transaction. fn may give the turn away before its end, once the transaction is rolled back.
func (s *Store) update(ctx context.Context, db *sql.DB, fn func(conn *sql.Conn, tx *sql.Tx, give func()) error) error {
	return s.again(ctx, func() error {
		return s.inTx(ctx, db, &sql.TxOptions{Isolation: s.d.Write}, func(conn *sql.Conn, tx *sql.Tx, give func()) error {
			if s.d.Begin != nil {
				if err := s.d.Begin(ctx, tx); err != nil {
					return fmt.Errorf("begin: %w", err)
				}
			}
			return fn(conn, tx, give)
		})
	})
}

// View runs fn in a snapshot, see [pawl.Ledger].
func (s *Store) View(ctx context.Context, fn func(context.Context, pawl.Txn) error) error {
	return s.again(ctx, func() error {
		return s.inTx(ctx, s.read, &sql.TxOptions{Isolation: s.d.Read, ReadOnly: true}, func(conn *sql.Conn, tx *sql.Tx, _ func()) error {
			return fn(ctx, &txn{s: s, c: s.on(conn, tx), readOnly: true})
		})
	})
}

// on is a transaction that nobody else uses, on its connection.
func (s *Store) on(conn *sql.Conn, tx *sql.Tx) pawl.Conn {
	if s.d.Native == nil {
		return pawl.SQLConn(tx)
	}
	return s.d.Native(conn, tx)
}

// On gives the row operations on a transaction of the caller's.
func (s *Store) On(conn pawl.Conn) pawl.Txn { return &txn{s: s, c: conn} }

// again repeats do while the database aborts it for reasons of concurrency. What may have been committed is never
// repeated.
func (s *Store) again(ctx context.Context, do func() error) error {
	for try := 0; ; try++ {
		err := do()
		if c := s.d.Classify(err); err == nil || errors.Is(err, pawl.ErrCommitUnknown) || c != Aborted && c != Locked {
			return err
		}
		most := min(5*time.Millisecond<<min(try, 7), 500*time.Millisecond)
		if s.turn != nil {
			most = gap / 2
		}
		t := time.NewTimer(rand.N(most))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("%w after %d tries: %w", context.Cause(ctx), try+1, err)
		}
	}
}

// Of several processes on one file none can see that another one waits for the write lock. So each leaves it alone for
// a gap after so much of holding it, and a waiting one asks more often than that.
const (
	gap      = 16 * time.Millisecond
	gapAfter = 500 * time.Millisecond
)

// passOn gives the turn to the next transaction of this process, after a gap for those of others.
func (s *Store) passOn(held time.Duration) {
	if s.held += held; s.held < gapAfter {
		<-s.turn
		return
	}
	s.held = 0
	time.AfterFunc(gap, func() { <-s.turn })
}

// commitGrace is how long a COMMIT that has been sent is waited for after the caller's context has ended: cutting it
// off would leave the caller without an answer to whether it was applied.
const commitGrace = 10 * time.Second

// inTx runs fn in one transaction: committed if fn returns nil, rolled back on an error and on a panic. The error that
// came first is the one that is returned.
//
// The transaction's own context is not the caller's, so that a context that ends while COMMIT is under way does not
// tear it down; statements get the caller's.
func (s *Store) inTx(ctx context.Context, db *sql.DB, opts *sql.TxOptions, fn func(conn *sql.Conn, tx *sql.Tx, give func()) error) (err error) {
	conn, give, err := s.take(ctx, db, opts.ReadOnly)
	if err != nil {
		return err
	}
	defer give()
	txCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, cancel)
	tx, err := conn.BeginTx(txCtx, opts)
	ended := !stop()
	if err != nil {
		s.discard(conn, err)
		if ended {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("begin: %w", err)
	}
	committing := false
	defer func() {
		if !committing { // also while a panic passes through
			_ = tx.Rollback()
			s.discard(conn, err)
		}
	}()
	if ended {
		return context.Cause(ctx)
	}
	if err := fn(conn, tx, give); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	committing = true
	return s.commit(ctx, cancel, conn, tx)
}

// take gives a connection of db and, where there is a single writer, the turn. give returns both.
func (s *Store) take(ctx context.Context, db *sql.DB, readOnly bool) (conn *sql.Conn, give func(), err error) {
	conn, err = db.Conn(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("connect: %w", err)
	}
	back := func() { _ = conn.Close() } // to the pool; there is nothing to do about an error
	if s.turn == nil || readOnly {
		return conn, back, nil
	}
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		back()
		return nil, nil, context.Cause(ctx)
	}
	s.turns++
	took := time.Now()
	return conn, sync.OnceFunc(func() {
		back() // also if the caller goes on: others need it
		s.passOn(time.Since(took))
	}), nil
}

func (s *Store) commit(ctx context.Context, cancel func(), conn *sql.Conn, tx *sql.Tx) error {
	settled := grace(ctx, cancel)
	err := tx.Commit()
	settled()
	if err == nil {
		return nil
	}
	s.discard(conn, err)
	return s.notCommitted(err)
}

// grace calls cancel commitGrace after ctx has ended, unless settled is called before.
func grace(ctx context.Context, cancel func()) (settled func()) {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		t := time.NewTimer(commitGrace)
		defer t.Stop()
		select {
		case <-done:
		case <-t.C:
			cancel()
		}
	})
	return func() {
		close(done)
		stop()
	}
}

func (s *Store) notCommitted(err error) error {
	if s.d.CommitUnknown(err) {
		return fmt.Errorf("%w: %w", pawl.ErrCommitUnknown, err)
	}
	return fmt.Errorf("commit: %w", err)
}

// discard takes a connection out of the pool whose server has said that it takes no writes: after a failover the old
// primary goes on answering, and a pool that keeps such connections never finds the new one.
func (s *Store) discard(conn *sql.Conn, err error) {
	if err != nil && s.d.Classify(err) == Unusable {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}
}

// txn is the row operations inside one transaction.
type txn struct {
	s        *Store
	c        pawl.Conn
	readOnly bool

	added  []start // where runs wait that was put on record
	queues bool    // settings of queues were changed
}

var _ pawl.Txn = (*txn)(nil)

func (t *txn) exec(ctx context.Context, query string, args ...any) (int64, error) {
	return t.c.Exec(ctx, t.s.texts.get(query), args...)
}

// keepSteady keeps the planner to look-ups for the rest of the transaction.
func (t *txn) keepSteady(ctx context.Context) error {
	if t.s.d.Steady == "" {
		return nil
	}
	_, err := t.exec(ctx, t.s.d.Steady)
	return err
}

// row runs a query that gives at most one row and reports whether there was one.
func (t *txn) row(ctx context.Context, query string, args, dest []any) (found bool, err error) {
	err = t.rows(ctx, query, args, func(rows pawl.Rows) error {
		found = true
		return rows.Scan(dest...)
	})
	return found, err
}

// Eacher is a [pawl.Conn] that calls row for each row of a query by itself.
type Eacher interface {
	Each(ctx context.Context, query string, args []any, row func(pawl.Rows) error) error
}

// rows calls each for every row. It reads to the end, so that an error that comes late is not missed.
func (t *txn) rows(ctx context.Context, query string, args []any, each func(pawl.Rows) error) (err error) {
	if c, ok := t.c.(Eacher); ok {
		return c.Each(ctx, t.s.texts.get(query), args, each)
	}
	rows, err := t.c.Query(ctx, t.s.texts.get(query), args...)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := rows.Close(); err == nil {
			err = cerr
		}
	}()
	for rows.Next() {
		if err := each(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// list collects what scan reads from every row.
func list[T any](ctx context.Context, t *txn, scan func(pawl.Rows) (T, error), query string, args ...any) ([]T, error) {
	var all []T
	err := t.rows(ctx, query, args, func(rows pawl.Rows) error {
		v, err := scan(rows)
		if err == nil {
			all = append(all, v)
		}
		return err
	})
	return all, err
}

// listOf is list for rows whose fields are scanned one for one: into gives their places.
func listOf[T any](ctx context.Context, t *txn, into func(*T) []any, query string, args ...any) (all []T, err error) {
	err = t.rows(ctx, query, args, collect(&all, into, 0))
	return all, err
}

// collect adds each row to all, by way of one whose places are found once. room is for how many there may be.
func collect[T any](all *[]T, into func(*T) []any, room int) func(pawl.Rows) error {
	row := new(T)
	dest := into(row)
	return func(rows pawl.Rows) error {
		if err := rows.Scan(dest...); err != nil {
			return err
		}
		if *all == nil {
			*all = make([]T, 0, room)
		}
		*all = append(*all, *row)
		return nil
	}
}

const selectNow = `SELECT {now}`

// Now reads the store's clock.
func (t *txn) Now(ctx context.Context) (int64, error) {
	var now int64
	if _, err := t.row(ctx, selectNow, nil, []any{&now}); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	return now, nil
}

const selectNamespace = `SELECT namespace FROM pawl_meta WHERE one = 1`

// Namespace reads the database's own namespace.
func (t *txn) Namespace(ctx context.Context) (string, error) {
	var ns string
	found, err := t.row(ctx, selectNamespace, nil, []any{&ns})
	if err == nil && !found {
		err = fmt.Errorf("table pawl_meta is empty: %w", pawl.ErrSchema)
	}
	if err != nil {
		return "", fmt.Errorf("read the namespace: %w", err)
	}
	return ns, nil
}

const (
	selectRestored = `SELECT restored FROM pawl_meta WHERE one = 1`
	updateRestored = `UPDATE pawl_meta SET restored = {now} WHERE one = 1`
)

// Restored reads pawl_meta's one row.
func (t *txn) Restored(ctx context.Context) (at int64, err error) {
	if _, err := t.row(ctx, selectRestored, nil, []any{zero(&at)}); err != nil {
		return 0, fmt.Errorf("read when the database was restored: %w", err)
	}
	return at, nil
}

// SetRestored writes pawl_meta's one row.
func (t *txn) SetRestored(ctx context.Context) error {
	if _, err := t.exec(ctx, updateRestored); err != nil {
		return fmt.Errorf("note that the database was restored: %w", err)
	}
	return nil
}

// pool adapts a pool, for statements outside a transaction.
type pool struct{ db *sql.DB }

func (p pool) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	res, err := p.db.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (p pool) Query(ctx context.Context, query string, args ...any) (pawl.Rows, error) {
	return p.db.QueryContext(ctx, query, args...)
}

// reader gives the row operations for single reads outside a transaction.
func (s *Store) reader() *txn { return &txn{s: s, c: pool{s.read}, readOnly: true} }
