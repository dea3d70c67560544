//go:build unix

package torture_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlrun/pawl/internal/pgtest"
)

// siege does harm to the database, one thing after the other, in a goroutine of its own: the workers are tended
// meanwhile. What it needs of a server ends the test if it fails, which the chaos loop sees.
type siege struct {
	*rig
	rnd     *rand.Rand
	restart time.Duration // between two acts, on average
	parts   parts
	apart   time.Duration // between two failovers, at least

	// peace forbids freezes while the clock may be set forward. The engine tells by the store's clock when an attempt is
	// over, so an attempt that was frozen before its effect would count as over too early.
	peace atomic.Bool

	offset  time.Duration // of the store's clock
	most    time.Duration // … and the most it ever was
	next    *pgtest.Server
	ready   chan *pgtest.Server // gets the standby when it is there; nil: there is none to come
	failed  time.Time           // the last failover
	builder sync.WaitGroup
}

// mostFailovers bounds the clusters that are made.
const mostFailovers = 10

func newSiege(r *rig, seed uint64, span time.Duration) *siege {
	return &siege{rig: r, rnd: rand.New(rand.NewPCG(seed, 5)), restart: *restart, parts: r.parts,
		apart: max(span/(mostFailovers+1), 10*time.Second)}
}

// lay goes on until ctx ends, and then undoes what is to be undone.
func (s *siege) lay(t *testing.T, ctx context.Context) {
	defer s.builder.Wait()
	s.build(t)
	for wait := s.restart / 2; s.pause(ctx, wait); wait = s.restart/2 + upTo(s.rnd, s.restart) {
		s.act(t, ctx)
	}
	s.lift(t)
}

// pause reports false if ctx ends meanwhile.
func (s *siege) pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *siege) act(t *testing.T, ctx context.Context) {
	n := s.rnd.IntN(100)
	if s.parts.clock && (s.kind == "sqlite" || n < 20) {
		s.step(t, ctx)
		return
	}
	if s.kind == "sqlite" {
		return
	}
	if s.standby() && time.Since(s.failed) > s.apart {
		s.failover(t, ctx)
		return
	}
	switch {
	case s.parts.readOnly && n < 45:
		s.server.SetReadOnly(t, true)
		s.ledger.readOnly.Add(1)
		s.pause(ctx, lease/4+upTo(s.rnd, 3*lease/2))
		s.server.SetReadOnly(t, false)
	case s.ready != nil: // its standby is being made, which needs it
	case n < 72:
		s.server.Restart(t)
		s.ledger.restarts.Add(1)
	default:
		s.server.Kill(t)
		s.server.Start(t)
		s.ledger.crashes.Add(1)
	}
}

// build begins to make a standby, if there are to be failovers.
func (s *siege) build(t *testing.T) {
	if !s.parts.standby || s.ledger.failovers.Load() >= mostFailovers {
		return
	}
	ready, primary := make(chan *pgtest.Server, 1), s.server
	s.ready = ready
	s.builder.Go(func() {
		b, err := primary.Standby(t)
		if err != nil {
			t.Errorf("make a standby: %v", err)
		}
		ready <- b
	})
}

// standby reports whether there is one that has all that was committed.
func (s *siege) standby() bool {
	select {
	case s.next = <-s.ready:
		s.ready = nil
	default:
	}
	return s.next != nil
}

// failover loses the primary, at once or after it has hung for a while, and goes on with the standby, whose clock may
// be another.
func (s *siege) failover(t *testing.T, ctx context.Context) {
	skewed := s.parts.clock && s.rnd.IntN(2) == 0
	if skewed {
		defer s.truce(ctx)()
		s.offset += s.minutes()
	}
	if err := s.next.SetClock(s.offset); err != nil {
		t.Error(err)
	}
	old := s.server
	hung := s.rnd.IntN(2) == 0
	if hung {
		old.Freeze(t)
		s.pause(ctx, upTo(s.rnd, lease))
	} else {
		old.Kill(t)
	}
	s.next.Promote(t)
	s.server, s.next = s.next, nil
	s.lead(t)
	if hung {
		old.Kill(t)
	}
	old.Remove(t)
	s.failed = time.Now()
	s.ledger.failovers.Add(1)
	if skewed {
		s.ledger.steps.Add(1)
		s.pause(ctx, upTo(s.rnd, 3*lease))
		s.forward(t)
	}
	s.build(t)
}

// lead shows everybody the way to the new server.
func (s *siege) lead(t *testing.T) {
	for _, p := range s.ways {
		p.Retarget(t, s.server.URL())
	}
	for _, p := range s.ways {
		p.CutAll()
	}
	for _, seat := range s.seats {
		seat.proxy.CutAll()
	}
}

// minutes is by how much a clock is set, either way.
func (s *siege) minutes() time.Duration {
	d := time.Minute + upTo(s.rnd, 9*time.Minute)
	if s.rnd.IntN(2) == 0 {
		return -d
	}
	return d
}

// truce ends all freezes for a while, and waits until attempts that were frozen are over. What it returns waits until
// those that begin now are, and allows freezes again.
func (s *siege) truce(ctx context.Context) func() {
	if *bold {
		return func() {}
	}
	s.peace.Store(true)
	s.pause(ctx, lease+timeout)
	return func() {
		s.pause(ctx, lease+timeout)
		s.peace.Store(false)
	}
}

// step sets the clock by minutes. Backwards it is soon set forward again, to where it has been: what is due, and the
// leases of the dead, would otherwise wait for as long.
func (s *siege) step(t *testing.T, ctx context.Context) {
	defer s.truce(ctx)()
	s.offset += s.minutes()
	s.setClock(t)
	s.ledger.steps.Add(1)
	s.pause(ctx, upTo(s.rnd, 3*lease))
	s.forward(t)
}

// forward sets the clock to no less than it has been.
func (s *siege) forward(t *testing.T) {
	s.most = max(s.most, s.offset)
	if s.offset < s.most {
		s.offset = s.most
		s.setClock(t)
		s.ledger.steps.Add(1)
	}
}

func (s *siege) setClock(t *testing.T) {
	err := s.wall.set(s.offset)
	if s.server != nil {
		err = s.server.SetClock(s.offset)
	}
	if err != nil {
		t.Error(err)
	}
}

// lift leaves a server that works.
func (s *siege) lift(t *testing.T) {
	s.forward(t)
	s.builder.Wait()
}

// report is the database's line of the table; "" for sqlite.
func (l *ledger) report(kind string, p parts) string {
	text := ""
	if kind == "postgres" {
		text = fmt.Sprintf("%s: the server restarted %d times, crashed %d times, was read-only %d times; %d failovers\n",
			kind, l.restarts.Load(), l.crashes.Load(), l.readOnly.Load(), l.failovers.Load())
	}
	if p.clock {
		text += fmt.Sprintf("%s: its clock was set %d times\n", kind, l.steps.Load())
	}
	return text
}
