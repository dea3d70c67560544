package fault_test

import (
	"encoding/binary"
	"net/http"
	"strings"
	"testing"

	"github.com/pawlrun/pawl/fault"
)

// frame makes a frame of AWS's event stream, with checksums of zero.
func frame(headers map[string]string, payload string) []byte {
	var h []byte
	for name, value := range headers {
		h = append(h, byte(len(name)))
		h = append(h, name...)
		h = append(h, 7)
		h = binary.BigEndian.AppendUint16(h, uint16(len(value)))
		h = append(h, value...)
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(16+len(h)+len(payload)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(h)))
	b = append(b, 0, 0, 0, 0)
	b = append(append(b, h...), payload...)
	return append(b, 0, 0, 0, 0)
}

func event(kind, payload string) string {
	return string(frame(map[string]string{":message-type": "event", ":event-type": kind}, payload))
}

func TestStreams(t *testing.T) {
	var complete want
	truncated := want{fault.OutcomeUnknown, fault.ReasonStreamTruncated, maybe}
	rows := []struct {
		rule, provider, body string
		want                 want
	}{
		{"OpenAI, complete", "openai", "data: {\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":null}]}\n\ndata: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n", complete},
		{"OpenAI, [DONE] alone", "openai", "data: [DONE]\n\n", complete},
		{"OpenAI, finish_reason alone", "openai", "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n", complete},
		{"carriage returns", "openai", "data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\r\n\r\ndata: [DONE]\r\n\r\n", complete},
		{"no last blank line", "openai", "data: [DONE]", complete},
		{"comments and ids", "openrouter", ": OPENROUTER PROCESSING\n\nid: 1\nretry: 5\ndata: [DONE]\n\n", complete},
		{"content filter", "azure-openai", "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"content_filter\"}]}\n\ndata: [DONE]\n\n", want{fault.ContentPolicy, fault.ReasonOutputBlocked, maybe}},
		{"a refusal in pieces", "openai", "data: {\"choices\":[{\"delta\":{\"refusal\":\"I\"}}]}\n\n", want{fault.ContentPolicy, fault.ReasonRefusal, maybe}},
		{"output limit", "openai", "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\n", want{fault.InvalidRequest, fault.ReasonOutputTruncated, maybe}},
		{"an error in a choice", "openrouter", "data: {\"choices\":[{\"finish_reason\":\"error\",\"error\":{\"code\":429,\"message\":\"x\"}}]}\n\n", want{fault.RateLimited, fault.ReasonRequests, maybe}},
		{"an error without a name", "openai", "data: {\"error\":{\"message\":\"x\"}}\n\n", want{fault.OutcomeUnknown, fault.ReasonResponseUnreadable, maybe}},
		{"an error event without JSON", "openai", "event: error\ndata: upstream died\n\n", want{fault.OutcomeUnknown, fault.ReasonResponseUnreadable, maybe}},
		{"a large request in a stream", "openai", "event: error\ndata: {\"type\":\"error\",\"code\":\"rate_limit_exceeded\",\"message\":\"Request too large: Limit 30000, Requested 36278\"}\n\n", want{fault.InvalidRequest, fault.ReasonRequestTooLarge, maybe}},
		{"money in a stream", "openai", "data: {\"error\":{\"code\":\"insufficient_quota\"}}\n\n", want{fault.QuotaExhausted, fault.ReasonCredit, maybe}},
		{"Responses, complete", "openai", "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"error\":null}}\n\nevent: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\",\"error\":null,\"incomplete_details\":null}}\n\n", complete},
		{"Responses, cut", "openai", "event: response.output_text.done\ndata: {\"type\":\"response.output_text.done\"}\n\n", truncated},
		{"Responses, incomplete", "openai", "event: response.incomplete\ndata: {\"type\":\"response.incomplete\",\"response\":{\"status\":\"incomplete\",\"incomplete_details\":{\"reason\":\"content_filter\"}}}\n\n", want{fault.ContentPolicy, fault.ReasonOutputBlocked, maybe}},
		{"Responses, an image that cannot be used", "openai", "data: {\"type\":\"response.failed\",\"response\":{\"status\":\"failed\",\"error\":{\"code\":\"invalid_image_format\"}}}\n\n", want{fault.InvalidRequest, fault.ReasonMalformed, maybe}},
		{"Anthropic, complete", "anthropic", "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"stop_reason\":null}}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", complete},
		{"Anthropic, refused", "anthropic", "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"refusal\"}}\n\n", want{fault.ContentPolicy, fault.ReasonRefusal, maybe}},
		{"Anthropic, rate", "anthropic", "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"message\":\"x\"}}\n\n", want{fault.RateLimited, fault.ReasonRequests, maybe}},
		{"Anthropic, key", "anthropic", "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"authentication_error\",\"message\":\"x\"}}\n\n", want{fault.AccessDenied, fault.ReasonAuthentication, maybe}},
		{"Anthropic's manner from anybody", "acme", "event: message_start\ndata: {\"type\":\"message_start\"}\n\n", truncated},
		{"Gemini, complete", "gemini", "data: {\"candidates\":[{\"content\":{}}]}\n\ndata: {\"candidates\":[{\"finishReason\":\"STOP\"}]}\n\n", complete},
		{"Gemini, cut", "gemini", "data: {\"candidates\":[{\"content\":{}}]}\n\n", truncated},
		{"Gemini, blocked before it began", "gemini", "data: {\"promptFeedback\":{\"blockReason\":\"PROHIBITED_CONTENT\"}}\n\n", want{fault.ContentPolicy, fault.ReasonInputBlocked, rejected}},
		{"Cohere, complete", "cohere", "event: message-start\ndata: {\"type\":\"message-start\"}\n\nevent: message-end\ndata: {\"type\":\"message-end\",\"delta\":{\"finish_reason\":\"COMPLETE\"}}\n\n", complete},
		{"Cohere, cut", "cohere", "event: message-start\ndata: {\"type\":\"message-start\"}\n\n", truncated},
		{"Ollama, complete", "ollama", "{\"response\":\"I\",\"done\":false}\n{\"response\":\"\",\"done\":true,\"done_reason\":\"stop\"}\n", complete},
		{"vLLM, an error before the end", "vllm", "data: {\"error\":{\"message\":\"x\",\"type\":\"BadRequestError\",\"code\":400}}\n\ndata: [DONE]\n\n", want{fault.InvalidRequest, fault.ReasonMalformed, maybe}},
		{"a stream of no model", "http-api", "data: tick\n\ndata: {\"a\":1}\n\n", complete},
		{"an empty stream of no model", "http-api", "", complete},
		{"Bedrock, complete", "bedrock", event("messageStart", `{"role":"assistant"}`) + event("messageStop", `{"stopReason":"end_turn"}`) + event("metadata", `{"usage":{}}`), complete},
		{"Bedrock, cut between frames", "bedrock", event("messageStart", `{}`) + event("contentBlockDelta", `{}`), truncated},
		{"Bedrock, cut inside a frame", "bedrock", event("messageStart", `{}`) + event("messageStop", `{"stopReason":"end_turn"}`)[:80], truncated},
		{"Bedrock, cut behind its end", "bedrock", event("messageStop", `{"stopReason":"end_turn"}`) + event("metadata", `{}`)[:30], complete},
		{"Bedrock, guardrail", "bedrock", event("messageStop", `{"stopReason":"guardrail_intervened"}`), want{fault.ContentPolicy, fault.ReasonGuardrail, maybe}},
		{"Bedrock, chunks of the model's own", "bedrock", event("chunk", `{"bytes":"e30="}`), complete},
		{"Bedrock, validation", "bedrock", string(frame(map[string]string{":message-type": "exception", ":exception-type": "validationException"}, `{"message":"x"}`)), want{fault.InvalidRequest, fault.ReasonMalformed, maybe}},
		{"Bedrock, an error frame", "bedrock", string(frame(map[string]string{":message-type": "error", ":error-code": "InternalServerException", ":error-message": "x"}, "")), want{fault.Transient, fault.ReasonServerError, maybe}},
		{"Bedrock, not frames at all", "bedrock", "\x00\x00\x00\x01\xff\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00\x00", truncated},
	}
	for _, row := range rows {
		check(t, row.rule, fault.FromStream(row.provider, nil, []byte(row.body)), row.want)
	}
}

func TestStreamThroughFromHTTP(t *testing.T) {
	h := http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}, "Request-Id": {"req_1"}}
	f := fault.FromHTTP("anthropic", 200, h, []byte("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"x\"}}\n\n"))
	check(t, "a streamed 200 is read as a stream", f, want{fault.Transient, fault.ReasonServerError, maybe})
	if f.RequestID != "req_1" || f.Status != 200 || f.Message != "x" {
		t.Errorf("what is known beside the class is kept: got %+v", f)
	}
	f = fault.FromHTTP("openai", 429, h, []byte("data: {\"error\":{\"code\":\"insufficient_quota\"}}\n\n"))
	check(t, "an error status with events", f, want{fault.QuotaExhausted, fault.ReasonCredit, rejected})
}

func TestStreamEventOfManyMegabytes(t *testing.T) {
	body := "data: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"" + strings.Repeat("x", 8<<20) + "\"}}\n\n"
	check(t, "the beginning of an event says what it is", stream("anthropic", body), want{fault.Transient, fault.ReasonOverloaded, maybe})
}
