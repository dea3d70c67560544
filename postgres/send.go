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

// whole runs fn, which sends a transaction as a whole, on the driver's own connection, and leaves none open there.
func whole(ctx context.Context, conn *sql.Conn, fn func(*pgx.Conn) error) error {
	return conn.Raw(func(driverConn any) error {
		c, err := pgxConn(driverConn)
		if err != nil {
			return err
		}
		err = fn(c)
		if err == nil || c.PgConn().TxStatus() == 'I' {
			return err
		}
		if _, rerr := c.Exec(ctx, "ROLLBACK"); rerr != nil {
			return errors.Join(err, driver.ErrBadConn)
		}
		return err
	})
}

func pgxConn(driverConn any) (*pgx.Conn, error) {
	std, ok := driverConn.(*stdlib.Conn)
	if !ok {
		return nil, fmt.Errorf("the driver's connection is a %T", driverConn)
	}
	return std.Conn(), nil
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
