package fault_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pawlrun/pawl/fault"
)

// apiError is an error as SDKs make it of an answer.
type apiError struct {
	StatusCode int
	Response   *http.Response
	Body       []byte
}

func (e *apiError) Error() string { return http.StatusText(e.StatusCode) }

// request sends one and reads the answer to its end.
func request(ctx context.Context, t *testing.T, c *http.Client, method, url, body string) (*http.Response, []byte, error) {
	t.Helper()
	var r io.Reader = http.NoBody
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, r)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp, text, err
}

// website starts a server that reads every request to its end first, and a client on the transport.
func website(t *testing.T, h http.HandlerFunc) (url string, c *http.Client) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		h(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, &http.Client{Transport: fault.NewTransport(&http.Transport{})}
}

// closedPort is an address at which nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// Bodies whose GetBody seeks in the reader that is the body, as SDKs make them of a bytes.Reader or a file, arrive whole.
func TestTransportSendsABodyThatIsSharedWithGetBody(t *testing.T) {
	t.Parallel()
	var got []byte
	url, c := website(t, func(_ http.ResponseWriter, r *http.Request) { got, _ = io.ReadAll(r.Body) })
	path := filepath.Join(t.TempDir(), "file")
	want := []byte(`{"model":"m","a":"` + strings.Repeat("x", 1<<20) + `"}`)
	if err := os.WriteFile(path, want, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []fault.Kind{fault.KindRepeatable, fault.KindKeyed, fault.KindOnce} {
		for _, provider := range []string{"", "openai"} {
			for _, length := range []int64{-1, int64(len(want))} {
				f, err := os.Open(path)
				if err != nil {
					t.Fatal(err)
				}
				var again io.ReadSeeker = f
				if length > 0 {
					again = bytes.NewReader(want)
				}
				body := func() (io.ReadCloser, error) { _, err := again.Seek(0, io.SeekStart); return io.NopCloser(again), err }
				a := &fault.Attempt{Kind: kind, Key: "k", Provider: provider}
				req, err := http.NewRequestWithContext(fault.WithAttempt(t.Context(), a), http.MethodPut, url, nil)
				if err != nil {
					t.Fatal(err)
				}
				req.Body, _ = body()
				req.GetBody, req.ContentLength = body, length
				got = nil
				resp, err := c.Do(req)
				if err != nil {
					t.Errorf("%v, provider %q, length %d: %v", kind, provider, length, err)
					continue
				}
				_ = resp.Body.Close()
				_ = f.Close()
				if !bytes.Equal(got, want) {
					t.Errorf("%v, provider %q, length %d: %d bytes arrived, want %d", kind, provider, length, len(got), len(want))
				}
			}
		}
	}
}

// A POST that answered with a redirect which the client followed may have been done: what the GET came to proves nothing.
func TestJudgeOfAWriteThatRedirected(t *testing.T) {
	t.Parallel()
	for _, code := range []int{301, 302, 303} {
		for _, to := range []string{"/receipt", "http://" + closedPort(t) + "/receipt"} {
			url, c := website(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					w.Header().Set("Location", to)
					w.WriteHeader(code)
					return
				}
				w.WriteHeader(http.StatusTooManyRequests)
			})
			a := &fault.Attempt{Kind: fault.KindOnce, Key: "k"}
			ctx := fault.WithAttempt(t.Context(), a)
			resp, body, err := request(ctx, t, c, http.MethodPost, url+"/pay", "x")
			if err == nil {
				err = &apiError{resp.StatusCode, resp, body}
			}
			if f := a.Judge(fault.FromContext(t.Context(), ctx, err), err); f.Outcome != maybe {
				t.Errorf("POST, %d to %s: %v, want maybe_executed", code, to, f.Outcome)
			}
		}
	}
}

// What a step states is about its last request: after a POST that succeeded it does not undo that.
func TestJudgeOfAStatementAboutSomethingElse(t *testing.T) {
	t.Parallel()
	url, c := website(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.WriteHeader(http.StatusTooManyRequests)
		}
	})
	for _, rule := range []string{"of a later read", "of another system"} {
		a := &fault.Attempt{Kind: fault.KindOnce}
		ctx := fault.WithAttempt(t.Context(), a)
		if _, _, err := request(ctx, t, c, http.MethodPost, url, "x"); err != nil {
			t.Fatal(err)
		}
		err := fault.NotSent(errors.New("dial refused"))
		if rule == "of a later read" {
			resp, body, rerr := request(ctx, t, c, http.MethodGet, url, "")
			if rerr != nil {
				t.Fatal(rerr)
			}
			err = fault.FromHTTP("", resp.StatusCode, resp.Header, body)
		}
		if f := a.Judge(fault.FromContext(t.Context(), ctx, err), err); f.Outcome != maybe {
			t.Errorf("a statement %s: %v, want maybe_executed", rule, f.Outcome)
		}
	}
}

// The causes with which the engine ends a step's context are not the step's own words: what the transport proves counts.
func TestJudgeOfAContextsCause(t *testing.T) {
	t.Parallel()
	hang := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	c := &http.Client{Transport: fault.NewTransport(hang)}
	for _, cause := range []error{fault.ReasonStepDeadline, fault.ErrStopping} {
		a := &fault.Attempt{Kind: fault.KindOnce}
		ctx, cancel := context.WithTimeoutCause(fault.WithAttempt(t.Context(), a), 20*time.Millisecond, cause)
		_, _, err := request(ctx, t, c, http.MethodPost, "http://example.invalid/pay", "x")
		if f := a.Judge(fault.FromContext(t.Context(), ctx, err), err); f.Outcome != notSent {
			t.Errorf("the dial was ended by %v: %v, want not_sent", cause, f.Outcome)
		}
		cancel()
	}
}

// An SDK's error that says that money is used up is not lost to a status that says less.
func TestJudgeKeepsWhatAnSDKHasRead(t *testing.T) {
	t.Parallel()
	url, c := website(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "secret") // nobody but the client can read it
		w.WriteHeader(http.StatusTooManyRequests)
	})
	a := &fault.Attempt{Kind: fault.KindRepeatable}
	ctx := fault.WithAttempt(t.Context(), a)
	resp, _, err := request(ctx, t, c, http.MethodPost, url, "x")
	if err != nil {
		t.Fatal(err)
	}
	resp.Header.Del("Content-Encoding")
	read := &apiError{resp.StatusCode, resp, nil}
	f := fault.FromHTTP("openai", resp.StatusCode, resp.Header, []byte(`{"error":{"code":"insufficient_quota"}}`))
	if got := a.Judge(f, read); got.Class != fault.QuotaExhausted {
		t.Errorf("got %v, want quota_exhausted", got)
	}
}

// Answers that have no result because none was asked for are no errors, nor are streams whose last event was too long to
// be looked at.
func TestVerdictIsSilentOnOtherAnswers(t *testing.T) {
	t.Parallel()
	big := `data: {"candidates":[{"content":{"parts":[{"inlineData":{"data":"` + strings.Repeat("A", 200_000) + `"}}]},"finishReason":"STOP"}]}` + "\n\n"
	for _, row := range []struct{ rule, provider, method, path, kind, body string }{
		{"a deletion", "gemini", "DELETE", "/v1beta/files/x", "application/json", `{}`},
		{"an empty list", "vertex", "POST", "/v1/models:list", "application/json", `{}`},
		{"the control plane", "bedrock", "POST", "/tagResource", "application/json", `{}`},
		{"an image in one event", "gemini", "POST", "/v1beta/models/m:streamGenerateContent", "text/event-stream", big},
		{"results line by line", "anthropic", "GET", "/v1/messages/batches/b/results", "application/x-jsonl", `{"a":1}` + "\n" + `{"a":2}` + "\n"},
	} {
		url, c := website(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", row.kind)
			if _, err := io.WriteString(w, row.body); err != nil {
				t.Error(err)
			}
		})
		a := &fault.Attempt{Kind: fault.KindRepeatable, Provider: row.provider}
		if _, _, err := request(fault.WithAttempt(t.Context(), a), t, c, row.method, url+row.path, `{"model":"m"}`); err != nil {
			t.Fatal(err)
		}
		if f := a.Verdict(); f != nil {
			t.Errorf("%s: %v, want no fault", row.rule, f)
		}
	}
}

// Each request is priced by itself: many short prompts are not one long one. Requests that are not kept one by one count too.
func TestAttemptEstimatesEachRequest(t *testing.T) {
	t.Parallel()
	prices, err := fault.LoadPrices(strings.NewReader(`{"prices": [{"provider": "openai", "model": "m", "input": 2, "output": 2,
		"long": {"over": 1000, "input": 4, "output": 4}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	url, c := website(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if _, err := io.WriteString(w, `{"model":"m","choices":[{"finish_reason":"stop","message":{"content":"x"}}],"usage":{"prompt_tokens":600,"completion_tokens":0}}`); err != nil {
			t.Error(err)
		}
	})
	a := &fault.Attempt{Kind: fault.KindRepeatable, Provider: "openai"}
	for n := range 70 {
		if _, _, err := request(fault.WithAttempt(t.Context(), a), t, c, http.MethodPost, url+"/v1/chat/completions", `{"model":"m"}`); err != nil {
			t.Fatal(err)
		}
		if got := a.Estimate(prices); n == 1 && got != 2*1200 {
			t.Errorf("two requests of 600 tokens: %d micro-dollars, want 2,400", got)
		}
	}
	if got := a.Estimate(prices); got < 70*1200 {
		t.Errorf("70 requests: %d micro-dollars, want 84,000 at least", got)
	}
	if got := (*fault.Attempt)(nil).Estimate(prices); got != 0 {
		t.Errorf("no attempt: %d", got)
	}
}
