package fault

import (
	"net/url"
	"strings"
)

const (
	masked    = "[redacted]"
	minSecret = 8 // bytes; nobody's credential is shorter
)

// secretStarts are beginnings of keys and tokens whose makers gave them one.
var secretStarts = []string{
	"sk-", "sk_", "rk_", "pk_live_", "pk_test_", "whsec_", "gsk_", "xai-", "AIza", "ya29.", "AKIA", "ASIA", "ghp_", "gho_", "ghs_",
	"github_pat_", "glpat-", "xoxb-", "xoxp-", "xoxa-", "eyJ", "hf_", "r8_", "pplx-", "co_", "nvapi-", "fw_", "csk-", "ABSK",
}

// secretNames are words after which comes a secret.
var secretNames = []string{
	"api key provided", "api key", "api_key", "apikey", "api-key", "x-api-key", "access_token", "token provided", "authorization", "bearer", "password", "secret",
}

// openURLs returns s, the text of err, with the address of each request in it cut down to what may be shown: without
// query and user, and without what in a path looks like a secret.
func openURLs(s string, err error) string {
	left := maxNodes
	anyNode(err, &left, func(err error) bool {
		if x, ok := err.(*url.Error); ok && x.URL != "" {
			s = strings.ReplaceAll(s, x.URL, openURL(x.URL))
		}
		return false
	})
	return s
}

func openURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return masked
	}
	open := openPath(u.Path)
	if u.Host != "" {
		open = u.Scheme + "://" + u.Host + open
	}
	if u.RawQuery != "" {
		open += "?…"
	}
	return open
}

// redact returns s without what looks like a credential, so that a far end that repeats ours does not put it
// into a journal: known beginnings, what follows a word such as "bearer", and long runs of mixed letters and
// digits.
func redact(s string) string {
	s = s[:min(len(s), 16*maxMessage)]
	var out strings.Builder
	last := 0
	for i := 0; i < len(s); {
		if !inTokens[s[i]] {
			i++
			continue
		}
		start := i
		for i < len(s) && inTokens[s[i]] {
			i++
		}
		if i-start < minSecret {
			continue
		}
		word := strings.TrimRight(s[start:i], ".")
		if from := secretFrom(s[:start], word); from >= 0 {
			out.WriteString(s[last : start+from])
			out.WriteString(masked)
			last = start + len(word)
		}
	}
	if last == 0 {
		return s
	}
	out.WriteString(s[last:])
	return out.String()
}

// inTokens has the bytes that can stand inside of a credential. Dots and stars do, where part of it is hidden.
var inTokens = func() (in [256]bool) {
	for c := range in {
		in[c] = c >= 0x80 || isDigit(byte(c)) || c|' ' >= 'a' && c|' ' <= 'z' || strings.IndexByte("-_.*/+=~", byte(c)) >= 0
	}
	return in
}()

// secretFrom returns where in word, which follows before, a secret begins; -1 if there is none.
func secretFrom(before, word string) int {
	from := strings.IndexByte(word, '=') + 1 // key=…
	if from == len(word) {
		from = 0 // padding
	}
	rest := word[from:]
	if len(rest) < minSecret {
		return -1
	}
	for _, start := range secretStarts {
		if rest[0] == start[0] && strings.HasPrefix(rest, start) {
			return from
		}
	}
	if from > 0 {
		before = word[:from-1]
	}
	assigned := from > 0 && strings.HasSuffix(strings.ToLower(before), "key") // ?key=…; before a space it is any key
	if assigned || (from > 0 || strings.ContainsAny(rest, "0123456789*")) && named(before) || random(rest) {
		return from
	}
	return -1
}

// named reports whether before ends in a name of secrets, and in nothing else but a colon, equals sign or quote.
func named(before string) bool {
	before = strings.ToLower(before[max(0, len(before)-40):])
	before = strings.TrimRight(before, " :=\"'`(")
	for _, name := range secretNames {
		if strings.HasSuffix(before, name) {
			return true
		}
	}
	return false
}

// random reports whether s is long and mixes digits and both cases without being words. Ids have one case, and names of
// models and quotas are shorter, or not so mixed.
func random(s string) bool {
	if len(s) < 32 || strings.ContainsAny(s, "/.") {
		return false
	}
	var count [4]int
	changes := 0
	for i := range len(s) {
		count[sortOf(s[i])]++
		if i > 0 && sortOf(s[i]) != sortOf(s[i-1]) {
			changes++
		}
	}
	return count[digit] >= 2 && count[upper] > 0 && count[lower] > 0 && changes >= len(s)/3
}

// The sorts of characters.
const (
	other = iota
	digit
	lower
	upper
)

func sortOf(c byte) int {
	switch {
	case isDigit(c):
		return digit
	case c >= 'a' && c <= 'z':
		return lower
	case c >= 'A' && c <= 'Z':
		return upper
	}
	return other
}
