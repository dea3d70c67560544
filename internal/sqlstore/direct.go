package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"reflect"
	"time"

	"github.com/pawlrun/pawl"
)

// Direct runs statements on the connection of a driver, past database/sql, each prepared once. It is a [pawl.Conn] for the
// transaction that the store has begun on it. No context reaches the driver, which would start a goroutine for each
// statement to watch it: a context that has ended keeps the next statement from being run.
type Direct struct {
	ctx        context.Context // never ends
	conn       driver.Conn
	statements map[string]driver.Stmt
	args       []driver.NamedValue
	fences     fences
}

// fences remember the claims that hold, as this connection has made or found them. That is as good as looking again while nobody
// else changes runs: what others have committed shows in the database's data version, what this process has in the number of
// turns, and what has come to the connection by database/sql, turn or not, in the number of its uses. Only transactions that keep
// the fences up to date keep them at all.
type fences struct {
	version, turn, uses int64
	hold                map[pawl.RunID]fence
}

// fence is a claim of a run.
type fence struct{ epoch, token int64 }

// keepFences is for a transaction that keeps them, in the turn that it has.
func (d *Direct) keepFences(turn int64) error {
	version, err := d.number("PRAGMA data_version")
	if err != nil {
		return err
	}
	f, uses := &d.fences, int64(0)
	used, counts := d.conn.(interface{ Uses() int64 })
	if counts {
		uses = used.Uses()
	}
	if !counts || f.hold == nil || f.version != version || f.turn != turn-1 || f.uses != uses {
		f.hold = make(map[pawl.RunID]fence)
	}
	f.version, f.turn, f.uses = version, turn, uses
	return nil
}

// direct runs fn in a write transaction on the driver's own connection. It commits if fn returns nil.
func (s *Store) direct(ctx context.Context, fn func(*Direct) error) error {
	conn, give, err := s.take(ctx, s.write, false)
	if err != nil {
		return err
	}
	defer give()
	return conn.Raw(func(driverConn any) error {
		d, err := s.prepared(ctx, driverConn)
		if err != nil {
			return err
		}
		if _, err := d.exec("BEGIN IMMEDIATE"); err != nil {
			return fmt.Errorf("begin: %w", err)
		}
		open := true
		defer func() {
			if open { // also while a panic passes through
				_, _ = d.exec("ROLLBACK")
				d.fences.hold = nil // what was seen may be what was undone
			}
		}()
		if err := fn(d); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if _, err := d.exec("COMMIT"); err != nil {
			return s.notCommitted(err)
		}
		open = false
		return nil
	})
}

// prepared gives the statements of a connection. There is one that writes; a new one starts anew.
func (s *Store) prepared(ctx context.Context, conn any) (*Direct, error) {
	c, ok := conn.(driver.Conn)
	if !ok {
		return nil, fmt.Errorf("the driver's connection is a %T", conn)
	}
	if s.raw == nil || s.raw.conn != c {
		s.raw = &Direct{ctx: context.WithoutCancel(ctx), conn: c, statements: make(map[string]driver.Stmt)}
	}
	return s.raw, nil
}

// finalize closes the prepared statements, for a connection that has some open does not close the file. A transaction that is
// under way is waited for, but not for ever.
func (s *Store) finalize() (err error) {
	if s.turn == nil {
		return nil
	}
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-t.C:
		return nil
	}
	if s.raw == nil {
		return nil
	}
	for _, st := range s.raw.statements {
		err = errors.Join(err, st.Close())
	}
	s.raw = nil
	return err
}

// others is the data version as the connection sees it that writes, whose own commits do not change it. It takes a turn for that,
// which ends no fences.
func (s *Store) others(ctx context.Context) (version int64, err error) {
	conn, give, err := s.take(ctx, s.write, false)
	if err != nil {
		return 0, err
	}
	defer give()
	err = conn.Raw(func(driverConn any) error {
		d, err := s.prepared(ctx, driverConn)
		if err == nil {
			err = d.keepFences(s.turns)
			version = d.fences.version
		}
		return err
	})
	return version, err
}

func (d *Direct) prepare(text string) (driver.Stmt, error) {
	if st, ok := d.statements[text]; ok {
		return st, nil
	}
	st, err := d.conn.Prepare(text)
	if err != nil {
		return nil, err
	}
	d.statements[text] = st
	return st, nil
}

func (d *Direct) named(args []any) ([]driver.NamedValue, error) {
	d.args = d.args[:0]
	for i, a := range args {
		switch a.(type) {
		case nil, string, int64, []byte, bool:
		default:
			v, err := driver.DefaultParameterConverter.ConvertValue(a)
			if err != nil {
				return nil, err
			}
			a = v
		}
		d.args = append(d.args, driver.NamedValue{Ordinal: i + 1, Value: a})
	}
	return d.args, nil
}

// exec runs a statement and returns how many rows it changed.
func (d *Direct) exec(text string, args ...any) (int64, error) {
	st, err := d.prepare(text)
	if err != nil {
		return 0, err
	}
	values, err := d.named(args)
	if err != nil {
		return 0, err
	}
	res, err := st.(driver.StmtExecContext).ExecContext(d.ctx, values)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (d *Direct) query(text string, args ...any) (*directRows, error) {
	st, err := d.prepare(text)
	if err != nil {
		return nil, err
	}
	values, err := d.named(args)
	if err != nil {
		return nil, err
	}
	rows, err := st.(driver.StmtQueryContext).QueryContext(d.ctx, values)
	if err != nil {
		return nil, err
	}
	return &directRows{rows: rows, row: make([]driver.Value, len(rows.Columns()))}, nil
}

// Exec is part of [pawl.Conn].
func (d *Direct) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	return d.exec(query, args...)
}

// Query is part of [pawl.Conn]. The rows must be closed before the next statement of the same text.
func (d *Direct) Query(ctx context.Context, query string, args ...any) (pawl.Rows, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	rows, err := d.query(query, args...)
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// one is exec for a change that must find its row.
func (d *Direct) one(text string, args ...any) error {
	n, err := d.exec(text, args...)
	if err == nil && n != 1 {
		err = pawl.ErrOneByOne
	}
	return err
}

// number runs a query for one number, 0 if it gives no row.
func (d *Direct) number(text string, args ...any) (n int64, err error) {
	rows, err := d.query(text, args...)
	if err != nil {
		return 0, err
	}
	if rows.Next() {
		err = rows.Scan(&n)
	}
	return n, errors.Join(err, rows.Err(), rows.Close())
}

type directRows struct {
	rows driver.Rows
	row  []driver.Value
	err  error
}

func (r *directRows) Next() bool {
	err := r.rows.Next(r.row)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return err == nil
}

func (r *directRows) Err() error   { return r.err }
func (r *directRows) Close() error { return r.rows.Close() }

// Scan reads the row as database/sql does, for the types that the row operations use.
func (r *directRows) Scan(dest ...any) error {
	if len(dest) != len(r.row) {
		return fmt.Errorf("%d columns into %d variables", len(r.row), len(dest))
	}
	for i, to := range dest {
		if err := scanInto(to, r.row[i]); err != nil {
			return fmt.Errorf("column %d: %w", i+1, err)
		}
	}
	return nil
}

func scanInto(to any, value driver.Value) error {
	if s, ok := to.(sql.Scanner); ok {
		return s.Scan(value)
	}
	v := reflect.ValueOf(to).Elem()
	switch src := value.(type) {
	case string:
		if v.Kind() == reflect.String {
			v.SetString(src)
			return nil
		}
	case int64:
		switch {
		case v.CanInt():
			v.SetInt(src)
			return nil
		case v.Kind() == reflect.Bool:
			v.SetBool(src != 0)
			return nil
		}
	case nil:
		if v.Kind() == reflect.Pointer {
			v.SetZero()
			return nil
		}
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		return scanInto(v.Interface(), value)
	}
	return fmt.Errorf("%T into %v", value, v.Type())
}
