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
	"github_pat_", "glpat-", "xoxb-", "xoxp-", "xoxa-", "eyJ", "hf_", "r8_", "pplx-", "co_", "nvapi-", "fw_", "csk-", "ABSK", "SG.",
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
// into a journal: the user of an address, what is given to a name such as "password", what follows a word such as "bearer",
// known beginnings, and long runs of mixed letters and digits.
func redact(s string) string {
	s = s[:min(len(s), 16*maxMessage)]
	return redactTokens(redactAssigned(redactUsers(s)))
}

// redactUsers masks user and password of addresses: scheme://user:pw@host, and user:pw@tcp(host) as drivers write it.
func redactUsers(s string) string {
	done := 0
	for done < len(s) {
		at := strings.IndexByte(s[done:], '@')
		if at < 0 {
			break
		}
		at += done
		start := at
		for start > done && strings.IndexByte(" \t\r\n\"'`<>(),", s[start-1]) < 0 {
			start--
		}
		scheme := strings.Index(s[start:at], "://")
		switch {
		case scheme >= 0:
			start += scheme + len("://")
			host, _, path := strings.Cut(s[start:at], "/") // an @ behind the host is no end of a user
			if _, port, _ := strings.Cut(host, ":"); path && strings.Trim(port, "0123456789") == "" || strings.ContainsAny(host, "?#") {
				done = at + 1
				continue
			}
			at = max(at, start+strings.LastIndexByte(s[start:valueEnd(s, start, 0)], '@')) // a password can have one
		case strings.IndexByte(s[start:at], ':') < 0 || !inParentheses(s[at+1:]):
			done = at + 1
			continue
		}
		if start < at {
			s = s[:start] + masked + s[at:]
			at = start + len(masked)
		}
		done = at + 1
	}
	return s
}

// inParentheses reports whether s begins with a network and its address: tcp(…).
func inParentheses(s string) bool {
	rest := strings.TrimLeft(s, "abcdefghijklmnopqrstuvwxyz0123456789")
	return len(rest) < len(s) && rest[0:min(1, len(rest))] == "("
}

// redactAssigned masks what stands after the name of a secret and a sign, and after the name of a scheme of
// authentication.
func redactAssigned(s string) string {
	var out strings.Builder
	last := 0
	for i := 0; i < len(s); i++ {
		from, to := 0, 0
		switch s[i] {
		case ':', '=':
			from, to = assigned(s, i)
		case ' ':
			if endsInScheme(s[:i]) {
				if from, to = i+1, valueEnd(s, i+1, 0); !secretAfterScheme(s[from:to]) {
					to = from
				}
			}
		}
		if from >= last && to > from {
			out.WriteString(s[last:from])
			out.WriteString(masked)
			last, i = to, to-1
		}
	}
	if last == 0 {
		return s
	}
	out.WriteString(s[last:])
	return out.String()
}

// assigned returns where the value of a secret stands whose name is before the sign at i; nothing if it is no secret.
func assigned(s string, i int) (from, to int) {
	end := i
	for end > 0 && strings.IndexByte(" \"'\\", s[end-1]) >= 0 {
		end--
	}
	quotedName := end < i && strings.ContainsAny(s[end:i], "\"'")
	name := strings.ToLower(wordBefore(s, end))
	from = i + 1
	for from < len(s) && s[from] == ' ' {
		from++
	}
	switch cookie := name == "cookie" || name == "set-cookie"; {
	case cookie && !quotedName:
		return from, from + lengthUntil(s[from:], "\n\"")
	case !cookie && !isSecretName(name):
		return 0, 0
	}
	return secretValue(s, i, from)
}

func lengthUntil(s, stops string) int {
	if n := strings.IndexAny(s, stops); n >= 0 {
		return n
	}
	return len(s)
}

// secretValue returns where the value that begins at from, after the sign at i, stands; nothing if it is no secret.
func secretValue(s string, i, from int) (int, int) {
	quote := byte(0)
	for from < len(s) && strings.IndexByte("\\\"'", s[from]) >= 0 {
		quote = s[from]
		from++
	}
	to := valueEnd(s, from, quote)
	value := s[from:to]
	if scheme, _, ok := strings.Cut(value, " "); ok && isScheme(scheme) && quote != 0 {
		from += len(scheme) + 1
		return from, to
	}
	switch {
	case isScheme(value) || value == "null" || value == "true" || value == "false":
		return 0, 0 // what follows the scheme is found by it
	case quote == 0 && s[i] == ':' && len(value) < 2*minSecret && !strings.ContainsAny(value, "0123456789*"):
		return 0, 0 // "password: required"
	}
	return from, to
}

// wordBefore returns the name that ends at i.
func wordBefore(s string, i int) string {
	start := i
	for start > 0 && i-start < 64 && (s[start-1] == '-' || s[start-1] == '_' || sortOf(s[start-1]) != other) {
		start--
	}
	return s[start:i]
}

// valueEnd returns where a value ends that begins at i, after a quote if it is not 0.
func valueEnd(s string, i int, quote byte) int {
	stops := " \t\r\n&;,)\"'<>]}\\"
	switch quote {
	case '\'':
		stops = "'\r\n"
	case '"', '\\':
		stops = "\"\\\r\n"
	}
	for i < len(s) && strings.IndexByte(stops, s[i]) < 0 {
		i++
	}
	return i
}

// endsInScheme is isScheme of the last word. Nearly all words are told by their last letters.
func endsInScheme(s string) bool {
	if n := len(s); n < len("basic") || s[n-1]|' ' != 'c' && (s[n-1]|' ' != 'r' || s[n-2]|' ' != 'e') {
		return false
	}
	return isScheme(wordBefore(s, len(s)))
}

func isScheme(word string) bool {
	return strings.EqualFold(word, "basic") || strings.EqualFold(word, "bearer")
}

// secretAfterScheme tells a credential from prose such as "Basic authentication", by its length or its mixture.
func secretAfterScheme(s string) bool {
	s = strings.TrimRight(s, ".")
	return len(s) >= 2*minSecret || strings.ContainsAny(s, "0123456789=*") ||
		len(s) >= minSecret && strings.ToLower(s[1:]) != s[1:] && strings.ToUpper(s) != s
}

// isSecretName reports whether what is given to this name, in lower case, is a secret.
func isSecretName(name string) bool {
	for _, n := range [...]string{"password", "passwd", "passphrase", "secret", "signature", "accesstoken", "refreshtoken", "idtoken", "apikey",
		"api_key", "api-key", "access_key", "access-key", "secretkey", "secret_key", "secretaccesskey", "private_key", "sessionid", "sessid"} {
		if strings.HasSuffix(name, n) {
			return true
		}
	}
	for _, n := range [...]string{"sig", "session", "pwd", "token", "authorization"} {
		if before, ok := strings.CutSuffix(name, n); ok && (before == "" || before[len(before)-1] == '_' || before[len(before)-1] == '-') {
			return true
		}
	}
	return false
}

// redactTokens masks what looks like a credential by itself, or by the words before it.
func redactTokens(s string) string {
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
	keyed := from > 0 && strings.HasSuffix(strings.ToLower(before), "key") // ?key=…; before a space it is any key
	if keyed || (from > 0 || strings.ContainsAny(rest, "0123456789*")) && named(before) || random(rest) {
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
// models and quotas are shorter, or not so mixed. What has slashes is a path, unless it has the length of AWS's keys.
func random(s string) bool {
	aws := len(s) == 40 && s[0] != '/' && !strings.ContainsAny(s, ".-_")
	if len(s) < 32 || strings.ContainsAny(s, "/.") && !aws {
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
	return (count[digit] >= 2 || aws && count[digit] > 0) && count[upper] > 0 && count[lower] > 0 && changes >= len(s)/3
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
