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
)

// String returns the stored text, "repeatable" for [KindRepeatable]; "kind(9)" outside the constants.
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
	}
	return outside("kind", k)
}

// MarshalText returns the text of [Kind.String]. A value outside the constants, zero included, is an error.
func (k Kind) MarshalText() ([]byte, error) { return enumText("kind", k, KindOnce) }

// UnmarshalText accepts exactly what [Kind.MarshalText] writes; anything else is an error and leaves k alone.
func (k *Kind) UnmarshalText(text []byte) error { return enumParse("kind", text, KindOnce, k) }
