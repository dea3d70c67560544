//go:build unix

package torture_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
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
	rnd    *rand.Rand
	every  time.Duration // between two acts, on average
	siege  *siege
	gentle bool         // no more harm
	held   atomic.Int64 // COMMITs that are held back
	ending atomic.Bool  // none is held back any more
}

// rage does harm until the end of span.
func (c *chaos) rage(t *testing.T, span time.Duration) {
	t.Helper()
	for _, s := range c.seats {
		c.occupy(t, s, c.fate())
	}
	ctx, lift := context.WithCancel(t.Context())
	defer lift()
	besieged := make(chan struct{})
	go func() {
		defer close(besieged)
		c.siege.lay(t, ctx)
	}()
	start := time.Now()
	act := start.Add(lease)
	for end := start.Add(span); time.Now().Before(end) && !t.Failed(); <-time.After(tick) {
		c.tend(t)
		if now := time.Now(); now.After(act) {
			c.harm(t, c.seats[c.rnd.IntN(len(c.seats))])
			act = now.Add(upTo(c.rnd, 2*c.every))
		}
	}
	c.gentle = true
	for lift(); ; <-time.After(tick) {
		select {
		case <-besieged:
			return
		default:
			c.tend(t)
		}
	}
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
	c.ending.Store(true) // those that are held come to their time
	over := func() bool { return c.held.Load() == 0 && done() }
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
		if !s.thaw.IsZero() && (!now.Before(s.thaw) || c.siege.peace.Load()) {
			s.p.signal(t, syscall.SIGCONT)
			s.thaw, s.p.woken = time.Time{}, now
		}
		if !s.clear.IsZero() && !now.Before(s.clear) {
			s.proxy.BlackHole(false)
			s.clear = time.Time{}
		}
		if !s.p.ended() || now.Before(s.vain) {
			continue
		}
		if s.counted == s.p { // its successor was only waited for
			c.occupy(t, s, c.fate())
			continue
		}
		s.counted = s.p
		switch {
		case s.p.killed:
		case s.p.bySignal():
			c.ledger.suicides.Add(1)
		default: // the database was not there when it started
			c.ledger.exits.Add(1)
			s.vain = now.Add(lease / 8)
			continue
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
	if *acts == "freeze" {
		return workerConfig{Freeze: true, Once: true, Count: 1, Point: hooks.EffectBegin}
	}
	switch c.rnd.IntN(6) {
	case 0:
		return workerConfig{}
	case 1, 2:
		w.Freeze, w.Once, w.Count = true, true, 1
		w.Point = []hooks.Point{hooks.EffectBegin, hooks.EffectDone}[c.rnd.IntN(2)]
	case 3:
		w.Freeze = true
		w.Point = points[c.rnd.IntN(len(points)-2)]
		if c.kind == "postgres" {
			w.Point = points[c.rnd.IntN(len(points))]
		}
	default:
		w.Point = points[c.rnd.IntN(len(points))]
	}
	return w
}

// act is something done to a seat, and how often.
type act struct {
	weight int
	do     func(*testing.T, *seat)
}

// acts are what harm chooses from.
func (c *chaos) acts() []act {
	all := []act{{50, c.kill}, {20, c.freeze}}
	switch *acts {
	case "kill":
		return all[:1]
	case "freeze":
		return []act{{1, c.retire}} // its fate freezes it
	}
	if c.kind == "sqlite" {
		return all
	}
	return append(all,
		act{6, func(_ *testing.T, s *seat) { s.proxy.CutAll(); c.ledger.cuts.Add(1) }},
		act{8, func(_ *testing.T, s *seat) { s.proxy.CutAfterCommit(1 + c.rnd.IntN(4)); c.ledger.cutCommits.Add(1) }},
		act{5, func(_ *testing.T, s *seat) { s.proxy.CutBeforeCommit(1 + c.rnd.IntN(4)); c.ledger.cutCommits.Add(1) }},
		act{3, func(_ *testing.T, s *seat) { s.proxy.LoseReply(1, isClaim); c.ledger.claimsLost.Add(1) }},
		act{3, func(_ *testing.T, s *seat) { c.hole(s, upTo(c.rnd, 2*lease), &c.ledger.holes) }},
		act{3, func(_ *testing.T, s *seat) { c.hole(s, upTo(c.rnd, lease/4), &c.ledger.delays) }},
		act{5, c.hold})
}

// isClaim reports whether a statement takes runs, or locks the queues to take some.
func isClaim(sql string) bool {
	return strings.Contains(sql, "SET taken_state = state") || strings.Contains(sql, "FROM pawl_queues WHERE special AND name IN") && strings.Contains(sql, "KEY UPDATE")
}

// harm does something to a seat. Who is frozen is mostly left alone: what it does when it wakes is the point.
func (c *chaos) harm(t *testing.T, s *seat) {
	if s.p.killed || !s.thaw.IsZero() && c.rnd.IntN(4) > 0 {
		return
	}
	all := c.acts()
	sum := 0
	for _, a := range all {
		sum += a.weight
	}
	n := c.rnd.IntN(sum)
	for _, a := range all {
		if n -= a.weight; n < 0 {
			a.do(t, s)
			return
		}
	}
}

// kill kills the worker on a seat, now and then some others at the same time. Every other time it is the oldest worker,
// or most would die before they have done anything.
func (c *chaos) kill(t *testing.T, s *seat) {
	if c.rnd.IntN(2) == 0 {
		s = slices.MinFunc(c.seats, func(a, b *seat) int { return a.p.begun.Compare(b.p.begun) })
	}
	more := 0
	if *burst > 1 && c.rnd.IntN(3) == 0 {
		more = 1 + c.rnd.IntN(*burst-1)
	}
	for range 1 + min(more, len(c.seats)-1) {
		if !s.p.killed && !s.p.ended() {
			s.p.killed = true
			s.p.signal(t, syscall.SIGKILL)
			c.ledger.kills.Add(1)
		}
		s = c.seats[(s.n+1)%len(c.seats)]
	}
}

// retire kills a worker that has been frozen and has had the time to do what it was about to do.
func (c *chaos) retire(t *testing.T, s *seat) {
	if !s.p.woken.IsZero() && time.Since(s.p.woken) > lease/2 {
		s.p.killed = true
		s.p.signal(t, syscall.SIGKILL)
		c.ledger.kills.Add(1)
	}
}

// freeze stops a process for up to three leases, once in its life.
func (c *chaos) freeze(t *testing.T, s *seat) {
	if s.p.once || c.siege.peace.Load() {
		return
	}
	s.p.once = true
	s.p.signal(t, syscall.SIGSTOP)
	s.thaw = time.Now().Add(upTo(c.rnd, longest))
	c.ledger.stops.Add(1)
}

// hole lets nothing pass for a while, unless nothing passes already.
func (c *chaos) hole(s *seat, d time.Duration, count *atomic.Int64) {
	if s.clear.IsZero() {
		count.Add(1)
		s.proxy.BlackHole(true)
		s.clear = time.Now().Add(d)
	}
}

// hold keeps back the seat's next COMMIT, or that of its next claim, whatever becomes of who sent it: for up to three
// leases, or until long after everybody takes the attempt for over.
func (c *chaos) hold(_ *testing.T, s *seat) {
	d, caught := upTo(c.rnd, longest), (<-chan struct{})(nil)
	if c.rnd.IntN(4) == 0 {
		caught = s.proxy.HoldCommitOf(1, isClaim)
		c.ledger.claimsHeld.Add(1)
	} else {
		caught = s.proxy.HoldCommit()
		c.ledger.holds.Add(1)
	}
	if c.parts.late && c.rnd.IntN(3) == 0 {
		d = over + upTo(c.rnd, over)
		c.ledger.oldCommits.Add(1)
	}
	go func() { // it may wait for ever: a worker that finds nothing to do claims nothing
		<-caught
		if !c.ending.Load() {
			c.held.Add(1)
			defer c.held.Add(-1)
			<-time.After(d)
		}
		_ = s.proxy.FreeCommit() // the server may be gone meanwhile, and the COMMIT with it
	}()
}
