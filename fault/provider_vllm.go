package fault

// vLLM names its types after Python's exceptions and repeats the status as the code.
var vLLM = provider{
	name:      "vllm",
	requestID: []string{"X-Request-Id"},
	model:     true,
	like:      &openAI,
	failed:    ReasonServerError,
	rules: []rule{
		{status: 400, text: "maximum context length", is: ReasonContextLength},
		{status: 400, text: "maximum model length", is: ReasonContextLength},
		{status: 400, text: "longer than the maximum model", is: ReasonContextLength},
		{status: 400, param: "input_tokens", is: ReasonContextLength},
		{status: 404, text: "does not exist", is: ReasonModelNotFound},
		{status: 404, param: "model", is: ReasonModelNotFound},
		{code: "NotFoundError", is: ReasonNotFound},
		{code: "BadRequestError", is: ReasonMalformed},
		{code: "UnprocessableEntityError", is: ReasonMalformed},
		{code: "NotImplementedError", is: ReasonUnsupported},
		{code: "AuthenticationError", is: ReasonAuthentication},
		{code: "PermissionDeniedError", is: ReasonAuthorization},
		{code: "RateLimitError", is: ReasonRequests},
		{code: "ServiceUnavailableError", is: ReasonUnavailable, outcome: OutcomeRejected},
		{code: "InternalServerError", is: ReasonServerError},
	},
}
