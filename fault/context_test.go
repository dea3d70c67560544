package fault_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pawlrun/pawl/fault"
)

// ended returns a context that was cancelled without a cause.
func ended(t *testing.T) context.Context { return endedBy(t, nil) }

func endedBy(t *testing.T, cause error) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	return ctx
}

// overdue returns a context below parent whose deadline has passed.
func overdue(t *testing.T, parent context.Context) context.Context {
	t.Helper()
	ctx, cancel := context.WithDeadline(parent, time.Now().Add(-time.Second))
	t.Cleanup(cancel)
	return ctx
}

func TestFromContext(t *testing.T) {
	live := t.Context()
	plain := errors.New("plain")
	dial := &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
	refused := &url.Error{Op: "Post", URL: "http://x", Err: &net.OpError{Op: "dial", Err: errors.New("refused")}}
	query := &pgconn.PgError{Code: "57014"}
	own := &fault.Fault{Class: fault.InvalidRequest, Reason: "no_such_model", Outcome: rejected}
	overload := &fault.Fault{Class: fault.Transient, Reason: "overloaded", Outcome: maybe}

	stopped, lost, canceled := endedBy(t, fault.ErrStopping), endedBy(t, fault.ErrLeaseLost), endedBy(t, fault.ErrRunCanceled)
	step := overdue(t, live)
	byCause := func(c context.Context) error {
		return &url.Error{Op: "Post", URL: "http://x", Err: context.Cause(c)} // as net/http returns it
	}
	rows := []struct {
		rule      string
		run, step context.Context
		err       error
		want      want
	}{
		{"run cancelled", canceled, canceled, context.Canceled, want{fault.Canceled, "run_canceled", maybe}},
		{"run cancelled without a cause", ended(t), ended(t), context.Canceled, want{fault.Canceled, "run_canceled", maybe}},
		{"run cancelled for a foreign cause", endedBy(t, fault.Invalid(plain)), live, plain, want{fault.Canceled, "run_canceled", maybe}},
		{"worker stops", stopped, stopped, context.Canceled, want{fault.Canceled, "worker_shutdown", maybe}},
		{"worker stops, net/http returns the cause", stopped, stopped, byCause(stopped), want{fault.Canceled, "worker_shutdown", maybe}},
		{"lease lost, net/http returns the cause", lost, lost, byCause(lost), want{fault.Canceled, "lease_lost", maybe}},
		{"sibling failed", endedBy(t, fault.ErrSiblingFailed), live, io.EOF, want{fault.Canceled, "sibling_failed", maybe}},
		{"a wrapped cause", endedBy(t, fmt.Errorf("stop: %w", fault.ErrStopping)), live, io.EOF, want{fault.Canceled, "worker_shutdown", maybe}},
		{"run deadline", overdue(t, live), overdue(t, live), context.DeadlineExceeded, want{fault.Canceled, "run_deadline", maybe}},
		{"the contexts are asked, not the error", canceled, canceled, plain, want{fault.Canceled, "run_canceled", maybe}},
		{"run ended: a dial error still proves not sent", stopped, stopped, refused, want{fault.Canceled, "worker_shutdown", notSent}},
		{"run ended: an answer still proves rejected", lost, lost, own, want{fault.Canceled, "lease_lost", rejected}},
		{"run ended: a wrapper still proves not sent", canceled, canceled, fault.NotSent(plain), want{fault.Canceled, "run_canceled", notSent}},
		{"run ended: 57014 is our own cancellation", canceled, canceled, query, want{fault.Canceled, "run_canceled", rejected}},
		{"run ended before the step's deadline", canceled, overdue(t, canceled), io.EOF, want{fault.Canceled, "run_canceled", maybe}},

		{"step deadline", live, step, context.DeadlineExceeded, want{fault.OutcomeUnknown, "step_deadline", maybe}},
		{"step deadline, another error", live, step, plain, want{fault.OutcomeUnknown, "step_deadline", maybe}},
		{"step deadline, connection lost by it", live, step, io.EOF, want{fault.OutcomeUnknown, "step_deadline", maybe}},
		{"step deadline while dialling", live, step, dial, want{fault.Transient, "step_deadline", notSent}},
		{"step deadline after a refused dial", live, step, refused, want{fault.Transient, "unreachable", notSent}},
		{"step deadline in a query", live, step, query, want{fault.Transient, "step_deadline", rejected}},
		{"step deadline, but the answer was final", live, step, own, want{fault.InvalidRequest, "no_such_model", rejected}},
		{"step deadline, but there was an answer", live, step, overload, want{fault.Transient, "overloaded", maybe}},
		{"step deadline and a panic", live, step, fault.FromPanic("x"), want{fault.OutcomeUnknown, "panic", maybe}},
		{"step ended without a deadline", live, ended(t), context.Canceled, want{fault.OutcomeUnknown, "call_canceled", maybe}},

		{"a deadline of theirs", live, live, context.DeadlineExceeded, want{fault.OutcomeUnknown, "client_timeout", maybe}},
		{"a cancellation of theirs", live, live, context.Canceled, want{fault.OutcomeUnknown, "call_canceled", maybe}},
		{"a dial timeout with every context alive", live, live, dial, want{fault.Transient, "unreachable", notSent}},
		{"57014 by statement_timeout", live, live, query, want{fault.Transient, "statement_timeout", rejected}},
		{"a claim to be canceled is not believed", live, live, fault.ErrStopping, want{fault.OutcomeUnknown, "worker_shutdown", maybe}},
		{"nor with an outcome", live, live, &fault.Fault{Class: fault.Canceled, Outcome: notSent}, want{fault.Transient, "run_canceled", notSent}},
		{"no contexts at all", nil, nil, own, want{fault.InvalidRequest, "no_such_model", rejected}},
		{"success is success", canceled, step, nil, want{}},
	}
	for _, row := range rows {
		check(t, row.rule, fault.FromContext(row.run, row.step, row.err), row.want)
	}
}

// TestContextCausesMeasured pins what Go does, because FromContext is built on it.
func TestContextCausesMeasured(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer server.Close()
	defer close(release)

	run, stop := context.WithCancelCause(t.Context())
	step, cancel := context.WithTimeout(run, time.Minute)
	defer cancel()
	request, _ := http.NewRequestWithContext(step, http.MethodPost, server.URL, nil)
	time.AfterFunc(20*time.Millisecond, func() { stop(fault.ErrLeaseLost) })
	_, err := server.Client().Do(request)
	if errors.Is(err, context.Canceled) || !errors.Is(err, fault.ErrLeaseLost) {
		t.Errorf("net/http returns the cause of a cancelled context: got %v", err)
	}
	check(t, "lease lost in a real call", fault.FromContext(run, step, err), want{fault.Canceled, "lease_lost", maybe})

	step, cancel = context.WithTimeoutCause(t.Context(), 20*time.Millisecond, errors.New("slow"))
	defer cancel()
	request, _ = http.NewRequestWithContext(step, http.MethodPost, server.URL, nil)
	_, err = server.Client().Do(request)
	if errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("net/http returns the cause of a deadline: got %v", err)
	}
	check(t, "step deadline in a real call", fault.FromContext(t.Context(), step, err), want{fault.OutcomeUnknown, "step_deadline", maybe})
}
