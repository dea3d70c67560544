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

func init() { freshExchange = 10 * time.Second } // a test may be slow

// A link is followed on for a moment only: behind what may be waiting for something, and on an old connection, nothing is sent.
func TestFollowForAMoment(t *testing.T) {
	now := time.Now()
	for name, k := range map[string]*link{
		"sent long ago":   {users: 1, sent: now.Add(-time.Minute), opened: now},
		"opened long ago": {users: 1, sent: now, opened: now.Add(-time.Minute)},
		"not sent yet":    {users: 1, sent: now, opened: now, writing: true},
		"used by two":     {users: 2, sent: now, opened: now},
	} {
		if got, _, _ := (&line{now: k}).follow(&exchange{}); got != nil {
			t.Errorf("a link that was %s is followed", name)
		}
	}
}
