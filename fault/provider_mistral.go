package fault

// mistral tells numbers as codes and the reason in the text.
var mistral = provider{
	name:      "mistral",
	aliases:   []string{"mistralai"},
	hosts:     []string{"api.mistral.ai", "codestral.mistral.ai"},
	signs:     []string{"mistral-"},
	requestID: []string{"Mistral-Correlation-Id", "X-Request-Id", "X-Kong-Request-Id"},
	model:     true,
	like:      &openAI,
	limits: []limit{
		{"X-Ratelimit-Remaining-Req-Minute", "Ratelimit-Reset", ReasonRequests},
		{"X-Ratelimit-Remaining-Tokens-Minute", "Ratelimit-Reset", ReasonTokens},
		{"Ratelimitbysize-Remaining", "Ratelimitbysize-Reset", ReasonTokens},
	},
	rules: []rule{
		{code: "service_tier_capacity_exceeded", is: ReasonCapacity},
		{code: "3505", is: ReasonCapacity},
		{status: 429, text: "capacity exceeded", is: ReasonCapacity},
		{code: "unknown_model", is: ReasonModelNotFound},
		{code: "invalid_model", is: ReasonModelNotFound},
		{code: "1500", is: ReasonModelNotFound},
		{code: "3051", is: ReasonContextLength},
		{status: 400, text: "too large for model", is: ReasonContextLength},
		{status: 400, text: "invalid model", is: ReasonModelNotFound},
		{status: 422, text: "too large for model", is: ReasonContextLength},
		{code: "unauthorized", is: ReasonAuthentication},
		{code: "rate_limited", is: ReasonRequests},
		{code: "1300", is: ReasonRequests},
		{status: 429, is: ReasonRequests},
		{status: 503, is: ReasonUnavailable, outcome: OutcomeMaybeExecuted},
		{status: 504, is: ReasonUpstreamTimeout},
	},
}
