package fault

import (
	"fmt"
	"strconv"
)

// Class says what a failure means for the queue: wait, try again, ask a person, or give up.
// The zero value is no class; [ClassOf] returns it for a nil error only.
type Class uint8

// The classes. The order is part of no contract; the texts of [Class.String] are stored.
const (
	// RateLimited: refused now because of a window that refills by itself. Wait as told, else back off.
	RateLimited Class = iota + 1
	// Transient: expected to pass with the same request. Back off and send it again.
	Transient
	// OutcomeUnknown: no trustworthy final answer, or an error nobody recognises. Few attempts where a
	// second execution is harmless or absorbed, a person where it is not.
	OutcomeUnknown
	// AccessDenied: identity, permission or account state refuses. Never tried again.
	AccessDenied
	// InvalidRequest: the request as built cannot be accepted, now or later. Never tried again.
	InvalidRequest
	// QuotaExhausted: money or a long budget is used up, or storage is full. Waited for only if a reset
	// is told.
	QuotaExhausted
	// ContentPolicy: input or output was refused by a safety or policy layer. Never tried again.
	ContentPolicy
	// Canceled: our own side ended the attempt. Nobody failed, and no attempt is counted.
	Canceled
)

// String returns the stored text, "rate_limited" for [RateLimited]. It never fails: a value outside the
// constants reads "class(9)".
func (c Class) String() string {
	switch c {
	case RateLimited:
		return "rate_limited"
	case Transient:
		return "transient"
	case OutcomeUnknown:
		return "outcome_unknown"
	case AccessDenied:
		return "access_denied"
	case InvalidRequest:
		return "invalid_request"
	case QuotaExhausted:
		return "quota_exhausted"
	case ContentPolicy:
		return "content_policy"
	case Canceled:
		return "canceled"
	}
	return outside("class", c)
}

// MarshalText returns the text of [Class.String]. A value outside the constants, zero included, is an error.
func (c Class) MarshalText() ([]byte, error) { return enumText("class", c, Canceled) }

// UnmarshalText accepts exactly what [Class.MarshalText] writes; anything else is an error and leaves c alone.
func (c *Class) UnmarshalText(text []byte) error { return enumParse("class", text, Canceled, c) }

// Terminal reports whether a fault of this class is never tried again, whatever the attempt and the
// budget. [QuotaExhausted] is not terminal here: a told reset is waited for.
func (c Class) Terminal() bool {
	return c == AccessDenied || c == InvalidRequest || c == ContentPolicy
}

// hopeless reports whether trying again soon is of no use.
func (c Class) hopeless() bool { return c.Terminal() || c == QuotaExhausted }

func (c Class) valid() bool { return c >= RateLimited && c <= Canceled }

// ClassOf returns the class that [From] finds in err. It never fails and never panics: 0 for nil,
// [OutcomeUnknown] for an error nobody recognises.
func ClassOf(err error) Class {
	if f := From(err); f != nil {
		return f.Class
	}
	return 0
}

// enum is what the stored enums of this package have in common: constants 1 to some last one, each with a text.
type enum interface {
	~uint8
	String() string
}

func outside[T ~uint8](what string, v T) string {
	return what + "(" + strconv.Itoa(int(v)) + ")"
}

func enumText[T enum](what string, v, last T) ([]byte, error) {
	if v < 1 || v > last {
		return nil, fmt.Errorf("marshal %s: no such value: %d", what, uint8(v))
	}
	return []byte(v.String()), nil
}

func enumParse[T enum](what string, text []byte, last T, to *T) error {
	for v := T(1); v <= last; v++ {
		if v.String() == string(text) {
			*to = v
			return nil
		}
	}
	return fmt.Errorf("unmarshal %s: no such value: %.40q", what, text)
}
