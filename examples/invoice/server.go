package main

import (
	"context"
	"io"
	"log"
	"net"
	netmail "net/mail"
	"strings"
	"sync"

	"github.com/emersion/go-smtp"
)

// office connects to the mail server that the flags name, or to one of its own.
func (f flags) office() (*office, func(), error) {
	if f.smtp != "" {
		return &office{smtp: f.smtp}, func() {}, nil // a real Sent folder is looked into over IMAP
	}
	s, err := newServer()
	if err != nil {
		return nil, nil, err
	}
	s.lose = f.loseReply
	o := &office{smtp: s.addr, sent: s.sent}
	if f.noSent {
		o.sent = nil
	}
	return o, s.stop, nil
}

// server is a mail server on the loopback interface which keeps what it has accepted.
type server struct {
	addr string
	smtp *smtp.Server

	mu   sync.Mutex     // guards all below
	ids  map[string]int // Message-ID to how often it was accepted
	lose bool           // accept the next mail and cut the connection instead of saying so
	busy bool           // refuse the next mail for now
	then func()         // called after a mail was accepted, before the reply
}

func newServer() (*server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &server{addr: l.Addr().String(), ids: map[string]int{}}
	s.smtp = smtp.NewServer(smtp.BackendFunc(func(c *smtp.Conn) (smtp.Session, error) { return &session{s, c.Conn()}, nil }))
	s.smtp.Domain, s.smtp.ErrorLog = "localhost", log.New(io.Discard, "", 0) // a cut connection is no news
	go func() { _ = s.smtp.Serve(l) }()                                      // ends with stop
	return s, nil
}

func (s *server) stop() { _ = s.smtp.Close() }

// sent looks into the folder Sent.
func (s *server) sent(_ context.Context, messageID string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids[messageID] > 0, nil
}

type session struct {
	s    *server
	conn net.Conn
}

func (*session) Reset()                               {}
func (*session) Logout() error                        { return nil }
func (*session) Rcpt(string, *smtp.RcptOptions) error { return nil }

// Mail begins a mail, or says that this is not the time.
func (c *session) Mail(string, *smtp.MailOptions) error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.s.busy {
		c.s.busy = false
		return &smtp.SMTPError{Code: 451, Message: "not now"}
	}
	return nil
}

// Data accepts a mail. What is returned is the reply.
func (c *session) Data(r io.Reader) error {
	m, err := netmail.ReadMessage(r)
	if err != nil {
		return err
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.ids[strings.Trim(m.Header.Get("Message-ID"), "<>")]++
	if c.s.then != nil {
		c.s.then()
	}
	if c.s.lose {
		c.s.lose = false
		return c.conn.Close()
	}
	return nil
}
