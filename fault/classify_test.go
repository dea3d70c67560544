package fault_test

import (
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pawlrun/pawl/fault"
)

func TestFromNil(t *testing.T) {
	if f := fault.From(nil); f != nil {
		t.Errorf("nil is no fault: got %v", f)
	}
	if c := fault.ClassOf(nil); c != 0 {
		t.Errorf("nil has no class: got %v", c)
	}
}

func TestFromUnrecognized(t *testing.T) {
	var typedNil *fault.Fault
	unknown := want{fault.OutcomeUnknown, fault.ReasonUnrecognized, maybe}
	rows := []struct {
		rule string
		err  error
	}{
		{"a plain error", errors.New("something")},
		{"text never classifies", errors.New("429 Too Many Requests: rate limit, connection refused, context canceled")},
		{"a wrapped plain error", fmt.Errorf("call: %w", errors.New("x"))},
		{"sql.ErrNoRows is the step's own business", sql.ErrNoRows},
		{"a file that is not there", &fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}},
		{"JSON that cannot be read", json.Unmarshal([]byte("{"), new(int))},
		{"a nil *Fault in an error", typedNil},
		{"the constant itself", fault.ReasonUnrecognized},
		{"an empty join", emptyJoin{}},
		{"a chain that wraps itself", &loop{}},
	}
	for _, row := range rows {
		f := fault.From(row.err)
		check(t, "nobody recognises "+row.rule, f, unknown)
		if fault.ClassOf(row.err) != fault.OutcomeUnknown {
			t.Errorf("ClassOf agrees with From: %s", row.rule)
		}
		if f.Message != row.err.Error() {
			t.Errorf("%s: the message is the error's text: got %q", row.rule, f.Message)
		}
		if row.err != error(typedNil) && !errors.Is(f, row.err) {
			t.Errorf("%s: the live error is kept", row.rule)
		}
	}
}

type emptyJoin struct{}

func (emptyJoin) Error() string   { return "empty" }
func (emptyJoin) Unwrap() []error { return []error{nil} }

type loop struct{}

func (l *loop) Error() string      { return "loop" }
func (l *loop) Unwrap() error      { return l }
func (l *loop) Is(err error) bool  { return err == l } // ends errors.Is, which follows the loop for ever
func (l *loop) Timeout() (is bool) { return false }

func TestFromReason(t *testing.T) {
	rows := []struct {
		reason fault.Reason
		want   want
	}{
		{fault.ReasonStepDeadline, want{fault.OutcomeUnknown, "step_deadline", maybe}},
		{fault.ReasonWorkerLost, want{fault.OutcomeUnknown, "worker_lost", maybe}},
		{fault.ReasonUnreachable, want{fault.Transient, "unreachable", notSent}},
		{fault.ReasonSerialization, want{fault.Transient, "serialization_failure", rejected}},
		{fault.ReasonDeadlock, want{fault.Transient, "deadlock", rejected}},
		{fault.ReasonThrottled, want{fault.RateLimited, "throttled", rejected}},
		{fault.ReasonAuthentication, want{fault.AccessDenied, "authentication", rejected}},
		{fault.ReasonHostNotFound, want{fault.InvalidRequest, "host_not_found", notSent}},
		{fault.ReasonDuplicateStep, want{fault.InvalidRequest, "duplicate_step", rejected}},
		{fault.ReasonNestedStep, want{fault.InvalidRequest, "nested_step", rejected}},
		{fault.ReasonForeignGoroutine, want{fault.InvalidRequest, "foreign_goroutine", rejected}},
		{fault.ReasonKeyConflict, want{fault.InvalidRequest, "key_conflict", rejected}},
		{fault.ReasonNotStorable, want{fault.InvalidRequest, "not_storable", maybe}},
		{fault.ReasonDecode, want{fault.InvalidRequest, "decode", maybe}},
		{fault.ReasonGaveUp, want{fault.InvalidRequest, "gave_up", maybe}},
		{fault.ReasonStorageFull, want{fault.QuotaExhausted, "storage_full", rejected}},
		{fault.ReasonMessageBlocked, want{fault.ContentPolicy, "message_blocked", rejected}},
		{fault.ErrRunCanceled, want{fault.Canceled, "run_canceled", maybe}},
		{"too_many_turns", want{fault.OutcomeUnknown, "too_many_turns", maybe}},
		{"", want{fault.OutcomeUnknown, "unrecognized", maybe}},
	}
	for _, row := range rows {
		f := fault.From(fmt.Errorf("body: %w", row.reason))
		check(t, fmt.Sprintf("a bare Reason %q stands for its class", row.reason), f, row.want)
	}
	f := fault.From(fmt.Errorf("body: %w", fault.Reason("too_many_turns")))
	f.Err = nil // as after a restart
	if !errors.Is(f, fault.Reason("too_many_turns")) || errors.Is(f, fault.Reason("other")) {
		t.Error("a Reason of the step's own survives a restart")
	}
}

// stepError stands for the engine's error, which holds a Fault by value.
type stepError struct{ fault.Fault }

func (e stepError) Error() string { return "step: " + e.Fault.Error() }
func (e stepError) Unwrap() error { return nil }
func (e stepError) As(target any) bool {
	if f, ok := target.(**fault.Fault); ok {
		*f = &e.Fault
		return true
	}
	return false
}

func TestFromKeepsAFault(t *testing.T) {
	own := &fault.Fault{
		Class: fault.ContentPolicy, Reason: "input_blocked", Outcome: notSent, Delay: time.Second,
		Provider: "openai", RequestID: "req_1", Status: 400, Err: io.EOF,
	}
	w := want{fault.ContentPolicy, "input_blocked", notSent}
	for rule, err := range map[string]error{
		"as it is":                       own,
		"wrapped":                        fmt.Errorf("call: %w", own),
		"behind an As method":            stepError{*own},
		"behind an As method, wrapped":   fmt.Errorf("call: %w", stepError{*own}),
		"around an error that is known":  &fault.Fault{Class: own.Class, Reason: own.Reason, Outcome: notSent, Err: io.EOF},
		"and not a type of its own kind": errors.Join(own),
	} {
		check(t, "a Fault is kept "+rule, fault.From(err), w)
	}
	f := fault.From(fmt.Errorf("call: %w", own))
	if f == own || f.Provider != "openai" || f.RequestID != "req_1" || f.Status != 400 || f.Delay != time.Second {
		t.Errorf("From gives a copy with all that was known: got %+v", f)
	}
	if f.Message != "call: content_policy (input_blocked)" || !errors.Is(f, io.EOF) {
		t.Errorf("the message is the outer text, and the live error is kept: got %q, %v", f.Message, f.Err)
	}
	if f := fault.From(own); f.Message != "EOF" || own.Message != "" {
		t.Errorf("an empty message is filled in from Err, in the copy only: got %q, %q", f.Message, own.Message)
	}
}

func TestFromFillsInAFault(t *testing.T) {
	rows := []struct {
		rule string
		f    fault.Fault
		want want
	}{
		{"nothing known", fault.Fault{}, want{fault.OutcomeUnknown, "unrecognized", maybe}},
		{"class alone proves no outcome", fault.Fault{Class: fault.InvalidRequest}, want{fault.InvalidRequest, "invalid_value", maybe}},
		{"reason alone", fault.Fault{Reason: fault.ReasonDeadlock}, want{fault.Transient, "deadlock", rejected}},
		{"reason alone, unknown", fault.Fault{Reason: "odd"}, want{fault.OutcomeUnknown, "odd", maybe}},
		{"from Err", fault.Fault{Err: fault.ReasonDeadlock}, want{fault.Transient, "deadlock", rejected}},
		{"reason unknown, rest from Err", fault.Fault{Reason: "odd", Err: fault.ReasonDeadlock}, want{fault.Transient, "odd", rejected}},
		{"class set, rest from Err", fault.Fault{Class: fault.RateLimited, Err: io.EOF}, want{fault.RateLimited, "connection_lost", maybe}},
		{"values outside the constants", fault.Fault{Class: 99, Outcome: 99}, want{fault.OutcomeUnknown, "unrecognized", maybe}},
		{"a class without a reason", fault.Fault{Class: fault.RateLimited}, want{fault.RateLimited, "throttled", maybe}},
	}
	for _, row := range rows {
		check(t, "what a step's Fault leaves at zero is filled in: "+row.rule, fault.From(&row.f), row.want)
	}
	if f := fault.From(&fault.Fault{Class: fault.RateLimited, Delay: -time.Hour}); f.Delay != 0 {
		t.Errorf("a delay in the past is none: got %v", f.Delay)
	}
}

func TestFromJoin(t *testing.T) {
	plain := errors.New("plain")
	rows := []struct {
		rule string
		err  error
		want want
	}{
		{"first recognised gives the class", errors.Join(fault.ReasonDeadlock, fault.ReasonAuthentication), want{fault.Transient, "deadlock", rejected}},
		{"worst outcome wins", errors.Join(fault.NotSent(plain), fault.Rejected(plain)), want{fault.Transient, "not_sent", rejected}},
		{"an unrecognised branch may have executed", errors.Join(plain, fault.Invalid(plain)), want{fault.InvalidRequest, "invalid_value", maybe}},
		{"in either order", errors.Join(fault.Invalid(plain), plain), want{fault.InvalidRequest, "invalid_value", maybe}},
		{"nested", errors.Join(plain, fmt.Errorf("a: %w", errors.Join(fault.ReasonDeadlock, io.EOF))), want{fault.Transient, "deadlock", maybe}},
		{"several %w", fmt.Errorf("%w: %w", fault.ReasonUnreachable, fault.ReasonDeadlock), want{fault.Transient, "unreachable", rejected}},
		{"none recognised, one with a word", errors.Join(plain, fault.Reason("odd"), plain), want{fault.OutcomeUnknown, "odd", maybe}},
		{"all plain", errors.Join(plain, plain), want{fault.OutcomeUnknown, "unrecognized", maybe}},
		{"a statement about the whole join stands", fault.NotSent(errors.Join(plain, io.EOF)), want{fault.Transient, "connection_lost", notSent}},
	}
	for _, row := range rows {
		check(t, "of joined errors, "+row.rule, fault.From(row.err), row.want)
	}
	f := fault.From(errors.Join(fault.RetryAfter(plain, time.Second), fault.RetryAfter(plain, time.Hour)))
	if f.Delay != time.Hour {
		t.Errorf("the longest delay of joined errors wins: got %v", f.Delay)
	}
	many := make([]error, 100_000)
	for i := range many {
		many[i] = fault.NotSent(plain)
	}
	check(t, "what is not looked at may have executed", fault.From(errors.Join(many...)), want{fault.Transient, "not_sent", maybe})
}

// bomb panics in the method it names.
type bomb struct {
	in string
	v  any
}

func (b *bomb) blow(in string) {
	if b.in == in {
		panic(b.v)
	}
}
func (b *bomb) Error() string     { b.blow("Error"); return "bomb" }
func (b *bomb) Is(error) bool     { b.blow("Is"); return false }
func (b *bomb) As(any) bool       { b.blow("As"); return false }
func (b *bomb) Unwrap() error     { b.blow("Unwrap"); return nil }
func (b *bomb) Timeout() bool     { b.blow("Timeout"); return false }
func (b *bomb) SQLState() string  { b.blow("SQLState"); return "" }
func (b *bomb) GRPCStatus() *bomb { b.blow("GRPCStatus"); return nil }

// evil cannot even be printed.
type evil struct{}

func (evil) Error() string { panic(evil{}) }

func TestFromNeverPanics(t *testing.T) {
	for _, in := range []string{"Error", "Is", "As", "Unwrap", "Timeout", "SQLState", "GRPCStatus"} {
		for _, v := range []any{"boom", errors.New("boom"), evil{}, 7} {
			err := &bomb{in, v}
			f := fault.From(&wrap{err})
			check(t, "a panic in "+in+" is a fault", f, want{fault.OutcomeUnknown, fault.ReasonPanic, maybe})
			f.Err = nil
			if !strings.HasPrefix(f.Message, "panic: ") {
				t.Errorf("the message says what panicked: got %q", f.Message)
			}
			for _, mark := range []func(error) error{fault.NotSent, fault.Invalid, fault.Denied, fault.Rejected} {
				if mark(err) == nil {
					t.Errorf("a wrapper does not lose an error whose %s panics", in)
				}
			}
			if f := fault.FromContext(ended(t), ended(t), &wrap{err}); f.Class != fault.Canceled {
				t.Errorf("FromContext never panics either: got %v", f)
			}
		}
	}
}

// wrap hides the text of what it wraps, so that a panic in Error is met by From and not by fmt.
type wrap struct{ err error }

func (w *wrap) Error() string {
	if b, ok := w.err.(*bomb); ok && b.in == "Error" {
		return b.Error()
	}
	return "wrap"
}
func (w *wrap) Unwrap() error { return w.err }

func TestFromPanic(t *testing.T) {
	w := want{fault.OutcomeUnknown, fault.ReasonPanic, maybe}
	for _, row := range []struct {
		v    any
		want string
	}{
		{"boom", "panic: boom"},
		{42, "panic: 42"},
		{fault.Reason("deadlock"), "panic: deadlock"},
		{evil{}, "panic: a fault_test.evil that cannot be printed"},
		{nil, "panic: the step's goroutine was ended by runtime.Goexit"},
		{"a\x00b\xff", "panic: ab\uFFFD"},
	} {
		f := fault.FromPanic(row.v)
		check(t, fmt.Sprintf("whatever was thrown (%T), nobody knows how far the step had got", row.v), f, w)
		if f.Message != row.want {
			t.Errorf("got %q, want %q", f.Message, row.want)
		}
		check(t, "From keeps a panic", fault.From(f), w)
	}
	defer func() {
		f := fault.FromPanic(recover())
		check(t, "a runtime error is a panic like any other", f, w)
		var re runtime.Error
		if !errors.As(f, &re) {
			t.Error("a panic's error is kept live")
		}
	}()
	var m map[string]int
	m["x"] = 1
}

func TestFromDatabaseSQL(t *testing.T) {
	for _, err := range []error{driver.ErrBadConn, sql.ErrConnDone} {
		check(t, "drivers return "+err.Error()+" also after a statement was sent", fault.From(fmt.Errorf("q: %w", err)),
			want{fault.OutcomeUnknown, fault.ReasonConnectionLost, maybe})
	}
}

// randomError builds an error tree out of the bytes of a fuzz input.
func randomError(r *rand.Rand, depth int) error {
	leaves := []error{
		nil, io.EOF, errors.New("x"), fault.Reason("odd"), fault.ReasonDeadlock, sql.ErrNoRows, &bomb{"Is", "boom"},
		&fault.Fault{Class: fault.Class(r.IntN(12)), Outcome: fault.Outcome(r.IntN(6)), Delay: time.Duration(r.Int64() - 1<<62)},
	}
	if depth == 0 || r.IntN(6) == 0 {
		return leaves[r.IntN(len(leaves))]
	}
	err := randomError(r, depth-1)
	switch r.IntN(10) {
	case 0:
		return fmt.Errorf("wrap: %w", err)
	case 1:
		return errors.Join(err, randomError(r, depth-1))
	case 2:
		return fmt.Errorf("%w, %w", err, randomError(r, depth-1))
	case 3:
		return fault.NotSent(err)
	case 4:
		return fault.RetryAfter(err, time.Duration(r.Int64()))
	case 5:
		return fault.Invalid(err)
	case 6:
		return &fault.Fault{Reason: "own", Err: err}
	case 7:
		return &wrap{err}
	case 8:
		return fault.MaybeExecuted(err)
	}
	return stepError{fault.Fault{Class: fault.Transient, Err: err}}
}

func FuzzFrom(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed, seed*7, "text")
	}
	f.Fuzz(func(t *testing.T, a, b uint64, text string) {
		r := rand.New(rand.NewPCG(a, b))
		err := randomError(r, 8)
		if err == nil {
			err = errors.New(text)
		}
		first := fault.From(err)
		if _, err := first.Class.MarshalText(); err != nil {
			t.Fatalf("From always sets a class: %v", err)
		}
		if _, err := first.Outcome.MarshalText(); err != nil || first.Reason == "" || first.Delay < 0 {
			t.Fatalf("From always sets outcome and reason, and no delay in the past: %+v", first)
		}
		if again := fault.From(first); got(again) != got(first) {
			t.Fatalf("From of a fault changes nothing: %v, then %v", got(first), got(again))
		}
		if wrapped := fault.From(fmt.Errorf("%s: %w", "outer", first)); got(wrapped) != got(first) {
			t.Fatalf("wrapping changes nothing: %v, then %v", got(first), got(wrapped))
		}
		data, err := json.Marshal(first)
		if err != nil {
			t.Fatal(err)
		}
		var back fault.Fault
		if err := json.Unmarshal(data, &back); err != nil || got(&back) != got(first) {
			t.Fatalf("storing changes nothing: %v, then %v, %v", got(first), got(&back), err)
		}
		for k := fault.Kind(0); k < 6; k++ {
			d := fault.Decide(first, k, fault.Budget{Attempt: 1, UnknownAttempts: 1})
			if d.Action == 0 || d.Wait < 0 || d.Why == "" {
				t.Fatalf("Decide always decides: %v: %+v", k, d)
			}
		}
	})
}
