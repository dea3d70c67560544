package fault

// bedrock has exceptions for headers, bodies and the events of a stream alike; it never tells a delay.
var bedrock = provider{
	name:      "bedrock",
	aliases:   []string{"aws-bedrock", "amazon-bedrock", "amazon bedrock"},
	hosts:     []string{"bedrock*.amazonaws.com", "*.bedrock*.amazonaws.com"},
	signs:     []string{"x-amzn-bedrock-"},
	requestID: []string{"X-Amzn-Requestid"},
	model:     true,
	like:      &aws,
	rules: []rule{
		{code: "ThrottlingException", text: "per day", is: ReasonDailyQuota},
		{code: "ThrottlingException", text: "too many tokens", is: ReasonTokens},
		{code: "ThrottlingException", is: ReasonRequests},
		{code: "ServiceQuotaExceededException", is: ReasonServiceQuota},
		{code: "ModelNotReadyException", is: ReasonUnavailable, outcome: OutcomeRejected},

		{code: "ValidationException", text: "too long", is: ReasonContextLength},
		{code: "ValidationException", text: "exceed context limit", is: ReasonContextLength},
		{code: "ValidationException", text: "too many input tokens", is: ReasonContextLength},
		{code: "ValidationException", text: "maximum context length", is: ReasonContextLength},
		{code: "ValidationException", text: "context window", is: ReasonContextLength},
		{code: "ValidationException", text: "model identifier is invalid", is: ReasonModelNotFound},
		{code: "ValidationException", text: "on-demand throughput isn", is: ReasonModelNotFound},
		{code: "ValidationException", text: "operation not allowed", is: ReasonModelNotAllowed},
		{code: "ValidationException", text: "blocked by content filtering", is: ReasonOutputBlocked},
		{code: "ValidationException", is: ReasonMalformed},

		{code: "AccessDeniedException", text: "access to the model", is: ReasonModelNotAllowed},
		{code: "AccessDeniedException", text: "model access", is: ReasonModelNotAllowed},
		{code: "AccessDeniedException", is: ReasonAuthorization},
		{code: "FTUFormNotFilled", is: ReasonModelNotAllowed},
		{code: "ResourceNotFoundException", text: "use case details have not been submitted", is: ReasonModelNotAllowed},
		{code: "ResourceNotFoundException", text: "model", is: ReasonModelNotFound},
		{code: "ResourceNotFoundException", is: ReasonNotFound},

		{code: "ModelTimeoutException", is: ReasonUpstreamTimeout},
		{code: "ModelErrorException", is: ReasonModelError},
		{code: "ModelStreamErrorException", is: ReasonModelError},
		{code: "InternalServerException", is: ReasonServerError},
		{code: "ServiceUnavailableException", is: ReasonUnavailable, outcome: OutcomeRejected},
		{status: 424, is: ReasonModelError},
	},
}
