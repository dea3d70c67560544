//go:build unix

package crashtest_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/pgtest"
)

// outage is something that befalls the database while a worker waits at a point. The worker survives it.
type outage struct {
	name string
	place
	strike  func(t *testing.T, o *outageSite) // before the worker goes on
	relieve func(t *testing.T, o *outageSite) // after it has gone on
	lose    bool                              // the worker may lose the run: Repeatable and Keyed may be sent again
}

type outageSite struct {
	*site
	proxy  *pgtest.Proxy
	server *pgtest.Server
}

func cutAfterCommit(_ *testing.T, o *outageSite)  { o.proxy.CutAfterCommit(1) }
func cutBeforeCommit(_ *testing.T, o *outageSite) { o.proxy.CutBeforeCommit(1) }

// cutClaim cuts off the reply to the COMMIT after the next claim.
func cutClaim(_ *testing.T, o *outageSite) {
	claimed := false
	o.proxy.CutAfter(1, func(sql string) bool {
		if strings.HasPrefix(sql, "WITH take") {
			claimed = true
			return false
		}
		return claimed && strings.EqualFold(strings.TrimRight(sql, "; "), "commit")
	})
}

func blackHole(d time.Duration) (strike, relieve func(*testing.T, *outageSite)) {
	return func(_ *testing.T, o *outageSite) { o.proxy.BlackHole(true) },
		func(t *testing.T, o *outageSite) {
			pass(t, time.Now().Add(d))
			o.proxy.BlackHole(false)
		}
}

func outages() []outage {
	commits := []outage{
		{name: "claim", place: place{}, strike: cutClaim},
		{name: "intent", place: place{point: hooks.CommitSending, step: "once", arm: hooks.StepReached}},
		{name: "result of once", place: place{point: hooks.CommitSending, step: "once", arm: hooks.EffectDone}},
		{name: "result of keyed", place: place{point: hooks.CommitSending, step: "keyed", arm: hooks.StepReached}},
		{name: "tx", place: place{point: hooks.TxCommitting, step: "tx"}},
		{name: "tx elsewhere", place: place{point: hooks.TxCommitting, step: "txin"}},
		{name: "end", place: place{point: hooks.CommitSending, step: "last", arm: hooks.EffectDone}},
	}
	var all []outage
	for _, c := range commits {
		c.lose = c.name == "claim"
		after, before := c, c
		after.name, before.name = "lost reply to the commit of "+c.name, "lost commit of "+c.name
		if c.strike == nil {
			after.strike, before.strike = cutAfterCommit, cutBeforeCommit
			all = append(all, before)
		}
		all = append(all, after)
	}
	for _, p := range []place{{point: hooks.IntentWritten, step: "once"}, {point: hooks.EffectDone, step: "once"}, {point: hooks.TxCommitting, step: "tx"}} {
		short, end := blackHole(lease / 4)
		all = append(all, outage{name: "short black hole at " + p.String(), place: p, strike: short, relieve: end, lose: true})
		long, end := blackHole(2 * lease)
		all = append(all, outage{name: "long black hole at " + p.String(), place: p, strike: long, relieve: end, lose: true})
	}
	return all
}

// TestOutages cuts PostgreSQL off from a worker that survives: every effect that must not happen twice happens once, and
// no person is asked about what the worker itself knows (C75, C86, C88).
func TestOutages(t *testing.T) {
	t.Parallel()
	o := newEffects(t, 0)
	free := make(chan struct{}, together)
	var all sync.WaitGroup
	shared := newSite(t, "postgres", o)
	for i, c := range outages() {
		if testing.Short() && c.relieve != nil {
			continue
		}
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			t.Run(c.name, func(t *testing.T) {
				c.play(t, &outageSite{site: shared, proxy: pgtest.NewProxy(t, shared.url)}, fmt.Sprintf("outage-%d", i))
			})
		})
	}
	all.Wait()
}

func (c outage) play(t *testing.T, s *outageSite, workflow string) {
	for try := range 4 { // again on a machine under load, where the worker may lose its lease before anything befell it
		if c.playOnce(t, s, fmt.Sprintf("%s-%d", workflow, try)) {
			return
		}
	}
	t.Errorf("%s: in no play did the worker come to %s with its lease", c.name, c.place)
}

func (c outage) playOnce(t *testing.T, s *outageSite, workflow string) bool {
	id := s.start(t, workflow)
	cfg := workerConfig{Workflow: workflow, Point: c.point, Step: c.step, Arm: c.arm}
	if s.proxy != nil {
		cfg.URL, cfg.Foreign = s.proxy.Rewrite(t, s.url), s.proxy.Rewrite(t, s.foreign)
	}
	if c.point == "" {
		c.strike(t, s)
	}
	a := s.worker(t, cfg)
	if c.point != "" {
		if !a.arrives(10*time.Second) || a.starved() {
			t.Logf("%s: the worker did not come to the point at once, again:\n%s", c.name, a.log.tail())
			a.kill(t)
			return false
		}
		c.strike(t, s)
		a.goOn(t)
	}
	if c.relieve != nil {
		c.relieve(t, s)
	}
	d := newDesk(s.site)
	d.slow = 2 * lease // the worker is alive and tells what it knows as soon as it can
	s.attend(t, d, id)
	select {
	case <-a.gone:
		t.Errorf("%s: the worker has ended", c.name)
	default:
		a.stop(t)
	}
	lose := c.lose || a.starved() // on a machine under load it may have lost the run with nobody's doing
	x := expected{sends: map[string]span{}}
	for _, step := range steps {
		x.sends[step] = span{1, 1}
		if lose && step != "once" && step != "probed" {
			x.sends[step] = span{1, 2}
		}
	}
	if a.starved() && c.point == hooks.CommitSending && c.arm == hooks.StepReached {
		x.person = span{0, 1} // the intent may have landed, and the worker gave up before it learned that
	}
	scenario{place: c.place, store: c.name}.verify(t, s.site, d, id, x)
	s.check(t)
	s.dump(t, id, a)
	return true
}

// TestServerTrouble restarts PostgreSQL, crashes it, and makes it read-only for a while, under a worker that survives.
func TestServerTrouble(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("each restart of a server takes seconds")
	}
	restart := func(t *testing.T, o *outageSite) { o.server.Restart(t) }
	crash := func(t *testing.T, o *outageSite) {
		o.server.Kill(t)
		o.server.Start(t)
	}
	readOnly := func(t *testing.T, o *outageSite) { o.server.SetReadOnly(t, true) }
	writable := func(t *testing.T, o *outageSite) {
		pass(t, time.Now().Add(lease+lease/2))
		o.server.SetReadOnly(t, false)
	}
	place := place{point: hooks.EffectDone, step: "once"}
	server := pgtest.Private(t)
	o := newEffects(t, 0)
	for _, c := range []outage{
		{name: "restart", place: place, strike: restart, lose: true},
		{name: "crash", place: place, strike: crash, lose: true},
		{name: "read-only", place: place, strike: readOnly, relieve: writable, lose: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &outageSite{site: siteAt(t, "postgres", server.NewDatabase(t), server.NewDatabase(t), o), server: server}
			c.play(t, s, "outage")
		})
	}
}
