package fault

// cohere has no codes at all: a status and a text.
var cohere = provider{
	name:      "cohere",
	hosts:     []string{"api.cohere.com", "api.cohere.ai"},
	signs:     []string{"x-endpoint-monthly-call-limit", "x-trial-endpoint-call-"},
	requestID: []string{"X-Debug-Trace-Id", "X-Request-Id"},
	model:     true,
	rules: []rule{
		{status: 400, text: "too many tokens", is: ReasonContextLength},
		{status: 400, text: "response_format", is: ReasonUnsupportedSchema},
		{status: 400, text: "json schema", is: ReasonUnsupportedSchema},
		{status: 400, text: "blocked output", is: ReasonOutputBlocked},
		{status: 400, text: "blocked input", is: ReasonInputBlocked},
		{status: 400, text: "safety", is: ReasonInputBlocked},
		{status: 402, is: ReasonSpendLimit},
		{status: 404, text: "model ", is: ReasonModelNotFound},
		{status: 422, text: "too many tokens", is: ReasonContextLength},
		{status: 429, text: "per month", is: ReasonUsageLimit},
		{status: 429, text: "/ month", is: ReasonUsageLimit},
		{status: 429, text: "calls / mon", is: ReasonUsageLimit},
		{status: 429, text: "monthly", is: ReasonUsageLimit},
		{status: 429, text: "token rate limit", is: ReasonTokens},
		{status: 429, text: "tokens per minute", is: ReasonTokens},
		{status: 429, is: ReasonRequests},
		{status: 498, is: ReasonAuthentication},
		{status: 499, is: ReasonServerCanceled},
	},
}
