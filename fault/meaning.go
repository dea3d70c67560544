package fault

// meaning is what a reason stands for on its own, and what a person can do about it.
type meaning struct {
	class   Class
	outcome Outcome
	advice  string
}

// meanings has every constant of type [Reason]. It is the one place that says what they mean to a queue; the
// comment of a constant says what it means to a person.
var meanings = map[Reason]meaning{
	ReasonRunCanceled:    {Canceled, OutcomeMaybeExecuted, "Nothing to do."},
	ReasonRunDeadline:    {Canceled, OutcomeMaybeExecuted, "Give it more time, or start it earlier."},
	ReasonWorkerShutdown: {Canceled, OutcomeMaybeExecuted, "Nothing to do: the run goes on elsewhere."},
	ReasonLeaseLost:      {Canceled, OutcomeMaybeExecuted, "Look for a stalled process or database."},
	ReasonSiblingFailed:  {Canceled, OutcomeMaybeExecuted, "Look at the branch that failed."},
	ReasonRunEnded:       {Canceled, OutcomeMaybeExecuted, "Nothing to do."},

	ReasonWaitTimeout: {Canceled, OutcomeNotSent, "Find out why it did not come, or give it more time."},

	ReasonUnrecognized:       {OutcomeUnknown, OutcomeMaybeExecuted, "Wrap the error in the step by what is known about it."},
	ReasonPanic:              {OutcomeUnknown, OutcomeMaybeExecuted, "Fix the code."},
	ReasonStepDeadline:       {OutcomeUnknown, OutcomeMaybeExecuted, "Give it more time, or find out what was slow."},
	ReasonClientTimeout:      {OutcomeUnknown, OutcomeMaybeExecuted, "Leave the timing to the step's timeout, or raise the client's."},
	ReasonCallCanceled:       {OutcomeUnknown, OutcomeMaybeExecuted, "Look for who cancels it."},
	ReasonConnectionLost:     {OutcomeUnknown, OutcomeMaybeExecuted, "Look at the far end."},
	ReasonResponseTruncated:  {OutcomeUnknown, OutcomeMaybeExecuted, "Look at the far end."},
	ReasonResponseUnreadable: {OutcomeUnknown, OutcomeMaybeExecuted, "Check the address, and what stands between: a login page or proxy."},
	ReasonStreamTruncated:    {OutcomeUnknown, OutcomeMaybeExecuted, "Use nothing of it, least of all a tool call."},
	ReasonStreamReset:        {OutcomeUnknown, OutcomeMaybeExecuted, "Look at the far end and the proxies before it."},
	ReasonServerCanceled:     {OutcomeUnknown, OutcomeMaybeExecuted, "Look for a proxy or gateway with a shorter timeout."},
	ReasonCommitUnknown:      {OutcomeUnknown, OutcomeMaybeExecuted, "Look whether the change is there."},
	ReasonDataLoss:           {OutcomeUnknown, OutcomeMaybeExecuted, "Look at the far end before anything is sent again."},
	ReasonWorkerLost:         {OutcomeUnknown, OutcomeMaybeExecuted, "Look for a crash or an out-of-memory kill."},
	ReasonAdminShutdown:      {OutcomeUnknown, OutcomeMaybeExecuted, "Wait until it is back."},
	ReasonCrashShutdown:      {OutcomeUnknown, OutcomeMaybeExecuted, "Look at its log."},

	ReasonGateRejected:    {AccessDenied, OutcomeNotSent, "Nothing to do; a manual retry asks again."},
	ReasonGateExpired:     {AccessDenied, OutcomeNotSent, "Decide sooner, or give it more time; a manual retry asks again."},
	ReasonGateRevoked:     {AccessDenied, OutcomeNotSent, "Nothing to do; a manual retry asks again."},
	ReasonGateInvalidated: {AccessDenied, OutcomeNotSent, "Ask for approval of what is to be done now."},
	ReasonGateUsed:        {AccessDenied, OutcomeNotSent, "Ask for one approval for each effect."},

	ReasonUnreachable:      {Transient, OutcomeNotSent, "Check that the far end is up."},
	ReasonProxyUnreachable: {Transient, OutcomeNotSent, "Check the proxy."},
	ReasonDNS:              {Transient, OutcomeNotSent, "Check the resolver."},
	ReasonUnavailable:      {Transient, OutcomeNotSent, "Wait until it is up."},
	ReasonNotSent:          {Transient, OutcomeNotSent, "See the message."},
	ReasonTLSHandshake:     {Transient, OutcomeNotSent, "Check the certificate of the server behind the proxy."},
	ReasonRefusedStream:    {Transient, OutcomeNotSent, "Nothing to do unless it is frequent."},
	ReasonGoAway:           {Transient, OutcomeNotSent, "Nothing to do unless it is frequent."},

	ReasonRejected:         {Transient, OutcomeRejected, "See the message."},
	ReasonSerialization:    {Transient, OutcomeRejected, "Nothing to do unless it is frequent."},
	ReasonDeadlock:         {Transient, OutcomeRejected, "Lock in the same order everywhere."},
	ReasonLocked:           {Transient, OutcomeRejected, "Look for a long transaction."},
	ReasonStaleSnapshot:    {Transient, OutcomeRejected, "Begin the transaction with BEGIN IMMEDIATE."},
	ReasonStatementTimeout: {Transient, OutcomeRejected, "Raise its limit, or speed the statement up."},
	ReasonReadOnly:         {Transient, OutcomeRejected, "Check which server is primary."},
	ReasonConflict:         {Transient, OutcomeRejected, "Nothing to do unless it is frequent."},
	ReasonLockTimeout:      {Transient, OutcomeRejected, "Send one at a time for one object."},
	ReasonCommitRolledBack: {Transient, OutcomeRejected, "Look for the statement that failed in the transaction."},
	ReasonOverloaded:       {Transient, OutcomeRejected, "Send less, or give the far end more."},
	ReasonTooEarly:         {Transient, OutcomeRejected, "Nothing to do unless it is frequent."},
	ReasonMisdirected:      {Transient, OutcomeRejected, "Check host names and certificates if it is frequent."},
	ReasonClockSkew:        {Transient, OutcomeRejected, "Set the clock."},
	ReasonMailboxBusy:      {Transient, OutcomeRejected, "Wait."},
	ReasonMailRefused:      {Transient, OutcomeRejected, "Wait, and look at what the mail server says."},
	ReasonAuthUnavailable:  {Transient, OutcomeRejected, "Wait; the password is not at fault."},

	ReasonServerError:     {Transient, OutcomeMaybeExecuted, "Look at the far end."},
	ReasonBadGateway:      {Transient, OutcomeMaybeExecuted, "Look at the server behind the proxy."},
	ReasonUpstreamTimeout: {Transient, OutcomeMaybeExecuted, "Ask for less at once, or stream the answer."},
	ReasonModelError:      {Transient, OutcomeMaybeExecuted, "Nothing to do unless it is frequent."},
	ReasonModelOutput:     {Transient, OutcomeMaybeExecuted, "Simplify the tools or the schema; it is sampled again at most twice."},
	ReasonKeyInUse:        {Transient, OutcomeMaybeExecuted, "Wait; the same key will be answered with its result."},

	ReasonThrottled:         {RateLimited, OutcomeRejected, "Send less, or raise the limit there."},
	ReasonRequests:          {RateLimited, OutcomeRejected, "Send fewer at once, or raise the limit there."},
	ReasonTokens:            {RateLimited, OutcomeRejected, "Send shorter prompts or fewer at once, or raise the limit there."},
	ReasonInputTokens:       {RateLimited, OutcomeRejected, "Shorten or cache prompts, or raise the limit there."},
	ReasonOutputTokens:      {RateLimited, OutcomeRejected, "Lower the output limit, or raise the rate limit there."},
	ReasonCapacity:          {RateLimited, OutcomeRejected, "Wait, or use another tier, region or model."},
	ReasonRampTooFast:       {RateLimited, OutcomeRejected, "Raise the rate gradually."},
	ReasonInFlightBudget:    {RateLimited, OutcomeRejected, "Run fewer at once, or add credit."},
	ReasonTooManyRecipients: {RateLimited, OutcomeRejected, "Use smaller batches."},

	ReasonAuthentication:     {AccessDenied, OutcomeRejected, "Check the credentials."},
	ReasonCredentialsExpired: {AccessDenied, OutcomeRejected, "Refresh it."},
	ReasonKeyRevoked:         {AccessDenied, OutcomeRejected, "Make a new key, and find out where the old one leaked."},
	ReasonAuthorization:      {AccessDenied, OutcomeRejected, "Check the rights of the account."},
	ReasonModelNotAllowed:    {AccessDenied, OutcomeRejected, "Ask for access to the model, or use another."},
	ReasonRegionUnsupported:  {AccessDenied, OutcomeRejected, "Call it from a supported region."},
	ReasonOrgDisabled:        {AccessDenied, OutcomeRejected, "Ask the provider."},
	ReasonServiceDisabled:    {AccessDenied, OutcomeRejected, "Enable it in the console."},
	ReasonNetworkRule:        {AccessDenied, OutcomeRejected, "Allow our address there."},
	ReasonEdgeBlocked:        {AccessDenied, OutcomeRejected, "Ask for the caller to be allowed there."},

	ReasonProxyAuthentication: {AccessDenied, OutcomeNotSent, "Check the proxy settings."},

	ReasonHostNotFound:   {InvalidRequest, OutcomeNotSent, "Check the address."},
	ReasonBadAddress:     {InvalidRequest, OutcomeNotSent, "Check the address."},
	ReasonTLSCertificate: {InvalidRequest, OutcomeNotSent, "Check name, expiry and roots."},
	ReasonWrongScheme:    {InvalidRequest, OutcomeNotSent, "Check http against https."},

	ReasonInvalidValue:        {InvalidRequest, OutcomeRejected, "See the message."},
	ReasonMalformed:           {InvalidRequest, OutcomeRejected, "See the message."},
	ReasonParameter:           {InvalidRequest, OutcomeRejected, "Leave it out, or use a model that has it."},
	ReasonParameterNotAllowed: {InvalidRequest, OutcomeRejected, "Leave it out, or change the plan."},
	ReasonUnsupportedSchema:   {InvalidRequest, OutcomeRejected, "Simplify the schema to what the provider documents."},
	ReasonContextLength:       {InvalidRequest, OutcomeRejected, "Shorten or compact it, or use a model with a longer context."},
	ReasonTooLarge:            {InvalidRequest, OutcomeRejected, "Make it smaller."},
	ReasonRequestTooLarge:     {InvalidRequest, OutcomeRejected, "Make it smaller, or raise the limit there."},
	ReasonNotFound:            {InvalidRequest, OutcomeRejected, "Check the id or path that was asked for."},
	ReasonModelNotFound:       {InvalidRequest, OutcomeRejected, "Check its name and region."},
	ReasonEndpointGone:        {InvalidRequest, OutcomeRejected, "Stop calling it."},
	ReasonRedirect:            {InvalidRequest, OutcomeRejected, "Use the new address."},
	ReasonAlreadyExists:       {InvalidRequest, OutcomeRejected, "On a retry take it as evidence that an earlier attempt worked."},
	ReasonUniqueViolation:     {InvalidRequest, OutcomeRejected, "On a retry look whether the row is our own."},
	ReasonConstraint:          {InvalidRequest, OutcomeRejected, "See the message."},
	ReasonPrecondition:        {InvalidRequest, OutcomeRejected, "Fix the state first."},
	ReasonUnsupported:         {InvalidRequest, OutcomeRejected, "Check the version of the far end, and the method."},
	ReasonSchema:              {InvalidRequest, OutcomeRejected, "Run the migration."},
	ReasonStorageCorrupt:      {InvalidRequest, OutcomeRejected, "Stop, and restore it."},
	ReasonNoSuchMailbox:       {InvalidRequest, OutcomeRejected, "Check the recipient."},
	ReasonIdempotencyMismatch: {InvalidRequest, OutcomeRejected, "Make the step deterministic, or its name say what differs."},
	ReasonDeclined:            {InvalidRequest, OutcomeRejected, "Ask for another way to pay."},

	ReasonDuplicateStep:    {InvalidRequest, OutcomeRejected, "Use Item for loops."},
	ReasonNestedStep:       {InvalidRequest, OutcomeRejected, "Call it from the body."},
	ReasonForeignGoroutine: {InvalidRequest, OutcomeRejected, "Use Group."},
	ReasonKeyConflict:      {InvalidRequest, OutcomeRejected, "Make the name say what differs."},

	ReasonOutputTruncated:   {InvalidRequest, OutcomeMaybeExecuted, "Raise the limit, or ask for less."},
	ReasonProtocolViolation: {InvalidRequest, OutcomeMaybeExecuted, "Check driver and pooler."},
	ReasonNotStorable:       {InvalidRequest, OutcomeMaybeExecuted, "Change its type or value."},
	ReasonDecode:            {InvalidRequest, OutcomeMaybeExecuted, "Bring the old type back."},
	ReasonGaveUp:            {InvalidRequest, OutcomeMaybeExecuted, "Nothing to do."},

	ReasonCredit:       {QuotaExhausted, OutcomeRejected, "Add credit."},
	ReasonSpendLimit:   {QuotaExhausted, OutcomeRejected, "Raise the limit, or wait for its reset."},
	ReasonUsageLimit:   {QuotaExhausted, OutcomeRejected, "Raise the limit, or wait for its reset."},
	ReasonDailyQuota:   {QuotaExhausted, OutcomeRejected, "Wait for the next day, or raise the quota."},
	ReasonServiceQuota: {QuotaExhausted, OutcomeRejected, "Ask for a higher quota."},
	ReasonStorageFull:  {QuotaExhausted, OutcomeRejected, "Make room."},

	ReasonInputBlocked:   {ContentPolicy, OutcomeRejected, "Change the input."},
	ReasonRefusal:        {ContentPolicy, OutcomeRejected, "Change the content."},
	ReasonMessageBlocked: {ContentPolicy, OutcomeRejected, "Change the message or the sender."},

	ReasonOutputBlocked: {ContentPolicy, OutcomeMaybeExecuted, "Change the request."},
	ReasonGuardrail:     {ContentPolicy, OutcomeMaybeExecuted, "Change the request, or the guardrail."},
}

// Advice says in one line what a person can do about a fault of this reason; "" for a reason of the step's own.
func (r Reason) Advice() string { return meanings[r].advice }

// natural returns the class and outcome that r stands for on its own, and whether r is one of the constants.
func (r Reason) natural() (Class, Outcome, bool) {
	m, known := meanings[r]
	if !known {
		return OutcomeUnknown, OutcomeMaybeExecuted, false
	}
	return m.class, m.outcome, true
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
