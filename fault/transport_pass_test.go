package fault_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"runtime"
	"strings"
	"testing"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/cuthttp"
)

// answers is a base transport that answers without a network.
type answers func(*http.Request) (*http.Response, error)

func (f answers) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func ok(r *http.Request) *http.Response {
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("{}")), Request: r}
}

func TestTransportAddsTheKey(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule     string
		kind     fault.Kind
		key      string
		provider string
		method   string
		url      string
		header   string // set by the caller
		want     map[string]string
	}{
		{"anybody's API", fault.KindKeyed, "k1", "", "POST", "https://api.example.org/x", "", map[string]string{"Idempotency-Key": "k1"}},
		{"each method of a write", fault.KindKeyed, "k1", "", "DELETE", "https://api.example.org/x", "", map[string]string{"Idempotency-Key": "k1"}},
		{"Stripe", fault.KindKeyed, "k1", "", "POST", "https://api.stripe.com/v1/charges", "", map[string]string{"Idempotency-Key": "k1"}},
		{"a provider nobody knows", fault.KindKeyed, "k1", "acme", "POST", "https://api.example.org/x", "", map[string]string{"Idempotency-Key": "k1"}},
		{"a webhook", fault.KindKeyed, "k1", "webhook", "POST", "https://hooks.example.org/x", "", map[string]string{"Webhook-Id": "k1", "Idempotency-Key": ""}},
		{"a provider that honours none", fault.KindKeyed, "k1", "", "POST", "https://api.openai.com/v1/responses", "", map[string]string{"Idempotency-Key": ""}},
		{"a read", fault.KindKeyed, "k1", "", "GET", "https://api.example.org/x", "", map[string]string{"Idempotency-Key": ""}},
		{"a key of the caller's own", fault.KindKeyed, "k1", "", "POST", "https://api.example.org/x", "Idempotency-Key", map[string]string{"Idempotency-Key": "own"}},
		{"another header of the caller's own", fault.KindKeyed, "k1", "", "POST", "https://api.example.org/x", "X-Idempotency-Key", map[string]string{"Idempotency-Key": "", "X-Idempotency-Key": "own"}},
		{"no key", fault.KindKeyed, "", "", "POST", "https://api.example.org/x", "", map[string]string{"Idempotency-Key": ""}},
		{"Once", fault.KindOnce, "k1", "", "POST", "https://api.example.org/x", "", map[string]string{"Idempotency-Key": ""}},
		{"Repeatable", fault.KindRepeatable, "k1", "", "POST", "https://api.example.org/x", "", map[string]string{"Idempotency-Key": ""}},
	} {
		var sent *http.Request
		rt := fault.NewTransport(answers(func(r *http.Request) (*http.Response, error) { sent = r; return ok(r), nil }))
		a := &fault.Attempt{Kind: row.kind, Key: row.key, Provider: row.provider}
		req, err := http.NewRequestWithContext(fault.WithAttempt(t.Context(), a), row.method, row.url, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		if row.header != "" {
			req.Header.Set(row.header, "own")
		}
		before := req.Header.Clone()
		resp, err := rt.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		for name, want := range row.want {
			if got := sent.Header.Get(name); got != want {
				t.Errorf("rule broken: the operation key goes to %s\n got %s %q\nwant %q", row.rule, name, got, want)
			}
		}
		if fmt.Sprint(req.Header) != fmt.Sprint(before) || resp.Request != req {
			t.Errorf("rule broken: %s: the caller's request stays as it is, and is the response's", row.rule)
		}
	}
}

// stale is a server whose connections are closed, on command, after they have carried an answer.
func stale(t *testing.T) (s *cuthttp.Server, rt *http.Transport) {
	s = cuthttp.Start(t, cuthttp.HTTP1, cuthttp.Script(cuthttp.Reply{}, cuthttp.Reply{Cut: cuthttp.BeforeReply}, cuthttp.Reply{Status: 422}))
	rt = s.Transport()
	if err := call(t.Context(), rt, "GET", s.URL, ""); err != nil { // so that the next request reuses its connection
		t.Fatal(err)
	}
	return s, rt
}

func TestTransportCountsWhatNetHTTPSendsAgain(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule    string
		kind    fault.Kind
		key     string
		method  string
		body    string
		header  string
		replays int
		outcome fault.Outcome
	}{
		{"Keyed: net/http sends a request with the key again, and the rejection is that of the second", fault.KindKeyed, "k1", "POST", "x", "", 1, maybe},
		{"Keyed without a key: not again", fault.KindKeyed, "", "POST", "x", "", 0, maybe},
		{"Once: not again, although the caller has set a key", fault.KindOnce, "k1", "POST", "x", "Idempotency-Key", 1, maybe},
		{"Once: nor without a body", fault.KindOnce, "k1", "DELETE", "", "Idempotency-Key", 1, maybe},
		{"a read is sent again", fault.KindOnce, "k1", "GET", "", "", 1, maybe},
	} {
		s, base := stale(t)
		a := &fault.Attempt{Kind: row.kind, Key: row.key}
		f := judged(t.Context(), a, func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, row.method, s.URL+"/do", strings.NewReader(row.body))
			if err != nil {
				return err
			}
			if row.body == "" {
				req.Body, req.GetBody = nil, nil
			}
			if row.header != "" {
				req.Header.Set(row.header, "own")
			}
			return send(fault.NewTransport(base), req)
		})
		sends(t, row.rule, a, 1, row.replays, 0)
		if f == nil || f.Outcome != row.outcome {
			t.Errorf("rule broken: %s\n got %v\nwant %v", row.rule, got(f), row.outcome)
		}
		want := 3
		if row.kind == fault.KindOnce && row.method != "GET" || row.key == "" {
			want = 2
		}
		if n := len(s.Requests()); n != want {
			t.Errorf("rule broken: %s\n got %d requests at the server, the first one included\nwant %d", row.rule, n, want)
		}
	}
}

// TestTransportOfAKeptConnection: the server has closed a kept connection before the request was written. net/http sends
// it again by itself where it has written nothing, and the proof of that must not be lost.
func TestTransportOfAKeptConnection(t *testing.T) {
	t.Parallel()
	var opened []net.Conn
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/do" {
			w.WriteHeader(http.StatusUnprocessableEntity)
		}
	}))
	defer srv.Close()
	tr := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		c = &deaf{Conn: c}
		opened = append(opened, c)
		return c, err
	}}
	defer tr.CloseIdleConnections()
	if err := call(t.Context(), tr, "GET", srv.URL, ""); err != nil {
		t.Fatal(err)
	}
	opened[0].(*deaf).broken = true // only writing to it shows that
	a := &fault.Attempt{Kind: fault.KindOnce}
	f := judged(t.Context(), a, func(ctx context.Context) error {
		return call(ctx, fault.NewTransport(tr), "POST", srv.URL+"/do", "x")
	})
	sends(t, "a request of which nothing was written is sent again", a, 1, 1, 0)
	if f == nil || f.Outcome != rejected {
		t.Errorf("rule broken: and what it was answered then is the truth\n got %v, %v", got(f), a.Evidence())
	}
}

// deaf is a connection that at some point takes nothing more.
type deaf struct {
	net.Conn
	broken bool
}

func (d *deaf) Write(p []byte) (int, error) {
	if d.broken {
		return 0, errors.New("broken")
	}
	return d.Conn.Write(p)
}

func TestTransportOfAConnectionThatTakesNothing(t *testing.T) {
	t.Parallel()
	s := cuthttp.Start(t, cuthttp.HTTP1, cuthttp.Always(cuthttp.Reply{}))
	tr := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return &deaf{Conn: c, broken: true}, err
	}}
	a := &fault.Attempt{Kind: fault.KindOnce}
	f := judged(t.Context(), a, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, "POST", s.URL, strings.NewReader("x"))
		if err != nil {
			return err
		}
		req.Header.Set("X-Long", big[:10<<10]) // longer than what net/http keeps before it writes
		return send(fault.NewTransport(tr), req)
	})
	if f.Outcome != notSent || f.Class != fault.Transient {
		t.Errorf("rule broken: without its headers a request is not sent\n got %v, %v", got(f), a.Evidence())
	}
}

func TestTransportOfAReplayThatFindsNobody(t *testing.T) {
	t.Parallel()
	s, tr := stale(t)
	tr.DialContext = func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("refused")}
	}
	a := &fault.Attempt{Kind: fault.KindKeyed, Key: "k1"}
	f := judged(t.Context(), a, func(ctx context.Context) error { return call(ctx, fault.NewTransport(tr), "POST", s.URL, "x") })
	if f.Outcome != maybe {
		t.Errorf("rule broken: that the second connection was refused proves nothing about the first\n got %v, %v", got(f), a.Evidence())
	}
}

func TestTransportOverOneThatTriesAgain(t *testing.T) {
	t.Parallel()
	s := cuthttp.Start(t, cuthttp.HTTP1TLS, cuthttp.Script(cuthttp.Reply{Cut: cuthttp.BeforeReply}, cuthttp.Reply{Status: 422}))
	base := s.Transport()
	again := answers(func(r *http.Request) (*http.Response, error) {
		if resp, err := base.RoundTrip(r); err == nil {
			return resp, nil
		}
		r.Body, _ = r.GetBody()
		return base.RoundTrip(r)
	})
	a := &fault.Attempt{Kind: fault.KindKeyed}
	f := judged(t.Context(), a, func(ctx context.Context) error { return call(ctx, fault.NewTransport(again), "POST", s.URL, "x") })
	if f.Outcome != maybe || a.Evidence().Replays != 1 {
		t.Errorf("rule broken: net/http's reasons to send again are not another's\n got %v, %v", got(f), a.Evidence())
	}
}

func TestTransportWithoutTraceGuessesForTheWorse(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule string
		err  error
		want fault.Outcome
	}{
		{"an error that proves nothing", errors.New("x"), maybe},
		{"one that does", &net.OpError{Op: "dial", Err: errors.New("refused")}, notSent},
	} {
		a := &fault.Attempt{Kind: fault.KindOnce}
		f := judged(t.Context(), a, func(ctx context.Context) error {
			return call(ctx, fault.NewTransport(answers(func(*http.Request) (*http.Response, error) { return nil, row.err })), "POST", "http://x.example", "x")
		})
		if f.Outcome != row.want {
			t.Errorf("rule broken: without httptrace, %s\n got %v\nwant %v", row.rule, f.Outcome, row.want)
		}
	}
}

func TestTransportLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	var sent *http.Request
	base := answers(func(r *http.Request) (*http.Response, error) { sent = r; return ok(r), nil })
	req := httptest.NewRequestWithContext(t.Context(), "POST", "http://x.example/", strings.NewReader("x"))
	resp, err := fault.NewTransport(base).RoundTrip(req)
	if err != nil || sent != req {
		t.Errorf("rule broken: without an attempt the request itself goes to the base\n got %p (%v)\nwant %p", sent, err, req)
	}
	resp.Body.Close()
	a := &fault.Attempt{}
	if err := call(fault.WithAttempt(t.Context(), a), fault.NewTransport(fault.NewTransport(base)), "POST", "http://x.example", ""); err != nil {
		t.Fatal(err)
	}
	sends(t, "two of them count once", a, 1, 0, 0)
}

func TestTransportComposesTraces(t *testing.T) {
	t.Parallel()
	s := cuthttp.Start(t, cuthttp.HTTP1, cuthttp.Always(cuthttp.Reply{}))
	var mine int
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{WroteHeaders: func() { mine++ }})
	a := &fault.Attempt{}
	if err := call(fault.WithAttempt(ctx, a), fault.NewTransport(s.Transport()), "POST", s.URL, "x"); err != nil {
		t.Fatal(err)
	}
	if mine != 1 || a.Sends()[0].Phase != fault.PhaseDone {
		t.Errorf("rule broken: a trace of the caller's own still works\n got %d calls, %v", mine, a.Sends()[0].Phase)
	}
}

func TestTransportDoesNotHoldBackAStream(t *testing.T) {
	t.Parallel()
	next := make(chan string)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for chunk := range next {
			_, _ = io.WriteString(w, chunk)
			w.(http.Flusher).Flush()
		}
	}))
	defer srv.Close()
	a := &fault.Attempt{}
	req, _ := http.NewRequestWithContext(fault.WithAttempt(t.Context(), a), "POST", srv.URL, strings.NewReader("x"))
	resp, err := fault.NewTransport(srv.Client().Transport).RoundTrip(first(req, func() { next <- ": hello\n\n" }))
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	n, err := resp.Body.Read(buf)
	if err != nil || string(buf[:n]) != ": hello\n\n" {
		t.Errorf("rule broken: a chunk passes before the next one is sent\n got %q, %v", buf[:n], err)
	}
	next <- "data: [DONE]\n\n"
	close(next)
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Error(err)
	}
	resp.Body.Close()
	if f := a.Verdict(); f != nil {
		t.Errorf("rule broken: this stream is complete\n got %v", f)
	}
}

// first lets something happen at the server while the request waits for its answer.
func first(r *http.Request, f func()) *http.Request {
	go f()
	return r
}

func TestTransportKeepsNoMoreOfABodyThanItSays(t *testing.T) { // not parallel: it measures memory
	const size = 100 << 20
	for _, kind := range []string{"application/json", "text/event-stream", "application/octet-stream"} {
		rt := fault.NewTransport(answers(func(r *http.Request) (*http.Response, error) {
			resp := ok(r)
			resp.Header.Set("Content-Type", kind)
			resp.Body = io.NopCloser(io.LimitReader(endless{}, size))
			return resp, nil
		}))
		a := &fault.Attempt{Provider: "openai"}
		req, _ := http.NewRequestWithContext(fault.WithAttempt(t.Context(), a), "POST", "http://x.example", strings.NewReader("{}"))
		resp, err := rt.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		n, _ := io.CopyBuffer(io.Discard, resp.Body, make([]byte, 10<<10))
		resp.Body.Close()
		runtime.ReadMemStats(&after)
		if n != size {
			t.Errorf("rule broken: all of a body passes\n got %d bytes of %s\nwant %d", n, kind, size)
		}
		if kept := after.TotalAlloc - before.TotalAlloc; kept > 4<<20 {
			t.Errorf("rule broken: a long body is not kept\n got %d bytes allocated for 100 MB of %s", kept, kind)
		}
		if got := a.Sends()[0]; got.ReadBytes != size || got.Phase != fault.PhaseDone {
			t.Errorf("rule broken: and is counted\n got %d bytes, %v", got.ReadBytes, got.Phase)
		}
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '['
	}
	return len(p), nil
}

func TestTransportOfCompressedAnswers(t *testing.T) {
	t.Parallel()
	const body = `{"model":"m","usage":{"prompt_tokens":2}}`
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, body)
		_ = z.Close()
	}))
	defer srv.Close()
	for _, accept := range []string{"", "gzip"} {
		a := &fault.Attempt{Provider: "openai"}
		req, _ := http.NewRequestWithContext(fault.WithAttempt(t.Context(), a), "POST", srv.URL, strings.NewReader("{}"))
		if accept != "" {
			req.Header.Set("Accept-Encoding", accept)
		}
		resp, err := fault.NewTransport(srv.Client().Transport).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if plain := bytes.Equal(got, []byte(body)); plain != (accept == "") {
			t.Errorf("rule broken: who asks for gzip gets it, and nobody else\n got %q", got)
		}
		want := fault.Usage{Provider: "openai", Model: "m", InputTokens: 2}
		if accept != "" {
			want = fault.Usage{}
		}
		if u := a.Usage(); u != want || a.Verdict() != nil {
			t.Errorf("rule broken: what cannot be read is not judged\n got %+v, %v\nwant %+v", u, a.Verdict(), want)
		}
	}
}
