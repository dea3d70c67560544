package fault

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"reflect"
	"strings"
	"sync"
	"time"
)

// NewTransport returns a transport for an http.Client, or for the one inside any SDK. It is built once, and finds the
// [Attempt] that a request belongs to in the request's context. A request that belongs to none passes unchanged, and
// so does every answer: bodies are looked at as they are read, and nothing is held back. It is safe for concurrent use.
//
// A nil base is http.DefaultTransport. Proofs that nothing was sent need net/http's own transport: as base itself, or
// below others that keep the request's context. What a base that knows no httptrace, or a protocol registered with
// http.Transport.RegisterProtocol, has sent is only guessed at for the worse.
//
// For a [KindKeyed] attempt it adds the operation key to writes that carry none: in the provider's own header, none for
// a known provider that documents none, and in Idempotency-Key for anybody else, because the step's kind says that
// the far end honours it. net/http sends a request with that header again by itself if a kept connection breaks
// (counted in [Send]'s Replays). For [KindOnce] it adds nothing and keeps net/http from that.
func NewTransport(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	t := &transport{base: base, http1: map[string]bool{}}
	if plain, ok := base.(*http.Transport); ok {
		t.plain = true
		t.clear = plain.Protocols == nil || !plain.Protocols.UnencryptedHTTP2()
	}
	return t
}

type transport struct {
	base  http.RoundTripper
	plain bool // base is net/http's own
	clear bool // plain, and unencrypted connections speak HTTP/1

	mu    sync.Mutex      // guards http1
	http1 map[string]bool // host → its encrypted connections speak HTTP/1
}

// maxHosts is how many hosts a transport remembers.
const maxHosts = 1000

// CloseIdleConnections lets http.Client.CloseIdleConnections reach the base.
func (t *transport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	a := AttemptOf(req.Context())
	if a == nil || req.URL == nil {
		return t.base.RoundTrip(req)
	}
	s := t.newSend(a, req)
	if f := a.admit(s, time.Now()); f != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, f
	}
	ctx, cancel := context.WithCancelCause(WithAttempt(req.Context(), nil)) // a second such transport below must not count it again
	ctx = httptrace.WithClientTrace(ctx, t.trace(s, req.URL.Host, cancel))
	resp, err := t.base.RoundTrip(t.outgoing(s, req.WithContext(ctx)))
	if err != nil || resp == nil {
		cancel(nil)
		return resp, s.failed(err)
	}
	a.mu.Lock()
	s.stop = nil // unreachable unless the base went on with a request that was cancelled and whose connection was closed
	s.answered(resp)
	a.mu.Unlock()
	resp.Request = req
	switch {
	case resp.StatusCode == http.StatusSwitchingProtocols: // the connection is the caller's now
		s.finish(ctx, nil)
	case resp.Body == nil || resp.Body == http.NoBody:
		s.finish(ctx, io.EOF)
		cancel(nil)
	default:
		resp.Body = &incoming{ctx: ctx, body: resp.Body, s: s, release: func() { cancel(nil) }}
	}
	return resp, nil
}

func (t *transport) newSend(a *Attempt, req *http.Request) *send {
	s := &send{a: a, plain: t.plain, clear: t.clear, usual: req.URL.Scheme == "http" || req.URL.Scheme == "https"}
	if s.provider = providerFor(a.Provider, nil); a.Provider == "" {
		s.provider = providerOf(req.URL.Host, req.URL.Path, nil)
	}
	method := cleanText(req.Method, maxWord)
	if method == "" {
		method = http.MethodGet
	}
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		s.replayable = true
	default:
		s.write = true
		s.replayable = headerSet(req.Header, "Idempotency-Key") || headerSet(req.Header, "X-Idempotency-Key")
	}
	if s.write && a.held() {
		s.mark = newFingerprint(req)
		s.keyIn = s.keyHeader(req.Header)
		s.replayable = s.replayable || s.keyIn == "Idempotency-Key"
	}
	s.seen = Send{Method: method, Host: cleanText(req.URL.Host, maxWord), Path: openPath(req.URL.Path), Began: time.Now(),
		Phase: PhaseNothing, Provider: s.provider.name}
	if s.write && s.provider.model {
		s.seen.Usage.Model = modelOfRequest(req)
	}
	return s
}

// headerSet is net/http's own test: the name as it is, even without a value.
func headerSet(h http.Header, name string) bool {
	_, ok := h[name]
	return ok
}

// keyHeader returns the header in which the operation key is to be added, "" for none. A provider that is known and
// documents none gets none.
func (s *send) keyHeader(h http.Header) string {
	name := s.provider.keyHeader
	if known := providerNamed(s.provider.name); known == nil || known == &generic || known == &cdn {
		name = "Idempotency-Key"
	}
	if s.a.Kind != KindKeyed || s.a.Key == "" || name == "" {
		return ""
	}
	for _, own := range []string{name, "Idempotency-Key", "X-Idempotency-Key"} {
		if h.Get(own) != "" {
			return ""
		}
	}
	return name
}

// openPath returns a path without what in it may be a secret, as in the addresses of some webhooks and bots: of a segment
// that is long and of both cases or all hexadecimal, or has an address in it, it keeps the beginning.
func openPath(path string) string {
	segments := strings.Split(cleanText(path, 10*maxWord), "/")
	for i, s := range segments {
		mixed := len(s) >= 20 && strings.ToLower(s) != s && strings.ToUpper(s) != s && !strings.ContainsAny(s, " ")
		hex := len(s) >= 32 && strings.Trim(strings.ToLower(s), "0123456789abcdef") == ""
		switch {
		case mixed, hex:
			segments[i] = cleanText(s, 6) + "…"
		case strings.Contains(s, "@"):
			segments[i] = cleanText(s, 1) + "…"
		}
	}
	return strings.Join(segments, "/")
}

// modelOfRequest finds the model that is asked for. The answer's word replaces it: it names the exact one.
func modelOfRequest(req *http.Request) string {
	if model := modelOfPath(req.URL.Path); model != "" || req.GetBody == nil {
		return model
	}
	body, err := req.GetBody()
	if err != nil {
		return ""
	}
	defer body.Close()
	return modelIn(body)
}

// outgoing prepares the request for the base. req is a copy already, its header is not.
func (t *transport) outgoing(s *send, req *http.Request) *http.Request {
	a := s.a
	if s.keyIn != "" {
		if req.Header = req.Header.Clone(); req.Header == nil {
			req.Header = http.Header{}
		}
		req.Header.Set(s.keyIn, a.Key)
	}
	if req.Body == nil || req.Body == http.NoBody {
		return req
	}
	if req.GetBody != nil { // which may have been read ahead, and may share its position with Body
		if fresh, err := req.GetBody(); err == nil {
			req.Body = &renewed{fresh, req.Body}
		}
	}
	req.Body = s.watch(req.Body)
	switch again := req.GetBody; {
	case again == nil:
	case a.Kind == KindOnce && s.write && req.URL.Scheme == "https" && !t.speaksHTTP1(req.URL.Host):
		// With it, HTTP/2 sends a stream again that was refused, and also one that broke in a way that proves
		// nothing. Without it, it fails, and says which of the two it was: see unprocessed.
		req.GetBody = nil
	default:
		req.GetBody = func() (io.ReadCloser, error) {
			body, err := again()
			if err != nil {
				return nil, err
			}
			return s.watch(body), nil
		}
	}
	return req
}

// trace notes how far the request gets. It composes with a trace that the context has already.
func (t *transport) trace(s *send, host string, cancel context.CancelCauseFunc) *httptrace.ClientTrace {
	note := func(f func()) {
		s.a.mu.Lock()
		defer s.a.mu.Unlock()
		f()
	}
	return &httptrace.ClientTrace{
		GetConn: func(string) {
			note(func() { s.announced, s.pending = true, s.conns > 0 })
		},
		GotConn: func(info httptrace.GotConnInfo) {
			var stop *Fault
			var to leg
			note(func() { stop, to = s.got(info, time.Now()), s.leg })
			if to.http1 || to.http2 {
				t.remember(host, to.http1)
			}
			if stop != nil { // HTTP/2 looks at the context before it writes, HTTP/1 only afterwards
				cancel(stop)
				if !to.http2 {
					info.Conn.Close()
				}
			}
		},
		WroteHeaders: func() {
			note(func() { s.leg.headers = true; s.reach(PhaseHeaders) })
		},
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil {
				note(func() { s.reach(PhaseRequest) })
			}
		},
		GotFirstResponseByte: func() {
			note(func() { s.reach(PhaseFirstByte) })
		},
	}
}

func (t *transport) speaksHTTP1(host string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.http1[host]
}

func (t *transport) remember(host string, http1 bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.http1) >= maxHosts {
		clear(t.http1)
	}
	t.http1[host] = http1
}

// failed notes the error of the round trip and returns the one for the caller.
func (s *send) failed(err error) error {
	if err == nil {
		err = errors.New("no answer and no error from the base transport") // unreachable unless it breaks its contract
	}
	if r := unprocessed(err); r != "" {
		f := r.fault()
		f.Message, f.Err = err.Error(), err
		err = &f
	}
	s.a.mu.Lock()
	defer s.a.mu.Unlock()
	if s.stop != nil {
		err = s.stop
	} else {
		s.err = err
	}
	s.end(time.Now())
	return err
}

// unprocessed reads the one error of net/http that proves something and has no type. HTTP/2 gives it where it would
// send a request again and cannot have its body again. The cause that it names in brackets is a stream that was
// refused, or one above the last of a GOAWAY; or else a PROTOCOL_ERROR, which proves nothing.
func unprocessed(err error) Reason {
	if reflect.TypeOf(err) != reflect.TypeOf(errors.New("")) {
		return ""
	}
	cause, ok := strings.CutPrefix(err.Error(), "http2: Transport: cannot retry err [")
	cause, _, closed := strings.Cut(cause, "] after Request.Body was written")
	switch {
	case !ok || !closed:
	case strings.HasSuffix(cause, "; REFUSED_STREAM"), strings.HasSuffix(cause, "; REFUSED_STREAM; received from peer"):
		return ReasonRefusedStream
	case strings.HasSuffix(cause, "graceful shutdown GOAWAY"):
		return ReasonGoAway
	}
	return ""
}
