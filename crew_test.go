package pawl_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
)

// claiming is a store that notes how many runs each claim got, and when.
type claiming struct {
	pawl.Store
	mu  sync.Mutex // guards got
	got []struct {
		n  int
		at time.Time
	}
}

func (c *claiming) Claim(ctx context.Context, claim pawl.Claim) ([]pawl.Claimed, error) {
	runs, err := c.Store.Claim(ctx, claim)
	if len(runs) > 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.got = append(c.got, struct {
			n  int
			at time.Time
		}{len(runs), time.Now()})
	}
	return runs, err
}

// While more is due than there are slots, slots that become free one soon after the other are filled by a few claims, and one that
// becomes free alone is filled in a moment.
func TestFreeSlotsGather(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		const slots = 64
		start := time.Now()
		w := pawl.Define("wait", "v1", func(run *pawl.Run, i int) (int, error) {
			return pawl.Repeatable(run, "s", i, func(ctx context.Context, i int) (int, error) {
				ends := time.Minute
				switch {
				case i >= slots: // of the second half
					ends = time.Hour
				case i > 0:
					ends += time.Minute + time.Duration(i)*500*time.Microsecond
				}
				time.Sleep(time.Until(start.Add(ends))) // bubble
				return i, nil
			})
		})
		s := &claiming{Store: b.store}
		o := b.opts
		o.Slots, o.Lease, o.Poll = slots, 10*time.Minute, time.Minute
		e, err := pawl.New(s, &o, w)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.StartMany(t.Context(), e, upward(2*slots), nil); err != nil {
			t.Fatal(err)
		}
		stop := b.work(e)
		time.Sleep(3 * time.Minute) // bubble
		s.mu.Lock()
		got := s.got
		s.mu.Unlock()
		sum := 0
		for _, c := range got {
			sum += c.n
		}
		if len(got) < 2 || got[0].n != slots || got[1].n != 1 || sum != 2*slots {
			t.Fatalf("claims: %v; want %d runs, then 1, then the others", got, slots)
		}
		if late := got[1].at.Sub(start.Add(time.Minute)); late > 5*time.Millisecond {
			t.Errorf("the slot that was free alone was filled after %v", late)
		}
		if n := len(got) - 2; n < 10 || n > 32 { // 2 ms each, which is 4 or 5 slots, but for some that do not wait after one was alone
			t.Errorf("%d slots that became free within 32 ms were filled by %d claims: %v", slots-1, n, got)
		}
		time.Sleep(time.Hour) // bubble
		stop()
	})
}

// A slot that is free again and again while the others are taken for long waits for them now and then only.
func TestLoneSlotIsFilledAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		const runs = 170
		var short atomic.Int64
		var last atomic.Int64
		w := pawl.Define("short", "v1", func(run *pawl.Run, i int) (int, error) {
			if i < 7 {
				time.Sleep(time.Hour) // bubble
				return i, nil
			}
			time.Sleep(time.Millisecond) // bubble
			short.Add(1)
			last.Store(time.Now().UnixMicro())
			return i, nil
		})
		b.opts.Slots, b.opts.Lease, b.opts.Poll = 8, 10*time.Minute, time.Minute
		e := b.engine(w)
		if _, err := w.StartMany(t.Context(), e, upward(runs), nil); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		stop := b.work(e)
		time.Sleep(2 * time.Hour) // bubble
		stop()
		took := time.UnixMicro(last.Load()).Sub(start)
		if n := short.Load(); n != runs-7 || took > runs*3*time.Millisecond/2 {
			t.Errorf("%d runs of a millisecond each took %v, one after the other", n, took)
		}
	})
}

func upward(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// A body that ends its goroutine costs no more than that, and Work ends with all of them gone.
func TestGoroutinesAreUsedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		var mu sync.Mutex
		ids := make(map[string]int)
		w := pawl.Define("id", "v1", func(_ *pawl.Run, in int) (int, error) {
			var text [64]byte
			n := runtime.Stack(text[:], false)
			mu.Lock()
			ids[string(text[:n])[:len("goroutine 123456")]]++
			mu.Unlock()
			if in == 50 {
				runtime.Goexit()
			}
			return in, nil
		})
		e := b.engine(w)
		stop := b.work(e)
		for i := range 100 {
			h, err := w.Start(t.Context(), e, i)
			if err == nil {
				_, err = h.Result(t.Context())
			}
			if (err != nil) != (i == 50) {
				t.Errorf("run %d: %v", i, err)
			}
		}
		stop()
		if len(ids) > 10 {
			t.Errorf("100 runs, one after the other, were executed by %d goroutines", len(ids))
		}
	})
}

// A lost worker's run is taken over when its lease is over, and not with the next of the looks that come six times a lease.
func TestLapseIsNotWaitedBeyond(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		const lease = time.Minute
		b.opts.Lease, b.opts.Poll = lease, 10*time.Minute
		start := time.Now()
		took := make(chan time.Duration, 2)
		w := pawl.Define("w", "v1", func(run *pawl.Run, in int) (int, error) {
			return pawl.Repeatable(run, "s", in, func(ctx context.Context, in int) (int, error) {
				took <- time.Since(start)
				if b.effect("s") == 1 {
					<-ctx.Done()
					return 0, context.Cause(ctx)
				}
				return in, nil
			})
		})
		m := &mortal{Store: b.store}
		o := b.opts
		first, err := pawl.New(m, &o, w)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- first.Work(ctx) }()
		if _, err := w.Start(t.Context(), first, 1); err != nil {
			t.Fatal(err)
		}
		<-took
		time.Sleep(lease/3 + 5*time.Second) // bubble: it has renewed once
		m.dead.Store(true)
		time.Sleep(3 * time.Second) // bubble
		stop := b.work(b.engine(w))
		if at, over := <-took, lease/3+lease; at < over || at > over+100*time.Millisecond {
			t.Errorf("the run was taken over after %v, the lease was over after %v", at, over)
		}
		stop()
		cancel()
		if err := <-done; err != nil && !errors.Is(err, pawl.ErrAbandoned) {
			t.Logf("the dead worker ended with %v", err)
		}
	})
}
