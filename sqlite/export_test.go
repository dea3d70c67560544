package sqlite

import (
	"database/sql"
	"errors"
	"sync/atomic"
	"testing"

	driver "modernc.org/sqlite"

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

// Planned counts what the connection that a store writes by asks for leave for while it plans statements.
func Planned(t testing.TB, s *Store) *atomic.Int64 {
	t.Helper()
	n := new(atomic.Int64)
	conn, err := s.Writer().Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = conn.Raw(func(c any) error {
		return c.(*keeper).sqliteConn.(driver.AuthorizerRegisterer).RegisterAuthorizer(
			func(driver.AuthorizerActionCode, string, string, string, string) driver.AuthorizerReturnCode {
				n.Add(1)
				return driver.AuthorizerOK
			})
	})
	if err := errors.Join(err, conn.Close()); err != nil {
		t.Fatal(err)
	}
	return n
}

// Steady is the text that is prepared in place of another one.
func Steady(text string) string { return steady(text) }
