package fault

import (
	"fmt"
	"strings"
	"time"
)

// Evidence is what an attempt sent, in a few words for the person who must say whether it happened. It holds nothing
// secret, as [Send].
type Evidence struct {
	Key      string `json:"key,omitempty"` // operation key
	Requests int    `json:"requests"`      // that were begun, not counting what net/http sent again
	Replays  int    `json:"replays,omitempty"`
	Refused  int    `json:"refused,omitempty"` // that our own side did not let out
	Send     *Send  `json:"send,omitempty"`    // the one that matters: the first write with the worst outcome; nil if there was no request
}

// Evidence returns what the attempt has sent so far.
func (a *Attempt) Evidence() Evidence {
	if a == nil {
		return Evidence{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.early
	var matters *send
	for _, s := range a.sends {
		n.count(s)
		switch {
		case matters == nil,
			s.write && !matters.write,
			s.write == matters.write && s.outcome() > matters.outcome():
			matters = s
		}
	}
	e := Evidence{Key: a.Key, Requests: n.requests, Replays: n.replays, Refused: n.refused}
	if matters != nil {
		v := matters.snapshot()
		e.Send = &v
	}
	return e
}

// String returns one line, such as
//
//	1 request: POST mail.example/send at 2026-03-01T10:00:00Z, wrote all of it (812 bytes of body), no answer came; key q3…
func (e Evidence) String() string {
	if e.Send == nil {
		return "no request was seen"
	}
	var b strings.Builder
	s := e.Send
	b.WriteString(plural(e.Requests, "request"))
	if e.Replays > 0 {
		fmt.Fprintf(&b, " (and sent again %s by net/http)", plural(e.Replays, "time"))
	}
	if e.Refused > 0 {
		fmt.Fprintf(&b, " (and %d held back)", e.Refused)
	}
	fmt.Fprintf(&b, ": %s %s%s at %s, %s", s.Method, s.Host, s.Path, s.Began.UTC().Format(time.RFC3339), s.story())
	if s.RequestID != "" {
		b.WriteString("; request id " + s.RequestID)
	}
	if e.Key != "" {
		b.WriteString("; key " + e.Key)
	}
	return b.String()
}

// story tells how far the request came.
func (s *Send) story() string {
	body := fmt.Sprintf(" (%s of body)", plural(int(s.BodyBytes), "byte"))
	switch s.Phase {
	case PhaseHeaders:
		return "wrote a part of it" + body + ", no answer came"
	case PhaseRequest:
		return "wrote all of it" + body + ", no answer came"
	case PhaseFirstByte:
		return "wrote it" + body + ", an answer began"
	case PhaseAnswered, PhaseDone:
		return fmt.Sprintf("answered %d%s", s.Status, body)
	case PhaseNothing:
	}
	switch {
	case s.Refused != "":
		return "held back (" + string(s.Refused) + ")"
	case s.Outcome == OutcomeNotSent:
		return "nothing was written"
	}
	return "it is not known whether anything was written"
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}
