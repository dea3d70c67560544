package sqlite

import (
	"database/sql"
	"testing"

	"github.com/pawlrun/pawl/internal/hooks"
)

// Preparing gives one connection to a file as the store opens it, and how many statements that keeps.
func Preparing(t testing.TB, path string) (conn *sql.Conn, kept func() int) {
	t.Helper()
	c, err := newConnector(path, shortly, hooks.Store{})
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(preparing{c})
	conn, err = db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn, func() (n int) {
		err := conn.Raw(func(c any) error {
			n = len(c.(*keeper).kept)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		return n
	}
}
