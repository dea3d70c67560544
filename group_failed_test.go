package pawl_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

// A branch waits (gate / event / uncertain / child); its wait is ended from outside while the sibling still runs; the sibling
// fails; the body compensates and sleeps. The branch must not go on after that.
func TestBranchGoesOnNoMore(t *testing.T) {
	for _, kind := range []string{"gate", "event", "uncertain", "child", "batch"} {
		for _, limit := range []int{0, 1} {
			t.Run(fmt.Sprint(kind, limit), func(t *testing.T) {
				scene(t, func(t *testing.T, s *stage) {
					ev := pawl.DefineEvent[string]("go")
					k := flow("kid", "v1", func(run *pawl.Run, in string) (string, error) {
						return "k", pawl.Sleep(run, "knap", 10*time.Second)
					})
					s.on("bad", func(context.Context, int) (string, error) {
						time.Sleep(30 * time.Second) // bubble
						return "", fault.Invalid(errors.New("bad"))
					})
					s.on("unsure", func(context.Context, int) (string, error) { return "", errors.New("cut") })
					w := flow("fan", "v1", func(run *pawl.Run, in string) (string, error) {
						g := run.Group()
						g.SetLimit(limit)
						g.Go(func(run *pawl.Run) error {
							var err error
							switch kind {
							case "gate":
								_, err = s.mail(run, "charge", in, pawl.AskFirst())
								return err
							case "event":
								_, err = pawl.Await(run, "ev", ev, pawl.Key("k"))
							case "batch":
								_, err = pawl.Batch(run, "rows", []string{"a", "b"}, self, func(run *pawl.Run, id string) (string, error) {
									if id == "b" {
										return "", nil
									}
									return pawl.Await(run, "ev", ev, pawl.Key("k"))
								})
								if _, some := errors.AsType[*pawl.BatchError](err); some {
									err = nil
								}
							case "uncertain":
								_, err = s.mail(run, "unsure", in)
							case "child":
								_, err = pawl.Child(run, "kid", k, in)
							}
							if err != nil {
								return err
							}
							_, err = s.mail(run, "charge", in)
							return err
						})
						g.Go(func(run *pawl.Run) error {
							_, err := s.rep(run, "bad", in)
							return err
						})
						err := g.Wait()
						if err == nil || errors.Is(err, pawl.ErrSuspended) {
							return "", err
						}
						if _, err := s.mail(run, "undo", in); err != nil {
							return "", err
						}
						if err := pawl.Sleep(run, "cool", 90*time.Second); err != nil {
							return "", err
						}
						return "", err
					})
					s.spawn("b1", w, k)
					id := begin(s, w, "x")
					time.Sleep(15 * time.Second) // bubble
					switch kind {
					case "gate":
						g := s.openGate(id)
						s.must(g, pawl.AnswerApprove, "ann")
					case "event", "batch":
						if err := ev.Send(t.Context(), s.desk, "k", "v"); err != nil {
							t.Fatal(err)
						}
					case "uncertain":
						s.resolve(s.entry(s.desk, pawl.AskUncertain), pawl.AnswerHappened)
					}
					time.Sleep(30 * time.Second) // bubble
					s.want(map[string]int{"undo": 1, "charge": 0})
					time.Sleep(2 * time.Minute) // bubble
					s.want(map[string]int{"undo": 1, "charge": 0})
				})
			})
		}
	}
}

// Without SetLimit: A has a few finished steps before the one that failed.
func TestBranchDoesNotActUnderALateApproval(t *testing.T) {
	for n := range upTo(1, 4) {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				s.on("bad", func(context.Context, int) (string, error) {
					time.Sleep(30 * time.Second) // bubble
					return "", fault.Invalid(errors.New("bad"))
				})
				w := flow("fan", "v1", func(run *pawl.Run, in string) (string, error) {
					g := run.Group()
					g.Go(func(run *pawl.Run) error {
						for i := range 20 {
							if _, err := s.rep(run.Item(fmt.Sprint(i)), "prep", in); err != nil {
								return err
							}
						}
						_, err := s.rep(run, "bad", in)
						return err
					})
					g.Go(func(run *pawl.Run) error {
						_, err := s.mail(run, "charge", in, pawl.AskFirst())
						return err
					})
					err := g.Wait()
					if err == nil || errors.Is(err, pawl.ErrSuspended) {
						return "", err
					}
					if _, err := s.mail(run, "undo", in); err != nil {
						return "", err
					}
					if err := pawl.Sleep(run, "cool", 90*time.Second); err != nil {
						return "", err
					}
					return "", err
				})
				s.spawn("b1", w)
				id := begin(s, w, "x")
				time.Sleep(15 * time.Second) // bubble
				s.must(s.openGate(id), pawl.AnswerApprove, "ann")
				time.Sleep(2 * time.Minute) // bubble
				s.want(map[string]int{"undo": 1, "charge": 0})
			})
		})
	}
}

// The uncertain step of a branch is answered after the group failed.
func TestAnswerAfterTheGroupFailed(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.on("bad", func(context.Context, int) (string, error) { return "", fault.Invalid(errors.New("bad")) })
		s.on("unsure", func(context.Context, int) (string, error) { return "", errors.New("cut") })
		s.on("worse", func(context.Context, int) (string, error) { return "", fault.Invalid(errors.New("worse")) })
		var errs []string
		w := flow("fan", "v1", func(run *pawl.Run, in string) (string, error) {
			g := run.Group()
			g.SetLimit(1)
			g.Go(func(run *pawl.Run) error {
				if _, err := s.mail(run, "unsure", in); err != nil {
					return err
				}
				_, err := s.rep(run, "worse", in)
				return err
			})
			g.Go(func(run *pawl.Run) error {
				_, err := s.rep(run, "bad", in)
				return err
			})
			err := g.Wait()
			if err == nil || errors.Is(err, pawl.ErrSuspended) {
				return "", err
			}
			errs = append(errs, err.Error())
			if _, err := s.mail(run, "undo", in); err != nil {
				return "", err
			}
			if err := pawl.Sleep(run, "cool", 90*time.Second); err != nil {
				return "", err
			}
			return "", err
		})
		s.spawn("b1", w)
		begin(s, w, "x")
		time.Sleep(15 * time.Second) // bubble
		s.want(map[string]int{"undo": 1, "worse": 0})
		s.resolve(s.entry(s.desk, pawl.AskUncertain), pawl.AnswerHappened)
		time.Sleep(2 * time.Minute) // bubble
		s.want(map[string]int{"undo": 1, "worse": 0})
		for _, e := range errs {
			if e != errs[0] {
				t.Errorf("the body got %q first and %q later", errs[0], e)
			}
		}
	})
}

// An event comes for a branch while it is being given up: the wait's end is the same, and a crash right after.
func TestKilledAfterTheGroupFailed(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		ev := pawl.DefineEvent[string]("go")
		s.on("bad", func(context.Context, int) (string, error) {
			time.Sleep(10 * time.Second) // bubble
			return "", fault.Invalid(errors.New("bad"))
		})
		var p *proc
		s.on("undo", func(_ context.Context, n int) (string, error) {
			if n == 1 {
				p.die()
			}
			return "", nil
		})
		w := flow("fan", "v1", func(run *pawl.Run, in string) (string, error) {
			g := run.Group()
			g.Go(func(run *pawl.Run) error {
				for i := range 20 {
					if _, err := s.rep(run.Item(fmt.Sprint(i)), "prep", in); err != nil {
						return err
					}
				}
				_, err := s.rep(run, "bad", in)
				return err
			})
			g.Go(func(run *pawl.Run) error {
				if _, err := pawl.Await(run, "ev", ev, pawl.Key("k")); err != nil {
					return err
				}
				_, err := s.mail(run, "charge", in)
				return err
			})
			err := g.Wait()
			if err == nil || errors.Is(err, pawl.ErrSuspended) {
				return "", err
			}
			_, _ = s.keyed(run, "undo", in)
			return "", err
		})
		p = s.spawn("b1", w)
		id := begin(s, w, "x")
		time.Sleep(5 * time.Second) // bubble
		if err := ev.Send(t.Context(), s.desk, "k", "v"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second) // bubble
		s.spawn("b1", w)
		s.reach(id, pawl.Failed)
		s.want(map[string]int{"charge": 0, "undo": 2})
	})
}

// A Keyed step is in flight when the worker dies; the sibling fails; after undo and a sleep it must not be sent again.
func TestEffectInFlightIsNotSentAgain(t *testing.T) {
	for _, n := range []int{0, 20} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				var p *proc
				s.on("charge", func(_ context.Context, n int) (string, error) {
					if n == 1 {
						time.Sleep(time.Second) // bubble
						p.die()
					}
					return "", nil
				})
				s.on("bad", func(context.Context, int) (string, error) { return "", fault.Invalid(errors.New("bad")) })
				order := 0
				w := flow("fan", "v1", func(run *pawl.Run, in string) (string, error) {
					order++
					g := run.Group()
					second := make(chan struct{})
					mine := order
					g.Go(func(run *pawl.Run) error {
						if mine == 3 { // scheduling: this branch is slower this time
							<-second
						}
						if mine == 2 {
							defer close(second)
						}
						if err := pawl.Sleep(run, "nap", 20*time.Second); err != nil {
							return err
						}
						_, err := s.rep(run, "bad", in)
						return err
					})
					g.Go(func(run *pawl.Run) error {
						if mine == 2 { // … and this one here
							<-second
							time.Sleep(time.Second) // bubble
						}
						_, err := s.keyed(run, "charge", in)
						if mine == 3 {
							close(second)
						}
						return err
					})
					err := g.Wait()
					if err == nil || errors.Is(err, pawl.ErrSuspended) {
						return "", err
					}
					if _, err := s.mail(run, "undo", in); err != nil {
						return "", err
					}
					if err := pawl.Sleep(run, "cool", 90*time.Second); err != nil {
						return "", err
					}
					return "", err
				})
				p = s.spawn("b1", w)
				begin(s, w, "x")
				time.Sleep(30 * time.Second) // bubble
				s.spawn("b1", w)
				time.Sleep(2 * time.Minute) // bubble
				s.want(map[string]int{"undo": 1, "charge": 1})
				time.Sleep(2 * time.Minute) // bubble
				s.want(map[string]int{"undo": 1, "charge": 1})
			})
		})
		break
	}
}

// A TxIn step in flight whose sibling fails after a crash: its record can be called off, nobody needs to be asked.
func TestTxInOfAFailedGroupIsCalledOff(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "user.db"))
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.Exec(pawl.TxTable("BLOB")); err != nil {
			t.Fatal(err)
		}
		var p *proc
		n := 0
		s.on("bad", func(context.Context, int) (string, error) { return "", fault.Invalid(errors.New("bad")) })
		bodies := 0
		w := flow("fan", "v1", func(run *pawl.Run, in string) (string, error) {
			bodies++
			later := bodies > 1
			first := make(chan struct{})
			g := run.Group()
			g.Go(func(run *pawl.Run) error {
				defer close(first)
				if err := pawl.Sleep(run, "nap", 10*time.Second); err != nil {
					return err
				}
				_, err := s.rep(run, "bad", in)
				return err
			})
			g.Go(func(run *pawl.Run) error {
				if later {
					<-first
					time.Sleep(time.Second) // bubble
				}
				_, err := pawl.TxIn(run, "write", db, in, func(context.Context, *sql.Tx, string) (string, error) {
					if n++; n == 1 {
						time.Sleep(time.Second) // bubble
						p.kill()
						return "", errors.New("killed")
					}
					return "W", nil
				})
				return err
			})
			return "", g.Wait()
		})
		p = s.spawn("b1", w)
		id := begin(s, w, "x")
		time.Sleep(30 * time.Second) // bubble
		s.spawn("b1", w)
		time.Sleep(5 * time.Minute) // bubble
		d := s.show(s.desk, id)
		if d.State == pawl.Blocked {
			t.Error("a person is asked about a transaction that could be called off")
		}
	})
}

// AskFirst in a branch that is orphaned before it comes by: is the question dropped?
func TestGroupFailureWithdrawsQuestions(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.on("bad", func(context.Context, int) (string, error) { return "", fault.Invalid(errors.New("bad")) })
		w := flow("fan", "v1", func(run *pawl.Run, in string) (string, error) {
			g := run.Group()
			g.SetLimit(1)
			g.Go(func(run *pawl.Run) error {
				if err := pawl.Sleep(run, "nap", time.Minute); err != nil {
					return err
				}
				_, err := s.rep(run, "bad", in)
				return err
			})
			g.Go(func(run *pawl.Run) error {
				_, err := s.mail(run, "charge", in, pawl.AskFirst())
				return err
			})
			err := g.Wait()
			if err == nil || errors.Is(err, pawl.ErrSuspended) {
				return "", err
			}
			if err := pawl.Sleep(run, "cool", 24*time.Hour); err != nil {
				return "", err
			}
			return "", err
		})
		s.spawn("b1", w)
		id := begin(s, w, "x")
		time.Sleep(5 * time.Minute) // bubble
		d := s.show(s.desk, id)
		if len(d.Open) != 0 {
			t.Errorf("group failed, charge is %s, but the inbox asks %v", step(t, d, "charge").State, d.Open)
			g, err := s.say(s.openGate(id), pawl.AnswerApprove, "ann")
			t.Logf("approve: %+v %v", g, err)
		}
	})
}

// The error of an orphaned step is the same on every execution.
func TestGroupFailureReadsTheSame(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.on("bad", func(context.Context, int) (string, error) { return "", fault.Invalid(errors.New("bad")) })
		var errs []string
		w := flow("fan", "v1", func(run *pawl.Run, in string) (string, error) {
			g := run.Group()
			g.SetLimit(1)
			var text string
			g.Go(func(run *pawl.Run) error {
				_, err := s.rep(run, "bad", in)
				return err
			})
			g.Go(func(run *pawl.Run) error {
				_, err := s.rep(run, "next", in)
				text = err.Error()
				return err
			})
			_ = g.Wait()
			errs = append(errs, text)
			if err := pawl.Sleep(run, "cool", time.Minute); err != nil {
				return "", err
			}
			return "", nil
		})
		s.spawn("b1", w)
		s.reach(begin(s, w, "x"), pawl.Succeeded)
		for _, e := range errs {
			if e != errs[0] {
				t.Errorf("first %q, later %q", errs[0], e)
			}
		}
	})
}

// Go after Wait.
func TestGoAfterWait(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.on("late", func(context.Context, int) (string, error) { time.Sleep(time.Minute); return "", nil }) // bubble
		w := flow("fan", "v1", func(run *pawl.Run, in string) (string, error) {
			g := run.Group()
			if err := g.Wait(); err != nil {
				return "", err
			}
			g.Go(func(run *pawl.Run) error {
				_, err := s.mail(run.WithoutCancel(), "late", in)
				return err
			})
			return s.rep(run, "work", in)
		})
		s.on("work", func(context.Context, int) (string, error) { time.Sleep(time.Second); return "", nil }) // bubble
		s.spawn("b1", w)
		id := begin(s, w, "x")
		time.Sleep(2 * time.Minute) // bubble
		d := s.show(s.desk, id)
		if d.State != pawl.Failed {
			t.Errorf("misuse is not told: %s %v", d.State, d.Open)
		}
	})
}

func (s *stage) openGate(id pawl.RunID) *pawl.GateInfo {
	for _, en := range s.show(s.desk, id).Entries {
		if en.Kind == pawl.AskGate && en.Closed.IsZero() {
			return s.gate(en.ID)
		}
	}
	s.t.Fatal("no gate")
	return nil
}
