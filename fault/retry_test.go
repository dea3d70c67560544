package fault_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/pawlrun/pawl/fault"
)

const (
	retry     = fault.ActionRetry
	park      = fault.ActionPark
	fail      = fault.ActionFail
	uncertain = fault.ActionUncertain
	requeue   = fault.ActionRequeue
)

func known(c fault.Class, o fault.Outcome) *fault.Fault {
	r := map[fault.Class]fault.Reason{fault.OutcomeUnknown: fault.ReasonConnectionLost}[c]
	if r == "" {
		r = "some_reason"
	}
	return &fault.Fault{Class: c, Reason: r, Outcome: o}
}

// TestDecideEveryKindClassAndOutcome is the table of DESIGN 3 and 5.7 for a first attempt.
func TestDecideEveryKindClassAndOutcome(t *testing.T) {
	type row [4]fault.Action // Repeatable, Keyed, Tx, Once
	var (
		again = row{retry, retry, retry, retry}
		never = row{fail, fail, fail, fail}
		back  = row{requeue, requeue, requeue, requeue}
	)
	proven := map[fault.Class]row{
		fault.RateLimited: again, fault.Transient: again, fault.OutcomeUnknown: again,
		fault.AccessDenied: never, fault.InvalidRequest: never, fault.QuotaExhausted: never, fault.ContentPolicy: never,
		fault.Canceled: back,
	}
	for c, actions := range proven {
		possible := actions
		possible[3] = uncertain // Once, whatever the class
		for o, want := range map[fault.Outcome]row{notSent: actions, rejected: actions, maybe: possible} {
			for i, k := range []fault.Kind{fault.KindRepeatable, fault.KindKeyed, fault.KindTx, fault.KindOnce} {
				d := fault.Decide(known(c, o), k, fault.Budget{Attempt: 1, UnknownAttempts: 1, Jitter: 0.5})
				if d.Action != want[i] {
					t.Errorf("rule broken: a %v step, %v, %v: got %v (%s), want %v", k, c, o, d.Action, d.Why, want[i])
				}
				wantOutcome := o
				if k == fault.KindTx && o == maybe {
					wantOutcome = rejected // proven undone
				}
				if d.Fault.Outcome != wantOutcome || d.Fault.Class != c {
					t.Errorf("rule broken: a %v step, %v, %v journals %v, %v", k, c, o, d.Fault.Class, d.Fault.Outcome)
				}
			}
		}
	}
}

func TestDecide(t *testing.T) {
	rep, keyed, tx, once := fault.KindRepeatable, fault.KindKeyed, fault.KindTx, fault.KindOnce
	transient, lost := known(fault.Transient, rejected), known(fault.OutcomeUnknown, maybe)
	unrecognized := &fault.Fault{Class: fault.OutcomeUnknown, Reason: fault.ReasonUnrecognized, Outcome: maybe}
	odd := &fault.Fault{Class: fault.OutcomeUnknown, Reason: "too_many_turns", Outcome: maybe}
	boom := fault.FromPanic("boom")
	told := func(c fault.Class, d time.Duration) *fault.Fault {
		return &fault.Fault{Class: c, Reason: "x", Outcome: rejected, Delay: d}
	}
	limited := func(d time.Duration) *fault.Fault { return told(fault.RateLimited, d) }
	day := 24 * time.Hour
	rows := []struct {
		rule string
		f    *fault.Fault
		k    fault.Kind
		b    fault.Budget
		want fault.Action
		wait time.Duration
	}{
		{"first wait is half of 500 ms", transient, rep, fault.Budget{Attempt: 1, Jitter: 0.5}, retry, 250 * time.Millisecond},
		{"then doubled", transient, rep, fault.Budget{Attempt: 4, Jitter: 0.5}, retry, 2 * time.Second},
		{"a wait of 5 s keeps the slot", transient, rep, fault.Budget{Attempt: 1, Policy: fault.Policy{First: 10 * time.Second}, Jitter: 0.5}, retry, 5 * time.Second},
		{"a longer one gives it free", transient, rep, fault.Budget{Attempt: 5, Jitter: 0.75}, park, 6 * time.Second},
		{"at most 1 min", transient, rep, fault.Budget{Attempt: 9, Jitter: 0.5}, park, 30 * time.Second},
		{"no overflow", transient, rep, fault.Budget{Attempt: 99, Policy: fault.Policy{Attempts: 100, Max: math.MaxInt64, Total: math.MaxInt64}, Jitter: 0.5}, park, math.MaxInt64/2 + 1},
		{"First above Max", transient, rep, fault.Budget{Attempt: 1, Policy: fault.Policy{First: time.Hour, Max: time.Second}, Jitter: 0.5}, retry, 500 * time.Millisecond},
		{"jitter 0", transient, rep, fault.Budget{Attempt: 3}, retry, 0},
		{"jitter out of range", transient, rep, fault.Budget{Attempt: 1, Jitter: 7}, retry, 500 * time.Millisecond},
		{"jitter below range", transient, rep, fault.Budget{Attempt: 1, Jitter: -7}, retry, 0},
		{"jitter NaN", transient, rep, fault.Budget{Attempt: 1, Jitter: math.NaN()}, retry, 0},

		{"ten attempts", transient, rep, fault.Budget{Attempt: 9}, retry, 0},
		{"not eleven", transient, rep, fault.Budget{Attempt: 10}, fail, 0},
		{"Attempts: 1 never tries again", transient, rep, fault.Budget{Attempt: 1, Policy: fault.Policy{Attempts: 1}}, fail, 0},
		{"Attempts of an unchecked policy are clipped", transient, rep, fault.Budget{Attempt: 100, Policy: fault.Policy{Attempts: 1000}}, fail, 0},
		{"negative fields of an unchecked policy are defaults", transient, rep, fault.Budget{Attempt: 10, Policy: fault.Policy{Attempts: -1, First: -1, Max: -1, Total: -1}}, fail, 0},
		{"15 min in all", transient, rep, fault.Budget{Attempt: 2, Elapsed: 15 * time.Minute}, fail, 0},
		{"a wait beyond them", transient, rep, fault.Budget{Attempt: 9, Elapsed: 14*time.Minute + 40*time.Second, Jitter: 0.5}, fail, 0},
		{"a wait up to them", transient, rep, fault.Budget{Attempt: 9, Elapsed: 14*time.Minute + 30*time.Second, Jitter: 0.5}, park, 30 * time.Second},
		{"the run's deadline has passed", transient, rep, fault.Budget{Attempt: 1, Left: -1}, fail, 0},
		{"a wait beyond the run's deadline", transient, rep, fault.Budget{Attempt: 1, Left: 250 * time.Millisecond, Jitter: 0.5}, fail, 0},
		{"a wait before it", transient, rep, fault.Budget{Attempt: 1, Left: 251 * time.Millisecond, Jitter: 0.5}, retry, 250 * time.Millisecond},

		{"a terminal class on a later attempt", known(fault.InvalidRequest, rejected), rep, fault.Budget{Attempt: 4}, fail, 0},
		{"a terminal class with a told delay", told(fault.AccessDenied, time.Second), rep, fault.Budget{Attempt: 1}, fail, 0},
		{"outcome_unknown: second attempt", lost, rep, fault.Budget{Attempt: 2, UnknownAttempts: 2}, retry, 0},
		{"outcome_unknown: three attempts", lost, rep, fault.Budget{Attempt: 3, UnknownAttempts: 3}, fail, 0},
		{"outcome_unknown: three attempts, Keyed", lost, keyed, fault.Budget{Attempt: 3, UnknownAttempts: 3}, fail, 0},
		{"outcome_unknown: other attempts are not counted", lost, keyed, fault.Budget{Attempt: 8, UnknownAttempts: 2}, retry, 0},
		{"outcome_unknown: a larger policy does not raise it", lost, keyed, fault.Budget{Attempt: 3, UnknownAttempts: 3, Policy: fault.Policy{Attempts: 50}}, fail, 0},
		{"outcome_unknown: a smaller policy lowers it", lost, keyed, fault.Budget{Attempt: 2, UnknownAttempts: 2, Policy: fault.Policy{Attempts: 2}}, fail, 0},
		{"transient after three unknown ones", transient, rep, fault.Budget{Attempt: 4, UnknownAttempts: 3}, retry, 0},
		{"unrecognised", unrecognized, rep, fault.Budget{Attempt: 1, UnknownAttempts: 1}, retry, 0},
		{"unrecognised and Paid", unrecognized, rep, fault.Budget{Attempt: 1, UnknownAttempts: 1, Paid: true}, fail, 0},
		{"unrecognised and Paid, Keyed", unrecognized, keyed, fault.Budget{Attempt: 1, UnknownAttempts: 1, Paid: true}, fail, 0},
		{"a Reason of the step's own is as unrecognised", odd, rep, fault.Budget{Attempt: 1, UnknownAttempts: 1, Paid: true}, fail, 0},
		{"a panic is as unrecognised", boom, rep, fault.Budget{Attempt: 1, UnknownAttempts: 1, Paid: true}, fail, 0},
		{"a panic, not Paid", boom, keyed, fault.Budget{Attempt: 2, UnknownAttempts: 2}, retry, 0},
		{"recognised and Paid", lost, rep, fault.Budget{Attempt: 2, UnknownAttempts: 2, Paid: true}, retry, 0},
		{"a panic in Once", boom, once, fault.Budget{Attempt: 1}, uncertain, 0},
		{"a panic in Tx", boom, tx, fault.Budget{Attempt: 1}, fail, 0},
		{"unrecognised in Tx", unrecognized, tx, fault.Budget{Attempt: 1}, fail, 0},
		{"a lost connection in Tx is undone", lost, tx, fault.Budget{Attempt: 5, UnknownAttempts: 5}, retry, 0},
		{"a serialization failure in Tx", fault.From(fault.ReasonSerialization), tx, fault.Budget{Attempt: 9}, retry, 0},
		{"a constraint in Tx", fault.From(fault.ReasonConstraint), tx, fault.Budget{Attempt: 1}, fail, 0},
		{"Once, rate limited but maybe executed", known(fault.RateLimited, maybe), once, fault.Budget{Attempt: 1}, uncertain, 0},
		{"Once, the last attempt", known(fault.Transient, maybe), once, fault.Budget{Attempt: 10}, uncertain, 0},
		{"Once, proven, the last attempt", transient, once, fault.Budget{Attempt: 10}, fail, 0},
		{"Keyed with a forgotten key is Once", lost, keyed, fault.Budget{Attempt: 1, KeyExpired: true}, uncertain, 0},
		{"Keyed with a forgotten key, proven", transient, keyed, fault.Budget{Attempt: 1, KeyExpired: true}, retry, 0},
		{"Keyed with a forgotten key, canceled", known(fault.Canceled, maybe), keyed, fault.Budget{Attempt: 1, KeyExpired: true}, uncertain, 0},
		{"KeyExpired means nothing to others", lost, rep, fault.Budget{Attempt: 1, KeyExpired: true}, retry, 0},
		{"canceled counts nothing", known(fault.Canceled, maybe), rep, fault.Budget{Attempt: 10, Elapsed: day, Left: -1}, requeue, 0},
		{"no kind is Once", lost, 0, fault.Budget{Attempt: 1}, uncertain, 0},
		{"an unknown kind is Once", lost, 9, fault.Budget{Attempt: 1}, uncertain, 0},
		{"no fault is unrecognised", nil, rep, fault.Budget{Attempt: 1, Paid: true}, fail, 0},
		{"no fault, Once", nil, once, fault.Budget{Attempt: 1}, uncertain, 0},
		{"an empty fault is unrecognised", new(fault.Fault), once, fault.Budget{Attempt: 1}, uncertain, 0},

		{"a told delay is waited for", limited(time.Second), rep, fault.Budget{Attempt: 1}, retry, time.Second},
		{"jittered upwards only", limited(10 * time.Second), rep, fault.Budget{Attempt: 1, Jitter: 0.5}, park, 10500 * time.Millisecond},
		{"told delays of other classes too", told(fault.Transient, time.Minute), once, fault.Budget{Attempt: 1}, park, time.Minute},
		{"up to 24 h", limited(day), rep, fault.Budget{Attempt: 1}, park, day},
		{"not longer", limited(day + 1), rep, fault.Budget{Attempt: 1}, fail, 0},
		{"told delays are not our own time", limited(20 * time.Minute), rep, fault.Budget{Attempt: 1, Elapsed: 14 * time.Minute}, park, 20 * time.Minute},
		{"but our own time ends", limited(time.Minute), rep, fault.Budget{Attempt: 1, Elapsed: 15 * time.Minute}, fail, 0},
		{"and attempts count", limited(time.Minute), rep, fault.Budget{Attempt: 10}, fail, 0},
		{"a told delay beyond the run's deadline", limited(time.Hour), rep, fault.Budget{Attempt: 1, Left: time.Hour}, fail, 0},
		{"jitter does not push it beyond", limited(time.Hour), rep, fault.Budget{Attempt: 1, Left: time.Hour + 2*time.Second, Jitter: 0.9}, park, time.Hour + time.Second},
		{"quota with a told reset", told(fault.QuotaExhausted, time.Hour), rep, fault.Budget{Attempt: 1}, park, time.Hour},
		{"quota with a late reset", told(fault.QuotaExhausted, 25*time.Hour), rep, fault.Budget{Attempt: 1}, fail, 0},
		{"quota without", told(fault.QuotaExhausted, 0), rep, fault.Budget{Attempt: 1}, fail, 0},
		{"a veto", &fault.Fault{Class: fault.Transient, Reason: "x", Outcome: rejected, Final: true}, rep, fault.Budget{Attempt: 1}, fail, 0},
		{"a veto with a told delay", &fault.Fault{Class: fault.RateLimited, Reason: "x", Outcome: rejected, Delay: time.Second, Final: true}, rep, fault.Budget{Attempt: 1}, fail, 0},
		{"a veto over a quota's reset", &fault.Fault{Class: fault.QuotaExhausted, Reason: "x", Outcome: rejected, Delay: time.Hour, Final: true}, rep, fault.Budget{Attempt: 1}, fail, 0},
		{"a veto proves nothing", &fault.Fault{Class: fault.Transient, Reason: "x", Outcome: maybe, Final: true}, once, fault.Budget{Attempt: 1}, uncertain, 0},
		{"our own side ended it, whatever the veto", &fault.Fault{Class: fault.Canceled, Reason: "x", Outcome: maybe, Final: true}, rep, fault.Budget{Attempt: 1}, requeue, 0},
		{"invalid output: the second sample", fault.From(fault.ReasonModelOutput), rep, fault.Budget{Attempt: 1}, retry, 0},
		{"invalid output: the third", fault.From(fault.ReasonModelOutput), rep, fault.Budget{Attempt: 2}, retry, 0},
		{"invalid output: no fourth", fault.From(fault.ReasonModelOutput), rep, fault.Budget{Attempt: 3}, fail, 0},
		{"a wrong clock is forgiven once", fault.From(fault.ReasonClockSkew), once, fault.Budget{Attempt: 1}, retry, 0},
		{"not twice", fault.From(fault.ReasonClockSkew), once, fault.Budget{Attempt: 2}, fail, 0},
		{"a name that does not exist is a mistake", fault.From(fault.ReasonHostNotFound), rep, fault.Budget{Attempt: 1}, fail, 0},
		{"a negative delay is none", limited(-time.Hour), rep, fault.Budget{Attempt: 1, Jitter: 0.5}, retry, 250 * time.Millisecond},
	}
	for _, row := range rows {
		d := fault.Decide(row.f, row.k, row.b)
		if d.Action != row.want || d.Wait != row.wait || d.Why == "" {
			t.Errorf("rule broken: %s\n got %v, %v (%s)\nwant %v, %v", row.rule, d.Action, d.Wait, d.Why, row.want, row.wait)
		}
		if row.f != nil && d.Fault.Delay != max(row.f.Delay, 0) {
			t.Errorf("rule broken: %s: the told delay stays in the fault: got %v, want %v", row.rule, d.Fault.Delay, row.f.Delay)
		}
		if wantTold := row.wait > 0 && row.f.Delay > 0; d.Told != wantTold {
			t.Errorf("rule broken: %s: Told says what is not our own time: got %v, want %v", row.rule, d.Told, wantTold)
		}
	}
}

func TestDecideDoesNotChangeItsFault(t *testing.T) {
	f := &fault.Fault{Class: fault.Transient, Reason: "x", Outcome: maybe}
	before := *f
	fault.Decide(f, fault.KindTx, fault.Budget{Attempt: 1})
	if *f != before {
		t.Errorf("Decide is pure: got %+v, want %+v", *f, before)
	}
}

func TestDecideToldDelayIsNeverShortened(t *testing.T) {
	for _, told := range []time.Duration{time.Microsecond, time.Second, time.Hour, 24 * time.Hour} {
		for _, jitter := range []float64{0, 0.1, 0.999999} {
			for _, left := range []time.Duration{0, told + 1, told * 2, time.Hour * 1000} {
				d := fault.Decide(&fault.Fault{Class: fault.RateLimited, Outcome: rejected, Delay: told}, fault.KindOnce,
					fault.Budget{Attempt: 1, Jitter: jitter, Left: left})
				if d.Wait < told || d.Wait > told+told/10 || left > 0 && d.Wait >= left {
					t.Errorf("told %v, jitter %v, left %v: got %v (%v)", told, jitter, left, d.Wait, d.Action)
				}
			}
		}
	}
}

func TestPolicyValidate(t *testing.T) {
	rows := []struct {
		p  fault.Policy
		ok bool
	}{
		{fault.Policy{}, true},
		{fault.Policy{Attempts: 1, First: 1, Max: 1, Total: 1}, true},
		{fault.Policy{Attempts: 100}, true},
		{fault.Policy{Attempts: 101}, false},
		{fault.Policy{Attempts: -1}, false},
		{fault.Policy{First: -1}, false},
		{fault.Policy{Max: -1}, false},
		{fault.Policy{Total: -1}, false},
	}
	for _, row := range rows {
		if err := row.p.Validate(); (err == nil) != row.ok {
			t.Errorf("%+v: got %v, want ok %v", row.p, err, row.ok)
		}
	}
}

func TestActionString(t *testing.T) {
	if got := fmt.Sprint(retry, park, fail, uncertain, requeue); got != "retry park fail uncertain requeue" {
		t.Errorf("got %q", got)
	}
}
