package fault_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/pawlrun/pawl/fault"
)

// sent is the Date of the responses in these tables.
const sent = "Wed, 21 Oct 2026 07:28:00 GMT"

func TestDelaysInAllSpellings(t *testing.T) {
	const limited = `{"error":{"code":"rate_limit_exceeded","message":"slow down"}}`
	rows := []struct {
		rule     string
		provider string
		header   map[string]string
		body     string
		want     time.Duration
	}{
		{"whole seconds", "http-api", map[string]string{"Retry-After": "7"}, "", 7 * time.Second},
		{"spaces around", "http-api", map[string]string{"Retry-After": " 7 "}, "", 7 * time.Second},
		{"a fraction", "http-api", map[string]string{"Retry-After": "0.75"}, "", 750 * time.Millisecond},
		{"a unit that does not belong there", "http-api", map[string]string{"Retry-After": "30s"}, "", 30 * time.Second},
		{"IMF-fixdate", "http-api", map[string]string{"Date": sent, "Retry-After": "Wed, 21 Oct 2026 07:29:30 GMT"}, "", 90 * time.Second},
		{"RFC 850 date", "http-api", map[string]string{"Date": sent, "Retry-After": "Wednesday, 21-Oct-26 07:29:30 GMT"}, "", 90 * time.Second},
		{"asctime date", "http-api", map[string]string{"Date": sent, "Retry-After": "Wed Oct 21 07:29:30 2026"}, "", 90 * time.Second},
		{"a date without a Date to measure from tells nothing", "http-api", map[string]string{"Retry-After": "Wed, 21 Oct 2026 07:29:30 GMT"}, "", 0},
		{"a past date is no wait", "http-api", map[string]string{"Date": sent, "Retry-After": "Wed, 21 Oct 2026 07:00:00 GMT"}, "", 0},
		{"a past date does not hide the text", "openai", map[string]string{"Date": sent, "Retry-After": "Wed, 21 Oct 2026 07:00:00 GMT"}, `{"error":{"code":"rate_limit_exceeded","message":"Please try again in 9s."}}`, 9 * time.Second},
		{"zeros do not hide the text", "azure-openai", map[string]string{"Retry-After-Ms": "0", "Retry-After": "0", "X-Ratelimit-Remaining-Tokens": "0", "X-Ratelimit-Reset-Tokens": "0"}, `{"error":{"code":"429","message":"Please retry after 20 seconds."}}`, 20 * time.Second},
		{"a zero does not hide the seconds", "openai", map[string]string{"Retry-After-Ms": "0", "Retry-After": "3"}, limited, 3 * time.Second},
		{"a zero does not hide RetryInfo", "gemini", map[string]string{"Retry-After": "0"}, `{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","details":[{"retryDelay":"36s"}]}}`, 36 * time.Second},
		{"RetryInfo in parts", "gemini", nil, `{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","details":[{"retryDelay":{"seconds":36,"nanos":500000000}}]}}`, 36500 * time.Millisecond},
		{"RetryInfo in parts, the other way about", "gemini", nil, `{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","details":[{"retryDelay":{"nanos":500000000,"seconds":"36"}}]}}`, 36500 * time.Millisecond},
		{"negative", "http-api", map[string]string{"Retry-After": "-1"}, "", 0},
		{"NaN", "http-api", map[string]string{"Retry-After": "NaN"}, "", 0},
		{"infinite", "http-api", map[string]string{"Retry-After": "Inf"}, "", 0},
		{"hexadecimal", "http-api", map[string]string{"Retry-After": "0x10"}, "", 0},
		{"exponent", "http-api", map[string]string{"Retry-After": "1e3"}, "", 0},
		{"garbage", "http-api", map[string]string{"Retry-After": "soon"}, "", 0},
		{"overflow", "http-api", map[string]string{"Retry-After": "99999999999999999999"}, "", 0},
		{"an instant where seconds belong", "http-api", map[string]string{"Retry-After": "1792627200"}, "", 0},
		{"garbage does not hide the text", "openai", map[string]string{"Retry-After": "soon"}, `{"error":{"code":"rate_limit_exceeded","message":"Please try again in 9s."}}`, 9 * time.Second},
		{"longer than the longest", "http-api", map[string]string{"Retry-After": "5184000"}, "", fault.MaxDelay},
		{"milliseconds come first", "openai", map[string]string{"Retry-After": "2", "Retry-After-Ms": "1500"}, limited, 1500 * time.Millisecond},
		{"fractional milliseconds", "openai", map[string]string{"Retry-After-Ms": "1.5"}, limited, 1500 * time.Microsecond},
		{"negative milliseconds do not count", "openai", map[string]string{"Retry-After": "2", "Retry-After-Ms": "-5"}, limited, 2 * time.Second},

		{"6m0s", "openai", map[string]string{"X-Ratelimit-Remaining-Requests": "0", "X-Ratelimit-Reset-Requests": "6m0s"}, limited, 6 * time.Minute},
		{"only of the limit that is used up", "openai", map[string]string{"X-Ratelimit-Remaining-Requests": "0", "X-Ratelimit-Reset-Requests": "1.57s", "X-Ratelimit-Remaining-Tokens": "9", "X-Ratelimit-Reset-Tokens": "6m0s"}, limited, 1570 * time.Millisecond},
		{"of two, the later", "openai", map[string]string{"X-Ratelimit-Remaining-Requests": "0", "X-Ratelimit-Reset-Requests": "1s", "X-Ratelimit-Remaining-Tokens": "0", "X-Ratelimit-Reset-Tokens": "2m59.56s"}, limited, 2*time.Minute + 59560*time.Millisecond},
		{"of two, the later, in any order", "openai", map[string]string{"X-Ratelimit-Remaining-Requests": "0", "X-Ratelimit-Reset-Requests": "9s", "X-Ratelimit-Remaining-Tokens": "0", "X-Ratelimit-Reset-Tokens": "2s"}, limited, 9 * time.Second},
		{"RFC 3339", "anthropic", map[string]string{"Date": sent, "Anthropic-Ratelimit-Requests-Remaining": "0", "Anthropic-Ratelimit-Requests-Reset": "2026-10-21T07:28:45Z"}, `{"type":"error","error":{"type":"rate_limit_error"}}`, 45 * time.Second},
		{"seconds since 1970", "http-api", map[string]string{"Date": sent, "X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "1792567710"}, "", 30 * time.Second},
		{"milliseconds since 1970", "openrouter", map[string]string{"Date": sent, "X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "1792567710000"}, `{"error":{"code":429,"message":"x"}}`, 30 * time.Second},
		{"a refill is no reason to wait for a server that failed", "openai", map[string]string{"X-Ratelimit-Remaining-Tokens": "0", "X-Ratelimit-Reset-Tokens": "6m0s"}, `{"error":{"code":"server_error"}}`, 0},

		{"RetryInfo", "gemini", nil, `{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","details":[{"retryDelay":"36.429760048s"}]}}`, 36429760048},
		{"RetryInfo after Retry-After", "gemini", map[string]string{"Retry-After": "1"}, `{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","details":[{"retryDelay":"36s"}]}}`, time.Second},
		{"negative RetryInfo", "gemini", nil, `{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","details":[{"retryDelay":"-36s"}]}}`, 0},
		{"pushback", "http-api", map[string]string{"Grpc-Retry-Pushback-Ms": "250"}, "", 250 * time.Millisecond},

		{"text: seconds", "openai", nil, `{"error":{"code":"rate_limit_exceeded","message":"Please try again in 41.724s."}}`, 41724 * time.Millisecond},
		{"text: milliseconds", "openai", nil, `{"error":{"code":"rate_limit_exceeded","message":"Please try again in 12ms. Visit"}}`, 12 * time.Millisecond},
		{"text: a compound", "groq", nil, `{"error":{"code":"rate_limit_exceeded","message":"Please try again in 7m12.5s."}}`, 7*time.Minute + 12500*time.Millisecond},
		{"text: words", "azure-openai", nil, `{"error":{"code":"429","message":"Please retry after 1 minute 5 seconds."}}`, 65 * time.Second},
		{"text: another phrase", "gemini", nil, `{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","message":"Please retry in 36.4s."}}`, 36400 * time.Millisecond},
		{"text: a bare number tells nothing", "openai", nil, `{"error":{"code":"rate_limit_exceeded","message":"try again in 20"}}`, 0},
		{"text: a negative number tells nothing", "openai", nil, `{"error":{"code":"rate_limit_exceeded","message":"try again in -20s"}}`, 0},
		{"text: too long to be true", "openai", nil, `{"error":{"code":"rate_limit_exceeded","message":"try again in 99999999999999h"}}`, 0},

		{"a delay lifts no quota", "openai", map[string]string{"Retry-After": "2"}, `{"error":{"code":"insufficient_quota","message":"try again in 3s"}}`, 0},
		{"nor a denial", "openai", map[string]string{"Retry-After": "2"}, `{"error":{"code":"invalid_api_key"}}`, 0},
		{"the end of a quota is told by its date", "anthropic", map[string]string{"Date": sent}, `{"type":"error","error":{"type":"invalid_request_error","message":"You have reached your specified API usage limits. You will regain access on 2026-10-22 at 00:00 UTC."}}`, 16*time.Hour + 32*time.Minute},
	}
	for _, row := range rows {
		h := http.Header{}
		for name, value := range row.header {
			h.Set(name, value)
		}
		f := fault.FromHTTP(row.provider, 429, h, []byte(row.body))
		if f.Delay != row.want {
			t.Errorf("rule broken: %s: got %v (%v), want %v", row.rule, f.Delay, f, row.want)
		}
	}
}

func TestVetoes(t *testing.T) {
	for header, values := range map[string]map[string]bool{
		"X-Should-Retry":         {"false": true, "False": true, " false ": true, "true": false, "": false, "0": false},
		"Stripe-Should-Retry":    {"false": true, "true": false},
		"Grpc-Retry-Pushback-Ms": {"-1": true, "never": true, "0": false, "250": false},
	} {
		for value, veto := range values {
			f := fault.FromHTTP("http-api", 429, http.Header{header: {value}}, nil)
			if f.Final != veto {
				t.Errorf("%s: %q: got veto %v, want %v", header, value, f.Final, veto)
			}
			d := fault.Decide(f, fault.KindRepeatable, fault.Budget{Attempt: 1})
			if (d.Action == fault.ActionFail) != veto {
				t.Errorf("a veto stops: %s: %q: got %v (%s)", header, value, d.Action, d.Why)
			}
		}
	}
}
