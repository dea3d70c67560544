package pawl_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
)

// losing is a store with one write that waits, and one that finds the lease lost.
type losing struct {
	pawl.Store
	waits atomic.Bool // the next Write
	gate  chan struct{}
	loses atomic.Bool // before the next Update
	mu    sync.Mutex  // guards run
	run   pawl.RunRow
}

func (s *losing) Heartbeat(ctx context.Context, w pawl.WorkerRow) (*pawl.Beat, error) {
	s.mu.Lock()
	s.run.Owner = w.ID
	s.mu.Unlock()
	return s.Store.Heartbeat(ctx, w)
}

func (s *losing) Write(ctx context.Context, cs []pawl.Change) (int64, error) {
	if s.waits.CompareAndSwap(true, false) {
		s.mu.Lock()
		s.run.ID, s.run.Epoch = cs[0].Run, cs[0].Epoch
		s.mu.Unlock()
		<-s.gate
	}
	return s.Store.Write(ctx, cs)
}

func (s *losing) Update(ctx context.Context, fn func(context.Context, pawl.Txn) error) error {
	if s.loses.CompareAndSwap(true, false) {
		s.mu.Lock()
		r := s.run
		s.mu.Unlock()
		if ok, err := s.ReleaseLost(ctx, r.Owner, r.ID, r.Epoch); err != nil || !ok {
			return errors.Join(err, errors.New("the run could not be taken away"))
		}
	}
	return s.Store.Update(ctx, fn)
}

// Many intents land in one transaction, what must have one of its own does not, because the lease is lost in between. Nobody is
// asked about effects that never began.
func TestIntentsThatLandBeforeTheLeaseIsLost(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		s := &losing{Store: b.store, gate: make(chan struct{})}
		opens, others, fails := make(chan struct{}), make(chan struct{}), make(chan struct{})
		again := false
		ids := append([]string{"bad", "opener"}, numbered(20)...)
		w := pawl.Define("split", "v1", func(run *pawl.Run, _ string) (string, error) {
			_, err := pawl.Batch(run, "rows", ids, self, func(run *pawl.Run, id string) (string, error) {
				switch id {
				case "bad":
					return pawl.Repeatable(run, "r", id, func(context.Context, string) (string, error) {
						if !again {
							<-fails
							again = true
						}
						return "", errors.New("no")
					})
				case "opener":
					<-opens
				default:
					<-others
				}
				return pawl.Once(run, "w", id, func(context.Context, pawl.Intent, string) (string, error) {
					b.effect(id)
					return "ok", nil
				})
			}, pawl.AtOnce(40))
			return "", err
		})
		o := b.opts
		o.Lease = time.Minute
		e, err := pawl.New(s, &o, w)
		if err != nil {
			t.Fatal(err)
		}
		stop := b.work(e)
		if _, err := w.Start(t.Context(), e, "in"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second) // bubble
		s.waits.Store(true)
		for _, next := range []chan struct{}{opens, others, fails} {
			close(next)
			time.Sleep(100 * time.Millisecond) // bubble
		}
		s.loses.Store(true)
		close(s.gate)
		time.Sleep(10 * time.Minute) // bubble
		stop()
		asked, err := b.store.ListInbox(t.Context(), pawl.InboxQuery{})
		if err != nil {
			t.Fatal(err)
		}
		for _, en := range asked {
			t.Errorf("%s is asked about %s", en.Kind, en.Step)
		}
		for _, id := range ids[1:] {
			if n := b.count(id); n != 1 {
				t.Errorf("the effect of %s was made %d times", id, n)
			}
		}
	})
}
