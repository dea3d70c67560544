package fault

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	maxMessage = 4 << 10 // bytes of Fault.Message
	maxWord    = 200     // bytes of Reason, Provider and RequestID

	maxMicroseconds = math.MaxInt64 / int64(time.Microsecond) // of a time.Duration
)

// Fault is what is known about a failed attempt. [From] makes one out of any error; a step that knows
// better returns its own, and what it leaves at zero is filled in from Err and Reason.
//
// As JSON it is everything but Err, with classes as text and the delay in microseconds.
type Fault struct {
	Class     Class
	Reason    Reason
	Outcome   Outcome
	Delay     time.Duration // how long the far end asked us to wait; 0 if it did not
	Provider  string        // who answered, "openai"; "" if unknown
	RequestID string        // the far end's id for the request; "" if unknown
	Final     bool          // the far end said that it is not to be sent again, whatever the class
	Status    int           // HTTP status or the protocol's own code; 0 if there was none
	Message   string        // text of the error: valid UTF-8 without NUL, at most 4 KiB
	Err       error         // the live error; never stored
}

// Error returns class, reason and message in one line. A nil fault reads "no fault".
func (f *Fault) Error() string {
	if f == nil {
		return "no fault"
	}
	label := f.Class.String()
	if f.Reason != "" {
		label += " (" + string(f.Reason) + ")"
	}
	switch {
	case f.Message == "" || f.Message == string(f.Reason):
		return label
	case strings.Contains(f.Message, label): // the text of an error that wraps a fault says it already
		return f.Message
	}
	return label + ": " + f.Message
}

// Unwrap returns the live error, nil for a fault that was read back from storage.
func (f *Fault) Unwrap() error {
	if f == nil {
		return nil
	}
	return f.Err
}

// Is reports whether target is the fault's [Reason], so that errors.Is(err, fault.Reason("x")) holds for a
// stored fault as well.
func (f *Fault) Is(target error) bool {
	r, ok := target.(Reason)
	return ok && f != nil && r == f.Reason
}

// stored is the JSON form. Fields are added here, never renamed or re-typed.
type stored struct {
	Class     Class   `json:"class,omitempty"`
	Reason    Reason  `json:"reason,omitempty"`
	Outcome   Outcome `json:"outcome,omitempty"`
	DelayUS   int64   `json:"delay_us,omitempty"`
	Provider  string  `json:"provider,omitempty"`
	RequestID string  `json:"request_id,omitempty"`
	Final     bool    `json:"final,omitempty"`
	Status    int     `json:"status,omitempty"`
	Message   string  `json:"message,omitempty"`
}

// MarshalJSON never fails: texts are cleaned and cut as in [From], and a class or outcome outside the
// constants becomes outcome_unknown or maybe_executed. A delay is rounded up to a whole microsecond.
// The receiver is a value so that it also serves a Fault that is a field of another struct.
func (f Fault) MarshalJSON() ([]byte, error) {
	f.clean()
	if f.Class != 0 && !f.Class.valid() {
		f.Class = OutcomeUnknown
	}
	if f.Outcome != 0 && !f.Outcome.valid() {
		f.Outcome = OutcomeMaybeExecuted
	}
	return json.Marshal(stored{
		Class: f.Class, Reason: f.Reason, Outcome: f.Outcome,
		DelayUS:  microseconds(f.Delay),
		Provider: f.Provider, RequestID: f.RequestID, Final: f.Final, Status: f.Status, Message: f.Message,
	})
}

// UnmarshalJSON reads what [Fault.MarshalJSON] wrote, and ignores fields it does not know. An unknown
// class or outcome is an error. It replaces all of f, so Err becomes nil.
func (f *Fault) UnmarshalJSON(data []byte) error {
	var s stored
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("unmarshal fault: %w", err)
	}
	*f = Fault{
		Class: s.Class, Reason: s.Reason, Outcome: s.Outcome,
		Delay:    duration(s.DelayUS),
		Provider: s.Provider, RequestID: s.RequestID, Final: s.Final, Status: s.Status, Message: s.Message,
	}
	f.clean()
	return nil
}

func microseconds(d time.Duration) int64 {
	us := d.Microseconds()
	if time.Duration(us)*time.Microsecond < d {
		us = min(us+1, maxMicroseconds)
	}
	return us
}

func duration(us int64) time.Duration {
	return time.Duration(min(max(us, 0), maxMicroseconds)) * time.Microsecond
}

// clean makes every text storable and drops a delay that lies in the past.
func (f *Fault) clean() {
	f.Message = cleanText(f.Message, maxMessage)
	f.Reason = Reason(cleanText(string(f.Reason), maxWord))
	f.Provider = cleanText(f.Provider, maxWord)
	f.RequestID = cleanText(f.RequestID, maxWord)
	f.Delay = max(f.Delay, 0)
}

// cleanText returns s as valid UTF-8 without NUL, cut at a rune boundary to at most limit bytes.
func cleanText(s string, limit int) string {
	if len(s) > 16*limit {
		s = s[:16*limit] // an error of many megabytes need not be scanned
	}
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
