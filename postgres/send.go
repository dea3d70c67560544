package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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
		std, ok := driverConn.(*stdlib.Conn)
		if !ok {
			return fmt.Errorf("the driver's connection is a %T", driverConn)
		}
		c := std.Conn()
		err := fn(c)
		if err == nil || c.PgConn().TxStatus() == 'I' {
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

// sendBatch is sqlstore.Dialect.SendBatch, by the protocol itself: the parameters are in its form already. Statements are
// prepared once, unless the connection is one that must not keep any. One that is alone commits by itself, where the connection
// has all that a transaction would have to set.
func (d *defaults) sendBatch(ctx context.Context, conn *sql.Conn, statements []sqlstore.Batch) (first string, err error) {
	all, from := statements, 0
	if set := d.settings(d.hot.Load()); len(statements) > 1 || set != "" {
		all = make([]sqlstore.Batch, 0, len(statements)+3)
		all = append(all, sqlstore.Batch{Text: begin})
		if set != "" {
			all = append(all, sqlstore.Batch{Text: set})
		}
		from = len(all)
		all = append(append(all, statements...), sqlstore.Batch{Text: commit})
	}
	err = whole(ctx, conn, func(c *pgx.Conn) (err error) {
		first, err = d.sendArrays(ctx, c, all, from)
		return err
	})
	return first, err
}

var binary = []int16{pgx.BinaryFormatCode} // for all parameters

func (d *defaults) sendArrays(ctx context.Context, c *pgx.Conn, statements []sqlstore.Batch, from int) (first string, err error) {
	prepared := make([]*pgconn.StatementDescription, len(statements))
	if keeps(c) {
		for i := range statements {
			if prepared[i], err = c.Prepare(ctx, d.nameOf(statements[i].Text), statements[i].Text); err != nil {
				return "", err
			}
		}
	}
	c.PgConn().Frontend().Send(roomFor(statements))
	p := c.PgConn().StartPipeline(ctx)
	for i, s := range statements {
		if prepared[i] != nil {
			p.SendQueryStatement(prepared[i], s.Args, binary, nil)
		} else {
			p.SendQueryParams(s.Text, s.Args, nil, binary, nil)
		}
	}
	err = p.Sync()
	for i := 0; err == nil && i < len(statements); i++ {
		var results any
		if results, err = p.GetResults(); err != nil {
			break
		}
		r, ok := results.(*pgconn.ResultReader)
		if !ok {
			err = fmt.Errorf("answer %d of the server is a %T", i+1, results)
			break
		}
		for r.NextRow() {
			if i == from {
				first = string(r.Values()[0])
			}
		}
		_, err = r.Close()
	}
	// After an error the rest of the answers is of no interest.
	if cerr := p.Close(); err == nil {
		err = cerr
	}
	return first, err
}

// room is no message, but room in the buffer for those that come: it starts small each time, and would grow by being copied.
type room int

func roomFor(statements []sqlstore.Batch) (n room) {
	for _, s := range statements {
		n += 64
		for _, arg := range s.Args {
			n += room(len(arg)) + 8
		}
	}
	return n
}

// Frontend is part of [pgproto3.FrontendMessage].
func (room) Frontend() {}

// Decode is part of it, for a server.
func (room) Decode([]byte) error { return nil }

// Encode adds nothing.
func (n room) Encode(to []byte) ([]byte, error) { return slices.Grow(to, int(n)), nil }

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
