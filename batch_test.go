package pawl_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
)

func self(s string) string { return s }

func numbered(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("i%04d", i)
	}
	return ids
}

// batched is a workflow over a list that a test may change between executions: a Repeatable step, then one of kind, for each item. Its result
// counts, and lists up to 20 results.
func (s *stage) batched(kind pawl.Kind, items func() []string, opts ...pawl.BatchOption) *pawl.Workflow[string, string] {
	return flow("batched", "v1", func(run *pawl.Run, _ string) (string, error) {
		res, err := pawl.Batch(run, "rows", items(), self, func(run *pawl.Run, id string) (string, error) {
			got, err := s.rep(run, "read", id)
			if err != nil {
				return "", err
			}
			return s.item(run, kind, id, got)
		}, opts...)
		return told(res, err)
	})
}

// item is a step whose effect is counted by item.
func (s *stage) item(run *pawl.Run, kind pawl.Kind, id, in string) (string, error) {
	return s.do(run.Item("w"), kind, "write "+id, in)
}

func told(res pawl.Results[string], err error) (string, error) {
	if _, is := errors.AsType[*pawl.BatchError](err); err != nil && !is {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d+%d+%d~%d-%d", res.Done, res.Failed, res.Missing, res.Changed, res.Vanished)
	n := 0
	for id, r := range res.All() {
		if n++; n > 20 {
			continue
		}
		if r.Err != nil {
			fmt.Fprintf(&b, " %s!", id)
		} else {
			fmt.Fprintf(&b, " %s", id)
			if !strings.Contains(r.Value, id) {
				fmt.Fprintf(&b, "=%s", r.Value)
			}
		}
	}
	if res.Err() != nil {
		return "", res.Err()
	}
	return b.String(), err
}

func fixed(ids ...string) func() []string { return func() []string { return ids } }

// C44: the counts of a batch, and each item's result.
func TestBatchRunsItems(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := s.batched(fault.KindKeyed, fixed("c", "a", "b/%2F"))
		p := s.spawn("b1", w)
		id := begin(s, w, "x")
		d := s.reach(id, pawl.Succeeded)
		result(t, d, "3+0+0~0-0 a b/%2F c")
		s.want(map[string]int{"write a": 1, "write b/%2F": 1, "write c": 1})
		if len(d.Steps) != 1 || d.Steps[0].Kind != fault.KindBatch || d.Steps[0].State != pawl.StepSucceeded {
			t.Errorf("the journal shows %+v, want the batch alone", d.Steps)
		}
		_ = p
	})
}

// An item that fails ends the others' way no sooner, is stored with its error, and is not run again when the run goes on.
func TestBatchFailures(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.on("write b", func(context.Context, int) (string, error) { return "", fault.Invalid(errors.New("no such row")) })
		w := flow("batched", "v1", func(run *pawl.Run, _ string) (string, error) {
			res, err := pawl.Batch(run, "rows", numbers("a", "b", "c"), self, func(run *pawl.Run, id string) (string, error) {
				return s.item(run, fault.KindRepeatable, id, id)
			})
			be, is := errors.AsType[*pawl.BatchError](err)
			if !is {
				return "", fmt.Errorf("the batch's error is %w", err)
			}
			if be.Failed != 1 || be.Item != "b" || fault.ClassOf(err) != fault.InvalidRequest || !strings.Contains(err.Error(), "no such row") {
				t.Errorf("the batch's error is %+v", be)
			}
			if err := pawl.Sleep(run, "nap", time.Minute); err != nil {
				return "", err
			}
			for id, err := range res.Failures() {
				if id != "b" || !strings.Contains(err.Error(), "no such row") {
					t.Errorf("failed: %s, %v", id, err)
				}
			}
			return told(res, nil)
		})
		s.spawn("b1", w)
		id := begin(s, w, "x")
		d := s.reach(id, pawl.Waiting)
		if st := step(t, d, "rows"); st.State != pawl.StepFailed || !strings.Contains(st.Fault.Message, "no such row") {
			t.Errorf("the batch's step is %s, %+v", st.State, st.Fault)
		}
		result(t, s.reach(id, pawl.Succeeded), "2+1+0~0-0 a b! c")
		s.want(map[string]int{"write a": 1, "write b": 1, "write c": 1})
	})
}

func numbers(ids ...string) []string { return ids }

// C42: bad ids are refused before anything runs, and the error names them.
func TestBatchRefusesBadIDs(t *testing.T) {
	for name, c := range map[string]struct {
		ids  []string
		says []string
	}{
		"twice":   {[]string{"a", "b", "a", "c", "a"}, []string{"[0 2 4]", `"a"`}},
		"empty":   {[]string{"a", ""}, []string{"item 1", "empty"}},
		"long":    {[]string{strings.Repeat("x", 201)}, []string{"item 0", "201 bytes"}},
		"control": {[]string{"a\nb"}, []string{"item 0", "control"}},
	} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				var ran atomic.Int64
				w := flow("batched", "v1", func(run *pawl.Run, _ string) (string, error) {
					return told(pawl.Batch(run, "rows", c.ids, self, func(run *pawl.Run, id string) (string, error) {
						ran.Add(1)
						return id, nil
					}))
				})
				s.spawn("b1", w)
				d := s.reach(begin(s, w, "x"), pawl.Failed)
				mentions(t, d.Fault, append(c.says, "rows")...)
				if ran.Load() != 0 {
					t.Errorf("%d items ran", ran.Load())
				}
			})
		})
	}
}

// haunted starts a worker that dies when the test says so: what runs then hangs at its next point.
func (s *stage) haunted(when func(at hooks.Point, step string) bool, defs ...pawl.Definition) *proc {
	s.t.Helper()
	return s.spawnProc(func(p *proc, o *pawl.Options) {
		o.Hooks.At = func(at hooks.Point, _, step string) {
			if when(at, step) {
				p.kill()
			}
			if at != hooks.CommitSending && at != hooks.TxCommitting && p.store.dead.Load() {
				<-s.over
			}
		}
	}, defs...)
}

// C41, C42, FR-107: whatever becomes of the list between executions, an item runs once, by its id.
func TestBatchOverAnyList(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				rnd := rand.New(rand.NewPCG(seed, 0))
				var mu sync.Mutex
				list := numbered(10)
				items := func() []string {
					mu.Lock()
					defer mu.Unlock()
					return append(slices.Clone(list), "hold")
				}
				ran, stop := 0, 1+rnd.IntN(20)
				die := func(at hooks.Point, name string) bool {
					if at != hooks.EffectDone || !strings.Contains(name, "write") {
						return false
					}
					mu.Lock()
					defer mu.Unlock()
					ran++
					return stop > 0 && ran >= stop
				}
				open := make(chan struct{}) // the batch does not end before
				s.on("write hold", func(ctx context.Context, _ int) (string, error) {
					select {
					case <-open:
						return "hold", nil
					case <-ctx.Done():
						return "", context.Cause(ctx)
					}
				})
				w := s.batched(fault.KindKeyed, items, pawl.AtOnce(3))
				p := s.haunted(die, w)
				id := begin(s, w, "x")
				ever := map[string]bool{}
				for range 3 {
					time.Sleep(20 * time.Second) // bubble
					p.kill()
					mu.Lock()
					for _, id := range list {
						ever[id] = true
					}
					rnd.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
					list = append([]string{fmt.Sprintf("new%d", rnd.IntN(1000))}, list[1+rnd.IntN(2):]...)
					stop = ran + 1 + rnd.IntN(5)
					mu.Unlock()
					p = s.haunted(die, w)
				}
				time.Sleep(20 * time.Second) // bubble
				p.kill()
				close(open)
				mu.Lock()
				stop = 0
				final := slices.Clone(list)
				mu.Unlock()
				s.spawn("b1", w)
				d := s.reach(id, pawl.Succeeded, pawl.Blocked)
				if d.State == pawl.Blocked { // an item that was in flight at a kill is not in the list any more
					for _, en := range d.Entries {
						if batch, item, _ := strings.Cut(en.Step, "//"); batch != "rows" || slices.Contains(final, strings.Split(item, "/")[0]) {
							t.Errorf("the run is blocked by %s about %s: %s", en.Kind, en.Step, en.Detail)
						}
						s.resolve(en, pawl.AnswerHappened)
					}
					d = s.reach(id, pawl.Succeeded)
				}
				for item := range ever {
					keys := map[pawl.OpKey]bool{}
					for _, key := range s.keys["write "+item] {
						keys[key] = true
					}
					if len(keys) > 1 {
						t.Errorf("item %s was written under %d keys", item, len(keys))
					}
				}
				for _, item := range final {
					if n := s.count("write " + item); n < 1 {
						t.Errorf("item %s was not run", item)
					}
				}
				if _, more, _ := strings.Cut(string(d.Result), "="); more != "" {
					t.Errorf("an item has another's result: %s", d.Result)
				}
				again := 0
				for item := range ever {
					again += max(0, s.count("write "+item)-1)
				}
				if again > 4*3 {
					t.Errorf("%d items ran again, want those in flight at four kills at most", again)
				}
			})
		})
	}
}

// C40, C41: a process that dies anywhere leaves a batch that goes on; only what was in flight runs again.
func TestBatchSurvivesAKill(t *testing.T) {
	for _, point := range []hooks.Point{hooks.Claimed, hooks.StepReached, hooks.IntentWritten, hooks.EffectBegin, hooks.EffectDone,
		hooks.ResultWritten, hooks.TxCommitting, hooks.BodyDone, hooks.CommitSending, hooks.Ended} {
		for _, nth := range []int{2, 1, 7}[:upTo(1, 3)] {
			for _, kind := range []pawl.Kind{fault.KindKeyed, fault.KindTx, fault.KindOnce} {
				t.Run(fmt.Sprint(point, nth, kind), func(t *testing.T) {
					scene(t, func(t *testing.T, s *stage) {
						s.table()
						items := numbered(9)
						w := s.batched(kind, func() []string { return items }, pawl.AtOnce(2))
						var seen atomic.Int64
						s.spawnProc(func(p *proc, o *pawl.Options) {
							o.Hooks.At = func(at hooks.Point, _, _ string) {
								if at == point && seen.Add(1) == int64(nth) {
									if at == hooks.TxCommitting {
										p.kill()
									} else {
										p.die()
									}
								}
								if at != hooks.TxCommitting && p.store.dead.Load() && at != hooks.CommitSending {
									<-s.over
								}
							}
						}, w)
						id := begin(s, w, "x")
						time.Sleep(time.Minute) // bubble
						s.spawn("b1", w)
						d := s.reach(id, pawl.Succeeded, pawl.Blocked)
						asked := 0
						for d.State == pawl.Blocked { // Once items that were in flight
							time.Sleep(3 * time.Minute) // bubble
							for _, en := range d.Entries {
								if en.Closed.IsZero() {
									asked++
									s.resolve(en, pawl.AnswerDidNotHappen)
								}
							}
							d = s.reach(id, pawl.Succeeded, pawl.Blocked)
						}
						result(t, d, "9+0+0~0-0 "+strings.Join(items, " "))
						again := 0
						for _, item := range items {
							again += s.count("write "+item) - 1
							if kind == fault.KindTx && s.rows("write "+item) != 1 {
								t.Errorf("item %s was written %d times", item, s.rows("write "+item))
							}
						}
						if kind == fault.KindOnce && again > asked {
							t.Errorf("%d items ran again, and %d were asked about", again, asked)
						}
						if again > 2 {
							t.Errorf("%d items ran again, 2 were in flight", again)
						}
					})
				})
			}
		}
	}
}

// FR-106, C41: thousands of items, five kills, the list shuffled each time: one effect for a key and for a transaction.
func TestBatchOfThousands(t *testing.T) {
	const limit = 8
	n := upTo(1000, 5000)
	scene(t, func(t *testing.T, s *stage) {
		if _, err := s.store.DB().ExecContext(t.Context(), `CREATE TABLE done (item TEXT)`); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		sent := map[pawl.OpKey]int{}
		ran := 0
		stop := n / 7
		items := numbered(n)
		w := flow("batched", "v1", func(run *pawl.Run, _ string) (string, error) {
			mu.Lock()
			list := slices.Clone(items)
			rand.Shuffle(n, func(i, j int) { list[i], list[j] = list[j], list[i] })
			mu.Unlock()
			res, err := pawl.Batch(run, "rows", list, self, func(run *pawl.Run, id string) (string, error) {
				if err := pawl.KeyedDo(run, "send", id, func(_ context.Context, key pawl.OpKey, id string) error {
					mu.Lock()
					defer mu.Unlock()
					sent[key]++
					return nil
				}); err != nil {
					return "", err
				}
				return id, pawl.TxDo(run, "note", id, func(ctx context.Context, tx *sql.Tx, id string) error {
					_, err := tx.ExecContext(ctx, `INSERT INTO done (item) VALUES ($1)`, id)
					return err
				})
			}, pawl.AtOnce(limit))
			return told(res, err)
		})
		die := func(at hooks.Point, _ string) bool {
			if at != hooks.EffectDone {
				return false
			}
			mu.Lock()
			defer mu.Unlock()
			ran++
			return stop > 0 && ran >= stop
		}
		p := s.haunted(die, w)
		id := begin(s, w, "x")
		for range 5 {
			for !p.store.dead.Load() {
				time.Sleep(time.Second) // bubble
			}
			mu.Lock()
			stop = ran + n/4
			mu.Unlock()
			p = s.haunted(die, w)
		}
		mu.Lock()
		stop = 0
		mu.Unlock()
		d := s.reach(id, pawl.Succeeded)
		if want := fmt.Sprintf("%d+0+0~0-0 ", n); !strings.HasPrefix(string(d.Result), `"`+want) {
			t.Errorf("result is %.100s, want %s…", d.Result, want)
		}
		again := 0
		for _, times := range sent {
			again += times - 1
		}
		if len(sent) != n || again > 5*limit {
			t.Errorf("%d keys were sent, %d times again; want %d, and again at most the %d in flight at the kills", len(sent), again, n, 5*limit)
		}
		var rows, distinct int
		if err := s.store.DB().QueryRowContext(t.Context(), `SELECT count(*), count(DISTINCT item) FROM done`).Scan(&rows, &distinct); err != nil {
			t.Fatal(err)
		}
		if rows != n || distinct != n {
			t.Errorf("%d effects in transactions on %d items, want one each of %d", rows, distinct, n)
		}
	})
}

// An uncertain step suspends its item alone. When the others have ended, the run waits for the answer.
func TestBatchSuspendsItemByItem(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.on("write b", func(_ context.Context, n int) (string, error) {
			if n == 1 {
				return "", errors.New("connection cut")
			}
			return "b again", nil
		})
		w := flow("batched", "v1", func(run *pawl.Run, _ string) (string, error) {
			return told(pawl.Batch(run, "rows", numbered(40), self, func(run *pawl.Run, id string) (string, error) {
				switch id {
				case "i0001":
					id = "b"
				case "i0002":
					if err := pawl.Sleep(run, "nap", time.Minute); err != nil {
						return "", err
					}
				}
				_, err := s.item(run, fault.KindOnce, id, id)
				return "", err
			}, pawl.AtOnce(2)))
		})
		s.spawn("b1", w)
		id := begin(s, w, "x")
		d := s.reach(id, pawl.Waiting)
		if b := d.Batches; len(b) != 1 || b[0].Done != 38 || b[0].Left != 2 || b[0].Items != 40 || b[0].State != pawl.StepWaiting {
			t.Errorf("the batch is at %+v, want 38 done and 2 left", b)
		}
		en := s.blocked(id, pawl.AskUncertain)
		if en.Step != "rows//i0001/w/write b" {
			t.Errorf("asked about %s", en.Step)
		}
		s.resolve(en, pawl.AnswerDidNotHappen)
		d = s.reach(id, pawl.Succeeded)
		if b := d.Batches; b[0].Done != 40 || b[0].Left != 0 {
			t.Errorf("the batch is at %+v", b)
		}
		s.want(map[string]int{"write b": 2, "write i0002": 1, "write i0003": 1, "write i0039": 1})
	})
}

// C40, C41, C43: a retry by hand runs what has failed and what is missing, under the same keys, and reuses the rest.
func TestBatchRetry(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		var fixed atomic.Bool
		s.on("write i0003", func(_ context.Context, n int) (string, error) {
			if !fixed.Load() {
				return "", fault.Invalid(errors.New("broken row"))
			}
			return "i0003 at last", nil
		})
		w := s.batched(fault.KindKeyed, func() []string { return numbered(12) }, pawl.AtOnce(1), pawl.StopOnError())
		s.spawn("b1", w)
		id := begin(s, w, "x")
		d := s.reach(id, pawl.Failed)
		if b := d.Batches[0]; b.Done != 3 || b.Failed != 1 || b.Left != 8 || b.State != pawl.StepFailed {
			t.Errorf("the batch is at %+v", b)
		}
		if d.Fault.Class != fault.InvalidRequest {
			t.Errorf("the run's fault is %+v", d.Fault)
		}
		plan := s.plan(id, pawl.PlanOptions{Mode: pawl.PlanRetry})
		if len(plan.Steps) != 1 || plan.Steps[0].Fate != pawl.Rerun || !strings.Contains(plan.Steps[0].Why, "3 items are reused; 1 failed and 8 missing") {
			t.Errorf("the plan is %+v", plan.Steps)
		}
		fork := s.plan(id, pawl.PlanOptions{Mode: pawl.PlanFork, FromStart: true})
		if len(fork.Refusals) != 1 || fork.Steps[0].Fate != pawl.Refused {
			t.Errorf("a fork from the start is planned as %+v, refused by %q", fork.Steps, fork.Refusals)
		}
		fixed.Store(true)
		next := s.retry(id)
		d = s.reach(next, pawl.Succeeded)
		result(t, d, "12+0+0~0-0 "+strings.Join(numbered(12), " "))
		if b := d.Batches[0]; b.Reused != 3 || b.Done != 12 {
			t.Errorf("the batch is at %+v", b)
		}
		s.want(map[string]int{"read": 12, "write i0000": 1, "write i0003": 2, "write i0004": 1})
		if keys := s.keys["write i0003"]; keys[0] != keys[1] {
			t.Errorf("keys of the item: %v", keys)
		}
	})
}

// A cancel ends a batch; what had begun is over, and nothing else begins.
func TestBatchCancel(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("batched", "v1", func(run *pawl.Run, _ string) (string, error) {
			_, err := pawl.Batch(run, "rows", numbered(100), self, func(run *pawl.Run, id string) (string, error) {
				_, err := pawl.Repeatable(run, "slow", id, func(ctx context.Context, id string) (string, error) {
					s.effect("slow")
					return id, sleep(ctx, time.Second)
				})
				return id, err
			}, pawl.AtOnce(4))
			if errors.Is(err, fault.ErrRunCanceled) {
				if _, err := s.rep(run.WithoutCancel(), "undo", "x"); err != nil {
					return "", err
				}
			}
			return "", err
		})
		p := s.spawn("b1", w)
		id := begin(s, w, "x")
		time.Sleep(5 * time.Second) // bubble
		if _, err := p.Cancel(t.Context(), id, ann); err != nil {
			t.Fatal(err)
		}
		d := s.reach(id, pawl.Cancelled)
		s.want(map[string]int{"undo": 1})
		if n := s.count("slow"); n > 60 {
			t.Errorf("%d items were begun", n)
		}
		if st := step(t, d, "rows"); st.State != pawl.StepFailed || st.Fault.Reason != fault.ReasonRunCanceled || d.Batches[0].Failed != 0 {
			t.Errorf("the batch is %s, %+v, %+v", st.State, st.Fault, d.Batches)
		}
	})
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Rate paces, and a worker that stops does not wait for the batch.
func TestBatchRateAndStop(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := s.batched(fault.KindRepeatable, func() []string { return numbered(100) }, pawl.Rate(2))
		p := s.spawn("b1", w)
		id := begin(s, w, "x")
		time.Sleep(10 * time.Second) // bubble
		p.stop()
		if n := s.count("read"); n < 10 || n > 22 {
			t.Errorf("%d items in ten seconds at two a second", n)
		}
		d := s.show(s.desk, id)
		if d.State != pawl.Queued || d.Batches[0].Done != s.count("read") {
			t.Errorf("the run is %s with %d items done, %d were begun", d.State, d.Batches[0].Done, s.count("read"))
		}
		s.spawn("b1", w)
		d = s.reach(id, pawl.Succeeded)
		s.want(map[string]int{"read": 100})
		if took := d.Ended.Sub(d.Created); took < 48*time.Second {
			t.Errorf("took %v, want 50 seconds", took)
		}
	})
}

// A changed item keeps its result and is counted; code that no longer comes by a step of an item that was begun is told of.
func TestBatchChangedItem(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		type row struct{ ID, Text string }
		text := "old"
		w := flow("batched", "v1", func(run *pawl.Run, _ string) (string, error) {
			rows := []row{{"a", text}, {"b", "same"}, {"z", "same"}}
			return told(pawl.Batch(run, "rows", rows, func(r row) string { return r.ID }, func(run *pawl.Run, r row) (string, error) {
				if r.ID == "z" {
					if err := pawl.Sleep(run, "nap", time.Minute); err != nil {
						return "", err
					}
				}
				return s.rep(run, "read", r.ID+r.Text)
			}))
		})
		s.spawn("b1", w)
		id := begin(s, w, "x")
		s.reach(id, pawl.Waiting)
		text = "new"
		result(t, s.reach(id, pawl.Succeeded), "3+0+0~1-0 a b z")
		s.want(map[string]int{"read": 3})
	})
}

// C40: an item with one Repeatable step is two rows, which share their transactions with those of other items.
func TestBatchCost(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		const n, limit = 320, 16
		w := flow("batched", "v1", func(run *pawl.Run, _ string) (string, error) {
			res, err := pawl.Batch(run, "rows", numbered(n), self, func(run *pawl.Run, id string) (string, error) {
				return s.rep(run, "read", id)
			}, pawl.AtOnce(limit))
			return fmt.Sprint(res.Done), err
		})
		p := s.spawn("b1", w)
		id := begin(s, w, "x")
		result(t, s.reach(id, pawl.Succeeded), fmt.Sprint(n))
		if commits := p.store.commits.Load(); commits > n/2 {
			t.Errorf("%d items cost %d commits, want a fraction", n, commits)
		} else {
			t.Logf("%d commits", commits)
		}
		for table, want := range map[string]int{"pawl_steps": n + 1, "pawl_items": n, "pawl_attempts": 0} {
			var rows int
			if err := s.store.DB().QueryRowContext(t.Context(), `SELECT count(*) FROM `+table).Scan(&rows); err != nil || rows != want {
				t.Errorf("%s has %d rows (%v), want %d", table, rows, err, want)
			}
		}
	})
}

// unheard is a store whose answers to commits get lost, one in so many.
type unheard struct {
	*mortal
	n atomic.Int64
}

func (l *unheard) lost(err error) error {
	if err == nil && l.n.Add(1)%3 == 0 {
		return pawl.ErrCommitUnknown
	}
	return err
}

func (l *unheard) Write(ctx context.Context, changes []pawl.Change) (int64, error) {
	now, err := l.mortal.Write(ctx, changes)
	return now, l.lost(err)
}

// What is found written after a lost answer is passed over: neither an item nor a step is written or done twice.
func TestBatchUnknownCommits(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		items := numbered(60)
		w := s.batched(fault.KindKeyed, func() []string { return items }, pawl.AtOnce(3))
		store := &unheard{mortal: &mortal{Store: s.bench.store}}
		o := s.opts
		o.Hooks = &hooks.Hooks{Boot: s.hooks.Boot}
		e, err := pawl.New(store, &o, w)
		if err != nil {
			t.Fatal(err)
		}
		defer s.work(e)()
		d := s.reach(begin(s, w, "x"), pawl.Succeeded)
		if want := "60+0+0~0-0 "; !strings.HasPrefix(string(d.Result), `"`+want) {
			t.Errorf("result %s, want %s…", d.Result, want)
		}
		for _, item := range items {
			s.want(map[string]int{"write " + item: 1})
		}
		if err := s.bench.store.View(t.Context(), func(ctx context.Context, tx pawl.Txn) error {
			run, err := tx.LockRun(ctx, d.ID)
			if err == nil && run.Epoch != 2 {
				t.Errorf("the run ended at epoch %d, want 2: its claim was not to be lost", run.Epoch)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
		if store.n.Load() < 20 || d.Lost > 0 || d.Releases > 0 {
			t.Errorf("%d commits, %d workers lost, %d releases", store.n.Load(), d.Lost, d.Releases)
		}
	})
}
