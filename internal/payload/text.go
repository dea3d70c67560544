package payload

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Clean makes any text storable and printable, for failure reports that must never fail to be stored. Invalid UTF-8 and
// control characters but newline and tab, NUL and escape among them, become U+FFFD; the carriage return of a CR LF is
// dropped. Text that is then longer than max bytes is cut at a rune boundary and ends in "…", within max (without the mark if
// max is under three). A max of 0 or less gives "". Clean of a cleaned text changes nothing.
func Clean(s string, max int) string {
	const mark = "…"
	if max <= 0 {
		return ""
	}
	if len(s) <= max && utf8.ValidString(s) && strings.IndexFunc(s, unprintable) < 0 {
		return s
	}
	room := max - len(mark)
	if room < 0 {
		room = max
	}
	var b strings.Builder
	cut := 0 // where to cut if it gets too long
	for i, c := range s {
		if c == '\r' && strings.HasPrefix(s[i+1:], "\n") {
			continue
		}
		if unprintable(c) {
			c = utf8.RuneError
		}
		b.WriteRune(c)
		if b.Len() <= room {
			cut = b.Len()
		}
		if b.Len() <= max {
			continue
		}
		if room == max {
			return b.String()[:cut]
		}
		return b.String()[:cut] + mark
	}
	return b.String()
}

func unprintable(c rune) bool { return unicode.IsControl(c) && c != '\n' && c != '\t' }

func isLetterOrDigit(c rune) bool { return unicode.IsLetter(c) || unicode.IsDigit(c) }

const maxName = 200

// CheckName returns an error unless s can be a name or key: 1 to 200 bytes of valid UTF-8, without control characters and
// without space at either end. what says what s is for ("workflow name"); the error begins with it, quotes at most 40
// characters of s and says the rule.
func CheckName(what, s string) error {
	var wrong string
	switch {
	case s == "":
		wrong = "it is empty"
	case len(s) > maxName:
		wrong = fmt.Sprintf("it has %d bytes", len(s))
	case !utf8.ValidString(s):
		wrong = "it is not valid UTF-8"
	case strings.IndexFunc(s, unicode.IsControl) >= 0:
		wrong = "it has a control character"
	case strings.TrimSpace(s) != s:
		wrong = "it begins or ends with space"
	default:
		return nil
	}
	return fmt.Errorf("%s %s: %s; want 1 to %d bytes of UTF-8 without control characters, and no space at either end",
		what, shown(s), wrong, maxName)
}
