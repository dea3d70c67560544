//go:build unix

package torture_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/hooks"
)

// scene is a rig on which one thing is done on purpose: two seats, nobody on them, an outside world that behaves.
func scene(t *testing.T, kind string) *rig {
	t.Helper()
	if testing.Short() {
		t.Skip("takes a lease and more")
	}
	r := newRig(t, kind, 2, 1, parts{})
	r.effects.kind = true
	return r
}

// begin starts a run of these verbs.
func (r *rig) begin(t *testing.T, verbs ...string) *pawl.Handle[string] {
	t.Helper()
	h, err := flow(nil).Start(t.Context(), r.control, job{Verbs: verbs})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// until waits for something to become the case.
func until(t *testing.T, what string, patience time.Duration, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); <-time.After(tick) {
		if time.Now().After(end) {
			t.Fatalf("after %v: not yet the case: %s", patience, what)
		}
	}
}

func (r *rig) finished(t *testing.T, h *pawl.Handle[string]) func() bool {
	return func() bool {
		info, err := h.Status(t.Context())
		return err == nil && info.State.Terminal()
	}
}

// finish lets a person answer until the run has ended, and checks all requirements.
func (r *rig) finish(t *testing.T, h *pawl.Handle[string]) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	mia := newPerson(r, 1)
	mia.steady = true
	var people sync.WaitGroup
	people.Go(func() { mia.work(ctx) })
	until(t, "the run has ended", time.Minute, r.finished(t, h))
	stop()
	people.Wait()
	r.dismiss(t)
	a := r.inspect(t, newStaff(r, 1), mia, newOps(r, 1))
	a.explain(t)
}

// says reports whether a seat's workers have logged something.
func (r *rig) says(t *testing.T, seat int, text string) bool {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(r.dir, fmt.Sprintf("worker-%d.log", seat)))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(log), text)
}

// TestLostClaimReply: a claim takes effect and the worker does not learn it. It lives on and renews its lease, so nobody
// else would ever take the run. It finds it and gives it back.
func TestLostClaimReply(t *testing.T) {
	r := scene(t, "postgres")
	h := r.begin(t, "rep", "once", "tx")
	s := r.seats[0]
	s.proxy.LoseReply(1, isClaim)
	r.occupy(t, s, workerConfig{})
	until(t, "the run has ended, without another worker", 5*lease, r.finished(t, h))
	if !r.says(t, 0, "owned without knowing") {
		t.Error("the reply was not lost: the worker has not given the run back")
	}
	r.dismissAll(t)
}

// journals reports whether a statement changes journal rows.
func journals(sql string) bool {
	return strings.Contains(sql, "INSERT INTO pawl_steps") || strings.Contains(sql, "UPDATE pawl_steps")
}

// past is the run as it must not change any more, "" if it has not ended.
func (r *rig) past(t *testing.T, h *pawl.Handle[string]) string {
	t.Helper()
	d, err := r.control.Show(t.Context(), h.ID())
	if err != nil {
		t.Fatal(err)
	}
	if !d.State.Terminal() {
		return ""
	}
	return fingerprint(d)
}

// TestOldCommit: the COMMIT of a Once step's intent, or of its result, is held back while its worker dies, and lands when
// by all rules its attempt has long been over.
func TestOldCommit(t *testing.T) {
	for n, what := range []string{"intent", "result"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := scene(t, "postgres")
			h := r.begin(t, "once", "rep", "once")
			s := r.seats[0]
			caught := s.proxy.HoldCommitOf(n+1, journals)
			r.occupy(t, s, workerConfig{})
			<-caught
			s.p.signal(t, syscall.SIGKILL)
			r.occupy(t, r.seats[1], workerConfig{})
			<-time.After(over + lease)
			was := r.past(t, h) // an intent may be a statement by itself, which holds no lock before it has come
			if err := s.proxy.FreeCommit(); err != nil {
				t.Errorf("the old COMMIT did not land: %v", err)
			}
			r.finish(t, h)
			if now := r.past(t, h); was != "" && now != was {
				t.Errorf("the old COMMIT has changed a finished run\nfrom %s\nto   %s", was, now)
			}
		})
	}
}

// TestClockGap shows a known gap, see docs/torture.md: a Once step happens twice if the store's clock is set forward by
// minutes while a process is frozen between its last check and its effect.
func TestClockGap(t *testing.T) {
	if !*bold {
		t.Skip("a known gap: run it with -bold")
	}
	r := scene(t, "sqlite")
	h := r.begin(t, "once")
	s := r.seats[0]
	r.occupy(t, s, workerConfig{Freeze: true, Once: true, Count: 1, Point: hooks.EffectBegin})
	until(t, "the worker is frozen", 5*lease, s.p.frozen.Load)
	r.occupy(t, r.seats[1], workerConfig{})
	until(t, "somebody is asked", 5*lease, func() bool {
		open, _, err := r.control.Inbox(t.Context(), pawl.InboxQuery{})
		return err == nil && len(open) > 0
	})
	if err := r.wall.set(5 * time.Minute); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	go newPerson(r, 1).work(ctx)
	until(t, "the run has ended", time.Minute, r.finished(t, h))
	stop()
	s.p.signal(t, syscall.SIGCONT)
	until(t, "the frozen worker's effect", 5*lease, func() bool { return len(r.effects.all) > 1 })
	r.finish(t, h)
}

// dismissAll is dismiss for seats of which some are empty.
func (r *rig) dismissAll(t *testing.T) {
	var taken []*seat
	for _, s := range r.seats {
		if s.p != nil {
			taken = append(taken, s)
		}
	}
	r.seats = taken
	r.dismiss(t)
}

// TestOldEvidence: a worker that was frozen before its effect reports at last that it did not begin. Meanwhile somebody has
// said so too, and the next attempt has had its effect and lost its worker: the report says nothing about that one.
func TestOldEvidence(t *testing.T) {
	r := scene(t, "sqlite")
	h := r.begin(t, "once")
	frozen := r.seats[0]
	r.occupy(t, frozen, workerConfig{Freeze: true, Once: true, Count: 1, Point: hooks.IntentWritten})
	until(t, "the worker is frozen", 5*lease, frozen.p.frozen.Load)
	next := r.seats[1]
	r.occupy(t, next, workerConfig{Once: true, Count: 1, Point: hooks.EffectDone})
	ctx, stop := context.WithCancel(t.Context())
	mia := newPerson(r, 1)
	mia.steady = true
	var people sync.WaitGroup
	people.Go(func() { mia.work(ctx) })
	until(t, "the second worker is lost after its effect", 2*over, next.p.ended)
	stop()
	people.Wait()
	r.occupy(t, next, workerConfig{})
	until(t, "somebody is asked about the second attempt", 5*lease, func() bool {
		open, _, err := r.control.Inbox(t.Context(), pawl.InboxQuery{})
		return err == nil && len(open) == 1 && open[0].Attempt == 2
	})
	frozen.p.signal(t, syscall.SIGCONT)
	until(t, "the first worker has reported", 5*lease, func() bool { return r.says(t, 0, "reported as evidence") })
	<-time.After(lease)
	r.finish(t, h)
}

// TestFrozenBeforeEffect: people say that a step did not happen, truthfully, as soon and as often as they can, while its
// process is frozen before its effect. Nobody may be heard before it could have had it.
func TestFrozenBeforeEffect(t *testing.T) {
	r := scene(t, "sqlite")
	h := r.begin(t, "once", "rep")
	s := r.seats[0]
	r.occupy(t, s, workerConfig{Freeze: true, Once: true, Count: 1, Point: hooks.EffectBegin})
	until(t, "the worker is frozen", 5*lease, s.p.frozen.Load)
	r.occupy(t, r.seats[1], workerConfig{})
	time.AfterFunc(longest, func() { s.p.signal(t, syscall.SIGCONT) })
	r.finish(t, h)
	if r.ledger.tooEarly.Load() == 0 {
		t.Error("nobody has answered while the worker was frozen")
	}
}

// TestGivenUp: a step whose effect happened is given up by somebody who does not know that. A retry by hand asks again.
func TestGivenUp(t *testing.T) {
	r := scene(t, "sqlite")
	h := r.begin(t, "once", "rep")
	s := r.seats[0]
	r.occupy(t, s, workerConfig{Once: true, Count: 1, Point: hooks.EffectDone})
	until(t, "the worker is lost after its effect", 5*lease, s.p.ended)
	for _, s := range r.seats {
		r.occupy(t, s, workerConfig{})
	}
	until(t, "the step is given up", 5*lease, func() bool {
		open, _, err := r.control.Inbox(t.Context(), pawl.InboxQuery{})
		return err == nil && len(open) == 1 && r.control.Resolve(t.Context(), pawl.Answer{Entry: open[0].ID, Attempt: open[0].Attempt,
			Choice: pawl.AnswerGiveUp, By: "ben"}) == nil
	})
	until(t, "the run has failed", 5*lease, r.finished(t, h))
	plan, err := r.control.Plan(t.Context(), h.ID(), pawl.PlanOptions{Mode: pawl.PlanRetry})
	if err != nil {
		t.Fatal(err)
	}
	id, err := r.control.Retry(t.Context(), plan, pawl.Act{By: "ben"})
	if err != nil {
		t.Fatal(err)
	}
	r.finish(t, flow(nil).Handle(r.control, id))
}

// TestAnsweredMeanwhile: an uncertain step is answered after the body has stopped to wait for the answer, and before
// that is on record. The run goes on.
func TestAnsweredMeanwhile(t *testing.T) {
	r := scene(t, "sqlite")
	h := r.begin(t, "once", "rep")
	r.occupy(t, r.seats[0], workerConfig{Once: true, Count: 1, Point: hooks.EffectDone})
	until(t, "the worker is lost after its effect", 5*lease, r.seats[0].p.ended)
	s := r.seats[1]
	r.occupy(t, s, workerConfig{Freeze: true, Count: 1, Point: hooks.BodyDone})
	until(t, "the next one waits for an answer", 5*lease, s.p.frozen.Load)
	mia := newPerson(r, 1)
	mia.steady = true
	open, _, err := r.control.Inbox(t.Context(), pawl.InboxQuery{})
	if err != nil || len(open) != 1 {
		t.Fatalf("%d questions, %v: want 1", len(open), err)
	}
	mia.answer(t.Context(), &open[0], manner{})
	s.p.signal(t, syscall.SIGCONT)
	until(t, "the run has ended", 5*lease, r.finished(t, h))
	r.dismissAll(t)
}

// TestLostBetweenSteps: a worker is lost in a step that was called with the result of the step before. The next one does not call it
// with another.
func TestLostBetweenSteps(t *testing.T) {
	r := scene(t, "sqlite")
	h := r.begin(t, "rep", "rep", "rep")
	s := r.seats[0]
	r.occupy(t, s, workerConfig{Count: 2, Point: hooks.EffectDone, Flush: time.Minute})
	until(t, "the worker is lost in the second step", 5*lease, s.p.ended)
	r.occupy(t, r.seats[1], workerConfig{})
	r.finish(t, h)
}
