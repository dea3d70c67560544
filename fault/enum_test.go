package fault_test

import (
	"encoding"
	"fmt"
	"testing"

	"github.com/pawlrun/pawl/fault"
)

func TestEnumTextsRoundTrip(t *testing.T) {
	rows := []struct {
		text string
		from encoding.TextMarshaler
		to   encoding.TextUnmarshaler
	}{
		{"rate_limited", fault.RateLimited, new(fault.Class)},
		{"transient", fault.Transient, new(fault.Class)},
		{"outcome_unknown", fault.OutcomeUnknown, new(fault.Class)},
		{"access_denied", fault.AccessDenied, new(fault.Class)},
		{"invalid_request", fault.InvalidRequest, new(fault.Class)},
		{"quota_exhausted", fault.QuotaExhausted, new(fault.Class)},
		{"content_policy", fault.ContentPolicy, new(fault.Class)},
		{"canceled", fault.Canceled, new(fault.Class)},
		{"not_sent", fault.OutcomeNotSent, new(fault.Outcome)},
		{"rejected", fault.OutcomeRejected, new(fault.Outcome)},
		{"maybe_executed", fault.OutcomeMaybeExecuted, new(fault.Outcome)},
		{"repeatable", fault.KindRepeatable, new(fault.Kind)},
		{"keyed", fault.KindKeyed, new(fault.Kind)},
		{"tx", fault.KindTx, new(fault.Kind)},
		{"once", fault.KindOnce, new(fault.Kind)}, {"child", fault.KindChild, new(fault.Kind)},
	}
	for _, row := range rows {
		text, err := row.from.MarshalText()
		if err != nil || string(text) != row.text {
			t.Errorf("a stored text never changes: got %q, %v; want %q", text, err, row.text)
		}
		if s := fmt.Sprint(row.from); s != row.text {
			t.Errorf("String is the stored text: got %q, want %q", s, row.text)
		}
		if err := row.to.UnmarshalText([]byte(row.text)); err != nil {
			t.Errorf("what was written can be read: %q: %v", row.text, err)
		}
		if back, _ := row.to.(encoding.TextMarshaler).MarshalText(); string(back) != row.text {
			t.Errorf("round trip: got %q, want %q", back, row.text)
		}
	}
}

func TestEnumRefusesWhatItIsNot(t *testing.T) {
	for _, v := range []encoding.TextMarshaler{
		fault.Class(0), fault.Class(9), fault.Outcome(0), fault.Outcome(4), fault.Kind(0), fault.Kind(10),
	} {
		if text, err := v.MarshalText(); err == nil {
			t.Errorf("a value outside the constants is not written: got %q", text)
		}
	}
	c, o, k := fault.Transient, fault.OutcomeRejected, fault.KindTx
	for _, text := range []string{"", "Transient", "transient ", "class(2)", "ok", "unknown"} {
		for _, v := range []encoding.TextUnmarshaler{&c, &o, &k} {
			if err := v.UnmarshalText([]byte(text)); err == nil {
				t.Errorf("unknown text is an error: %T took %q", v, text)
			}
		}
	}
	if c != fault.Transient || o != fault.OutcomeRejected || k != fault.KindTx {
		t.Errorf("a refused text leaves the value alone: got %v, %v, %v", c, o, k)
	}
	if got := fmt.Sprint(fault.Class(9), fault.Outcome(9), fault.Kind(10), fault.Action(9)); got != "class(9) outcome(9) kind(10) action(9)" {
		t.Errorf("String never fails: got %q", got)
	}
}

func TestOutcomesAreInOrderOfCertainty(t *testing.T) {
	if !(fault.OutcomeNotSent < fault.OutcomeRejected && fault.OutcomeRejected < fault.OutcomeMaybeExecuted) {
		t.Error("the larger of two outcomes is the worse")
	}
}
