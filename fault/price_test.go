package fault_test

import (
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/pawlrun/pawl/fault"
)

func load(t *testing.T, rows string) *fault.Prices {
	t.Helper()
	p, err := fault.LoadPrices(strings.NewReader(`{"prices": [` + rows + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestEstimate(t *testing.T) {
	t.Parallel()
	p := load(t, `
		{"provider": "acme", "model": "plain", "input": 2.5, "output": 10},
		{"provider": "acme", "model": "cheap", "input": 0.000001, "output": 0.5},
		{"provider": "acme", "model": "caching", "input": 3, "cached": 0.3, "cache_write": 3.75, "output": 15},
		{"provider": "acme", "model": "long", "input": 2, "cached": 1, "output": 10,
			"long": {"over": 1000, "input": 4, "cached": 3, "cache_write": 5, "output": 20}},
		{"provider": "acme", "model": "dear", "input": 999999.999999, "output": 999999.999999}`)
	for _, row := range []struct {
		rule  string
		usage fault.Usage
		want  int64
		ok    bool
	}{
		{"dollars for a million are micro-dollars for one", fault.Usage{Model: "plain", InputTokens: 4, OutputTokens: 3}, 40, true},
		{"a fraction is rounded up", fault.Usage{Model: "plain", InputTokens: 1}, 3, true},
		{"the smallest price for one token is a micro-dollar", fault.Usage{Model: "cheap", InputTokens: 1}, 1, true},
		{"only the sum is rounded", fault.Usage{Model: "cheap", InputTokens: 1_000_000, OutputTokens: 2}, 2, true},
		{"nothing used costs nothing", fault.Usage{Model: "plain"}, 0, true},
		{"cached tokens are part of the input", fault.Usage{Model: "caching", InputTokens: 100, CachedTokens: 60, CacheWriteTokens: 20, OutputTokens: 10},
			20*3 + 18 + 75 + 150, true},
		{"without a price of their own they cost as input", fault.Usage{Model: "plain", InputTokens: 4, CachedTokens: 2, CacheWriteTokens: 2}, 10, true},
		{"thoughts are part of the output", fault.Usage{Model: "plain", OutputTokens: 10, ReasoningTokens: 9}, 100, true},
		{"a prompt at the limit is not long", fault.Usage{Model: "long", InputTokens: 1000, CachedTokens: 500, OutputTokens: 1}, 1000 + 500 + 10, true},
		{"a long prompt is dear throughout", fault.Usage{Model: "long", InputTokens: 1001, CachedTokens: 500, CacheWriteTokens: 1, OutputTokens: 1},
			500*4 + 500*3 + 5 + 20, true},
		{"a told cost is no guess", fault.Usage{Model: "plain", InputTokens: 4, ToldCostMicros: 7}, 7, true},
		{"a told cost needs no row", fault.Usage{Model: "unknown", ToldCostMicros: 7}, 7, true},
		{"an unknown model costs nobody knows what", fault.Usage{Model: "unknown", InputTokens: 4}, 0, false},
		{"no model", fault.Usage{InputTokens: 4}, 0, false},
		{"negative input", fault.Usage{Model: "plain", InputTokens: -1, OutputTokens: 5}, 0, false},
		{"negative output", fault.Usage{Model: "plain", InputTokens: 5, OutputTokens: -1}, 0, false},
		{"negative cached", fault.Usage{Model: "plain", InputTokens: 5, CachedTokens: -1}, 0, false},
		{"negative cache writes", fault.Usage{Model: "plain", InputTokens: 5, CacheWriteTokens: -1}, 0, false},
		{"negative thoughts", fault.Usage{Model: "plain", InputTokens: 5, ReasoningTokens: -1}, 0, false},
		{"a negative told cost", fault.Usage{Model: "plain", InputTokens: 5, ToldCostMicros: -1}, 0, false},
		{"more cached than input", fault.Usage{Model: "plain", InputTokens: 5, CachedTokens: 6}, 0, false},
		{"parts of more than the whole", fault.Usage{Model: "plain", InputTokens: 5, CachedTokens: 3, CacheWriteTokens: 3}, 0, false},
		{"parts whose sum overflows", fault.Usage{Model: "cheap", CachedTokens: math.MaxInt64, CacheWriteTokens: math.MaxInt64}, 0, false},
		{"the most that can be told", fault.Usage{Model: "cheap", InputTokens: math.MaxInt64}, math.MaxInt64/1_000_000 + 1, true},
		{"more than an int64", fault.Usage{Model: "plain", InputTokens: math.MaxInt64 / 2}, 0, false},
		{"more than can be told", fault.Usage{Model: "plain", InputTokens: math.MaxInt64}, 0, false},
		{"more than 64 bits", fault.Usage{Model: "dear", InputTokens: math.MaxInt64, OutputTokens: math.MaxInt64}, 0, false},
	} {
		row.usage.Provider = "acme"
		got, ok := p.Estimate(row.usage)
		if got != row.want || ok != row.ok {
			t.Errorf("rule broken: %s\n got %d, %v\nwant %d, %v", row.rule, got, ok, row.want, row.ok)
		}
	}
	if _, ok := (*fault.Prices)(nil).Estimate(fault.Usage{Provider: "acme", Model: "plain"}); ok {
		t.Error("a nil table knows no model")
	}
}

func TestPriceOfAModel(t *testing.T) {
	t.Parallel()
	p := fault.DefaultPrices()
	const none = ""
	for _, row := range []struct{ provider, model, want string }{
		{"openai", "gpt-4o", "openai gpt-4o"},
		{"openai", "GPT-4o", "openai gpt-4o"},
		{"OpenAI", " gpt-4o ", "openai gpt-4o"},
		{"openai", "gpt-4o-2024-08-06", "openai gpt-4o"},
		{"openai", "gpt-4o-2024-05-13", "openai gpt-4o-2024-05-13"},
		{"openai", "gpt-4o-mini", "openai gpt-4o-mini"},
		{"openai", "gpt-4o-mini-2024-07-18", "openai gpt-4o-mini"},
		{"openai", "gpt-4o-mini-search-preview", none},
		{"openai", "gpt-4o-maxi", none},
		{"openai", "gpt-4o-", none},
		{"openai", "gpt-4", "openai gpt-4"},
		{"openai", "gpt-4-0613", "openai gpt-4-0613"},
		{"openai", "gpt-4-0314", none},
		{"openai", "gpt-4o-2024-8-06", none},
		{"openai", "-2024-08-06", none},
		{"openai", "", none},
		{"openai", "claude-sonnet-4-5", none},
		{"openai", "openai/gpt-4o", none},
		{"azure-openai", "gpt-4o-2024-11-20", "openai gpt-4o"},
		{"azure-openai", "my-deployment", none},
		{"anthropic", "claude-sonnet-4-5-20250929", "anthropic claude-sonnet-4-5"},
		{"anthropic", "claude-sonnet-4-20250514", "anthropic claude-sonnet-4"},
		{"anthropic", "claude-3-5-haiku-latest", "anthropic claude-3-5-haiku"},
		{"anthropic", "claude-opus-4-9", none},
		{"anthropic", "claude-opus-5-5", "anthropic claude-opus-5-5"},
		{"bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0", "anthropic claude-sonnet-4-5"},
		{"bedrock", "anthropic.claude-3-5-sonnet-20241022-v2:0", "anthropic claude-3-5-sonnet"},
		{"bedrock", "arn:aws:bedrock:us-east-1:123456789012:inference-profile/global.anthropic.claude-haiku-4-5-20251001-v1:0",
			"anthropic claude-haiku-4-5"},
		{"bedrock", "amazon.nova-lite-v1:0", "bedrock amazon.nova-lite"},
		{"bedrock", "eu.amazon.nova-2-lite-v1:0", "bedrock amazon.nova-2-lite"},
		{"bedrock", "amazon.nova-litest-v1:0", none},
		{"bedrock", "meta.llama3-3-70b-instruct-v1:0", none},
		{"bedrock", "gpt-4o", none},
		{"vertex", "gemini-2.5-pro", "gemini gemini-2.5-pro"},
		{"vertex", "publishers/anthropic/models/claude-sonnet-4-5@20250929", "anthropic claude-sonnet-4-5"},
		{"vertex", "gpt-4o", none},
		{"gemini", "models/gemini-2.5-flash", "gemini gemini-2.5-flash"},
		{"gemini", "gemini-2.5-flash-lite", "gemini gemini-2.5-flash-lite"},
		{"gemini", "gemini-2.5-flash-image", none},
		{"openrouter", "openai/gpt-4o", "openai gpt-4o"},
		{"openrouter", "openai/gpt-4o-2024-08-06", "openai gpt-4o"},
		{"openrouter", "anthropic/claude-sonnet-4.5", "anthropic claude-sonnet-4-5"},
		{"openrouter", "google/gemini-2.5-pro", "gemini gemini-2.5-pro"},
		{"openrouter", "x-ai/grok-4.7", "xai grok-4.7"},
		{"openrouter", "deepseek/deepseek-v4-pro:free", none},
		{"openrouter", "acme/gpt-4o", none},
		{"openrouter", "gpt-4o", none},
		{"groq", "openai/gpt-oss-120b", "groq openai/gpt-oss-120b"},
		{"groq", "gpt-4o", none},
		{"mistral", "mistral-large-latest", "mistral mistral-large-latest"},
		{"mistral", "mistral-large-2411", "mistral mistral-large-2411"},
		{"mistral", "mistral-large-2407", none},
		{"cohere", "command-r-08-2024", "cohere command-r-08-2024"},
		{"cohere", "command-r-03-2024", none},
		{"ollama", "deepseek-v4-pro", none},
		{"vllm", "openai/gpt-oss-120b", none},
		{"http-api", "deepseek-flash", "deepseek deepseek-flash"},
		{"", "gpt-4o-2024-08-06", "openai gpt-4o"},
		{"", "gpt-4o-maxi", none},
	} {
		got := none
		if price, ok := p.Price(fault.Usage{Provider: row.provider, Model: row.model}); ok {
			got = price.Provider + " " + price.Model
		}
		if got != row.want {
			t.Errorf("%s %q: got %q, want %q", row.provider, row.model, got, row.want)
		}
	}
	two := load(t, `{"provider": "acme", "model": "gpt-4o", "input": 1, "output": 1}`)
	if price, ok := two.Price(fault.Usage{Model: "gpt-4o"}); ok {
		t.Errorf("of two providers nobody knows which: got %+v", price)
	}
}

func TestDefaultPrices(t *testing.T) {
	t.Parallel()
	p := fault.DefaultPrices()
	u := fault.Usage{Provider: "anthropic", Model: "claude-haiku-5-5", InputTokens: 100_001, CachedTokens: 100_000, OutputTokens: 100}
	if got, ok := p.Estimate(u); got != 5000+1+250 || !ok { // 5,000 + 0.5 + 250, rounded up
		t.Errorf("a long prompt to Claude Haiku 5.5: got %d, %v", got, ok)
	}
	price, _ := p.Price(fault.Usage{Provider: "cohere", Model: "command-r7b-12-2024"})
	if s := fmt.Sprint(price.Input, price.Output, fault.Rate(2_000_000), fault.Rate(0)); s != "0.0375 0.15 2 0" {
		t.Errorf("a rate reads as it is listed: got %s", s)
	}
	data, err := os.ReadFile("prices.json")
	if err != nil {
		t.Fatal(err)
	}
	for n, line := range strings.Split(string(data), "\n") {
		if !strings.Contains(line, `{"provider"`) {
			continue
		}
		for _, member := range []string{`"as_of": "20`, `"source": "https://`, `"evidence": "`} {
			if !strings.Contains(line, member) {
				t.Errorf("line %d: every row of ours says where it is from: no %s", n+1, member)
			}
		}
		if !strings.Contains(line, `"read"`) && !strings.Contains(line, `"transcribed"`) && !strings.Contains(line, `"recalled"`) {
			t.Errorf("line %d: what is its evidence?", n+1)
		}
	}
}

func TestLoadPrices(t *testing.T) {
	t.Parallel()
	p := load(t, `
		{"provider": "OpenAI", "model": "GPT-4o", "input": 1, "output": 2, "as_of": "2027-01-01", "note": "our contract"},
		{"provider": "acme", "model": "own", "input": "0.5", "output": 1.50}`)
	for _, row := range []struct {
		usage fault.Usage
		want  int64
	}{
		{fault.Usage{Provider: "openai", Model: "gpt-4o-2024-08-06", InputTokens: 10, CachedTokens: 5, OutputTokens: 10}, 30},
		{fault.Usage{Provider: "acme", Model: "own", InputTokens: 10, OutputTokens: 10}, 20},
		{fault.Usage{Provider: "openai", Model: "gpt-4o-mini", InputTokens: 100, OutputTokens: 100}, 75},
	} {
		if got, ok := p.Estimate(row.usage); got != row.want || !ok {
			t.Errorf("%+v: got %d, %v, want %d", row.usage, got, ok, row.want)
		}
	}
	if price, _ := p.Price(fault.Usage{Provider: "openai", Model: "gpt-4o"}); price.Note != "our contract" || price.Source != "" {
		t.Errorf("a row replaces the whole of another: got %+v", price)
	}
	if got, ok := fault.DefaultPrices().Estimate(fault.Usage{Provider: "openai", Model: "gpt-4o", InputTokens: 2}); got != 5 || !ok {
		t.Errorf("the default table is not changed: got %d, %v", got, ok)
	}
	if p, err := fault.LoadPrices(strings.NewReader("{}")); err != nil || p == nil {
		t.Errorf("a file without rows changes nothing: %v", err)
	}
}

func TestLoadPricesTellsWhere(t *testing.T) {
	t.Parallel()
	const ok = `{"provider": "a", "model": "m", "input": 1, "output": 2}`
	in := func(rows string) string { return "{\n\"prices\": [\n" + rows + "\n]}" }
	for text, want := range map[string]string{
		in(`{"provider": "a", "model": "m", "output": 2}`):                                               `line 3, model "m": input: there is none`,
		in(ok + ",\n\n" + `{"provider": "a", "model": "n", "input": 1}`):                                 `line 5, model "n": output: there is none`,
		in(`{"provider": "a", "model": "m", "input": -1, "output": 2}`):                                  `line 3, model "m": input: -1 is no price`,
		in(`{"provider": "a", "model": "m", "input": 1e3, "output": 2}`):                                 `line 3, model "m": input: 1e3 is no price`,
		in(`{"provider": "a", "model": "m", "input": 0.0000001, "output": 2}`):                           `input: 0.0000001 is no price`,
		in(`{"provider": "a", "model": "m", "input": 1000000, "output": 2}`):                             `input: 1000000 is no price`,
		in(`{"provider": "a", "model": "m", "input": 1, "cached": -1, "output": 2}`):                     `cached: -1 is no price`,
		in(`{"provider": "a", "model": "m", "input": 1, "cache_write": -1, "output": 2}`):                `cache_write: -1 is no price`,
		in(`{"provider": "a", "model": "m", "input": 1, "output": 2, "long": {"over": 0, "input": 1}}`):  `long.over: 0 is no number`,
		in(`{"provider": "a", "model": "m", "input": 1, "output": 2, "long": {"over": 9, "input": 1}}`):  `long.output: there is none`,
		in(`{"provider": "a", "model": "m", "input": 1, "output": 2, "long": {"over": 9, "inputs": 1}}`): `line 3, model "m": json: unknown field "inputs"`,
		in(`{"provider": "a", "model": "m", "inputs": 1, "output": 2}`):                                  `line 3, model "m": json: unknown field "inputs"`,
		in(`{"provider": "a", "model": "m", "input": [1], "output": 2}`):                                 `input`,
		in(`{"provider": "a", "model": "", "input": 1, "output": 2}`):                                    `line 3: model: "" is no name`,
		in(`{"model": "m", "input": 1, "output": 2}`):                                                    `line 3, model "m": provider: "" is no name`,
		in(`{"provider": "a", "model": "m 1", "input": 1, "output": 2}`):                                 `model: "m 1" is no name`,
		in(`{"provider": "a", "model": "m", "input": 1, "output": 2, "as_of": "today"}`):                 `as_of: "today" is no day`,
		in(ok + ",\n" + ok):                        `line 4, model "m": a has it on line 3 already`,
		in(ok + ",\n" + `{"model": "A"`):           `line 5: invalid character`,
		in(ok + "\n" + ok):                         `line 4: invalid character`,
		in(`{"provider": "a",` + "\n" + `"model"`): `line 5: invalid character`,
		in(`null`):          `line 3: provider: "" is no name`,
		`{"price": []}`:     `line 1: unknown member "price"`,
		`{"prices": {}}`:    `line 1: want a [, not {`,
		`[]`:                `line 1: want a {, not [`,
		`{"as_of": "2026"}`: `as_of: "2026" is no day`,
		`{"as_of": 2026}`:   `line 1`,
		`{} {}`:             `line 1: invalid character`,
		``:                  `line 1: unexpected end`,
		`{"about": ["` + strings.Repeat("x", 5<<20) + `"]}`: `more than 4194304 bytes`,
	} {
		p, err := fault.LoadPrices(strings.NewReader(text))
		if err == nil || p != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.200s:\n got %v\nwant %s", text, err, want)
		}
	}
	if _, err := fault.LoadPrices(broken{}); err == nil || !strings.Contains(err.Error(), "read prices: broken") {
		t.Errorf("a reader that fails: got %v", err)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, fmt.Errorf("broken") }

// What an attempt probably cost, by the list and by a contract of one's own.
func ExamplePrices_Estimate() {
	u := fault.Usage{Provider: "openai", Model: "gpt-4o-2024-08-06", InputTokens: 1200, CachedTokens: 1000, OutputTokens: 300}
	micros, ok := fault.DefaultPrices().Estimate(u)
	fmt.Println(micros, ok)

	ours, err := fault.LoadPrices(strings.NewReader(`{"prices": [
		{"provider": "openai", "model": "gpt-4o", "input": 2, "cached": 1, "output": 8}
	]}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(ours.Estimate(u))
	fmt.Println(ours.Estimate(fault.Usage{Provider: "openai", Model: "gpt-99"}))
	// Output:
	// 4750 true
	// 3800 true
	// 0 false
}
