package sdktest

import (
	"context"
	"net/http"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/openai/openai-go/v3"
	openaioption "github.com/openai/openai-go/v3/option"
	"google.golang.org/genai"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/cuthttp"
)

// sdk is one SDK. Its functions call a model once, with the SDK's own retries.
type sdk struct {
	name     string
	provider string // that it is made for
	retries  int    // that it makes unless told otherwise
	ask      func(ctx context.Context, c *http.Client, url string, retries int) error
	stream   func(ctx context.Context, c *http.Client, url string, retries int) error
}

// sdks are all that are tested.
var sdks = []sdk{
	{"openai-go", "openai", 2, askOpenAI, streamOpenAI},
	{"anthropic-sdk-go", "anthropic", 2, askAnthropic, streamAnthropic},
	{"go-genai", "gemini", 0, askGemini, streamGemini},
}

// sdkFor returns the SDK with which a provider is called, nil if it is none of these.
func sdkFor(provider string) *sdk {
	switch provider {
	case "anthropic":
		return &sdks[1]
	case "gemini", "vertex":
		return &sdks[2]
	case "openai", "azure-openai", "mistral", "groq", "openrouter", "xai", "vllm", "ollama", "cohere":
		return &sdks[0]
	}
	return nil
}

func openAI(c *http.Client, url string, retries int) openai.Client {
	return openai.NewClient(openaioption.WithAPIKey("key"), openaioption.WithBaseURL(url), openaioption.WithHTTPClient(c), openaioption.WithMaxRetries(retries))
}

var chat = openai.ChatCompletionNewParams{Model: "model-x", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hello")}}

func askOpenAI(ctx context.Context, c *http.Client, url string, retries int) error {
	client := openAI(c, url, retries)
	_, err := client.Chat.Completions.New(ctx, chat)
	return err
}

func streamOpenAI(ctx context.Context, c *http.Client, url string, retries int) error {
	client := openAI(c, url, retries)
	s := client.Chat.Completions.NewStreaming(ctx, chat)
	defer s.Close()
	for s.Next() {
	}
	return s.Err()
}

var message = anthropic.MessageNewParams{Model: "model-x", MaxTokens: 10,
	Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("hello"))}}

func claude(c *http.Client, url string, retries int) anthropic.Client {
	return anthropic.NewClient(anthropicoption.WithAPIKey("key"), anthropicoption.WithBaseURL(url), anthropicoption.WithHTTPClient(c), anthropicoption.WithMaxRetries(retries))
}

func askAnthropic(ctx context.Context, c *http.Client, url string, retries int) error {
	client := claude(c, url, retries)
	_, err := client.Messages.New(ctx, message)
	return err
}

func streamAnthropic(ctx context.Context, c *http.Client, url string, retries int) error {
	client := claude(c, url, retries)
	s := client.Messages.NewStreaming(ctx, message)
	defer s.Close()
	for s.Next() {
	}
	return s.Err()
}

func gemini(ctx context.Context, c *http.Client, url string) (*genai.Client, error) {
	return genai.NewClient(ctx, &genai.ClientConfig{APIKey: "key", Backend: genai.BackendGeminiAPI, HTTPClient: c, HTTPOptions: genai.HTTPOptions{BaseURL: url}})
}

func askGemini(ctx context.Context, c *http.Client, url string, _ int) error {
	client, err := gemini(ctx, c, url)
	if err != nil {
		return err
	}
	_, err = client.Models.GenerateContent(ctx, "model-x", genai.Text("hello"), nil)
	return err
}

func streamGemini(ctx context.Context, c *http.Client, url string, _ int) error {
	client, err := gemini(ctx, c, url)
	if err != nil {
		return err
	}
	for _, err := range client.Models.GenerateContentStream(ctx, "model-x", genai.Text("hello"), nil) {
		if err != nil {
			return err
		}
	}
	return nil
}

// run calls a model in an attempt and returns what an engine would make of it.
func run(t *testing.T, ctx context.Context, a *fault.Attempt, s *cuthttp.Server, retries int,
	call func(context.Context, *http.Client, string, int) error) *fault.Fault {
	t.Helper()
	client := &http.Client{Transport: fault.NewTransport(s.Transport())}
	err := call(fault.WithAttempt(ctx, a), client, s.URL, retries)
	if err == nil {
		return a.Verdict()
	}
	return a.Judge(fault.FromContext(t.Context(), ctx, err), err)
}
