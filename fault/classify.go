package fault

import (
	"fmt"
	"strings"
)

// maxNodes bounds how much of an error tree is looked at, so that a chain that wraps itself, or a join of
// a million errors, costs no more than this. What lies beyond counts as unrecognised.
const maxNodes = 1000

// From classifies err: nil for nil, else a new *Fault whose Class, Reason and Outcome are set, whose Message is
// the cleaned text of err, and whose Err is err.
//
// A *Fault inside err is kept as it is, but for fields at zero. Otherwise the outermost error that is
// recognised decides; of several joined errors the first recognised gives class and reason, and the worst
// outcome of all wins. An error nobody recognises is outcome_unknown, maybe_executed, unrecognized.
//
// From never panics. If a method of err does, the result is outcome_unknown, maybe_executed, panic.
// It knows nothing of the engine's contexts: where a step's error enters the journal, use [FromContext].
func From(err error) (f *Fault) {
	if err == nil {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			f = FromPanic(v)
			f.Err = err
		}
	}()
	w := walk{left: maxNodes}
	found, _ := w.visit(err)
	f = &found
	if own, ok := err.(*Fault); ok && own != nil {
		f.Message, f.Err = own.Message, own.Err
		if f.Message == "" && own.Err != nil {
			f.Message = own.Err.Error()
		}
	} else {
		f.Message, f.Err = err.Error(), err
		if !strings.Contains(f.Message, w.said) {
			f.Message += ": " + w.said
		}
		f.Message = redact(openURLs(f.Message, err))
	}
	f.clean()
	return f
}

// FromPanic makes the fault of a step that panicked with v: outcome_unknown, maybe_executed, reason panic,
// whatever v is, because nobody knows how far the step had got. A nil v stands for runtime.Goexit. It never
// panics itself.
func FromPanic(v any) (f *Fault) {
	f = &Fault{Class: OutcomeUnknown, Reason: ReasonPanic, Outcome: OutcomeMaybeExecuted}
	defer func() {
		if recover() != nil { // fmt lets a panic of a panic's own text through
			f.Message = fmt.Sprintf("panic: a %T that cannot be printed", v)
		}
		f.clean()
	}()
	if v == nil {
		f.Message = "panic: the step's goroutine was ended by runtime.Goexit"
		return f
	}
	f.Err, _ = v.(error)
	f.Message = redact("panic: " + fmt.Sprint(v))
	return f
}

// walk goes down one error tree. It looks at nodes by itself instead of calling errors.As per type, because the
// outermost recognised node decides, not the first type asked for; and because errors.As does not end on a
// chain that wraps itself.
type walk struct {
	left      int    // nodes that may still be looked at
	roundTrip bool   // below a *url.Error: the error came out of an HTTP round trip, not of reading a body
	said      string // message of a response that an SDK's error has kept, perhaps not in its text
}

// visit returns what err says, and whether anybody recognised it.
func (w *walk) visit(err error) (Fault, bool) {
	for err != nil {
		if w.left--; w.left < 0 {
			break
		}
		if f, known, done := w.node(err); done {
			return f, known
		}
		switch x := err.(type) {
		case interface{ Unwrap() []error }:
			return w.join(x.Unwrap())
		case interface{ Unwrap() error }:
			err = x.Unwrap()
		default:
			err = nil
		}
	}
	return ReasonUnrecognized.fault(), false
}

// node looks at one error without going below it, except where it must in order to judge. done says that
// nothing further down is to be asked.
func (w *walk) node(err error) (f Fault, known, done bool) {
	if own, ok := match[*Fault](err); ok && own != nil {
		return w.complete(*own), true, true
	}
	if r, ok := match[Reason](err); ok {
		if r == "" {
			r = ReasonUnrecognized
		}
		_, _, known := r.natural()
		return r.fault(), known && r != ReasonUnrecognized, true
	}
	for _, look := range []func(error) (Fault, bool){
		fromSQLState, fromSQLite, fromDatabase, fromGRPC, fromSMTP, w.fromSDK, fromHTTP2, w.fromNetwork, w.fromText,
	} {
		if f, ok := look(err); ok {
			return f, f.Reason != ReasonUnrecognized, true
		}
	}
	return Fault{}, false, false
}

// join combines branches: class, reason and all else of the first that is recognised, but the worst outcome
// and the longest delay of all, and the veto of any.
func (w *walk) join(branches []error) (Fault, bool) {
	var all Fault // its zero class says that no branch was looked at yet
	known := false
	for _, err := range branches {
		if err == nil {
			continue
		}
		outer := w.roundTrip
		f, ok := w.visit(err)
		w.roundTrip = outer
		outcome, delay, final := max(all.Outcome, f.Outcome), max(all.Delay, f.Delay), all.Final || f.Final
		if all.Class == 0 || ok && !known || !known && all.Reason == ReasonUnrecognized {
			all = f
		}
		all.Outcome, all.Delay, all.Final, known = outcome, delay, final, known || ok
	}
	if all.Class == 0 {
		return ReasonUnrecognized.fault(), false
	}
	return all, known
}

// complete fills in what a Fault made by a step leaves at zero: from its Reason if that is one of the
// constants, else from its Err.
func (w *walk) complete(f Fault) Fault {
	if f.Class.valid() && f.Outcome.valid() && f.Reason != "" {
		return f
	}
	base := f.Reason.fault()
	if _, _, known := f.Reason.natural(); !known {
		base, _ = w.visit(f.Err)
	}
	if !f.Class.valid() {
		f.Class = base.Class
	}
	if !f.Outcome.valid() {
		f.Outcome = base.Outcome
	}
	if f.Reason == "" && base.Reason != ReasonUnrecognized {
		f.Reason = base.Reason
	}
	if f.Reason == "" {
		f.Reason = f.Class.reason()
	}
	if f.Delay == 0 {
		f.Delay = base.Delay
	}
	f.Final = f.Final || base.Final
	return f
}

// match reports whether this one node is a T, or says through its As method that it stands for one.
func match[T any](err error) (T, bool) {
	if t, ok := any(err).(T); ok {
		return t, true
	}
	var t T
	if x, ok := err.(interface{ As(any) bool }); ok && x.As(&t) {
		return t, true
	}
	return t, false
}
