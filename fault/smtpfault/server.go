package smtpfault

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/pawlrun/pawl/fault"
)

// Server says where mail is handed in, and as whom. It is safe for concurrent use while its fields stay as they are.
type Server struct {
	// Addr is host:port.
	Addr string
	// Username and Password log in by the best of SCRAM-SHA-256, PLAIN and LOGIN that the server offers, over TLS only.
	// Without a Username nobody logs in.
	Username, Password string
	// TLS is used for the connection's encryption; nil is the default configuration. Without a ServerName, the host of
	// Addr is what the certificate must name.
	TLS *tls.Config
	// ImplicitTLS speaks TLS from the first byte instead of after STARTTLS. It is implied by port 465.
	ImplicitTLS bool
	// AllowPlain goes on without TLS if the server does not offer STARTTLS. Who can change the traffic can hide that
	// offer, so it is for a server on the same host or network.
	AllowPlain bool
	// Hello is the name by which we greet the server; "localhost" if empty.
	Hello string
}

// Receipt is what is known about a mail that the server has accepted.
type Receipt struct {
	// MessageID is the Message-ID of the message, without angle brackets.
	MessageID string `json:"message_id"`
	// Reply is the text of the server's acceptance, in which most name their queue id: "2.0.0 Ok: queued as 4Zx1". It is
	// one line of at most 500 bytes.
	Reply string `json:"reply"`
}

// Send hands in the message msg from one address to others, over a connection of its own. It returns nil only if the
// server has accepted it for all of them; any error is a [fault.Fault], out of which errors.As has a server's refusal as
// a *textproto.Error.
//
// The addresses are those of the envelope: bare, or in the form "Name <address>". Header fields of msg add no
// recipients. An empty from is the null sender of a bounce. An address that occurs twice is asked for once.
//
// msg writes header and body, as a *mail.Msg of go-mail, a *bytes.Buffer and a *strings.Reader do. It is read before the
// connection is made and kept in memory. It must have one Message-ID, by which the mail can be looked for later: make
// it of what is the same for every attempt. Lines may end in LF or CRLF. A header field that may occur once and occurs
// twice, as after an injection, is refused, and so is a bare CR, which some servers take for the end of a line.
func (s *Server) Send(ctx context.Context, from string, to []string, msg io.WriterTo) (Receipt, error) {
	mail, err := newLetter(from, to, msg)
	if err != nil {
		return Receipt{}, err
	}
	host, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		return Receipt{}, invalid(fault.ReasonBadAddress, "mail server: %w", err)
	}
	session := &session{server: s, host: host, implicit: s.ImplicitTLS || port == "465", mail: mail}
	reply, err := session.submit(ctx)
	if err != nil {
		return Receipt{}, session.fault(ctx, err)
	}
	return Receipt{MessageID: mail.id, Reply: line(reply, maxReply)}, nil
}

// fault says what err proves, which ended the session in phase s.at.
func (s *session) fault(ctx context.Context, err error) error {
	reply, answered := readReply(err)
	own, ours := errors.AsType[*fault.Fault](err)
	if !answered && !ours && ctx.Err() != nil {
		err = ended(ctx)
	}
	where := fmt.Sprintf("mail <%s> to %s: %v", s.mail.id, s.server.Addr, s.at)
	if ours {
		known := *own
		known.Provider, known.Message, known.Err = s.host, "", fmt.Errorf("%s: %w", where, own.Err)
		return fault.From(&known)
	}
	f := fault.From(fmt.Errorf("%s: %w", where, err))
	f.Provider = s.host
	switch {
	case answered && reply.refuses():
		f.Class, f.Reason, f.Delay = reply.meaning(s.at, s.accepted)
		f.Outcome, f.Status = fault.OutcomeRejected, reply.Code
	default:
		f.Outcome = s.at.outcome()
		f.Class, f.Reason = s.lost(f, answered)
	}
	return f
}

// lost returns class and reason of an end that no reply explains.
func (s *session) lost(f *fault.Fault, answered bool) (fault.Class, fault.Reason) {
	garbled := answered || isGarbled(f.Err)
	switch {
	case garbled && s.at == atGreeting:
		return fault.InvalidRequest, fault.ReasonWrongScheme
	case garbled && s.at < atDot:
		return fault.InvalidRequest, fault.ReasonProtocolViolation
	case garbled:
		return fault.OutcomeUnknown, fault.ReasonProtocolViolation
	case s.at == atDot:
		return fault.OutcomeUnknown, f.Reason
	case s.at == atLogin && f.Reason == fault.ReasonUnrecognized: // the mechanism gave up: it does not trust the server
		return fault.AccessDenied, fault.ReasonAuthentication
	case f.Class == fault.OutcomeUnknown:
		return fault.Transient, f.Reason
	}
	return f.Class, f.Reason
}

// ended is the error of a call that ended because ctx did, with the cause if that says more.
func ended(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != ctx.Err() {
		return fmt.Errorf("%w (%w)", ctx.Err(), cause)
	}
	return ctx.Err()
}

// invalid is the fault of what cannot work as it is and was not sent.
func invalid(r fault.Reason, format string, args ...any) error {
	return fault.From(&fault.Fault{
		Class: fault.InvalidRequest, Reason: r, Outcome: fault.OutcomeNotSent, Err: fmt.Errorf(format, args...),
	})
}

const (
	maxReply = 500     // bytes of Receipt.Reply
	maxReads = 1 << 20 // bytes that a server may send in one session

	silence = 10 * time.Minute // no byte for so long is a lost connection
	parting = 2 * time.Second  // what the goodbye may take; it changes nothing
)
