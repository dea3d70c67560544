package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

// "happened" with a result of the wrong type is refused by a process that has the workflow, in a group too.
func TestResultIsCheckedInAGroup(t *testing.T) {
	for _, grouped := range []bool{false, true} {
		t.Run(fmt.Sprint(grouped), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				s.on("unsure", func(context.Context, int) (string, error) { return "", errors.New("cut") })
				w := flow("fan", "v1", func(run *pawl.Run, in string) (string, error) {
					g := run.Group()
					if grouped {
						g.Go(func(run *pawl.Run) error { return pawl.Sleep(run, "nap", time.Hour) })
					}
					g.Go(func(run *pawl.Run) error {
						_, err := s.mail(run, "unsure", in)
						return err
					})
					return "", g.Wait()
				})
				p := s.spawn("b1", w)
				id := begin(s, w, "x")
				s.reach(id, pawl.Waiting, pawl.Blocked)
				en := s.entry(s.desk, pawl.AskUncertain)
				err := p.Resolve(t.Context(), pawl.Answer{Entry: en.ID, Attempt: en.Attempt, Choice: pawl.AnswerHappened, By: "ann", Reason: "x", Result: []byte(`{"a":1}`), Looked: time.Now()})
				if err == nil {
					t.Error("a result of the wrong type was taken")
					time.Sleep(2 * time.Minute) // bubble
				}
			})
		})
	}
}

// An edit that the payload's type cannot hold is refused by a process that has the workflow, in a group too.
func TestEditIsCheckedInAGroup(t *testing.T) {
	for _, grouped := range []bool{false, true} {
		t.Run(fmt.Sprint(grouped), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				w := pawl.Define("fan", "v1", func(run *pawl.Run, in payout) (string, error) {
					g := run.Group()
					if grouped {
						g.Go(func(run *pawl.Run) error { return pawl.Sleep(run, "nap", time.Hour) })
					}
					g.Go(func(run *pawl.Run) error {
						_, err := s.pay(run, fault.KindOnce, "pay", in, pawl.AskFirst())
						return err
					})
					return "", g.Wait()
				})
				p := s.spawn("b1", w)
				id := begin(s, w, payout{"o", 1})
				time.Sleep(5 * time.Second) // bubble
				g, err := p.Decide(t.Context(), pawl.Decision{Gate: s.openGate(id).ID, Choice: pawl.AnswerEdit, By: "eve", Payload: []byte(`{"No":"o","Cents":99999999999999999999}`)})
				if err == nil {
					t.Error("the edit was taken")
					s.must(g, pawl.AnswerApprove, "ann")
					time.Sleep(2 * time.Minute) // bubble
				}
			})
		})
	}
}

// A new build resumes a run with two branches whose steps have the same input: nothing was renamed.
func TestNothingIsRenamedInAGroup(t *testing.T) {
	for _, limit := range []int{0, 1} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				w := flow("fan", "v1", func(run *pawl.Run, in string) (string, error) {
					g := run.Group()
					g.SetLimit(limit)
					g.Go(func(run *pawl.Run) error {
						if err := pawl.Sleep(run, "nap", time.Minute); err != nil {
							return err
						}
						_, err := s.mail(run, "b", in)
						return err
					})
					g.Go(func(run *pawl.Run) error {
						for i := range 20 {
							if _, err := s.rep(run.Item(fmt.Sprint(i)), "prep", in); err != nil {
								return err
							}
						}
						_, err := s.mail(run, "a", in)
						return err
					})
					return "done", g.Wait()
				})
				p := s.spawn("b1", w)
				id := begin(s, w, "x")
				s.reach(id, pawl.Waiting)
				p.stop()
				s.spawn("b2", w)
				time.Sleep(2 * time.Minute) // bubble
				d := s.show(s.desk, id)
				if d.State != pawl.Succeeded {
					t.Errorf("run is %s %v", d.State, d.Open)
				}
			})
		})
	}
}

// Two steps of one run wait for one child by its key; the run is cancelled: the child is to be cancelled.
func TestChildByKeyIsCancelledOnce(t *testing.T) {
	for _, twice := range []bool{false, true} {
		t.Run(fmt.Sprint(twice), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				k := flow("kid", "v1", func(run *pawl.Run, in string) (string, error) { return "k", pawl.Sleep(run, "knap", 24*time.Hour) })
				w := flow("caller", "v1", func(run *pawl.Run, in string) (string, error) {
					g := run.Group()
					g.Go(func(run *pawl.Run) error {
						_, err := pawl.Child(run, "c1", k, in, pawl.Key("k"))
						return err
					})
					if twice {
						g.Go(func(run *pawl.Run) error {
							_, err := pawl.Child(run, "c2", k, in, pawl.Key("k"))
							return err
						})
					}
					return "", g.Wait()
				})
				s.spawn("b1", w, k)
				id := begin(s, w, "x")
				time.Sleep(10 * time.Second) // bubble
				if _, err := s.desk.Cancel(t.Context(), id, ann); err != nil {
					t.Fatal(err)
				}
				s.reach(id, pawl.Cancelled)
				time.Sleep(time.Minute) // bubble
				if r := s.runsOf("kid")[0]; r.State != pawl.Cancelled {
					t.Errorf("the child is %s", r.State)
				}
			})
		})
	}
}

// A child that is cancelled by its caller: its open gates are closed at once, as by Cancel.
func TestCancelDownClosesGates(t *testing.T) {
	for _, down := range []bool{false, true} {
		t.Run(fmt.Sprint(down), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				s.on("long", func(context.Context, int) (string, error) { time.Sleep(time.Minute); return "", nil }) // bubble
				k := flow("kid", "v1", func(run *pawl.Run, in string) (string, error) {
					g := run.Group()
					g.Go(func(run *pawl.Run) error { _, err := s.rep(run, "long", in); return err })
					g.Go(func(run *pawl.Run) error {
						_, err := s.mail(run.WithoutCancel(), "pay", in, pawl.AskFirst())
						return err
					})
					return "", g.Wait()
				})
				w := flow("caller", "v1", func(run *pawl.Run, in string) (string, error) { return pawl.Child(run, "c1", k, in) })
				s.spawn("b1", w, k)
				id := begin(s, w, "x")
				time.Sleep(10 * time.Second) // bubble
				kid := s.runsOf("kid")[0].ID
				g := s.openGate(kid)
				target := kid
				if down {
					target = id
				}
				if _, err := s.desk.Cancel(t.Context(), target, ann); err != nil {
					t.Fatal(err)
				}
				time.Sleep(5 * time.Second) // bubble
				_, err := s.say(g, pawl.AnswerApprove, "bob")
				if err == nil {
					t.Error("a gate of a cancelled child was approved")
				}
				time.Sleep(5 * time.Minute) // bubble
				if !down && s.count("pay") > 0 || down && s.count("pay") > 0 {
					t.Error("paid after cancel")
				}
			})
		})
	}
}

// Cancel while one branch is uncertain and another begins to sleep before it heard of it.
func TestCancelIsHeardBesideAQuestion(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.on("unsure", func(context.Context, int) (string, error) { return "", errors.New("cut") })
		w := flow("fan", "v1", func(run *pawl.Run, in string) (string, error) {
			g := run.Group()
			g.Go(func(run *pawl.Run) error { _, err := s.mail(run, "unsure", in); return err })
			g.Go(func(run *pawl.Run) error {
				if _, err := s.rep(run, "long", in); err != nil {
					return err
				}
				return pawl.Sleep(run, "nap", 240*time.Hour)
			})
			return "", g.Wait()
		})
		s.on("long", func(ctx context.Context, _ int) (string, error) {
			time.Sleep(5 * time.Second) // bubble
			me, _ := pawl.StepOf(ctx)
			_, err := s.desk.Cancel(t.Context(), me.Run, ann)
			return "", err
		})
		s.spawn("b1", w)
		id := begin(s, w, "x")
		time.Sleep(2 * time.Minute) // bubble
		d := s.show(s.desk, id)
		if st := step(t, d, "nap"); st.State == pawl.StepWaiting {
			t.Errorf("cancelled two minutes ago, and the run is %s, the nap %s", d.State, st.State)
		}
	})
}

// What Finally was given is done to the end, past the deadline too, by which the run has failed then.
func TestFinallyBeyondTheDeadline(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("fin", "v1", func(run *pawl.Run, in string) (string, error) {
			run.Finally(func(run *pawl.Run) error {
				if err := pawl.Sleep(run, "pause", 2*time.Minute); err != nil {
					return err
				}
				_, err := s.rep(run, "undo", in)
				return err
			})
			return s.rep(run, "work", in)
		})
		s.spawn("b1", w)
		id := begin(s, w, "x", pawl.Deadline(time.Minute))
		time.Sleep(4 * time.Minute) // bubble
		if d := s.show(s.desk, id); d.State != pawl.Failed || d.Fault.Reason != fault.ReasonRunDeadline {
			t.Errorf("the run is %s: %v", d.State, d.Fault)
		}
		s.want(map[string]int{"work": 1, "undo": 1})
	})
}

// The reply to the commit of a second attempt's intent under a gate is lost.
func TestLostReplyOfALaterIntentUnderAGate(t *testing.T) {
	for _, gated := range []bool{false, true} {
		t.Run(fmt.Sprint(gated), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				s.on("pay", func(_ context.Context, n int) (string, error) {
					if n == 1 {
						return "", fault.NotSent(errors.New("dial"))
					}
					return "ok", nil
				})
				w := flow("pay", "v1", func(run *pawl.Run, in string) (string, error) {
					var opts []any
					if gated {
						opts = append(opts, pawl.AskFirst())
					}
					return s.mail(run, "pay", in, append(opts, pawl.Retry(pawl.RetryPolicy{Attempts: 3, First: time.Second, Max: time.Second}))...)
				})
				p := s.spawn("b1", w)
				id := begin(s, w, "x")
				s.on("pay", func(_ context.Context, n int) (string, error) {
					if n == 1 {
						p.store.deaf.Store(2) // the failed attempt, then the second intent
						return "", fault.NotSent(errors.New("dial"))
					}
					return "ok", nil
				})
				if gated {
					time.Sleep(5 * time.Second) // bubble
					s.must(s.openGate(id), pawl.AnswerApprove, "ann")
				}
				time.Sleep(2 * time.Minute) // bubble
				d := s.show(s.desk, id)
				if d.State != pawl.Succeeded {
					t.Errorf("run is %s, %v", d.State, d.Open)
				}
			})
		})
	}
}

// Each commit's reply may be lost.
func TestLostRepliesOfAllWaits(t *testing.T) {
	for nth := 1; nth <= 24; nth += upTo(5, 1) {
		t.Run(fmt.Sprint(nth), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				ev := pawl.DefineEvent[string]("go")
				s.table()
				k := flow("kid", "v1", func(run *pawl.Run, in string) (string, error) {
					if err := pawl.Sleep(run, "knap", 10*time.Second); err != nil {
						return "", err
					}
					return s.mail(run, "kmail", in)
				})
				w := flow("fan", "v1", func(run *pawl.Run, in string) (string, error) {
					g := run.Group()
					g.Go(func(run *pawl.Run) error {
						if _, err := pawl.Child(run, "kid", k, in); err != nil {
							return err
						}
						_, err := s.mail(run, "m1", in)
						return err
					})
					g.Go(func(run *pawl.Run) error {
						if _, err := pawl.Await(run, "ev", ev, "k"); err != nil {
							return err
						}
						_, err := s.tx(run, "m2", in)
						return err
					})
					g.Go(func(run *pawl.Run) error {
						_, err := pawl.Await(run, "ev2", ev, "other", pawl.Within(20*time.Second))
						if !errors.Is(err, fault.ReasonWaitTimeout) {
							return err
						}
						_, err = s.mail(run, "m3", in, pawl.AskFirst())
						return err
					})
					g.Go(func(run *pawl.Run) error {
						_, err := s.tx(run, "m4", in, pawl.AskFirst(pawl.Expires(3*time.Hour)))
						return err
					})
					return "done", g.Wait()
				})
				p := s.spawn("b1", w, k)
				time.Sleep(time.Second) // bubble
				p.store.deaf.Store(int64(nth))
				id := begin(s, w, "x")
				time.Sleep(12 * time.Second) // bubble
				if err := ev.Send(t.Context(), s.desk, "k", "v"); err != nil {
					t.Fatal(err)
				}
				for range 10 {
					time.Sleep(15 * time.Second) // bubble
					for _, en := range s.show(s.desk, id).Entries {
						if en.Kind == pawl.AskGate && en.Closed.IsZero() {
							s.must(s.gate(en.ID), pawl.AnswerApprove, "ann")
						}
					}
				}
				d := s.show(s.desk, id)
				if d.State != pawl.Succeeded {
					t.Errorf("run is %s %v %v", d.State, d.Open, d.Fault)
				}
				s.want(map[string]int{"m1": 1, "m3": 1, "kmail": 1})
				if s.rows("m2") != 1 || s.rows("m4") != 1 {
					t.Errorf("tx: %d %d", s.rows("m2"), s.rows("m4"))
				}
				if n := len(s.runsOf("kid")); n != 1 {
					t.Errorf("%d kids", n)
				}
			})
		})
	}
}
