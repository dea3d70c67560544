package smtpfault

import (
	"bytes"
	"io"
	"net/mail"
	"slices"
	"strings"
	"unicode"

	"github.com/pawlrun/pawl/fault"
)

// letter is a message and its envelope, checked.
type letter struct {
	from string
	to   []string
	id   string // Message-ID without angle brackets
	data []byte
}

func newLetter(from string, to []string, msg io.WriterTo) (*letter, error) {
	l := &letter{}
	var err error
	if from != "" {
		if l.from, err = address(from); err != nil {
			return nil, err
		}
	}
	for _, a := range to {
		if a, err = address(a); err != nil {
			return nil, err
		}
		if !slices.Contains(l.to, a) {
			l.to = append(l.to, a)
		}
	}
	if len(l.to) == 0 {
		return nil, invalid(fault.ReasonInvalidValue, "mail: no recipient")
	}
	if msg == nil {
		return nil, invalid(fault.ReasonInvalidValue, "mail: no message")
	}
	var buf bytes.Buffer
	if _, err := msg.WriteTo(&buf); err != nil {
		return nil, invalid(fault.ReasonInvalidValue, "mail: write the message: %w", err)
	}
	l.data = buf.Bytes()
	return l, l.check()
}

// address returns the bare address that a holds. Nothing in it may end the command it becomes a part of.
func address(a string) (string, error) {
	parsed, err := mail.ParseAddress(a)
	if err != nil {
		return "", invalid(fault.ReasonInvalidValue, "mail address %.200q: %w", a, err)
	}
	if bare := "<" + parsed.Address + ">"; (&mail.Address{Address: parsed.Address}).String() != bare {
		return "", invalid(fault.ReasonInvalidValue, "mail address %.200q: one that needs quotes is not supported", a)
	}
	return parsed.Address, nil
}

// check looks for what would make servers read the message differently, and finds its Message-ID.
func (l *letter) check() error {
	for rest := l.data; ; {
		_, after, found := bytes.Cut(rest, []byte{'\r'})
		if !found {
			break
		}
		if len(after) == 0 || after[0] != '\n' {
			return invalid(fault.ReasonMalformed, "mail: a CR without LF, after byte %d", len(l.data)-len(after)-1)
		}
		rest = after
	}
	m, err := mail.ReadMessage(bytes.NewReader(l.data))
	if err != nil {
		return invalid(fault.ReasonMalformed, "mail: read the header: %w", err)
	}
	for _, field := range []string{
		"Date", "From", "Sender", "Reply-To", "To", "Cc", "Bcc", "Message-Id", "In-Reply-To", "References", "Subject",
	} {
		if n := len(m.Header[field]); n > 1 {
			return invalid(fault.ReasonMalformed, "mail: %d header fields %s, where there may be one", n, field)
		}
	}
	l.id = strings.Trim(m.Header.Get("Message-Id"), "<> ")
	if l.id == "" || strings.ContainsFunc(l.id, func(r rune) bool { return r <= ' ' || r > '~' || r == '<' || r == '>' }) {
		return invalid(fault.ReasonMalformed, "mail: the Message-ID is %.200q, and by it the mail could not be looked for", l.id)
	}
	return nil
}

// ascii reports whether every address can be sent to any server.
func (l *letter) ascii() bool {
	for _, a := range append([]string{l.from}, l.to...) {
		if strings.ContainsFunc(a, func(r rune) bool { return r > unicode.MaxASCII }) {
			return false
		}
	}
	return true
}
