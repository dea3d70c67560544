package pawl_test

import (
	"context"
	"errors"
	"strconv"
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
		var again atomic.Bool
		ids := append([]string{"bad", "opener"}, numbered(20)...)
		w := pawl.Define("split", "v1", func(run *pawl.Run, _ string) (string, error) {
			_, err := pawl.Batch(run, "rows", ids, self, func(run *pawl.Run, id string) (string, error) {
				switch id {
				case "bad":
					return pawl.Repeatable(run, "r", id, func(context.Context, string) (string, error) {
						if !again.Load() {
							<-fails
							again.Store(true)
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

// sharing is a store that counts the rows that Write inserts for a workflow.
type sharing struct {
	pawl.Store
	n atomic.Int64
}

func (s *sharing) Write(ctx context.Context, cs []pawl.Change) (int64, error) {
	for _, c := range cs {
		for _, row := range c.Insert {
			if row.Name[0] == 'b' {
				s.n.Add(1)
			}
		}
	}
	return s.Store.Write(ctx, cs)
}

// The end of a run that another one waits for needs a transaction of its own, the results before it do not.
func TestManyResultsBeforeAnEndOfItsOwn(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		const branches = 20
		child := pawl.Define("child", "v1", func(run *pawl.Run, in int) (int, error) {
			g := run.Group()
			for i := range branches {
				g.Go(func(run *pawl.Run) error {
					_, err := pawl.Repeatable(run, "b"+strconv.Itoa(i), in, func(_ context.Context, in int) (int, error) {
						time.Sleep(time.Second) // bubble
						return in, nil
					})
					return err
				})
			}
			return in, g.Wait()
		})
		parent := pawl.Define("parent", "v1", func(run *pawl.Run, in int) (int, error) { return pawl.Child(run, "c", child, in) })
		s := &sharing{Store: b.store}
		o := b.opts
		e, err := pawl.New(s, &o, parent, child)
		if err != nil {
			t.Fatal(err)
		}
		stop := b.work(e)
		h, err := parent.Start(t.Context(), e, 1)
		if err == nil {
			_, err = h.Result(t.Context())
		}
		if err != nil || s.n.Load() != branches {
			t.Errorf("%d of %d results were written together, and then %v", s.n.Load(), branches, err)
		}
		stop()
	})
}
