package pawl_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/sqlite"
)

// start of the bubble's monotonic clock
func bubbleClock() func() time.Duration {
	t0 := time.Now()
	return func() time.Duration { return time.Since(t0) + time.Hour }
}

// migrated is a SQLite file with the schema, made once: migrating costs more than most tests.
var migrated = sync.OnceValues(func() (file []byte, err error) {
	dir, err := os.MkdirTemp("", "pawl-test-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "pawl.db")
	s, err := sqlite.Open(path, nil)
	if err != nil {
		return nil, err
	}
	if err := s.Close(); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})

// bench is a store with engines and workers on it, inside a synctest bubble.
type bench struct {
	t     *testing.T
	path  string
	store *sqlite.Store
	hooks *hooks.Hooks
	opts  pawl.Options

	mu      sync.Mutex // guards effects
	effects map[string]int
}

// inBubble runs fn in a synctest bubble with a fresh SQLite store, and checks the invariants after it.
func inBubble(t *testing.T, fn func(t *testing.T, b *bench)) {
	t.Helper()
	fresh, err := migrated()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, path: filepath.Join(t.TempDir(), "pawl.db"), effects: map[string]int{}}
		if err := os.WriteFile(b.path, fresh, 0o600); err != nil {
			t.Fatal(err)
		}
		b.hooks = &hooks.Hooks{Boot: bubbleClock()}
		b.opts = pawl.Options{Lease: 6 * time.Second, Poll: time.Second, Build: "b1", Hooks: b.hooks, Logger: slog.New(testHandler{t})}
		b.open()
		defer func() {
			if err := b.store.Close(); err != nil {
				t.Error(err)
			}
		}()
		fn(t, b)
		b.check()
	})
}

func (b *bench) open() {
	b.t.Helper()
	s, err := sqlite.Open(b.path, &sqlite.Options{Hooks: &hooks.Store{WallLease: true}})
	if err != nil {
		b.t.Fatal(err)
	}
	b.store = s
}

func (b *bench) engine(defs ...pawl.Definition) *pawl.Engine {
	b.t.Helper()
	o := b.opts
	e, err := pawl.New(b.store, &o, defs...)
	if err != nil {
		b.t.Fatal(err)
	}
	return e
}

// work runs a worker until the returned stop is called.
func (b *bench) work(e *pawl.Engine) (stop func()) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Work(ctx) }()
	return func() {
		b.t.Helper()
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("Work: %v", err)
		}
	}
}

func (b *bench) effect(name string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.effects[name]++
	return b.effects[name]
}

func (b *bench) count(name string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.effects[name]
}

// check asserts the invariants over the rows at rest.
func (b *bench) check() {
	b.t.Helper()
	found, err := b.store.Check(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	for _, f := range found {
		if f.Level == "error" {
			b.t.Errorf("invariant %s, run %s: %s", f.Rule, f.Run, f.Text)
		}
	}
}

func (b *bench) show(e *pawl.Engine, id pawl.RunID) *pawl.RunDetail {
	b.t.Helper()
	d, err := e.Show(b.t.Context(), id)
	if err != nil {
		b.t.Fatal(err)
	}
	return d
}

// until waits, in bubble time, for the run to reach a state.
func (b *bench) until(id pawl.RunID, want ...pawl.RunState) {
	b.t.Helper()
	for range 20_000 {
		var run *pawl.RunRow
		err := b.store.View(b.t.Context(), func(ctx context.Context, tx pawl.Txn) (err error) {
			run, err = tx.LockRun(ctx, id)
			return err
		})
		if err != nil {
			b.t.Fatal(err)
		}
		if slices.Contains(want, run.State) {
			return
		}
		if run.State.Terminal() {
			b.t.Fatalf("run is %s, want %v; fault %+v", run.State, want, run.Fault)
		}
		time.Sleep(200 * time.Millisecond)
	}
	b.t.Fatalf("run never became %v", want)
}

func (b *bench) entry(e *pawl.Engine, kind pawl.EntryKind) pawl.Entry {
	b.t.Helper()
	all, _, err := e.Inbox(b.t.Context(), pawl.InboxQuery{})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, en := range all {
		if en.Kind == kind {
			return en
		}
	}
	b.t.Fatalf("inbox has no %s entry: %+v", kind, all)
	return pawl.Entry{}
}

type testHandler struct{ t *testing.T }

func (h testHandler) Enabled(context.Context, slog.Level) bool { return testing.Verbose() }
func (h testHandler) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	h.t.Log(line)
	return nil
}
func (h testHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h testHandler) WithGroup(string) slog.Handler      { return h }
