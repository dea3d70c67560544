package fault_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/pawlrun/pawl/fault"
)

func TestUsageOfEachProvider(t *testing.T) {
	t.Parallel()
	const js, sse, ndjson = "application/json", "text/event-stream", "application/x-ndjson"
	long := strings.Repeat("x", 200<<10)
	for _, row := range []struct {
		rule string
		url  string
		kind string
		ask  string
		body string
		want fault.Usage
	}{
		{"OpenAI's chat", "https://api.openai.com/v1/chat/completions", js, "", `{"model":"gpt-x-1","usage":{"prompt_tokens":100,"completion_tokens":20,"total_tokens":120,"prompt_tokens_details":{"cached_tokens":40},"completion_tokens_details":{"reasoning_tokens":5}}}`,
			fault.Usage{Provider: "openai", Model: "gpt-x-1", InputTokens: 100, CachedTokens: 40, OutputTokens: 20, ReasoningTokens: 5}},
		{"OpenAI's chat as a stream", "https://api.openai.com/v1/chat/completions", sse, "", "data: {\"model\":\"gpt-x\",\"choices\":[{}],\"usage\":null}\n\ndata: {\"model\":\"gpt-x\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":8}}\n\ndata: [DONE]\n\n",
			fault.Usage{Provider: "openai", Model: "gpt-x", InputTokens: 7, OutputTokens: 8}},
		{"OpenAI's responses", "https://api.openai.com/v1/responses", js, "", `{"model":"gpt-x","usage":{"input_tokens":36,"input_tokens_details":{"cached_tokens":6},"output_tokens":87,"output_tokens_details":{"reasoning_tokens":7}}}`,
			fault.Usage{Provider: "openai", Model: "gpt-x", InputTokens: 36, CachedTokens: 6, OutputTokens: 87, ReasoningTokens: 7}},
		{"OpenAI's responses as a stream", "https://api.openai.com/v1/responses", sse, "", "event: response.completed\r\ndata: {\"type\":\"response.completed\",\"response\":{\"model\":\"gpt-x\",\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}}\r\n\r\n",
			fault.Usage{Provider: "openai", Model: "gpt-x", InputTokens: 3, OutputTokens: 4}},
		{"the same, longer than what is kept", "https://api.openai.com/v1/responses", sse, `{"input":[{"model":"no"}],"model":"gpt-x"}`, "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"output\":\"" + long + "\",\"model\":\"gpt-x\",\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}}\n\n",
			fault.Usage{Provider: "openai", Model: "gpt-x", InputTokens: 3, OutputTokens: 4}},
		{"an answer longer than what is kept", "https://api.openai.com/v1/embeddings", js, "", `{"model":"emb","data":"` + long + ` \"usage\":{\"prompt_tokens\":1}","usage":{"prompt_tokens":9,"total_tokens":9}}`,
			fault.Usage{Provider: "openai", Model: "emb", InputTokens: 9}},
		{"Anthropic's", "https://api.anthropic.com/v1/messages", js, "", `{"type":"message","model":"claude-x","usage":{"input_tokens":10,"cache_creation_input_tokens":200,"cache_read_input_tokens":3000,"output_tokens":50}}`,
			fault.Usage{Provider: "anthropic", Model: "claude-x", InputTokens: 3210, CachedTokens: 3000, CacheWriteTokens: 200, OutputTokens: 50}},
		{"Anthropic's as a stream", "https://api.anthropic.com/v1/messages", sse, "", "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"claude-x\",\"usage\":{\"input_tokens\":25,\"cache_read_input_tokens\":5,\"output_tokens\":1}}}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":15}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
			fault.Usage{Provider: "anthropic", Model: "claude-x", InputTokens: 30, CachedTokens: 5, OutputTokens: 15}},
		{"Gemini's", "https://generativelanguage.googleapis.com/v1beta/models/gemini-x:generateContent", js, "", `{"candidates":[{"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":10,"candidatesTokenCount":20,"thoughtsTokenCount":30,"cachedContentTokenCount":4,"toolUsePromptTokenCount":5}}`,
			fault.Usage{Provider: "gemini", Model: "gemini-x", InputTokens: 15, CachedTokens: 4, OutputTokens: 50, ReasoningTokens: 30}},
		{"Gemini's as events", "https://generativelanguage.googleapis.com/v1beta/models/gemini-x:streamGenerateContent", sse, "", "data: {\"candidates\":[{}],\"usageMetadata\":{\"promptTokenCount\":10,\"candidatesTokenCount\":1},\"modelVersion\":\"gemini-x-001\"}\n\ndata: {\"candidates\":[{\"finishReason\":\"STOP\"}],\"usageMetadata\":{\"promptTokenCount\":10,\"candidatesTokenCount\":9}}",
			fault.Usage{Provider: "gemini", Model: "gemini-x-001", InputTokens: 10, OutputTokens: 9}},
		{"Gemini's as an array", "https://generativelanguage.googleapis.com/v1beta/models/gemini-x:streamGenerateContent", js, "", `[{"candidates":[{}]},{"candidates":[{"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":10,"candidatesTokenCount":9}}]`,
			fault.Usage{Provider: "gemini", Model: "gemini-x", InputTokens: 10, OutputTokens: 9}},
		{"Bedrock's", "https://bedrock-runtime.us-east-1.amazonaws.com/model/us.claude-x:0/converse", js, "", `{"output":{},"stopReason":"end_turn","usage":{"inputTokens":11,"outputTokens":12,"totalTokens":28,"cacheReadInputTokens":3,"cacheWriteInputTokens":2}}`,
			fault.Usage{Provider: "bedrock", Model: "us.claude-x:0", InputTokens: 16, CachedTokens: 3, CacheWriteTokens: 2, OutputTokens: 12}},
		{"Azure's deployment", "https://x.openai.azure.com/openai/deployments/mine/chat/completions", js, "", `{"choices":[],"usage":{"prompt_tokens":1}}`,
			fault.Usage{Provider: "azure-openai", Model: "mine", InputTokens: 1}},
		{"Cohere's, whose answer names no model", "https://api.cohere.com/v2/chat", js, `{"messages":[],"model":"command-x"}`, `{"message":{"role":"assistant"},"finish_reason":"COMPLETE","usage":{"billed_units":{"input_tokens":5.0,"output_tokens":418.0},"tokens":{"input_tokens":71,"output_tokens":418}}}`,
			fault.Usage{Provider: "cohere", Model: "command-x", InputTokens: 5, OutputTokens: 418}},
		{"Cohere's as a stream", "https://api.cohere.com/v2/chat", sse, `{"model":"command-x"}`, "event: message-start\ndata: {\"type\":\"message-start\"}\n\nevent: message-end\ndata: {\"type\":\"message-end\",\"delta\":{\"finish_reason\":\"COMPLETE\",\"usage\":{\"billed_units\":{\"input_tokens\":5,\"output_tokens\":6}}}}\n\n",
			fault.Usage{Provider: "cohere", Model: "command-x", InputTokens: 5, OutputTokens: 6}},
		{"Groq's as a stream", "https://api.groq.com/openai/v1/chat/completions", sse, "", "data: {\"model\":\"llama\",\"choices\":[{\"finish_reason\":\"stop\"}],\"x_groq\":{\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}}\n\ndata: [DONE]\n\n",
			fault.Usage{Provider: "groq", Model: "llama", InputTokens: 3, OutputTokens: 4}},
		{"OpenRouter's, with its cost", "https://openrouter.ai/api/v1/chat/completions", js, "", `{"model":"a/b","choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":4,"cost":0.0123456}}`,
			fault.Usage{Provider: "openrouter", Model: "a/b", InputTokens: 3, OutputTokens: 4, ToldCostMicros: 12346}},
		{"xAI's, which counts thoughts apart", "https://api.x.ai/v1/chat/completions", js, "", `{"model":"grok","choices":[{}],"usage":{"prompt_tokens":32,"completion_tokens":9,"total_tokens":135,"completion_tokens_details":{"reasoning_tokens":94}}}`,
			fault.Usage{Provider: "xai", Model: "grok", InputTokens: 32, OutputTokens: 103, ReasoningTokens: 94}},
		{"Mistral's", "https://api.mistral.ai/v1/chat/completions", js, "", `{"model":"m","choices":[{}],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}`,
			fault.Usage{Provider: "mistral", Model: "m", InputTokens: 3, OutputTokens: 4}},
		{"Ollama's", "http://localhost:11434/api/generate", ndjson, "", "{\"model\":\"q\",\"response\":\"a\",\"done\":false}\n{\"model\":\"q\",\"response\":\"\",\"done\":true,\"prompt_eval_count\":26,\"eval_count\":290}\n",
			fault.Usage{Provider: "ollama", Model: "q", InputTokens: 26, OutputTokens: 290}},
		{"vLLM's, behind a name of one's own", "http://models.internal/v1/chat/completions", js, "", `{"model":"q","choices":[{}],"usage":{"prompt_tokens":3,"completion_tokens":4}}`,
			fault.Usage{Provider: "http-api", Model: "q", InputTokens: 3, OutputTokens: 4}},
		{"a gateway that tells a count twice", "http://models.internal/v1", js, "", `{"usage":{"prompt_tokens":3,"input_tokens":3,"completion_tokens":4,"output_tokens":4}}`,
			fault.Usage{Provider: "http-api", InputTokens: 3, OutputTokens: 4}},
		{"numbers that are none", "http://models.internal/v1", js, "", `{"model":7,"usage":{"prompt_tokens":-3,"input_tokens":"9","completion_tokens":1e300}}`,
			fault.Usage{Provider: "http-api", OutputTokens: 1 << 40}},
		{"an answer without any", "http://models.internal/v1", js, "", `{"usage":"unlimited"}`, fault.Usage{}},
	} {
		a := &fault.Attempt{}
		rt := fault.NewTransport(answers(func(r *http.Request) (*http.Response, error) {
			resp := ok(r)
			resp.Header.Set("Content-Type", row.kind)
			resp.Body = io.NopCloser(iotest.OneByteReader(strings.NewReader(row.body)))
			return resp, nil
		}))
		if err := call(fault.WithAttempt(t.Context(), a), rt, "POST", row.url, row.ask); err != nil {
			t.Fatal(err)
		}
		if got := a.Usage(); got != row.want {
			t.Errorf("rule broken: usage is read from %s\n got %+v\nwant %+v", row.rule, got, row.want)
		}
	}
}

func TestUsageOfAnAttempt(t *testing.T) {
	t.Parallel()
	models := []string{"b", "a", "b"}
	n := 0
	rt := fault.NewTransport(answers(func(r *http.Request) (*http.Response, error) {
		resp := ok(r)
		resp.Header.Set("Content-Type", "application/json")
		resp.Body = io.NopCloser(strings.NewReader(`{"model":"` + models[n] + `","choices":[{}],"usage":{"prompt_tokens":1}}`))
		n++
		return resp, nil
	}))
	a := &fault.Attempt{Kind: fault.KindRepeatable}
	f := judged(t.Context(), a, func(ctx context.Context) error {
		for range models {
			if err := call(ctx, rt, "POST", "https://api.openai.com/v1/x", "{}"); err != nil {
				return err
			}
		}
		return nil
	})
	if f != nil {
		t.Fatal(f)
	}
	by := a.UsageByModel()
	if len(by) != 2 || by[0].Model != "a" || by[0].InputTokens != 1 || by[1].Model != "b" || by[1].InputTokens != 2 {
		t.Errorf("rule broken: usage is summed per model\n got %+v", by)
	}
	if u := a.Usage(); u.InputTokens != 3 || u.Model != "b" || u.Provider != "openai" {
		t.Errorf("rule broken: and in all, under the name of the last\n got %+v", u)
	}
}
