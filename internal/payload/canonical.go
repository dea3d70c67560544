package payload

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Hash returns the SHA-256 of data's canonical form (see [Canonical]): equal for inputs that mean the same. It is stored, so
// it never changes; a golden test holds it fixed. Errors are those of Canonical.
func Hash(data []byte) ([32]byte, error) {
	c, err := Canonical(data)
	if err != nil {
		return [32]byte{}, err
	}
	return sha256.Sum256(c), nil
}

// Canonical returns the one spelling of JSON that means the same as data:
//   - no space; members of objects sorted by the bytes of their names; of members with one name the last counts, as in
//     encoding/json;
//   - members whose value is null, false, 0 in any spelling, "", [] or {}, after the same was done inside, are left out, so
//     that a new field with its zero value changes nothing (fields whose zero value looks different do: a time.Time, an array
//     of fixed length; give them omitzero); array elements and the value itself always stay;
//   - strings are compared by value, as encoding/json decodes them, however they were escaped; numbers stay as written, so 1
//     and 1.0 differ.
//
// It is an error if data is no JSON, not valid UTF-8, or nested deeper than 10,000 levels. data is not changed; the result may be a part of it.
func Canonical(data []byte) ([]byte, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("canonical JSON: not valid UTF-8")
	}
	if !json.Valid(data) { // also bounds the depth of the recursion below
		var raw json.RawMessage
		if err := json.Unmarshal(data, &raw); err != nil {
			return nil, fmt.Errorf("canonical JSON: %w", err)
		}
		return nil, errors.New("canonical JSON: invalid") // unreachable unless json.Valid and json.Unmarshal disagree
	}
	if scalar := bytes.TrimSpace(data); !bytes.ContainsAny(scalar[:1], `{["`) { // stays as written
		return slices.Clip(scalar), nil
	}
	p := parser{data: string(data)}
	root := p.value()
	return root.append(make([]byte, 0, len(data))), nil
}

// node is a JSON value: an object or array by its first byte, else by its text.
type node struct {
	kind byte     // { [ " or 0 for numbers, true, false and null
	text string   // a string's value; the text of a number, true, false or null
	kids []member // of an object sorted, one per name, without zeros; of an array in order, unnamed
}

type member struct {
	name string
	node node
}

// zero reports whether n, as a member of an object, is left out.
func (n *node) zero() bool {
	switch {
	case n.kind != 0:
		return n.text == "" && len(n.kids) == 0
	case n.text == "null" || n.text == "false":
		return true
	case n.text == "true":
		return false
	}
	digits, _, _ := strings.Cut(n.text, "e")
	digits, _, _ = strings.Cut(digits, "E")
	return !strings.ContainsAny(digits, "123456789")
}

func (n *node) append(b []byte) []byte {
	switch n.kind {
	case '"':
		return appendString(b, n.text)
	case 0:
		return append(b, n.text...)
	}
	b = append(b, n.kind)
	for i := range n.kids {
		if i > 0 {
			b = append(b, ',')
		}
		if n.kind == '{' {
			b = append(appendString(b, n.kids[i].name), ':')
		}
		b = n.kids[i].node.append(b)
	}
	return append(b, n.kind+2) // ']' follows '[' by two in ASCII, and '}' '{'
}

// appendString writes a JSON string. It is not encoding/json's writer, so that hashes do not depend on the version of Go.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ':
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// parser reads JSON that is known to be valid.
type parser struct {
	data  string // texts of nodes are parts of it
	pos   int
	stack []member // of the containers that are open, so that each is allocated once
}

func (p *parser) value() node {
	switch c := p.next(); c {
	case '{', '[':
		return p.container(c)
	case '"':
		return node{kind: '"', text: p.string()}
	case 't', 'n':
		p.pos += len("true")
		return node{text: p.data[p.pos-len("true") : p.pos]}
	case 'f':
		p.pos += len("false")
		return node{text: "false"}
	}
	start := p.pos
	p.pos = numberEnd(p.data, start)
	return node{text: p.data[start:p.pos]}
}

func (p *parser) container(kind byte) node {
	bottom := len(p.stack)
	p.pos++
	for p.next() != kind+2 {
		if p.data[p.pos] == ',' {
			p.pos++
		}
		var m member
		if kind == '{' {
			p.next()
			m.name = p.string()
			p.next()
			p.pos++ // the colon
		}
		m.node = p.value()
		p.stack = append(p.stack, m)
	}
	p.pos++
	kids := p.stack[bottom:]
	if kind == '{' {
		kids = tidy(kids)
	}
	n := node{kind: kind, kids: slices.Clone(kids)}
	p.stack = p.stack[:bottom]
	return n
}

// tidy sorts members, keeps the last of each name, and then drops zeros: in that order, as the last may be the zero.
func tidy(all []member) []member {
	byName := func(a, b member) int { return strings.Compare(a.name, b.name) }
	if !slices.IsSortedFunc(all, byName) { // maps are written sorted
		slices.SortStableFunc(all, byName)
	}
	kept := all[:0]
	for i := range all {
		last := i+1 == len(all) || all[i+1].name != all[i].name
		if last && !all[i].node.zero() {
			kept = append(kept, all[i])
		}
	}
	return kept
}

// next skips space and returns the byte there, which stays.
func (p *parser) next() byte {
	for {
		switch c := p.data[p.pos]; c {
		case ' ', '\t', '\r', '\n':
			p.pos++
		default:
			return c
		}
	}
}

func (p *parser) string() string {
	start := p.pos
	p.pos = stringEnd(p.data, start)
	raw := p.data[start:p.pos]
	if strings.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1]
	}
	var s string
	if err := json.Unmarshal([]byte(raw), &s); err != nil {
		return raw // unreachable unless a valid string does not decode
	}
	return s
}

// stringEnd returns the position after the string that begins at i of valid JSON.
func stringEnd[T []byte | string](data T, i int) int {
	for i++; data[i] != '"'; i++ {
		if data[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// numberEnd returns the position after the number that begins at i of valid JSON.
func numberEnd[T []byte | string](data T, i int) int {
	for i < len(data) && (data[i] >= '0' && data[i] <= '9' || strings.IndexByte("+-.eE", data[i]) >= 0) {
		i++
	}
	return i
}
