package fault

// Kind says what happens if a step runs twice. The zero value is no kind; [Decide] takes it, and any
// value outside the constants, as [KindOnce]: an undeclared effect counts as unsafe.
type Kind uint8

// The kinds of step.
const (
	// KindRepeatable: running it twice is harmless.
	KindRepeatable Kind = iota + 1
	// KindKeyed: the far end absorbs a second execution through the operation key, while it knows the key.
	KindKeyed
	// KindTx: effect and journal row commit together, so a second execution is impossible.
	KindTx
	// KindOnce: a second execution would do harm.
	KindOnce
	// KindTimer waits for a time. This kind and those below have no effect that could happen twice.
	KindTimer
	// KindEvent waits for an event.
	KindEvent
	// KindGate waits for the decision of a person.
	KindGate
	// KindChild waits for the end of another run.
	KindChild
	// KindBatch is done when its items are.
	KindBatch
)

// Waits reports whether a step of kind k waits for something and has no effect of its own.
func (k Kind) Waits() bool { return k >= KindTimer && k <= KindBatch }

// String returns the stored text, "repeatable" for [KindRepeatable]; "kind(10)" outside the constants.
func (k Kind) String() string {
	switch k {
	case KindRepeatable:
		return "repeatable"
	case KindKeyed:
		return "keyed"
	case KindTx:
		return "tx"
	case KindOnce:
		return "once"
	case KindTimer:
		return "timer"
	case KindEvent:
		return "event"
	case KindGate:
		return "gate"
	case KindChild:
		return "child"
	case KindBatch:
		return "batch"
	}
	return outside("kind", k)
}

// MarshalText returns the text of [Kind.String]. A value outside the constants, zero included, is an error.
func (k Kind) MarshalText() ([]byte, error) { return enumText("kind", k, KindBatch) }

// UnmarshalText accepts exactly what [Kind.MarshalText] writes; anything else is an error and leaves k alone.
func (k *Kind) UnmarshalText(text []byte) error { return enumParse("kind", text, KindBatch, k) }
