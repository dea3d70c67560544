package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/pgtest"
	"github.com/pawlrun/pawl/postgres"
)

const patience = 30 * time.Second

// listen runs a listener until the test is over and returns the channel of its wakes, all of them.
func listen(t *testing.T, fn func(context.Context, func()) error) (woken chan struct{}, ended chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	woken, ended = make(chan struct{}, 1000), make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ended <- fn(ctx, func() { woken <- struct{}{} })
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return woken, ended
}

func soon[T any](t *testing.T, ch <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(patience):
		t.Fatalf("still waiting: %s", what)
	}
	return v
}

func hint(t *testing.T, s pawl.Store) {
	t.Helper()
	if err := s.Hint(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestHintsReachOtherHandles(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	from, to := open(t, url), open(t, url)
	off, err := postgres.Open(t.Context(), url, &postgres.Options{NoListen: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = off.Close() }()
	woken, _ := listen(t, to.Listen)
	deaf, _ := listen(t, off.Listen)
	soon(t, woken, "the wake that listening begins with")
	for range 3 {
		hint(t, from)
		soon(t, woken, "a hint of another handle")
	}
	hint(t, off)
	soon(t, woken, "a hint of a handle that does not listen itself")
	select {
	case <-deaf:
		t.Error("a store that was opened with NoListen listens")
	case <-time.After(500 * time.Millisecond): // time to connect
	}
}

func TestListeningOutlivesTheServer(t *testing.T) {
	t.Parallel()
	server := pgtest.Private(t)
	s := open(t, server.URL())
	woken, ended := listen(t, s.Listen)
	soon(t, woken, "the wake that listening begins with")
	for name, outage := range map[string]func(testing.TB){"restart": server.Restart, "crash": func(t testing.TB) {
		server.Kill(t)
		server.Start(t)
	}} {
		outage(t)
		soon(t, woken, "the wake after a "+name+", for hints that were lost in it")
		for s.Hint(t.Context()) != nil { // the pool has connections to the old server
		}
		soon(t, woken, "a hint after a "+name)
	}
	if len(ended) > 0 {
		t.Errorf("listening has ended: %v", <-ended)
	}
}

// A connection whose other end has vanished without a word gives no error by itself.
func TestListenerFindsADeadConnection(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	proxy := pgtest.NewProxy(t, url)
	woken, ended := listen(t, postgres.Listener(t, proxy.Rewrite(t, url), 100*time.Millisecond))
	soon(t, woken, "the wake that listening begins with")
	s := open(t, url)
	select {
	case err := <-ended:
		t.Fatalf("a quiet connection was given up: %v", err)
	case <-time.After(500 * time.Millisecond): // a few looks at the connection
	}
	hint(t, s)
	soon(t, woken, "a hint after looks at the connection")
	proxy.BlackHole(true)
	if err := soon(t, ended, "the dead connection is found"); err == nil || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("listening on a dead connection = %v, want an error that lets it begin again", err)
	}
	proxy.BlackHole(false)
}
