package postgres_test

import (
	"testing"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/pgtest"
	"github.com/pawlrun/pawl/postgres"
	"github.com/pawlrun/pawl/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t testing.TB) pawl.Store { return open(t, pgtest.URL(t)) })
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
