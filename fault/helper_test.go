package fault_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/pawlrun/pawl/fault"
)

// want is what a row of a table expects of a fault.
type want struct {
	class   fault.Class
	reason  fault.Reason
	outcome fault.Outcome
}

func (w want) String() string { return fmt.Sprintf("%v (%s), %v", w.class, w.reason, w.outcome) }

func got(f *fault.Fault) want {
	if f == nil {
		return want{}
	}
	return want{f.Class, f.Reason, f.Outcome}
}

func check(t *testing.T, rule string, f *fault.Fault, w want) {
	t.Helper()
	if g := got(f); g != w {
		t.Errorf("rule broken: %s\n got %v\nwant %v", rule, g, w)
	}
}

// Shorthands that make the tables readable.
const (
	notSent  = fault.OutcomeNotSent
	rejected = fault.OutcomeRejected
	maybe    = fault.OutcomeMaybeExecuted
)

// untilPassed is a context whose deadline passes when the test says so.
type untilPassed struct {
	context.Context
	passed chan struct{}
}

func (c untilPassed) Done() <-chan struct{} { return c.passed }

func (c untilPassed) Err() error {
	select {
	case <-c.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}
