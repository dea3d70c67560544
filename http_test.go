package pawl_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/host"
	"github.com/pawlrun/pawl/sqlite"
)

// site is an HTTP server, a client on the transport, and a worker that calls it from one step.
type site struct {
	t      *testing.T
	e      *pawl.Engine
	client *http.Client
	url    string
	hits   atomic.Int64
}

// visit executes a workflow of one step against handler, until the run ends or is blocked, and shows it.
func visit(t *testing.T, handler func(s *site, w http.ResponseWriter, r *http.Request), body func(s *site, run *pawl.Run) (string, error)) *pawl.RunDetail {
	t.Helper()
	return visitWith(t, func(*pawl.Options) {}, handler, body)
}

func visitWith(t *testing.T, set func(*pawl.Options), handler func(s *site, w http.ResponseWriter, r *http.Request), body func(s *site, run *pawl.Run) (string, error)) *pawl.RunDetail {
	t.Helper()
	s := &site{t: t, client: &http.Client{Transport: fault.NewTransport(nil)}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.hits.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		handler(s, w, r)
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	store, err := sqlite.Open(filepath.Join(t.TempDir(), "pawl.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	w := pawl.Define("visit", "v1", func(run *pawl.Run, _ string) (string, error) { return body(s, run) })
	o := pawl.Options{Build: "b1"}
	set(&o)
	if s.e, err = pawl.New(store, &o, w); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.e.Work(ctx) }()
	h, err := w.Start(t.Context(), s.e, "x")
	if err != nil {
		t.Fatal(err)
	}
	var d *pawl.RunDetail
	eventually(t, "the run ends, waits or is blocked", func() bool {
		if d, err = s.e.Show(t.Context(), h.ID()); err != nil {
			t.Fatal(err)
		}
		return d.State.Terminal() || d.State == pawl.Blocked || d.State == pawl.Waiting
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	return d
}

func (s *site) post(ctx context.Context, body string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/things?token=secret", bytes.NewReader([]byte(body)))
	if err != nil {
		return "", err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("status %d", resp.StatusCode) // all that many a client tells
	}
	return string(text), err
}

func (s *site) once(ctx context.Context, _ pawl.Intent, in string) (string, error) {
	return s.post(ctx, in)
}

// A Keyed step's key goes out as the header, and what the transport saw is on the attempt.
func TestHTTPKeyedStepSendsItsKey(t *testing.T) {
	t.Parallel()
	var sent string
	var want pawl.OpKey
	d := visit(t, func(_ *site, w http.ResponseWriter, r *http.Request) {
		sent = r.Header.Get("Idempotency-Key")
		w.Header().Set("X-Request-Id", "req-7")
	}, func(s *site, run *pawl.Run) (string, error) {
		return pawl.Keyed(run, "pay", "12", func(ctx context.Context, key pawl.OpKey, in string) (string, error) {
			want = key
			return s.post(ctx, in)
		})
	})
	a := d.Steps[0].Attempts[0]
	if sent == "" || sent != string(want) {
		t.Errorf("key %q arrived, want %q", sent, want)
	}
	if a.Sent == nil || a.Sent.Requests != 1 || a.Usage.RequestID != "req-7" || strings.Contains(fmt.Sprint(a.Sent), "secret") {
		t.Errorf("attempt has %v and usage %+v, want one request, id req-7 and no secret", a.Sent, a.Usage)
	}
}

// An Once step whose request left and whose answer did not come is uncertain, with the evidence in its entry.
func TestHTTPOnceWithoutAnAnswerIsUncertain(t *testing.T) {
	t.Parallel()
	d := visit(t, func(_ *site, w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_ = conn.Close()
		}
	}, func(s *site, run *pawl.Run) (string, error) { return pawl.Once(run, "send", "mail body", s.once) })
	if d.State != pawl.Blocked || len(d.Entries) != 1 {
		t.Fatalf("run is %s with %d entries, want blocked and a question", d.State, len(d.Entries))
	}
	text := d.Entries[0].Detail
	for _, want := range []string{"POST", "/things", "9 bytes", "no answer", "key "} {
		if !strings.Contains(text, want) {
			t.Errorf("entry says %q, want %q in it", text, want)
		}
	}
	if strings.Contains(text, "secret") {
		t.Errorf("entry has a secret: %q", text)
	}
}

// A refusal proves that an Once step has not happened, whatever the client makes of it: it is tried again, or waits as
// it was told.
func TestHTTPOnceThatIsRefusedIsTriedAgain(t *testing.T) {
	t.Parallel()
	d := visit(t, func(s *site, w http.ResponseWriter, _ *http.Request) {
		if s.hits.Load() == 1 {
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}, func(s *site, run *pawl.Run) (string, error) { return pawl.Once(run, "send", "x", s.once) })
	if d.State != pawl.Succeeded || len(d.Steps[0].Attempts) != 2 || d.Steps[0].Attempts[0].Class != fault.RateLimited {
		t.Errorf("run is %s, attempts %+v; want a second one after rate_limited", d.State, d.Steps[0].Attempts)
	}
	d = visit(t, func(_ *site, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
	}, func(s *site, run *pawl.Run) (string, error) { return pawl.Once(run, "send", "x", s.once) })
	if d.State != pawl.Waiting || d.Owner != "" {
		t.Errorf("run is %s on worker %q, want it parked for an hour and the slot free", d.State, d.Owner)
	}
}

// An answer of a terminal class ends the step at once.
func TestHTTPTerminalAnswerEndsAtOnce(t *testing.T) {
	t.Parallel()
	d := visit(t, func(_ *site, w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(`{"error":"Unauthorized"}`))
	}, func(s *site, run *pawl.Run) (string, error) { return pawl.Once(run, "send", "x", s.once) })
	if d.State != pawl.Failed || d.Fault.Class != fault.AccessDenied || len(d.Steps[0].Attempts) != 1 {
		t.Errorf("run is %s with %v after %d attempts, want failed with access_denied after one", d.State, d.Fault, len(d.Steps[0].Attempts))
	}
}

// A client that sends an Once step's request again by itself is stopped: the first one may have happened.
func TestHTTPOnceIsNotSentAgainByTheClient(t *testing.T) {
	t.Parallel()
	var hits int64
	d := visit(t, func(s *site, w http.ResponseWriter, _ *http.Request) {
		hits = s.hits.Load()
		w.WriteHeader(http.StatusInternalServerError)
	}, func(s *site, run *pawl.Run) (string, error) {
		return pawl.Once(run, "send", "x", func(ctx context.Context, _ pawl.Intent, in string) (string, error) {
			var errs []error
			for range 3 {
				text, err := s.post(ctx, in)
				if err == nil {
					return text, nil
				}
				errs = append(errs, err)
			}
			return "", errors.Join(errs...)
		})
	})
	if hits != 1 || d.State != pawl.Blocked {
		t.Errorf("%d requests arrived and the run is %s, want 1 and blocked", hits, d.State)
	}
}

// A model's answer with status 200 that is an error, which the client took for a result, is the step's error. What models
// used is summed up, with an estimate of its cost.
func TestHTTPModelAnswers(t *testing.T) {
	t.Parallel()
	d := visit(t, func(s *site, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Openai-Version", "2020-10-01")
		if s.hits.Load() == 1 {
			_, _ = w.Write([]byte(`{"error":{"message":"The server had an error","type":"server_error","param":null,"code":null}}`))
			return
		}
		_, _ = w.Write([]byte(`{"id":"c1","object":"chat.completion","model":"gpt-4o-2024-08-06","choices":[{"index":0,"finish_reason":"stop",` +
			`"message":{"role":"assistant","content":"hi"}}],"usage":{"prompt_tokens":1000000,"completion_tokens":0,"total_tokens":1000000}}`))
	}, func(s *site, run *pawl.Run) (string, error) {
		return pawl.Repeatable(run, "ask", `{"model":"gpt-4o"}`, s.post, pawl.Paid())
	})
	if d.State != pawl.Succeeded || len(d.Steps[0].Attempts) != 2 {
		t.Fatalf("run is %s with attempts %+v, want success at the second", d.State, d.Steps[0].Attempts)
	}
	u := d.Steps[0].Attempts[1].Usage
	if u.TokensIn != 1_000_000 || u.Model != "gpt-4o-2024-08-06" || u.Provider != "openai" || u.CostMicros != 2_500_000 {
		t.Errorf("usage %+v, want a million tokens of gpt-4o at 2.50 dollars", u)
	}
}

// A machine that sleeps between the callback's begin and its request sends nothing any more: it may have lost the run.
func TestHTTPNothingIsSentAfterALongSleep(t *testing.T) {
	t.Parallel()
	var slept atomic.Bool
	var hits int64
	d := visitWith(t, func(o *pawl.Options) {
		o.Hooks = &hooks.Hooks{Boot: func() time.Duration {
			d, _ := host.BootTime()
			if slept.Load() {
				d += time.Hour
			}
			return d
		}}
	}, func(s *site, _ http.ResponseWriter, _ *http.Request) { hits = s.hits.Load() }, func(s *site, run *pawl.Run) (string, error) {
		return pawl.Once(run, "send", "x", func(ctx context.Context, it pawl.Intent, in string) (string, error) {
			if it.Attempt > 1 {
				return "", fault.Invalid(errors.New("enough"))
			}
			slept.Store(true)
			text, err := s.post(ctx, in)
			if hits == 0 && err == nil {
				t.Error("the request that was not sent gave no error")
			}
			return text, err
		})
	})
	if hits != 0 || len(d.Entries) != 0 {
		t.Errorf("%d requests arrived after the sleep, entries %v; want none", hits, d.Entries)
	}
}
