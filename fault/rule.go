package fault

import "strings"

// matches reports whether every field of r that is set fits a.
func (r *rule) matches(a *answer) bool { //nolint:cyclop // one condition per field
	if r.status != 0 && r.status != a.status {
		return false
	}
	if r.code != "" && !strings.EqualFold(r.code, a.code) && !strings.EqualFold(r.code, a.kind) {
		return false
	}
	if r.kind != "" && !strings.EqualFold(r.kind, a.kind) {
		return false
	}
	if r.detail != "" && !a.hasDetail(r.detail) {
		return false
	}
	if r.quota != "" && !strings.Contains(a.quota, r.quota) {
		return false
	}
	if r.param != "" && !strings.HasPrefix(a.param, r.param) {
		return false
	}
	if r.text != "" && !strings.Contains(a.lower(), r.text) {
		return false
	}
	return true
}

// byType reports whether r, which matches a, goes by a's type and not by its code.
func (r *rule) byType(a *answer) bool { return r.code != "" && !strings.EqualFold(r.code, a.code) }

// aboutStatus reports whether r knows nothing but a status.
func (r *rule) aboutStatus() bool {
	return *r == rule{status: r.status, is: r.is, class: r.class, outcome: r.outcome}
}

func (a *answer) hasDetail(detail string) bool {
	for _, d := range a.details {
		if strings.EqualFold(d, detail) {
			return true
		}
	}
	return false
}

// lower returns the beginning of the message in lower case.
func (a *answer) lower() string {
	if a.folded == "" && !a.html {
		a.folded = strings.ToLower(a.message[:min(len(a.message), maxText)])
	}
	return a.folded
}

// fault returns what the rule says.
func (r *rule) fault() Fault {
	f := r.is.fault()
	if r.class != 0 {
		f.Class = r.class
	}
	if r.outcome != 0 {
		f.Outcome = r.outcome
	}
	return f
}

// statuses say what an HTTP status means when nothing else is known. A 5xx that does not say otherwise may have
// done it; a 4xx is a refusal, with few exceptions.
var statuses = []rule{
	{status: 400, is: ReasonMalformed},
	{status: 401, is: ReasonAuthentication},
	{status: 402, is: ReasonCredit},
	{status: 403, is: ReasonAuthorization},
	{status: 404, is: ReasonNotFound},
	{status: 405, is: ReasonUnsupported},
	{status: 406, is: ReasonMalformed},
	{status: 407, is: ReasonProxyAuthentication},
	{status: 408, is: ReasonUpstreamTimeout},
	{status: 409, is: ReasonConflict},
	{status: 410, is: ReasonEndpointGone},
	{status: 411, is: ReasonMalformed},
	{status: 412, is: ReasonPrecondition},
	{status: 413, is: ReasonRequestTooLarge},
	{status: 414, is: ReasonRequestTooLarge},
	{status: 415, is: ReasonMalformed},
	{status: 421, is: ReasonMisdirected},
	{status: 422, is: ReasonMalformed},
	{status: 423, is: ReasonLocked},
	{status: 424, is: ReasonServerError},
	{status: 425, is: ReasonTooEarly},
	{status: 428, is: ReasonPrecondition},
	{status: 429, is: ReasonRequests},
	{status: 431, is: ReasonRequestTooLarge},
	{status: 498, is: ReasonOverloaded}, // Groq's
	{status: 499, is: ReasonServerCanceled},
	{status: 500, is: ReasonServerError},
	{status: 501, is: ReasonUnsupported},
	{status: 502, is: ReasonBadGateway},
	{status: 503, is: ReasonUnavailable, outcome: OutcomeMaybeExecuted}, // rejected, with a Retry-After
	{status: 504, is: ReasonUpstreamTimeout, class: OutcomeUnknown},
	{status: 505, is: ReasonUnsupported},
	{status: 507, is: ReasonStorageFull},
	{status: 520, is: ReasonBadGateway, class: OutcomeUnknown},
	{status: 521, is: ReasonUnreachable},
	{status: 522, is: ReasonUpstreamTimeout, class: OutcomeUnknown},
	{status: 523, is: ReasonUnreachable},
	{status: 524, is: ReasonUpstreamTimeout, class: OutcomeUnknown},
	{status: 525, is: ReasonTLSHandshake},
	{status: 526, is: ReasonTLSHandshake},
	{status: 529, is: ReasonOverloaded},
	{status: 530, is: ReasonUnreachable},
}

// finishes say why a model stopped, in the words of all dialects, where that makes the answer no result. Whatever
// the reason, the model has run.
var finishes = map[string]Reason{
	"content_filter": ReasonOutputBlocked, "content_filtered": ReasonOutputBlocked, "safety": ReasonOutputBlocked,
	"recitation": ReasonOutputBlocked, "blocklist": ReasonOutputBlocked, "prohibited_content": ReasonOutputBlocked,
	"spii": ReasonOutputBlocked, "image_safety": ReasonOutputBlocked, "image_recitation": ReasonOutputBlocked,
	"image_prohibited_content": ReasonOutputBlocked, "model_armor": ReasonOutputBlocked, "language": ReasonOutputBlocked,
	"error_toxic": ReasonOutputBlocked, "sensitive": ReasonOutputBlocked,
	"refusal":              ReasonRefusal,
	"guardrail_intervened": ReasonGuardrail,

	"malformed_function_call": ReasonModelOutput, "unexpected_tool_call": ReasonModelOutput,
	"too_many_tool_calls": ReasonModelOutput, "malformed_response": ReasonModelOutput,
	"missing_thought_signature": ReasonModelOutput, "malformed_model_output": ReasonModelOutput,
	"malformed_tool_use": ReasonModelOutput, "other": ReasonModelOutput, "image_other": ReasonModelOutput,
	"no_image": ReasonModelOutput,

	"length": ReasonOutputTruncated, "max_tokens": ReasonOutputTruncated, "max_output_tokens": ReasonOutputTruncated,
	"model_length": ReasonContextLength, "model_context_window_exceeded": ReasonContextLength,
	"error_limit": ReasonContextLength,

	"error": ReasonServerError, "timeout": ReasonUpstreamTimeout, "insufficient_system_resource": ReasonOverloaded,
	"cancelled": ReasonServerCanceled, "abort": ReasonServerCanceled, "user_cancel": ReasonServerCanceled,
}
