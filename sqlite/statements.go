package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"regexp"
	"strings"
)

// mostStatements is how many prepared statements a connection keeps. The store's own are fewer; a user's Tx step may bring
// texts that never come again.
const mostStatements = 256

// preparing is a connector of the store's own connections, which parse and plan a statement once: with SQLite that takes
// longer than to run it.
type preparing struct{ *connector }

func (p preparing) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := p.connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	full, ok := c.(sqliteConn)
	if !ok {
		return c, nil
	}
	return &keeper{sqliteConn: full, kept: make(map[string]*kept)}, nil
}

// sqliteConn is what the driver's connections can do and database/sql makes use of.
type sqliteConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// keeper is a connection that keeps what it has prepared. As every connection of a driver, it is used by one goroutine at a
// time.
type keeper struct {
	sqliteConn
	kept map[string]*kept
	uses int64
}

// Uses is how often database/sql has begun something here. What runs on the connection past it does not count.
func (k *keeper) Uses() int64 { return k.uses }

// BeginTx is part of [driver.ConnBeginTx].
func (k *keeper) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	k.uses++
	return k.sqliteConn.BeginTx(ctx, opts)
}

// kept is a prepared statement.
type kept struct {
	driver.Stmt
	open bool // its rows are being read, so that it cannot be run
}

// Close is part of [driver.Conn]. A connection with open statements would not close its file.
func (k *keeper) Close() error {
	return errors.Join(k.forget(), k.sqliteConn.Close())
}

// forget finalizes all statements but those that are being read.
func (k *keeper) forget() (err error) {
	for text, st := range k.kept {
		if !st.open {
			err = errors.Join(err, st.Close())
			delete(k.kept, text)
		}
	}
	return err
}

// Prepare is part of [driver.Conn].
func (k *keeper) Prepare(text string) (driver.Stmt, error) { return k.sqliteConn.Prepare(steady(text)) }

// PrepareContext is part of [driver.ConnPrepareContext].
func (k *keeper) PrepareContext(ctx context.Context, text string) (driver.Stmt, error) {
	k.uses++
	return k.sqliteConn.PrepareContext(ctx, steady(text))
}

// steady makes a statement of Pawl's keep its plan. Where a parameter stands by itself beside a column, SQLite looks at its value: for
// the histograms that ANALYZE leaves and for the conditions of partial indexes. It then plans the statement anew whenever the value
// is another one, each time it runs. An expression, as +$1 is, it does not look into.
func steady(text string) string {
	if !strings.Contains(text, "pawl_") {
		return text // somebody else's
	}
	return parameter.ReplaceAllStringFunc(text, func(found string) string {
		if found[0] != '$' { // what is quoted
			return found
		}
		return "+" + found
	})
}

var parameter = regexp.MustCompile(`\$[0-9]+|'[^']*'|"[^"]*"`)

// statement gives the prepared statement of a text.
func (k *keeper) statement(ctx context.Context, text string) (*kept, error) {
	if st := k.kept[text]; st != nil {
		return st, nil
	}
	if len(k.kept) >= mostStatements {
		if err := k.forget(); err != nil {
			return nil, err
		}
	}
	prepared, err := k.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	st := &kept{Stmt: prepared}
	k.kept[text] = st
	return st, nil
}

// ExecContext is part of [driver.ExecerContext].
func (k *keeper) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	k.uses++
	st, err := k.statement(ctx, text)
	if err != nil {
		return nil, err
	}
	if st.open {
		return k.sqliteConn.ExecContext(ctx, text, args)
	}
	return st.Stmt.(driver.StmtExecContext).ExecContext(ctx, args)
}

// QueryContext is part of [driver.QueryerContext].
func (k *keeper) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	k.uses++
	st, err := k.statement(ctx, text)
	if err != nil {
		return nil, err
	}
	if st.open {
		return k.sqliteConn.QueryContext(ctx, text, args)
	}
	rows, err := st.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args)
	if err != nil {
		return nil, err
	}
	st.open = true
	return &reading{rows.(sqliteRows), st}, nil
}

// sqliteRows is what the driver's rows can do.
type sqliteRows interface {
	driver.Rows
	driver.RowsColumnTypeDatabaseTypeName
	driver.RowsColumnTypeLength
	driver.RowsColumnTypeNullable
	driver.RowsColumnTypePrecisionScale
	driver.RowsColumnTypeScanType
}

// reading are rows of a kept statement.
type reading struct {
	sqliteRows
	of *kept
}

func (r *reading) Close() error {
	r.of.open = false
	return r.sqliteRows.Close()
}
