package fault

import "time"

// The wrappers below are what a step returns when it knows more about an error than the error shows. Each
// returns a *[Fault] that wraps err, so errors.Is and errors.As still find what is inside, and nil for nil.
// Any other combination is a Fault literal: &fault.Fault{Class: …, Outcome: …, Err: err}.

// NotSent says that nothing left for the far end: class transient, unless err itself tells a better one.
func NotSent(err error) error { return mark(err, 0, OutcomeNotSent, ReasonNotSent) }

// Rejected says that the far end answered and did not do it: class transient, unless err itself tells a
// better one.
func Rejected(err error) error { return mark(err, 0, OutcomeRejected, ReasonRejected) }

// MaybeExecuted says that the effect may have happened, whatever err itself seems to prove.
func MaybeExecuted(err error) error { return mark(err, 0, OutcomeMaybeExecuted, ReasonUnrecognized) }

// RetryAfter says that the far end refused for now and asked to be called again after d: class
// rate_limited, outcome rejected. A d of zero or less is no delay: the step's own backoff decides. A d that is
// longer than the engine waits fails the step, with d in the fault.
func RetryAfter(err error, d time.Duration) error {
	f := mark(err, RateLimited, OutcomeRejected, ReasonThrottled)
	if f, ok := f.(*Fault); ok {
		f.Delay = duration(microseconds(max(d, 0))) // as it is stored
	}
	return f
}

// Invalid says that the request cannot be accepted, now or later: class invalid_request, outcome rejected.
// Invalid(Reason("no_such_tool")) keeps its reason.
func Invalid(err error) error {
	return mark(err, InvalidRequest, OutcomeRejected, ReasonInvalidValue)
}

// Denied says that identity, permission or account state refuses: class access_denied, outcome rejected.
func Denied(err error) error {
	return mark(err, AccessDenied, OutcomeRejected, ReasonAuthorization)
}

// mark classifies err and overrides what the caller knows better. Class 0 keeps the class of err, but that a
// proven outcome makes an unknown one transient. The reason is used where err has none of its own.
func mark(err error, c Class, o Outcome, r Reason) error {
	f := From(err)
	if f == nil {
		return nil
	}
	f.Outcome = o
	switch {
	case c != 0:
		f.Class = c
	case o.Proven() && (f.Class == OutcomeUnknown || f.Class == Canceled):
		f.Class = Transient
	}
	if f.Reason == ReasonUnrecognized {
		f.Reason = r
	}
	return f
}
