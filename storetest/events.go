package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

var eventRules = []rule{
	{"order", "events of a topic have times that grow strictly, also if the clock was set back", testEventOrder},
	{"next", "a run is given the oldest event later than what its lineage has taken, and sent after that began or not taken by its workflow", testEventNext},
	{"fork", "a fork with keys of its own takes events for itself", testEventFork},
	{"once", "a lineage cannot take an event twice", testEventOnce},
	{"id", "what was sent under an id is found by it, within its topic", testEventID},
	{"awaits", "those who await a topic are listed in order, page by page, until they are closed", testAwaits},
	{"lock", "under the topic's lock what was committed under it before is seen; another topic is not waited for", testTopicLock},
	{"prune", "old events go in bounded batches, and takings only when no event as old is left", testPruneEvents},
	{"check", "Check finds a wait that no event would find, and the opposite", testCheckAwaits},
}

var topic = pawl.Topic{Event: "paid", About: "order:1"}

// send adds an event and returns it as stored.
func (f *fixture) send(about pawl.Topic, value string, id ...string) (ev pawl.EventRow) {
	f.t.Helper()
	ev = pawl.EventRow{Topic: about, Value: []byte(value), Hash: []byte(value + "#")}
	if len(id) > 0 {
		ev.ID = id[0]
	}
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		return errors.Join(tx.LockTopic(ctx, about), tx.AddEvent(ctx, &ev))
	})
	return ev
}

// next is the value of the event that the run may take, "" if there is none.
func (f *fixture) next(run *pawl.RunRow) string {
	f.t.Helper()
	var ev *pawl.EventRow
	f.view(func(ctx context.Context, tx pawl.Txn) (err error) {
		ev, err = tx.NextEvent(ctx, topic, run)
		return err
	})
	if ev == nil {
		return ""
	}
	return string(ev.Value)
}

// take takes the next event.
func (f *fixture) take(run *pawl.RunRow) (value string) {
	f.t.Helper()
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		value = ""
		ev, err := tx.NextEvent(ctx, topic, run)
		if err != nil || ev == nil {
			return err
		}
		value = string(ev.Value)
		return tx.TakeEvent(ctx, ev, run)
	})
	return value
}

func testEventOrder(t *testing.T, f *fixture) {
	first := f.send(topic, "1")
	if now := f.now(); first.At > now || first.At < now-time.Minute.Microseconds() {
		t.Errorf("sent at %d, the store's clock is %d", first.At, now)
	}
	f.advance(-time.Hour)
	second := f.send(topic, "2")
	elsewhere := f.send(pawl.Topic{Event: topic.Event, About: "order:2"}, "3")
	if second.At != first.At+1 {
		t.Errorf("after the clock was set back an event was sent at %d, the one before it at %d", second.At, first.At)
	}
	if elsewhere.At >= first.At {
		t.Error("an event of another topic has another topic's time")
	}
}

func testEventNext(t *testing.T, f *fixture) {
	f.send(topic, "early 1")
	f.send(topic, "early 2")
	f.send(pawl.Topic{Event: "other", About: topic.About}, "no")
	f.send(pawl.Topic{Event: topic.Event, About: "order:10"}, "no")
	f.advance(time.Minute)
	a, b := &f.runs(1)[0], &f.runs(1)[0]
	other := newRun()
	other.KeyName = "audit"
	f.insertRun(other)
	got := []string{f.take(a), f.next(b), f.next(&other), f.next(b)}
	if want := []string{"early 1", "early 2", "early 1", "early 2"}; !slices.Equal(got, want) {
		t.Errorf("given: %q, want %q", got, want)
	}
	f.send(topic, "during")
	retry := retryOf(a, pawl.Queued)
	got = []string{f.take(b), f.take(b), f.take(b), f.take(a), f.take(&retry), f.take(a), f.take(&other), f.take(&other)}
	if want := []string{"early 2", "during", "", "during", "", "", "early 1", "early 2"}; !slices.Equal(got, want) {
		t.Errorf("given: %q, want %q", got, want)
	}
	f.advance(time.Minute)
	later := &f.runs(1)[0]
	if got := f.next(later); got != "" {
		t.Errorf("a later run is given %q, which an earlier one has dealt with", got)
	}
	f.send(topic, "new")
	if got := []string{f.take(later), f.take(a)}; got[0] != "new" || got[1] != "new" {
		t.Errorf("given: %q, want the new event for both", got)
	}
}

func testEventFork(t *testing.T, f *fixture) {
	origin := f.runs(1)[0]
	f.send(topic, "1")
	f.take(&origin)
	f.advance(time.Minute)
	fork := retryOf(&origin, pawl.Queued)
	fork.Relation, fork.NewKeys = pawl.Forked, true
	f.insertRun(fork)
	f.send(topic, "2")
	if got := []string{f.take(&fork), f.take(&origin), f.take(&fork)}; !slices.Equal(got, []string{"2", "2", ""}) {
		t.Errorf("given: %q, want 2 for each of them", got)
	}
}

func testEventOnce(t *testing.T, f *fixture) {
	run := f.runs(1)[0]
	ev := f.send(topic, "1")
	f.take(&run)
	if err := f.s.Update(f.ctx(), func(ctx context.Context, tx pawl.Txn) error { return tx.TakeEvent(ctx, &ev, &run) }); err == nil {
		t.Error("an event was taken twice by one lineage")
	}
}

func testEventID(t *testing.T, f *fixture) {
	f.send(topic, "1", "a")
	f.send(topic, "2")
	f.send(topic, "3")
	f.send(pawl.Topic{Event: topic.Event, About: "order:2"}, "4", "a")
	for id, want := range map[string]string{"a": "1#", "b": ""} {
		f.view(func(ctx context.Context, tx pawl.Txn) error {
			hash, err := tx.EventHash(ctx, topic, id)
			if string(hash) != want {
				t.Errorf("under %q there is %q, want %q", id, hash, want)
			}
			return err
		})
	}
	again := pawl.EventRow{Topic: topic, ID: "a", Value: []byte("5"), Hash: []byte("5")}
	if err := f.s.Update(f.ctx(), func(ctx context.Context, tx pawl.Txn) error { return tx.AddEvent(ctx, &again) }); err == nil {
		t.Error("two events of one topic have one id")
	}
}

// awaits lists who awaits a topic.
func (f *fixture) awaits(after pawl.AwaitRow, limit int) (all []pawl.AwaitRow) {
	f.t.Helper()
	f.view(func(ctx context.Context, tx pawl.Txn) (err error) {
		all, err = tx.Awaits(ctx, topic, after, limit)
		return err
	})
	return all
}

// await puts a waiting step and its entry among those that await the topic.
func (f *fixture) await(run pawl.RunID, name string) {
	f.t.Helper()
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		step := newStep(run, name)
		step.Kind, step.State = fault.KindEvent, pawl.StepWaiting
		return errors.Join(tx.InsertStep(ctx, &step), tx.OpenAwait(ctx, topic, run, name))
	})
}

func testAwaits(t *testing.T, f *fixture) {
	rows := f.runs(3)
	var want []pawl.AwaitRow
	for i := range rows {
		for k := range 2 {
			f.await(rows[i].ID, fmt.Sprint(k))
			want = append(want, pawl.AwaitRow{Run: rows[i].ID, Step: fmt.Sprint(k)})
		}
	}
	slices.SortFunc(want, func(a, b pawl.AwaitRow) int {
		return slices.Compare([]string{string(a.Run), a.Step}, []string{string(b.Run), b.Step})
	})
	got := f.awaits(pawl.AwaitRow{}, 4)
	got = append(got, f.awaits(got[len(got)-1], 4)...)
	if !slices.Equal(got, want) {
		t.Errorf("in two pages: %v, want %v", got, want)
	}
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		step := newStep(want[0].Run, want[0].Step)
		step.Kind, step.State = fault.KindEvent, pawl.StepSucceeded
		_, err := tx.MoveStep(ctx, &step, 1)
		return errors.Join(err, tx.CloseAwait(ctx, want[0].Run, want[0].Step), tx.CloseAwait(ctx, want[0].Run, "never there"))
	})
	if got := f.awaits(pawl.AwaitRow{}, 10); !slices.Equal(got, want[1:]) {
		t.Errorf("after one was closed: %v, want %v", got, want[1:])
	}
}

func testTopicLock(t *testing.T, f *fixture) {
	run := f.runs(1)[0]
	if f.s.Name() == "sqlite" {
		return // a write transaction is alone there
	}
	locked, ended, seen := make(chan struct{}), make(chan error, 1), 0
	err := f.s.Update(f.ctx(), func(ctx context.Context, tx pawl.Txn) error {
		if err := tx.LockTopic(ctx, topic); err != nil {
			return err
		}
		go func() {
			ended <- f.s.Update(f.ctx(), func(ctx context.Context, tx pawl.Txn) error {
				_, err := tx.Now(ctx) // the transaction has begun
				close(locked)
				if err = errors.Join(err, tx.LockTopic(ctx, topic)); err != nil {
					return err
				}
				all, err := tx.Awaits(ctx, topic, pawl.AwaitRow{}, 10)
				seen = len(all)
				return err
			})
		}()
		<-locked
		f.send(pawl.Topic{Event: topic.Event, About: "order:2"}, "not held up")
		step := newStep(run.ID, "a")
		step.Kind, step.State = fault.KindEvent, pawl.StepWaiting
		return errors.Join(tx.InsertStep(ctx, &step), tx.OpenAwait(ctx, topic, run.ID, "a"))
	})
	f.ok(err)
	f.ok(<-ended)
	if seen != 1 {
		t.Errorf("a transaction that waited for the lock sees %d waits, want the one that was committed under it", seen)
	}
}

func testPruneEvents(t *testing.T, f *fixture) {
	const keep, n = 30 * day, 250
	left := func() string {
		return f.text(`SELECT CAST(count(*) AS TEXT) FROM pawl_events`) + " " + f.text(`SELECT CAST(count(*) AS TEXT) FROM pawl_takings`)
	}
	sweep := func() {
		for more := true; more; {
			var err error
			more, err = f.s.PruneEvents(f.ctx(), keep)
			f.ok(err)
		}
	}
	run := f.runs(1)[0]
	for i := range n {
		f.send(topic, fmt.Sprint(i))
	}
	f.take(&run)
	f.take(&run)
	f.advance(29 * day)
	f.send(topic, "young")
	f.update(func(ctx context.Context, _ pawl.Txn) error { // on SQLite this holds the one write lock
		more, err := f.s.PruneEvents(ctx, keep)
		if more {
			t.Error("with nothing to delete there is more")
		}
		return err
	})
	f.advance(2 * day)
	if more, err := f.s.PruneEvents(f.ctx(), keep); err != nil || !more || left() != "151 2" && left() != "151 0" {
		t.Errorf("one call left %s (more %t, %v), want 100 events gone", left(), more, err)
	}
	if got := f.next(&run); got == "" || got == "0" || got == "1" {
		t.Errorf("between two calls the run is given %q", got)
	}
	sweep()
	if got := left(); got != "1 0" {
		t.Errorf("left: %s, want one event and no taking", got)
	}
	f.take(&run)
	f.advance(40 * day)
	if sweep(); left() != "0 0" {
		t.Errorf("left at the end: %s", left())
	}
	f.send(topic, "after all that")
	if got := f.next(&run); got != "after all that" {
		t.Errorf("then the run is given %q", got)
	}
}

func testCheckAwaits(t *testing.T, f *fixture) {
	f.broken = true
	rows := f.runs(3)
	for i := range rows {
		f.await(rows[i].ID, "a")
	}
	f.exec(`DELETE FROM pawl_awaits WHERE run = $1`, string(rows[0].ID))
	f.exec(`UPDATE pawl_steps SET state = 'succeeded' WHERE run = $1`, string(rows[1].ID))
	for i, want := range []int{1, 1, 0} {
		if got := f.found("error", "I3", rows[i].ID); got != want {
			t.Errorf("run %d: %d findings, want %d", i, got, want)
		}
	}
}
