package fault_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/pawlrun/pawl/fault"
)

// Any error can be asked what it means.
func ExampleFrom() {
	err := fmt.Errorf("fetch: %w", &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")})
	f := fault.From(err)
	fmt.Println(f.Class, f.Outcome, f.Reason)
	fmt.Println(f)

	f = fault.From(errors.New("no idea"))
	fmt.Println(f.Class, f.Outcome, f.Reason)
	// Output:
	// transient not_sent unreachable
	// transient (unreachable): fetch: dial tcp: connection refused
	// outcome_unknown maybe_executed unrecognized
}

func ExampleClassOf() {
	err := fmt.Errorf("tool: %w", fault.Invalid(errors.New("not a date: 31 February")))
	fmt.Println(fault.ClassOf(err) == fault.InvalidRequest)
	fmt.Println(fault.ClassOf(nil) == 0)
	// Output:
	// true
	// true
}

// A reason is the sentinel that survives a restart.
func ExampleReason() {
	err := fault.Invalid(fault.Reason("no_such_tool"))

	journal, _ := json.Marshal(fault.From(err))
	var restored fault.Fault
	_ = json.Unmarshal(journal, &restored)

	fmt.Println(string(journal))
	fmt.Println(errors.Is(&restored, fault.Reason("no_such_tool")))
	// Output:
	// {"class":"invalid_request","reason":"no_such_tool","outcome":"rejected","message":"no_such_tool"}
	// true
}

func ExampleRetryAfter() {
	f := fault.From(fault.RetryAfter(errors.New("busy until four"), 90*time.Second))
	fmt.Println(f.Class, f.Outcome, f.Delay)
	// Output: rate_limited rejected 1m30s
}

// A step that knows the far end says what an error of its own library means.
func ExampleFault() {
	err := error(&fault.Fault{
		Class: fault.ContentPolicy, Reason: "input_blocked", Outcome: fault.OutcomeRejected,
		Provider: "acme", RequestID: "req_7", Err: errors.New("moderation"),
	})
	f := fault.From(fmt.Errorf("ask: %w", err))
	fmt.Println(f.Class, f.Reason, f.Provider, f.RequestID)
	// Output: content_policy input_blocked acme req_7
}

// Two responses with one status: the one passes by itself, the other needs money.
func ExampleFromHTTP() {
	header := http.Header{"Retry-After": {"20"}}
	for _, body := range []string{
		`{"error":{"type":"tokens","code":"rate_limit_exceeded","message":"Rate limit reached"}}`,
		`{"error":{"type":"insufficient_quota","code":"insufficient_quota","message":"You exceeded your current quota"}}`,
	} {
		f := fault.FromHTTP("openai", 429, header, []byte(body))
		fmt.Println(f.Class, f.Reason, f.Outcome, f.Delay, "-", f.Reason.Advice())
	}
	// Output:
	// rate_limited tokens rejected 20s - Send shorter prompts or fewer at once, or raise the limit there.
	// quota_exhausted credit rejected 0s - Add credit.
}

// A stream that broke off is no answer, and one that reports an error is none either, although its status was 200.
func ExampleFromStream() {
	for _, body := range []string{
		"event: message_start\ndata: {\"type\":\"message_start\"}\n\n",
		"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n",
		"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
	} {
		fmt.Println(fault.FromStream("anthropic", nil, []byte(body)))
	}
	// Output:
	// outcome_unknown (stream_truncated): the stream ended before it had said that it was complete
	// transient (overloaded): Overloaded
	// no fault
}

// The same lost connection, seen by steps of two kinds.
func ExampleDecide() {
	f := fault.From(fault.ReasonConnectionLost)
	for _, kind := range []fault.Kind{fault.KindRepeatable, fault.KindOnce} {
		d := fault.Decide(f, kind, fault.Budget{Attempt: 1, UnknownAttempts: 1, Jitter: 0.5})
		fmt.Println(kind, d.Action, d.Wait, "-", d.Why)
	}
	// Output:
	// repeatable retry 250ms - backs off
	// once uncertain 0s - the effect may have happened and must not happen twice
}
