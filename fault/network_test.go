package fault_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pawlrun/pawl/fault"
)

func TestFromNetworkByWhatTheErrorProves(t *testing.T) {
	op := func(op string, err error) error { return &net.OpError{Op: op, Net: "tcp", Err: err} }
	sys := func(e syscall.Errno) error { return os.NewSyscallError("call", e) }
	unreachable := want{fault.Transient, fault.ReasonUnreachable, notSent}
	lost := want{fault.OutcomeUnknown, fault.ReasonConnectionLost, maybe}
	timeout := want{fault.OutcomeUnknown, fault.ReasonClientTimeout, maybe}
	rows := []struct {
		rule string
		err  error
		want want
	}{
		{"dial refused", op("dial", sys(syscall.ECONNREFUSED)), unreachable},
		{"dial without a route", op("dial", sys(syscall.EHOSTUNREACH)), unreachable},
		{"dial reset", op("dial", sys(syscall.ECONNRESET)), unreachable},
		{"dial timeout", op("dial", os.ErrDeadlineExceeded), unreachable},
		{"dial cut by some context", op("dial", context.Canceled), unreachable},
		{"dial cut by the engine's cause", op("dial", fault.ErrLeaseLost), unreachable},
		{"dial, out of descriptors", op("dial", sys(syscall.EMFILE)), unreachable},
		{"dial for a reason nobody knows", op("dial", errors.New("x")), unreachable},
		{"proxy down", op("proxyconnect", op("dial", sys(syscall.ECONNREFUSED))), want{fault.Transient, fault.ReasonProxyUnreachable, notSent}},
		{"proxy not found", op("proxyconnect", op("dial", &net.DNSError{IsNotFound: true})), want{fault.InvalidRequest, fault.ReasonHostNotFound, notSent}},
		{"proxy broke while connecting", op("proxyconnect", io.EOF), want{fault.Transient, fault.ReasonProxyUnreachable, notSent}},
		{"no such host", op("dial", &net.DNSError{IsNotFound: true}), want{fault.InvalidRequest, fault.ReasonHostNotFound, notSent}},
		{"no such host, bare", &net.DNSError{IsNotFound: true}, want{fault.InvalidRequest, fault.ReasonHostNotFound, notSent}},
		{"resolver fails, not temporary", op("dial", &net.DNSError{Err: "server misbehaving"}), want{fault.Transient, fault.ReasonDNS, notSent}},
		{"resolver times out", &net.DNSError{IsTimeout: true}, want{fault.Transient, fault.ReasonDNS, notSent}},
		{"an address that cannot be dialled", op("dial", &net.AddrError{Err: "missing port in address"}), want{fault.InvalidRequest, fault.ReasonBadAddress, notSent}},
		{"certificate", &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, want{fault.InvalidRequest, fault.ReasonTLSCertificate, notSent}},
		{"expired certificate", &url.Error{Err: &tls.CertificateVerificationError{Err: x509.CertificateInvalidError{Reason: x509.Expired}}}, want{fault.InvalidRequest, fault.ReasonTLSCertificate, notSent}},
		{"x509 out of a round trip", &url.Error{Err: x509.HostnameError{Certificate: new(x509.Certificate)}}, want{fault.InvalidRequest, fault.ReasonTLSCertificate, notSent}},
		{"x509 from who knows where", x509.UnknownAuthorityError{}, want{fault.InvalidRequest, fault.ReasonTLSCertificate, maybe}},
		{"http on an https port", &url.Error{Err: http.ErrSchemeMismatch}, want{fault.InvalidRequest, fault.ReasonWrongScheme, notSent}},
		{"read reset", op("read", sys(syscall.ECONNRESET)), lost},
		{"write on a broken pipe", op("write", sys(syscall.EPIPE)), lost},
		{"refused, but while reading", op("read", sys(syscall.ECONNREFUSED)), lost},
		{"read timeout", op("read", os.ErrDeadlineExceeded), timeout},
		{"TLS alert, perhaps after the request", op("remote error", tls.AlertError(42)), lost},
		{"EOF out of a round trip", &url.Error{Op: "Post", Err: io.EOF}, lost},
		{"cut body", io.ErrUnexpectedEOF, want{fault.OutcomeUnknown, fault.ReasonResponseTruncated, maybe}},
		{"use of a closed connection", fmt.Errorf("x: %w", net.ErrClosed), lost},
		{"refused, bare", sys(syscall.ECONNREFUSED), unreachable},
		{"reset, bare", syscall.ECONNRESET, lost},
		{"no route, bare: may come from an open connection", syscall.EHOSTUNREACH, lost},
		{"disk full", &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}, want{fault.QuotaExhausted, fault.ReasonStorageFull, maybe}},
		{"errno of another kind", &os.PathError{Op: "open", Path: "x", Err: syscall.EACCES}, want{fault.OutcomeUnknown, fault.ReasonUnrecognized, maybe}},
		{"some timer's error", timer{}, timeout},
		{"a timeout inside url.Error", &url.Error{Err: timer{}}, timeout},
	}
	for _, row := range rows {
		check(t, row.rule, fault.From(row.err), row.want)
		check(t, row.rule+", wrapped", fault.From(fmt.Errorf("call: %w", row.err)), row.want)
	}
}

type timer struct{}

func (timer) Error() string { return "timed out" }
func (timer) Timeout() bool { return true }

// post sends a POST with a body that is not replayed by net/http.
func post(t *testing.T, c *http.Client, url string) error {
	t.Helper()
	response, err := c.Post(url, "text/plain", io.MultiReader(strings.NewReader("hello")))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.ReadAll(response.Body)
	return err
}

// serve listens, and hands every connection to handle, which owns it.
func serve(t *testing.T, handle func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			handle(c)
		}
	}()
	return l.Addr().String()
}

// readRequest reads one request with its body.
func readRequest(c net.Conn) {
	if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
		_, _ = io.Copy(io.Discard, r.Body) // the client may end before its body does
	}
}

// free returns an address of this host on which nobody listens.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestFromRealSockets(t *testing.T) {
	lost := want{fault.OutcomeUnknown, fault.ReasonConnectionLost, maybe}
	client := func(t *testing.T, tr *http.Transport) *http.Client {
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr}
	}
	t.Run("dial refused", func(t *testing.T) {
		err := post(t, client(t, new(http.Transport)), "http://"+free(t))
		check(t, "nobody listens: nothing was sent", fault.From(err), want{fault.Transient, fault.ReasonUnreachable, notSent})
	})
	t.Run("dial timeout", func(t *testing.T) {
		_, err := (&net.Dialer{Deadline: time.Now().Add(-time.Second)}).Dial("tcp", free(t))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Logf("this Go no longer takes a dial timeout for a context's: %v", err)
		}
		check(t, "a dial timeout is no deadline of ours", fault.FromContext(t.Context(), t.Context(), err),
			want{fault.Transient, fault.ReasonUnreachable, notSent})
	})
	t.Run("missing port", func(t *testing.T) {
		_, err := net.Dial("tcp", "127.0.0.1")
		check(t, "an address without a port", fault.From(err), want{fault.InvalidRequest, fault.ReasonBadAddress, notSent})
	})
	t.Run("proxy refused", func(t *testing.T) {
		tr := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: free(t)})}
		check(t, "the proxy is down: nothing was sent", fault.From(post(t, client(t, tr), "https://pawl.invalid")),
			want{fault.Transient, fault.ReasonProxyUnreachable, notSent})
	})
	t.Run("reset after accept", func(t *testing.T) {
		addr := serve(t, func(c net.Conn) {
			readRequest(c)
			if err := c.(*net.TCPConn).SetLinger(0); err != nil { // close with RST
				t.Error(err)
			}
			c.Close()
		})
		check(t, "reset after the request was read", fault.From(post(t, client(t, new(http.Transport)), "http://"+addr)), lost)
	})
	t.Run("closed after accept", func(t *testing.T) {
		addr := serve(t, func(c net.Conn) { readRequest(c); c.Close() })
		check(t, "closed without an answer", fault.From(post(t, client(t, new(http.Transport)), "http://"+addr)), lost)
	})
	t.Run("body cut", func(t *testing.T) {
		addr := serve(t, func(c net.Conn) {
			readRequest(c)
			if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"); err != nil {
				t.Error(err)
			}
			c.Close()
		})
		check(t, "a body shorter than announced", fault.From(post(t, client(t, new(http.Transport)), "http://"+addr)),
			want{fault.OutcomeUnknown, fault.ReasonResponseTruncated, maybe})
	})
	t.Run("client timeout", func(t *testing.T) {
		addr := serve(t, func(c net.Conn) { t.Cleanup(func() { c.Close() }) })
		c := client(t, new(http.Transport))
		c.Timeout = 50 * time.Millisecond
		check(t, "http.Client.Timeout is a timer of theirs", fault.FromContext(t.Context(), t.Context(), post(t, c, "http://"+addr)),
			want{fault.OutcomeUnknown, fault.ReasonClientTimeout, maybe})
		c = client(t, &http.Transport{ResponseHeaderTimeout: 50 * time.Millisecond})
		check(t, "so is ResponseHeaderTimeout", fault.From(post(t, c, "http://"+addr)),
			want{fault.OutcomeUnknown, fault.ReasonClientTimeout, maybe})
	})
	t.Run("TLS handshake timeout", func(t *testing.T) {
		addr := serve(t, func(c net.Conn) { t.Cleanup(func() { c.Close() }) })
		c := client(t, &http.Transport{TLSHandshakeTimeout: 50 * time.Millisecond})
		check(t, "no request before the handshake", fault.From(post(t, c, "https://"+addr)),
			want{fault.Transient, fault.ReasonUnreachable, notSent})
	})
	t.Run("TLS certificate", func(t *testing.T) {
		server := httptest.NewUnstartedServer(http.NotFoundHandler())
		server.Config.ErrorLog = quiet()
		server.StartTLS()
		defer server.Close()
		check(t, "an authority nobody knows", fault.From(post(t, client(t, new(http.Transport)), server.URL)),
			want{fault.InvalidRequest, fault.ReasonTLSCertificate, notSent})
		c := server.Client()
		c.Transport.(*http.Transport).TLSClientConfig.ServerName = "other.invalid"
		check(t, "a certificate for another name", fault.From(post(t, c, server.URL)),
			want{fault.InvalidRequest, fault.ReasonTLSCertificate, notSent})
	})
	t.Run("https to an http port", func(t *testing.T) {
		server := httptest.NewServer(http.NotFoundHandler())
		defer server.Close()
		check(t, "the port speaks http", fault.From(post(t, client(t, new(http.Transport)), "https://"+server.Listener.Addr().String())),
			want{fault.InvalidRequest, fault.ReasonWrongScheme, notSent})
	})
	t.Run("https to a port that speaks neither", func(t *testing.T) {
		addr := serve(t, func(c net.Conn) { io.WriteString(c, "220 mail ready\r\n"); t.Cleanup(func() { c.Close() }) })
		check(t, "the port speaks something else", fault.From(post(t, client(t, new(http.Transport)), "https://"+addr)),
			want{fault.InvalidRequest, fault.ReasonWrongScheme, notSent})
	})
}
