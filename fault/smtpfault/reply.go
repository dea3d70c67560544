package smtpfault

import (
	"errors"
	"fmt"
	"net/textproto"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/pawlrun/pawl/fault"
)

// ReasonMailDeferred is a reason of [Server.Send] that package fault does not have: the server puts the mail off by
// policy, as greylisting and rate limits do. Class transient, outcome rejected.
const ReasonMailDeferred fault.Reason = "mail_deferred"

// reply is a server's answer that is not the one hoped for.
type reply struct {
	Code   int
	Status string // enhanced status, "5.1.1"; "" if there was none
	Text   string // without the status; lines are separated by \n
}

// readReply finds a server's answer in err.
func readReply(err error) (reply, bool) {
	e, ok := errors.AsType[*textproto.Error](err)
	if !ok {
		return reply{}, false
	}
	r := reply{Code: e.Code, Text: e.Msg}
	if word, _, _ := strings.Cut(e.Msg, " "); isStatus(word) && int(word[0]-'0') == e.Code/100 {
		r.Status = word
		lines := strings.Split(e.Msg, "\n")
		for i, l := range lines { // each has it again, RFC 2034
			lines[i] = strings.TrimSpace(strings.TrimPrefix(l, word))
		}
		r.Text = strings.Join(lines, "\n")
	}
	return r, true
}

// isStatus reports whether s has the form of an enhanced status: three numbers of at most three digits.
func isStatus(s string) bool {
	parts := strings.Split(s, ".")
	if len(parts) != 3 || len(parts[0]) != 1 {
		return false
	}
	for _, p := range parts {
		if len(p) == 0 || len(p) > 3 || strings.Trim(p, "0123456789") != "" {
			return false
		}
	}
	return true
}

// isGarbled reports whether err is that an answer could not be read as one.
func isGarbled(err error) bool {
	_, is := errors.AsType[textproto.ProtocolError](err)
	return is
}

// Error and the two methods after it are how package fault reads a reply.
func (r reply) Error() string { return fmt.Sprintf("%d %s %s", r.Code, r.Status, r.Text) }

// ErrorCode returns the reply code.
func (r reply) ErrorCode() int { return r.Code }

// EnhancedStatusCode returns the enhanced status.
func (r reply) EnhancedStatusCode() string { return r.Status }

func (r reply) refuses() bool   { return r.Code >= 400 && r.Code <= 599 }
func (r reply) permanent() bool { return r.Code >= 500 }

// meaning says what a refusal in phase at, after so many accepted recipients, means for the queue.
func (r reply) meaning(at phase, accepted int) (fault.Class, fault.Reason, time.Duration) {
	if r.permanent() {
		c, reason := r.refusal(at)
		return c, reason, 0
	}
	c, reason := r.deferral(at, accepted)
	if c == fault.InvalidRequest {
		return c, reason, 0
	}
	return c, reason, toldDelay(r.Text)
}

// refusal judges a reply of 5yz.
func (r reply) refusal(at phase) (fault.Class, fault.Reason) {
	if r.Code/10 == 53 || at == atLogin {
		return fault.AccessDenied, fault.ReasonAuthentication
	}
	if c, reason, ok := r.byStatus(at); ok {
		return c, reason
	}
	switch {
	case at <= atHello || r.Code == 550 && at == atSender:
		return fault.AccessDenied, fault.ReasonAuthorization
	case r.Code == 550 && at != atRecipient:
		return fault.ContentPolicy, fault.ReasonMessageBlocked
	case r.Code == 552 && at == atRecipient: // no message was seen that could be too large
		return fault.QuotaExhausted, fault.ReasonStorageFull
	}
	f := fault.From(r)
	return f.Class, f.Reason
}

// byStatus judges a permanent refusal by its enhanced status, where that says enough.
func (r reply) byStatus(at phase) (fault.Class, fault.Reason, bool) {
	switch r.Status {
	case "5.7.8", "5.7.9", "5.7.13":
		return fault.AccessDenied, fault.ReasonAuthentication, true
	case "5.7.2", "5.7.60": // posting to a list; sending in another's name
		return fault.AccessDenied, fault.ReasonAuthorization, true
	case "5.2.2", "5.3.1":
		return fault.QuotaExhausted, fault.ReasonStorageFull, true
	case "5.2.3", "5.3.4":
		return fault.InvalidRequest, fault.ReasonRequestTooLarge, true
	case "5.5.3":
		return fault.InvalidRequest, fault.ReasonTooManyRecipients, true
	case "5.1.7", "5.1.8": // of the sender
		return fault.InvalidRequest, fault.ReasonInvalidValue, true
	case "5.2.1":
		return fault.InvalidRequest, fault.ReasonNoSuchMailbox, true
	}
	switch {
	case strings.HasPrefix(r.Status, "5.1."):
		return fault.InvalidRequest, fault.ReasonNoSuchMailbox, true
	case strings.HasPrefix(r.Status, "5.7.") && at < atRecipient: // nothing but us can be meant
		return fault.AccessDenied, fault.ReasonAuthorization, true
	case strings.HasPrefix(r.Status, "5.7."):
		return fault.ContentPolicy, fault.ReasonMessageBlocked, true
	}
	return 0, "", false
}

// deferral judges a reply of 4yz.
func (r reply) deferral(at phase, accepted int) (fault.Class, fault.Reason) {
	switch {
	case r.Status == "4.2.2":
		return fault.Transient, fault.ReasonMailboxBusy
	case strings.HasPrefix(r.Status, "4.7.") && at != atStartTLS && at != atLogin:
		return fault.Transient, ReasonMailDeferred
	case r.Status == "4.5.3" && accepted > 0: // all or none of so many will be refused again
		return fault.InvalidRequest, fault.ReasonTooManyRecipients
	case r.Status == "4.3.1" || r.Code == 452 && at != atRecipient:
		return fault.Transient, fault.ReasonOverloaded
	case r.Code == 450 && at != atRecipient, r.Code == 454 && at != atLogin:
		return fault.Transient, fault.ReasonMailRefused
	}
	f := fault.From(r)
	return f.Class, f.Reason
}

// toldDelay reads how long a 4yz text asks us to wait, "in 300 seconds", "for 5 minutes", "in 00:05:00"; 0 if it does not
// or if it is more than a day. There is no other place for it in SMTP. It is a hint: what is tried again too early is
// put off again.
func toldDelay(text string) time.Duration {
	words := strings.FieldsFunc(strings.ToLower(text[:min(len(text), 1000)]), func(r rune) bool {
		return unicode.IsSpace(r) || strings.ContainsRune("()[],;!", r)
	})
	for i, w := range words {
		if i == 0 || words[i-1] != "in" && words[i-1] != "for" && words[i-1] != "after" {
			continue
		}
		unit := ""
		if i+1 < len(words) {
			unit = words[i+1]
		}
		if d := span(strings.TrimRight(w, "."), strings.TrimRight(unit, ".")); d > 0 && d <= 24*time.Hour {
			return d
		}
	}
	return 0
}

// span reads "300" with the unit "seconds", "300s" and "00:05:00".
func span(number, unit string) time.Duration {
	if h, err := time.Parse("15:04:05", number); err == nil {
		return h.Sub(h.Truncate(24 * time.Hour))
	}
	digits := strings.TrimRight(number, "abcdefghijklmnopqrstuvwxyz")
	if digits != number {
		unit = number[len(digits):]
	}
	n, err := strconv.ParseUint(digits, 10, 17)
	if err != nil {
		return 0
	}
	switch unit {
	case "s", "sec", "secs", "second", "seconds":
		return time.Duration(n) * time.Second
	case "m", "min", "mins", "minute", "minutes":
		return time.Duration(n) * time.Minute
	case "h", "hr", "hrs", "hour", "hours":
		return time.Duration(n) * time.Hour
	}
	return 0
}

// line makes one storable line of at most limit bytes out of what a server wrote.
func line(s string, limit int) string {
	s = strings.ToValidUTF8(s[:min(len(s), limit)], "")
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s))
}
