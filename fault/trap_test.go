package fault_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/fault/internal/fakesdk/http2"
)

// Each test below is a misclassification that was shipped by somebody. The numbers are those of a list of fifty; what is
// missing here is for the transport or the engine to get right.

// asked is what follows for a model call that failed with f for the n-th time.
func asked(f *fault.Fault, n int) fault.Decision {
	return fault.Decide(f, fault.KindRepeatable, fault.Budget{Attempt: n, UnknownAttempts: n, Paid: true, Jitter: 0.5})
}

func wantAction(t *testing.T, rule string, f *fault.Fault, action fault.Action) {
	t.Helper()
	if d := asked(f, 1); d.Action != action {
		t.Errorf("rule broken: %s: got %v (%s) for %v, want %v", rule, d.Action, d.Why, f, action)
	}
}

func openAI(status int, body string) *fault.Fault {
	return fault.FromHTTP("openai", status, nil, []byte(body))
}

func TestTrap01QuotaIsNotRate(t *testing.T) {
	f := openAI(429, `{"error":{"message":"You exceeded your current quota, limit: 0","type":"insufficient_quota","code":"insufficient_quota"}}`)
	wantAction(t, "a 429 about money is not tried again", f, fault.ActionFail)
}

func geminiQuota(quota string) *fault.Fault {
	return fault.FromHTTP("gemini", 429, nil, []byte(`{"error":{"code":429,"message":"You exceeded your current quota","status":"RESOURCE_EXHAUSTED","details":[`+
		`{"violations":[{"quotaId":"`+quota+`"}]},{"retryDelay":"36s"}]}}`))
}

func TestTrap02ADayIsNotAMinute(t *testing.T) {
	f := geminiQuota("GenerateRequestsPerDayPerProjectPerModel-FreeTier")
	wantAction(t, "a daily quota is not waited for in seconds", f, fault.ActionFail)
}

func TestTrap03AMinuteIsNotADay(t *testing.T) {
	f := geminiQuota("GenerateRequestsPerMinutePerProjectPerModel-FreeTier")
	wantAction(t, "a quota of a minute is waited for, whatever the text calls it", f, fault.ActionPark)
	if day := geminiQuota("GenerateRequestsPerDay"); f.Delay != 36*time.Second || day.Delay != 0 {
		t.Errorf("RetryInfo counts for the minute alone: got %v, %v", f.Delay, day.Delay)
	}
}

func TestTrap04SpendLimitBehindARateLimitError(t *testing.T) {
	f := fault.FromHTTP("anthropic", 429, nil, []byte(`{"type":"error","error":{"type":"rate_limit_error","details":{"error_code":"enforced_spend_limit_reached"}}}`))
	wantAction(t, "the finer code decides", f, fault.ActionFail)
}

func TestTrap05UnpaidIsNotMalformed(t *testing.T) {
	body := []byte(`{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API."}}`)
	check(t, "unpaid is no malformed request", fault.FromHTTP("anthropic", 400, nil, body), want{fault.QuotaExhausted, fault.ReasonCredit, rejected})
	check(t, "the phrase counts in its type alone", fault.FromHTTP("anthropic", 500, nil, []byte(`{"type":"error","error":{"type":"api_error","message":"credit balance is too low"}}`)),
		want{fault.Transient, fault.ReasonServerError, maybe})
}

func tooLarge(limit, requested int) *fault.Fault {
	return openAI(429, fmt.Sprintf(`{"error":{"message":"Request too large on tokens per min (TPM): Limit %d, Requested %d.","type":"tokens","code":"rate_limit_exceeded"}}`, limit, requested))
}

func TestTrap06RequestedBeyondLimitNeverPasses(t *testing.T) {
	check(t, "more than the limit never passes", tooLarge(30000, 36278), want{fault.InvalidRequest, fault.ReasonRequestTooLarge, rejected})
}

func TestTrap07RequestedWithinLimitPasses(t *testing.T) {
	check(t, "within the limit it passes later, whatever the phrase", tooLarge(250000, 546), want{fault.RateLimited, fault.ReasonTokens, rejected})
}

func TestTrap08APaymentRequiredThatPasses(t *testing.T) {
	f := fault.FromHTTP("openrouter", 402, http.Header{"Retry-After": {"3"}}, []byte(`{"error":{"code":402,"metadata":{"limit_source":"openrouter_in_flight_budget"}}}`))
	wantAction(t, "a budget of what is in flight refills", f, fault.ActionRetry)
}

func TestTrap09ALongDelayIsParked(t *testing.T) {
	f := fault.FromHTTP("openai", 429, http.Header{"Retry-After": {"3832"}}, nil)
	if d := asked(f, 1); d.Action != fault.ActionPark || d.Wait < 3832*time.Second {
		t.Errorf("64 minutes are 64 minutes: got %v, %v", d.Action, d.Wait)
	}
}

func TestTrap10TheDelayBelongsToTheFault(t *testing.T) {
	f := fault.FromHTTP("openai", 429, http.Header{"Retry-After": {"30"}}, nil)
	data, _ := json.Marshal(f)
	var back fault.Fault
	if err := json.Unmarshal(data, &back); err != nil || back.Delay != 30*time.Second {
		t.Errorf("a delay survives storage: got %v, %v", back.Delay, err)
	}
}

func TestTrap11ADelayOfDaysFails(t *testing.T) {
	f := fault.FromHTTP("openai", 429, http.Header{"Retry-After": {"259200"}}, nil)
	wantAction(t, "nobody sits out three days", f, fault.ActionFail)
}

func TestTrap12And13DelaysOfEveryProvider(t *testing.T) {
	f := fault.FromHTTP("mistral", 429, http.Header{"Retry-After": {"38"}}, []byte(`{"message":"x"}`))
	g := fault.FromHTTP("gemini", 429, nil, []byte(`{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","details":[{"retryDelay":"38s"}]}}`))
	if f.Delay != 38*time.Second || g.Delay != 38*time.Second {
		t.Errorf("got %v, %v, want 38s", f.Delay, g.Delay)
	}
}

func TestTrap14RateAndOverloadDiffer(t *testing.T) {
	check(t, "429", fault.FromHTTP("http-api", 429, nil, nil), want{fault.RateLimited, fault.ReasonRequests, rejected})
	check(t, "500", fault.FromHTTP("http-api", 500, nil, nil), want{fault.Transient, fault.ReasonServerError, maybe})
}

func TestTrap15NoDelayIsCutShort(t *testing.T) {
	f := fault.FromHTTP("openai", 429, http.Header{"Retry-After": {"60"}}, nil)
	if d := asked(f, 1); d.Wait < time.Minute {
		t.Errorf("never earlier than told: got %v", d.Wait)
	}
}

func TestTrap16ADateIsNoError(t *testing.T) {
	h := http.Header{"Date": {sent}, "Retry-After": {"Wed, 21 Oct 2026 07:29:30 GMT"}, "X-Should-Retry": {"true"}}
	if f := fault.FromHTTP("openai", 429, h, nil); f.Delay != 90*time.Second {
		t.Errorf("a date is read, and a hint to retry takes nothing away: got %v", f.Delay)
	}
	h.Set("Retry-After", "\x00\xffgarbage")
	if f := fault.FromHTTP("openai", 429, h, nil); f.Delay != 0 || f.Class != fault.RateLimited {
		t.Errorf("garbage hides nothing: got %v", f)
	}
}

func TestTrap17SentinelsAreNoDelay(t *testing.T) {
	h := http.Header{"X-Ratelimit-Remaining-Tokens": {"-1"}, "X-Ratelimit-Reset-Tokens": {"0"}, "X-Ratelimit-Limit-Tokens": {"-1"}}
	f := fault.FromHTTP("azure-openai", 429, h, []byte(`{"error":{"code":"429"}}`))
	if d := asked(f, 3); f.Delay != 0 || d.Wait == 0 {
		t.Errorf("-1 and 0 tell nothing, and we back off: got %v, %v", f.Delay, d.Wait)
	}
}

func TestTrap18A429IsRetried(t *testing.T) {
	wantAction(t, "429", fault.FromHTTP("anything", 429, nil, nil), fault.ActionRetry)
}

func TestTrap19AnErrorInsideASuccess(t *testing.T) {
	f := fault.FromHTTP("openrouter", 200, nil, []byte(`{"error":{"code":429,"message":"Rate limited"}}`))
	check(t, "every 200 is looked at", f, want{fault.RateLimited, fault.ReasonRequests, maybe})
}

func TestTrap20NoChoices(t *testing.T) {
	for _, body := range []string{`{}`, `{"id":"x","choices":[]}`, `{"choices":null}`} {
		check(t, body, fault.FromHTTP("openrouter", 200, nil, []byte(body)), want{fault.OutcomeUnknown, fault.ReasonResponseUnreadable, maybe})
	}
}

func stream(provider, body string) *fault.Fault {
	return fault.FromStream(provider, http.Header{"Content-Type": {"text/event-stream"}}, []byte(body))
}

func TestTrap21And22AnErrorInsideAStreamKeepsItsType(t *testing.T) {
	f := stream("anthropic", "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n")
	check(t, "its status is 200", f, want{fault.Transient, fault.ReasonOverloaded, maybe})
}

func TestTrap23AnExceptionInsideAStream(t *testing.T) {
	f := fault.FromStream("bedrock", nil, frame(map[string]string{":message-type": "exception", ":exception-type": "modelStreamErrorException"}, `{"message":"x"}`))
	check(t, "an exception is no success", f, want{fault.Transient, fault.ReasonModelError, maybe})
}

func TestTrap24HTMLHidesNoStatus(t *testing.T) {
	h := http.Header{"Content-Type": {"application/json"}}
	check(t, "502", fault.FromHTTP("openai", 502, h, []byte("<html>nginx</html>")), want{fault.Transient, fault.ReasonBadGateway, maybe})
	check(t, "a page instead of an answer", fault.FromHTTP("http-api", 200, nil, []byte("<!doctype html><title>Sign in</title>")), want{fault.OutcomeUnknown, fault.ReasonResponseUnreadable, maybe})
}

func TestTrap25AnErrorThatIsAString(t *testing.T) {
	check(t, "401", fault.FromHTTP("vllm", 401, nil, []byte(`{"error":"Unauthorized"}`)), want{fault.AccessDenied, fault.ReasonAuthentication, rejected})
}

func TestTrap26And27And28AStreamWithoutItsEnd(t *testing.T) {
	truncated := want{fault.OutcomeUnknown, fault.ReasonStreamTruncated, maybe}
	check(t, "Anthropic without message_stop", stream("anthropic", "event: message_start\ndata: {\"type\":\"message_start\"}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n"), truncated)
	check(t, "OpenAI without [DONE]", stream("openai", "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"function\":{\"arguments\":\"{\\\"a\\\":\"}}]}}]}\n\n"), truncated)
	check(t, "cut inside of an event", stream("openai", "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"st"), truncated)
	check(t, "nothing at all", stream("openai", ""), truncated)
}

func TestTrap29NumbersInTextNeverClassify(t *testing.T) {
	f := openAI(400, `{"error":{"message":"Invalid token ids: [17, 429, 500]","type":"invalid_request_error","param":"logit_bias"}}`)
	check(t, "429 is a token here", f, want{fault.InvalidRequest, fault.ReasonMalformed, rejected})
}

func TestTrap30WordsInTextNeverClassify(t *testing.T) {
	f := openAI(500, `{"error":{"message":"request req_400404429 too long, unsupported, unauthorized, quota, rate limit","type":"server_error"}}`)
	check(t, "the type says what it is", f, want{fault.Transient, fault.ReasonServerError, maybe})
	f = fault.FromHTTP("bedrock", 403, http.Header{"X-Amzn-Errortype": {"AccessDeniedException"}}, []byte(`{"message":"not authorized to perform"}`))
	check(t, "AccessDenied is about permission", f, want{fault.AccessDenied, fault.ReasonAuthorization, rejected})
}

func TestTrap31ContextOverflowIsNamed(t *testing.T) {
	w := want{fault.InvalidRequest, fault.ReasonContextLength, rejected}
	check(t, "Mistral", fault.FromHTTP("mistral", 400, nil, []byte(`{"message":"Prompt contains 40000 tokens, too large for model with 32768 maximum context length"}`)), w)
	check(t, "Azure", fault.FromHTTP("azure-openai", 400, nil, []byte(`{"error":{"message":"This model's maximum context length is 8192 tokens.","code":null}}`)), w)
	check(t, "Anthropic", fault.FromHTTP("anthropic", 400, nil, []byte(`{"type":"error","error":{"type":"invalid_request_error","message":"input length and max_tokens exceed context limit: 1 + 2 > 2"}}`)), w)
}

func TestTrap32Overloaded(t *testing.T) {
	check(t, "529 says all", fault.FromHTTP("anthropic", 529, nil, nil), want{fault.Transient, fault.ReasonOverloaded, rejected})
}

func TestTrap33ADeadKeyIsNoMalformedRequest(t *testing.T) {
	f := fault.FromHTTP("gemini", 400, nil, []byte(`{"error":{"code":400,"status":"INVALID_ARGUMENT","details":[{"reason":"API_KEY_INVALID"}]}}`))
	check(t, "400", f, want{fault.AccessDenied, fault.ReasonAuthentication, rejected})
}

func TestTrap34AtMostTwoResamples(t *testing.T) {
	f := fault.FromHTTP("groq", 400, nil, []byte(`{"error":{"type":"invalid_request_error","code":"tool_use_failed"}}`))
	for n, want := range []fault.Action{fault.ActionRetry, fault.ActionRetry, fault.ActionFail} {
		if d := asked(f, n+1); d.Action != want {
			t.Errorf("attempt %d: got %v (%s), want %v", n+1, d.Action, d.Why, want)
		}
	}
}

func TestTrap35A401InAGenericError(t *testing.T) {
	f := fault.FromHTTP("http-api", 401, nil, []byte(`{"error":{"type":"llm_api_error","message":"provider failed, try again"}}`))
	wantAction(t, "401", f, fault.ActionFail)
}

func TestTrap36BadCertificates(t *testing.T) {
	err := tripped(&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}})
	wantAction(t, "a certificate does not get better", fault.From(err), fault.ActionFail)
}

func TestTrap37And38ATimeoutIsNoRejection(t *testing.T) {
	err := tripped(timeout{"Client.Timeout exceeded while awaiting headers"})
	if d := fault.Decide(fault.From(err), fault.KindOnce, fault.Budget{Attempt: 1}); d.Action != fault.ActionUncertain {
		t.Errorf("what timed out may have happened: got %v", d.Action)
	}
}

func TestTrap39ErrBadConnProvesNothing(t *testing.T) {
	check(t, "drivers misuse it", fault.From(driver.ErrBadConn), want{fault.OutcomeUnknown, fault.ReasonConnectionLost, maybe})
}

func TestTrap40And41OnlyRefusalsAndHigherStreamsWereNotTaken(t *testing.T) {
	for code := range http2.ErrCode(14) {
		f := fault.From(tripped(http2.StreamError{StreamID: 1, Code: code}))
		if proven := f.Outcome.Proven(); proven != (code == 7) {
			t.Errorf("of stream errors REFUSED_STREAM alone proves something: code %d: got %v", code, f)
		}
	}
	check(t, "at or below the last stream", fault.From(tripped(http2.GoAwayError{LastStreamID: 1})), want{fault.OutcomeUnknown, fault.ReasonGoAway, maybe})
}

// sendError has the shape of smithy's RequestSendError.
type sendError struct{ err error }

func (e *sendError) Error() string         { return "request send failed, " + e.err.Error() }
func (e *sendError) Unwrap() error         { return e.err }
func (e *sendError) ConnectionError() bool { return true }

func TestTrap43AConnectionErrorThatIsNone(t *testing.T) {
	check(t, "what was sent is in the error inside", fault.From(&sendError{tripped(io.EOF)}), want{fault.OutcomeUnknown, fault.ReasonConnectionLost, maybe})
}

func TestTrap45BusySnapshot(t *testing.T) {
	check(t, "restart the transaction", fault.From(sqlite(517)), want{fault.Transient, fault.ReasonStaleSnapshot, rejected})
}

func TestTrap46ACauseHidesTheDeadline(t *testing.T) {
	cause := errors.New("budget")
	step, cancel := context.WithTimeoutCause(t.Context(), 0, cause)
	defer cancel()
	<-step.Done()
	check(t, "the context is asked, not the error", fault.FromContext(t.Context(), step, tripped(cause)), want{fault.OutcomeUnknown, fault.ReasonStepDeadline, maybe})
}

func TestTrap47ADialTimeoutIsNotOurDeadline(t *testing.T) {
	err := tripped(dialled(timeout{"i/o timeout"}))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal("net's timeouts are context.DeadlineExceeded to errors.Is")
	}
	check(t, "no context ended", fault.FromContext(t.Context(), t.Context(), err), want{fault.Transient, fault.ReasonUnreachable, notSent})
}

func TestTrap48AProxysRefusalIsNoResponse(t *testing.T) {
	err := tripped(errors.New("Bad Gateway"))
	check(t, "no connection was had", fault.Unsent(err), want{fault.Transient, fault.ReasonProxyUnreachable, notSent})
	check(t, "the text alone proves nothing", fault.From(err), want{fault.OutcomeUnknown, fault.ReasonUnrecognized, maybe})
}

func TestTrap49ACutBodyWithoutAnError(t *testing.T) {
	check(t, "half of a JSON text", fault.FromHTTP("openai", 200, nil, []byte(`{"id":"x","choices":[`)), want{fault.OutcomeUnknown, fault.ReasonResponseUnreadable, maybe})
}

func TestTrap50AMessageTooLargeIsNoRate(t *testing.T) {
	say := func(text string) *fault.Fault { return fault.From(&grpcTextError{grpcText{8, text}}) }
	check(t, "ours to read", say("grpc: received message larger than max (5000000 vs. 4194304)"), want{fault.InvalidRequest, fault.ReasonTooLarge, maybe})
	check(t, "ours to send", say("trying to send message larger than max (5000000 vs. 4194304)"), want{fault.InvalidRequest, fault.ReasonRequestTooLarge, notSent})
	check(t, "a rate", say("quota"), want{fault.RateLimited, fault.ReasonThrottled, maybe})
}

type (
	grpcTextError struct{ s grpcText }
	grpcText      struct {
		code grpcCode
		text string
	}
)

func (e *grpcTextError) Error() string        { return e.s.text }
func (e *grpcTextError) GRPCStatus() grpcText { return e.s }
func (s grpcText) Code() grpcCode             { return s.code }
func (s grpcText) Message() string            { return s.text }
