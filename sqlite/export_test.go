package sqlite

import (
	"context"
	"testing"

	"github.com/pawlrun/pawl/internal/hooks"
)

// Watch watches a file for a process whose own transactions own counts.
func Watch(t testing.TB, path string, own func() int64) func(context.Context, func()) error {
	t.Helper()
	c, err := newConnector(path, shortly, hooks.Store{})
	if err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context, wake func()) error { return watcher{c}.listen(ctx, own, wake) }
}
