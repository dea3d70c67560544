package fault

import (
	"fmt"
	"time"
)

// What a Policy's zero fields stand for.
const (
	defaultAttempts = 10
	defaultFirst    = 500 * time.Millisecond
	defaultMax      = time.Minute
	defaultTotal    = 15 * time.Minute

	maxAttempts     = 100
	unknownAttempts = 3               // of outcome_unknown, where a second execution does no harm
	longestTold     = 24 * time.Hour  // a told delay beyond it fails the step
	parkAfter       = 5 * time.Second // a wait beyond it gives the slot free
	resamples       = 2               // of a model whose output was invalid: it may never get it right
)

// Policy bounds the attempts of one step, by number and by time. A field at zero means its default.
type Policy struct {
	Attempts int           // attempts in all; default 10, at most 100
	First    time.Duration // upper bound of the first wait, doubled for each further one; default 500 ms
	Max      time.Duration // upper bound of any wait; default 1 min
	Total    time.Duration // from the first attempt to the last, told delays not counted; default 15 min
}

// Validate reports a field that is negative, or more than 100 attempts.
func (p Policy) Validate() error {
	if p.Attempts < 0 || p.Attempts > maxAttempts {
		return fmt.Errorf("retry policy: attempts must be 1 to %d (0 for %d), not %d", maxAttempts, defaultAttempts, p.Attempts)
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"first", p.First}, {"max", p.Max}, {"total", p.Total}} {
		if d.value < 0 {
			return fmt.Errorf("retry policy: %s must not be negative, but is %v", d.field, d.value)
		}
	}
	return nil
}

// orDefault returns p with every field usable, also where [Policy.Validate] was not asked.
func (p Policy) orDefault() Policy {
	if p.Attempts <= 0 {
		p.Attempts = defaultAttempts
	}
	p.Attempts = min(p.Attempts, maxAttempts)
	if p.First <= 0 {
		p.First = defaultFirst
	}
	if p.Max <= 0 {
		p.Max = defaultMax
	}
	if p.Total <= 0 {
		p.Total = defaultTotal
	}
	return p
}

// backoff returns a full-jitter exponential wait after attempt number n.
func (p Policy) backoff(n int, jitter float64) time.Duration {
	wait := min(p.First, p.Max)
	for ; n > 1 && wait < p.Max; n-- {
		if wait > p.Max/2 {
			wait = p.Max
		} else {
			wait *= 2
		}
	}
	return time.Duration(jitter * float64(wait))
}

// Budget is what [Decide] must know of a step besides the fault. It is measured by the caller, so that
// the decision is a pure function.
type Budget struct {
	Policy          Policy
	Attempt         int           // the attempt that just failed, from 1; lost workers and requeues are not counted
	UnknownAttempts int           // attempts that ended outcome_unknown, this one included
	Elapsed         time.Duration // since the step's first attempt, without told delays
	Left            time.Duration // until the run's deadline, negative once it passed; 0 if it has none
	Paid            bool          // a further attempt costs money
	KeyExpired      bool          // a Keyed step whose far end may have forgotten the key
	Jitter          float64       // uniformly random in [0, 1); outside of it, the nearest of 0 and 1
}

// Action is what to do with a step whose attempt failed. The zero value is no action.
type Action uint8

// The actions of a [Decision].
const (
	// ActionRetry: try again in this execution after Wait.
	ActionRetry Action = iota + 1
	// ActionPark: try again after Wait, which is long enough to give the worker's slot free until then.
	ActionPark
	// ActionFail: the step has failed with Fault.
	ActionFail
	// ActionUncertain: the effect may have happened and must not happen twice: probe, then ask a person.
	ActionUncertain
	// ActionRequeue: our own side ended the attempt. Nothing is counted; the step runs again if the run does.
	ActionRequeue
)

// String returns a word such as "retry"; "action(9)" outside the constants.
func (a Action) String() string {
	switch a {
	case ActionRetry:
		return "retry"
	case ActionPark:
		return "park"
	case ActionFail:
		return "fail"
	case ActionUncertain:
		return "uncertain"
	case ActionRequeue:
		return "requeue"
	}
	return outside("action", a)
}

// Decision is the answer of [Decide].
type Decision struct {
	Action Action
	Wait   time.Duration // for ActionRetry and ActionPark
	Told   bool          // Wait is a told delay: leave it out of Budget.Elapsed
	Why    string        // one clause for people: the rule, or the budget that ended
	Fault  Fault         // what to journal: the fault with a class and an outcome, for a Tx a proven one
}

// Decide says what follows from an attempt of a step of kind k that failed with f. It is a pure function: no
// clock, no randomness, and f is not changed. Whatever it is not told counts as unsafe: a nil f is an error
// nobody recognises, a kind outside the constants is [KindOnce].
//
// A fault that is final is not answered by a further attempt, whatever its class.
//
// A Tx fault is taken as proven undone. So the caller settles first: roll back, or after a lost answer to COMMIT
// look whether the row is there; if it is, the step has succeeded and there is nothing to decide.
func Decide(f *Fault, k Kind, b Budget) Decision {
	d := Decision{Fault: settled(f, k)}
	b.Policy = b.Policy.orDefault()
	if !(b.Jitter > 0) { // NaN too
		b.Jitter = 0
	}
	b.Jitter = min(b.Jitter, 1)
	once := k < KindRepeatable || k > KindTx || k == KindKeyed && b.KeyExpired
	switch {
	case once && d.Fault.Outcome == OutcomeMaybeExecuted:
		d.Action, d.Why = ActionUncertain, "the effect may have happened and must not happen twice"
		if k == KindKeyed {
			d.Why = "the effect may have happened, and the far end may have forgotten the key"
		}
	case d.Fault.Class == Canceled:
		d.Action, d.Why = ActionRequeue, "our own side ended the attempt: it does not count"
	default:
		if d.Why = spent(&d.Fault, k, b); d.Why != "" {
			d.Action = ActionFail
			return d
		}
		return waitFor(d, b)
	}
	return d
}

// settled returns f with a class and an outcome, as a step of kind k leaves it.
func settled(f *Fault, k Kind) Fault {
	if f == nil {
		return ReasonUnrecognized.fault()
	}
	s := *From(f)
	if k == KindTx && s.Outcome == OutcomeMaybeExecuted {
		s.Outcome = OutcomeRejected
	}
	return s
}

// hopeless returns why a fault of this sort is not answered by a further attempt, or "".
func hopeless(f *Fault, b Budget) string {
	switch {
	case f.Class.Terminal():
		return f.Class.String() + " is never tried again"
	case f.Final:
		return "the far end said that it is not to be sent again"
	case f.Class == QuotaExhausted && f.Delay <= 0:
		return "the quota is used up, and no reset is told"
	case f.Reason == ReasonModelOutput && b.Attempt > resamples:
		return fmt.Sprintf("the model was asked %d times", b.Attempt)
	case f.Reason == ReasonClockSkew && b.Attempt > 1:
		return "the clocks still differ" // a client corrects its offset by the first refusal
	}
	return ""
}

// spent returns why no further attempt may be made, or "".
func spent(f *Fault, k Kind, b Budget) string {
	unknown := f.Class == OutcomeUnknown
	recognized := !unknown || f.recognized()
	if why := hopeless(f, b); why != "" {
		return why
	}
	switch {
	case !recognized && k == KindTx:
		return "an error nobody recognises in a transaction is not tried again"
	case !recognized && b.Paid:
		return "an error nobody recognises is not paid for twice"
	case b.Attempt >= b.Policy.Attempts:
		return fmt.Sprintf("all %d attempts are used", b.Policy.Attempts)
	case unknown && k != KindTx && b.UnknownAttempts >= unknownAttempts:
		// A Tx is proven undone, so a lost connection is no more than transient there.
		return fmt.Sprintf("%d attempts ended with an unknown outcome", b.UnknownAttempts)
	case b.Elapsed >= b.Policy.Total:
		return fmt.Sprintf("the step's %v are over", b.Policy.Total)
	case b.Left < 0:
		return "the run's deadline has passed"
	}
	return ""
}

// waitFor finds out how long to wait, and whether there is time for it.
func waitFor(d Decision, b Budget) Decision {
	told := d.Fault.Delay
	switch {
	case told > longestTold:
		d.Action, d.Why = ActionFail, fmt.Sprintf("the told delay of %v is longer than %v", told, longestTold)
		return d
	case told > 0:
		d.Told, d.Wait = true, told+time.Duration(b.Jitter*float64(told)/10) // never earlier than told
		if b.Left > 0 && told < b.Left {
			d.Wait = min(d.Wait, told+(b.Left-told)/2) // nor so late that the jitter is what fails it
		}
		d.Why = "waits as told"
	default:
		d.Wait = b.Policy.backoff(b.Attempt, b.Jitter)
		d.Why = "backs off"
	}
	switch {
	case b.Left > 0 && d.Wait >= b.Left:
		d.Action, d.Why = ActionFail, fmt.Sprintf("a wait of %v goes beyond the run's deadline in %v", d.Wait, b.Left)
	case !d.Told && d.Wait > b.Policy.Total-b.Elapsed:
		d.Action, d.Why = ActionFail, fmt.Sprintf("a wait of %v goes beyond the step's %v", d.Wait, b.Policy.Total)
	case d.Wait > parkAfter:
		d.Action = ActionPark
	default:
		d.Action = ActionRetry
	}
	if d.Action == ActionFail {
		d.Wait, d.Told = 0, false
	}
	return d
}

// recognized reports whether somebody knew the error that f was made of.
func (f *Fault) recognized() bool {
	_, _, known := f.Reason.natural()
	return known && f.Reason != ReasonUnrecognized && f.Reason != ReasonPanic
}
