package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// listenQuiet is how long a listener that hears nothing believes that its connection lives …
	listenQuiet = 30 * time.Second
	// … and listenCheck how long the server may take to say that it does.
	listenCheck = 10 * time.Second
)

const selectNotify = `SELECT pg_notify('pawl', '')`

// hint notifies the listeners of this database. By itself, because transactions that notify commit one after the other;
// this one writes nothing, so that its commit waits for no disk.
func hint(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, selectNotify)
	return err
}

// listener is a connection outside of the pools that hears notifications.
type listener struct {
	cfg   *pgx.ConnConfig
	quiet time.Duration
}

const listenPawl = `LISTEN pawl`

// listen hears notifications until ctx or the connection ends, or the connection is as old as those of a pool may get.
func (l listener) listen(ctx context.Context, _ func(context.Context) (int64, error), wake func()) error {
	conn, err := pgx.ConnectConfig(ctx, l.cfg.Copy())
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() {
		out, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(out)
	}()
	if err := l.check(ctx, conn, listenPawl); err != nil {
		if sqlState(err) == "0A000" { // a server that is compatible with PostgreSQL in other ways
			err = fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
		}
		return err
	}
	wake()
	for old := time.Now().Add(maxLifetime); time.Now().Before(old); {
		quiet, cancel := context.WithTimeout(ctx, l.quiet)
		_, err := conn.WaitForNotification(quiet)
		over := quiet.Err() != nil
		cancel()
		switch {
		case err == nil:
			wake()
		case ctx.Err() != nil || !over || conn.IsClosed():
			return err
		default: // an end of the connection that nobody has told us about shows only if something is sent
			if err := l.check(ctx, conn, `SELECT 1`); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l listener) check(ctx context.Context, conn *pgx.Conn, statement string) error {
	within, cancel := context.WithTimeout(ctx, min(listenCheck, l.quiet))
	defer cancel()
	_, err := conn.Exec(within, statement)
	return err
}
