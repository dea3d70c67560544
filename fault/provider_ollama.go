package fault

// ollama has a status and a text. It is found by its port, 11434, because nothing in its answers tells.
var ollama = provider{
	name:      "ollama",
	hosts:     []string{"ollama.com"},
	requestID: []string{"X-Request-Id"},
	model:     true,
	like:      &openAI,
	failed:    ReasonServerError,
	rules: []rule{
		{status: 404, text: "model", is: ReasonModelNotFound},
		{status: 400, text: "does not support", is: ReasonParameter},
		{status: 400, text: "context length", is: ReasonContextLength},
		{status: 429, is: ReasonRequests},
		{status: 500, text: "requires more system memory", is: ReasonOverloaded},
		{status: 503, is: ReasonOverloaded},
	},
}
