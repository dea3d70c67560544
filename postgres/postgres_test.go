package postgres_test

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/pgtest"
	"github.com/pawlrun/pawl/postgres"
	"github.com/pawlrun/pawl/storetest"
)

func TestStore(t *testing.T) {
	s := &schemas{url: pgtest.URL(t)}
	storetest.Run(t, func(t testing.TB) pawl.Store { return open(t, s.take(t)) })
}

// schemas are schemas of one database for tests that want it empty. To make one takes longer than most of the tests do, so
// that they are emptied and used again.
type schemas struct {
	url string

	mu   sync.Mutex
	free []string // guarded by mu
}

// take gives a URL that leads into an empty schema, which is given back when the test ends.
func (s *schemas) take(t testing.TB) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var name string
	if n := len(s.free); n > 0 {
		name, s.free = s.free[n-1], s.free[:n-1]
	} else {
		name = "s" + strings.ToLower(rand.Text())
		s.exec(t, "CREATE SCHEMA "+name)
	}
	t.Cleanup(func() {
		if t.Failed() { // for whoever looks at it
			return
		}
		s.exec(t, `DO $$ DECLARE one name; BEGIN
			FOR one IN SELECT tablename FROM pg_tables WHERE schemaname = '`+name+`' AND tablename NOT IN ('pawl_meta', 'pawl_schema', 'pawl_test_clock') LOOP
				EXECUTE format('DELETE FROM `+name+`.%I', one);
			END LOOP;
			UPDATE `+name+`.pawl_test_clock SET offset_us = 0;
		END $$`)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.free = append(s.free, name)
	})
	return s.url + "&search_path=" + name
}

func (s *schemas) exec(t testing.TB, statement string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, statement); err != nil {
		t.Fatal(err)
	}
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
