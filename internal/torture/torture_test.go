//go:build unix

package torture_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
)

// The knobs of `make torture`; docs/torture.md lists them.
var (
	span    = flag.Duration("chaos", 15*time.Second, "how long each store is tortured")
	only    = flag.String("store", "both", "sqlite, postgres or both")
	seed    = flag.Uint64("seed", 0, "seed of all random choices; 0 takes a new one")
	workers = flag.Int("workers", 4, "worker processes")
	every   = flag.Duration("every", 250*time.Millisecond, "time between two acts of violence, on average")
	late    = flag.Duration("late", 0, "how long after its request the effect of a Once step comes, at most")
	restart = flag.Duration("restart", 10*time.Second, "time between two acts against the database itself, on average")
	burst   = flag.Int("burst", 2, "workers that are killed at once, at most")
	with    = flag.String("with", "auto", "what else is done: readonly, late, standby, bouncer, clock, queues, several with commas; none; auto: what is installed, of it the quick in a short run")
	flush   = flag.Duration("flush", 0, "after which time results are written that nothing else carries; 0: as it is")
	patient = flag.Duration("patience", 3*time.Minute, "how long the runs may take to end once nobody does harm any more")
	bold    = flag.Bool("bold", false, "the clock is set while workers are frozen, too")
	acts    = flag.String("acts", "all", "what is done to the workers: all, kill, freeze")
)

// TestTorture does harm to worker processes and to the database for a while, lets all runs end, and checks that every
// effect happened as often as its kind allows (I1-I5).
func TestTorture(t *testing.T) {
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	for _, kind := range []string{"sqlite", "postgres"} {
		if *only != "both" && *only != kind {
			continue
		}
		t.Run(kind, func(t *testing.T) { torture(t, kind) })
	}
	if !strings.Contains("both sqlite postgres", *only) {
		t.Errorf("-store %q: want sqlite, postgres or both", *only)
	}
}

func torture(t *testing.T, kind string) {
	fmt.Printf("torture: %s, %v of chaos, %d workers, -seed %d\n", kind, *span, *workers, *seed)
	p := choose(t, *with, kind, *span, *seed)
	r := newRig(t, kind, *workers, *seed, p)
	r.effects.late = *late
	c := &chaos{rig: r, rnd: rand.New(rand.NewPCG(*seed, 4)), every: *every, siege: newSiege(r, *seed, *span)}
	s, mia, o := newStaff(r, *seed), newPerson(r, *seed), newOps(r, *seed)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var people sync.WaitGroup
	people.Go(func() { s.work(ctx) })
	people.Go(func() { mia.work(ctx) })
	people.Go(func() { o.work(ctx) })
	c.rage(t, *span)
	s.quit.Store(true)
	o.quit.Store(true)
	calmed := time.Now()
	c.calm(t, *patient, func() bool { return s.open.Load() == 0 })
	stop()
	people.Wait()
	took := time.Since(calmed)
	r.dismiss(t)
	a := r.inspect(t, s, mia, o)
	fmt.Print(a.table())
	fmt.Printf("%s: all runs had ended %v after the chaos; %d requirements broken; -seed %d\n", kind, took.Round(100*time.Millisecond), len(r.broken), *seed)
	a.explain(t)
}
