package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pawlrun/pawl/internal/sqlstore"
)

const (
	begin  = "BEGIN ISOLATION LEVEL READ COMMITTED"
	commit = "COMMIT"
)

var errOpen = errors.New("the transaction is undone")

// whole runs fn, which sends a transaction as a whole, on the driver's own connection, and leaves none open there. errOpen from fn
// says that one is.
func whole(ctx context.Context, conn *sql.Conn, fn func(*pgx.Conn) error) error {
	return conn.Raw(func(driverConn any) error {
		std, ok := driverConn.(*stdlib.Conn)
		if !ok {
			return fmt.Errorf("the driver's connection is a %T", driverConn)
		}
		c := std.Conn()
		err := fn(c)
		if err == nil || c.PgConn().TxStatus() == 'I' && !errors.Is(err, errOpen) {
			return err
		}
		if _, rerr := c.Exec(ctx, "ROLLBACK"); rerr != nil {
			return errors.Join(err, driver.ErrBadConn)
		}
		return err
	})
}

// send is sqlstore.Dialect.Send.
func (d *defaults) send(ctx context.Context, conn *sql.Conn, calls []sqlstore.Call) error {
	return whole(ctx, conn, func(c *pgx.Conn) error { return d.sendOn(ctx, c, calls) })
}

func (d *defaults) sendOn(ctx context.Context, c *pgx.Conn, calls []sqlstore.Call) (err error) {
	b := &pgx.Batch{}
	b.Queue(begin)
	if set := d.settings(d.hot.Load()); set != "" {
		b.Queue(set)
	}
	first := b.Len()
	for _, call := range calls {
		b.Queue(call.Text, call.Args...)
	}
	b.Queue(commit)
	r := c.SendBatch(ctx, b)
	defer func() {
		if cerr := r.Close(); err == nil {
			err = cerr
		}
	}()
	for range first {
		if _, err := r.Exec(); err != nil {
			return err
		}
	}
	for _, call := range calls {
		rows, err := r.Query()
		if err != nil {
			return err
		}
		for rows.Next() && err == nil {
			err = call.Row(pgxRows{rows})
		}
		rows.Close()
		if err = errors.Join(err, rows.Err()); err != nil {
			return err
		}
	}
	_, err = r.Exec()
	return err
}

// sendBatch is sqlstore.Dialect.SendBatch. A statement that is alone commits by itself, where the connection has all that a
// transaction would have to set.
func (d *defaults) sendBatch(ctx context.Context, conn *sql.Conn, statements []sqlstore.Batch) (first string, err error) {
	x := exchange{statements: statements}
	if set := d.settings(d.hot.Load()); len(statements) > 1 || set != "" {
		x.statements = append(make([]sqlstore.Batch, 0, len(statements)+3), sqlstore.Batch{Text: begin})
		if set != "" {
			x.statements = append(x.statements, sqlstore.Batch{Text: set})
		}
		x.from = len(x.statements)
		x.statements = append(append(x.statements, statements...), sqlstore.Batch{Text: commit})
	}
	err = whole(ctx, conn, func(c *pgx.Conn) error { return x.run(ctx, c, d) })
	return x.first, err
}

// keeps reports whether the connection may keep statements: behind some poolers the next transaction is on another one.
func keeps(c *pgx.Conn) bool {
	return c.Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement
}

// nameOf gives a statement the name that it is prepared by.
func (d *defaults) nameOf(text string) string {
	if name, ok := d.names.Load(text); ok {
		return name.(string)
	}
	name, _ := d.names.LoadOrStore(text, fmt.Sprintf("pawl_%d", d.named.Add(1)))
	return name.(string)
}
