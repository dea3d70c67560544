//go:build unix

package crashtest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
)

// The kinds of wait. A run of each does step "before", waits in step "wait", and does step "after".
const (
	timer     = "timer"
	event     = "event"
	eventLate = "event-late" // nobody sends it in time
	gate      = "gate"       // step "after" acts under it
	askFirst  = "ask"        // step "after" asks itself
	gateLate  = "gate-late"  // nobody decides in time
	childRun  = "child"      // does step "inner"
	group     = "group"      // one branch does step "one", the other one waits and does step "two"
	batch     = "batch"      // does step "item" for each item, and nobody has to wait
)

var waitKinds = []string{timer, event, eventLate, gate, askFirst, gateLate, childRun, group, batch}

// A batch has so many items, of which so many run at once.
const (
	batchItems  = 6
	batchAtOnce = 2
)

// nap is how long timers and time limits are.
const nap = 400 * time.Millisecond

var (
	keyedSteps = []string{"before", "inner", "one"}
	onceSteps  = []string{"after", "two"}
	paid       = pawl.DefineEvent[string]("paid")
)

// waitFlow is the workflow that waits in one way. Its result is what it was told, and what step "after" was.
func waitFlow(name, kind string, w *world) *pawl.Workflow[string, string] {
	return pawl.Define(name, "v1", func(run *pawl.Run, in string) (string, error) {
		in, err := w.keyed(run, "before", in)
		if err != nil {
			return "", err
		}
		told := in
		var under pawl.StepOption = pawl.Retry(pawl.RetryPolicy{}) // no approval is needed
		switch kind {
		case timer:
			err = pawl.Sleep(run, "wait", nap)
		case event:
			told, err = pawl.Await(run, "wait", paid, pawl.Key(run.ID()))
		case eventLate:
			if _, err = pawl.Await(run, "wait", paid, pawl.Key(run.ID()), pawl.Within(nap)); errors.Is(err, fault.ReasonWaitTimeout) {
				err = nil
			}
		case gate:
			var ok pawl.Approval[string]
			ok, err = pawl.Approve(run, "wait", in)
			under = pawl.Under(ok)
		case askFirst:
			under = pawl.AskFirst()
		case gateLate:
			if _, err = pawl.Approve(run, "wait", in, pawl.Expires(nap)); err != nil {
				if _, denied := errors.AsType[*pawl.Denied](err); denied {
					err = nil
				}
			}
		case childRun:
			told, err = pawl.Child(run, "wait", childFlow(name, w), in)
		case group:
			err = w.both(run, in)
		case batch:
			err = w.items(run, in)
		}
		if err != nil {
			return "", err
		}
		out, err := w.onceUnder(run, "after", told, under, kind == gate || kind == askFirst, in)
		return told + "," + out, err
	})
}

// childFlow is the workflow of the child.
func childFlow(parent string, w *world) *pawl.Workflow[string, string] {
	return pawl.Define(parent+"-child", "v1", func(run *pawl.Run, in string) (string, error) { return w.keyed(run, "inner", in) })
}

// both goes two ways at once.
func (w *world) both(run *pawl.Run, in string) error {
	g := run.Group()
	g.Go(func(run *pawl.Run) error {
		_, err := w.keyed(run, "one", in)
		return err
	})
	g.Go(func(run *pawl.Run) error {
		if err := pawl.Sleep(run, "wait", nap); err != nil {
			return err
		}
		_, err := w.onceUnder(run, "two", in, nil, false, in)
		return err
	})
	return g.Wait()
}

// items has an effect for each item of a batch.
func (w *world) items(run *pawl.Run, in string) error {
	items := make([]string, batchItems)
	for i := range items {
		items[i] = fmt.Sprint("i", i)
	}
	_, err := pawl.Batch(run, "wait", items, func(id string) string { return id }, func(run *pawl.Run, id string) (string, error) {
		return w.keyed(run, "item", in+" "+id)
	}, pawl.AtOnce(batchAtOnce))
	return err
}

func (w *world) keyed(run *pawl.Run, name, in string) (string, error) {
	return pawl.Keyed(run, name, in, func(ctx context.Context, key pawl.OpKey, in string) (string, error) {
		return w.send(ctx, key, in)
	}, pawl.Timeout(timeout))
}

// onceUnder does a Once step; one under an approval gets what was approved.
func (w *world) onceUnder(run *pawl.Run, name, told string, under pawl.StepOption, gated bool, approved string) (string, error) {
	opts := []pawl.OnceOption{pawl.Timeout(timeout), pawl.Settle(settle)}
	if gated {
		told, opts = approved, append(opts, under)
	}
	return pawl.Once(run, name, told, func(ctx context.Context, it pawl.Intent, in string) (string, error) {
		return w.send(ctx, it.Key, in)
	}, opts...)
}

// send is what the outside world says to a run that awaits it. Sent twice, it is one event.
func send(ctx context.Context, c pawl.Client, id pawl.RunID) error {
	return paid.Send(ctx, c, pawl.Key(id), "yes", pawl.EventID("delivery of "+string(id)))
}

// waitPlace is a point of the protocol in the course of a wait.
type waitPlace struct {
	place
	nth    int
	sender bool // it is the process that sends the event which comes there
}

func (p waitPlace) String() string {
	name := p.place.String()
	if p.nth > 1 {
		name += fmt.Sprintf(" for the %dnd time", p.nth)
	}
	if p.sender {
		name += " by the sender"
	}
	return name
}

// asks is the step that waits.
func asks(kind string) string {
	if kind == askFirst {
		return "after?"
	}
	return "wait"
}

// waitPlaces lists every point that a run of the kind comes to, from the call of the wait to what follows it.
func waitPlaces(kind string) []waitPlace {
	at := func(p hooks.Point, step string) waitPlace { return waitPlace{place: place{point: p, step: step}} }
	after := func(arm hooks.Point, step string) waitPlace {
		return waitPlace{place: place{point: hooks.CommitSending, step: step, arm: arm}}
	}
	again := func(p waitPlace) waitPlace { p.nth = 2; return p }
	effect := func(step string) []waitPlace {
		return []waitPlace{at(hooks.StepReached, step), after(hooks.StepReached, step), at(hooks.IntentWritten, step), at(hooks.EffectBegin, step),
			at(hooks.EffectDone, step), at(hooks.ResultWritten, step)}
	}
	// The first execution: the wait begins, in the first commit after step "before", and the body is suspended.
	all := []waitPlace{after(hooks.EffectDone, "before"), at(hooks.ResultWritten, asks(kind)), at(hooks.BodyDone, ""), after(hooks.BodyDone, ""),
		at(hooks.Ended, "")}
	// The second one. Where time has ended the wait, its first commit says so.
	all = append(all, again(at(hooks.Claimed, "")), again(after(hooks.Claimed, "")))
	switch kind {
	case batch: // nothing is waited for, so there is no second one
		all = append([]waitPlace{at(hooks.StepReached, "wait"), at(hooks.ResultWritten, "wait"), at(hooks.BodyDone, ""), after(hooks.BodyDone, ""),
			at(hooks.Ended, "")}, effect("wait//i3/item")...)
		return all
	case askFirst: // the step that asks is called in both
		all = append(all, at(hooks.StepReached, "after"), again(at(hooks.StepReached, "after")))
	case event:
		all = append(all, waitPlace{place: place{point: hooks.CommitSending, step: "paid"}, sender: true})
	case childRun:
		all = append(all, at(hooks.EffectDone, "inner"), after(hooks.EffectDone, "inner"), at(hooks.ResultWritten, "inner"))
	case group:
		all = append(append(all, at(hooks.EffectDone, "one"), after(hooks.EffectDone, "one")), effect("two")...)
	}
	// The first commit of step "after" says that a timer is over; under a gate it claims that. The rest of the step, and the
	// run's end, are as in the other matrix.
	switch kind {
	case gate:
		return append(all, effect("after")...)
	case askFirst:
		return append(all, effect("after")[2:]...)
	default:
		return append(all, effect("after")[:2]...)
	}
}

// tellingWaits are the places that -short looks at, each under SIGKILL.
var tellingWaits = map[string][]waitPlace{
	timer:     {{place: place{point: hooks.BodyDone}}},
	event:     {{place: place{point: hooks.CommitSending, step: "paid"}, sender: true}},
	eventLate: {{place: place{point: hooks.CommitSending, arm: hooks.Claimed}, nth: 2}},
	gate:      {{place: place{point: hooks.ResultWritten, step: "wait"}}, {place: place{point: hooks.EffectDone, step: "after"}}},
	askFirst:  {{place: place{point: hooks.CommitSending, step: "after", arm: hooks.StepReached}, nth: 2}},
	childRun:  {{place: place{point: hooks.CommitSending, step: "inner", arm: hooks.EffectDone}}},
	batch:     {{place: place{point: hooks.EffectDone, step: "wait//i3/item"}}},
	group:     {{place: place{point: hooks.EffectDone, step: "two"}}},
}

// waiting is one line of the matrix of waits.
type waiting struct {
	waitPlace
	kind, store string
	freeze      bool
}

func (c waiting) String() string {
	how := "SIGKILL"
	if c.freeze {
		how = "SIGSTOP"
	}
	return fmt.Sprintf("%s/%s/%s/%s", c.store, how, c.kind, c.waitPlace)
}

func waitings(short bool) (all []waiting) {
	for _, store := range []string{"sqlite", "postgres"} {
		for _, kind := range waitKinds {
			if short {
				for _, p := range tellingWaits[kind] {
					all = append(all, waiting{p, kind, store, false})
				}
				continue
			}
			for _, p := range waitPlaces(kind) {
				all = append(all, waiting{p, kind, store, false}, waiting{p, kind, store, true})
			}
		}
	}
	return all
}

// TestDeathWhileWaiting kills and freezes a worker at every point of every kind of wait on both stores, and lets another
// worker go on: the run waits once, is told once, acts once, and is never stranded (C40-C44, C110, C111).
func TestDeathWhileWaiting(t *testing.T) {
	t.Parallel()
	o := newEffects(t, 0)
	shared := newSite(t, "postgres", o)
	free := make(chan struct{}, together+2)
	var all sync.WaitGroup
	for i, c := range waitings(testing.Short()) {
		if only := os.Getenv("PAWL_CRASHTEST_ONLY"); only != "" && !strings.Contains(c.String(), only) {
			continue
		}
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			t.Run(c.String(), func(t *testing.T) {
				s := shared
				if c.store == "sqlite" {
					s = newSite(t, "sqlite", o)
				}
				c.play(t, s, fmt.Sprintf("wait-%d", i))
			})
		})
	}
	all.Wait()
	shared.check(t)
}

// play plays it, again if a worker has lost its lease with nobody's doing.
func (c waiting) play(t *testing.T, s *site, workflow string) {
	for try := range 4 {
		if c.playOnce(t, s, fmt.Sprintf("%s-%d", workflow, try)) {
			return
		}
	}
	t.Errorf("%s: in no play did the workers keep their leases", c)
}

func (c waiting) playOnce(t *testing.T, s *site, workflow string) bool {
	h, err := waitFlow(workflow, c.kind, nil).Start(t.Context(), s.control, "in")
	if err != nil {
		t.Fatal(err)
	}
	id := h.ID()
	next := workerConfig{Workflow: workflow, Wait: c.kind}
	cfg := next
	cfg.Flush = time.Hour
	if c.sender {
		b := s.worker(t, next)
		until(t, patience, "the run to wait", func() bool { return s.waits(t, id, c.kind) })
		cfg.Send = string(id)
		next = workerConfig{}
		defer b.kill(t)
	}
	cfg.Point, cfg.Step, cfg.Arm, cfg.Nth = c.point, c.step, c.arm, c.nth
	a := s.worker(t, cfg)
	came := false
	for end := time.Now().Add(10 * time.Second); !came && !a.ended() && time.Now().Before(end); {
		if came = a.arrives(50 * time.Millisecond); !came && !c.sender {
			s.tell(t, id, c.kind)
		}
	}
	if !came || a.starved() {
		t.Logf("%s: the worker did not come to the point at once, again:\n%s", c, a.log.tail())
		a.kill(t)
		return false
	}
	d := newDesk(s)
	var b *process
	if c.freeze {
		b = c.freezeAndWake(t, s, d, id, a, next)
	} else {
		a.kill(t)
		b = c.successor(t, s, next)
		c.attend(t, s, d, id)
	}
	if b != nil {
		b.stop(t)
		if b.starved() && !t.Failed() {
			t.Logf("%s: the second worker lost its lease, again:\n%s", c, b.log.tail())
			return false
		}
	}
	c.verify(t, s, d, id, workflow)
	s.dump(t, id, a)
	return true
}

// successor starts the worker that goes on; nil if there is one already.
func (c waiting) successor(t *testing.T, s *site, next workerConfig) *process {
	if c.sender {
		return nil
	}
	return s.worker(t, next)
}

// holdsLock reports whether a process frozen at the place keeps everybody else from the run.
func (c waiting) holdsLock() bool { return c.point == hooks.CommitSending }

// freezeAndWake holds a still for three leases while b goes on, then lets a do what it still would.
func (c waiting) freezeAndWake(t *testing.T, s *site, d *desk, id pawl.RunID, a *process, next workerConfig) (b *process) {
	frozen := s.freeze(t, a, c.holdsLock())
	a.goOn(t)
	if !c.holdsLock() {
		b = c.successor(t, s, next)
		c.attend(t, s, d, id)
	}
	pass(t, frozen.Add(3*lease))
	was, done := "", false
	if !c.holdsLock() {
		was, done = s.record(t, id), s.terminal(t, id)
	}
	a.signal(t, syscall.SIGCONT)
	if b == nil {
		b = c.successor(t, s, next)
	}
	c.attend(t, s, d, id)
	a.stop(t)
	d.look(t, pawl.InboxQuery{Run: id})
	if now := s.record(t, id); done && now != was {
		t.Errorf("%s: the run was finished, and the woken worker changed it from\n%s\nto\n%s", c, was, now)
	}
	return b
}

// attend answers and tells until the run is finished.
func (c waiting) attend(t *testing.T, s *site, d *desk, id pawl.RunID) {
	t.Helper()
	until(t, patience, "the run to finish", func() bool {
		s.tell(t, id, c.kind)
		d.look(t, pawl.InboxQuery{Run: id})
		return s.terminal(t, id)
	})
}

func (p *process) ended() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

// waits reports whether the run's wait is on record and open.
func (s *site) waits(t *testing.T, id pawl.RunID, kind string) bool {
	row := s.step(t, id, asks(kind))
	return row != nil && row.State == pawl.StepWaiting
}

func (s *site) step(t *testing.T, id pawl.RunID, name string) (row *pawl.StepRow) {
	err := s.store.View(t.Context(), func(ctx context.Context, tx pawl.Txn) (err error) {
		row, err = tx.Step(ctx, id, name)
		return err
	})
	if err != nil {
		t.Logf("read step %s: %v", name, err)
	}
	return row
}

// tell ends a wait from outside, once it is on record.
func (s *site) tell(t *testing.T, id pawl.RunID, kind string) {
	t.Helper()
	if !slices.Contains([]string{event, gate, askFirst}, kind) || !s.waits(t, id, kind) {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), lease)
	defer cancel()
	if kind == event {
		if err := send(ctx, s.control, id); err != nil {
			t.Logf("send: %v", err)
		}
		return
	}
	entries, _, err := s.control.Inbox(ctx, pawl.InboxQuery{Run: id})
	if err != nil {
		t.Logf("read the inbox: %v", err)
		return
	}
	for i := range entries {
		if entries[i].Kind != pawl.AskGate {
			continue
		}
		g, err := s.control.Gate(ctx, entries[i].ID)
		if err == nil {
			_, err = s.control.Decide(ctx, pawl.Decision{Gate: g.ID, Choice: pawl.AnswerApprove, Hash: g.Hash, By: "desk"})
		}
		if err != nil && !errors.Is(err, pawl.ErrConflict) {
			t.Logf("approve: %v", err)
		}
	}
}

// verify compares the end with what must be.
func (c waiting) verify(t *testing.T, s *site, d *desk, id pawl.RunID, workflow string) {
	t.Helper()
	r := s.show(t, id)
	if r == nil {
		return
	}
	if r.State != pawl.Succeeded {
		t.Errorf("%s: the run is %s (%v), want succeeded", c, r.State, r.Fault)
	}
	twice := 0
	for _, step := range onceSteps {
		if n, want := len(s.effects.of(id, step)), c.times(step); !want.holds(n) {
			t.Errorf("%s: step %s was sent %d times, want %v", c, step, n, want)
		} else {
			twice += max(n-1, 0)
		}
	}
	if n := d.asked[pawl.AskTwice]; n != twice {
		t.Errorf("%s: %d entries say that it may have happened twice, want %d", c, n, twice)
	}
	owners := []pawl.RunID{id}
	if c.kind == childRun {
		owners = append(owners, c.onlyChild(t, s, workflow))
	}
	for _, step := range keyedSteps {
		fresh := 0
		for _, run := range owners {
			for _, e := range s.effects.of(run, step) {
				if e.Fresh {
					fresh++
				}
			}
		}
		if want := c.times(step); !want.holds(fresh) {
			t.Errorf("%s: step %s has %d effects under its key, want %v", c, step, fresh, want)
		}
	}
	if c.kind == batch {
		c.verifyItems(t, s, id)
	}
	c.verifyWait(t, s, r)
	if s.kind == "sqlite" {
		s.check(t)
	}
}

// times is how often a step's effect is to be seen. A process that is frozen past its last check sends when it wakes.
func (c waiting) times(step string) span {
	switch {
	case step == "inner" && c.kind != childRun, (step == "one" || step == "two") && c.kind != group:
		return span{}
	case c.freeze && c.point == hooks.EffectBegin && c.step == step:
		return span{1, 2}
	}
	return span{1, 1}
}

// onlyChild is the one child that was started.
func (c waiting) onlyChild(t *testing.T, s *site, workflow string) pawl.RunID {
	t.Helper()
	runs, _, err := s.control.Runs(t.Context(), pawl.RunQuery{Workflow: workflow + "-child"})
	if err != nil || len(runs) != 1 || runs[0].State != pawl.Succeeded {
		t.Errorf("%s: the children are %+v, %v: want one that has succeeded", c, runs, err)
		return ""
	}
	return runs[0].ID
}

// verifyItems: each item has one effect, and no more were run again than run at once.
func (c waiting) verifyItems(t *testing.T, s *site, id pawl.RunID) {
	t.Helper()
	more := 0
	for i := range batchItems {
		sent := s.effects.of(id, fmt.Sprintf("wait//i%d/item", i))
		fresh := slices.DeleteFunc(slices.Clone(sent), func(e effect) bool { return !e.Fresh })
		more += len(sent) - len(fresh)
		if len(fresh) != 1 {
			t.Errorf("%s: item %d has %d effects, want 1", c, i, len(fresh))
		}
	}
	if more > batchAtOnce {
		t.Errorf("%s: %d items were run again, want at most %d", c, more, batchAtOnce)
	}
}

// verifyWait looks at what was waited for.
func (c waiting) verifyWait(t *testing.T, s *site, r *pawl.RunDetail) {
	t.Helper()
	row := s.step(t, r.ID, asks(c.kind))
	if row == nil {
		t.Errorf("%s: nothing was waited for", c)
		return
	}
	want := pawl.StepSucceeded
	if c.kind == eventLate || c.kind == gateLate {
		want = pawl.StepFailed
	}
	if row.State != want {
		t.Errorf("%s: the wait is %s, want %s", c, row.State, want)
	}
	if lasted := time.Duration(row.Ended-row.Begun) * time.Microsecond; lasted < nap && slices.Contains([]string{timer, eventLate, gateLate, group}, c.kind) {
		t.Errorf("%s: it waited %v, want at least %v", c, lasted, nap)
	}
	var gates []pawl.GateRow
	err := s.store.View(t.Context(), func(ctx context.Context, tx pawl.Txn) (err error) {
		gates, err = tx.Gates(ctx, r.ID)
		return err
	})
	if err != nil {
		t.Error(err)
	}
	switch c.kind {
	case gate, askFirst:
		if len(gates) != 1 || gates[0].State != pawl.GateClaimed || gates[0].Ref != "after" {
			t.Errorf("%s: the gates are %+v, want one under which step after has acted", c, gates)
		}
	case gateLate:
		if len(gates) != 1 || gates[0].State != pawl.GateExpired {
			t.Errorf("%s: the gates are %+v, want one that has expired", c, gates)
		}
	case event:
		if string(row.Value) != `"yes"` {
			t.Errorf("%s: it was told %s", c, row.Value)
		}
	}
}
