package sqlite_test

import (
	"path/filepath"
	"testing"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/sqlite"
	"github.com/pawlrun/pawl/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t testing.TB) pawl.Store { return open(t, filepath.Join(t.TempDir(), "pawl.db")) })
}

func open(t testing.TB, path string) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(path, &sqlite.Options{Hooks: &hooks.Store{Offset: true}})
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
