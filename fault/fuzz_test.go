package fault_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pawlrun/pawl/fault"
)

// names are the providers whose rules a fuzzer tries.
var names = []string{
	"", "openai", "azure-openai", "anthropic", "gemini", "vertex", "bedrock", "mistral", "cohere", "groq", "openrouter", "xai",
	"ollama", "vllm", "stripe", "aws", "cdn", "webhook", "http-api", "nobody",
}

// sound fails unless f is a fault that can be stored and acted on.
func sound(t *testing.T, f *fault.Fault) {
	t.Helper()
	if f == nil {
		return
	}
	if _, err := f.Class.MarshalText(); err != nil || f.Reason == "" || f.Class == fault.Canceled {
		t.Fatalf("a fault has a class and a reason: %+v", f)
	}
	if _, err := f.Outcome.MarshalText(); err != nil {
		t.Fatalf("a fault has an outcome: %+v", f)
	}
	if f.Delay < 0 || f.Delay > fault.MaxDelay {
		t.Fatalf("a delay is between 0 and %v: %v", fault.MaxDelay, f.Delay)
	}
	if _, err := json.Marshal(f); err != nil {
		t.Fatalf("a fault can be stored: %v", err)
	}
	for _, kind := range []fault.Kind{fault.KindRepeatable, fault.KindKeyed, fault.KindTx, fault.KindOnce} {
		d := fault.Decide(f, kind, fault.Budget{Attempt: 1, UnknownAttempts: 1})
		again := d.Action == fault.ActionRetry || d.Action == fault.ActionPark
		hopeless := f.Class.Terminal() || f.Final || f.Class == fault.QuotaExhausted && f.Delay == 0
		if again && (hopeless || kind == fault.KindOnce && f.Outcome == fault.OutcomeMaybeExecuted) {
			t.Fatalf("not to be sent again: a %v step: %+v: %+v", kind, f, d)
		}
	}
}

// An answer that is terminal stays so, whatever stands around it.
var terminalAnswers = []struct {
	provider string
	status   int
	body     string
}{
	{"openai", 429, `{"error":{"type":"insufficient_quota","code":"insufficient_quota","message":%}}`},
	{"openai", 401, `{"error":{"type":"invalid_request_error","code":"invalid_api_key","message":%}}`},
	{"openai", 400, `{"error":{"type":"invalid_request_error","code":"context_length_exceeded","message":%}}`},
	{"openai", 400, `{"error":{"type":"invalid_request_error","code":"content_policy_violation","message":%}}`},
	{"anthropic", 403, `{"type":"error","error":{"type":"permission_error","message":%}}`},
	{"anthropic", 400, `{"type":"error","error":{"type":"invalid_request_error","message":%}}`},
	{"anthropic", 402, `{"type":"error","error":{"type":"billing_error","message":%}}`},
	{"gemini", 429, `{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","message":%,"details":[{"violations":[{"quotaId":"RequestsPerDay"}]},{"retryDelay":"36s"}]}}`},
	{"gemini", 400, `{"error":{"code":400,"status":"INVALID_ARGUMENT","message":%}}`},
	{"azure-openai", 400, `{"error":{"code":"content_filter","message":%}}`},
	{"stripe", 402, `{"error":{"type":"card_error","code":"card_declined","message":%}}`},
	{"bedrock", 403, `{"__type":"AccessDeniedException","message":%}`},
	{"http-api", 401, `{"message":%}`},
	{"http-api", 403, `{"message":%}`},
	{"http-api", 404, `{"message":%}`},
}

func FuzzFromHTTP(f *testing.F) {
	for _, c := range loadCases(f) {
		if c.Kind == "http" {
			f.Add(c.Status, c.Body, c.Headers["Retry-After"], c.Headers["Content-Type"], uint8(1))
		}
	}
	f.Add(429, strings.Repeat("[", 5000), "9", "application/json", uint8(0))
	f.Add(500, "\x1f\x8bnot gzip at all", "", "text/html", uint8(3))
	f.Add(400, `{"error":{"message":"`+"\xff\xfe"+`\ud800"}}`, "-1", "", uint8(4))
	f.Fuzz(func(t *testing.T, status int, body, after, kind string, who uint8) {
		h := http.Header{
			"Retry-After": {after}, "Content-Type": {kind}, "X-Ratelimit-Remaining-Tokens": {"0"},
			"X-Ratelimit-Reset-Tokens": {after}, "X-Should-Retry": {kind}, "Date": {sent},
		}
		name := names[int(who)%len(names)]
		fl := fault.FromHTTP(name, status, h, []byte(body))
		sound(t, fl)
		if fl == nil && (status < 100 || status >= 300 && status != 304) {
			t.Fatalf("status %d is no success", status)
		}
		if fl != nil && fl.Status != status {
			t.Fatalf("nothing hides the status: got %d, want %d", fl.Status, status)
		}
		text, _ := json.Marshal(body)
		for _, a := range terminalAnswers {
			fl := fault.FromHTTP(a.provider, a.status, h, []byte(strings.Replace(a.body, "%", string(text), 1)))
			d := fault.Decide(fl, fault.KindRepeatable, fault.Budget{Attempt: 1})
			if again := d.Action == fault.ActionRetry || d.Action == fault.ActionPark; again && fl.Class != fault.QuotaExhausted {
				t.Fatalf("what is terminal is never sent again: %s %d %s\n with the message %q: %v", a.provider, a.status, a.body, body, fl)
			}
		}
	})
}

func FuzzStream(f *testing.F) {
	for _, c := range loadCases(f) {
		if c.Kind == "stream" {
			f.Add([]byte(c.Body), uint8(1))
		}
	}
	f.Add([]byte(event("messageStart", "{}")+event("messageStop", `{"stopReason":"end_turn"}`)), uint8(6))
	f.Add(frame(map[string]string{":message-type": "exception", ":exception-type": "throttlingException"}, "{}"), uint8(6))
	f.Fuzz(func(t *testing.T, body []byte, who uint8) {
		name := names[int(who)%len(names)]
		fl := fault.FromStream(name, nil, body)
		sound(t, fl)
		if fl != nil && fl.Outcome != fault.OutcomeMaybeExecuted && fl.Reason != fault.ReasonInputBlocked {
			t.Fatalf("what began to stream may have happened: %+v", fl)
		}
		denied := append([]byte("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"permission_error\"}}\n\n"), body...)
		if fl := fault.FromStream("anthropic", nil, denied); fl.Class != fault.AccessDenied {
			t.Fatalf("the first error of a stream decides: %+v", fl)
		}
	})
}

func FuzzDelay(f *testing.F) {
	for _, s := range []string{
		"7", "0.75", "-1", "NaN", "Inf", "1e3", "99999999999999999999", "6m0s", "634ms", "36.429760048s", "1792567710", "1792567710000",
		sent, "2026-10-21T07:28:45Z", "1 minute 5 seconds", "try again in 41.724s", "Please retry after 20 seconds.", "µs", "9d9h9m9s9ms",
	} {
		f.Add(s, int64(1792567680))
	}
	f.Fuzz(func(t *testing.T, s string, now int64) {
		for name, parse := range map[string]func(string, time.Time) (time.Duration, bool){
			"Retry-After": fault.RetryTime, "reset": fault.ResetTime,
			"text": func(s string, _ time.Time) (time.Duration, bool) { return fault.TextDelay(s) },
		} {
			d, ok := parse(s, time.Unix(now, 0))
			if d < 0 || d > fault.MaxDelay || !ok && d != 0 {
				t.Fatalf("%s: %q: got %v, %v", name, s, d, ok)
			}
			if _, dated := parse(s, time.Time{}); !ok && dated {
				t.Fatalf("%s: %q tells something only without a date", name, s)
			}
		}
	})
}

func FuzzJSON(f *testing.F) {
	for _, c := range loadCases(f) {
		f.Add([]byte(c.Body))
	}
	for _, s := range []string{`{"a":[1,-0.5e+3,"\u00e9\\",true,false,null,{}]}`, `01`, `[1,]`, `{"a"}`, "\"\x01\"", `"\x"`, `[[[]]]`, ` 1 `, `-`, `1.`, `1e`, `{"a":1,}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.Count(data, []byte("[")) > 9000 {
			return
		}
		if got, want := fault.ScanJSON(data), json.Valid(data); got != want {
			t.Fatalf("%q: got %v, encoding/json says %v", data, got, want)
		}
	})
}
