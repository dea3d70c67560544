package storetest

import (
	"context"
	"testing"
	"time"
)

var hintRules = []rule{
	{"heard", "listening begins with a wake, and a hint after a commit is one more", testHintHeard},
	{"alone", "a hint that nobody hears is no error", testHintAlone},
	{"ends", "listening ends with its context, and when the store is closed", testListenEnds},
}

// patience is how long a test waits for what a hint should bring at once.
const patience = 20 * time.Second

// listen listens until ctx ends. A wake puts something into the first channel, the end into the second.
func (f *fixture) listen(ctx context.Context) (woken chan struct{}, ended chan error) {
	woken, ended = make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- f.s.Listen(ctx, func() {
			select {
			case woken <- struct{}{}:
			default:
			}
		})
	}()
	return woken, ended
}

// soon waits for something in ch.
func soon[T any](t *testing.T, ch <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(patience):
		t.Fatalf("still waiting: %s", what)
	}
	return v
}

func testHintHeard(t *testing.T, f *fixture) {
	woken, _ := f.listen(t.Context())
	soon(t, woken, "the wake that listening begins with")
	for range 3 {
		f.runs(1)
		f.ok(f.s.Hint(f.ctx()))
		soon(t, woken, "the wake by a hint")
	}
}

func testHintAlone(_ *testing.T, f *fixture) {
	for range 3 {
		f.ok(f.s.Hint(f.ctx()))
	}
}

func testListenEnds(t *testing.T, f *fixture) {
	ctx, cancel := context.WithCancel(t.Context())
	woken, ended := f.listen(ctx)
	soon(t, woken, "the wake that listening begins with")
	cancel()
	if err := soon(t, ended, "the end of listening with its context"); err == nil {
		t.Error("Listen = nil after the end of its context, want its error")
	}
	woken, ended = f.listen(t.Context())
	soon(t, woken, "the wake that listening begins with, again")
	f.broken = true // nothing can be read from a closed store
	f.ok(f.s.Close())
	if err := soon(t, ended, "the end of listening to a closed store"); err == nil {
		t.Error("Listen = nil after the store was closed, want an error")
	}
}
