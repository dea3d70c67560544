package fault

import (
	"bytes"
	"encoding/json"
	"math"
)

// Usage is what answers said that they used, summed over requests. Counts are never negative. What nobody told is zero,
// which is also what a far end says that counts nothing.
type Usage struct {
	Provider string `json:"provider,omitempty"` // as in Fault.Provider
	Model    string `json:"model,omitempty"`    // as the answer names it, else as the request did

	InputTokens      int64 `json:"input_tokens,omitempty"`       // all of them, those of the next two fields included
	CachedTokens     int64 `json:"cached_tokens,omitempty"`      // of InputTokens, read from the far end's cache
	CacheWriteTokens int64 `json:"cache_write_tokens,omitempty"` // of InputTokens, written to the far end's cache
	OutputTokens     int64 `json:"output_tokens,omitempty"`      // all of them, ReasoningTokens included
	ReasoningTokens  int64 `json:"reasoning_tokens,omitempty"`   // of OutputTokens, those that nobody gets to read

	ToldCostMicros int64 `json:"told_cost_micros,omitempty"` // millionths of a US dollar, where the answer told its cost
}

// maxTokens bounds a count, so that no sum of a hostile far end's numbers overflows.
const maxTokens = 1 << 40

func (u *Usage) counts() [6]*int64 {
	return [...]*int64{&u.InputTokens, &u.CachedTokens, &u.CacheWriteTokens, &u.OutputTokens, &u.ReasoningTokens, &u.ToldCostMicros}
}

// add sums o into u. Names of o that are known replace those of u.
func (u *Usage) add(o Usage) { u.merge(o, func(a, b int64) int64 { return min(a+b, maxTokens) }) }

// reach raises u to o, where both tell of one answer: streams repeat their counts as they grow.
func (u *Usage) reach(o Usage) { u.merge(o, func(a, b int64) int64 { return max(a, b) }) }

func (u *Usage) merge(o Usage, count func(a, b int64) int64) {
	if o.Provider != "" {
		u.Provider = o.Provider
	}
	if o.Model != "" {
		u.Model = o.Model
	}
	to, from := u.counts(), o.counts()
	for i := range to {
		*to[i] = count(*to[i], *from[i])
	}
}

// used reports whether any count is told.
func (u *Usage) used() bool {
	for _, n := range u.counts() {
		if *n != 0 {
			return true
		}
	}
	return false
}

// metered is the union of the places where answers and stream events put their model and their usage.
type metered struct {
	Model        string       `json:"model"`
	ModelVersion string       `json:"modelVersion"` // Gemini
	Usage        *usageJSON   `json:"usage"`
	UsageMeta    *usageJSON   `json:"usageMetadata"` // Gemini
	Message      *meteredPart `json:"message"`       // Anthropic's first event
	Response     *meteredPart `json:"response"`      // OpenAI's events of a response
	Delta        *meteredPart `json:"delta"`         // Cohere's last event
	XGroq        *meteredPart `json:"x_groq"`        // Groq's last chunk

	PromptEval float64 `json:"prompt_eval_count"` // Ollama
	Eval       float64 `json:"eval_count"`        // Ollama
}

type meteredPart struct {
	Model string     `json:"model"`
	Usage *usageJSON `json:"usage"`
}

// usageJSON is the union of the usage objects. No two providers give one name two meanings, but for those that count
// cached or reasoning tokens apart; usage puts these together.
type usageJSON struct {
	// OpenAI's chat completions, and all who do as they do: Azure, Mistral, Groq, OpenRouter, xAI, vLLM.
	Prompt     float64      `json:"prompt_tokens"`
	Completion float64      `json:"completion_tokens"`
	Total      float64      `json:"total_tokens"`
	PromptMore tokenDetails `json:"prompt_tokens_details"`
	ComplMore  tokenDetails `json:"completion_tokens_details"`
	Cost       *float64     `json:"cost"` // OpenRouter, in dollars

	// OpenAI's responses and, with the cache counted apart, Anthropic.
	Input      float64      `json:"input_tokens"`
	Output     float64      `json:"output_tokens"`
	InputMore  tokenDetails `json:"input_tokens_details"`
	OutputMore tokenDetails `json:"output_tokens_details"`
	CacheRead  float64      `json:"cache_read_input_tokens"`
	CacheWrite float64      `json:"cache_creation_input_tokens"`

	// Gemini, which counts thoughts and the use of tools apart.
	PromptCount     float64 `json:"promptTokenCount"`
	CandidatesCount float64 `json:"candidatesTokenCount"`
	ThoughtsCount   float64 `json:"thoughtsTokenCount"`
	CachedCount     float64 `json:"cachedContentTokenCount"`
	ToolCount       float64 `json:"toolUsePromptTokenCount"`

	// Bedrock, which counts the cache apart.
	BedrockIn    float64 `json:"inputTokens"`
	BedrockOut   float64 `json:"outputTokens"`
	BedrockRead  float64 `json:"cacheReadInputTokens"`
	BedrockWrite float64 `json:"cacheWriteInputTokens"`

	// Cohere. What it bills is less than what it counts.
	Billed struct {
		Input  float64 `json:"input_tokens"`
		Output float64 `json:"output_tokens"`
	} `json:"billed_units"`
}

type tokenDetails struct {
	Cached    float64 `json:"cached_tokens"`
	Reasoning float64 `json:"reasoning_tokens"`
}

// usage gives the object's counts one meaning.
func (j *usageJSON) usage() Usage {
	if j == nil {
		return Usage{}
	}
	completion := j.Completion
	if r := j.ComplMore.Reasoning; r > 0 && j.Total == j.Prompt+completion+r { // xAI counts it apart
		completion += r
	}
	u := Usage{ // a gateway may tell one count under two names, so it is the largest, not the sum
		InputTokens: tokens(max(j.Prompt, j.Input+j.CacheRead+j.CacheWrite, j.PromptCount+j.ToolCount,
			j.BedrockIn+j.BedrockRead+j.BedrockWrite, j.Billed.Input)),
		CachedTokens:     tokens(max(j.PromptMore.Cached, j.InputMore.Cached, j.CacheRead, j.CachedCount, j.BedrockRead)),
		CacheWriteTokens: tokens(max(j.CacheWrite, j.BedrockWrite)),
		OutputTokens:     tokens(max(completion, j.Output, j.CandidatesCount+j.ThoughtsCount, j.BedrockOut, j.Billed.Output)),
		ReasoningTokens:  tokens(max(j.ComplMore.Reasoning, j.OutputMore.Reasoning, j.ThoughtsCount)),
	}
	if j.Cost != nil {
		u.ToldCostMicros = tokens(math.Round(*j.Cost * 1e6))
	}
	return u
}

// tokens is f as a count. Some providers write theirs as 5.0.
func tokens(f float64) int64 {
	if !(f > 0) { // NaN too
		return 0
	}
	return int64(min(f, maxTokens))
}

func (m *metered) usage() Usage {
	u := Usage{Model: m.Model, InputTokens: tokens(m.PromptEval), OutputTokens: tokens(m.Eval)}
	if m.ModelVersion != "" {
		u.Model = m.ModelVersion
	}
	u.reach(m.Usage.usage())
	u.reach(m.UsageMeta.usage())
	for _, in := range []*meteredPart{m.Message, m.Response, m.Delta, m.XGroq} {
		if in != nil {
			u.reach(Usage{Model: in.Model})
			u.reach(in.Usage.usage())
		}
	}
	u.Model = cleanText(u.Model, maxWord)
	return u
}

// usageMarks are the names of which a body has at least one if it tells its usage. All stand between quotes that no
// text of a model can contain unescaped.
var usageMarks = [][]byte{[]byte(`"usage"`), []byte(`"usageMetadata"`), []byte(`"eval_count"`)}

// usageOf finds what a JSON body used. A body that is not JSON used nothing.
func usageOf(body *clip) Usage {
	if whole, ok := body.whole(); ok {
		return usageIn(whole)
	}
	// Too long to keep: all known providers but OpenAI's responses put the model first, and all put the usage last.
	var u Usage
	for _, mark := range usageMarks[:2] {
		if at := bytes.LastIndex(body.tail, mark); at >= 0 {
			rest := bytes.TrimLeft(body.tail[at+len(mark):], " \t\r\n:")
			var j usageJSON
			if lenient(json.NewDecoder(bytes.NewReader(rest)).Decode(&j)) {
				u.reach(j.usage())
			}
		}
	}
	u.Model = modelIn(bytes.NewReader(body.head))
	return u
}

func usageIn(body []byte) Usage {
	body = bytes.TrimSpace(body)
	if len(body) > 0 && body[0] == '[' { // Gemini streams an array where nobody asked it for events
		var all []metered
		var u Usage
		if lenient(json.Unmarshal(body, &all)) {
			for i := range all {
				u.reach(all[i].usage())
			}
		}
		return u
	}
	var m metered
	if !lenient(json.Unmarshal(body, &m)) {
		return Usage{}
	}
	return m.usage()
}

// lenient takes a member of another type than expected for a member that is not there.
func lenient(err error) bool {
	if err == nil {
		return true
	}
	_, ok := err.(*json.UnmarshalTypeError)
	return ok
}
