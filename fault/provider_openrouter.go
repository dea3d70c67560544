package fault

// openRouter repeats the status as the code, in a 200 too, and the answer of the provider behind it as text.
var openRouter = provider{
	name:      "openrouter",
	hosts:     []string{"openrouter.ai"},
	signs:     []string{"x-openrouter-"},
	requestID: []string{"X-Generation-Id", "X-Request-Id", "Cf-Ray"},
	model:     true,
	like:      &openAI,
	limits: []limit{
		{"X-Ratelimit-Remaining", "X-Ratelimit-Reset", ReasonRequests},
	},
	rules: []rule{
		{detail: "openrouter_in_flight_budget", is: ReasonInFlightBudget},
		{status: 402, text: "in-flight", is: ReasonInFlightBudget},
		{status: 402, text: "key limit", is: ReasonSpendLimit},
		{status: 403, text: "key limit", is: ReasonSpendLimit},
		{status: 403, text: "total limit", is: ReasonSpendLimit},
		{status: 429, text: "per-day", is: ReasonDailyQuota},
		{status: 429, text: "per day", is: ReasonDailyQuota},
		{status: 404, text: "no endpoints found that support", is: ReasonParameter},
		{status: 404, text: "no endpoints found matching your data policy", is: ReasonAuthorization},
		{status: 404, text: "no endpoints found", is: ReasonModelNotFound},
		{status: 404, text: "no allowed providers", is: ReasonModelNotFound},
		{status: 400, text: "not a valid model", is: ReasonModelNotFound},
		{status: 400, text: "maximum context length", is: ReasonContextLength},
		{status: 403, detail: "moderation", is: ReasonInputBlocked},
		{status: 403, text: "flagged", is: ReasonInputBlocked},
		{status: 403, text: "requires moderation", is: ReasonInputBlocked},
		{status: 403, text: "guardrail", is: ReasonInputBlocked},
		{status: 502, is: ReasonServerError},
		{status: 503, is: ReasonUnavailable, outcome: OutcomeRejected},
	},
}
