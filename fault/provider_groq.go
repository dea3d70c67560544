package fault

var groq = provider{
	name:      "groq",
	hosts:     []string{"api.groq.com"},
	signs:     []string{"x-groq"},
	requestID: []string{"X-Request-Id"},
	model:     true,
	like:      &openAI,
	rules: []rule{
		// The model has run, and what it wrote does not pass.
		{code: "tool_use_failed", is: ReasonModelOutput},
		{code: "json_validate_failed", is: ReasonModelOutput},
		{code: "output_parse_failed", is: ReasonModelOutput},
		{code: "json_generate_failed", is: ReasonModelOutput},

		{code: "capacity_exceeded", is: ReasonOverloaded},
		{code: "over_capacity", is: ReasonOverloaded},
		{code: "model_decommissioned", is: ReasonModelNotFound},
		{code: "model_not_found", is: ReasonModelNotFound},
		{code: "model_terms_required", is: ReasonModelNotAllowed},
		{code: "model_permission_blocked_org", is: ReasonModelNotAllowed},
		{code: "model_permission_blocked_project", is: ReasonModelNotAllowed},
		{code: "organization_restricted", is: ReasonOrgDisabled},
		{code: "blocked_api_access", is: ReasonSpendLimit},
		{code: "spend_limit_reached", is: ReasonSpendLimit},
		{code: "expired_api_key", is: ReasonCredentialsExpired},
		{code: "request_too_large", is: ReasonRequestTooLarge},
		{code: "rate_limit_exceeded", status: 413, is: ReasonRequestTooLarge},
		{status: 413, is: ReasonRequestTooLarge},
		{status: 498, is: ReasonOverloaded},
	},
}
