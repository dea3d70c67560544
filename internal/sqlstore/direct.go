package sqlstore

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"

	"github.com/pawlrun/pawl"
)

// Direct runs statements on the connection of a driver, past database/sql, each prepared once.
type Direct struct {
	ctx        context.Context // never ends
	conn       driver.Conn
	statements map[string]driver.Stmt
	args       []driver.NamedValue
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

func (d *Direct) named(args []any) []driver.NamedValue {
	d.args = d.args[:0]
	for i, a := range args {
		d.args = append(d.args, driver.NamedValue{Ordinal: i + 1, Value: a})
	}
	return d.args
}

// exec runs a statement and returns how many rows it changed.
func (d *Direct) exec(text string, args ...any) (int64, error) {
	st, err := d.prepare(text)
	if err != nil {
		return 0, err
	}
	res, err := st.(driver.StmtExecContext).ExecContext(d.ctx, d.named(args))
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
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
	st, err := d.prepare(text)
	if err != nil {
		return 0, err
	}
	rows, err := st.(driver.StmtQueryContext).QueryContext(d.ctx, d.named(args))
	if err != nil {
		return 0, err
	}
	defer func() {
		if cerr := rows.Close(); err == nil {
			err = cerr
		}
	}()
	dest := []driver.Value{nil}
	switch err := rows.Next(dest); {
	case errors.Is(err, io.EOF):
		return 0, nil
	case err != nil:
		return 0, err
	}
	n, _ = dest[0].(int64)
	return n, nil
}
