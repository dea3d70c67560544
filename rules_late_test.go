package pawl_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/sqlite"
	modernc "modernc.org/sqlite"
)

// A fork --new-keys of a fork that gave a step its own key: the plan says "with a new key"; it must be one.
func TestForkWithNewKeysOfAFork(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("charges", "v1", func(run *pawl.Run, in string) (string, error) { return s.keyed(run, "charge", in) })
		s.spawn("b1", w)
		id := begin(s, w, "x")
		s.reach(id, pawl.Succeeded)
		fork, err := s.desk.Fork(t.Context(), s.plan(id, pawl.PlanOptions{Mode: pawl.PlanFork, FromStart: true, NewKey: []string{"charge"}}), ann)
		if err != nil {
			t.Fatal(err)
		}
		s.reach(fork, pawl.Succeeded)
		p := s.plan(fork, pawl.PlanOptions{Mode: pawl.PlanFork, FromStart: true, NewKeys: true})
		t.Logf("plan: %+v refusals %q", p.Steps, p.Refusals)
		apart, err := s.desk.Fork(t.Context(), p, ann)
		if err != nil {
			t.Fatal(err)
		}
		s.reach(apart, pawl.Succeeded)
		keys := s.keys["charge"]
		if keys[2] == keys[1] {
			t.Errorf("a fork with keys of its own used the key of the fork it came from: %q", keys)
		}
	})
}

// The store's clock steps back between a run and its retry: the older run must still not be retried.
func TestNewestRunIsFoundByParents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, path: filepath.Join(t.TempDir(), "pawl.db"), effects: map[string]int{}}
		b.hooks = &hooks.Hooks{Boot: bubbleClock()}
		b.opts = pawl.Options{Lease: 6 * time.Second, Build: "b1", Hooks: b.hooks, Drain: time.Second}
		st, err := sqlite.Open(b.path, &sqlite.Options{Hooks: &hooks.Store{WallLease: true, Offset: true}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = st.Close() }()
		b.store = st
		w := pawl.Define("w", "v1", func(run *pawl.Run, in int) (int, error) {
			if _, err := pawl.Repeatable(run, "a", in, func(context.Context, int) (int, error) {
				if b.effect("a") == 1 {
					return 0, fault.Invalid(errors.New("bad"))
				}
				return 1, nil
			}); err != nil {
				return 0, err
			}
			if _, err := pawl.Once(run, "mail", in, func(context.Context, pawl.Intent, int) (int, error) { return b.effect("mail"), nil }); err != nil {
				return 0, err
			}
			return pawl.Repeatable(run, "z", in, func(context.Context, int) (int, error) {
				if b.effect("z") == 1 {
					return 0, fault.Invalid(errors.New("bad"))
				}
				return 1, nil
			})
		})
		e := b.engine(w)
		stop := b.work(e)
		h, err := w.Start(t.Context(), e, 1, pawl.Key("k"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = h.Result(t.Context())
		if _, err := st.DB().ExecContext(t.Context(), "UPDATE pawl_test_clock SET offset_us = offset_us - 5000000"); err != nil {
			t.Fatal(err)
		}
		h2, err := w.Start(t.Context(), e, 1, pawl.Key("k"), pawl.Again())
		if err != nil {
			t.Fatal(err)
		}
		_, err = h2.Result(t.Context())
		t.Log("second:", h2.ID(), err)
		time.Sleep(time.Minute)
		h3, err := w.Start(t.Context(), e, 1, pawl.Key("k"), pawl.Again())
		if err != nil {
			t.Fatal(err)
		}
		_, err = h3.Result(t.Context())
		t.Log("third:", h3.ID(), "parent", b.show(e, h3.ID()).Parent, err)
		stop()
		if n := b.count("mail"); n != 1 {
			t.Errorf("the mail of one lineage was sent %d times, and nobody said that it did not happen", n)
		}
	})
}

// A TxIn step committed elsewhere, its worker was killed, the code now has another input, and the run is cancelled.
func TestCancelOfTxInWithAnotherInput(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "user.db"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		if _, err := db.Exec(pawl.TxTable("BLOB")); err != nil {
			t.Fatal(err)
		}
		in := "one"
		w := flow("tx", "v1", func(run *pawl.Run, _ string) (string, error) {
			return pawl.TxIn(run, "write", db, in, func(context.Context, *sql.Tx, string) (string, error) { s.effect("write"); return "W", nil })
		})
		s.spawnProc(func(p *proc, o *pawl.Options) {
			o.Build = "b1"
			o.Hooks.At = func(pt hooks.Point, _, _ string) {
				if pt == hooks.ForeignDone && s.count("write") == 1 && !p.store.dead.Load() {
					p.die()
				}
			}
		}, w)
		id := begin(s, w, "x")
		for s.count("write") == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond)
		if _, err := s.desk.Cancel(t.Context(), id, ann); err != nil {
			t.Fatal(err)
		}
		in = "two"
		s.spawn("b1", w)
		s.reach(id, pawl.Cancelled)
		s.want(map[string]int{"write": 1})
	})
}

// wrapped hides what kind of driver it is.
type wrapped struct{ driver.Driver }

// A driver is registered once, however often a test runs.
var register = sync.OnceFunc(func() { sql.Register("traced", wrapped{&modernc.Driver{}}) })

// A SQLite driver under a wrapper (as tracing packages make) for TxIn.
func TestTxInUnderAWrappedDriver(t *testing.T) {
	register()
	scene(t, func(t *testing.T, s *stage) {
		db, err := sql.Open("traced", filepath.Join(t.TempDir(), "user.db"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		if _, err := db.Exec(pawl.TxTable("BLOB")); err != nil {
			t.Fatal(err)
		}
		w := flow("tx", "v1", func(run *pawl.Run, in string) (string, error) {
			return pawl.TxIn(run, "write", db, in, func(context.Context, *sql.Tx, string) (string, error) { return "W", nil })
		})
		s.spawn("b1", w)
		id := begin(s, w, "x")
		s.reach(id, pawl.Succeeded)
	})
}

// A late report "it happened" comes while the answer "did not" has not led to an attempt yet.
func TestLateEvidenceBeforeTheNextAttempt(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		ends := make(chan struct{})
		var p *proc
		s.on("mail", func(_ context.Context, n int) (string, error) {
			if n > 1 {
				return "sent again", nil
			}
			p.kill()
			<-ends
			p.store.dead.Store(false)
			return "late", nil
		})
		w := mailer(s)
		p = s.spawn("b1", w)
		id := begin(s, w, "x")
		for s.count("mail") == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		q := s.spawn("b1", w)
		en := s.blocked(id, pawl.AskUncertain)
		q.stop() // no worker for a while: a deploy
		time.Sleep(max(0, time.Until(en.OverAt)) + time.Second)
		s.resolve(en, pawl.AnswerDidNotHappen)
		close(ends)
		time.Sleep(5 * time.Second)
		d := s.show(s.desk, id)
		t.Logf("state %s evidence %+v open %v", d.State, d.Evidence, d.Open)
		s.spawn("b1", w)
		s.reach(id, pawl.Succeeded)
		if n := s.count("mail"); n != 1 {
			t.Errorf("the engine had the report that the mail was sent on record, and sent it again: %d", n)
		}
	})
}

// Evidence that came first: a Keyed step whose key has expired.
func TestEvidenceOfAKeyedAttempt(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		ends := make(chan struct{})
		var p *proc
		s.on("pay", func(_ context.Context, n int) (string, error) {
			if n > 1 {
				return "paid again", nil
			}
			p.kill()
			<-ends
			p.store.dead.Store(false)
			return "late", nil
		})
		w := flow("pays", "v1", func(run *pawl.Run, in string) (string, error) {
			return s.keyed(run, "pay", in, pawl.KeyTTL(time.Minute))
		})
		p = s.spawn("b1", w)
		id := begin(s, w, "x")
		for s.count("pay") == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(2 * time.Minute) // longer than lease and key
		close(ends)
		time.Sleep(10 * time.Second)
		d := s.show(s.desk, id)
		t.Logf("state %s evidence %+v steps %+v", d.State, d.Evidence, d.Steps)
		p.cancel()
		s.spawn("b1", w)
		time.Sleep(time.Minute)
		d = s.show(s.desk, id)
		t.Logf("state %s open %v evidence %+v", d.State, d.Open, d.Evidence)
		if len(d.Open) != 0 {
			t.Errorf("a person is asked although the worker's report is on record: %v", d.Open)
		}
	})
}

// The report that the mail was sent comes after the run was given up and before it is retried.
func TestRetryHeedsEvidence(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		id, wake := zombie(s)
		s.resolve(s.blocked(id, pawl.AskUncertain), pawl.AnswerGiveUp)
		s.reach(id, pawl.Failed)
		wake(nil)
		time.Sleep(10 * time.Second)
		t.Logf("evidence on the given-up run: %+v open %v", s.show(s.desk, id).Evidence, s.show(s.desk, id).Open)
		heir := s.retry(id)
		time.Sleep(10 * time.Second)
		d := s.show(s.desk, heir)
		if len(d.Open) == 0 {
			return
		}
		t.Errorf("the retry asks %v although the worker's report is on record", d.Open)
		en := s.blocked(heir, pawl.AskUncertain)
		t.Logf("over: %v at %v", en.Over, en.OverAt)
		s.resolve(en, pawl.AnswerDidNotHappen)
		s.reach(heir, pawl.Succeeded)
		t.Logf("mails sent: %d; inbox of the heir %v, of the first run %v", s.count("mail"), s.show(s.desk, heir).Open, s.show(s.desk, id).Open)
	})
}

// A person gives up while the body runs, then the worker dies: what is begun after that?
func TestGivenUpThenLostWorker(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		var p, q *proc
		s.on("mail", func(_ context.Context, n int) (string, error) { p.kill(); <-s.over; return "", nil })
		s.on("pre", func(_ context.Context, n int) (string, error) { return "P", nil })
		gate := make(chan struct{})
		var loads atomic.Int64
		w := flow("gives", "v1", func(run *pawl.Run, in string) (string, error) {
			if loads.Add(1) == 2 { // the body is under way again, the mail is uncertain
				<-gate
			}
			_, err := s.mail(run, "mail", in)
			if errors.Is(err, pawl.ErrSuspended) {
				return "", err
			}
			if err != nil {
				return s.mail(run, "apology", in)
			}
			return "", nil
		})
		p = s.spawn("b1", w)
		id := begin(s, w, "x")
		for s.count("mail") == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		q = s.spawn("b1", w)
		for loads.Load() < 2 {
			time.Sleep(10 * time.Millisecond)
		}
		en := s.entry(s.desk, pawl.AskUncertain)
		s.resolve(en, pawl.AnswerGiveUp)
		q.kill()
		close(gate)
		s.spawn("b1", w)
		s.reach(id, pawl.Failed)
		s.want(map[string]int{"apology": 0})
	})
}

// Only the newest run of a lineage is retried: it alone knows what has happened since.
func TestOnlyTheNewestIsRetried(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("k", "v1", chain(s, "a", "mail", "z"))
		bad := func(_ context.Context, n int) (string, error) {
			if n == 1 {
				return "", fault.Invalid(errors.New("bad"))
			}
			return "ok", nil
		}
		s.on("a", bad)
		s.on("z", bad)
		s.spawn("b1", w)
		id := begin(s, w, "x")
		s.reach(id, pawl.Failed)
		s.reach(s.retry(id), pawl.Failed)
		p := s.plan(id, pawl.PlanOptions{Mode: pawl.PlanRetry})
		if again, err := s.desk.Retry(t.Context(), p, ann); err == nil {
			s.reach(again, pawl.Succeeded)
			t.Errorf("an older run of the lineage was retried; mails: %d", s.count("mail"))
		}
	})
}

// A worker that slept through its lease with an intent on record begins nothing, also if a heartbeat has renewed the lease
// since: the run was taken over.
func TestTakenOverRunBeginsNothing(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		var once atomic.Bool
		var mine, claims atomic.Int64
		w := flow("k", "v1", func(run *pawl.Run, in string) (string, error) { return s.mail(run, "mail", in) })
		s.spawnProc(func(p *proc, o *pawl.Options) {
			o.Hooks.At = func(pt hooks.Point, _, _ string) {
				if pt == hooks.IntentWritten && once.CompareAndSwap(false, true) {
					p.store.dead.Store(true)
					time.Sleep(20 * time.Second) // the lease is over, another worker has asked
					p.store.dead.Store(false)
					time.Sleep(5 * time.Second) // a heartbeat has renewed the lease
				}
				if pt == hooks.Claimed {
					claims.Add(1)
				}
				if pt == hooks.EffectBegin && claims.Load() == 1 {
					mine.Add(1)
				}
			}
		}, w)
		id := begin(s, w, "x")
		for !once.Load() {
			time.Sleep(10 * time.Millisecond)
		}
		s.spawn("b1", w)
		time.Sleep(30 * time.Second)
		if mine.Load() != 0 {
			t.Errorf("a fenced worker began %d effects; run %s", mine.Load(), s.show(s.desk, id).State)
		}
	})
}

// The deadline of an attempt runs from its intent (5.6): an attempt that begins late has less time, or none.
func TestDeadlineRunsFromTheIntent(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		began := time.Time{}
		s.on("mail", func(context.Context, int) (string, error) { began = time.Now(); return "m", nil })
		w := flow("k", "v1", func(run *pawl.Run, in string) (string, error) {
			return s.mail(run, "mail", in, pawl.Timeout(10*time.Second))
		})
		var first atomic.Pointer[time.Time]
		s.spawnWith(func(o *pawl.Options) {
			o.Hooks.At = func(pt hooks.Point, _, _ string) {
				if now := time.Now(); pt == hooks.IntentWritten && first.CompareAndSwap(nil, &now) {
					time.Sleep(11 * time.Second)
				}
			}
		}, w)
		id := begin(s, w, "x")
		d := s.reach(id, pawl.Succeeded)
		if st := step(t, d, "mail"); len(st.Attempts) < 2 {
			t.Errorf("the effect began %v after an intent with a deadline of 10 s", began.Sub(*first.Load()))
		}
	})
}

// A refusal does not undo an earlier attempt of a Keyed step that may have been sent.
func TestWorstOutcomeOfAKeyedStepStays(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("k", "v1", func(run *pawl.Run, in string) (string, error) {
			return s.keyed(run, "pay", in, pawl.KeyTTL(time.Minute))
		})
		s.on("pay", func(_ context.Context, n int) (string, error) {
			if n == 1 {
				return "", errors.New("cut off")
			}
			return "", fault.Invalid(errors.New("refused"))
		})
		s.spawn("b1", w)
		id := begin(s, w, "x")
		s.reach(id, pawl.Failed)
		time.Sleep(2 * time.Minute)
		if got := fates(s.plan(id, pawl.PlanOptions{Mode: pawl.PlanRetry})); !strings.Contains(got, "ask") {
			t.Errorf("plan %q: the first attempt may have happened and its key is expired, want ask", got)
		}
	})
}

// The loss is found only by the write that would record the failed attempt.
func TestFailureThatFindsTheRunLostIsReported(t *testing.T) {
	for name, fail := range map[string]error{"proven": fault.NotSent(errors.New("refused")), "denied": fault.Denied(errors.New("no")), "unknown": errors.New("weird"), "success": nil} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				taken := make(chan struct{})
				var once atomic.Bool
				s.on("mail", func(ctx context.Context, n int) (string, error) {
					if n > 1 {
						return "second", nil
					}
					if _, err := s.bench.store.DB().ExecContext(t.Context(), "UPDATE pawl_workers SET expires = 0"); err != nil {
						t.Error(err)
					}
					<-taken
					t.Logf("context of the attempt: %v", ctx.Err())
					return "late", fail
				})
				w := flow("k", "v1", func(run *pawl.Run, in string) (string, error) { return s.mail(run, "mail", in) })
				s.spawn("b1", w)
				id := begin(s, w, "x")
				for s.count("mail") == 0 {
					time.Sleep(time.Millisecond)
				}
				s.spawnWith(func(o *pawl.Options) {
					o.Hooks.At = func(pt hooks.Point, _, _ string) {
						if pt == hooks.Claimed && once.CompareAndSwap(false, true) {
							close(taken)
							time.Sleep(500 * time.Millisecond)
						}
					}
				}, w)
				time.Sleep(20 * time.Second)
				d := s.show(s.desk, id)
				t.Logf("%s: state %s open %v evidence %d mails %d", name, d.State, d.Open, len(d.Evidence), s.count("mail"))
				if len(d.Evidence) == 0 {
					t.Errorf("the worker's report on its attempt was lost; people are asked %v", d.Open)
				}
			})
		})
	}
}

// A Tx callback on SQLite that hangs gives up lock and connection after a third of the lease: what runs beside it goes on.
func TestHungTransactionHoldsNobodyUp(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		hang := make(chan struct{})
		hung := flow("hung", "v1", func(run *pawl.Run, in string) (string, error) {
			return pawl.Tx(run, "write", in, func(context.Context, *sql.Tx, string) (string, error) {
				s.effect("hung")
				<-hang // whatever the context says
				return "", nil
			})
		})
		other := flow("other", "v1", chain(s, "a", "b"))
		s.spawn("b1", hung, other)
		begin(s, hung, "x")
		for s.count("hung") == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		id := begin(s, other, "y")
		d := s.reach(id, pawl.Succeeded)
		if d.Lost != 0 || s.count("a") != 1 || s.count("b") != 1 {
			t.Errorf("the run beside it lost its worker %d times and took %d and %d executions", d.Lost, s.count("a"), s.count("b"))
		}
		close(hang)
	})
}

// A report that comes while the next worker has the run, and before that one ends it without another attempt, is heeded at
// the run's end: nobody is asked what is known.
func TestReportBeforeACancelledRunEnds(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		var p *proc
		ends := make(chan struct{})
		s.on("pay", func(context.Context, int) (string, error) {
			p.kill()
			<-ends
			p.store.dead.Store(false)
			return "late", nil
		})
		var bodies atomic.Int64
		w := flow("pays", "v1", func(run *pawl.Run, in string) (string, error) {
			if bodies.Add(1) > 1 {
				close(ends)
				time.Sleep(10 * time.Second) // the report comes
			}
			return s.keyed(run, "pay", in)
		})
		p = s.spawn("b1", w)
		id := begin(s, w, "x")
		for s.count("pay") == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		if _, err := s.desk.Cancel(t.Context(), id, ann); err != nil {
			t.Fatal(err)
		}
		s.spawn("b1", w)
		d := s.reach(id, pawl.Cancelled)
		if st := step(t, d, "pay"); st.State != pawl.StepSucceeded || len(d.Entries) != 0 || len(d.Evidence) != 1 {
			t.Errorf("step is %s with entries %+v and evidence %+v, want it to have succeeded by the report", st.State, d.Entries, d.Evidence)
		}
	})
}

// "Did not happen" is no answer to a question that the attempt's own worker has answered.
func TestAnswerAgainstAReport(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		id, en := uncertain(s)
		err := s.bench.store.Update(t.Context(), func(ctx context.Context, tx pawl.Txn) error {
			row, err := tx.Step(ctx, id, "mail")
			if err != nil {
				return err
			}
			return tx.AddEvidence(ctx, &pawl.EvidenceRow{Run: id, Step: "mail", Attempt: row.Attempt, Worker: row.Worker, Source: "worker",
				Verdict: pawl.Happened, Value: []byte(`"late"`)})
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(max(0, time.Until(en.OverAt)) + time.Second)
		if err := s.answer(en, pawl.AnswerDidNotHappen, "ann"); !errors.Is(err, pawl.ErrConflict) || !strings.Contains(err.Error(), "reported") {
			t.Errorf("got %v, want a conflict that tells of the report", err)
		}
		s.want(map[string]int{"mail": 1})
	})
}
