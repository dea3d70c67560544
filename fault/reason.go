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
	// ReasonRunCanceled: the run is cancelled. Nothing to do.
	ReasonRunCanceled Reason = "run_canceled"
	// ReasonRunDeadline: the run's own deadline passed. Give it more time, or start it earlier.
	ReasonRunDeadline Reason = "run_deadline"
	// ReasonWorkerShutdown: the worker stopped. Nothing to do: the run goes on elsewhere.
	ReasonWorkerShutdown Reason = "worker_shutdown"
	// ReasonLeaseLost: the worker no longer holds the run. Look for a stalled process or database.
	ReasonLeaseLost Reason = "lease_lost"
	// ReasonSiblingFailed: another branch of the group failed. Look at that one.
	ReasonSiblingFailed Reason = "sibling_failed"
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
	// ReasonUnrecognized: an error that nobody recognises. Wrap it in the step by what is known about it.
	ReasonUnrecognized Reason = "unrecognized"
	// ReasonPanic: the step's code, or a method of its error, panicked. Fix the code.
	ReasonPanic Reason = "panic"
	// ReasonStepDeadline: the step's own timeout passed. Give it more time, or find out what was slow.
	ReasonStepDeadline Reason = "step_deadline"
	// ReasonClientTimeout: a timer that is not the engine's ended the call. Prefer the step's timeout.
	ReasonClientTimeout Reason = "client_timeout"
	// ReasonCallCanceled: a context that is not the engine's ended the call. Look for who cancels it.
	ReasonCallCanceled Reason = "call_canceled"
	// ReasonConnectionLost: the connection broke before an answer was complete. Look at the far end.
	ReasonConnectionLost Reason = "connection_lost"
	// ReasonResponseTruncated: an answer began and was cut. Look at the far end.
	ReasonResponseTruncated Reason = "response_truncated"
	// ReasonCommitUnknown: nobody saw the answer to a COMMIT. Look whether the rows are there.
	ReasonCommitUnknown Reason = "commit_unknown"
	// ReasonDataLoss: the far end reports damaged data. Look there before anything is sent again.
	ReasonDataLoss Reason = "data_loss"
	// ReasonWorkerLost: the worker died during the attempt. Look for a crash or an out-of-memory kill.
	ReasonWorkerLost Reason = "worker_lost"
)

// Reasons of class transient, outcome not_sent: the far end was not reached.
const (
	// ReasonUnreachable: no connection could be made. Check that the far end is up.
	ReasonUnreachable Reason = "unreachable"
	// ReasonProxyUnreachable: no connection to the proxy could be made. Check the proxy.
	ReasonProxyUnreachable Reason = "proxy_unreachable"
	// ReasonDNS: the name server did not answer. Check the resolver.
	ReasonDNS Reason = "dns_failure"
	// ReasonUnavailable: the far end is starting up or takes no more connections. Wait.
	ReasonUnavailable Reason = "unavailable"
	// ReasonNotSent: the step says that nothing was sent. See the message.
	ReasonNotSent Reason = "not_sent"
)

// Reasons of class transient, outcome rejected: refused, and likely to be accepted later.
const (
	// ReasonRejected: the step says that nothing happened. See the message.
	ReasonRejected Reason = "rejected"
	// ReasonSerialization: concurrent transactions. Nothing to do unless it is frequent.
	ReasonSerialization Reason = "serialization_failure"
	// ReasonDeadlock: concurrent transactions lock in different orders. Make the order the same.
	ReasonDeadlock Reason = "deadlock"
	// ReasonLocked: a lock was not given in time. Look for a long transaction.
	ReasonLocked Reason = "locked"
	// ReasonStaleSnapshot: a SQLite transaction read before it wrote. Begin it with BEGIN IMMEDIATE.
	ReasonStaleSnapshot Reason = "stale_snapshot"
	// ReasonStatementTimeout: the database ended a statement. Raise its limit or speed the statement up.
	ReasonStatementTimeout Reason = "statement_timeout"
	// ReasonReadOnly: the database takes no writes now, as during a failover. Check which server is primary.
	ReasonReadOnly Reason = "read_only"
	// ReasonConflict: someone else changed the same thing. Nothing to do unless it is frequent.
	ReasonConflict Reason = "conflict"
	// ReasonOverloaded: the far end lacks memory or capacity. Send less, or give it more.
	ReasonOverloaded Reason = "overloaded"
	// ReasonMailboxBusy: the mailbox cannot be written to now. Wait.
	ReasonMailboxBusy Reason = "mailbox_busy"
	// ReasonMailRefused: the mail server refused for now. Wait.
	ReasonMailRefused Reason = "mail_refused_for_now"
)

// ReasonServerError says that the far end failed while at work. Class transient, outcome maybe_executed. Look
// at the far end.
const ReasonServerError Reason = "server_error"

// ReasonAdminShutdown and ReasonCrashShutdown are class outcome_unknown, outcome maybe_executed, because
// the error does not tell whether a COMMIT was under way.
const (
	// ReasonAdminShutdown: the database server ended the session. Wait until it is back.
	ReasonAdminShutdown Reason = "admin_shutdown"
	// ReasonCrashShutdown: the database server crashed. Look at its log.
	ReasonCrashShutdown Reason = "crash_shutdown"
)

// Reasons of class rate_limited, outcome rejected.
const (
	// ReasonThrottled: the far end asks to be called later. Send less, or raise the limit there.
	ReasonThrottled Reason = "throttled"
	// ReasonTooManyRecipients: the mail server takes no more recipients now. Use smaller batches.
	ReasonTooManyRecipients Reason = "too_many_recipients"
)

// Reasons of class access_denied, outcome rejected.
const (
	// ReasonAuthentication: who we are was not accepted. Check the credentials.
	ReasonAuthentication Reason = "authentication"
	// ReasonAuthorization: we may not do this. Check the rights of the account.
	ReasonAuthorization Reason = "authorization"
)

// Reasons of class invalid_request, outcome not_sent: what is configured cannot work.
const (
	// ReasonHostNotFound: the name does not exist. Check the address.
	ReasonHostNotFound Reason = "host_not_found"
	// ReasonBadAddress: the address cannot be dialled as written. Check the address.
	ReasonBadAddress Reason = "bad_address"
	// ReasonTLSCertificate: the far end's certificate was not accepted. Check name, expiry and roots.
	ReasonTLSCertificate Reason = "tls_certificate"
	// ReasonWrongScheme: the port does not speak the protocol asked for. Check http against https.
	ReasonWrongScheme Reason = "wrong_scheme"
)

// Reasons of class invalid_request, outcome rejected: what was asked cannot be accepted.
const (
	// ReasonInvalidValue: a value is not acceptable. See the message.
	ReasonInvalidValue Reason = "invalid_value"
	// ReasonMalformed: the request cannot be read by the far end. See the message.
	ReasonMalformed Reason = "malformed"
	// ReasonTooLarge: the request or value exceeds a limit. Make it smaller.
	ReasonTooLarge Reason = "too_large"
	// ReasonNotFound: what was asked for does not exist.
	ReasonNotFound Reason = "not_found"
	// ReasonAlreadyExists: it is there already. On a retry this is evidence that an earlier attempt worked.
	ReasonAlreadyExists Reason = "already_exists"
	// ReasonUniqueViolation: a unique index refused the row. On a retry it may be our own earlier row.
	ReasonUniqueViolation Reason = "unique_violation"
	// ReasonConstraint: a constraint refused the row. See the message.
	ReasonConstraint Reason = "constraint"
	// ReasonPrecondition: the far end is not in the state this needs. Fix the state first.
	ReasonPrecondition Reason = "precondition_failed"
	// ReasonUnsupported: the far end cannot do this. Check its version.
	ReasonUnsupported Reason = "unsupported_method"
	// ReasonSchema: a table, column or function is missing. Run the migration.
	ReasonSchema Reason = "schema_mismatch"
	// ReasonStorageCorrupt: the database is damaged. Stop, and restore it.
	ReasonStorageCorrupt Reason = "storage_corrupt"
	// ReasonNoSuchMailbox: the address does not exist. Check the recipient.
	ReasonNoSuchMailbox Reason = "no_such_mailbox"
)

// Reasons of class invalid_request, outcome rejected, that the engine gives for the use of a step.
const (
	// ReasonDuplicateStep: the name was used before in this run. Use Item for loops.
	ReasonDuplicateStep Reason = "duplicate_step"
	// ReasonNestedStep: a step was called inside a step. Call it from the body.
	ReasonNestedStep Reason = "nested_step"
	// ReasonForeignGoroutine: two goroutines share one branch of a run. Use Group.
	ReasonForeignGoroutine Reason = "foreign_goroutine"
	// ReasonKeyConflict: one operation key came with two inputs. Make the name say what differs.
	ReasonKeyConflict Reason = "key_conflict"
)

// Reasons of class invalid_request, outcome maybe_executed: something may have been done before it came up.
const (
	// ReasonProtocolViolation: the far end did not understand the driver. Check driver and pooler.
	ReasonProtocolViolation Reason = "protocol_violation"
	// ReasonNotStorable: the step's result cannot be stored as JSON. Change its type or value.
	ReasonNotStorable Reason = "not_storable"
	// ReasonDecode: a stored value no longer fits its type. Bring the old type back.
	ReasonDecode Reason = "decode"
	// ReasonGaveUp: a person ended an uncertain step without an answer. Nothing to do.
	ReasonGaveUp Reason = "gave_up"
)

// Reasons of class quota_exhausted, outcome rejected.
const (
	// ReasonStorageFull: a disk or a storage quota is full. Make room.
	ReasonStorageFull Reason = "storage_full"
	// ReasonUsageLimit: a paid or long budget is used up. Raise it, or wait for the reset.
	ReasonUsageLimit Reason = "usage_limit"
)

// Reasons of class content_policy, outcome rejected.
const (
	// ReasonMessageBlocked: the mail server refused the message by policy. Change the message or the sender.
	ReasonMessageBlocked Reason = "message_blocked"
	// ReasonRefusal: a safety layer or a model refused. Change the content.
	ReasonRefusal Reason = "refusal"
)

// natural returns the class and outcome that r stands for on its own, and whether r is one of the constants.
func (r Reason) natural() (Class, Outcome, bool) {
	switch r {
	case ReasonRunCanceled, ReasonRunDeadline, ReasonWorkerShutdown, ReasonLeaseLost, ReasonSiblingFailed:
		return Canceled, OutcomeMaybeExecuted, true
	case ReasonUnrecognized, ReasonPanic, ReasonStepDeadline, ReasonClientTimeout, ReasonCallCanceled,
		ReasonConnectionLost, ReasonResponseTruncated, ReasonCommitUnknown, ReasonDataLoss, ReasonWorkerLost,
		ReasonAdminShutdown, ReasonCrashShutdown:
		return OutcomeUnknown, OutcomeMaybeExecuted, true
	case ReasonUnreachable, ReasonProxyUnreachable, ReasonDNS, ReasonUnavailable, ReasonNotSent:
		return Transient, OutcomeNotSent, true
	case ReasonRejected, ReasonSerialization, ReasonDeadlock, ReasonLocked, ReasonStaleSnapshot,
		ReasonStatementTimeout, ReasonReadOnly, ReasonConflict, ReasonOverloaded, ReasonMailboxBusy, ReasonMailRefused:
		return Transient, OutcomeRejected, true
	case ReasonServerError:
		return Transient, OutcomeMaybeExecuted, true
	case ReasonThrottled, ReasonTooManyRecipients:
		return RateLimited, OutcomeRejected, true
	case ReasonAuthentication, ReasonAuthorization:
		return AccessDenied, OutcomeRejected, true
	case ReasonHostNotFound, ReasonBadAddress, ReasonTLSCertificate, ReasonWrongScheme:
		return InvalidRequest, OutcomeNotSent, true
	case ReasonInvalidValue, ReasonMalformed, ReasonTooLarge, ReasonNotFound, ReasonAlreadyExists,
		ReasonUniqueViolation, ReasonConstraint, ReasonPrecondition, ReasonUnsupported, ReasonSchema,
		ReasonStorageCorrupt, ReasonNoSuchMailbox,
		ReasonDuplicateStep, ReasonNestedStep, ReasonForeignGoroutine, ReasonKeyConflict:
		return InvalidRequest, OutcomeRejected, true
	case ReasonProtocolViolation, ReasonNotStorable, ReasonDecode, ReasonGaveUp:
		return InvalidRequest, OutcomeMaybeExecuted, true
	case ReasonStorageFull, ReasonUsageLimit:
		return QuotaExhausted, OutcomeRejected, true
	case ReasonMessageBlocked, ReasonRefusal:
		return ContentPolicy, OutcomeRejected, true
	}
	return OutcomeUnknown, OutcomeMaybeExecuted, false
}

// fault returns what r stands for on its own.
func (r Reason) fault() Fault {
	c, o, _ := r.natural()
	return Fault{Class: c, Reason: r, Outcome: o}
}

// reason returns the constant that stands for c when nothing more is known.
func (c Class) reason() Reason {
	switch c {
	case RateLimited:
		return ReasonThrottled
	case Transient:
		return ReasonRejected
	case AccessDenied:
		return ReasonAuthorization
	case InvalidRequest:
		return ReasonInvalidValue
	case QuotaExhausted:
		return ReasonUsageLimit
	case ContentPolicy:
		return ReasonRefusal
	case Canceled:
		return ReasonRunCanceled
	case OutcomeUnknown:
	}
	return ReasonUnrecognized
}
