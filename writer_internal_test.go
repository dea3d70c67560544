package pawl

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// tally is a store that counts how often it is given a change. It is slow enough for many to wait.
type tally struct {
	Store
	mu   sync.Mutex // guards both below
	seen map[RunID]int
	most int
	now  int
}

func (s *tally) Name() string { return "postgres" }

func (s *tally) Write(_ context.Context, changes []Change) (int64, error) {
	s.mu.Lock()
	s.now++
	s.most = max(s.most, s.now)
	for _, c := range changes {
		s.seen[c.Run]++
	}
	s.mu.Unlock()
	time.Sleep(100 * time.Microsecond) // bubble
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now--
	return 1, nil
}

// With two shared transactions under way at a time, each change is in one of them, and nobody is forgotten.
func TestEachChangeIsSentOnce(t *testing.T) { synctest.Test(t, eachChangeIsSentOnce) }

func eachChangeIsSentOnce(t *testing.T) {
	s := &tally{seen: make(map[RunID]int)}
	w := newWriter(&Engine{store: s})
	const callers, each = 1500, 40
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				ctx, cancel := context.WithCancel(t.Context())
				if i%7 == 3 {
					cancel()
				}
				if err := w.join(ctx, Change{Run: RunID(strconv.Itoa(c) + "/" + strconv.Itoa(i))}); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.most != 2 {
		t.Errorf("%d transactions at once, want 2: the test shows nothing", s.most)
	}
	for run, n := range s.seen {
		if n != 1 {
			t.Errorf("change %s was sent %d times", run, n)
		}
	}
	if len(s.seen) < callers*each*5/7 {
		t.Errorf("%d changes were sent", len(s.seen))
	}
	if w.under != 0 || len(w.queue) != 0 {
		t.Errorf("%d transactions and %d changes are left", w.under, len(w.queue))
	}
}

// fake is a store whose Write a test has written.
type fake struct {
	Store
	write func(ctx context.Context) error
}

func (f *fake) Name() string { return "sqlite" }

func (f *fake) Write(ctx context.Context, _ []Change) (int64, error) { return 1, f.write(ctx) }

// Whose change is being written, in vain, may give up, also if it is the one who sends.
func TestSenderGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriter(&Engine{store: &fake{write: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.join(ctx, Change{Run: "a"}) }()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("join = %v, want %v", err, context.Canceled)
		}
	})
}

// A write that panics, or ends its goroutine, fails those who share it, and none that come later.
func TestWriterOutlivesAWrite(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("no") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n atomic.Int64
				w := newWriter(&Engine{store: &fake{write: func(context.Context) error {
					time.Sleep(time.Second) // bubble
					if n.Add(1) < 3 {       // the one that a caller sends, and the one after it
						end()
					}
					return nil
				}}})
				errs := make([]error, 3)
				var wg sync.WaitGroup
				for i := range errs {
					wg.Go(func() {
						errs[i] = errors.New("ended")
						errs[i] = w.join(t.Context(), Change{Run: "a"})
					})
					synctest.Wait()
				}
				wg.Wait()
				for i, err := range errs {
					if err == nil || name == "panic" && !errors.Is(err, ErrCommitUnknown) || i > 0 && !errors.Is(err, ErrCommitUnknown) {
						t.Errorf("change %d, of which nobody knows whether it was written: %v", i, err)
					}
				}
				if err := w.join(t.Context(), Change{Run: "b"}); err != nil {
					t.Errorf("a later change: %v", err)
				}
			})
		})
	}
}

// What needs a transaction of its own does not drag along many that need none. All are written, in their order.
func TestOpsApart(t *testing.T) {
	for _, c := range []struct{ ops, want string }{
		{"", ""},
		{"s", "s"},
		{"sas", "sas"},
		{strings.Repeat("s", 50), strings.Repeat("s", 50)},
		{strings.Repeat("s", 50) + "a", strings.Repeat("s", 50) + "|a"},
		{"a" + strings.Repeat("s", 50), "a|" + strings.Repeat("s", 50)},
		{"sss" + "a" + strings.Repeat("s", 20) + "a" + "ss", "sssa|" + strings.Repeat("s", 20) + "|ass"},
		{strings.Repeat("s", 30) + "asa" + strings.Repeat("s", 30), strings.Repeat("s", 30) + "|asa|" + strings.Repeat("s", 30)},
		{strings.Repeat("a", 30), strings.Repeat("a", 30)},
	} {
		var ops []stepOp
		for _, kind := range c.ops {
			op := stepOp{row: &StepRow{}, insert: true}
			if kind == 'a' {
				op.lost = &AttemptRow{}
			}
			ops = append(ops, op)
		}
		var got []string
		for _, part := range apart(nil, ops) {
			text := ""
			for i := range part {
				text += map[bool]string{true: "s", false: "a"}[part[i].shares()]
			}
			got = append(got, text)
		}
		if text := strings.Join(got, "|"); text != c.want {
			t.Errorf("%s is written as %s, want %s", c.ops, text, c.want)
		}
	}
}

// A flush whose goroutine is ended in the middle of the write takes the run with it: nobody knows what has become of its results.
func TestRunIsLostWithTheWriteThatEndsItsGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		e := &Engine{log: slog.New(slog.DiscardHandler), store: &fake{write: func(context.Context) error {
			if n.Add(1) == 1 {
				runtime.Goexit()
			}
			return nil
		}}}
		e.writer = newWriter(e)
		x := &execution{e: e, writing: newTurn()}
		x.hold, x.drop = context.WithCancelCause(t.Context())
		row := func(name string) stepOp {
			return stepOp{row: &StepRow{Name: name, State: StepSucceeded, Attempt: 1}, insert: true}
		}
		x.timer = time.AfterFunc(time.Hour, func() {})
		x.hand(row("a"))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			x.flush()
		}()
		<-ended
		if err := x.commit([]stepOp{row("b")}, nil); err == nil || n.Load() != 1 || x.hold.Err() == nil {
			t.Errorf("the next commit: %v, after %d writes; the run is held: %t", err, n.Load(), x.hold.Err() == nil)
		}
	})
}
