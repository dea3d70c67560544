package fault

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// MaxDelay is the longest Delay that [FromHTTP] and its kin report. A longer one is cut to it, and fails a step
// all the same, because [Decide] waits for no more than a day. What is beyond a year is no delay but a mistake,
// such as an instant where seconds belong, and is ignored.
const MaxDelay = 31 * 24 * time.Hour

const year = 366 * 24 * time.Hour

// delay returns how long the answer asks to wait, 0 if it does not. First what is told in so many words, then
// when the limit that is used up refills, then the message. A quota's end is told by a reset alone: its
// Retry-After is the rate limiter's habit. A zero tells nothing: whoever says more is believed.
func (p *provider) delay(a *answer, f *Fault) time.Duration {
	date := headerDate(a.header)
	switch f.Class {
	case QuotaExhausted:
		if d, _ := parseReset(a.reset, date); d > 0 {
			return d
		}
		d, _ := dateInText(a.message, date)
		return d
	case RateLimited, Transient, OutcomeUnknown:
	default:
		return 0
	}
	if d := toldDelay(a, date); d > 0 {
		return d
	}
	if f.Class == RateLimited {
		if d, _ := parseReset(a.reset, date); d > 0 {
			return d
		}
		if d := p.refill(a.header, f.Reason, date); d > 0 {
			return d
		}
	}
	if f.Class != OutcomeUnknown {
		d, _ := delayInText(a.message)
		return d
	}
	return 0
}

// toldDelay reads what an answer says for this very purpose, 0 if nothing.
func toldDelay(a *answer, date time.Time) time.Duration {
	for _, ms := range a.header.Values("Retry-After-Ms") {
		if d, _ := parseNumber(ms, time.Millisecond); d > 0 {
			return d
		}
	}
	for _, after := range a.header.Values("Retry-After") {
		if d, _ := parseRetryAfter(after, date); d > 0 {
			return d
		}
	}
	if d, _ := parseSpan(a.retryIn); d > 0 {
		return d
	}
	d, _, _ := pushback(a.header.Values("Grpc-Retry-Pushback-Ms"))
	return d
}

// namesTime reports whether an answer names a time for this very purpose, be it none or one that cannot be measured from
// here.
func namesTime(a *answer) bool {
	for _, ms := range a.header.Values("Retry-After-Ms") {
		if _, ok := parseNumber(ms, time.Millisecond); ok {
			return true
		}
	}
	for _, after := range a.header.Values("Retry-After") {
		if _, ok := parseRetryAfter(after, time.Time{}); ok {
			return true
		}
		if _, err := http.ParseTime(strings.TrimSpace(after)); err == nil {
			return true
		}
	}
	if _, ok := parseSpan(a.retryIn); ok {
		return true
	}
	_, told, _ := pushback(a.header.Values("Grpc-Retry-Pushback-Ms"))
	return told
}

// refill returns when the limit that is used up refills: the latest, if several are.
func (p *provider) refill(h http.Header, reason Reason, date time.Time) (longest time.Duration) {
	for _, l := range p.allLimits() {
		left := h.Get(l.remaining)
		if !usedUp(left) && (left != "" || l.reason != reason) {
			continue // "-1" stands for no such limit
		}
		if d, ok := parseReset(h.Get(l.reset), date); ok {
			longest = max(longest, d)
		}
	}
	return longest
}

func (p *provider) allLimits() []limit {
	for ; p != nil; p = p.like {
		if p.limits != nil {
			return p.limits
		}
	}
	return generic.limits
}

// dimension returns the reason of the limit that is used up by the headers, "" if none is.
func (p *provider) dimension(h http.Header) Reason {
	for _, l := range p.allLimits() {
		if usedUp(h.Get(l.remaining)) {
			return l.reason
		}
	}
	return ""
}

func usedUp(left string) bool {
	n, err := strconv.ParseFloat(strings.TrimSpace(left), 64)
	return err == nil && n == 0
}

func headerDate(h http.Header) time.Time {
	t, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return time.Time{}
	}
	return t
}

// parseRetryAfter reads seconds, whole or not, or a date in one of the three forms of HTTP.
func parseRetryAfter(s string, date time.Time) (time.Duration, bool) {
	if d, ok := parseNumber(s, time.Second); ok {
		return d, true
	}
	if d, ok := parseSpan(s); ok {
		return d, true
	}
	t, err := http.ParseTime(strings.TrimSpace(s))
	if err != nil {
		return 0, false
	}
	return until(t, date)
}

// parseReset reads when a limit refills: a span such as 6m0s, seconds, an RFC 3339 instant, or seconds or
// milliseconds since 1970.
func parseReset(s string, date time.Time) (time.Duration, bool) {
	s = strings.TrimSpace(s)
	if n, ok := parseFloat(s); ok && n >= 1e9 {
		if n >= 1e12 {
			n /= 1000
		}
		if n > 1e11 {
			return 0, false
		}
		return until(time.UnixMilli(int64(n*1000)), date)
	}
	if d, ok := parseNumber(s, time.Second); ok {
		return d, true
	}
	if d, ok := parseSpan(s); ok {
		return d, true
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return until(t, date)
	}
	return 0, false
}

// until measures from the response's own date, because our clock may be wrong: without one it tells nothing. What is
// past is no wait.
func until(t, date time.Time) (time.Duration, bool) {
	if date.IsZero() {
		return 0, false
	}
	return believe(t.Sub(date))
}

// believe bounds a delay.
func believe(d time.Duration) (time.Duration, bool) {
	if d > year {
		return 0, false
	}
	return min(max(d, 0), MaxDelay), true
}

// parseNumber reads a plain decimal number of units.
func parseNumber(s string, unit time.Duration) (time.Duration, bool) {
	n, ok := parseFloat(s)
	if !ok || n > float64(year/unit) {
		return 0, false
	}
	return believe(time.Duration(math.Round(n * float64(unit))))
}

// parseFloat reads digits with at most one point, and nothing of what else strconv takes for a number.
func parseFloat(s string) (float64, bool) {
	s = strings.TrimSpace(s)
	if s == "" || len(s) > 40 || strings.Trim(s, "0123456789.") != "" || s == "." {
		return 0, false
	}
	n, err := strconv.ParseFloat(s, 64)
	return n, err == nil
}

// parseSpan reads a span of time that is all of s, such as "6m0s", "634ms", "36.429760048s".
func parseSpan(s string) (time.Duration, bool) {
	s = strings.ToLower(strings.TrimSpace(s))
	d, n := span(s)
	return d, n > 0 && n == len(s)
}

// units are the spellings of units of time.
var units = map[string]time.Duration{
	"ms": time.Millisecond, "millisecond": time.Millisecond, "milliseconds": time.Millisecond, "msec": time.Millisecond,
	"s": time.Second, "sec": time.Second, "secs": time.Second, "second": time.Second, "seconds": time.Second,
	"m": time.Minute, "min": time.Minute, "mins": time.Minute, "minute": time.Minute, "minutes": time.Minute,
	"h": time.Hour, "hr": time.Hour, "hrs": time.Hour, "hour": time.Hour, "hours": time.Hour,
	"d": 24 * time.Hour, "day": 24 * time.Hour, "days": 24 * time.Hour,
	"us": time.Microsecond, "µs": time.Microsecond, "ns": time.Nanosecond,
}

// span reads numbers with units from the beginning of s, and returns how much of it that was, 0 if it is no
// span that can be believed.
func span(s string) (total time.Duration, length int) {
	for {
		rest := s[length:]
		if length > 0 {
			rest = strings.TrimPrefix(rest, " ")
		}
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789."))
		n, ok := parseFloat(strings.TrimRight(rest[:digits], "."))
		if !ok {
			break
		}
		gap := len(rest) - len(strings.TrimPrefix(rest[digits:], " ")) - digits
		word := rest[digits+gap:]
		word = word[:len(word)-len(strings.TrimLeft(word, "abcdefghijklmnopqrstuvwxyzµ"))]
		unit, ok := units[word]
		if !ok || n > float64(year/unit) {
			break
		}
		total += time.Duration(math.Round(n * float64(unit)))
		length = len(s) - len(rest) + digits + gap + len(word)
		if total > year {
			return 0, 0
		}
	}
	total, _ = believe(total)
	return total, length
}

// delayInText is the last resort: "Please try again in 41.724s". A number counts only with its unit.
func delayInText(message string) (time.Duration, bool) {
	s := strings.ToLower(message[:min(len(message), maxText)])
	for _, phrase := range []string{"try again in ", "retry after ", "retry in ", "try again after ", "please wait "} {
		if _, after, ok := strings.Cut(s, phrase); ok {
			if d, n := span(after); n > 0 {
				return d, true
			}
		}
	}
	return 0, false
}

// dateInText reads "You will regain access on 2026-11-01 at 00:00 UTC".
func dateInText(message string, date time.Time) (time.Duration, bool) {
	_, after, ok := strings.Cut(message[:min(len(message), maxText)], "regain access on ")
	if !ok || len(after) < len(time.DateOnly) {
		return 0, false
	}
	t, err := time.Parse(time.DateOnly, after[:len(time.DateOnly)])
	if err != nil {
		return 0, false
	}
	return until(t, date)
}

// pushback reads gRPC's grpc-retry-pushback-ms. A negative or unreadable one says: not again.
func pushback(values []string) (d time.Duration, told, veto bool) {
	if len(values) == 0 {
		return 0, false, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(values[0]), 10, 64)
	if err != nil || n < 0 {
		return 0, false, true
	}
	d, told = parseNumber(strconv.FormatInt(n, 10), time.Millisecond)
	return d, told, false
}
