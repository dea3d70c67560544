// Package fault says what an error means for a durable queue. It can be used without the engine.
//
// # Three questions
//
// A failed attempt raises three questions, and a [Fault] answers each in a field of its own:
//
//   - What is to be done about it? Its [Class].
//   - May the effect have happened all the same? Its [Outcome].
//   - Why did it fail? Its [Reason], for people and for a body's own branches.
//
// How long to wait, if the far end told, is in Delay, and in Final that it wants no further attempt. [From] answers
// all of them for any error, [FromHTTP] for a response and [FromStream] for a stream of events; [Decide] draws the
// conclusion for a step of a given [Kind]. What a person can do about it, [Reason.Advice] says.
//
// # Classes
//
//	class            what it is                                          what is done
//	rate_limited     refused now, by a window that refills               waits as told, else backs off
//	transient        expected to pass with the same request              backs off, up to Policy.Attempts
//	outcome_unknown  no trustworthy answer, or nobody knows the error    few attempts, or a person is asked
//	access_denied    identity, permission or account state               fails at once
//	invalid_request  cannot be accepted as built, now or later           fails at once
//	quota_exhausted  money, a long budget or storage is used up          waits for a told reset, else fails
//	content_policy   refused by a safety or policy layer                 fails at once
//	canceled         our own side ended it                               runs again, nothing counted
//
// # Outcomes
//
//	outcome         proof                                           what it allows
//	not_sent        a dial, DNS or TLS error; nothing was written   any kind of step may try again
//	rejected        the far end answered that it did not do it      any kind of step may try again
//	maybe_executed  none; the default                               Once becomes uncertain, whatever the class
//
// An error nobody recognises is outcome_unknown and maybe_executed. It is never taken for transient, and a
// rejection is never guessed.
//
// # What a step returns
//
// Most errors can be returned as they are: those of net, net/http, crypto/tls, database/sql, PostgreSQL, SQLite,
// gRPC, mail servers, and of the SDKs of model providers, AWS and Stripe are known. A step that knows more says so
// with a wrapper. Each keeps the error it wraps for errors.Is and errors.As:
//
//	fault.NotSent(err)        nothing left for the far end
//	fault.Rejected(err)       it answered, and did not do it
//	fault.MaybeExecuted(err)  it may have happened, whatever err seems to prove
//	fault.RetryAfter(err, d)  refused for now; call again after d
//	fault.Invalid(err)        can never be accepted
//	fault.Denied(err)         identity or permission
//
// Or it returns a [Reason], alone or inside a wrapper, or a [Fault] literal. A stored fault has lost the live
// error, so sentinels of other packages no longer match it; its Reason does:
//
//	errors.Is(err, fault.Reason("no_such_tool")) // before and after a restart
//
// # HTTP
//
// [NewTransport] is for the http.Client that an SDK is given. It is made once, outside of any step, and finds the
// step's [Attempt] in each request's context; the engine puts it there. It knows how far a request came, so that a
// broken connection proves something, or that it does not. It adds the operation key of a Keyed step, refuses what
// would be a second effect, and notes request ids, usage and limits. Turn the SDK's own retries off: the engine
// knows when to try again, and an SDK does not.
//
//	client := openai.NewClient(option.WithHTTPClient(&http.Client{Transport: fault.NewTransport(nil)}), option.WithMaxRetries(0))
package fault
