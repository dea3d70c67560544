package fault

// Outcome says whether the effect of a failed attempt may have happened. The zero value is no outcome;
// [From] never leaves it. The constants are in order of certainty, so the larger of two is the worse.
type Outcome uint8

// The outcomes. They carry their type's name because the plain words are the wrappers a step returns:
// [NotSent], [Rejected], [MaybeExecuted].
const (
	// OutcomeNotSent: no byte of the request reached the far end, or its protocol guarantees that nothing
	// was handed on.
	OutcomeNotSent Outcome = iota + 1
	// OutcomeRejected: the far end answered, and states that it did not do it.
	OutcomeRejected
	// OutcomeMaybeExecuted: everything else. The default.
	OutcomeMaybeExecuted
)

// String returns the stored text, "not_sent" for [OutcomeNotSent]; "outcome(9)" outside the constants.
func (o Outcome) String() string {
	switch o {
	case OutcomeNotSent:
		return "not_sent"
	case OutcomeRejected:
		return "rejected"
	case OutcomeMaybeExecuted:
		return "maybe_executed"
	}
	return outside("outcome", o)
}

// MarshalText returns the text of [Outcome.String]. A value outside the constants, zero included, is an error.
func (o Outcome) MarshalText() ([]byte, error) {
	return enumText("outcome", o, OutcomeMaybeExecuted)
}

// UnmarshalText accepts exactly what [Outcome.MarshalText] writes; anything else is an error and leaves o alone.
func (o *Outcome) UnmarshalText(text []byte) error {
	return enumParse("outcome", text, OutcomeMaybeExecuted, o)
}

// Proven reports whether it is certain that nothing happened.
func (o Outcome) Proven() bool { return o == OutcomeNotSent || o == OutcomeRejected }

func (o Outcome) valid() bool { return o >= OutcomeNotSent && o <= OutcomeMaybeExecuted }
