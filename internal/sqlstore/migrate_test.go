package sqlstore_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/pgtest"
	"github.com/pawlrun/pawl/internal/sqlstore"
	"github.com/pawlrun/pawl/postgres"
	"github.com/pawlrun/pawl/sqlite"
)

// released are the migrations that databases out there have been through. They never change; a new one is added.
var released = map[string]string{
	"001_base.sql": "b08fadefdc2abbab326bce546666996fb552cd9b535a956c4bdee061a69e4d5a",
}

func TestMigrationsNeverChange(t *testing.T) {
	t.Parallel()
	_, texts, err := sqlstore.Versions()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range texts {
		sum := sha256.Sum256([]byte(text))
		if got := hex.EncodeToString(sum[:]); got != released[name] {
			t.Errorf("migration %s has hash %s, and %q is on record: add a new migration, do not change one that is released", name, got, released[name])
		}
	}
	if len(texts) != len(released) {
		t.Errorf("%d migrations, %d on record", len(texts), len(released))
	}
}

// store is what both stores have in common here.
type store interface {
	pawl.Store
	Migrate(context.Context) error
	CheckSchema(context.Context) error
}

func openStore(ctx context.Context, url string, migrate bool) (store, *sqlstore.Store, error) {
	if strings.HasPrefix(url, "postgres") {
		s, err := postgres.Open(ctx, url, &postgres.Options{Migrate: migrate, MaxConns: 3})
		if err != nil {
			return nil, nil, err
		}
		return s, s.Store, nil
	}
	s, err := sqlite.Open(url, nil)
	if err != nil {
		return nil, nil, err
	}
	return s, s.Store, nil
}

func onBoth(t *testing.T, test func(t *testing.T, url string)) {
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, filepath.Join(t.TempDir(), "pawl.db"))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(t, pgtest.URL(t))
	})
}

// TestMigrateProcess is one of the processes of TestMigrateAtOnce.
func TestMigrateProcess(t *testing.T) {
	url := os.Getenv("PAWL_TEST_MIGRATE")
	if url == "" {
		return // the ordinary run of this package's tests
	}
	s, _, err := openStore(t.Context(), url, true)
	if err != nil {
		t.Fatal(err)
	}
	closed(t, s)
}

func TestMigrateAtOnce(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, url string) {
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				if i >= 4 { // half of them are threads
					s, _, err := openStore(t.Context(), url, true)
					if err != nil {
						t.Error(err)
						return
					}
					closed(t, s)
					return
				}
				cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMigrateProcess$")
				cmd.Env = append(os.Environ(), "PAWL_TEST_MIGRATE="+url)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
		wg.Wait()
		s, _, err := openStore(t.Context(), url, false)
		if err != nil {
			t.Fatal(err)
		}
		defer closed(t, s)
		if err := s.Migrate(t.Context()); err != nil {
			t.Errorf("migrating what is migrated: %v", err)
		}
	})
}

func TestNewerSchemaIsRefused(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, url string) {
		s, inner, err := openStore(t.Context(), url, true)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := inner.Writer().ExecContext(t.Context(), `INSERT INTO pawl_schema (version_id, is_applied) VALUES (99, $1)`, isApplied(url)); err != nil {
			t.Fatal(err)
		}
		closed(t, s)
		for _, migrate := range []bool{true, false} {
			_, _, err := openStore(t.Context(), url, migrate)
			if !errors.Is(err, pawl.ErrSchema) || !strings.Contains(err.Error(), "99") || !strings.Contains(err.Error(), "up to 1") {
				t.Errorf("migrate %t: %v; want ErrSchema that names versions 99 and 1", migrate, err)
			}
		}
	})
}

func isApplied(url string) any {
	if strings.HasPrefix(url, "postgres") {
		return true
	}
	return 1
}

func TestMissingSchemaIsRefused(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	_, _, err := openStore(t.Context(), url, false)
	if !errors.Is(err, pawl.ErrSchema) || !strings.Contains(err.Error(), "pawl migrate --db") {
		t.Errorf("Open of an empty database = %v; want ErrSchema that says what to run", err)
	}
	s, inner, err := openStore(t.Context(), url, true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := inner.Writer().ExecContext(t.Context(), `DELETE FROM pawl_schema WHERE version_id = 1`); err != nil {
		t.Fatal(err)
	}
	closed(t, s)
	if _, _, err := openStore(t.Context(), url, false); !errors.Is(err, pawl.ErrSchema) {
		t.Errorf("Open of an old database = %v; want ErrSchema", err)
	}
}

// A worker that is gone is forgotten: what it had is kept for its heartbeats only.
func TestUnregisterForgets(t *testing.T) {
	t.Parallel()
	s, inner, err := openStore(t.Context(), filepath.Join(t.TempDir(), "pawl.db"), true)
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, s)
	w := pawl.WorkerRow{ID: "5f1c1f5e-0000-4000-8000-000000000000", Lease: 1}
	if err := errors.Join(s.Register(t.Context(), w, nil), s.Unregister(t.Context(), w.ID)); err != nil {
		t.Fatal(err)
	}
	if left := inner.HasOf(); len(left) != 0 {
		t.Errorf("the store remembers %v", left)
	}
}
