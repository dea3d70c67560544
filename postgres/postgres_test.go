package postgres_test

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/pgtest"
	"github.com/pawlrun/pawl/postgres"
	"github.com/pawlrun/pawl/storetest"
)

func TestStore(t *testing.T) {
	url := pgtest.URL(t)
	storetest.Run(t, func(t testing.TB) pawl.Store { return open(t, schema(t, url)) })
}

// schema makes an empty schema in the database at url, which takes a fraction of the time of a database, and returns a
// URL that leads into it.
func schema(t testing.TB, url string) string {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	name := "s" + strings.ToLower(rand.Text())
	if _, err := conn.Exec(ctx, "CREATE SCHEMA "+name); err != nil {
		t.Fatal(err)
	}
	return url + "&search_path=" + name
}

func open(t testing.TB, url string) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(t.Context(), url, &postgres.Options{Migrate: true, MaxConns: 10, Hooks: &hooks.Store{Offset: true}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
