package fault_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/cuthttp"
)

// sdk calls as an SDK does that tries again by itself, and reports only the last error.
func sdk(ctx context.Context, rt http.RoundTripper, url string, tries int) (err error) {
	for range tries {
		if err = call(ctx, rt, "POST", url, "x"); err == nil {
			return nil
		}
	}
	return err
}

func TestJudgeTakesTheWorstOutcomeOfAllSends(t *testing.T) {
	t.Parallel()
	ok, limited, broken, bad := cuthttp.Reply{}, cuthttp.Reply{Status: 429}, cuthttp.Reply{Status: 500}, cuthttp.Reply{Status: 422}
	cut := cuthttp.Reply{Cut: cuthttp.BeforeReply}
	for _, row := range []struct {
		rule     string
		kind     fault.Kind
		script   []cuthttp.Reply
		class    fault.Class
		outcome  fault.Outcome
		requests int
		refused  int
	}{
		{"Keyed: a rejection at the end proves nothing about the beginning", fault.KindKeyed, []cuthttp.Reply{cut, broken, bad}, fault.InvalidRequest, maybe, 3, 0},
		{"Keyed: three rejections are one", fault.KindKeyed, []cuthttp.Reply{limited, limited, bad}, fault.InvalidRequest, rejected, 3, 0},
		{"Keyed: success at last is success", fault.KindKeyed, []cuthttp.Reply{cut, limited, ok}, 0, 0, 3, 0},
		{"Once: what may have happened is not sent again, and the error is the first one's", fault.KindOnce, []cuthttp.Reply{broken, ok}, fault.Transient, maybe, 1, 2},
		{"Once: nor after a lost connection", fault.KindOnce, []cuthttp.Reply{cut, ok}, fault.OutcomeUnknown, maybe, 1, 2},
		{"Once: nor after a rejection that followed a rejection that proves nothing", fault.KindOnce, []cuthttp.Reply{limited, broken, ok}, fault.Transient, maybe, 2, 1},
		{"Once: what was refused may be sent again", fault.KindOnce, []cuthttp.Reply{limited, limited, bad}, fault.InvalidRequest, rejected, 3, 0},
		{"Once: and succeed", fault.KindOnce, []cuthttp.Reply{limited, ok}, 0, 0, 2, 0},
		{"Repeatable: anything goes", fault.KindRepeatable, []cuthttp.Reply{cut, broken, limited}, fault.RateLimited, maybe, 3, 0},
	} {
		for _, protocol := range []cuthttp.Protocol{cuthttp.HTTP1, cuthttp.HTTP2} {
			s := cuthttp.Start(t, protocol, cuthttp.Script(row.script...))
			a := &fault.Attempt{Kind: row.kind, Key: "k1"}
			f := judged(t.Context(), a, func(ctx context.Context) error {
				return sdk(ctx, fault.NewTransport(s.Transport()), s.URL, 3)
			})
			rule := fmt.Sprintf("%v: %s", protocol, row.rule)
			want := want{row.class, "", row.outcome}
			if f != nil {
				want.reason = f.Reason
			}
			check(t, rule, f, want)
			sends(t, rule, a, row.requests, 0, row.refused)
			if n := len(s.Requests()); n != row.requests {
				t.Errorf("rule broken: %s\n got %d requests at the server\nwant %d", rule, n, row.requests)
			}
		}
	}
}

func TestAttemptIsOneWrite(t *testing.T) {
	t.Parallel()
	type request struct{ method, path, body string }
	post := request{"POST", "/a", "x"}
	for _, row := range []struct {
		rule    string
		kind    fault.Kind
		status  int
		all     []request
		refused int
	}{
		{"another body", fault.KindKeyed, 200, []request{post, {"POST", "/a", "y"}}, 1},
		{"another path", fault.KindKeyed, 200, []request{post, {"POST", "/b", "x"}}, 1},
		{"another query", fault.KindKeyed, 200, []request{post, {"POST", "/a?q=1", "x"}}, 1},
		{"another method", fault.KindKeyed, 200, []request{post, {"PUT", "/a", "x"}}, 1},
		{"another body for Once", fault.KindOnce, 200, []request{post, {"POST", "/a", "y"}}, 1},
		{"another body after a rejection", fault.KindOnce, 422, []request{post, {"POST", "/a", "y"}}, 1},
		{"the same for Keyed", fault.KindKeyed, 200, []request{post, post, post}, 0},
		{"the same for Once, which has happened", fault.KindOnce, 200, []request{post, post}, 1},
		{"reads", fault.KindOnce, 200, []request{{"GET", "/a", ""}, post, {"GET", "/b", ""}, {"HEAD", "/c", ""}, {"OPTIONS", "/d", ""}}, 0},
		{"any for Repeatable", fault.KindRepeatable, 200, []request{post, {"POST", "/b", "y"}, {"DELETE", "/a", ""}}, 0},
		{"a redirect with its body", fault.KindOnce, 307, []request{post}, 1},
	} {
		s := cuthttp.Start(t, cuthttp.HTTP1, cuthttp.Always(cuthttp.Reply{Status: row.status, Header: map[string]string{"Location": "/else"}}))
		rt := fault.NewTransport(s.Transport())
		a := &fault.Attempt{Kind: row.kind, Key: "k1"}
		var last error
		f := judged(t.Context(), a, func(ctx context.Context) error {
			for _, r := range row.all {
				last = call(ctx, rt, r.method, s.URL+r.path, r.body)
			}
			return last
		})
		e := a.Evidence()
		if e.Refused != row.refused {
			t.Errorf("rule broken: of writes under one key, %s\n got %d refused\nwant %d", row.rule, e.Refused, row.refused)
		}
		if row.refused > 0 && (row.status == 200 || row.status == 307) {
			if f == nil || f.Class != fault.InvalidRequest || !errors.Is(last, fault.ReasonKeyConflict) || f.Outcome == notSent {
				t.Errorf("rule broken: %s: a refused write is an invalid request, and the effect of the first is not forgotten\n got %v", row.rule, got(f))
			}
		}
	}
}

func TestAttemptAllowsAnotherWriteIfTheFirstNeverLeft(t *testing.T) {
	t.Parallel()
	down := cuthttp.Start(t, cuthttp.HTTP1, cuthttp.Always(cuthttp.Reply{}))
	down.Close()
	up := cuthttp.Start(t, cuthttp.HTTP1, cuthttp.Always(cuthttp.Reply{}))
	rt := fault.NewTransport(up.Transport())
	a := &fault.Attempt{Kind: fault.KindOnce}
	ctx := fault.WithAttempt(t.Context(), a)
	if err := call(ctx, rt, "POST", down.URL, "x"); err == nil {
		t.Fatal("nobody should listen there")
	}
	if err := call(ctx, rt, "POST", up.URL, "x"); err != nil {
		t.Errorf("rule broken: a write of which nothing left does not bind the next\n got %v", err)
	}
	if err := call(fault.WithAttempt(ctx, nil), rt, "POST", up.URL, "token"); err != nil {
		t.Errorf("rule broken: a request outside of the attempt passes\n got %v", err)
	}
	sends(t, "and is not counted", a, 2, 0, 0)
}

func TestAttemptRefusesAfterItsDeadline(t *testing.T) {
	t.Parallel()
	s := cuthttp.Start(t, cuthttp.HTTP1, cuthttp.Always(cuthttp.Reply{}))
	a := &fault.Attempt{Kind: fault.KindOnce, Until: time.Now()}
	f := judged(t.Context(), a, func(ctx context.Context) error {
		return call(ctx, fault.NewTransport(s.Transport()), "POST", s.URL, "x")
	})
	check(t, "no request is begun after the deadline", f, want{fault.Transient, fault.ReasonStepDeadline, notSent})
	sends(t, "no request is begun after the deadline", a, 0, 0, 1)
	if n := len(s.Requests()); n != 0 {
		t.Errorf("rule broken: no request is begun after the deadline\n got %d at the server", n)
	}
}

func TestAttemptRefusesIfItsDeadlinePassesWhileConnecting(t *testing.T) {
	t.Parallel()
	for _, protocol := range []cuthttp.Protocol{cuthttp.HTTP1, cuthttp.HTTP1TLS, cuthttp.HTTP2} {
		for _, reused := range []bool{false, true} {
			s := cuthttp.Start(t, protocol, cuthttp.Always(cuthttp.Reply{}))
			tr := s.Transport()
			tr.MaxConnsPerHost = 1
			until := time.Now().Add(30 * time.Millisecond)
			if reused {
				if err := call(t.Context(), tr, "GET", s.URL, ""); err != nil {
					t.Fatal(err)
				}
			}
			a := &fault.Attempt{Kind: fault.KindOnce, Until: until}
			rt := slow{rt: tr, until: until}
			f := judged(t.Context(), a, func(ctx context.Context) error {
				return call(ctx, fault.NewTransport(rt), "POST", s.URL, "x")
			})
			rule := fmt.Sprintf("%v, reused %v: no first byte after the deadline", protocol, reused)
			check(t, rule, f, want{fault.Transient, fault.ReasonStepDeadline, notSent})
			if err := call(t.Context(), tr, "GET", s.URL, ""); err != nil {
				t.Errorf("rule broken: the base is usable afterwards\n got %v", err)
			}
			s.Close()
			before := 1
			if reused {
				before = 2
			}
			if n := len(s.Requests()); n != before {
				t.Errorf("rule broken: %s\n got %d requests at the server\nwant the %d before and after it", rule, n, before)
			}
		}
	}
}

// slow makes time pass between the transport's first look at the clock and the connection.
type slow struct {
	rt    http.RoundTripper
	until time.Time
}

func (s slow) RoundTrip(r *http.Request) (*http.Response, error) {
	<-time.After(time.Until(s.until) + time.Millisecond)
	return s.rt.RoundTrip(r)
}

func TestJudgeKeepsTheAnswerThatAnSDKLost(t *testing.T) {
	t.Parallel()
	limited := cuthttp.Reply{Status: 429, Header: map[string]string{"Retry-After": "60", "X-Request-Id": "req_7"},
		Body: `{"error":{"type":"requests","code":"rate_limit_exceeded","message":"slow down"}}`}
	unauthorized := cuthttp.Reply{Status: 401, Body: `{"error":"Unauthorized"}`}
	sleep := func(ctx context.Context) error { <-ctx.Done(); return fmt.Errorf("retry: %w", ctx.Err()) }
	decode := func(context.Context) error {
		return json.Unmarshal([]byte(`{"error":"x"}`), &struct{ Error struct{} }{})
	}
	for _, row := range []struct {
		rule  string
		kind  fault.Kind
		reply cuthttp.Reply
		then  func(context.Context) error
		want  want
		delay time.Duration
	}{
		{"an SDK that sleeps until the deadline does not hide the 429", fault.KindRepeatable, limited, sleep, want{fault.RateLimited, "", rejected}, time.Minute},
		{"nor in a Once step", fault.KindOnce, limited, sleep, want{fault.RateLimited, "", rejected}, time.Minute},
		{"a body that an SDK cannot read does not hide the 401", fault.KindOnce, unauthorized, decode, want{fault.AccessDenied, fault.ReasonAuthentication, rejected}, 0},
		{"what the step states is believed", fault.KindOnce, limited, func(context.Context) error { return fault.MaybeExecuted(errors.New("x")) }, want{fault.OutcomeUnknown, "", maybe}, 0},
		{"an error that is known to be something else is not explained by an old answer", fault.KindOnce, limited, func(context.Context) error { return &pgError{"40001"} }, want{fault.Transient, fault.ReasonSerialization, rejected}, 0},
		{"what the step states of a success is believed", fault.KindOnce, cuthttp.Reply{Body: `{"ok":false}`}, func(context.Context) error { return fault.Rejected(errors.New("not ok")) }, want{fault.Transient, "", rejected}, 0},
		{"what is proven of something else does not undo a success", fault.KindOnce, cuthttp.Reply{}, func(context.Context) error { return &pgError{"40001"} }, want{fault.Transient, fault.ReasonSerialization, maybe}, 0},
	} {
		s := cuthttp.Start(t, cuthttp.HTTP1, cuthttp.Always(row.reply))
		a := &fault.Attempt{Kind: row.kind, Provider: "openai"}
		ctx := t.Context()
		run := ctx
		passes := func() {}
		if row.delay > 0 {
			late := untilPassed{ctx, make(chan struct{})}
			ctx, passes = late, func() { close(late.passed) }
		}
		err := func(ctx context.Context) error {
			_ = call(ctx, fault.NewTransport(s.Transport()), "POST", s.URL+"/v1/chat/completions", "{}")
			passes()
			return row.then(ctx)
		}(fault.WithAttempt(ctx, a))
		f := a.Judge(fault.FromContext(run, ctx, err), err)
		if row.want.reason == "" && f != nil {
			row.want.reason = f.Reason
		}
		check(t, row.rule, f, row.want)
		if f.Delay != row.delay || row.delay > 0 && (f.RequestID != "req_7" || f.Provider != "openai" || f.Status != 429) {
			t.Errorf("rule broken: %s\n got delay %v of %s %d %s", row.rule, f.Delay, f.Provider, f.Status, f.RequestID)
		}
	}
}

func TestJudgeSeesMoreThanAnSDKKeeps(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule    string
		err     error
		outcome fault.Outcome
		delay   time.Duration
	}{
		{"an SDK's error without headers", &sdkError{&http.Response{StatusCode: 429}}, maybe, time.Minute},
		{"what the step states of the last write proves nothing about the first", fault.Rejected(errors.New("x")), maybe, 0},
	} {
		s := cuthttp.Start(t, cuthttp.HTTP1, cuthttp.Script(cuthttp.Reply{Cut: cuthttp.BeforeReply}, cuthttp.Reply{Status: 429, Header: map[string]string{"Retry-After": "60"}}))
		a := &fault.Attempt{Kind: fault.KindKeyed, Key: "k1"}
		f := judged(t.Context(), a, func(ctx context.Context) error {
			_ = sdk(ctx, fault.NewTransport(s.Transport()), s.URL, 2)
			return row.err
		})
		if f.Outcome != row.outcome || f.Delay != row.delay {
			t.Errorf("rule broken: %s\n got %v, delay %v\nwant %v, %v", row.rule, f.Outcome, f.Delay, row.outcome, row.delay)
		}
	}
}

type sdkError struct{ Response *http.Response }

func (e *sdkError) Error() string { return "sdk" }

type pgError struct{ code string }

func (e *pgError) Error() string    { return "SQLSTATE " + e.code }
func (e *pgError) SQLState() string { return e.code }

func TestVerdictOnAnswersThatAreNone(t *testing.T) {
	t.Parallel()
	sse := map[string]string{"Content-Type": "text/event-stream"}
	ndjson := map[string]string{"Content-Type": "application/x-ndjson"}
	js := map[string]string{"Content-Type": "application/json"}
	chat := `{"id":"x","object":"chat.completion","choices":[{"finish_reason":"stop","message":{"content":"hi"}}]}`
	for _, row := range []struct {
		rule     string
		provider string
		reply    cuthttp.Reply
		want     fault.Class
	}{
		{"an answer", "openai", cuthttp.Reply{Header: js, Body: chat}, 0},
		{"an error in a 200", "openrouter", cuthttp.Reply{Header: js, Body: `{"error":{"code":429,"message":"slow"}}`}, fault.RateLimited},
		{"an error in a choice", "openrouter", cuthttp.Reply{Header: js, Body: `{"choices":[{"finish_reason":"error","error":{"code":502,"message":"x"}}]}`}, fault.Transient},
		{"no result", "openrouter", cuthttp.Reply{Header: js, Body: `{}`}, fault.OutcomeUnknown},
		{"half a body", "openai", cuthttp.Reply{Header: js, Body: chat[:30]}, fault.OutcomeUnknown},
		{"a refusal is an answer", "openai", cuthttp.Reply{Header: js, Body: `{"choices":[{"finish_reason":"content_filter","message":{"content":null}}]}`}, 0},
		{"so is one cut at its limit", "openai", cuthttp.Reply{Header: js, Body: `{"object":"response","status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"error":null,"output":[]}`}, 0},
		{"anybody's JSON", "", cuthttp.Reply{Header: js, Body: `{"error":"none of our business"}`}, 0},
		{"anybody's page", "", cuthttp.Reply{Header: map[string]string{"Content-Type": "text/html"}, Body: "<html>"}, 0},
		{"an error status that the step has seen", "openai", cuthttp.Reply{Status: 404, Header: js, Body: `{"error":{}}`}, 0},
		{"a whole stream", "openai", cuthttp.Reply{Header: sse, Body: "data: {\"choices\":[{\"delta\":{}}]}\n\ndata: [DONE]\n\n"}, 0},
		{"a stream that says why it stopped, without [DONE]", "openai", cuthttp.Reply{Header: sse, Body: "data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\n"}, 0},
		{"a stream without an end", "openai", cuthttp.Reply{Header: sse, Body: "data: {\"choices\":[{\"delta\":{}}]}\n\n"}, fault.OutcomeUnknown},
		{"a stream without an end, of a gateway", "", cuthttp.Reply{Header: sse, Body: "data: {\"choices\":[{\"delta\":{}}]}\n\n"}, fault.OutcomeUnknown},
		{"Anthropic's without an end", "anthropic", cuthttp.Reply{Header: sse, Body: "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n"}, fault.OutcomeUnknown},
		{"Anthropic's error event", "anthropic", cuthttp.Reply{Header: sse, Body: "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\nevent: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n"}, fault.Transient},
		{"Gemini's bare error", "gemini", cuthttp.Reply{Header: sse, Body: "data: {\"candidates\":[{}]}\n\n{\"error\":{\"code\":503,\"message\":\"x\",\"status\":\"UNAVAILABLE\"}}\n"}, fault.Transient},
		{"Ollama's without an end", "ollama", cuthttp.Reply{Header: ndjson, Body: "{\"response\":\"I\",\"done\":false}\n"}, fault.OutcomeUnknown},
		{"Ollama's error, without a line end", "ollama", cuthttp.Reply{Header: ndjson, Body: "{\"response\":\"I\",\"done\":false}\n{\"error\":\"model crashed\"}"}, fault.Transient},
		{"a stream that says that its output was filtered", "openai", cuthttp.Reply{Header: sse, Body: "data: {\"choices\":[{\"finish_reason\":\"content_filter\"}]}\n\n"}, 0},
		{"Ollama's", "ollama", cuthttp.Reply{Header: ndjson, Body: "{\"response\":\"I\",\"done\":true}\n"}, 0},
		{"a response that failed", "openai", cuthttp.Reply{Header: sse, Body: "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"status\":\"failed\",\"error\":{\"code\":\"server_error\",\"message\":\"x\"}}}\n\n"}, fault.Transient},
		{"anybody's events", "", cuthttp.Reply{Header: sse, Body: "event: error\ndata: {\"error\":\"x\"}\n\n"}, 0},
	} {
		s := cuthttp.Start(t, cuthttp.HTTP1, cuthttp.Always(row.reply))
		a := &fault.Attempt{Kind: fault.KindOnce, Provider: row.provider}
		_ = call(fault.WithAttempt(t.Context(), a), fault.NewTransport(s.Transport()), "POST", s.URL+"/v1/chat/completions", `{"model":"m"}`)
		f := a.Verdict()
		if got(f).class != row.want {
			t.Errorf("rule broken: %s\n got %v\nwant %v", row.rule, f, row.want)
		}
		if f != nil && f.Outcome != maybe {
			t.Errorf("rule broken: a model that began to answer has run\n got %v", f.Outcome)
		}
	}
}

func TestVerdictIsSilentWhereTheStepStoppedReading(t *testing.T) {
	t.Parallel()
	s := cuthttp.Start(t, cuthttp.HTTP1, cuthttp.Always(cuthttp.Reply{Cut: cuthttp.MidReply,
		Header: map[string]string{"Content-Type": "text/event-stream"}, Body: "data: {\"choices\":[{\"delta\":{}}]}\n\n"}))
	for name, stop := range map[string]func(*http.Response, context.CancelFunc){
		"closed":   func(r *http.Response, _ context.CancelFunc) { r.Body.Close() },
		"canceled": func(r *http.Response, cancel context.CancelFunc) { cancel(); _, _ = r.Body.Read(make([]byte, 1)) },
	} {
		a := &fault.Attempt{Provider: "openai"}
		ctx, cancel := context.WithCancel(fault.WithAttempt(t.Context(), a))
		req, _ := http.NewRequestWithContext(ctx, "POST", s.URL, strings.NewReader("{}"))
		resp, err := fault.NewTransport(s.Transport()).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := resp.Body.Read(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		stop(resp, cancel)
		if f := a.Verdict(); f != nil {
			t.Errorf("rule broken: a step that stops reading a stream has had enough (%s)\n got %v", name, f)
		}
		resp.Body.Close()
		cancel()
	}
}

func TestEvidenceForPeople(t *testing.T) {
	t.Parallel()
	s := cuthttp.Start(t, cuthttp.HTTP1, cuthttp.Script(cuthttp.Reply{Cut: cuthttp.BeforeReply}, cuthttp.Reply{}))
	a := &fault.Attempt{Kind: fault.KindOnce, Key: "key7"}
	if got, want := a.Evidence().String(), "no request was seen"; got != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
	_ = judged(t.Context(), a, func(ctx context.Context) error {
		return sdk(ctx, fault.NewTransport(s.Transport()), s.URL+"/send?key=secret", 2)
	})
	e := a.Evidence()
	text := e.String()
	for _, want := range []string{"1 request (and 1 held back): POST 127.0.0.1:", "/send at ", "wrote all of it (1 byte of body), no answer came", "key key7"} {
		if !strings.Contains(text, want) {
			t.Errorf("rule broken: evidence says what was sent, and how far it came\n got %q\nwant %q in it", text, want)
		}
	}
	data, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	var back fault.Evidence
	if err := json.Unmarshal(data, &back); err != nil || back.String() != text {
		t.Errorf("rule broken: evidence survives being stored\n got %q (%v)\nwant %q", back, err, text)
	}
}

func TestAttemptKeepsNoSecrets(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Set-Cookie", "session="+secret)
		w.Header().Set("X-Ratelimit-Remaining", "7")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer srv.Close()
	a := &fault.Attempt{Kind: fault.KindKeyed, Key: "k1"}
	f := judged(t.Context(), a, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, "POST", strings.Replace(srv.URL, "://", "://user:"+secret+"@", 1)+"/bot12345:"+secret+strings.Repeat("aB", 10)+"/v1?key="+secret, strings.NewReader(secret))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+secret)
		req.Header.Set("X-Api-Key", secret)
		req.Header.Set("Cookie", "session="+secret)
		return send(fault.NewTransport(srv.Client().Transport), req)
	})
	all, err := json.Marshal([]any{a.Sends(), a.Evidence(), a.Usage(), a.UsageByModel(), f})
	if err != nil {
		t.Fatal(err)
	}
	if text := string(all) + a.Evidence().String() + f.Error(); strings.Contains(text, secret) {
		t.Errorf("rule broken: nothing secret is kept\n got %s", text)
	}
	if got := a.Sends()[0]; got.Path != "/bot123…/v1" || got.Limits["x-ratelimit-remaining"] != "7" || got.BodyBytes != int64(len(secret)) || got.Status != 429 {
		t.Errorf("rule broken: all else is\n got %+v", got)
	}
}

func TestAttemptOfManyRequests(t *testing.T) {
	t.Parallel()
	s := cuthttp.Start(t, cuthttp.HTTP1, cuthttp.Always(cuthttp.Reply{Header: map[string]string{"Content-Type": "application/json"},
		Body: `{"model":"m","usage":{"prompt_tokens":2,"completion_tokens":3}}`}))
	rt := fault.NewTransport(s.Transport())
	a := &fault.Attempt{Kind: fault.KindRepeatable}
	ctx := fault.WithAttempt(t.Context(), a)
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			for range 20 {
				if err := call(ctx, rt, "POST", s.URL, "{}"); err != nil {
					t.Error(err)
				}
				_, _, _ = a.Usage(), a.Evidence(), a.Judge(fault.From(errors.New("x")), nil)
			}
		})
	}
	all.Wait()
	sends(t, "all are counted", a, 200, 0, 0)
	if u := a.Usage(); u.InputTokens != 400 || u.OutputTokens != 600 || u.Model != "m" {
		t.Errorf("rule broken: all are summed\n got %+v", u)
	}
	if n := len(a.Sends()); n != 64 {
		t.Errorf("rule broken: no more than 64 are kept one by one\n got %d", n)
	}
}

func TestAttemptZeroAndNil(t *testing.T) {
	t.Parallel()
	var a *fault.Attempt
	f := &fault.Fault{Class: fault.Transient}
	if a.Judge(f, nil) != f || a.Verdict() != nil || a.Sends() != nil || a.Usage() != (fault.Usage{}) || a.Evidence().Requests != 0 {
		t.Error("rule broken: a nil attempt has seen nothing")
	}
	if fault.AttemptOf(t.Context()) != nil {
		t.Error("rule broken: a context without an attempt has none")
	}
	if b := new(fault.Attempt); b.Judge(f, nil) != f || b.Verdict() != nil {
		t.Error("rule broken: an attempt that sent nothing knows nothing")
	}
}
