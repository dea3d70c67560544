package sdktest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/cuthttp"
)

const (
	notSent  = fault.OutcomeNotSent
	rejected = fault.OutcomeRejected
	maybe    = fault.OutcomeMaybeExecuted
)

// beginnings are what a stream of each SDK's provider begins with.
var beginnings = map[string]string{
	"openai":    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n",
	"anthropic": "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n",
	"gemini":    "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"a\"}]}}]}\n\n",
}

func TestCutsThroughSDKs(t *testing.T) {
	t.Parallel()
	sse := map[string]string{"Content-Type": "text/event-stream"}
	both := []cuthttp.Protocol{cuthttp.HTTP1, cuthttp.HTTP2}
	http2 := both[1:]
	for _, sdk := range sdks {
		for _, c := range []struct {
			rule    string
			on      []cuthttp.Protocol
			reply   cuthttp.Reply
			stream  bool
			class   fault.Class
			outcome fault.Outcome
		}{
			{"after the headers", http2, cuthttp.Reply{Cut: cuthttp.AfterHeaders}, false, fault.OutcomeUnknown, maybe},
			{"in the body", both, cuthttp.Reply{Cut: cuthttp.MidBody}, false, fault.OutcomeUnknown, maybe},
			{"before the answer", both, cuthttp.Reply{Cut: cuthttp.BeforeReply}, false, fault.OutcomeUnknown, maybe},
			{"in the answer", both, cuthttp.Reply{Cut: cuthttp.MidReply, Header: map[string]string{"Content-Type": "application/json"}, Body: `{"id":"x",`}, false, fault.OutcomeUnknown, maybe},
			{"in a stream", both, cuthttp.Reply{Cut: cuthttp.MidReply, Header: sse, Body: beginnings[sdk.provider]}, true, fault.OutcomeUnknown, maybe},
			{"a stream that just ends", both, cuthttp.Reply{Header: sse, Body: beginnings[sdk.provider]}, true, fault.OutcomeUnknown, maybe},
			{"a refused stream", http2, cuthttp.Reply{Cut: cuthttp.Refuse}, false, fault.Transient, notSent},
			{"GOAWAY that leaves it out", http2, cuthttp.Reply{Cut: cuthttp.GoAwayBefore}, false, fault.Transient, notSent},
			{"GOAWAY that does not", http2, cuthttp.Reply{Cut: cuthttp.GoAwayWithin}, false, fault.OutcomeUnknown, maybe},
			{"a protocol error", http2, cuthttp.Reply{Cut: cuthttp.Violation}, false, fault.OutcomeUnknown, maybe},
		} {
			for _, protocol := range c.on {
				t.Run(fmt.Sprintf("%s/%v/%s", sdk.name, protocol, c.rule), func(t *testing.T) {
					t.Parallel()
					s := cuthttp.Start(t, protocol, cuthttp.Always(c.reply))
					call := sdk.ask
					if c.stream {
						call = sdk.stream
					}
					a := &fault.Attempt{Kind: fault.KindOnce, Provider: sdk.provider}
					f := run(t, t.Context(), a, s, 0, call)
					if f == nil || f.Class != c.class || f.Outcome != c.outcome {
						t.Errorf("rule broken: cut %s\n got %v\nwant %v, %v\n%v", c.rule, f, c.class, c.outcome, a.Evidence())
					}
					if e := a.Evidence(); e.Requests != 1 || e.Replays != 0 || len(s.Requests()) != 1 {
						t.Errorf("rule broken: a Once is sent once\n got %v; %d at the server", e, len(s.Requests()))
					}
				})
			}
		}
	}
}

// TestRetriesOfSDKs: what an SDK sends again by itself is counted, cannot double an effect, and hides no outcome.
func TestRetriesOfSDKs(t *testing.T) {
	t.Parallel()
	at := map[string]string{"Retry-After-Ms": "1", "Content-Type": "application/json"}
	broken := cuthttp.Reply{Status: 500, Header: at, Body: `{"error":{"type":"api_error","message":"x"}}`}
	limited := cuthttp.Reply{Status: 429, Header: at, Body: `{"error":{"type":"rate_limit_error","message":"x"}}`}
	bad := cuthttp.Reply{Status: 400, Header: at, Body: `{"error":{"type":"invalid_request_error","message":"x"}}`}
	for _, sdk := range sdks[:2] {
		for _, c := range []struct {
			rule     string
			kind     fault.Kind
			script   []cuthttp.Reply
			class    fault.Class
			outcome  fault.Outcome
			requests int
			refused  int
		}{
			{"all are counted", fault.KindRepeatable, []cuthttp.Reply{broken}, fault.Transient, maybe, 3, 0},
			{"the worst outcome counts", fault.KindKeyed, []cuthttp.Reply{broken, limited, bad}, fault.InvalidRequest, maybe, 3, 0},
			{"three refusals are a refusal", fault.KindKeyed, []cuthttp.Reply{limited, limited, bad}, fault.InvalidRequest, rejected, 3, 0},
			{"a Once that may have happened is not sent again", fault.KindOnce, []cuthttp.Reply{broken}, fault.Transient, maybe, 1, -1},
			{"nor one whose answer was lost", fault.KindOnce, []cuthttp.Reply{{Cut: cuthttp.BeforeReply}}, fault.OutcomeUnknown, maybe, 1, -1},
			{"a Once that was refused is", fault.KindOnce, []cuthttp.Reply{limited, limited, bad}, fault.InvalidRequest, rejected, 3, 0},
		} {
			t.Run(sdk.name+"/"+c.rule, func(t *testing.T) {
				t.Parallel()
				s := cuthttp.Start(t, cuthttp.HTTP1, cuthttp.Script(c.script...))
				a := &fault.Attempt{Kind: c.kind, Key: "k1", Provider: sdk.provider}
				f := run(t, t.Context(), a, s, sdk.retries, sdk.ask)
				if f == nil || f.Class != c.class || f.Outcome != c.outcome {
					t.Errorf("rule broken: %s\n got %v\nwant %v, %v", c.rule, f, c.class, c.outcome)
				}
				e := a.Evidence()
				if e.Requests != c.requests || len(s.Requests()) != c.requests || c.refused >= 0 && e.Refused != c.refused || c.refused < 0 && e.Refused == 0 {
					t.Errorf("rule broken: %s\n got %v; %d at the server\nwant %d requests", c.rule, e, len(s.Requests()), c.requests)
				}
			})
		}
	}
}

// TestSDKThatSleepsThroughAToldDelay: openai-go waits out a told delay inside of the caller's deadline.
func TestSDKThatSleepsThroughAToldDelay(t *testing.T) {
	t.Parallel()
	limited := cuthttp.Reply{Status: 429, Header: map[string]string{"Retry-After": "60", "Content-Type": "application/json"},
		Body: `{"error":{"type":"requests","code":"rate_limit_exceeded","message":"slow down"}}`}
	s := cuthttp.Start(t, cuthttp.HTTP1, cuthttp.Always(limited))
	a := &fault.Attempt{Kind: fault.KindRepeatable, Provider: "openai"}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	f := run(t, ctx, a, s, 2, askOpenAI)
	if f == nil || f.Class != fault.RateLimited || f.Outcome != rejected || f.Delay != time.Minute {
		t.Errorf("rule broken: a told delay is not lost in an SDK's sleep\n got %v, delay %v", f, f.Delay)
	}
}
