package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pawlrun/pawl/internal/pgset"
	"github.com/pawlrun/pawl/internal/sqlstore"
)

// send runs the calls in a transaction that goes to the server as a whole, see sqlstore.Dialect.Send.
func (d *defaults) send(ctx context.Context, conn *sql.Conn, calls []sqlstore.Call) error {
	return conn.Raw(func(driverConn any) error {
		c, ok := driverConn.(*stdlib.Conn)
		if !ok {
			return fmt.Errorf("the driver's connection is a %T", driverConn)
		}
		err := d.pipeline(ctx, c.Conn(), calls)
		if err == nil || c.Conn().PgConn().TxStatus() == 'I' {
			return err
		}
		if _, rerr := c.Conn().Exec(ctx, "ROLLBACK"); rerr != nil {
			return errors.Join(err, driver.ErrBadConn)
		}
		return err
	})
}

func (d *defaults) pipeline(ctx context.Context, c *pgx.Conn, calls []sqlstore.Call) (err error) {
	b := &pgx.Batch{}
	b.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	set := "SELECT " + pgset.Plans
	if d.commit.Load() {
		set += ", " + pgset.SetCommit
	}
	if d.idle.Load() {
		set += ", " + pgset.SetIdle
	}
	b.Queue(set)
	for _, call := range calls {
		args := make([]any, len(call.Args))
		for i, a := range call.Args {
			if ids, ok := a.(sqlstore.IDs); ok {
				a = uuids(ids)
			}
			args[i] = a
		}
		b.Queue(call.Text, args...)
	}
	b.Queue("COMMIT")
	r := c.SendBatch(ctx, b)
	defer func() {
		if cerr := r.Close(); err == nil {
			err = cerr
		}
	}()
	for range 2 {
		if _, err := r.Exec(); err != nil {
			return err
		}
	}
	for _, call := range calls {
		if err := answer(r, call); err != nil {
			return err
		}
	}
	_, err = r.Exec()
	return err
}

func answer(r pgx.BatchResults, call sqlstore.Call) error {
	if call.Row == nil {
		_, err := r.Exec()
		return err
	}
	rows, err := r.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := call.Row(pgxRows{rows}); err != nil {
			return err
		}
	}
	rows.Close()
	return rows.Err()
}

// uuids is an array in the form that the driver sends as bytes.
func uuids(ids sqlstore.IDs) pgtype.FlatArray[pgtype.UUID] {
	out := make(pgtype.FlatArray[pgtype.UUID], len(ids))
	for i, id := range ids {
		if id != "" {
			out[i] = pgtype.UUID{Bytes: parseID(id), Valid: true}
		}
	}
	return out
}

// parseID reads a UUID as this module writes them; what is none gives one that names nothing.
func parseID(s string) (id [16]byte) {
	n := 0
	for i := 0; i < len(s) && n < 32; i++ {
		c := s[i]
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		default:
			continue
		}
		id[n/2] |= c << (4 * (1 - n%2))
		n++
	}
	return id
}
