package smtpfault_test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawlrun/pawl/fault/smtpfault"
)

// How a scripted server fails, besides with a reply.
const (
	cut   = "cut"   // it closes the connection
	stall = "stall" // it says nothing more
)

// script is a mail server on the loopback interface that offers STARTTLS and AUTH and does well, but for one place.
type script struct {
	t        *testing.T
	listener net.Listener
	tls      *tls.Config
	at       string            // "greeting", a command, "message", "dot"
	how      string            // a reply, cut, or stall
	only     string            // fail only if the command contains it
	also     map[string]string // further replies, by what the command contains
	bare     bool              // offer no extension
	implicit bool              // TLS from the first byte
	stalled  chan struct{}

	mu       sync.Mutex // guards all below
	commands []string
	messages []string
}

func newScript(t *testing.T, at, how string, more ...func(*script)) *script {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &script{t: t, listener: l, tls: certificate(t), at: at, how: how, stalled: make(chan struct{}, 1)}
	for _, set := range more {
		set(s)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed below
			}
			conns.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		conns.Wait()
	})
	return s
}

func bare(s *script)     { s.bare = true }
func implicit(s *script) { s.implicit = true }

func only(part string) func(*script) { return func(s *script) { s.only = part } }

// server returns a client's view of s.
func (s *script) server() *smtpfault.Server {
	return &smtpfault.Server{
		Addr: s.listener.Addr().String(), TLS: &tls.Config{RootCAs: s.tls.RootCAs}, Username: "shop", Password: "hunter2",
		ImplicitTLS: s.implicit,
	}
}

// seen returns the commands that s was given and the messages that were ended.
func (s *script) seen() (commands, messages []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.commands...), append([]string(nil), s.messages...)
}

func (s *script) serve(raw net.Conn) {
	defer raw.Close()
	conn := raw
	if s.implicit {
		conn = tls.Server(raw, s.tls)
	}
	r := bufio.NewReader(conn)
	if !s.answer(conn, r, "greeting", "220 script ready") {
		return
	}
	for {
		command, err := r.ReadString('\n')
		if err != nil {
			return
		}
		command = strings.TrimSpace(command)
		s.mu.Lock()
		s.commands = append(s.commands, command)
		s.mu.Unlock()
		verb, _, _ := strings.Cut(strings.ToUpper(command), " ")
		if verb == "HELO" {
			verb = "EHLO" // who refuses one refuses the other
		}
		if !s.answer(conn, r, verb, s.usual(verb), command) {
			return
		}
		switch {
		case verb == "STARTTLS":
			conn = tls.Server(raw, s.tls)
			r = bufio.NewReader(conn)
		case verb == "DATA" && (s.at != "DATA" || !strings.HasPrefix(s.how, "2")):
			if s.at == "DATA" {
				continue
			}
			if !s.message(conn, r) {
				return
			}
		case verb == "QUIT":
			return
		}
	}
}

func (s *script) usual(verb string) string {
	switch verb {
	case "EHLO":
		if s.bare {
			return "250 script"
		}
		return "250-script\r\n250-STARTTLS\r\n250-AUTH PLAIN LOGIN\r\n250-SIZE 20000000\r\n250 8BITMIME"
	case "STARTTLS":
		return "220 go on"
	case "AUTH":
		return "235 2.7.0 welcome"
	case "DATA":
		return "354 end with a dot"
	case "QUIT":
		return "221 2.0.0 bye"
	}
	return "250 2.1.0 ok"
}

// message takes a message up to its end and answers it.
func (s *script) message(conn net.Conn, r *bufio.Reader) bool {
	if s.at == "message" && !s.answer(conn, r, "message", "") {
		return false
	}
	var text strings.Builder
	for {
		l, err := r.ReadString('\n')
		if err != nil {
			return false
		}
		if l == ".\r\n" {
			break
		}
		text.WriteString(strings.TrimPrefix(l, "."))
	}
	s.mu.Lock()
	s.messages = append(s.messages, text.String())
	s.mu.Unlock()
	if s.at == "message" {
		return true // it was answered before
	}
	return s.answer(conn, r, "dot", "250 2.0.0 Ok: queued as 4Zx1")
}

// answer says what is usual, or fails if this is the place, and reports whether to go on.
func (s *script) answer(conn net.Conn, r io.Reader, at, usual string, command ...string) bool {
	how := usual
	for part, reply := range s.also {
		if strings.Contains(strings.Join(command, ""), part) {
			how = reply
		}
	}
	if at == s.at && strings.Contains(strings.Join(command, ""), s.only) {
		how = s.how
	}
	switch how {
	case cut:
		return false
	case stall:
		s.stalled <- struct{}{}
		if at != "message" { // there it stops reading too
			_, _ = io.Copy(io.Discard, r) // until the client closes
		} else {
			<-s.t.Context().Done()
		}
		return false
	case "":
		return true
	}
	reply, after, _ := strings.Cut(how, "|")
	if _, err := io.WriteString(conn, reply+"\r\n"); err != nil {
		return false
	}
	return after != cut
}

// certificate makes a configuration whose server is 127.0.0.1 and which trusts itself.
func certificate(t *testing.T) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, RootCAs: roots}
}
