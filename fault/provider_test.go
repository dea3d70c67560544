package fault_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/pawlrun/pawl/fault"
)

// inTheirWords are what far ends send in their own words, beyond testdata/cases.jsonl: "status | body" or
// "status | Header: value | body", and what it is.
var inTheirWords = map[string][]struct {
	answer string
	class  fault.Class
	reason fault.Reason
	out    fault.Outcome
}{
	"openai": {
		{`429 | {"error":{"type":"insufficient_quota","code":"organization_usage_limit_exceeded"}}`, fault.QuotaExhausted, fault.ReasonUsageLimit, rejected},
		{`429 | {"error":{"message":"You exceeded your current quota, please check your plan","type":"requests","code":null}}`, fault.QuotaExhausted, fault.ReasonCredit, rejected},
		{`429 | {"error":{"message":"slow","type":"requests","code":"rate_limit_exceeded"}}`, fault.RateLimited, fault.ReasonRequests, rejected},
		{`400 | {"error":{"message":"too long","type":"invalid_request_error","code":"context_length_exceeded"}}`, fault.InvalidRequest, fault.ReasonContextLength, rejected},
		{`400 | {"error":{"message":"This model's maximum context length is 8192 tokens.","type":"invalid_request_error","code":null}}`, fault.InvalidRequest, fault.ReasonContextLength, rejected},
		{`400 | {"error":{"message":"x","type":"invalid_request_error","code":"content_policy_violation"}}`, fault.ContentPolicy, fault.ReasonInputBlocked, rejected},
		{`400 | {"error":{"message":"x","type":"image_generation_user_error","code":"moderation_blocked"}}`, fault.ContentPolicy, fault.ReasonInputBlocked, rejected},
		{`400 | {"error":{"message":"x","type":"invalid_request_error","code":"unsupported_value","param":"temperature"}}`, fault.InvalidRequest, fault.ReasonParameter, rejected},
		{`401 | {"error":{"message":"x","type":"invalid_request_error","code":"account_deactivated"}}`, fault.AccessDenied, fault.ReasonOrgDisabled, rejected},
		{`401 | {"error":{"message":"IP not authorized","type":"invalid_request_error","code":null}}`, fault.AccessDenied, fault.ReasonNetworkRule, rejected},
		{`403 | {"error":{"message":"Project p does not have access to model m","type":"invalid_request_error","code":"model_not_found"}}`, fault.AccessDenied, fault.ReasonModelNotAllowed, rejected},
		{`500 | {"error":{"message":"x","type":"server_error","code":"server_error"}}`, fault.Transient, fault.ReasonServerError, maybe},
		{`503 | {"error":{"message":"x","type":"service_unavailable_error","code":null}}`, fault.Transient, fault.ReasonUnavailable, rejected},
		{`502 | <html>bad gateway</html>`, fault.Transient, fault.ReasonBadGateway, maybe},
		{`200 | {"choices":[{"finish_reason":"length","message":{"content":"x"}}]}`, fault.InvalidRequest, fault.ReasonOutputTruncated, maybe},
		{`200 | {"object":"response","status":"incomplete","incomplete_details":{"reason":"content_filter"}}`, fault.ContentPolicy, fault.ReasonOutputBlocked, maybe},
		{`200 | {"object":"response","status":"failed","error":{"code":"server_error","message":"x"}}`, fault.Transient, fault.ReasonServerError, maybe},
		{`200 | {"object":"response","output":[{"type":"message","content":[{"type":"refusal","refusal":"no"}]}]}`, fault.ContentPolicy, fault.ReasonRefusal, maybe},
		{`200 | {"id":"x","object":"chat.completion","choices":[]}`, fault.OutcomeUnknown, fault.ReasonResponseUnreadable, maybe},
		{`200 | `, fault.OutcomeUnknown, fault.ReasonResponseUnreadable, maybe},
	},
	"anthropic": {
		{`400 | {"type":"error","error":{"type":"invalid_request_error","message":"messages: at least one message is required"}}`, fault.InvalidRequest, fault.ReasonMalformed, rejected},
		{`401 | {"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}`, fault.AccessDenied, fault.ReasonAuthentication, rejected},
		{`402 | {"type":"error","error":{"type":"billing_error","message":"x"}}`, fault.QuotaExhausted, fault.ReasonCredit, rejected},
		{`404 | {"type":"error","error":{"type":"not_found_error","message":"model: claude-x"}}`, fault.InvalidRequest, fault.ReasonModelNotFound, rejected},
		{`500 | {"type":"error","error":{"type":"api_error","message":"Internal server error"}}`, fault.Transient, fault.ReasonServerError, maybe},
		{`504 | {"type":"error","error":{"type":"timeout_error","message":"x"}}`, fault.Transient, fault.ReasonUpstreamTimeout, maybe},
		{`529 | `, fault.Transient, fault.ReasonOverloaded, rejected},
		{`429 | {"type":"error","error":{"type":"rate_limit_error","message":"This request would exceed your organization's rate limit of 40,000 input tokens per minute"}}`, fault.RateLimited, fault.ReasonInputTokens, rejected},
		{`200 | {"type":"message","stop_reason":"max_tokens","content":[{"type":"text","text":"x"}]}`, fault.InvalidRequest, fault.ReasonOutputTruncated, maybe},
	},
	"gemini": {
		{`400 | {"error":{"code":400,"message":"API key not valid.","status":"INVALID_ARGUMENT","details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"API_KEY_INVALID"}]}}`, fault.AccessDenied, fault.ReasonAuthentication, rejected},
		{`400 | {"error":{"code":400,"message":"User location is not supported for the API use.","status":"FAILED_PRECONDITION"}}`, fault.AccessDenied, fault.ReasonRegionUnsupported, rejected},
		{`400 | {"error":{"code":400,"message":"Invalid JSON payload received. Unknown name \"x\" at 'generation_config.response_schema'","status":"INVALID_ARGUMENT"}}`, fault.InvalidRequest, fault.ReasonUnsupportedSchema, rejected},
		{`401 | {"error":{"code":401,"message":"x","status":"UNAUTHENTICATED"}}`, fault.AccessDenied, fault.ReasonAuthentication, rejected},
		{`429 | {"error":{"code":"quota_exceeded","message":"x"}}`, fault.QuotaExhausted, fault.ReasonDailyQuota, rejected},
		{`402 | {"error":{"code":"payment_required","message":"x"}}`, fault.QuotaExhausted, fault.ReasonCredit, rejected},
		{`500 | {"error":{"code":500,"message":"x","status":"INTERNAL"}}`, fault.Transient, fault.ReasonServerError, maybe},
		{`503 | {"error":{"code":503,"message":"The model is overloaded.","status":"UNAVAILABLE"}}`, fault.Transient, fault.ReasonOverloaded, rejected},
		{`200 | {"promptFeedback":{"blockReason":"SAFETY"}}`, fault.ContentPolicy, fault.ReasonInputBlocked, rejected},
		{`200 | {"candidates":[{"finishReason":"SPII"}]}`, fault.ContentPolicy, fault.ReasonOutputBlocked, maybe},
		{`200 | {"candidates":[{"finishReason":"UNEXPECTED_TOOL_CALL"}]}`, fault.Transient, fault.ReasonModelOutput, maybe},
		{`200 | {"candidates":[{"content":{"parts":[]},"finishReason":"MAX_TOKENS"}]}`, fault.InvalidRequest, fault.ReasonOutputTruncated, maybe},
	},
	"vertex": {
		{`429 | {"error":{"code":429,"message":"Quota exceeded","status":"RESOURCE_EXHAUSTED"}}`, fault.RateLimited, fault.ReasonCapacity, rejected},
		{`529 | {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`, fault.Transient, fault.ReasonOverloaded, rejected},
		{`404 | {"error":{"code":404,"message":"Publisher Model x was not found","status":"NOT_FOUND"}}`, fault.InvalidRequest, fault.ReasonModelNotFound, rejected},
	},
	"bedrock": {
		{`400 | X-Amzn-ErrorType: ValidationException:http://internal.amazon.com/ | {"message":"Input is too long for requested model."}`, fault.InvalidRequest, fault.ReasonContextLength, rejected},
		{`400 | X-Amzn-ErrorType: ServiceQuotaExceededException | {"message":"x"}`, fault.QuotaExhausted, fault.ReasonServiceQuota, rejected},
		{`404 | X-Amzn-ErrorType: ResourceNotFoundException | {"message":"Could not resolve the foundation model from the provided model identifier."}`, fault.InvalidRequest, fault.ReasonModelNotFound, rejected},
		{`404 | {"__type":"FTUFormNotFilled","message":"x"}`, fault.AccessDenied, fault.ReasonModelNotAllowed, rejected},
		{`424 | X-Amzn-ErrorType: ModelErrorException | {"message":"x"}`, fault.Transient, fault.ReasonModelError, maybe},
		{`429 | X-Amzn-ErrorType: ModelNotReadyException | {"message":"x"}`, fault.Transient, fault.ReasonUnavailable, rejected},
		{`429 | X-Amzn-ErrorType: ThrottlingException | {"message":"Too many tokens, please wait before trying again."}`, fault.RateLimited, fault.ReasonTokens, rejected},
		{`200 | {"stopReason":"content_filtered","output":{}}`, fault.ContentPolicy, fault.ReasonOutputBlocked, maybe},
	},
	"azure-openai": {
		{`401 | {"error":{"code":"401","message":"Access denied due to invalid subscription key or wrong API endpoint."}}`, fault.AccessDenied, fault.ReasonAuthentication, rejected},
		{`429 | {"error":{"code":"429","message":"Requests have exceeded call rate limit of your current tier. Please retry after 6 seconds."}}`, fault.RateLimited, fault.ReasonRequests, rejected},
		{`429 | {"error":{"code":"insufficient_quota","message":"x"}}`, fault.QuotaExhausted, fault.ReasonCredit, rejected},
		{`200 | {"choices":[{"finish_reason":"content_filter","message":{"content":""}}]}`, fault.ContentPolicy, fault.ReasonOutputBlocked, maybe},
		{`500 | {"error":{"code":"InternalServerError","message":"x"}}`, fault.Transient, fault.ReasonServerError, maybe},
		{`400 | {"error":{"code":"context_length_exceeded","message":"x","type":"invalid_request_error"}}`, fault.InvalidRequest, fault.ReasonContextLength, rejected},
	},
	"mistral": {
		{`400 | {"object":"error","message":"Invalid model: x","type":"invalid_model","code":"1500"}`, fault.InvalidRequest, fault.ReasonModelNotFound, rejected},
		{`400 | {"object":"error","message":"x","type":"unknown_model","code":null}`, fault.InvalidRequest, fault.ReasonModelNotFound, rejected},
		{`403 | {"object":"error","message":"tier","type":"x"}`, fault.AccessDenied, fault.ReasonAuthorization, rejected},
		{`429 | {"object":"error","message":"Requests rate limit exceeded","type":"rate_limited","code":"1300"}`, fault.RateLimited, fault.ReasonRequests, rejected},
		{`500 | {"object":"error","message":"x","type":"server_error"}`, fault.Transient, fault.ReasonServerError, maybe},
		{`503 | {"object":"error","message":"x","type":"x"}`, fault.Transient, fault.ReasonUnavailable, maybe},
		{`504 | {"object":"error","message":"x","type":"x"}`, fault.Transient, fault.ReasonUpstreamTimeout, maybe},
		{`200 | {"choices":[{"finish_reason":"model_length","message":{"content":"x"}}]}`, fault.InvalidRequest, fault.ReasonContextLength, maybe},
	},
	"cohere": {
		{`429 | {"message":"You are using a Trial key, which is limited to 1000 API calls / month."}`, fault.QuotaExhausted, fault.ReasonUsageLimit, rejected},
		{`404 | {"message":"model 'x' not found, make sure the correct model ID was used"}`, fault.InvalidRequest, fault.ReasonModelNotFound, rejected},
		{`500 | {"message":"internal server error"}`, fault.Transient, fault.ReasonServerError, maybe},
		{`200 | {"id":"x","finish_reason":"MAX_TOKENS","message":{"role":"assistant","content":[]}}`, fault.InvalidRequest, fault.ReasonOutputTruncated, maybe},
		{`200 | {"id":"x","finish_reason":"ERROR","message":{}}`, fault.Transient, fault.ReasonServerError, maybe},
	},
	"groq": {
		{`400 | {"error":{"message":"Failed to generate JSON.","type":"invalid_request_error","code":"json_validate_failed","failed_generation":"{"}}`, fault.Transient, fault.ReasonModelOutput, maybe},
		{`401 | {"error":{"message":"Invalid API Key","type":"invalid_request_error","code":"invalid_api_key"}}`, fault.AccessDenied, fault.ReasonAuthentication, rejected},
		{`404 | {"error":{"message":"x","type":"invalid_request_error","code":"model_not_found"}}`, fault.InvalidRequest, fault.ReasonModelNotFound, rejected},
	},
	"openrouter": {
		{`403 | {"error":{"code":403,"message":"Refused","metadata":{"reasons":["hate"],"flagged_input":"x"}}}`, fault.ContentPolicy, fault.ReasonInputBlocked, rejected},
		{`403 | {"error":{"code":403,"message":"Only allowed for owners"}}`, fault.AccessDenied, fault.ReasonAuthorization, rejected},
		{`502 | {"error":{"code":502,"message":"Provider returned error"}}`, fault.Transient, fault.ReasonServerError, maybe},
		{`503 | <html>x</html>`, fault.Transient, fault.ReasonUnavailable, maybe},
		{`200 | {"id":"gen-1","model":"x","choices":[]}`, fault.OutcomeUnknown, fault.ReasonResponseUnreadable, maybe},
		{`200 | {"error":{"code":401,"message":"No auth"}}`, fault.AccessDenied, fault.ReasonAuthentication, maybe},
		{`402 | {"error":{"code":402,"message":"Provider returned error","metadata":{"provider_name":"Anthropic","raw":"{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"prompt is too long: 3 tokens > 2 maximum\"}}"}}}`, fault.InvalidRequest, fault.ReasonContextLength, rejected},
		{`404 | {"error":{"code":404,"message":"No endpoints found for x/y."}}`, fault.InvalidRequest, fault.ReasonModelNotFound, rejected},
	},
	"xai": {
		{`400 | {"code":"Client specified an invalid argument","error":"Incorrect API key provided: xa***zz."}`, fault.AccessDenied, fault.ReasonAuthentication, rejected},
		{`403 | {"code":"The caller does not have permission to execute the specified operation","error":"x"}`, fault.AccessDenied, fault.ReasonAuthorization, rejected},
		{`404 | {"code":"Some requested entity was not found","error":"The model x does not exist"}`, fault.InvalidRequest, fault.ReasonModelNotFound, rejected},
		{`429 | {"code":"Some resource has been exhausted","error":"Too many requests"}`, fault.RateLimited, fault.ReasonRequests, rejected},
		{`503 | {"code":"The service is currently unavailable","error":"x"}`, fault.Transient, fault.ReasonUnavailable, rejected},
	},
	"ollama": {
		{`400 | {"error":"\"llama\" does not support tools"}`, fault.InvalidRequest, fault.ReasonParameter, rejected},
		{`502 | {"error":"x"}`, fault.Transient, fault.ReasonBadGateway, maybe},
		{`200 | {"response":"x","done":true,"done_reason":"length"}`, fault.InvalidRequest, fault.ReasonOutputTruncated, maybe},
	},
	"vllm": {
		{`400 | {"object":"error","message":"This model's maximum context length is 10 tokens.","type":"BadRequestError","param":null,"code":400}`, fault.InvalidRequest, fault.ReasonContextLength, rejected},
		{`400 | {"error":{"message":"x","type":"BadRequestError","param":null,"code":400}}`, fault.InvalidRequest, fault.ReasonMalformed, rejected},
		{`503 | {"error":{"message":"x","type":"ServiceUnavailableError","code":503}}`, fault.Transient, fault.ReasonUnavailable, rejected},
	},
	"stripe": {
		{`400 | {"error":{"type":"idempotency_error","message":"Keys for idempotent requests can only be used with the same parameters"}}`, fault.InvalidRequest, fault.ReasonIdempotencyMismatch, rejected},
		{`400 | {"error":{"type":"invalid_request_error","code":"parameter_missing","message":"x"}}`, fault.InvalidRequest, fault.ReasonMalformed, rejected},
		{`402 | {"error":{"type":"card_error","code":"card_declined","decline_code":"insufficient_funds"}}`, fault.InvalidRequest, fault.ReasonDeclined, rejected},
		{`402 | {"error":{"type":"card_error","code":"expired_card"}}`, fault.InvalidRequest, fault.ReasonDeclined, rejected},
		{`404 | {"error":{"type":"invalid_request_error","code":"resource_missing"}}`, fault.InvalidRequest, fault.ReasonNotFound, rejected},
		{`500 | {"error":{"type":"api_error","message":"x"}}`, fault.Transient, fault.ReasonServerError, maybe},
		{`429 | `, fault.RateLimited, fault.ReasonRequests, rejected},
	},
	"aws": {
		{`503 | <?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message><RequestId>r1</RequestId></Error>`, fault.RateLimited, fault.ReasonRequests, rejected},
		{`400 | {"__type":"com.amazonaws.dynamodb.v20120810#ThrottlingException","message":"x"}`, fault.RateLimited, fault.ReasonRequests, rejected},
		{`400 | {"__type":"LimitExceededException"}`, fault.RateLimited, fault.ReasonRequests, rejected},
		{`400 | {"__type":"ConditionalCheckFailedException"}`, fault.InvalidRequest, fault.ReasonPrecondition, rejected},
		{`400 | {"__type":"ExpiredTokenException"}`, fault.AccessDenied, fault.ReasonCredentialsExpired, rejected},
		{`403 | {"__type":"InvalidSignatureException","message":"Signature expired: 20260101T000000Z is now earlier than"}`, fault.Transient, fault.ReasonClockSkew, rejected},
		{`500 | {"__type":"InternalFailure"}`, fault.Transient, fault.ReasonServerError, maybe},
	},
	"cdn": {
		{`521 | <html></html>`, fault.Transient, fault.ReasonUnreachable, notSent},
		{`522 | <html></html>`, fault.OutcomeUnknown, fault.ReasonUpstreamTimeout, maybe},
		{`523 | <html></html>`, fault.Transient, fault.ReasonUnreachable, notSent},
		{`526 | <html></html>`, fault.Transient, fault.ReasonTLSHandshake, notSent},
		{`530 | <html></html>`, fault.Transient, fault.ReasonUnreachable, notSent},
		{`403 | Cf-Mitigated: challenge | `, fault.AccessDenied, fault.ReasonEdgeBlocked, rejected},
		{`429 | <html>1015</html>`, fault.RateLimited, fault.ReasonRequests, rejected},
		{`403 | <html>no</html>`, fault.AccessDenied, fault.ReasonEdgeBlocked, rejected},
	},
	"webhook": {
		{`504 | `, fault.Transient, fault.ReasonUpstreamTimeout, maybe},
		{`404 | `, fault.InvalidRequest, fault.ReasonNotFound, rejected},
		{`503 | Retry-After: 9 | `, fault.Transient, fault.ReasonUnavailable, rejected},
	},
	"http-api": {
		{`498 | `, fault.Transient, fault.ReasonOverloaded, rejected},
		{`401 | {"code":500,"message":"internal"}`, fault.AccessDenied, fault.ReasonAuthentication, rejected},
		{`402 | {"error":{"code":"502","message":"x"}}`, fault.QuotaExhausted, fault.ReasonCredit, rejected},
		{`403 | {"statusCode":429}`, fault.AccessDenied, fault.ReasonAuthorization, rejected},
		{`407 | {"code":503}`, fault.AccessDenied, fault.ReasonProxyAuthentication, notSent},
		{`400 | {"errorCode":429,"message":"x"}`, fault.InvalidRequest, fault.ReasonMalformed, rejected},
		{`503 | Retry-After: Wed, 21 Oct 2026 07:40:00 GMT | `, fault.Transient, fault.ReasonUnavailable, rejected},
		{`503 | Retry-After: soon | `, fault.Transient, fault.ReasonUnavailable, maybe},
		{`503 | Retry-After: 0 | `, fault.Transient, fault.ReasonUnavailable, rejected},
		{`403 | {"error":"invalid_api_key"}`, fault.AccessDenied, fault.ReasonAuthentication, rejected},
		{`400 | {"error":{"status":"FAILED_PRECONDITION"}}`, fault.InvalidRequest, fault.ReasonPrecondition, rejected},
		{"200 | \ufeff{\"error\":{\"code\":\"invalid_api_key\"}}", fault.AccessDenied, fault.ReasonAuthentication, maybe},
		{`200 | {"throttlingException":{"message":"a result by that name"},"more":1,"error":{"code":"slow_down"}}`, fault.RateLimited, fault.ReasonRampTooFast, maybe},
		{`504 | `, fault.OutcomeUnknown, fault.ReasonUpstreamTimeout, maybe},
		{`408 | `, fault.Transient, fault.ReasonUpstreamTimeout, maybe},
		{`409 | {}`, fault.Transient, fault.ReasonConflict, rejected},
		{`418 | `, fault.InvalidRequest, fault.ReasonMalformed, rejected},
		{`418 | X-Should-Retry: true | `, fault.Transient, fault.ReasonRejected, rejected},
		{`404 | X-Should-Retry: true | `, fault.InvalidRequest, fault.ReasonNotFound, rejected},
		{`500 | {"code":404,"message":"x"}`, fault.Transient, fault.ReasonServerError, maybe},
		{`401 | X-Should-Retry: true | `, fault.AccessDenied, fault.ReasonAuthentication, rejected},
		{`402 | X-Should-Retry: true | `, fault.QuotaExhausted, fault.ReasonCredit, rejected},
		{`400 | X-Should-Retry: true | {"error":{"type":"invalid_request_error"}}`, fault.InvalidRequest, fault.ReasonMalformed, rejected},
		{`599 | `, fault.OutcomeUnknown, fault.ReasonUnrecognized, maybe},
		{`0 | `, fault.OutcomeUnknown, fault.ReasonUnrecognized, maybe},
		{`503 | {"error":{"type":"overloaded_error"}}`, fault.Transient, fault.ReasonOverloaded, maybe},
		{`429 | {"error":{"code":"insufficient_quota"}}`, fault.QuotaExhausted, fault.ReasonCredit, rejected},
		{`307 | `, fault.InvalidRequest, fault.ReasonRedirect, rejected},
		{`200 | {"a":`, fault.OutcomeUnknown, fault.ReasonResponseUnreadable, maybe},
	},
}

// parseAnswer reads the notation of inTheirWords.
func parseAnswer(s string) (status int, h http.Header, body []byte) {
	parts := strings.SplitN(s, " | ", 3)
	h = http.Header{}
	if len(parts) == 3 {
		name, value, _ := strings.Cut(parts[1], ": ")
		h.Set(name, value)
	}
	_, _ = fmt.Sscan(parts[0], &status)
	return status, h, []byte(parts[len(parts)-1])
}

func TestAnswersOfProviders(t *testing.T) {
	for provider, rows := range inTheirWords {
		for _, row := range rows {
			status, h, body := parseAnswer(row.answer)
			f := fault.FromHTTP(provider, status, h, body)
			check(t, provider+" "+row.answer, f, want{row.class, row.reason, row.out})
			if f != nil && (f.Provider != provider || f.Status != status) {
				t.Errorf("provider and status are kept: got %q, %d", f.Provider, f.Status)
			}
		}
	}
}

func TestSuccessesAreNoFault(t *testing.T) {
	for provider, bodies := range map[string][]string{
		"openai": {`{"choices":[{"finish_reason":"stop","message":{"content":"x","refusal":null}}]}`, `{"object":"list","data":[]}`,
			`{"object":"response","status":"completed","output":[],"error":null}`, `{"id":"file-1","object":"file","bytes":3}`,
			`{"id":"r","object":"response","status":"cancelled","error":null,"output":[]}`,
			`{"object":"fine_tuning.job","id":"f","model":"m","status":"validating_files","error":{"code":null,"message":null,"param":null}}`,
			`{"object":"fine_tuning.job","id":"f","status":"running","error":{}}`,
			`{"object":"eval.run","id":"r","status":"completed","error":{"code":"","message":""}}`, `{"id":"b","object":"batch","status":"cancelled"}`},
		"anthropic":  {`{"type":"message","stop_reason":"end_turn","content":[]}`, `{"input_tokens":3}`},
		"gemini":     {`{"candidates":[{"finishReason":"STOP"}]}`, `{"totalTokens":3}`},
		"bedrock":    {`{"stopReason":"end_turn","output":{"message":{}}}`},
		"cohere":     {`{"id":"x","finish_reason":"COMPLETE","message":{"content":[]}}`},
		"ollama":     {`{"response":"x","done":true,"done_reason":"stop"}`, `{"models":[]}`},
		"openrouter": {`{"id":"x","choices":[{"finish_reason":"tool_calls","message":{"content":null,"tool_calls":[{"id":"1"}]}}]}`},
		"stripe":     {`{"id":"ch_1","object":"charge"}`},
		"webhook":    {``, `ok`},
		"http-api":   {``, `ok`, `{}`, `[]`, `null`, `{"error":null}`, `{"error":false}`, `{"error":{}}`, `{"error":{"code":null,"details":[]}}`, `{"fooException":{"message":"x"}}`, `{"error":"","status":"error-free"}`},
	} {
		for _, body := range bodies {
			if f := fault.FromHTTP(provider, 200, nil, []byte(body)); f != nil {
				t.Errorf("a success is no fault: %s %s: got %v", provider, body, f)
			}
		}
	}
	for _, kind := range []string{"application/octet-stream", "application/x-jsonl", "application/jsonl", "application/stream+json"} {
		lines := http.Header{"Content-Type": {kind}}
		body := "{\"custom_id\":\"1\",\"error\":{\"code\":\"batch_expired\"}}\n{\"custom_id\":\"2\",\"error\":null}\n"
		if f := fault.FromHTTP("openai", 200, lines, []byte(body)); f != nil {
			t.Errorf("a file of JSON lines is no broken JSON, and its errors are its records': %s: got %v", kind, f)
		}
	}
	for _, kind := range []string{"application/json", "application/problem+json; charset=utf-8", "application/vnd.api+json"} {
		if f := fault.FromHTTP("openai", 200, http.Header{"Content-Type": {kind}}, []byte("{\"a\":1}\n{\"b\"")); f == nil {
			t.Errorf("half of a JSON text is no result: %s", kind)
		}
	}
	for _, status := range []int{101, 201, 202, 204, 304} {
		if f := fault.FromHTTP("http-api", status, nil, nil); f != nil {
			t.Errorf("status %d is a success: got %v", status, f)
		}
	}
}

func TestProviderIsFoundByHeaders(t *testing.T) {
	for header, want := range map[string]string{
		"Openai-Processing-Ms": "openai", "Anthropic-Ratelimit-Tokens-Limit": "anthropic", "X-Amzn-Requestid": "aws",
		"X-Amzn-Bedrock-Input-Token-Count": "bedrock", "Stripe-Version": "stripe", "Cf-Ray": "cdn", "X-Groq-Region": "groq",
		"Apim-Request-Id": "azure-openai", "Mistral-Correlation-Id": "mistral", "X-Anything": "http-api",
	} {
		f := fault.FromHTTP("", 500, http.Header{header: {"x"}, "Server": {"cloudflare"}}, nil)
		if f.Provider != want {
			t.Errorf("a response with %s is from %s: got %s", header, want, f.Provider)
		}
	}
	both := http.Header{"Cf-Ray": {"x"}, "Anthropic-Organization-Id": {"x"}, "Request-Id": {"req_1"}}
	if f := fault.FromHTTP("", 500, both, nil); f.Provider != "anthropic" || f.RequestID != "req_1" {
		t.Errorf("who is behind a proxy matters more than the proxy: got %s, %s", f.Provider, f.RequestID)
	}
	if f := fault.FromHTTP("acme", 429, nil, nil); f.Provider != "acme" || f.Class != fault.RateLimited {
		t.Errorf("an unknown name is kept, under anybody's rules: got %v", f)
	}
}
