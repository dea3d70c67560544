//go:build unix

package torture_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pawlrun/pawl/internal/hooks"
)

// tick is how often the chaos loop looks around.
const tick = 10 * time.Millisecond

// chaos does harm to the workers of a rig and seats their successors. It runs in the test's goroutine.
type chaos struct {
	*rig
	rnd     *rand.Rand
	every   time.Duration // between two acts, on average
	restart time.Duration // between two restarts of the server, on average
	gentle  bool          // no more harm
	holding sync.WaitGroup
}

// rage does harm until the end of span.
func (c *chaos) rage(t *testing.T, span time.Duration) {
	t.Helper()
	for _, s := range c.seats {
		c.occupy(t, s, c.fate())
	}
	start := time.Now()
	act := start.Add(lease)
	again := start.Add(c.restart / 2)
	for end := start.Add(span); time.Now().Before(end) && !t.Failed(); <-time.After(tick) {
		c.tend(t)
		if now := time.Now(); now.After(act) {
			c.harm(t, c.seats[c.rnd.IntN(len(c.seats))])
			act = now.Add(upTo(c.rnd, 2*c.every))
		}
		if c.server != nil && time.Now().After(again) {
			c.shake(t)
			again = time.Now().Add(c.restart/2 + upTo(c.rnd, c.restart))
		}
	}
	c.gentle = true
}

// calm ends all harm under way, and keeps the seats occupied until done says so or patience ends.
func (c *chaos) calm(t *testing.T, patience time.Duration, done func() bool) {
	for _, s := range c.seats {
		for _, due := range []*time.Time{&s.thaw, &s.clear} {
			if !due.IsZero() {
				*due = time.Now()
			}
		}
	}
	free := make(chan struct{})
	go func() {
		c.holding.Wait()
		close(free)
	}()
	over := func() bool {
		select {
		case <-free:
			return done()
		default:
			return false
		}
	}
	for end := time.Now().Add(patience); !over() && time.Now().Before(end); <-time.After(tick) {
		c.tend(t)
	}
}

// tend ends freezes and black holes that are due, and replaces the dead.
func (c *chaos) tend(t *testing.T) {
	now := time.Now()
	for _, s := range c.seats {
		if s.p.frozen.Swap(false) {
			s.thaw = now.Add(2*lease + upTo(c.rnd, longest-2*lease))
			c.ledger.selfStops.Add(1)
		}
		if !s.thaw.IsZero() && !now.Before(s.thaw) {
			s.p.signal(t, syscall.SIGCONT)
			s.thaw = time.Time{}
		}
		if !s.clear.IsZero() && !now.Before(s.clear) {
			s.proxy.BlackHole(false)
			s.clear = time.Time{}
		}
		if !s.p.ended() {
			continue
		}
		switch {
		case s.p.killed:
		case s.p.bySignal():
			c.ledger.suicides.Add(1)
		default: // the database was not there when it started
			c.ledger.exits.Add(1)
		}
		c.occupy(t, s, c.fate())
	}
}

// points are where a worker may end itself. The last two are inside a transaction: a freeze there would stop everybody
// on SQLite, which the random ones do often enough.
var points = []hooks.Point{
	hooks.Claimed, hooks.StepReached, hooks.IntentWritten, hooks.EffectBegin, hooks.EffectDone, hooks.ResultWritten,
	hooks.ForeignDone, hooks.BodyDone, hooks.Ended, hooks.TxCommitting, hooks.CommitSending,
}

// fate gives most workers a point at which they end or freeze themselves. Most freezes are where it is most
// dangerous: between the last check of a Once step and its effect, or its effect and its result.
func (c *chaos) fate() (w workerConfig) {
	if c.gentle {
		return w
	}
	w.Count = 1 + c.rnd.Int64N(4)
	switch c.rnd.IntN(6) {
	case 0:
		return workerConfig{}
	case 1, 2:
		w.Freeze, w.Once, w.Count = true, true, 1
		w.Point = []hooks.Point{hooks.EffectBegin, hooks.EffectDone}[c.rnd.IntN(2)]
	case 3:
		w.Freeze = true
		w.Point = points[c.rnd.IntN(len(points)-2)]
		if c.server != nil {
			w.Point = points[c.rnd.IntN(len(points))]
		}
	default:
		w.Point = points[c.rnd.IntN(len(points))]
	}
	return w
}

// harm does something to a seat. Who is frozen is mostly left alone: what it does when it wakes is the point.
func (c *chaos) harm(t *testing.T, s *seat) {
	if !s.thaw.IsZero() && c.rnd.IntN(4) > 0 {
		return
	}
	n := c.rnd.IntN(100)
	if s.proxy == nil {
		n = n * 70 / 100
	}
	switch {
	case s.p.killed: // and not gone yet
	case n < 50:
		s.p.killed = true
		s.p.signal(t, syscall.SIGKILL)
		c.ledger.kills.Add(1)
	case n < 70:
		if s.p.once {
			return
		}
		s.p.once = true
		s.p.signal(t, syscall.SIGSTOP)
		s.thaw = time.Now().Add(upTo(c.rnd, longest))
		c.ledger.stops.Add(1)
	case n < 76:
		s.proxy.CutAll()
		c.ledger.cuts.Add(1)
	case n < 84:
		s.proxy.CutAfterCommit(1 + c.rnd.IntN(4))
		c.ledger.cutCommits.Add(1)
	case n < 89:
		s.proxy.CutBeforeCommit(1 + c.rnd.IntN(4))
		c.ledger.cutCommits.Add(1)
	case n < 92:
		c.hole(s, upTo(c.rnd, 2*lease), &c.ledger.holes)
	case n < 95:
		c.hole(s, upTo(c.rnd, lease/4), &c.ledger.delays)
	default:
		c.hold(s)
	}
}

// hole lets nothing pass for a while, unless nothing passes already.
func (c *chaos) hole(s *seat, d time.Duration, count *atomic.Int64) {
	if s.clear.IsZero() {
		count.Add(1)
		s.proxy.BlackHole(true)
		s.clear = time.Now().Add(d)
	}
}

// hold keeps back the seat's next COMMIT for up to three leases, whatever becomes of who sent it.
func (c *chaos) hold(s *seat) {
	d := upTo(c.rnd, longest)
	caught := s.proxy.HoldCommit()
	c.ledger.holds.Add(1)
	c.holding.Go(func() {
		<-caught
		<-time.After(d)
		_ = s.proxy.FreeCommit() // the server may be gone meanwhile, and the COMMIT with it
	})
}

// shake restarts the server in an orderly way, or with all its processes killed.
func (c *chaos) shake(t *testing.T) {
	if c.rnd.IntN(2) == 0 {
		c.server.Restart(t)
		c.ledger.restarts.Add(1)
		return
	}
	c.server.Kill(t)
	c.server.Start(t)
	c.ledger.crashes.Add(1)
}
