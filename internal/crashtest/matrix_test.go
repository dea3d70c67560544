//go:build unix

package crashtest_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/hooks"
)

// place is a point of the protocol in the course of the workflow.
type place struct {
	point hooks.Point
	step  string
	arm   hooks.Point // see workerConfig.Arm
}

func (p place) String() string {
	name := string(p.point)
	if p.arm != "" {
		name += " after " + string(p.arm)
	}
	if p.step != "" {
		name += " of " + p.step
	}
	return name
}

// places lists every point that the run meets. The workers of the matrix flush no result on their own, so that what is
// lost with each is certain, and as much as the protocol allows.
func places() []place {
	all := []place{{point: hooks.Claimed}, {point: hooks.BodyDone}, {point: hooks.Ended}}
	for _, s := range steps {
		all = append(all, place{point: hooks.StepReached, step: s}, place{point: hooks.EffectBegin, step: s}, place{point: hooks.EffectDone, step: s})
		if hasIntent(s) {
			all = append(all, place{point: hooks.IntentWritten, step: s})
		}
		if s != "txin" { // its result rides with the transaction of tx
			all = append(all, place{point: hooks.ResultWritten, step: s})
		}
		switch s {
		case "tx":
			all = append(all, place{point: hooks.TxCommitting, step: s})
		case "txin":
			all = append(all, place{point: hooks.TxCommitting, step: s}, place{point: hooks.ForeignDone, step: s})
		case "once":
			all = append(all, place{point: hooks.CommitSending, step: s, arm: hooks.StepReached})
			fallthrough
		default:
			all = append(all, place{point: hooks.CommitSending, step: s, arm: hooks.EffectDone})
		}
	}
	return all
}

func hasIntent(step string) bool {
	return slices.Contains([]string{"paid", "keyed", "txin", "once", "probed"}, step)
}

// stage says how far the attempt is that a death would end.
type stage int

const (
	untouched stage = iota
	before          // the intent may be durable, the effect has not happened
	after           // the effect has happened, its result is not durable
)

// lost says what a death at the place cuts off: the step that is under way, and the one before it if its result waits
// for a write to ride with.
func (p place) lost() map[string]stage {
	cut := map[string]stage{}
	i := slices.Index(steps, p.step)
	unflushed := func() { // by the rule of R1 it becomes durable before the next step starts
		if i > 0 && steps[i-1] != "tx" {
			cut[steps[i-1]] = after
		}
	}
	switch p.point {
	case hooks.StepReached:
		unflushed()
	case hooks.IntentWritten:
		cut[p.step] = before
	case hooks.EffectBegin:
		cut[p.step] = before
	case hooks.EffectDone, hooks.TxCommitting, hooks.ForeignDone:
		cut[p.step] = after
	case hooks.ResultWritten: // it rides with the next intent
		if i+1 < len(steps) && p.step != "tx" && hasIntent(steps[i+1]) {
			cut[steps[i+1]] = before
		}
	case hooks.BodyDone:
		cut["last"] = after
	case hooks.CommitSending:
		if p.arm == hooks.EffectDone {
			cut[p.step] = after
		}
	case hooks.Claimed, hooks.Ended, hooks.ScheduleDeciding, hooks.ScheduleDecided:
	}
	if p.step == "tx" && p.point != hooks.StepReached && p.point != hooks.ResultWritten {
		unflushed() // it carries the result before it
	}
	return cut
}

// holdsLock reports whether a process frozen at the place keeps everybody else from the run: it is inside a write
// transaction that has locked the run's row, or on SQLite the file.
func (p place) holdsLock(store string) bool {
	return p.point == hooks.CommitSending ||
		store == "sqlite" && p.step == "tx" && slices.Contains([]hooks.Point{hooks.EffectBegin, hooks.EffectDone, hooks.TxCommitting}, p.point)
}

// holdsRecord reports whether a process frozen at the place lets another one take the run over, but holds something that
// this one waits for before it can finish: a row that is not committed, or the file of the user's database.
func (p place) holdsRecord(store string) bool {
	switch p.step {
	case "txin":
		return slices.Contains([]hooks.Point{hooks.EffectBegin, hooks.EffectDone, hooks.TxCommitting}, p.point)
	case "tx":
		return p.point == hooks.TxCommitting && store == "postgres"
	}
	return false
}

// span is how often something may happen.
type span struct{ least, most int }

func (s span) holds(n int) bool { return s.least <= n && n <= s.most }

// expected is what must be the case in the end.
type expected struct {
	sends    map[string]span // calls that reached the outside world
	person   span            // uncertain steps that a person was asked about
	twice    int             // entries "may have happened twice"
	evidence string          // the step about which the old worker reports in the end
}

// afterKill derives what a kill at the place leaves.
func (p place) afterKill() expected {
	x := expected{sends: map[string]span{}}
	cut := p.lost()
	for _, s := range steps {
		n := 1
		if cut[s] == after && s != "once" && s != "probed" { // these are found to have happened
			n = 2
		}
		x.sends[s] = span{n, n}
	}
	if cut["once"] != untouched {
		x.person = span{1, 1}
	}
	return x
}

// afterFreeze derives what a freeze of three leases leaves, in which another worker goes on and a person answers.
func (p place) afterFreeze(store string) expected {
	x := p.afterKill()
	effect := !slices.Contains([]string{"tx", "txin"}, p.step)
	mayRun := func(s string) { x.sends[s] = span{x.sends[s].least, 2} } // Repeatable starts without a look at the lease
	switch p.point {
	case hooks.Claimed:
		mayRun("rep")
	case hooks.StepReached:
		if p.step == "rep" {
			mayRun("rep")
		}
	case hooks.EffectBegin: // the residual window: past its last check, it sends when it wakes
		if effect {
			x.sends[p.step] = span{2, 2}
		}
		if p.step == "once" || p.step == "probed" {
			x.twice = 1
		}
		if effect && hasIntent(p.step) {
			x.evidence = p.step
		}
	case hooks.EffectDone:
		if effect && hasIntent(p.step) {
			x.evidence = p.step
		}
	case hooks.ForeignDone:
		x.evidence = p.step
	case hooks.ResultWritten:
		if p.step == "probed" {
			mayRun("last")
		}
	case hooks.IntentWritten, hooks.TxCommitting, hooks.BodyDone, hooks.Ended, hooks.CommitSending, hooks.ScheduleDeciding, hooks.ScheduleDecided:
	}
	if p.holdsLock(store) { // nobody can take the run over: its write lands, and either worker goes on
		for s := range x.sends {
			x.sends[s] = span{1, 1}
		}
		mayRun("rep")
		mayRun("last")
		x.person = span{0, 1}
	}
	return x
}

// telling are the places that -short looks at, each under SIGKILL.
var telling = []place{
	{point: hooks.EffectDone, step: "rep"},
	{point: hooks.EffectDone, step: "paid"},
	{point: hooks.EffectDone, step: "keyed"},
	{point: hooks.ForeignDone, step: "txin"},
	{point: hooks.TxCommitting, step: "tx"},
	{point: hooks.IntentWritten, step: "once"},
	{point: hooks.EffectDone, step: "once"},
	{point: hooks.EffectDone, step: "probed"},
	{point: hooks.BodyDone},
}

// together is how many scenarios run at once. They wait most of the time.
const together = 6

// scenario is one line of the matrix.
type scenario struct {
	place
	store  string
	freeze bool
	late   bool // the frozen step goes on only after the woken worker has had a heartbeat
	silent bool // nobody answers before the frozen worker is woken
}

func (c scenario) String() string {
	how := "SIGKILL"
	if c.freeze {
		how = "SIGSTOP"
	}
	if c.late {
		how += " heartbeat first"
	}
	if c.silent {
		how += " nobody answers"
	}
	return fmt.Sprintf("%s/%s/%s", c.store, how, c.place)
}

func scenarios(short bool) []scenario {
	var all []scenario
	for _, store := range []string{"sqlite", "postgres"} {
		if short {
			for _, p := range telling {
				all = append(all, scenario{place: p, store: store})
			}
			continue
		}
		for _, p := range places() {
			all = append(all, scenario{place: p, store: store}, scenario{place: p, store: store, freeze: true})
			switch {
			case p.point == hooks.IntentWritten:
				all = append(all, scenario{place: p, store: store, freeze: true, late: true})
			case p.step == "once" && (p.point == hooks.EffectBegin || p.point == hooks.EffectDone):
				all = append(all, scenario{place: p, store: store, freeze: true, silent: true})
			}
		}
	}
	return all
}

// TestDeathAtEveryPoint kills and freezes a worker at every point of every kind of step on both stores, lets another
// worker go on, and counts the effects (C32, C70, C71, C84-C95).
func TestDeathAtEveryPoint(t *testing.T) {
	t.Parallel()
	o := newEffects(t, 0)
	shared := newSite(t, "postgres", o)
	free := make(chan struct{}, together)
	var all sync.WaitGroup
	for i, c := range scenarios(testing.Short()) {
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
				c.play(t, s, fmt.Sprintf("flow-%d", i))
			})
		})
	}
	all.Wait()
	shared.check(t)
}

// play plays the scenario. On a machine under load a worker may lose its lease with nobody's doing, which is another
// scenario: then it is played again.
func (c scenario) play(t *testing.T, s *site, workflow string) {
	for try := range 4 {
		if c.playOnce(t, s, fmt.Sprintf("%s-%d", workflow, try)) {
			return
		}
	}
	t.Errorf("%s: in no play did the workers keep their leases", c)
}

func (c scenario) playOnce(t *testing.T, s *site, workflow string) bool {
	id := s.start(t, workflow)
	a := s.worker(t, workerConfig{Workflow: workflow, Point: c.point, Step: c.step, Arm: c.arm, Flush: time.Hour})
	if !a.arrives(10*time.Second) || a.starved() {
		t.Logf("%s: the worker did not come to the point at once, again:\n%s", c, a.log.tail())
		a.kill(t)
		return false
	}
	d := newDesk(s)
	next := workerConfig{Workflow: workflow}
	var b *process
	var x expected
	if c.freeze {
		if x = c.afterFreeze(s.kind); c.silent { // the report of the woken worker settles the step
			x.person, x.twice, x.sends[c.step] = span{}, 0, span{1, 1}
		}
		b = c.freezeAndWake(t, s, d, id, a, next)
	} else {
		x = c.afterKill()
		a.kill(t)
		b = s.worker(t, next)
		s.attend(t, d, id)
	}
	b.stop(t)
	if b.starved() && !t.Failed() {
		t.Logf("%s: the second worker lost its lease, again:\n%s", c, b.log.tail())
		return false
	}
	c.verify(t, s, d, id, x)
	s.dump(t, id, a, b)
	return true
}

// freezeAndWake holds a still for three leases while b goes on, then lets a do what it still would.
func (c scenario) freezeAndWake(t *testing.T, s *site, d *desk, id pawl.RunID, a *process, next workerConfig) *process {
	frozen := s.freeze(t, a, c.holdsLock(s.kind))
	if !c.late {
		a.goOn(t)
	}
	var b *process
	if !(c.holdsLock(s.kind) && s.kind == "sqlite") { // it could not even register
		b = s.worker(t, next)
	}
	d.quiet = c.silent
	if !c.holdsLock(s.kind) && !c.holdsRecord(s.kind) && !c.silent {
		s.attend(t, d, id)
	}
	pass(t, frozen.Add(3*lease))
	was, done := s.record(t, id), s.terminal(t, id)
	a.signal(t, syscall.SIGCONT)
	if c.late {
		pass(t, time.Now().Add(lease/2))
		a.goOn(t)
	}
	if b == nil {
		b = s.worker(t, next)
	}
	s.attend(t, d, id)
	a.stop(t)
	d.look(t, pawl.InboxQuery{Run: id})
	if now := s.record(t, id); done && now != was {
		t.Errorf("%s: the run was finished, and the woken worker changed it from\n%s\nto\n%s", c, was, now)
	}
	return b
}

// verify compares the end with what must be.
func (c scenario) verify(t *testing.T, s *site, d *desk, id pawl.RunID, x expected) {
	t.Helper()
	r := s.show(t, id)
	if r == nil {
		return
	}
	if r.State != pawl.Succeeded {
		t.Errorf("%s: the run is %s (%v), want succeeded", c, r.State, r.Fault)
	}
	for _, step := range steps {
		if step == "tx" || step == "txin" {
			if n := s.rows(t, id, step); n != 1 {
				t.Errorf("%s: step %s has written %d rows, want exactly 1", c, step, n)
			}
			continue
		}
		sent := s.effects.of(id, step)
		if n := len(sent); !x.sends[step].holds(n) {
			t.Errorf("%s: step %s was sent %d times, want %v", c, step, n, x.sends[step])
		}
		fresh := slices.DeleteFunc(slices.Clone(sent), func(e effect) bool { return !e.Fresh })
		if step == "keyed" && len(fresh) != 1 {
			t.Errorf("%s: step keyed has %d effects under its key, want 1", c, len(fresh))
		}
	}
	if n := d.asked[pawl.AskUncertain]; !x.person.holds(n) {
		t.Errorf("%s: a person was asked about %d uncertain steps, want %v", c, n, x.person)
	}
	if n := d.asked[pawl.AskTwice]; n != x.twice {
		t.Errorf("%s: %d entries say that it may have happened twice, want %d", c, n, x.twice)
	}
	c.verifyEvidence(t, r, x.evidence)
	s.verifyChain(t, r)
	if s.kind == "sqlite" {
		s.check(t)
	}
}

func (c scenario) verifyEvidence(t *testing.T, r *pawl.RunDetail, step string) {
	t.Helper()
	if step == "" {
		return
	}
	if !slices.ContainsFunc(r.Evidence, func(e pawl.Evidence) bool {
		return e.Step == step && e.Attempt == 1 && e.Source == "worker" && e.Verdict == pawl.Happened.String()
	}) {
		t.Errorf("%s: no evidence of the old worker says that step %s happened: %+v", c, step, r.Evidence)
	}
}

// verifyChain asserts that the result of each step is one of its effects, and that this effect had the result before
// it as its input: nothing changed after something depended on it.
func (s *site) verifyChain(t *testing.T, r *pawl.RunDetail) {
	t.Helper()
	var out []string
	if err := json.Unmarshal(r.Result, &out); err != nil || len(out) != len(steps) {
		t.Errorf("result %s: %v", r.Result, err)
		return
	}
	in := "in"
	for i, step := range steps {
		fits := out[i] == step+" of "+in
		if step != "tx" && step != "txin" {
			fits = slices.ContainsFunc(s.effects.of(r.ID, step), func(e effect) bool { return e.Ref == out[i] && e.Input == in })
		}
		if !fits {
			t.Errorf("step %s has the result %q, which no effect of it on %q had", step, out[i], in)
		}
		in = out[i]
	}
}
