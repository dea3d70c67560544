package sdktest

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/cuthttp"
)

// row is a case of package fault.
type row struct {
	ID       string
	Provider string
	Kind     string
	Status   int
	Headers  map[string]string
	Body     string
	Class    string
	Reason   string
	Outcome  string
	DelayMS  int64 `json:"delay_ms"`
}

// answers reports whether the model has answered, by refusing or by running out of room. An SDK returns that as a success,
// which is the step's to judge.
func (r *row) answers() bool {
	if r.Status != http.StatusOK || strings.Contains(r.Body, `"error":{`) {
		return false
	}
	return r.Class == "content_policy" || r.Reason == "output_truncated" || r.Reason == "context_length_exceeded" || r.Reason == "model_output_invalid"
}

func (r *row) reply() cuthttp.Reply {
	reply := cuthttp.Reply{Status: r.Status, Body: r.Body, Header: map[string]string{"Content-Type": "application/json"}}
	if strings.HasPrefix(r.Body, "<") {
		reply.Header["Content-Type"] = "text/html"
	}
	for name, value := range r.Headers {
		reply.Header[http.CanonicalHeaderKey(name)] = value
	}
	return reply
}

func rows(t *testing.T) []row {
	t.Helper()
	file, err := os.Open("../../fault/testdata/cases.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var all []row
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var r row
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if sdkFor(r.Provider) != nil && (r.Kind == "http" || r.Kind == "stream") {
			all = append(all, r)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestCasesThroughSDKs: whatever an SDK makes of an answer, the step's fault is what the answer means.
func TestCasesThroughSDKs(t *testing.T) {
	t.Parallel()
	all := rows(t)
	if len(all) < 100 {
		t.Errorf("got %d cases that an SDK can be used for, want at least 100", len(all))
	}
	for _, protocol := range []cuthttp.Protocol{cuthttp.HTTP1, cuthttp.HTTP2} {
		for _, r := range all {
			if r.Headers["Content-Type"] == "application/vnd.amazon.eventstream" {
				continue
			}
			t.Run(protocol.String()+"/"+r.ID, func(t *testing.T) {
				t.Parallel()
				s := cuthttp.Start(t, protocol, cuthttp.Always(r.reply()))
				sdk := sdkFor(r.Provider)
				call := sdk.ask
				if r.Kind == "stream" {
					call = sdk.stream
				}
				a := &fault.Attempt{Kind: fault.KindOnce, Provider: r.Provider}
				f := run(t, t.Context(), a, s, 0, call)
				switch {
				case f == nil && r.answers():
				case f == nil:
					t.Errorf("rule broken: a success of the SDK that is none is found out\n got no fault\nwant %s (%s), %s", r.Class, r.Reason, r.Outcome)
				case f.Class.String() != r.Class || f.Outcome.String() != r.Outcome:
					t.Errorf("rule broken: the fault is what the answer means, not what %s made of it\n got %v, %v\nwant %s (%s), %s", sdk.name, f, f.Outcome, r.Class, r.Reason, r.Outcome)
				case r.DelayMS > 0 && f.Delay.Truncate(time.Millisecond) != time.Duration(r.DelayMS)*time.Millisecond:
					t.Errorf("rule broken: the delay that was told survives the SDK\n got %v\nwant %d ms", f.Delay, r.DelayMS)
				}
				if e := a.Evidence(); e.Requests != 1 || e.Replays != 0 || len(s.Requests()) != 1 {
					t.Errorf("rule broken: one call is one request\n got %v", e)
				}
			})
		}
	}
}
