package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pawlrun/pawl/internal/pgtest"
)

// lab makes fresh databases: on one private PostgreSQL cluster, and SQLite files in one directory.
type lab struct {
	dir        string
	server     *pgtest.Server // nil without PostgreSQL
	postmaster int
	why        error // why there is no PostgreSQL
	bench      *benchTB
	number     int
	templates  map[string]target // of backlog, by peer, store and size
}

// clusterSettings are all that differs from PostgreSQL's defaults, besides port and socket. The first two undo what
// pgtest sets for tests.
var clusterSettings = []string{"shared_buffers = 128MB", "jit = on", "max_connections = 200"}

func newLab(ctx context.Context, stores []Store) (*lab, error) {
	dir, err := os.MkdirTemp("", "pawl-bench-")
	if err != nil {
		return nil, err
	}
	l := &lab{dir: dir, templates: make(map[string]target), bench: &benchTB{ctx: ctx}}
	for _, s := range stores {
		if s == Postgres {
			l.startServer()
		}
	}
	return l, nil
}

func (l *lab) startServer() {
	l.why = l.bench.try(func() {
		var opts []pgtest.Option
		for _, s := range clusterSettings {
			opts = append(opts, pgtest.Setting(s))
		}
		l.server = pgtest.Private(l.bench, opts...)
	})
	if l.server == nil {
		return
	}
	text, err := os.ReadFile(filepath.Join(l.server.DataDir(), "postmaster.pid"))
	if err == nil {
		first, _, _ := strings.Cut(string(text), "\n")
		l.postmaster, err = strconv.Atoi(first)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: the server's CPU cannot be measured:", err)
	}
}

func (l *lab) close() error {
	return errors.Join(l.bench.cleanUp(), os.RemoveAll(l.dir))
}

// fresh makes a database for a cell: an empty one, or a copy of the one that was filled for it.
func (l *lab) fresh(ctx context.Context, s Spec) (target, error) {
	l.number++
	name := fmt.Sprintf("bench_%d", l.number)
	if s.Workload == Backlog && s.Finished > 0 {
		from, err := l.template(ctx, s)
		if err != nil {
			return target{}, err
		}
		return l.copyOf(ctx, s.Store, from, name)
	}
	return l.empty(ctx, s.Store, name)
}

func (l *lab) empty(ctx context.Context, s Store, name string) (target, error) {
	if s == SQLite {
		return target{Path: filepath.Join(l.dir, name+".db")}, nil
	}
	err := l.admin(ctx, `CREATE DATABASE `+name+` TEMPLATE template0`)
	return target{URL: l.url(name), Postmaster: l.postmaster}, err
}

func (l *lab) url(database string) string {
	return strings.Replace(l.server.URL(), "/postgres?", "/"+database+"?", 1)
}

// template fills a database once for all rounds.
func (l *lab) template(ctx context.Context, s Spec) (target, error) {
	key := s.cell()
	if t, ok := l.templates[key]; ok {
		return t, nil
	}
	name := fmt.Sprintf("bench_template_%d", len(l.templates))
	t, err := l.empty(ctx, s.Store, name)
	if err != nil {
		return t, err
	}
	if _, err := runChild(ctx, job{Spec: s, Phase: fill, Target: t}); err != nil {
		return t, fmt.Errorf("fill a database: %w", err)
	}
	l.templates[key] = t
	return t, nil
}

func (l *lab) copyOf(ctx context.Context, s Store, from target, name string) (target, error) {
	if s == Postgres {
		source := from.URL[strings.LastIndexByte(from.URL, '/')+1:]
		source, _, _ = strings.Cut(source, "?")
		err := l.admin(ctx, `CREATE DATABASE `+name+` TEMPLATE `+source+` STRATEGY file_copy`)
		return target{URL: l.url(name), Postmaster: l.postmaster}, err
	}
	to := target{Path: filepath.Join(l.dir, name+".db")}
	return to, copyFile(from.Path, to.Path)
}

func copyFile(from, to string) (err error) {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }() // only read
	w, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if _, err := io.Copy(w, r); err != nil {
		return err
	}
	return w.Sync()
}

// drop removes a database that is done with.
func (l *lab) drop(ctx context.Context, t target) error {
	if t.URL == "" {
		return errors.Join(os.Remove(t.Path), removeIfThere(t.Path+"-wal"), removeIfThere(t.Path+"-shm"))
	}
	name := t.URL[strings.LastIndexByte(t.URL, '/')+1:]
	name, _, _ = strings.Cut(name, "?")
	return l.admin(ctx, `DROP DATABASE `+name+` WITH (FORCE)`)
}

func removeIfThere(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// admin runs a statement, then writes all dirty pages, so that no measurement pays for the one before it.
func (l *lab) admin(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, l.server.URL())
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	if err == nil {
		_, err = conn.Exec(ctx, `CHECKPOINT`)
	}
	return errors.Join(err, conn.Close(ctx))
}

// measure runs a cell in a child, on a database of its own.
func (l *lab) measure(ctx context.Context, s Spec, seconds float64) (r Result) {
	r, err := l.attempt(ctx, s, seconds)
	if err != nil {
		return Result{Spec: s, Error: err.Error()}
	}
	r.Round = s.Round
	return r
}

func (l *lab) attempt(ctx context.Context, s Spec, seconds float64) (r Result, err error) {
	t, err := l.fresh(ctx, s)
	if err != nil {
		return r, err
	}
	defer func() {
		err = errors.Join(err, l.drop(context.WithoutCancel(ctx), t))
	}()
	j := job{Spec: s, Phase: measure, Target: t, Seconds: seconds}
	if s.Workload == Memory || s.Workload == Waiting {
		before := j
		before.Phase = fill
		if _, err := runChild(ctx, before); err != nil {
			return r, err
		}
	}
	return runChild(ctx, j)
}

// quiet waits until others use less than cores of the machine's processors, but no longer than a minute.
func quiet(ctx context.Context, cores float64) {
	for range 60 {
		busy, own, t := machineCPU(), clientCPU(), time.Now()
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return
		}
		used := (machineCPU() - busy - (clientCPU() - own)).Seconds() / time.Since(t).Seconds()
		if used < cores {
			return
		}
	}
}

// benchTB lets pgtest, which is made for tests, serve this program: it keeps what pgtest says and what it wants done at
// the end. Methods it does not have are those of a nil TB.
type benchTB struct {
	testing.TB
	ctx    context.Context
	undo   []func()
	failed error
}

type fatal struct{ err error }

func (b *benchTB) Helper()                  {}
func (b *benchTB) Context() context.Context { return b.ctx }
func (b *benchTB) Failed() bool             { return b.failed != nil }
func (b *benchTB) Cleanup(fn func())        { b.undo = append(b.undo, fn) }
func (b *benchTB) Log(args ...any)          { fmt.Fprintln(os.Stderr, args...) }
func (b *benchTB) Logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}
func (b *benchTB) Errorf(format string, args ...any) {
	b.failed = errors.Join(b.failed, fmt.Errorf(format, args...))
}
func (b *benchTB) Fatalf(format string, args ...any) {
	panic(fatal{fmt.Errorf(format, args...)}) // as a test's Fatalf, it does not return
}

// try runs fn and gives what it called Fatalf with.
func (b *benchTB) try(fn func()) (err error) {
	defer func() {
		switch f := recover().(type) {
		case nil:
		case fatal:
			err = f.err
		default:
			panic(f)
		}
	}()
	fn()
	return nil
}

func (b *benchTB) cleanUp() error {
	b.ctx = context.WithoutCancel(b.ctx)
	for len(b.undo) > 0 {
		last := b.undo[len(b.undo)-1]
		b.undo = b.undo[:len(b.undo)-1]
		last()
	}
	return b.failed
}
