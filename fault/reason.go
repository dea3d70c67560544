package fault

// Reason says in one word of lower_snake_case why an attempt failed, for people and for a body's own
// branches. The list is open: a step may return any Reason of its own.
//
// A Reason is an error, and as the sentinel of a stored fault it survives what live sentinels do not, a
// restart: errors.Is(err, fault.Reason("too_many_turns")) holds before and after. Returned bare, one of the
// constants below stands for the class and outcome that its comment's group names; any other is an error
// that nobody recognises, unless a wrapper such as [Invalid] says more.
type Reason string

// Error returns the text of the reason.
func (r Reason) Error() string { return string(r) }

// Reasons of class canceled, outcome maybe_executed: our own side ended the attempt.
const (
	// ReasonRunCanceled: the run is cancelled.
	ReasonRunCanceled Reason = "run_canceled"
	// ReasonRunDeadline: the run's own deadline passed.
	ReasonRunDeadline Reason = "run_deadline"
	// ReasonWorkerShutdown: the worker stopped.
	ReasonWorkerShutdown Reason = "worker_shutdown"
	// ReasonLeaseLost: the worker no longer holds the run.
	ReasonLeaseLost Reason = "lease_lost"
	// ReasonSiblingFailed: another branch of the group failed.
	ReasonSiblingFailed Reason = "sibling_failed"
	// ReasonRunEnded: the run ended while one of its branches was waiting.
	ReasonRunEnded Reason = "run_ended"
)

// Reasons of class canceled, outcome not_sent: nothing was begun.
const (
	// ReasonWaitTimeout: what was waited for did not come within the limit.
	ReasonWaitTimeout Reason = "wait_timeout"
)

// The causes with which the engine ends a run's context. They are the reasons themselves, so that
// errors.Is finds them in a live error, in the context's cause and in the stored fault alike.
const (
	// ErrRunCanceled ends a context because a person or the program cancelled the run.
	ErrRunCanceled = ReasonRunCanceled
	// ErrStopping ends a context because the worker shuts down.
	ErrStopping = ReasonWorkerShutdown
	// ErrLeaseLost ends a context because another worker may own the run now.
	ErrLeaseLost = ReasonLeaseLost
	// ErrSiblingFailed ends the contexts of a group's other branches.
	ErrSiblingFailed = ReasonSiblingFailed
)

// Reasons of class outcome_unknown, outcome maybe_executed: nobody knows whether the effect happened.
const (
	// ReasonUnrecognized: an error that nobody recognises.
	ReasonUnrecognized Reason = "unrecognized"
	// ReasonPanic: the step's code, or a method of its error, panicked.
	ReasonPanic Reason = "panic"
	// ReasonStepDeadline: the step's own timeout passed.
	ReasonStepDeadline Reason = "step_deadline"
	// ReasonClientTimeout: a timer that is not the engine's ended the call.
	ReasonClientTimeout Reason = "client_timeout"
	// ReasonCallCanceled: a context that is not the engine's ended the call.
	ReasonCallCanceled Reason = "call_canceled"
	// ReasonConnectionLost: the connection broke before an answer was complete.
	ReasonConnectionLost Reason = "connection_lost"
	// ReasonResponseTruncated: an answer began and was cut.
	ReasonResponseTruncated Reason = "response_truncated"
	// ReasonResponseUnreadable: what came back is no answer: a page, half of a JSON text, or nothing in it.
	ReasonResponseUnreadable Reason = "response_unreadable"
	// ReasonStreamTruncated: a stream ended without the event that ends it.
	ReasonStreamTruncated Reason = "stream_truncated"
	// ReasonStreamReset: the far end reset the HTTP/2 stream, and did not say that it had done nothing.
	ReasonStreamReset Reason = "stream_reset"
	// ReasonServerCanceled: the far end says that the call was cancelled, and it was not by us.
	ReasonServerCanceled Reason = "server_canceled"
	// ReasonCommitUnknown: nobody saw the answer to a COMMIT.
	ReasonCommitUnknown Reason = "commit_unknown"
	// ReasonDataLoss: the far end reports damaged data.
	ReasonDataLoss Reason = "data_loss"
	// ReasonWorkerLost: the worker died during the attempt.
	ReasonWorkerLost Reason = "worker_lost"
	// ReasonAdminShutdown: the database server ended the session; a COMMIT may have been under way.
	ReasonAdminShutdown Reason = "admin_shutdown"
	// ReasonCrashShutdown: the database server crashed; a COMMIT may have been under way.
	ReasonCrashShutdown Reason = "crash_shutdown"
)

// Reasons of class access_denied, outcome not_sent: a person was asked, and it was not done.
const (
	// ReasonGateRejected: a person said no.
	ReasonGateRejected Reason = "gate_rejected"
	// ReasonGateExpired: nobody decided in time, or what was approved was not begun in time.
	ReasonGateExpired Reason = "gate_expired"
	// ReasonGateRevoked: the approval was taken back before it was used.
	ReasonGateRevoked Reason = "gate_revoked"
	// ReasonGateInvalidated: what was to be done is not what was approved.
	ReasonGateInvalidated Reason = "gate_invalidated"
	// ReasonGateUsed: another step has acted under the approval.
	ReasonGateUsed Reason = "gate_used"
)

// Reasons of class transient, outcome not_sent: the far end was not reached.
const (
	// ReasonUnreachable: no connection could be made.
	ReasonUnreachable Reason = "unreachable"
	// ReasonProxyUnreachable: no connection to the proxy could be made.
	ReasonProxyUnreachable Reason = "proxy_unreachable"
	// ReasonDNS: the name server did not answer.
	ReasonDNS Reason = "dns_failure"
	// ReasonUnavailable: the far end is starting up or takes no more connections.
	ReasonUnavailable Reason = "unavailable"
	// ReasonNotSent: the step says that nothing was sent.
	ReasonNotSent Reason = "not_sent"
	// ReasonTLSHandshake: a proxy could not make a secure connection to the server behind it.
	ReasonTLSHandshake Reason = "tls_handshake"
	// ReasonRefusedStream: HTTP/2 guarantees that the request was not handed on.
	ReasonRefusedStream Reason = "refused_stream"
	// ReasonGoAway: the server was closing the HTTP/2 connection and had not taken the request.
	ReasonGoAway Reason = "goaway"
)

// Reasons of class transient, outcome rejected: refused, and likely to be accepted later.
const (
	// ReasonRejected: the step, or the far end, says that nothing happened.
	ReasonRejected Reason = "rejected"
	// ReasonSerialization: concurrent transactions.
	ReasonSerialization Reason = "serialization_failure"
	// ReasonDeadlock: concurrent transactions lock in different orders.
	ReasonDeadlock Reason = "deadlock"
	// ReasonLocked: a lock was not given in time.
	ReasonLocked Reason = "locked"
	// ReasonStaleSnapshot: a SQLite transaction read before it wrote.
	ReasonStaleSnapshot Reason = "stale_snapshot"
	// ReasonStatementTimeout: the database ended a statement.
	ReasonStatementTimeout Reason = "statement_timeout"
	// ReasonReadOnly: the database takes no writes now, as during a failover.
	ReasonReadOnly Reason = "read_only"
	// ReasonConflict: someone else changed the same thing.
	ReasonConflict Reason = "conflict"
	// ReasonLockTimeout: another request holds the object.
	ReasonLockTimeout Reason = "lock_timeout"
	// ReasonCommitRolledBack: a COMMIT was answered by ROLLBACK.
	ReasonCommitRolledBack Reason = "commit_rolled_back"
	// ReasonOverloaded: the far end lacks memory or capacity.
	ReasonOverloaded Reason = "overloaded"
	// ReasonTooEarly: the server does not take early data.
	ReasonTooEarly Reason = "too_early"
	// ReasonMisdirected: the connection leads to a server that does not answer for this host.
	ReasonMisdirected Reason = "misdirected"
	// ReasonClockSkew: our clock and theirs differ by too much for the signature.
	ReasonClockSkew Reason = "clock_skew"
	// ReasonMailboxBusy: the mailbox cannot be written to now.
	ReasonMailboxBusy Reason = "mailbox_busy"
	// ReasonMailRefused: the mail server refused for now.
	ReasonMailRefused Reason = "mail_refused_for_now"
	// ReasonAuthUnavailable: the mail server cannot check credentials now.
	ReasonAuthUnavailable Reason = "auth_unavailable"
)

// Reasons of class transient, outcome maybe_executed: it may have been done in part.
const (
	// ReasonServerError: the far end failed while at work.
	ReasonServerError Reason = "server_error"
	// ReasonBadGateway: a proxy got no good answer from the server behind it.
	ReasonBadGateway Reason = "bad_gateway"
	// ReasonUpstreamTimeout: the far end, or a proxy before it, gave up waiting while the work may go on.
	ReasonUpstreamTimeout Reason = "upstream_timeout"
	// ReasonModelError: the model broke off while at work.
	ReasonModelError Reason = "model_error"
	// ReasonModelOutput: the model ran, and what it wrote is no valid call or JSON.
	ReasonModelOutput Reason = "model_output_invalid"
	// ReasonKeyInUse: an earlier attempt under the same key is still at work.
	ReasonKeyInUse Reason = "idempotency_key_in_use"
)

// Reasons of class rate_limited, outcome rejected: refused now, by a window that refills by itself.
const (
	// ReasonThrottled: the far end asks to be called later.
	ReasonThrottled Reason = "throttled"
	// ReasonRequests: too many requests for the moment.
	ReasonRequests Reason = "requests"
	// ReasonTokens: too many tokens for the moment.
	ReasonTokens Reason = "tokens"
	// ReasonInputTokens: too many input tokens for the moment.
	ReasonInputTokens Reason = "input_tokens"
	// ReasonOutputTokens: too many output tokens for the moment.
	ReasonOutputTokens Reason = "output_tokens"
	// ReasonCapacity: the far end has no capacity for this model or tier now.
	ReasonCapacity Reason = "capacity"
	// ReasonRampTooFast: the rate of requests grew too fast.
	ReasonRampTooFast Reason = "ramp_too_fast"
	// ReasonInFlightBudget: what is under way already uses up the balance.
	ReasonInFlightBudget Reason = "in_flight_budget"
	// ReasonTooManyRecipients: the mail server takes no more recipients now.
	ReasonTooManyRecipients Reason = "too_many_recipients"
)

// Reasons of class access_denied, outcome rejected: identity, permission or account state refuses.
const (
	// ReasonAuthentication: who we are was not accepted.
	ReasonAuthentication Reason = "authentication"
	// ReasonCredentialsExpired: a token has expired.
	ReasonCredentialsExpired Reason = "credentials_expired"
	// ReasonKeyRevoked: the key was revoked, or reported as leaked.
	ReasonKeyRevoked Reason = "key_revoked"
	// ReasonAuthorization: we may not do this.
	ReasonAuthorization Reason = "authorization"
	// ReasonModelNotAllowed: the account may not use this model.
	ReasonModelNotAllowed Reason = "model_not_allowed"
	// ReasonRegionUnsupported: the service is not offered from this region.
	ReasonRegionUnsupported Reason = "region_unsupported"
	// ReasonOrgDisabled: the account or organization is disabled, restricted or blocked.
	ReasonOrgDisabled Reason = "org_disabled"
	// ReasonServiceDisabled: the API or billing is not enabled for the project.
	ReasonServiceDisabled Reason = "service_disabled"
	// ReasonNetworkRule: a network rule of the far end keeps our address out.
	ReasonNetworkRule Reason = "network_rule"
	// ReasonEdgeBlocked: a firewall or bot check before the API refused us.
	ReasonEdgeBlocked Reason = "edge_blocked"
)

// Reasons of class access_denied, outcome not_sent: the proxy on our own side refuses.
const (
	// ReasonProxyAuthentication: the proxy on our side wants credentials.
	ReasonProxyAuthentication Reason = "proxy_authentication"
)

// Reasons of class invalid_request, outcome not_sent: what is configured cannot work.
const (
	// ReasonHostNotFound: the name does not exist.
	ReasonHostNotFound Reason = "host_not_found"
	// ReasonBadAddress: the address cannot be dialled as written.
	ReasonBadAddress Reason = "bad_address"
	// ReasonTLSCertificate: the far end's certificate was not accepted.
	ReasonTLSCertificate Reason = "tls_certificate"
	// ReasonWrongScheme: the port does not speak the protocol asked for.
	ReasonWrongScheme Reason = "wrong_scheme"
)

// Reasons of class invalid_request, outcome rejected: what was asked cannot be accepted.
const (
	// ReasonInvalidValue: a value is not acceptable.
	ReasonInvalidValue Reason = "invalid_value"
	// ReasonMalformed: the request cannot be read by the far end.
	ReasonMalformed Reason = "malformed"
	// ReasonParameter: a parameter, or its value, is not supported here.
	ReasonParameter Reason = "unsupported_parameter"
	// ReasonParameterNotAllowed: a parameter is not allowed for this account.
	ReasonParameterNotAllowed Reason = "parameter_not_allowed"
	// ReasonUnsupportedSchema: the output or tool schema is not supported.
	ReasonUnsupportedSchema Reason = "unsupported_schema"
	// ReasonContextLength: the prompt is longer than the model reads.
	ReasonContextLength Reason = "context_length_exceeded"
	// ReasonTooLarge: the request or value exceeds a limit.
	ReasonTooLarge Reason = "too_large"
	// ReasonRequestTooLarge: the request is larger than the far end ever takes.
	ReasonRequestTooLarge Reason = "request_too_large"
	// ReasonNotFound: what was asked for does not exist.
	ReasonNotFound Reason = "not_found"
	// ReasonModelNotFound: the model or deployment does not exist.
	ReasonModelNotFound Reason = "model_not_found"
	// ReasonEndpointGone: the address is gone for good.
	ReasonEndpointGone Reason = "endpoint_gone"
	// ReasonRedirect: the far end sends us elsewhere, which a write does not follow.
	ReasonRedirect Reason = "redirect"
	// ReasonAlreadyExists: it is there already.
	ReasonAlreadyExists Reason = "already_exists"
	// ReasonUniqueViolation: a unique index refused the row.
	ReasonUniqueViolation Reason = "unique_violation"
	// ReasonConstraint: a constraint refused the row.
	ReasonConstraint Reason = "constraint"
	// ReasonPrecondition: the far end is not in the state this needs.
	ReasonPrecondition Reason = "precondition_failed"
	// ReasonUnsupported: the far end cannot do this.
	ReasonUnsupported Reason = "unsupported_method"
	// ReasonSchema: a table, column or function is missing.
	ReasonSchema Reason = "schema_mismatch"
	// ReasonStorageCorrupt: the database is damaged.
	ReasonStorageCorrupt Reason = "storage_corrupt"
	// ReasonNoSuchMailbox: the address does not exist.
	ReasonNoSuchMailbox Reason = "no_such_mailbox"
	// ReasonIdempotencyMismatch: the same key came with other parameters.
	ReasonIdempotencyMismatch Reason = "idempotency_mismatch"
	// ReasonDeclined: the payment was declined.
	ReasonDeclined Reason = "declined"
)

// Reasons of class invalid_request, outcome rejected: the engine, about the use of a step.
const (
	// ReasonDuplicateStep: the name was used before in this run.
	ReasonDuplicateStep Reason = "duplicate_step"
	// ReasonNestedStep: a step was called inside a step.
	ReasonNestedStep Reason = "nested_step"
	// ReasonForeignGoroutine: two goroutines share one branch of a run.
	ReasonForeignGoroutine Reason = "foreign_goroutine"
	// ReasonKeyConflict: one operation key came with two inputs.
	ReasonKeyConflict Reason = "key_conflict"
)

// Reasons of class invalid_request, outcome maybe_executed: something may have been done before it came up.
const (
	// ReasonOutputTruncated: the model stopped at its output limit.
	ReasonOutputTruncated Reason = "output_truncated"
	// ReasonProtocolViolation: the far end did not understand the driver.
	ReasonProtocolViolation Reason = "protocol_violation"
	// ReasonNotStorable: the step's result cannot be stored as JSON.
	ReasonNotStorable Reason = "not_storable"
	// ReasonDecode: a stored value no longer fits its type.
	ReasonDecode Reason = "decode"
	// ReasonGaveUp: a person ended an uncertain step without an answer.
	ReasonGaveUp Reason = "gave_up"
)

// Reasons of class quota_exhausted, outcome rejected: money, a long budget or storage is used up.
const (
	// ReasonCredit: the prepaid credit is used up, or payment is due.
	ReasonCredit Reason = "credit"
	// ReasonSpendLimit: a spend limit that was set is reached.
	ReasonSpendLimit Reason = "spend_limit"
	// ReasonUsageLimit: a paid or long budget is used up.
	ReasonUsageLimit Reason = "usage_limit"
	// ReasonDailyQuota: the quota of the day is used up.
	ReasonDailyQuota Reason = "daily_quota"
	// ReasonServiceQuota: a quota of the account is reached.
	ReasonServiceQuota Reason = "service_quota"
	// ReasonStorageFull: a disk or a storage quota is full.
	ReasonStorageFull Reason = "storage_full"
)

// Reasons of class content_policy, outcome rejected: refused by a safety or policy layer.
const (
	// ReasonInputBlocked: a safety layer refused the input.
	ReasonInputBlocked Reason = "input_blocked"
	// ReasonRefusal: a safety layer or a model refused.
	ReasonRefusal Reason = "refusal"
	// ReasonMessageBlocked: the mail server refused the message by policy.
	ReasonMessageBlocked Reason = "message_blocked"
)

// Reasons of class content_policy, outcome maybe_executed: a safety layer stopped what the model wrote.
const (
	// ReasonOutputBlocked: a safety layer refused what the model wrote.
	ReasonOutputBlocked Reason = "output_blocked"
	// ReasonGuardrail: a guardrail of the account stopped the model.
	ReasonGuardrail Reason = "guardrail"
)
