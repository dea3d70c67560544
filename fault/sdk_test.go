package fault_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/fault/internal/fakesdk/google.golang.org/genai"
	stripe "github.com/pawlrun/pawl/fault/internal/fakesdk/stripe-go"
)

// The errors of openai-go and anthropic-sdk-go have this shape.
type stainlessError struct {
	StatusCode int
	Response   *http.Response
	raw        string
}

func (e *stainlessError) Error() string   { return fmt.Sprint("API error: ", e.StatusCode) }
func (e *stainlessError) RawJSON() string { return e.raw }

func stainless(status int, at, raw string, h http.Header) error {
	u, _ := url.Parse(at)
	return &stainlessError{status, &http.Response{StatusCode: status, Header: h, Request: &http.Request{URL: u}}, raw}
}

// The AWS SDK keeps the status in one error and the code in another below it.
type (
	smithyResponse struct{ *http.Response }
	responseError  struct {
		Response *smithyResponse
		Err      error
	}
	apiException struct{ code, message string }
)

func (e *responseError) Error() string                 { return "https response error" }
func (e *responseError) Unwrap() error                 { return e.Err }
func (e *responseError) HTTPStatusCode() int           { return e.Response.StatusCode }
func (e *responseError) HTTPResponse() *smithyResponse { return e.Response }
func (e *apiException) Error() string                  { return e.code }
func (e *apiException) ErrorCode() string              { return e.code }
func (e *apiException) ErrorMessage() string           { return e.message }

func awsError(status int, err error) error {
	at, _ := url.Parse("https://bedrock-runtime.us-east-1.amazonaws.com/model/m/converse")
	return &responseError{&smithyResponse{&http.Response{StatusCode: status, Request: &http.Request{URL: at}}}, fmt.Errorf("deserialize: %w", err)}
}

// The shape of googleapi's.
type Error struct {
	Code   int
	Body   string
	Header http.Header
}

func (e *Error) Error() string { return e.Body }

// What openai-go makes of an error inside a stream.
type streamError struct {
	Event struct {
		Type string
		Data []byte
	}
}

func (e *streamError) Error() string { return "received error while streaming" }

func TestFromSDKs(t *testing.T) {
	inStream := &streamError{}
	inStream.Event.Data = []byte(`{"error":{"type":"server_error","message":"x"}}`)
	rows := []struct {
		rule     string
		err      error
		want     want
		provider string
	}{
		{"openai-go keeps the error object alone", stainless(429, "https://api.openai.com/v1/x", `{"message":"x","type":"insufficient_quota","code":"insufficient_quota"}`, nil), want{fault.QuotaExhausted, fault.ReasonCredit, rejected}, "openai"},
		{"the host says whose it is", stainless(400, "https://x.openai.azure.com/openai/x", `{"message":"x","code":"content_filter"}`, nil), want{fault.ContentPolicy, fault.ReasonInputBlocked, rejected}, "azure-openai"},
		{"anthropic-sdk-go keeps all", stainless(400, "https://api.anthropic.com/v1/messages", `{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low"}}`, nil), want{fault.QuotaExhausted, fault.ReasonCredit, rejected}, "anthropic"},
		{"in a stream the status is 200", stainless(200, "https://api.anthropic.com/v1/messages", `{"type":"error","error":{"type":"overloaded_error"}}`, nil), want{fault.Transient, fault.ReasonOverloaded, maybe}, "anthropic"},
		{"a success that could not be read", stainless(200, "https://api.openai.com/v1/x", ``, nil), want{fault.OutcomeUnknown, fault.ReasonResponseUnreadable, maybe}, "openai"},
		{"openai-go in a stream", inStream, want{fault.Transient, fault.ReasonServerError, maybe}, "http-api"},
		{"genai", genai.APIError{Code: 429, Status: "RESOURCE_EXHAUSTED", Details: []map[string]any{{"violations": []any{map[string]any{"quotaId": "RequestsPerDay"}}}}}, want{fault.QuotaExhausted, fault.ReasonDailyQuota, rejected}, "gemini"},
		{"genai by pointer", &genai.APIError{Code: 503, Status: "UNAVAILABLE"}, want{fault.Transient, fault.ReasonOverloaded, rejected}, "gemini"},
		{"googleapi", &Error{503, `{"error":{"code":503,"status":"UNAVAILABLE"}}`, http.Header{}}, want{fault.Transient, fault.ReasonOverloaded, maybe}, "http-api"},
		{"stripe-go", &stripe.Error{HTTPStatusCode: 429, Code: "lock_timeout", Type: "invalid_request_error"}, want{fault.Transient, fault.ReasonLockTimeout, rejected}, "stripe"},
		{"stripe-go with its response", &stripe.Error{HTTPStatusCode: 500, APIResource: stripe.APIResource{LastResponse: &stripe.APIResponse{Header: http.Header{"Stripe-Should-Retry": {"false"}}}}}, want{fault.Transient, fault.ReasonServerError, maybe}, "stripe"},
		{"AWS", awsError(429, &apiException{"ThrottlingException", "Too many tokens per day"}), want{fault.QuotaExhausted, fault.ReasonDailyQuota, rejected}, "bedrock"},
		{"AWS without a code", awsError(500, io.EOF), want{fault.Transient, fault.ReasonServerError, maybe}, "bedrock"},
		{"AWS, the exception of a stream", &apiException{"ModelStreamErrorException", "x"}, want{fault.Transient, fault.ReasonModelError, maybe}, "aws"},
		{"AWS, a send that failed is wrapped as a response", awsError(0, tripped(io.EOF)), want{fault.OutcomeUnknown, fault.ReasonConnectionLost, maybe}, ""},
		{"a status that is none", &stainlessError{StatusCode: 7}, want{fault.OutcomeUnknown, fault.ReasonUnrecognized, maybe}, ""},
		{"a status and nothing else", &struct{ coded }{404}, want{fault.OutcomeUnknown, fault.ReasonUnrecognized, maybe}, ""},
		{"a nil pointer", (*stainlessError)(nil), want{fault.OutcomeUnknown, fault.ReasonUnrecognized, maybe}, ""},
	}
	for _, row := range rows {
		f := fault.From(fmt.Errorf("call: %w", row.err))
		check(t, row.rule, f, row.want)
		if f.Provider != row.provider {
			t.Errorf("%s: got provider %q, want %q", row.rule, f.Provider, row.provider)
		}
	}
}

func TestFromSDKKeepsWhatTheResponseSays(t *testing.T) {
	h := http.Header{"Retry-After": {"7"}, "X-Request-Id": {"req_1"}, "X-Should-Retry": {"false"}}
	err := stainless(429, "https://api.openai.com/v1/x", `{"message":"slow down","type":"tokens","code":"rate_limit_exceeded"}`, h)
	f := fault.From(fmt.Errorf("ask: %w", err))
	if f.Delay != 7*time.Second || f.RequestID != "req_1" || f.Status != 429 || !f.Final {
		t.Errorf("delay, request id, status and veto come along: got %+v", f)
	}
	if f.Message != "ask: API error: 429: slow down" || !errors.Is(f, err) {
		t.Errorf("the response's message is added where the error's text lacks it: got %q", f.Message)
	}
	joined := fault.From(errors.Join(errors.New("x"), err))
	if !joined.Final {
		t.Error("a veto of one of several errors counts for all")
	}
}
