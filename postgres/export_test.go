package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pawlrun/pawl"
)

// ConnOf is what InTx makes of a transaction.
func ConnOf(tx pgx.Tx) pawl.Conn { return conn{tx} }

// Listener listens once, on one connection, which is looked after when it was quiet for so long.
func Listener(t testing.TB, url string, quiet time.Duration) func(context.Context, func()) error {
	t.Helper()
	cfg, err := parse(url)
	if err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context, wake func()) error { return listener{cfg, quiet}.listen(ctx, nil, wake) }
}
