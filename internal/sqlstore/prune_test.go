package sqlstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pawlrun/pawl"
)

// counted is a transaction that counts its statements.
type counted struct {
	pawl.Conn
	n int
}

func (c *counted) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	c.n++
	return c.Conn.Exec(ctx, query, args...)
}

func (c *counted) Query(ctx context.Context, query string, args ...any) (pawl.Rows, error) {
	c.n++
	return c.Conn.Query(ctx, query, args...)
}

// A look that finds nothing to delete is two statements, whatever is kept, and a batch of a hundred lineages eleven.
func TestPruneStatements(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, url string) {
		s, inner, err := openStore(t.Context(), url, true)
		if err != nil {
			t.Fatal(err)
		}
		defer closed(t, s)
		finished := func(n int, ago time.Duration) {
			rows := make([]pawl.RunRow, n)
			for i := range rows {
				id := uuid.Must(uuid.NewV7())
				for k := range 6 { // of that time
					id[k] = byte(time.Now().Add(-ago).UnixMilli() >> (40 - 8*k))
				}
				run := pawl.RunID(id.String())
				rows[i] = pawl.RunRow{ID: run, Lineage: run, Workflow: "w", Version: "1", KeyName: "w", Queue: "w", Key: pawl.Key(run),
					State: pawl.Succeeded, Ended: time.Now().Add(-ago).UnixMicro()}
			}
			if err := s.Update(t.Context(), func(ctx context.Context, tx pawl.Txn) error { return tx.InsertRuns(ctx, rows) }); err != nil {
				t.Fatal(err)
			}
		}
		prune := func(want, lineages int) {
			t.Helper()
			tx, err := inner.Writer().BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			c := &counted{Conn: pawl.SQLConn(tx)}
			got, err := inner.PruneOn(t.Context(), c, pawl.PruneTerms{Runs: time.Hour, Keys: time.Hour, Acts: time.Hour})
			if err != nil || got.Lineages != lineages {
				t.Fatalf("pruned: %+v, %v; want %d lineages", got, err, lineages)
			}
			if c.n != want {
				t.Errorf("%d lineages took %d statements, want %d", lineages, c.n, want)
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		prune(2, 0)
		finished(3000, 0)
		prune(2, 0)
		finished(100, 2*time.Hour)
		prune(14, 100)
	})
}
