package pawl_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

// catchUp sleeps, in the bubble, until the time of the latest id: a process makes no id that is earlier than one it has made,
// and other bubbles may have been later than this one is. Old runs are found by their ids, so these tests run alone.
func catchUp() {
	sec, nsec := uuid.Must(uuid.NewV7()).Time().UnixTime()
	time.Sleep(time.Until(time.Unix(sec, nsec)) + time.Second) // bubble
}

// gone reports whether the run has been deleted.
func (s *stage) gone(id pawl.RunID) bool {
	s.t.Helper()
	_, err := s.desk.Show(s.t.Context(), id)
	if err != nil && !errors.Is(err, pawl.ErrNotFound) {
		s.t.Fatal(err)
	}
	return err != nil
}

// fickle fails the first time and succeeds then, and not after that.
func fickle(s *stage) *pawl.Workflow[string, string] {
	s.on("a", func(_ context.Context, n int) (string, error) {
		if n == 1 {
			return "", fault.Invalid(errors.New("bad"))
		}
		return "good", nil
	})
	return flow("fickle", "v1", func(run *pawl.Run, in string) (string, error) { return s.rep(run, "a", in) })
}

// A worker deletes a lineage when its last run ended long enough ago, and forgets its key much later.
func TestRetention(t *testing.T) {
	alone(t, func(t *testing.T, s *stage) {
		catchUp()
		w := fickle(s)
		keep := func(o *pawl.Options) { o.Retention, o.Lease, o.Poll = time.Hour, 10*time.Minute, time.Minute } // few beats and polls
		p := s.spawnWith(keep, w)
		first := begin(s, w, "x", pawl.Key("k"))
		s.reach(first, pawl.Failed)
		time.Sleep(40 * time.Minute) // bubble
		second := s.retry(first)
		s.reach(second, pawl.Succeeded)
		time.Sleep(58 * time.Minute) // bubble
		if s.gone(first) || s.gone(second) {
			t.Error("58 minutes after the lineage's last end, with a retention of an hour, a run of it is gone")
		}
		time.Sleep(3 * time.Minute) // bubble
		if !s.gone(first) || !s.gone(second) {
			t.Errorf("61 minutes after the lineage's last end: first run gone %t, retry gone %t; want both", s.gone(first), s.gone(second))
		}
		_, err := w.Start(t.Context(), s.desk, "x", pawl.Key("k"))
		mentions(t, err, "succeeded", "details are deleted")
		if !errors.Is(err, pawl.ErrConflict) {
			t.Errorf("start under the key of a deleted run: %v, want ErrConflict", err)
		}
		p.stop()
		time.Sleep(400 * 24 * time.Hour) // bubble
		s.spawnWith(keep, w)
		time.Sleep(time.Minute) // bubble
		result(t, s.reach(begin(s, w, "x", pawl.Key("k")), pawl.Succeeded), "good")
		s.want(map[string]int{"a": 3})
	})
}

// Without a retention nothing is ever deleted.
func TestNoRetention(t *testing.T) {
	alone(t, func(t *testing.T, s *stage) {
		catchUp()
		w := fickle(s)
		p := s.spawn("b1", w)
		id := begin(s, w, "x")
		s.reach(id, pawl.Failed)
		p.stop()
		time.Sleep(10 * 365 * 24 * time.Hour) // bubble
		s.spawn("b1", w)
		time.Sleep(2 * time.Minute) // bubble
		if s.gone(id) {
			t.Error("a run is gone after ten years, though nobody asked for that")
		}
	})
}

// The report of a worker about a run that was deleted meanwhile is of no use, and it does not go on trying.
func TestEvidenceOfADeletedRun(t *testing.T) {
	alone(t, func(t *testing.T, s *stage) {
		catchUp()
		id, wake := zombie(s)
		s.resolve(s.blocked(id, pawl.AskUncertain), pawl.AnswerGiveUp)
		s.reach(id, pawl.Failed)
		s.procs[1].stop()
		time.Sleep(2 * time.Hour) // bubble
		if got, err := s.desk.Prune(t.Context(), time.Hour, ann, nil); err != nil || got.Lineages != 1 || !s.gone(id) {
			t.Fatalf("Prune = %+v, %v; want the one lineage gone", got, err)
		}
		wake(nil)
		time.Sleep(time.Second) // bubble
		began := time.Now()
		s.procs[0].stop()
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("the worker took %v to stop: it went on reporting", took)
		}
	})
}

// Pruning by hand is on record, is bounded from below, and tells what it does.
func TestPrune(t *testing.T) {
	alone(t, func(t *testing.T, s *stage) {
		catchUp()
		w := fickle(s)
		p := s.spawn("b1", w)
		var ids []pawl.RunID
		for range 150 {
			ids = append(ids, begin(s, w, "x"))
		}
		for _, id := range ids {
			s.reach(id, pawl.Failed, pawl.Succeeded)
		}
		p.stop()
		_, err := s.desk.Prune(t.Context(), 59*time.Minute, ann, nil)
		mentions(t, err, "1h")
		_, err = s.desk.Prune(t.Context(), time.Hour, pawl.Act{}, nil)
		mentions(t, err, "By")
		time.Sleep(3 * time.Hour) // bubble
		o := s.opts
		o.Retention = 2 * time.Hour
		doctor, err := pawl.New(s.bench.store, &o)
		if err != nil {
			t.Fatal(err)
		}
		warned := func() bool {
			found, err := doctor.Doctor(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(found, func(f pawl.Finding) bool {
				return f.Rule == "retention" && strings.Contains(f.Text, "150 finished lineages (150 runs)")
			})
		}
		if !warned() {
			t.Error("the doctor does not say that 150 lineages are past their retention")
		}
		if got, err := s.desk.Prunable(t.Context(), time.Hour, 1000); err != nil || got.Lineages != 150 || got.More {
			t.Errorf("Prunable = %+v, %v; want all 150", got, err)
		}
		if got, err := s.desk.Prunable(t.Context(), time.Hour, 100); err != nil || got.Lineages != 100 || !got.More {
			t.Errorf("Prunable up to 100 = %+v, %v; want 100 and more", got, err)
		}
		var batches []int
		sum, err := s.desk.Prune(t.Context(), time.Hour, ann, func(p pawl.Pruned) { batches = append(batches, p.Lineages) })
		if err != nil || sum.Lineages != 150 || sum.Runs != 150 || !slices.Equal(batches, []int{100, 50}) {
			t.Errorf("Prune = %+v, %v in batches %v; want 150 in two", sum, err, batches)
		}
		if warned() {
			t.Error("the doctor still warns")
		}
		var act, by string
		if err := s.bench.store.DB().QueryRowContext(t.Context(), `SELECT act || ' ' || detail, by_whom FROM pawl_audit`).Scan(&act, &by); err != nil || act != "prune older than 1h0m0s" || by != "ann" {
			t.Errorf("on record: %q by %q, %v", act, by, err)
		}
	})
}

// thrifty counts the calls of Prune.
type thrifty struct {
	pawl.Store
	calls atomic.Int64
}

func (s *thrifty) Prune(ctx context.Context, p pawl.PruneTerms) (pawl.Pruned, error) {
	s.calls.Add(1)
	return s.Store.Prune(ctx, p)
}

// A sweep with nothing to delete asks once, whatever the history; what is old and not finished costs it a page each time.
func TestIdleRetentionAsksOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		catchUp()
		w := pawl.Define("w", "v1", ok1)
		other := pawl.Define("other", "v1", ok1)
		s := &thrifty{Store: b.store}
		b.opts.Retention, b.opts.Poll = time.Hour, time.Minute
		e, err := pawl.New(s, &b.opts, w)
		if err != nil {
			t.Fatal(err)
		}
		ins := make([]int, 2500)
		if _, err := other.StartMany(t.Context(), e, ins, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour) // bubble
		stop := b.work(e)
		time.Sleep(time.Minute + time.Second) // bubble: ten sweeps
		stop()
		if got := s.calls.Load(); got != 10 {
			t.Errorf("ten idle sweeps asked %d times, want once each", got)
		}
	})
}

func ok1(*pawl.Run, int) (int, error) { return 1, nil }
