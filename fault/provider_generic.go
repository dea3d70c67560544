package fault

// generic is anybody's API, of which nothing is known but HTTP.
var generic = provider{
	name:      "http-api",
	aliases:   []string{"http", "generic"},
	requestID: []string{"X-Request-Id", "Request-Id", "X-Correlation-Id", "Cf-Ray"},
	rules: []rule{
		{code: "FAILED_PRECONDITION", is: ReasonPrecondition}, // only Google's models mean the account
	},
	limits: []limit{
		{"X-Ratelimit-Remaining", "X-Ratelimit-Reset", ReasonRequests},
		{"Ratelimit-Remaining", "Ratelimit-Reset", ReasonRequests},
		{"X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests", ReasonRequests},
		{"X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens", ReasonTokens},
	},
}

// webhook is a receiver of webhooks, which knows a message again by its id.
var webhook = provider{
	name:      "webhook",
	keyHeader: "Webhook-Id",
	requestID: []string{"X-Request-Id", "Request-Id"},
	rules: []rule{
		{status: 504, is: ReasonUpstreamTimeout},
	},
}

// cdn is a proxy that answers for a server behind it.
var cdn = provider{
	name:      "cdn",
	aliases:   []string{"cloudflare", "proxy", "envoy", "nginx"},
	signs:     []string{"cf-ray", "cf-mitigated", "x-envoy-"},
	requestID: []string{"Cf-Ray", "X-Request-Id"},
}
