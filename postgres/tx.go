package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/pgset"
)

// InTx makes a client that starts runs inside tx, a transaction on the store's database: they are there if and only if
// it commits. It is pawl.InTx for pgx.
func InTx(e *pawl.Engine, tx pgx.Tx) pawl.Client { return pawl.ClientOn(e, conn{tx}) }

// Tx is pawl.TxIn for a pgx pool: fn runs in a transaction on a PostgreSQL database of the user's own, in which
// `pawl migrate --tx-table` has made the table pawl_tx. fn must not commit or roll back, and may be called again if the
// server aborts the transaction.
func Tx[In, Out any](run *pawl.Run, name string, pool *pgxpool.Pool, in In, fn func(context.Context, pgx.Tx, In) (Out, error), opts ...pawl.TxOption) (Out, error) {
	return pawl.TxVia(run, name, txDB{pool}, in, func(ctx context.Context, s pawl.TxSession, in In) (Out, error) {
		return fn(ctx, s.(session).tx, in)
	}, opts...)
}

// TxDo is [Tx] for a callback without a result.
func TxDo[In any](run *pawl.Run, name string, pool *pgxpool.Pool, in In, fn func(context.Context, pgx.Tx, In) error, opts ...pawl.TxOption) error {
	_, err := Tx(run, name, pool, in, func(ctx context.Context, tx pgx.Tx, in In) (pawl.None, error) {
		return pawl.None{}, fn(ctx, tx, in)
	}, opts...)
	return err
}

// conn adapts a transaction of pgx.
type conn struct{ tx pgx.Tx }

func (c conn) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := c.tx.Exec(ctx, query, args...)
	return tag.RowsAffected(), err
}

func (c conn) Query(ctx context.Context, query string, args ...any) (pawl.Rows, error) {
	rows, err := c.tx.Query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return pgxRows{rows}, nil
}

// txDB begins the user's transactions.
type txDB struct{ pool *pgxpool.Pool }

// Begin begins at READ COMMITTED: a second transaction for a step waits for the first one's record and then has to see
// it.
func (d txDB) Begin(ctx context.Context) (pawl.TxSession, error) {
	tx, err := d.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, pgset.Strengthen); err != nil {
		_ = tx.Rollback(context.WithoutCancel(ctx)) // the first error is the one to report
		return nil, err
	}
	return session{conn{tx}, tx}, nil
}

type session struct {
	conn
	tx pgx.Tx
}

func (s session) Commit(ctx context.Context) error   { return s.tx.Commit(ctx) }
func (s session) Rollback(ctx context.Context) error { return s.tx.Rollback(ctx) }
