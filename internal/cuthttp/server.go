// Package cuthttp is an HTTP server for tests of what a client makes of a connection that breaks. For each request a
// test says where.
package cuthttp

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Cut says where the server breaks off. The zero value answers in full.
type Cut int

// The cuts.
const (
	// Nowhere: the answer is complete, and the connection stays open.
	Nowhere Cut = iota
	// AtStart closes the connection before anything is read.
	AtStart
	// AfterHeaders closes it, or resets the stream, when the request's headers were read.
	AfterHeaders
	// MidBody does when a part of the request's body was read. The body must be longer than that.
	MidBody
	// BeforeReply does when the whole request was read.
	BeforeReply
	// MidReply does when status, headers and Reply.Body were sent, but not the end of the answer.
	MidReply
	// Stay says nothing until the client has gone or the server is closed.
	Stay
	// Refuse resets the stream with REFUSED_STREAM. This and those below are for HTTP/2 only.
	Refuse
	// Violation resets it with PROTOCOL_ERROR.
	Violation
	// GoAwayBefore tells the client to go away, and that the stream was not processed.
	GoAwayBefore
	// GoAwayWithin tells it to go away, and that the stream may have been processed, and closes the connection.
	GoAwayWithin
)

// Reply is what the server answers to one request. A zero Status is 200.
type Reply struct {
	Cut    Cut
	Status int
	Header map[string]string
	Body   string
}

// Server is a running server.
type Server struct {
	URL string

	t        testing.TB
	listener net.Listener
	roots    *x509.CertPool
	http2    bool
	replies  func(n int) Reply
	wg       sync.WaitGroup

	mu       sync.Mutex // guards what follows
	requests []Request
	conns    map[net.Conn]struct{}
	closed   bool
}

// Request is what the server has read of a request whose headers it has seen in full.
type Request struct {
	Method string // "" over HTTP/2, whose headers the server does not decode
	Header http.Header
	Body   int  // bytes
	Whole  bool // the body was read to its end
}

// Protocol says what a server speaks.
type Protocol int

// The protocols.
const (
	HTTP1 Protocol = iota
	HTTP1TLS
	HTTP2 // over TLS
)

func (p Protocol) String() string { return [...]string{"HTTP/1.1", "HTTP/1.1 over TLS", "HTTP/2"}[p] }

// Start starts a server that answers the n-th request, counted from 0, with replies(n). It is closed when the test ends.
func Start(t testing.TB, p Protocol, replies func(n int) Reply) *Server {
	t.Helper()
	s := &Server{t: t, http2: p == HTTP2, replies: replies, conns: map[net.Conn]struct{}{}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.URL = "http://" + l.Addr().String()
	if p != HTTP1 {
		borrowed := httptest.NewTLSServer(nil) // for its certificate
		s.roots = x509.NewCertPool()
		s.roots.AddCert(borrowed.Certificate())
		config := &tls.Config{Certificates: borrowed.TLS.Certificates, NextProtos: []string{"http/1.1"}}
		if p == HTTP2 {
			config.NextProtos = []string{"h2"}
		}
		borrowed.Close()
		l, s.URL = tls.NewListener(l, config), "https://"+l.Addr().String()
	}
	s.listener = l
	s.wg.Go(s.accept)
	t.Cleanup(s.Close)
	return s
}

// Always is a script that answers every request in the same way.
func Always(r Reply) func(int) Reply { return func(int) Reply { return r } }

// Script answers one request after the other as told, the last way from then on.
func Script(all ...Reply) func(int) Reply {
	return func(n int) Reply { return all[min(n, len(all)-1)] }
}

// Transport returns a new transport that trusts the server. Its connections are closed when the test ends.
func (s *Server) Transport() *http.Transport {
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.roots}, ForceAttemptHTTP2: s.http2}
	s.t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// Requests returns the requests so far.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Close stops the server and waits for its connections to end.
func (s *Server) Close() {
	s.listener.Close()
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (s *Server) accept() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns[c] = struct{}{}
		closed := s.closed
		s.mu.Unlock()
		if closed {
			c.Close()
			return
		}
		s.wg.Go(func() {
			defer s.forget(c)
			if s.http2 {
				s.serve2(c)
			} else {
				s.serve1(c)
			}
		})
	}
}

func (s *Server) forget(c net.Conn) {
	c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// begin notes a request and returns its number.
func (s *Server) begin(r Request) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r)
	return len(s.requests) - 1
}

func (s *Server) note(n, body int, whole bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests[n].Body, s.requests[n].Whole = body, whole
}

// serve1 serves one connection of HTTP/1.1.
func (s *Server) serve1(c net.Conn) {
	if s.replies(len(s.Requests())).Cut == AtStart {
		if t, ok := c.(*tls.Conn); ok {
			_ = t.Handshake()
		}
		return
	}
	in := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		n := s.begin(Request{Method: req.Method, Header: req.Header})
		r := s.replies(n)
		if r.Cut == AfterHeaders {
			reset(c)
			return
		}
		if r.Cut == MidBody {
			read, _ := io.CopyN(io.Discard, req.Body, 1000)
			s.note(n, int(read), false)
			reset(c)
			return
		}
		read, err := io.Copy(io.Discard, req.Body)
		s.note(n, int(read), err == nil)
		switch {
		case err != nil, r.Cut == BeforeReply:
			return
		case r.Cut == Stay:
			_, _ = in.ReadByte()
			return
		}
		if s.write1(c, req.Method, r); r.Cut == MidReply {
			return
		}
	}
}

// write1 writes the answer in chunks, of which the last one is missing where it is cut.
func (s *Server) write1(c net.Conn, method string, r Reply) {
	var b strings.Builder
	status := r.status()
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\nTransfer-Encoding: chunked\r\n", status, http.StatusText(status))
	for name, value := range r.Header {
		fmt.Fprintf(&b, "%s: %s\r\n", name, value)
	}
	b.WriteString("\r\n")
	if len(r.Body) > 0 && method != http.MethodHead {
		fmt.Fprintf(&b, "%x\r\n%s\r\n", len(r.Body), r.Body)
	}
	if r.Cut != MidReply && method != http.MethodHead {
		b.WriteString("0\r\n\r\n")
	}
	_, _ = io.WriteString(c, b.String())
}

func (r Reply) status() int {
	if r.Status == 0 {
		return http.StatusOK
	}
	return r.Status
}

// reset closes c so that the client sees a reset, unread data or not.
func reset(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	var tcp *net.TCPConn
	if tcp, _ = c.(*net.TCPConn); tcp != nil {
		_ = tcp.SetLinger(0)
	}
	c.Close()
}

var errClosed = errors.New("the peer has gone")
