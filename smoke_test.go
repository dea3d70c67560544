package pawl_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/pawlrun/pawl"
)

func TestRunsToTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		w := pawl.Define("enrich", "v1", func(run *pawl.Run, id string) (string, error) {
			recs, err := pawl.Repeatable(run, "fetch", id, func(_ context.Context, id string) ([]string, error) {
				b.effect("fetch")
				return []string{id, "x"}, nil
			})
			if err != nil {
				return "", err
			}
			n, err := pawl.Tx(run, "record", recs, func(ctx context.Context, tx *sql.Tx, r []string) (int, error) {
				b.effect("record")
				_, err := tx.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS scores (x TEXT)")
				return len(r), err
			})
			if err != nil {
				return "", err
			}
			ref, err := pawl.Keyed(run, "save", n, func(_ context.Context, key pawl.OpKey, n int) (string, error) {
				b.effect("save")
				if len(key) != 52 {
					return "", errors.New("bad key")
				}
				return "ref", nil
			})
			if err != nil {
				return "", err
			}
			return pawl.Once(run, "mail", ref, func(context.Context, pawl.Intent, string) (string, error) {
				b.effect("mail")
				return "sent " + ref, nil
			})
		})
		e := b.engine(w)
		stop := b.work(e)
		h, err := w.Start(t.Context(), e, "t1", pawl.Key("ticket:1"))
		if err != nil {
			t.Fatal(err)
		}
		out, err := h.Result(t.Context())
		if err != nil || out != "sent ref" {
			t.Fatalf("got %q, %v", out, err)
		}
		again, err := w.Start(t.Context(), e, "t1", pawl.Key("ticket:1"))
		if err != nil || again.ID() != h.ID() || again.New() {
			t.Errorf("same key: got %v new=%v, %v", again.ID(), again.New(), err)
		}
		if _, err := w.Start(t.Context(), e, "t2", pawl.Key("ticket:1")); !errors.Is(err, pawl.ErrConflict) {
			t.Errorf("other input: got %v, want a conflict", err)
		}
		stop()
		for _, name := range []string{"fetch", "record", "save", "mail"} {
			if n := b.count(name); n != 1 {
				t.Errorf("%s ran %d times", name, n)
			}
		}
	})
}
