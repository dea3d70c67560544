package pawl

import (
	"context"
	"strconv"
	"sync"
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
	if w.leaders != 0 || len(w.queue) != 0 {
		t.Errorf("%d leaders and %d changes are left", w.leaders, len(w.queue))
	}
}
