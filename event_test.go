package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
)

var paid = pawl.DefineEvent[string]("paid")

// buyer awaits n payments about its input, after before has passed.
func buyer(s *stage, before time.Duration, n int, opts ...pawl.WaitOption) *pawl.Workflow[string, string] {
	return flow("buyer", "v1", func(run *pawl.Run, in string) (string, error) {
		if err := pawl.Sleep(run, "before", before); err != nil {
			return "", err
		}
		var got []string
		for i := range n {
			v, err := pawl.Await(run, fmt.Sprint("pay", i), paid, pawl.Key(in), opts...)
			if errors.Is(err, fault.ReasonWaitTimeout) {
				v, err = "late", nil
			}
			if err != nil {
				return "", err
			}
			got = append(got, v)
		}
		return s.rep(run, "done", strings.Join(got, " "))
	})
}

// send sends a payment from the desk.
func (s *stage) send(about pawl.Key, v string, opts ...pawl.SendOption) {
	s.t.Helper()
	if err := paid.Send(s.t.Context(), s.desk, about, v, opts...); err != nil {
		s.t.Fatal(err)
	}
}

// sql counts what a query counts.
func (s *stage) sql(query string) (n int) {
	s.t.Helper()
	if err := s.bench.store.DB().QueryRowContext(s.t.Context(), query).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *stage) takings() int { return s.sql(`SELECT count(*) FROM pawl_takings`) }
func (s *stage) awaits() int  { return s.sql(`SELECT count(*) FROM pawl_awaits`) }

// An event that is sent before the run starts, before it awaits, or while it awaits is found, once (FR-057).
func TestEventIsFoundWhenever(t *testing.T) {
	for name, when := range map[string]time.Duration{"before the run": -time.Minute, "before the wait": time.Minute, "after it": 10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				w := buyer(s, 5*time.Minute, 1)
				p := s.spawn("b1", w)
				if when < 0 {
					s.send("o1", "A")
					time.Sleep(-when) // bubble
				}
				id := begin(s, w, "o1")
				if when > 0 {
					time.Sleep(when) // bubble
					s.send("o1", "A")
				}
				d := s.reach(id, pawl.Succeeded)
				result(t, d, "done(A)")
				if took := d.Ended.Sub(d.Created); took > max(5*time.Minute, when)+5*time.Second {
					t.Errorf("it took %v", took)
				}
				s.want(map[string]int{"done": 1})
				if n := s.takings(); n != 1 {
					t.Errorf("the event was taken %d times", n)
				}
				if n := s.awaits(); n != 0 {
					t.Errorf("%d waits are left", n)
				}
				if n := p.store.commits.Load(); n > 8 {
					t.Errorf("%d commits, want those of the sleep, of the wait and of one step", n)
				}
			})
		})
	}
}

// A run that awaits holds no slot, shows what it awaits, and is woken by the event and not by a poll.
func TestAwaitFreesTheSlot(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := buyer(s, 0, 1, pawl.Within(time.Hour))
		p := s.spawnWith(func(o *pawl.Options) { o.Slots = 1 }, w)
		ids := []pawl.RunID{begin(s, w, "o1"), begin(s, w, "o2")}
		for i, id := range ids {
			d := s.reach(id, pawl.Waiting)
			st := step(t, d, "pay0")
			if want := fmt.Sprintf(`{"event":"paid","about":"o%d"}`, i+1); st.State != pawl.StepWaiting || st.Kind != fault.KindEvent || string(st.Input) != want {
				t.Errorf("the wait is %s, a %s, for %s; want %s", st.State, st.Kind, st.Input, want)
			}
			if d.Due.IsZero() || !d.Due.Equal(st.NextAt) {
				t.Errorf("the run is due at %v, the wait's limit is %v", d.Due, st.NextAt)
			}
		}
		commits := p.store.commits.Load()
		for i, id := range ids {
			s.send(pawl.Key(fmt.Sprint("o", i+1)), "A")
			result(t, s.reach(id, pawl.Succeeded), "done(A)")
		}
		if n := p.store.commits.Load() - commits; n > 6 {
			t.Errorf("two waits cost %d commits after the event, want a claim, perhaps a result, and an end each", n)
		}
	})
}

// Who gets what: events are in order, each reaches every run that awaits it, a lineage has each once, and a later run is
// not given what an earlier one has dealt with.
func TestEventsGoToEachOnce(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w, other := buyer(s, 0, 2), flow("audit", "v1", func(run *pawl.Run, in string) (string, error) {
			return pawl.Await(run, "seen", paid, pawl.Key(in))
		})
		s.spawn("b1", w, other)
		s.send("o1", "early")
		s.send("o2", "elsewhere")
		one := begin(s, w, "o1")
		s.reach(one, pawl.Waiting)
		two := begin(s, w, "o1") // the early event has been dealt with
		s.reach(two, pawl.Waiting)
		s.send("o1", "B")
		result(t, s.reach(one, pawl.Succeeded), "done(early B)")
		s.send("o1", "C")
		result(t, s.reach(two, pawl.Succeeded), "done(B C)")
		result(t, s.reach(begin(s, other, "o1"), pawl.Succeeded), "early") // of another workflow
		three := begin(s, w, "o1")
		time.Sleep(time.Minute) // bubble
		if d := s.show(s.desk, three); d.State != pawl.Waiting || len(d.Steps) != 2 {
			t.Errorf("a later run is %s with %d steps, want it to await the first event that nobody had", d.State, len(d.Steps))
		}
		s.send("o1", "D")
		s.send("o1", "E")
		result(t, s.reach(three, pawl.Succeeded), "done(D E)")
	})
}

// Events that are sent in one go reach the waits of one run in their order (FR-057).
func TestEventsInQuickSuccession(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		const n = 20
		w := buyer(s, 0, n)
		s.spawn("b1", w)
		id := begin(s, w, "o1")
		s.reach(id, pawl.Waiting)
		var want []string
		for i := range n {
			s.send("o1", fmt.Sprint(i))
			want = append(want, fmt.Sprint(i))
		}
		result(t, s.reach(id, pawl.Succeeded), "done("+strings.Join(want, " ")+")")
	})
}

// Of an event and a time limit one wins: which is stored, and the same on every execution (FR-058). An event that was sent
// before the limit had passed is in time, however late the run is executed.
func TestEventOrTimeout(t *testing.T) {
	const limit = 2 * time.Minute
	for _, off := range []time.Duration{-time.Minute, -time.Millisecond, -time.Microsecond, 0, time.Microsecond, time.Millisecond, time.Minute} {
		t.Run(off.String(), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				executions := 0
				w := flow("buyer", "v1", func(run *pawl.Run, in string) (string, error) {
					executions++
					v, err := pawl.Await(run, "pay", paid, pawl.Key(in), pawl.Within(limit))
					if errors.Is(err, fault.ReasonWaitTimeout) {
						v, err = "late", nil
					}
					if err == nil {
						err = pawl.Sleep(run, "more", 2*time.Minute)
					}
					return v, err
				})
				first := s.spawn("b1", w)
				id := begin(s, w, "o1")
				until := step(t, s.reach(id, pawl.Waiting), "pay").NextAt
				if off == -time.Minute || off == time.Minute { // nobody there when it is over
					first.stop()
				}
				time.Sleep(time.Until(until.Add(off))) // bubble
				s.send("o1", "A")
				time.Sleep(90 * time.Second) // bubble
				s.spawn("b2", w)
				d := s.reach(id, pawl.Succeeded)
				st := step(t, d, "pay")
				switch {
				case off < 0 && (string(d.Result) != `"A"` || st.State != pawl.StepSucceeded || s.takings() != 1):
					t.Errorf("sent in time: result %s, step %s, %d taken", d.Result, st.State, s.takings())
				case off > 0 && (string(d.Result) != `"late"` || st.State != pawl.StepFailed || s.takings() != 0):
					t.Errorf("sent too late: result %s, step %s, %d taken", d.Result, st.State, s.takings())
				case (st.State == pawl.StepSucceeded) != (string(d.Result) == `"A"`), s.takings() != map[bool]int{true: 1}[st.State == pawl.StepSucceeded]:
					t.Errorf("the body had %s, stored is %s, %d taken", d.Result, st.State, s.takings())
				}
				if executions < 2 {
					t.Errorf("%d executions, want one more after the wait had ended", executions)
				}
				if f := st.Fault; off > 0 && (f == nil || f.Class != fault.Canceled || f.Outcome != fault.OutcomeNotSent || f.Reason != fault.ReasonWaitTimeout) {
					t.Errorf("the fault is %+v", f)
				}
			})
		})
	}
}

// A wait that lost to its limit takes nothing: the next one gets the event, also if the worker dies between them (FR-059).
func TestTimedOutWaitTakesNothing(t *testing.T) {
	for _, dies := range []bool{false, true} {
		t.Run(fmt.Sprint("dies ", dies), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				w := flow("buyer", "v1", func(run *pawl.Run, in string) (string, error) {
					_, first := pawl.Await(run, "pay", paid, pawl.Key(in), pawl.Within(time.Minute))
					if !errors.Is(first, fault.ReasonWaitTimeout) {
						return "", errors.Join(first, errors.New("no timeout"))
					}
					if _, err := s.rep(run, "between", in); err != nil {
						return "", err
					}
					return pawl.Await(run, "again", paid, pawl.Key(in))
				})
				s.spawnProc(func(p *proc, o *pawl.Options) {
					o.Hooks.At = func(at hooks.Point, _, step string) {
						if dies && at == hooks.StepReached && step == "between" {
							p.die()
						}
					}
				}, w)
				id := begin(s, w, "o1")
				time.Sleep(90 * time.Second) // bubble
				s.spawn("b1", w)
				time.Sleep(90 * time.Second) // bubble
				s.send("o1", "A")
				result(t, s.reach(id, pawl.Succeeded), "A")
				s.want(map[string]int{"between": 1})
			})
		})
	}
}

// A process that dies anywhere around an Await loses no event and takes none twice.
func TestAwaitSurvivesAKill(t *testing.T) {
	points := []hooks.Point{hooks.Claimed, hooks.StepReached, hooks.BodyDone, hooks.CommitSending, hooks.ResultWritten, hooks.Ended}
	for _, point := range points {
		for nth := 1; nth <= upTo(1, 4); nth++ {
			for _, early := range []bool{true, false} {
				t.Run(fmt.Sprint(point, nth, early), func(t *testing.T) {
					scene(t, func(t *testing.T, s *stage) {
						w := buyer(s, 0, 2, pawl.Within(24*time.Hour))
						s.doomed(point, nth, w)
						if early {
							s.send("o1", "A")
							s.send("o1", "B")
						}
						id := begin(s, w, "o1")
						time.Sleep(time.Minute) // bubble
						s.spawn("b1", w)
						if !early {
							s.send("o1", "A")
							s.send("o1", "B")
						}
						result(t, s.reach(id, pawl.Succeeded), "done(A B)")
						if n := s.takings(); n != 2 {
							t.Errorf("%d events were taken, want 2", n)
						}
					})
				})
			}
		}
	}
}

// A process that dies while it sends has sent, and woken every run, or has done neither; sent again under its id it is one
// event.
func TestSendSurvivesAKill(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := buyer(s, 0, 1)
		p := s.spawn("b1", w)
		ids := []pawl.RunID{begin(s, w, "o1"), begin(s, w, "o1")}
		for _, id := range ids {
			s.reach(id, pawl.Waiting)
		}
		p.stop()
		sender := s.spawnProc(func(sender *proc, o *pawl.Options) {
			o.Hooks.At = func(at hooks.Point, _, _ string) {
				if at == hooks.CommitSending {
					sender.kill()
				}
			}
		}, flow("nothing", "v1", func(*pawl.Run, string) (string, error) { return "", nil }))
		if err := paid.Send(t.Context(), sender, "o1", "A", pawl.EventID("d1")); !errors.Is(err, errDead) {
			t.Errorf("the dead process sent: %v", err)
		}
		for _, id := range ids {
			if d := s.show(s.desk, id); d.State != pawl.Waiting || s.takings() != 0 {
				t.Errorf("after a send that never committed the run is %s, %d taken", d.State, s.takings())
			}
		}
		s.send("o1", "A", pawl.EventID("d1"))
		s.spawn("b2", w)
		for range 3 {
			s.send("o1", "A", pawl.EventID("d1"))
			for _, id := range ids {
				result(t, s.reach(id, pawl.Succeeded), "done(A)")
			}
		}
		if n := s.sql(`SELECT count(*) FROM pawl_events`); n != 1 {
			t.Errorf("%d events are stored, want 1", n)
		}
		err := paid.Send(t.Context(), s.desk, "o1", "B", pawl.EventID("d1"))
		if !errors.Is(err, pawl.ErrConflict) {
			t.Errorf("another value under the same id: %v", err)
		}
		mentions(t, err, "d1", "paid", "o1")
		s.send("o2", "B", pawl.EventID("d1")) // about something else it is another event
	})
}

// One event wakes a thousand runs, all in one transaction.
func TestEventWakesMany(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		n := upTo(200, 1000)
		w := flow("buyer", "v1", func(run *pawl.Run, _ string) (string, error) {
			return pawl.Await(run, "pay", paid, "all")
		})
		s.spawnWith(func(o *pawl.Options) { o.Slots = 20 }, w)
		ins := make([]string, n)
		hs, err := w.StartMany(t.Context(), s.desk, ins, nil)
		if err != nil {
			t.Fatal(err)
		}
		for s.awaits() < n {
			time.Sleep(time.Second) // bubble
		}
		s.reach(hs[n-1].ID(), pawl.Waiting)
		s.send("all", "A")
		if got := s.takings(); got != n {
			t.Errorf("%d runs have taken the event when Send returns, want %d", got, n)
		}
		for _, h := range hs {
			result(t, s.reach(h.ID(), pawl.Succeeded), "A")
		}
	})
}

// A cancel wakes a run that awaits an event, and closes the wait: what is sent then is for others.
func TestCancelClosesAnAwait(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := buyer(s, 0, 1)
		p := s.spawn("b1", w)
		id := begin(s, w, "o1")
		s.reach(id, pawl.Waiting)
		if _, err := p.Cancel(t.Context(), id, ann); err != nil {
			t.Fatal(err)
		}
		d := s.reach(id, pawl.Cancelled)
		if st := step(t, d, "pay0"); st.State != pawl.StepFailed || st.Fault.Reason != fault.ReasonRunCanceled || s.awaits() != 0 {
			t.Errorf("the wait is %s (%+v), %d open", st.State, st.Fault, s.awaits())
		}
		s.send("o1", "A")
		if s.takings() != 0 {
			t.Error("a cancelled run took the event")
		}
		result(t, s.reach(s.retry(id), pawl.Succeeded), "done(A)") // its lineage has not taken it
	})
}

// A retry has what was taken before, and waits again where a limit had passed; a fork that repeats a wait gets the next
// event, because its lineage has had the first.
func TestRetryAndForkOfAwaits(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("buyer", "v1", func(run *pawl.Run, in string) (string, error) {
			a, err := pawl.Await(run, "a", paid, pawl.Key(in))
			if err != nil {
				return "", err
			}
			b, err := pawl.Await(run, "b", paid, pawl.Key(in), pawl.Within(time.Minute))
			return a + b, err
		})
		s.spawn("b1", w)
		id := begin(s, w, "o1")
		s.send("o1", "A")
		d := s.reach(id, pawl.Failed)
		if d.Fault == nil || d.Fault.Reason != fault.ReasonWaitTimeout {
			t.Errorf("the run failed by %+v", d.Fault)
		}
		next := s.retry(id)
		s.reach(next, pawl.Waiting)
		s.send("o1", "B")
		result(t, s.reach(next, pawl.Succeeded), "AB")
		fork, err := s.desk.Fork(t.Context(), s.plan(next, pawl.PlanOptions{Mode: pawl.PlanFork, FromStart: true}), ann)
		if err != nil {
			t.Fatal(err)
		}
		s.reach(fork, pawl.Waiting)
		s.send("o1", "C")
		s.send("o1", "D")
		result(t, s.reach(fork, pawl.Succeeded), "CD")
	})
}

// An event sent in a transaction of the caller's is there if and only if that commits.
func TestSendInTx(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := buyer(s, 0, 1)
		s.spawn("b1", w)
		id := begin(s, w, "o1")
		s.reach(id, pawl.Waiting)
		for _, commit := range []bool{false, true} {
			tx, err := s.bench.store.DB().BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := paid.Send(t.Context(), pawl.InTx(s.desk, tx), "o1", fmt.Sprint(commit)); err != nil {
				t.Fatal(err)
			}
			end := tx.Rollback
			if commit {
				end = tx.Commit
			}
			if err := end(); err != nil {
				t.Fatal(err)
			}
		}
		result(t, s.reach(id, pawl.Succeeded), "done(true)")
	})
}

// Bad input gets an error that names the thing.
func TestBadEvents(t *testing.T) {
	for what, define := range map[string]func(){
		"event name": func() { pawl.DefineEvent[string]("a\x00b") },
		"chan":       func() { pawl.DefineEvent[chan int]("lost") },
	} {
		func() {
			defer func() {
				if p := fmt.Sprint(recover()); !strings.Contains(p, what) {
					t.Errorf("DefineEvent panicked with %q, want %q in it", p, what)
				}
			}()
			define()
		}()
	}
	scene(t, func(t *testing.T, s *stage) {
		e := s.desk
		mentions(t, paid.Send(t.Context(), e, "", "A"), "about", "empty")
		mentions(t, paid.Send(t.Context(), e, "o1", "A", pawl.EventID("")), "EventID", "empty")
		mentions(t, paid.Send(t.Context(), e, "o1", strings.Repeat("A", 1<<20)), "paid", "o1", "limit")
		mentions(t, pawl.DefineEvent[any]("any").Send(t.Context(), e, "o1", map[string]any{"n": uint64(1<<53 + 1)}), "any", "n")
		mentions(t, pawl.SendJSON(t.Context(), e, "", "o1", []byte(`1`)), "event name")
		mentions(t, pawl.SendJSON(t.Context(), e, "paid", "o1", []byte(`{`)), "paid", "JSON")
		mentions(t, pawl.SendJSON(t.Context(), e, "paid", "o1", []byte("\"\xff\"")), "UTF-8")
		for what, await := range map[string]func(*pawl.Run) (string, error){
			"Within(0s)":  func(run *pawl.Run) (string, error) { return pawl.Await(run, "pay", paid, "o1", pawl.Within(0)) },
			"about":       func(run *pawl.Run) (string, error) { return pawl.Await(run, "pay", paid, "") },
			"DefineEvent": func(run *pawl.Run) (string, error) { return pawl.Await[string](run, "pay", nil, "o1") },
			"step name":   func(run *pawl.Run) (string, error) { return pawl.Await(run, "", paid, "o1") },
			"used twice": func(run *pawl.Run) (string, error) {
				_, _ = s.rep(run, "pay", "")
				return pawl.Await(run, "pay", paid, "o1")
			},
		} {
			w := flow("bad"+strings.Map(func(r rune) rune {
				if r < 'A' {
					return -1
				}
				return r
			}, what), "v1", func(run *pawl.Run, _ string) (string, error) { return await(run) })
			s.spawn("b1", w)
			d := s.reach(begin(s, w, ""), pawl.Failed)
			if d.Fault == nil || d.Fault.Class != fault.InvalidRequest || !strings.Contains(d.Fault.Message, what) {
				t.Errorf("%s: the fault is %+v", what, d.Fault)
			}
		}
		if n := s.sql(`SELECT count(*) FROM pawl_events`); n != 0 {
			t.Errorf("%d events are stored", n)
		}
	})
}

// Old events go, with what is known of who has taken them.
func TestOldEventsGo(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := buyer(s, 0, 1)
		p := s.spawn("b1", w)
		s.send("o1", "A")
		s.send("o2", "B")
		s.reach(begin(s, w, "o1"), pawl.Succeeded)
		p.stop()
		sweep := func(after time.Duration) {
			time.Sleep(after) // bubble
			p := s.spawn("b1", w)
			time.Sleep(time.Minute) // bubble
			p.stop()
		}
		sweep(29 * 24 * time.Hour)
		if n := s.sql(`SELECT count(*) FROM pawl_events`); n != 2 || s.takings() != 1 {
			t.Errorf("after 29 days %d events and %d takings", n, s.takings())
		}
		sweep(25 * time.Hour)
		if n := s.sql(`SELECT count(*) FROM pawl_events`); n != 0 || s.takings() != 0 {
			t.Errorf("after 30 days %d events and %d takings", n, s.takings())
		}
	})
}

// A step may send, and a run may be what an event is about.
func TestStepsSendToRuns(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("asks", "v1", func(run *pawl.Run, _ string) (string, error) {
			return pawl.Await(run, "answer", paid, pawl.Key(run.ID()))
		})
		teller := flow("tells", "v1", func(run *pawl.Run, to string) (string, error) {
			return "told", pawl.RepeatableDo(run, "tell", to, func(ctx context.Context, to string) error {
				return paid.Send(ctx, s.desk, pawl.Key(to), "A", pawl.EventID(string(run.ID())))
			})
		})
		s.spawn("b1", w, teller)
		id := begin(s, w, "")
		s.reach(id, pawl.Waiting)
		result(t, s.reach(begin(s, teller, string(id)), pawl.Succeeded), "told")
		result(t, s.reach(id, pawl.Succeeded), "A")
	})
}
