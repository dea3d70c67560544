package smtpfault_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
	"github.com/wneessen/go-mail"

	"github.com/pawlrun/pawl/fault/smtpfault"
)

// mailbox is the backend of a real server: whoever knows the password may send to anybody but nobody@.
type mailbox struct {
	mu    sync.Mutex // guards mails
	mails []string   // envelope and text
}

type session struct {
	box      *mailbox
	user     string
	envelope []string
}

func (b *mailbox) NewSession(*smtp.Conn) (smtp.Session, error) { return &session{box: b}, nil }

func (*session) AuthMechanisms() []string { return []string{sasl.Plain} }

func (s *session) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, user, password string) error {
		if password != "hunter2" {
			return smtp.ErrAuthFailed
		}
		s.user = user
		return nil
	}), nil
}

func (s *session) Reset()        { s.envelope = nil }
func (s *session) Logout() error { return nil }

func (s *session) Mail(from string, _ *smtp.MailOptions) error {
	if s.user == "" {
		return smtp.ErrAuthRequired
	}
	s.envelope = append(s.envelope, from)
	return nil
}

func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	if strings.HasPrefix(to, "nobody@") {
		return &smtp.SMTPError{Code: 550, EnhancedCode: smtp.EnhancedCode{5, 1, 1}, Message: "nobody there"}
	}
	s.envelope = append(s.envelope, to)
	return nil
}

func (s *session) Data(r io.Reader) error {
	text, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	s.box.mu.Lock()
	defer s.box.mu.Unlock()
	s.box.mails = append(s.box.mails, fmt.Sprint(s.envelope)+"\n"+string(text))
	return nil
}

func newMailbox(t *testing.T) (*mailbox, *smtpfault.Server) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	box, config := &mailbox{}, certificate(t)
	server := smtp.NewServer(box)
	server.Domain, server.TLSConfig, server.EnableSMTPUTF8 = "localhost", config, true
	server.ErrorLog = log.New(io.Discard, "", 0)
	go func() { _ = server.Serve(l) }() // ends with Close
	t.Cleanup(func() { _ = server.Close() })
	return box, &smtpfault.Server{
		Addr: l.Addr().String(), TLS: &tls.Config{RootCAs: config.RootCAs}, Username: "shop", Password: "hunter2",
	}
}

func TestARealServer(t *testing.T) {
	t.Parallel()
	box, server := newMailbox(t)
	msg := mail.NewMsg()
	if err := errors.Join(msg.From("Shop <shop@example.com>"), msg.To("customer@example.com")); err != nil {
		t.Fatal(err)
	}
	msg.SetMessageIDWithValue("invoice-42@shop.example")
	msg.Subject("Rechnung für ünü")
	msg.SetBodyString(mail.TypeTextPlain, ".\r\n..dots\r\n", mail.WithPartEncoding(mail.NoEncoding))

	receipt, err := server.Send(t.Context(), "Shop <shop@example.com>", []string{"customer@example.com", "bücher@example.com"}, msg)
	if err != nil || receipt.MessageID != "invoice-42@shop.example" || !strings.Contains(receipt.Reply, "OK") {
		t.Fatalf("got %+v, %v", receipt, err)
	}
	if len(box.mails) != 1 || !strings.HasPrefix(box.mails[0], "[shop@example.com customer@example.com bücher@example.com]\n") ||
		!strings.Contains(box.mails[0], "\r\n\r\n.\r\n..dots\r\n") {
		t.Errorf("got %q", box.mails)
	}

	_, err = server.Send(t.Context(), "shop@example.com", []string{"customer@example.com", "nobody@example.com"}, strings.NewReader(letter))
	check(t, "a recipient that does not exist", err, noMailbox)
	server.Password = "guessed"
	_, err = send(t.Context(), server, letter)
	check(t, "a wrong password", err, noLogin)
	server.Username = ""
	_, err = send(t.Context(), server, letter)
	check(t, "nobody logged in", err, noEntry)
	if len(box.mails) != 1 {
		t.Errorf("%d mails, want 1", len(box.mails))
	}
}

// A Server may be used by many at once.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	box, server := newMailbox(t)
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			id := fmt.Sprintf("%d@shop.example", n)
			receipt, err := send(t.Context(), server, "Message-ID: <"+id+">\r\n\r\nPay "+id)
			if err != nil || receipt.MessageID != id {
				t.Errorf("got %+v, %v", receipt, err)
			}
		})
	}
	all.Wait()
	slices.Sort(box.mails)
	if box.mails = slices.Compact(box.mails); len(box.mails) != 8 {
		t.Errorf("%d mails, want 8", len(box.mails))
	}
}
