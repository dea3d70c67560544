package smtpfault

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/wneessen/go-mail/smtp"

	"github.com/pawlrun/pawl/fault"
)

// phase is how far a session has got. The order is that of the protocol.
type phase uint8

const (
	atConnect phase = iota
	atGreeting
	atHello
	atStartTLS
	atLogin
	atSender
	atRecipient
	atData
	atMessage // from the reply to DATA to the last byte before the final dot
	atDot     // from the first byte of the final dot to the reply
)

func (p phase) String() string {
	return [...]string{"connect", "greeting", "EHLO", "STARTTLS", "AUTH", "MAIL", "RCPT", "DATA", "message", "final dot"}[p]
}

// outcome is what is proven if the session ends in p without a reply.
func (p phase) outcome() fault.Outcome {
	switch {
	case p < atSender:
		return fault.OutcomeNotSent
	case p < atDot:
		return fault.OutcomeRejected
	}
	return fault.OutcomeMaybeExecuted
}

// session hands in one letter. It belongs to one goroutine; the end of its context closes the connection.
type session struct {
	server   *Server
	host     string
	implicit bool // TLS from the first byte
	mail     *letter

	at       phase
	accepted int // recipients so far
	wire     *wire
	client   *smtp.Client
}

// submit returns the text of the server's acceptance. After an error, s.at is where it happened.
func (s *session) submit(ctx context.Context) (reply string, err error) {
	if s.wire, err = dial(ctx, s.server.Addr); err != nil {
		return "", err
	}
	return s.run(ctx)
}

// run speaks to the server that s.wire leads to, and closes it.
func (s *session) run(ctx context.Context) (reply string, err error) {
	defer s.wire.Close()
	stop := context.AfterFunc(ctx, func() { s.wire.Close() })
	defer stop()
	for _, step := range []func() error{s.greet, s.hello, s.startTLS, s.login, s.sender, s.recipients, s.data} {
		if err := step(); err != nil {
			s.goodbye(err)
			return "", err
		}
	}
	// The writer is not closed on any way out but the one below: closing it is what sends the final dot.
	s.at = atMessage
	w := s.client.Text.DotWriter()
	if _, err := w.Write(s.mail.data); err != nil {
		return "", s.saidBefore(err)
	}
	s.at = atDot
	if err := w.Close(); err != nil {
		if !s.wire.cut {
			return "", err
		}
		s.at = atMessage // the dot is the last that was to be written, and not all was
		return "", s.saidBefore(err)
	}
	_, reply, err = s.client.Text.ReadResponse(2)
	s.goodbye(err)
	return reply, err
}

func (s *session) greet() (err error) {
	var conn net.Conn = s.wire
	if s.implicit {
		secure := tls.Client(conn, s.config())
		if err := secure.Handshake(); err != nil { // the end of ctx closes the connection below it
			return err
		}
		conn = secure
	}
	s.at = atGreeting
	s.client, err = smtp.NewClient(conn, s.host)
	return err
}

func (s *session) hello() error {
	s.at = atHello
	name := s.server.Hello
	if name == "" {
		name = "localhost"
	}
	return s.client.Hello(name)
}

func (s *session) startTLS() error {
	if s.implicit {
		return nil
	}
	s.at = atStartTLS
	if !s.offers("STARTTLS") {
		if s.server.AllowPlain {
			return nil
		}
		return invalid(fault.ReasonUnsupported, "the server does not offer it")
	}
	return s.client.StartTLS(s.config())
}

func (s *session) config() *tls.Config {
	config := s.server.TLS.Clone()
	if config == nil {
		config = &tls.Config{}
	}
	if config.ServerName == "" {
		config.ServerName = s.host
	}
	return config
}

func (s *session) login() error {
	user, password := s.server.Username, s.server.Password
	if user == "" {
		return nil
	}
	s.at = atLogin
	if _, secure := s.client.TLSConnectionState(); !secure {
		return invalid(fault.ReasonUnsupported, "a password is not sent without TLS, which the server does not offer")
	}
	_, offered := s.client.Extension("AUTH")
	for _, m := range []struct {
		name string
		auth smtp.Auth
	}{
		{"SCRAM-SHA-256", smtp.ScramSHA256Auth(user, password)},
		{"PLAIN", smtp.PlainAuth("", user, password, s.host, false)},
		{"LOGIN", smtp.LoginAuth(user, password, s.host, false)},
	} {
		if slices.Contains(strings.Fields(strings.ToUpper(offered)), m.name) {
			return s.client.Auth(m.auth)
		}
	}
	return invalid(fault.ReasonUnsupported, "no mechanism that we know is among those offered: %.100q", offered)
}

func (s *session) sender() error {
	s.at = atSender
	if _, limit := s.client.Extension("SIZE"); limit != "" {
		if n, err := strconv.Atoi(limit); err == nil && n > 0 && len(s.mail.data) > n {
			return invalid(fault.ReasonRequestTooLarge, "a message of %d bytes, and the server takes %d", len(s.mail.data), n)
		}
	}
	s.client.SkipSMTPUTF8(s.mail.ascii())
	if !s.mail.ascii() && !s.offers("SMTPUTF8") {
		return invalid(fault.ReasonUnsupported, "the server takes no addresses beyond ASCII")
	}
	return s.client.Mail("<" + s.mail.from + ">")
}

// recipients asks for each, also after a refusal, so that the error tells of all. A permanent one decides.
func (s *session) recipients() error {
	s.at = atRecipient
	var worst *fault.Fault
	var all []error
	for _, to := range s.mail.to {
		err := s.client.Rcpt("<" + to + ">")
		reply, answered := readReply(err)
		switch {
		case err == nil:
			s.accepted++
			continue
		case !answered && worst != nil:
			// A server that has just refused may hang up: its refusal is the better answer.
		case !answered || !reply.refuses():
			return fmt.Errorf("<%s>: %w", to, err)
		default:
			f := &fault.Fault{Outcome: fault.OutcomeRejected, Status: reply.Code}
			f.Class, f.Reason, f.Delay = reply.meaning(s.at, s.accepted)
			if worst == nil || reply.permanent() && worst.Status < 500 {
				worst = f
			}
		}
		all = append(all, fmt.Errorf("<%s>: %w", to, err))
		if !answered {
			break
		}
	}
	if worst == nil {
		return nil
	}
	worst.Err = errors.Join(all...)
	return worst
}

// data asks for leave to send the message. The client's own Data is of no use here: its writer sends the dot and waits for
// the reply in one call, and does not say which of them failed.
func (s *session) data() error {
	s.at = atData
	id, err := s.client.Text.Cmd("DATA")
	if err != nil {
		return err
	}
	s.client.Text.StartResponse(id)
	defer s.client.Text.EndResponse(id)
	_, _, err = s.client.Text.ReadResponse(354)
	return err
}

// saidBefore returns why the server cut the connection, if it said so before, and else err.
func (s *session) saidBefore(err error) error {
	s.wire.patience = time.Second
	code, text, readErr := s.client.Text.ReadResponse(0)
	if reply := (&textproto.Error{Code: code, Msg: text}); readErr == nil && code >= 400 {
		return reply
	}
	return err
}

// goodbye ends the session in form, unless err says that the connection is lost. By then it is known what became of the
// mail, and QUIT gives up a transaction that was not ended (RFC 5321, 4.1.1.10).
func (s *session) goodbye(err error) {
	_, answered := readReply(err)
	if _, ours := errors.AsType[*fault.Fault](err); s.client == nil || err != nil && !answered && !ours {
		return
	}
	s.wire.patience = parting
	_ = s.client.Quit() // it changes nothing
}

func (s *session) offers(extension string) bool {
	ok, _ := s.client.Extension(extension)
	return ok
}
