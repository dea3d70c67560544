package pawl_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

// Bad input of every sort gives a clear error that names the thing; nothing is lost, and the worker lives on.

// panics returns what fn panics with, as text.
func panics(t *testing.T, fn func()) (text string) {
	t.Helper()
	defer func() {
		p := recover()
		if p == nil {
			t.Error("no panic")
		}
		text = fmt.Sprint(p)
	}()
	fn()
	return ""
}

func TestDefinePanicsWithTheReason(t *testing.T) {
	type hidden struct{ a int }
	ok := func(*pawl.Run, string) (string, error) { return "", nil }
	for want, fn := range map[string]func(){
		`"v1" has version "refund"`: func() { pawl.Define("v1", "refund", ok) },
		`version ""`:                func() { pawl.Define("refund", "", ok) },
		"it is empty":               func() { pawl.Define("", "v1", ok) },
		"201 bytes":                 func() { pawl.Define(strings.Repeat("n", 201), "v1", ok) },
		"control character":         func() { pawl.Define("a\x00b", "v1", ok) },
		"not valid UTF-8":           func() { pawl.Define("a\xff", "v1", ok) },
		"KeyName":                   func() { pawl.Define("refund", "v1", ok, pawl.KeyName("")) },
		"has no function":           func() { pawl.Define[string, string]("refund", "v1", nil) },
		"chan":                      func() { pawl.Define("refund", "v1", func(*pawl.Run, chan int) (string, error) { return "", nil }) },
		"hidden":                    func() { pawl.Define("refund", "v1", func(*pawl.Run, string) (hidden, error) { return hidden{1}, nil }) },
	} {
		if got := panics(t, fn); !strings.Contains(got, want) {
			t.Errorf("panic %q does not mention %q", got, want)
		}
	}
}

func TestNewRefusesBadOptions(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("a", "v1", nil2)
		for want, o := range map[string]pawl.Options{"Slots": {Slots: -1}, "Lease": {Lease: time.Second}, "Poll": {Poll: -1}, "Drain": {Drain: -1},
			"MaxPayload": {MaxPayload: -1}, "Retention": {Retention: time.Minute}, "comma": {Build: "a,b"}, "Build": {Build: "a\nb"}, "Namespace": {Namespace: " x"}} {
			_, err := pawl.New(s.bench.store, &o, w)
			mentions(t, err, want)
		}
		_, err := pawl.New(nil, nil)
		mentions(t, err, "store")
		_, err = pawl.New(s.bench.store, nil, w, w)
		mentions(t, err, "twice", "a", "v1")
		mentions(t, s.desk.Work(t.Context()), "definitions")
	})
}

type order struct {
	ID   int64
	Any  any `json:",omitempty"`
	Note string
	F    float64
}

func TestStartRefusesBadInput(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := pawl.Define("order", "v1", func(_ *pawl.Run, o order) (order, error) { return o, nil })
		s.spawn("b1", w)
		start := func(o order, opts ...pawl.StartOption) error {
			_, err := w.Start(t.Context(), s.desk, o, opts...)
			return err
		}
		mentions(t, start(order{F: math.NaN()}), "order.F", "NaN")
		mentions(t, start(order{F: math.Inf(1)}), "order.F", "Inf")
		mentions(t, start(order{Any: map[string]any{"id": int64(1<<53 + 1)}}), "order.Any", "id")
		mentions(t, start(order{Any: func() {}}), "order.Any", "func")
		mentions(t, start(order{Note: "a\xff"}), "order.Note", "UTF-8")
		mentions(t, start(order{Note: strings.Repeat("x", 1<<20)}), "order", "limit", "1048576")
		for want, k := range map[string]pawl.Key{"empty": "", "10000 bytes": pawl.Key(strings.Repeat("k", 10_000)), "control": "a\nb", "UTF-8": "a\xff"} {
			mentions(t, start(order{}, k), "Key", want)
		}
		mentions(t, start(order{}, pawl.Queue("a\x00")), "Queue", "control")
		mentions(t, start(order{}, pawl.Again()), "Again", "Key")
		for json, want := range map[string]string{`{`: "order", `{"ID":"x"}`: "ID", `[]`: "order", ``: "order", `{"ID":1} 2`: "order", `{"ID":1e400}`: "ID"} {
			_, _, err := pawl.StartJSON(t.Context(), s.desk, w, []byte(json))
			mentions(t, err, want)
		}
		if runs, _, err := s.desk.Runs(t.Context(), pawl.RunQuery{}); err != nil || len(runs) != 0 {
			t.Errorf("%d runs, %v: what was refused must leave nothing", len(runs), err)
		}
		in := order{ID: math.MaxInt64, Note: "a\x00b\u2028 \U0001F600", Any: "x"}
		h, err := w.Start(t.Context(), s.desk, in, pawl.Key(strings.Repeat("é", 100)))
		if err != nil {
			t.Fatal(err)
		}
		if out, err := h.Result(t.Context()); err != nil || out != in {
			t.Errorf("got %+v, %v; want it exactly back: NUL, emoji, int64", out, err)
		}
	})
}

// C39, FR-083: the same key with another payload is a conflict that names the first run; key order does not matter.
func TestC39_SameKeyOtherPayload(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := pawl.Define("order", "v1", func(_ *pawl.Run, o map[string]any) (int, error) { return len(o), nil })
		first, isNew, err := pawl.StartJSON(t.Context(), s.desk, w, []byte(`{"a":1,"b":[2]}`), pawl.Key("k"))
		if err != nil || !isNew {
			t.Fatal(isNew, err)
		}
		again, isNew, err := pawl.StartJSON(t.Context(), s.desk, w, []byte(` {"b":[2], "a":1, "new": null}`), pawl.Key("k"))
		if err != nil || isNew || again != first {
			t.Errorf("reordered: got %s new=%v, %v; want the first run", again, isNew, err)
		}
		_, _, err = pawl.StartJSON(t.Context(), s.desk, w, []byte(`{"a":2,"b":[2]}`), pawl.Key("k"))
		mentions(t, err, string(first), `"k"`)
		if !errors.Is(err, pawl.ErrConflict) {
			t.Errorf("got %v, want ErrConflict", err)
		}
	})
}

func TestUnknownThings(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("a", "v1", nil2)
		for _, id := range []pawl.RunID{"", "nope", "00000000-0000-7000-8000-000000000000", pawl.RunID(strings.Repeat("x", 10_000)), "a\x00"} {
			_, err1 := s.desk.Show(t.Context(), id)
			_, err2 := s.desk.Cancel(t.Context(), id, ann)
			_, err3 := w.Handle(s.desk, id).Result(t.Context())
			_, err4 := s.desk.Plan(t.Context(), id, pawl.PlanOptions{Mode: pawl.PlanRetry})
			err5 := s.desk.Resolve(t.Context(), pawl.Answer{Entry: pawl.EntryID(id), Choice: pawl.AnswerResume, By: "ann"})
			for i, err := range []error{err1, err2, err3, err4, err5, s.desk.Resume(t.Context(), id, ann)} {
				if !errors.Is(err, pawl.ErrNotFound) {
					t.Errorf("id %.50q, call %d: got %v, want ErrNotFound", id, i+1, err)
				}
			}
		}
	})
}

type badJSON struct{ mode string }

func (b badJSON) MarshalJSON() ([]byte, error) {
	switch b.mode {
	case "panic":
		panic("marshal went wrong")
	case "error":
		return nil, errors.New("marshal refused")
	case "garbage":
		return []byte("{"), nil
	}
	return []byte(`"` + b.mode + `"`), nil
}

func (b *badJSON) UnmarshalJSON(data []byte) error {
	if string(data) == `"unreadable"` {
		panic("unmarshal went wrong")
	}
	return json.Unmarshal(data, &b.mode)
}

// FR-034: a result that cannot be stored after the effect was made: no retry, an error that can be caught.
func TestResultThatCannotBeStored(t *testing.T) {
	for name, v := range map[string]any{"NaN": math.NaN(), "func": func() {}, "panic": badJSON{"panic"}, "error": badJSON{"error"},
		"garbage": badJSON{"garbage"}, "big integer": int64(1<<53 + 1), "too large": strings.Repeat("x", 2<<20), "UTF-8": "\xff"} {
		for _, k := range kinds {
			t.Run(name+" "+k.String(), func(t *testing.T) {
				scene(t, func(t *testing.T, s *stage) {
					w := flow("bad", "v1", func(run *pawl.Run, in string) (string, error) {
						_, err := anyStep(run, k, "a", in, func() (map[string]any, error) {
							s.effect("a")
							return map[string]any{"field": v}, nil
						})
						if !errors.Is(err, fault.ReasonNotStorable) && !errors.Is(err, fault.ReasonTooLarge) {
							return "", err
						}
						mentions(t, err, "a", "result")
						return s.rep(run, "caught", in)
					})
					s.spawn("b1", w)
					id := begin(s, w, "x")
					d := s.reach(id, pawl.Succeeded)
					s.want(map[string]int{"a": 1, "caught": 1})
					if st := step(t, d, "a"); st.State != pawl.StepFailed || len(st.Attempts) != 1 {
						t.Errorf("step is %s with %d attempts, want failed with 1", st.State, len(st.Attempts))
					}
				})
			})
		}
	}
}

func anyStep[Out any](run *pawl.Run, k pawl.Kind, name, in string, fn func() (Out, error)) (Out, error) {
	switch k {
	case fault.KindRepeatable:
		return pawl.Repeatable(run, name, in, func(context.Context, string) (Out, error) { return fn() })
	case fault.KindKeyed:
		return pawl.Keyed(run, name, in, func(context.Context, pawl.OpKey, string) (Out, error) { return fn() })
	case fault.KindTx:
		return pawl.Tx(run, name, in, func(context.Context, *sql.Tx, string) (Out, error) { return fn() })
	default:
		return pawl.Once(run, name, in, func(context.Context, pawl.Intent, string) (Out, error) { return fn() })
	}
}

type badError struct{}

func (badError) Error() string { panic("Error went wrong") }

// FR-100: a panic, Goexit, or an error whose methods panic: like an error nobody recognises. Neighbours go on.
func TestPanicInAStep(t *testing.T) {
	tries := map[pawl.Kind]int{fault.KindRepeatable: 3, fault.KindKeyed: 3, fault.KindTx: 1, fault.KindOnce: 1}
	for name, fn := range map[string]func() (string, error){
		"panic":     func() (string, error) { panic("boom") },
		"panic nil": func() (string, error) { var m map[string]int; m["x"] = 1; return "", nil },
		"bad error": func() (string, error) { return "", badError{} },
		"rude":      func() (string, error) { return "", rudeError{} },
		"bad value": func() (string, error) { panic(badError{}) },
		"goexit":    func() (string, error) { runtime.Goexit(); return "", nil },
	} {
		for _, k := range kinds {
			t.Run(name+" "+k.String(), func(t *testing.T) {
				scene(t, func(t *testing.T, s *stage) {
					w := flow("bad", "v1", func(run *pawl.Run, in string) (string, error) {
						if in == "good" {
							return s.rep(run, "b", in)
						}
						return anyStep(run, k, "a", in, func() (string, error) { s.effect("a"); return fn() })
					})
					s.spawn("b1", w)
					id, good := begin(s, w, "x"), begin(s, w, "good")
					want := pawl.Failed
					if k == fault.KindOnce {
						want = pawl.Blocked
					}
					d := s.reach(id, want)
					if a := step(t, d, "a").Attempts; name != "goexit" && a[0].Reason != fault.ReasonPanic {
						t.Errorf("reason %q, want panic", a[0].Reason)
					}
					if want == pawl.Blocked {
						s.blocked(id, pawl.AskUncertain)
					}
					s.want(map[string]int{"a": tries[k]})
					result(t, s.reach(good, pawl.Succeeded), "b(good)")
				})
			})
		}
	}
}

// What a body does wrong fails its run with an error that names the thing, once, and ends no worker.
func TestBadBodies(t *testing.T) {
	ok := func(_ context.Context, in string) (string, error) { return in, nil }
	long := strings.Repeat("n", 10_000)
	for name, tc := range map[string]struct {
		body func(s *stage, run *pawl.Run) (string, error)
		want []string
	}{
		"panic":       {func(*stage, *pawl.Run) (string, error) { panic("boom") }, []string{"panic", "boom"}},
		"goexit":      {func(*stage, *pawl.Run) (string, error) { runtime.Goexit(); return "", nil }, []string{"Goexit"}},
		"bad error":   {func(*stage, *pawl.Run) (string, error) { return "", badError{} }, []string{"panic"}},
		"plain error": {func(*stage, *pawl.Run) (string, error) { return "", errors.New("out of stock") }, []string{"invalid_request", "out of stock"}},
		"empty name":  {func(_ *stage, r *pawl.Run) (string, error) { return pawl.Repeatable(r, "", "x", ok) }, []string{"step name", "empty"}},
		"long name":   {func(_ *stage, r *pawl.Run) (string, error) { return pawl.Repeatable(r, long, "x", ok) }, []string{"step name", "10000 bytes"}},
		"NUL name":    {func(_ *stage, r *pawl.Run) (string, error) { return pawl.Repeatable(r, "a\x00", "x", ok) }, []string{"step name", "control"}},
		"empty item":  {func(_ *stage, r *pawl.Run) (string, error) { return pawl.Repeatable(r.Item(""), "a", "x", ok) }, []string{"Item", "stable id"}},
		"long item":   {func(_ *stage, r *pawl.Run) (string, error) { return pawl.Repeatable(r.Item(long), "a", "x", ok) }, []string{"Item", "10000 bytes"}},
		"bad input":   {func(_ *stage, r *pawl.Run) (string, error) { return pawl.Repeatable(r, "a", "\xff", ok) }, []string{"a", "input", "UTF-8"}},
		"big input":   {func(s *stage, r *pawl.Run) (string, error) { return s.keyed(r, "a", strings.Repeat("x", 2<<20)) }, []string{"a", "input", "limit"}},
		"duplicate":   {func(s *stage, r *pawl.Run) (string, error) { _, _ = s.rep(r, "a", "1"); return s.rep(r, "a", "2") }, []string{"a", "twice", "Item"}},
		"nil func":    {func(_ *stage, r *pawl.Run) (string, error) { return pawl.Repeatable[string, string](r, "a", "x", nil) }, []string{"a", "panic"}},
		"retry 101": {func(s *stage, r *pawl.Run) (string, error) {
			return s.rep(r, "a", "x", pawl.Retry(pawl.RetryPolicy{Attempts: 101}))
		}, []string{"a", "attempts", "101"}},
		"timeout -1": {func(s *stage, r *pawl.Run) (string, error) { return s.rep(r, "a", "x", pawl.Timeout(-1)) }, []string{"a", "Timeout"}},
		"key TTL -1": {func(s *stage, r *pawl.Run) (string, error) { return s.keyed(r, "a", "x", pawl.KeyTTL(-1)) }, []string{"a", "KeyTTL"}},
		"settle -1":  {func(s *stage, r *pawl.Run) (string, error) { return s.mail(r, "a", "x", pawl.Settle(-1)) }, []string{"a", "Settle"}},
		"nil probe": {func(s *stage, r *pawl.Run) (string, error) {
			return s.mail(r, "a", "x", pawl.Probe[string, string](0, nil))
		}, []string{"a", "Probe"}},
		"other probe": {func(s *stage, r *pawl.Run) (string, error) { return s.mail(r, "a", "x", pawl.Probe(0, otherProbe)) }, []string{"a", "Probe", "int", "string"}},
		"nested": {func(s *stage, r *pawl.Run) (string, error) {
			return pawl.Repeatable(r, "a", "x", func(context.Context, string) (string, error) { return s.rep(r, "b", "x") })
		}, []string{"b", "nest"}},
		"result of NaN": {func(*stage, *pawl.Run) (string, error) { return "\xff", nil }, []string{"result", "UTF-8"}},
		"large result":  {func(*stage, *pawl.Run) (string, error) { return strings.Repeat("x", 2<<20), nil }, []string{"result", "limit"}},
	} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				w := flow("bad", "v1", func(run *pawl.Run, in string) (string, error) {
					if in == "good" {
						return s.rep(run, "good", in)
					}
					s.effect("body")
					return tc.body(s, run)
				})
				s.spawn("b1", w)
				id := begin(s, w, "x")
				d := s.reach(id, pawl.Failed)
				_, err := w.Handle(s.desk, id).Result(t.Context())
				mentions(t, err, append(tc.want, string(id))...)
				if err != nil && len(err.Error()) > 5000 {
					t.Errorf("the error has %d bytes", len(err.Error()))
				}
				if d.Fault == nil || d.Fault.Class != fault.InvalidRequest && name != "nil func" {
					t.Errorf("fault %+v, want invalid_request", d.Fault)
				}
				s.want(map[string]int{"body": 1, "b": 0})
				result(t, s.reach(begin(s, w, "good"), pawl.Succeeded), "good(good)")
			})
		})
	}
}

func otherProbe(context.Context, pawl.Intent, int) (int, pawl.Verdict, error) {
	return 0, pawl.CannotTell, nil
}

// API.md 4: a run that two goroutines use at once is caught; the first step is not disturbed.
func TestForeignGoroutine(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		var second error
		w := flow("two", "v1", func(run *pawl.Run, in string) (string, error) {
			var wg sync.WaitGroup
			wg.Go(func() {
				time.Sleep(time.Second) // bubble
				_, second = s.rep(run, "b", in)
			})
			v, err := s.rep(run, "a", in)
			wg.Wait()
			return v, err
		})
		s.on("a", func(context.Context, int) (string, error) { time.Sleep(2 * time.Second); return "A", nil }) // bubble
		s.spawn("b1", w)
		result(t, s.reach(begin(s, w, "x"), pawl.Succeeded), "A")
		mentions(t, second, "b", "Group")
		s.want(map[string]int{"a": 1, "b": 0})
	})
}

// DESIGN 5.12: a body that swallows its suspension and loops on refused calls is ended, and the run goes on later.
func TestBodyThatLoopsOnRefusedCalls(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("loop", "v1", func(run *pawl.Run, in string) (string, error) {
			for i := 0; ; i++ {
				if v, err := s.rep(run.Item(fmt.Sprint(i)), "a", in); err == nil {
					return v, nil
				}
			}
		})
		s.on("a", func(_ context.Context, n int) (string, error) {
			if n == 1 {
				return "", fault.RetryAfter(errors.New("busy"), time.Minute)
			}
			return "A", nil
		})
		s.spawn("b1", w)
		id := begin(s, w, "x")
		s.reach(id, pawl.Waiting)
		result(t, s.reach(id, pawl.Succeeded), "A")
	})
}

type rudeError struct{}

func (rudeError) Error() string { return "rude" }
func (rudeError) Is(error) bool { panic("Is went wrong") }
func (rudeError) As(any) bool   { panic("As went wrong") }
func (rudeError) Unwrap() error { panic("Unwrap went wrong") }

// FR-100: an error whose Is, As or Unwrap panics, returned by a body, fails its run and not the process.
func TestBodyErrorWhoseMethodsPanic(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("rude", "v1", func(*pawl.Run, string) (string, error) { return "", rudeError{} })
		s.spawn("b1", w)
		if d := s.reach(begin(s, w, "x"), pawl.Failed); d.Fault.Class != fault.InvalidRequest {
			t.Errorf("fault %+v, want invalid_request", d.Fault)
		}
	})
}

// FR-036, DESIGN 5.8: an input that no longer decodes blocks its run with `decode`; nine others are not affected.
func TestUndecodableInputBlocks(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := pawl.Define("read", "v1", func(_ *pawl.Run, in badJSON) (string, error) { return in.mode, nil })
		poison := begin(s, w, badJSON{"unreadable"})
		var rest []pawl.RunID
		for i := range 9 {
			rest = append(rest, begin(s, w, badJSON{fmt.Sprint(i)}))
		}
		s.spawn("b1", w)
		for _, id := range rest {
			s.reach(id, pawl.Succeeded)
		}
		en := s.blocked(poison, pawl.AskDecode)
		mentions(t, errors.New(en.Detail), "input", "unmarshal went wrong")
		s.resolve(en, pawl.AnswerCancel)
		s.reach(poison, pawl.Cancelled)
	})
}

// FR-036, DESIGN 5.8: a result that today's code does not read blocks the run, never fails the step; yesterday's goes on.
func TestUndecodableResultBlocks(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		body := func(read func(run *pawl.Run) error) func(*pawl.Run, string) (string, error) {
			return func(run *pawl.Run, in string) (string, error) {
				if err := read(run); err != nil {
					return "", err
				}
				return s.rep(run, "wait", in)
			}
		}
		text := body(func(run *pawl.Run) error { _, err := s.keyed(run, "a", "x"); return err })
		number := body(func(run *pawl.Run) error {
			_, err := pawl.Keyed(run, "a", "x", func(context.Context, pawl.OpKey, string) (int, error) { s.effect("a"); return 1, nil })
			return err
		})
		id := rebuilt(s, text, number)
		en := s.blocked(id, pawl.AskDecode)
		mentions(t, errors.New(en.Detail), `"a"`, "int")
		s.procs[len(s.procs)-1].stop()
		s.resolve(en, pawl.AnswerResume)
		s.spawn("b1", flow("deploy", "v1", text))
		result(t, s.reach(id, pawl.Succeeded), "W")
		s.want(map[string]int{"a": 1})
	})
}
