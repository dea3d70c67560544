package fault

import (
	"bytes"
	"encoding/json"
	"strings"
)

// maxDepth is how many containers may be open at once, as in encoding/json.
const maxDepth = 10_000

// value is one JSON value as [scanJSON] comes to it: a scalar, or a container that just began.
type value struct {
	kind byte   // one of " 0 t f n { [
	raw  []byte // the text of a scalar, a string's without its quotes
	esc  bool   // the string has escapes
}

// text returns what a string or number says, "" for anything else.
func (v value) text() string {
	switch {
	case v.kind == '"' && v.esc:
		quoted := make([]byte, 0, len(v.raw)+2)
		quoted = append(append(append(quoted, '"'), v.raw...), '"')
		var s string
		if json.Unmarshal(quoted, &s) != nil {
			return "" // unreachable unless a bug in this file: the scanner has checked it
		}
		return s
	case v.kind == '"' || v.kind == '0':
		return string(v.raw)
	}
	return ""
}

// scanJSON reads data once, hands every value to see with the path that leads to it, such as
// "error.details[].reason", and reports whether data is exactly one whole JSON value. What stands before a cut
// or a mistake has been seen all the same, which is why this is not encoding/json: an answer that is too long
// to read, or that broke off, still shows its code. A root array counts as nothing in a path. It does not
// recurse, and path and value are only valid during the call.
func scanJSON(data []byte, see func(path []byte, v value)) bool {
	s := scanner{data: data, see: see}
	return s.run()
}

type scanner struct {
	data []byte
	pos  int
	see  func(path []byte, v value)
	path []byte
	open []container
}

type container struct {
	kind byte // { or [
	base int  // length of the path that leads to it
}

func (s *scanner) run() bool {
	var few [16]container // the usual body needs no more
	s.open = few[:0]
	if !s.value() {
		return false
	}
	for len(s.open) > 0 {
		top := s.open[len(s.open)-1]
		s.path = s.path[:top.base]
		var ok bool
		switch c := s.next(); c {
		case top.kind + 2: // the closing bracket, in ASCII two behind the opening one
			s.pos++
			s.open = s.open[:len(s.open)-1]
			continue
		case ',':
			s.pos++
			ok = s.element(top)
		}
		if !ok {
			return false
		}
	}
	return s.next() == 0 && s.pos == len(s.data)
}

// next skips white space and returns the byte there without taking it, 0 at the end.
func (s *scanner) next() byte {
	for ; s.pos < len(s.data); s.pos++ {
		switch c := s.data[s.pos]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

// element reads what follows the beginning of a container or a comma in it.
func (s *scanner) element(in container) bool {
	if in.kind == '[' {
		if len(s.path) > 0 {
			s.path = append(s.path, "[]"...)
		}
		return s.value()
	}
	if s.next() != '"' {
		return false
	}
	key, esc, ok := s.str()
	if !ok || s.next() != ':' {
		return false
	}
	s.pos++
	if len(s.path) > 0 {
		s.path = append(s.path, '.')
	}
	if esc {
		s.path = append(s.path, value{'"', key, true}.text()...)
	} else {
		s.path = append(s.path, key...)
	}
	return s.value()
}

// value reads a scalar whole, and of a container the beginning up to its first scalar.
func (s *scanner) value() bool {
	for {
		c := s.next()
		if c != '{' && c != '[' {
			return s.scalar(c)
		}
		if len(s.open) >= maxDepth {
			return false
		}
		s.see(s.path, value{kind: c})
		s.pos++
		in := container{c, len(s.path)}
		if s.next() == c+2 {
			s.pos++
			return true
		}
		s.open = append(s.open, in)
		if c == '{' {
			return s.element(in)
		}
		if len(s.path) > 0 {
			s.path = append(s.path, "[]"...)
		}
	}
}

// scalar reads a value that begins with c and is no container.
func (s *scanner) scalar(c byte) bool {
	switch {
	case c == '"':
		text, esc, ok := s.str()
		if ok {
			s.see(s.path, value{'"', text, esc})
		}
		return ok
	case c == 't':
		return s.word("true")
	case c == 'f':
		return s.word("false")
	case c == 'n':
		return s.word("null")
	case c == '-' || isDigit(c):
		return s.number()
	}
	return false
}

// str reads a string and returns what stands between the quotes.
func (s *scanner) str() (raw []byte, esc, ok bool) {
	start := s.pos + 1
	for i := start; i < len(s.data); i++ {
		switch c := s.data[i]; {
		case c == '"':
			s.pos = i + 1
			return s.data[start:i], esc, true
		case c < ' ':
			return nil, false, false
		case c == '\\':
			esc = true
			n := escapeLen(s.data[i:])
			if n == 0 {
				return nil, false, false
			}
			i += n - 1
		}
	}
	return nil, false, false
}

// escapeLen returns the length of the escape that b begins with, 0 if it is none.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	if b[1] != 'u' {
		if bytes.IndexByte([]byte(`"\/bfnrt`), b[1]) < 0 {
			return 0
		}
		return 2
	}
	if len(b) < 6 {
		return 0
	}
	for _, c := range b[2:6] {
		if !isDigit(c) && (c|' ' < 'a' || c|' ' > 'f') {
			return 0
		}
	}
	return 6
}

func (s *scanner) word(w string) bool {
	if !bytes.HasPrefix(s.data[s.pos:], []byte(w)) {
		return false
	}
	s.pos += len(w)
	s.see(s.path, value{kind: w[0]})
	return true
}

func (s *scanner) number() bool {
	b, start := s.data, s.pos
	n := start
	at := func(chars string) bool { return n < len(b) && strings.IndexByte(chars, b[n]) >= 0 }
	digits := func() bool {
		from := n
		for at("0123456789") {
			n++
		}
		return n > from
	}
	if at("-") {
		n++
	}
	if at("0") {
		n++
	} else if !digits() {
		return false
	}
	if at(".") {
		n++
		if !digits() {
			return false
		}
	}
	if at("eE") {
		n++
		if at("+-") {
			n++
		}
		if !digits() {
			return false
		}
	}
	s.pos = n
	s.see(s.path, value{kind: '0', raw: b[start:n]})
	return true
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
