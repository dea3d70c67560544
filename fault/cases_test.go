package fault_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/pawlrun/pawl/fault"
)

// A faultCase is one row of testdata/cases.jsonl: what a far end did, and what is to be made of it.
type faultCase struct {
	ID        string
	Provider  string
	Kind      string // http, stream, go, sql, smtp, grpc
	Status    int
	Headers   map[string]string
	Body      string
	GoError   string `json:"go_error"`
	Class     string
	Reason    string
	Retryable bool
	Outcome   string
	DelayMS   int64 `json:"delay_ms"`
	Veto      bool  `json:"provider_veto"`
	Effect    string
	Why       string
}

// renamed are reasons that have another name in this package than in the cases.
var renamed = map[string]fault.Reason{"unclassified": fault.ReasonUnrecognized, "executor_panic": fault.ReasonPanic}

func TestCases(t *testing.T) {
	cases := loadCases(t)
	passed := 0
	for _, c := range cases {
		if c.check(t) {
			passed++
		}
	}
	t.Logf("%d of %d cases pass", passed, len(cases))
}

func loadCases(t testing.TB) []faultCase {
	t.Helper()
	file, err := os.Open("testdata/cases.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var cases []faultCase
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var c faultCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	return cases
}

func (c faultCase) header() http.Header {
	h := http.Header{}
	for name, value := range c.Headers {
		h.Set(name, value)
	}
	return h
}

func (c faultCase) fault(t *testing.T) *fault.Fault {
	t.Helper()
	switch c.Kind {
	case "http":
		return fault.FromHTTP(c.Provider, c.Status, c.header(), []byte(c.Body))
	case "stream":
		return fault.FromStream(c.Provider, c.header(), []byte(c.Body))
	}
	construct, ok := made[c.ID]
	if !ok {
		t.Errorf("%s: no constructor for %q", c.ID, c.GoError)
		return nil
	}
	return construct(t)
}

// check compares everything that a row says, and states what it is about.
func (c faultCase) check(t *testing.T) (passed bool) {
	t.Helper()
	f := c.fault(t)
	if f == nil {
		t.Errorf("%s: rule broken: %s\n got no fault\nwant %s (%s), %s", c.ID, c.Why, c.Class, c.Reason, c.Outcome)
		return false
	}
	reason := fault.Reason(c.Reason)
	if r, ok := renamed[c.Reason]; ok {
		reason = r
	}
	d := c.decide(f)
	got := fmt.Sprintf("%v (%s), %v, delay %d ms, veto %v, again %v", f.Class, f.Reason, f.Outcome, f.Delay.Milliseconds(), f.Final, c.again(d))
	want := fmt.Sprintf("%s (%s), %s, delay %d ms, veto %v, again %v", c.Class, reason, c.Outcome, c.DelayMS, c.Veto, c.Retryable)
	if got != want {
		t.Errorf("%s: rule broken: %s\n got %s (decided: %s)\nwant %s", c.ID, c.Why, got, d.Why, want)
		return false
	}
	return true
}

// decide asks what follows for the first attempt of a step whose effect is the row's.
func (c faultCase) decide(f *fault.Fault) fault.Decision {
	b := fault.Budget{Attempt: 1, UnknownAttempts: 1, Jitter: 0.5, Left: 48 * time.Hour}
	kind := map[string]fault.Kind{
		"inference": fault.KindRepeatable, "read": fault.KindRepeatable, "keyed_write": fault.KindKeyed, "write": fault.KindOnce,
	}[c.Effect]
	b.Paid = c.Effect == "inference"
	return fault.Decide(f, kind, b)
}

// again reports whether a decision is to send it again. Waiting for a quota's reset is no retry, and what our own side
// ended is not decided by the fault.
func (c faultCase) again(d fault.Decision) bool {
	return (d.Action == fault.ActionRetry || d.Action == fault.ActionPark) && d.Fault.Class != fault.QuotaExhausted
}
