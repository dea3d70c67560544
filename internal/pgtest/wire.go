//go:build unix

package pgtest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"
)

// The parts of PostgreSQL's protocol 3 that the proxy knows. A frame is a type byte, a length that counts itself but
// not the type, and a body; what a client sends first has no type byte.

const (
	codeSSL    = 80877103
	codeGSS    = 80877104
	codeCancel = 80877102

	longest = 1 << 30 // PostgreSQL's own limit
)

// frame is one message, with its header.
type frame []byte

func (f frame) kind() byte   { return f[0] }
func (f frame) body() []byte { return f[5:] }

// endsRound reports whether the server answers this client's message with a ReadyForQuery.
func (f frame) endsRound() bool { return f.kind() == 'Q' || f.kind() == 'S' || f.kind() == 'F' }

func readFrame(r *bufio.Reader) (frame, error) {
	header, err := r.Peek(5)
	if err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(header[1:])
	if n < 4 || n > longest {
		return nil, fmt.Errorf("a message of %d bytes", n)
	}
	f := make(frame, n+1)
	_, err = io.ReadFull(r, f)
	return f, err
}

// readStartup reads the message without a type, and its code.
func readStartup(r *bufio.Reader) (message []byte, code uint32, err error) {
	header, err := r.Peek(8)
	if err != nil {
		return nil, 0, err
	}
	n := binary.BigEndian.Uint32(header)
	if n < 8 || n > 1<<16 {
		return nil, 0, fmt.Errorf("a first message of %d bytes", n)
	}
	code = binary.BigEndian.Uint32(header[4:])
	message = make([]byte, n)
	_, err = io.ReadFull(r, message)
	return message, code, err
}

// statements follows one session's prepared statements and portals, to know the SQL text that a message executes.
type statements struct {
	prepared map[string]string // name to text
	portals  map[string]string // name to text
	begun    []string          // texts of the transaction that is open, its BEGIN first; nil if none is
}

// statement is one that a client executes.
type statement struct {
	sql    string
	before []string // texts of its transaction so far, BEGIN first; nil if it is one by itself
}

// note keeps the transaction's texts.
func (s *statements) note(sql string) statement {
	st := statement{sql, s.begun}
	switch {
	case isCommit(sql), isWord(sql, "rollback"):
		s.begun = nil
	case s.begun != nil, isWord(sql, "begin"), isWord(sql, "start"):
		s.begun = append(s.begun, sql)
	}
	return st
}

func commits(s statement) bool { return isCommit(s.sql) }

// alone looks at the statement's own text only.
func alone(match func(sql string) bool) func(statement) bool {
	return func(s statement) bool { return match(s.sql) }
}

// ending is the COMMIT of a transaction that has such a statement, or the statement if it is a transaction by itself.
func ending(match func(sql string) bool) func(statement) bool {
	return func(s statement) bool {
		if s.before == nil {
			return match(s.sql)
		}
		return isCommit(s.sql) && slices.ContainsFunc(s.before, match)
	}
}

// executes returns the text that the frame makes the server run, and whether it makes it run one.
func (s *statements) executes(f frame) (string, bool) {
	switch f.kind() {
	case 'Q':
		text, _ := cutString(f.body())
		return text, true
	case 'P':
		name, rest := cutString(f.body())
		text, _ := cutString(rest)
		s.prepared[name] = text
	case 'B':
		portal, rest := cutString(f.body())
		name, _ := cutString(rest)
		s.portals[portal] = s.prepared[name]
	case 'E':
		portal, _ := cutString(f.body())
		return s.portals[portal], true
	}
	return "", false
}

// cutString takes a zero-terminated string off the front.
func cutString(b []byte) (string, []byte) {
	text, rest, _ := bytes.Cut(b, []byte{0})
	return string(text), rest
}

// isCommit reports whether a statement's first word commits a transaction. A commit further on in a list of statements,
// or at the end of a statement that is a transaction by itself, is not seen, unless the statement begins with a comment
// that says so.
func isCommit(sql string) bool {
	return isWord(sql, "commit") || isWord(sql, "end") || strings.HasPrefix(sql, "/* commits */")
}

// isEmpty reports whether a statement is none: nothing, or a comment by which a driver sees whether the server answers.
func isEmpty(sql string) bool {
	sql = strings.TrimSpace(sql)
	return sql == "" || strings.HasPrefix(sql, "--") && !strings.Contains(sql, "\n")
}

// isWord reports whether a statement begins with a word.
func isWord(sql, word string) bool {
	first := strings.TrimSpace(sql)
	if i := strings.IndexFunc(first, func(r rune) bool { return r|0x20 < 'a' || r|0x20 > 'z' }); i >= 0 {
		first = first[:i]
	}
	return strings.EqualFold(first, word)
}
