//go:build unix

package crashtest_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
)

// TestRandomKills works on many runs with several processes on one database, kills one of them every now and then, and
// counts the effects in the end (I1-I5).
func TestRandomKills(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"sqlite", "postgres"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			runs, span := 200, 20*time.Second
			if testing.Short() {
				runs, span = 20, 4*time.Second
			}
			killAtRandom(t, newSite(t, kind, newEffects(t, 100*time.Millisecond)), runs, span)
		})
	}
}

func killAtRandom(t *testing.T, s *site, runs int, span time.Duration) {
	seed := uint64(time.Now().UnixNano())
	if given, err := strconv.ParseUint(os.Getenv("PAWL_TEST_SEED"), 10, 64); err == nil {
		seed = given
	}
	t.Logf("PAWL_TEST_SEED=%d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	const workflow = "random"
	hs, err := flow(workflow, nil).StartMany(t.Context(), s.control, slices.Repeat([]string{"in"}, runs), nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg := workerConfig{Workflow: workflow, Slots: 6}
	workers := []*process{s.worker(t, cfg), s.worker(t, cfg)}
	d := newDesk(s)
	kills := 0
	next := time.Now().Add(time.Second)
	for end := time.Now().Add(span); time.Now().Before(end); {
		pass(t, next)
		next = time.Now().Add(300*time.Millisecond + rand.N(1500*time.Millisecond))
		i := rnd.IntN(len(workers))
		workers[i].kill(t)
		kills++
		workers[i] = s.worker(t, cfg)
		d.look(t, pawl.InboxQuery{Limit: 1000})
	}
	var open []pawl.RunInfo
	until(t, 2*patience, fmt.Sprintf("%d runs to finish after %d kills", runs, kills), func() bool {
		d.look(t, pawl.InboxQuery{Limit: 1000})
		open, _, err = s.control.Runs(t.Context(), pawl.RunQuery{States: []pawl.RunState{pawl.Queued, pawl.Running, pawl.Waiting, pawl.Blocked}})
		return err == nil && len(open) == 0
	})
	for _, p := range workers {
		p.stop(t)
	}
	t.Logf("%d kills; a person was asked %v", kills, d.asked)
	for i, r := range open {
		if i < 3 {
			s.dump(t, r.ID, workers...)
		}
	}
	bad := 0
	for _, h := range hs {
		if !s.whole(t, h.ID()) {
			if bad++; bad <= 3 {
				s.dump(t, h.ID())
			}
		}
	}
	s.check(t)
}

// whole asserts of a finished run that each effect happened as often as its kind allows.
func (s *site) whole(t *testing.T, id pawl.RunID) bool {
	t.Helper()
	r := s.show(t, id)
	if r == nil {
		return false
	}
	ok := r.State == pawl.Succeeded
	for _, step := range steps {
		n := len(s.effects.of(id, step))
		switch step {
		case "tx", "txin":
			n = s.rows(t, id, step)
			ok = ok && n == 1
		case "once", "probed":
			ok = ok && n == 1
		default:
			ok = ok && n >= 1
		}
	}
	if !ok {
		t.Errorf("run %s is %s: an effect happened more or less often than its kind allows", id, r.State)
		return false
	}
	s.verifyChain(t, r)
	return true
}
