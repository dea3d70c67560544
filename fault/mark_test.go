package fault_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"testing"
	"time"

	"github.com/pawlrun/pawl/fault"
)

func TestWrappers(t *testing.T) {
	after := func(err error) error { return fault.RetryAfter(err, time.Minute) }
	plain := errors.New("plain")
	rows := []struct {
		rule string
		mark func(error) error
		err  error
		want want
	}{
		{"NotSent is transient", fault.NotSent, plain, want{fault.Transient, "not_sent", notSent}},
		{"NotSent keeps a better class", fault.NotSent, fault.ReasonAuthentication, want{fault.AccessDenied, "authentication", notSent}},
		{"NotSent of a lost connection", fault.NotSent, io.EOF, want{fault.Transient, "connection_lost", notSent}},
		{"Rejected is transient", fault.Rejected, plain, want{fault.Transient, "rejected", rejected}},
		{"Rejected keeps a better class", fault.Rejected, fault.Invalid(plain), want{fault.InvalidRequest, "invalid_value", rejected}},
		{"RetryAfter is rate_limited", after, plain, want{fault.RateLimited, "throttled", rejected}},
		{"RetryAfter keeps a reason", after, fault.Reason("tokens"), want{fault.RateLimited, "tokens", rejected}},
		{"Invalid is invalid_request", fault.Invalid, plain, want{fault.InvalidRequest, "invalid_value", rejected}},
		{"Invalid keeps a reason", fault.Invalid, fault.Reason("no_such_tool"), want{fault.InvalidRequest, "no_such_tool", rejected}},
		{"Invalid keeps a wrapped reason", fault.Invalid, fmt.Errorf("x: %w", fault.Reason("no_such_tool")), want{fault.InvalidRequest, "no_such_tool", rejected}},
		{"Denied is access_denied", fault.Denied, plain, want{fault.AccessDenied, "authorization", rejected}},
		{"MaybeExecuted proves nothing", fault.MaybeExecuted, plain, want{fault.OutcomeUnknown, "unrecognized", maybe}},
		{"MaybeExecuted takes a proof back", fault.MaybeExecuted, fault.NotSent(plain), want{fault.Transient, "not_sent", maybe}},
		{"MaybeExecuted keeps a class", fault.MaybeExecuted, fault.Denied(plain), want{fault.AccessDenied, "authorization", maybe}},
	}
	for _, row := range rows {
		marked := row.mark(fmt.Errorf("call: %w", row.err))
		check(t, row.rule, fault.From(marked), row.want)
		check(t, row.rule+", wrapped again", fault.From(fmt.Errorf("step: %w", marked)), row.want)
		if !errors.Is(marked, row.err) {
			t.Errorf("%s: errors.Is finds what is inside", row.rule)
		}
		if err := row.mark(nil); err != nil {
			t.Errorf("%s: nil stays nil: got %v", row.rule, err)
		}
	}
	var as *stepError
	if !errors.As(fault.Invalid(&stepError{}), &as) {
		t.Error("errors.As finds what is inside")
	}
}

func TestRetryAfterDelay(t *testing.T) {
	for _, row := range []struct{ d, want time.Duration }{
		{time.Minute, time.Minute},
		{0, 0},
		{-time.Hour, 0},
		{math.MinInt64, 0},
		{1, time.Microsecond},
		{math.MaxInt64, math.MaxInt64 - 807},
	} {
		f := fault.From(fault.RetryAfter(io.EOF, row.d))
		if f.Delay != row.want || f.Class != fault.RateLimited {
			t.Errorf("RetryAfter %d: got %d, want %d", row.d, f.Delay, row.want)
		}
		if d := fault.Decide(f, fault.KindRepeatable, fault.Budget{Attempt: 1, Jitter: 0.999}); d.Wait < 0 || d.Action == fault.ActionUncertain {
			t.Errorf("RetryAfter %d never overflows: got %+v", row.d, d)
		}
	}
}
