package fault_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pawlrun/pawl/fault"
)

func TestFaultJSONRoundTrip(t *testing.T) {
	rows := []struct {
		name string
		f    fault.Fault
		json string
	}{
		{"full", fault.Fault{
			Class: fault.RateLimited, Reason: "tokens", Outcome: fault.OutcomeRejected, Delay: 90 * time.Second,
			Provider: "openai", RequestID: "req_1", Status: 429, Message: "slow down",
		}, `{"class":"rate_limited","reason":"tokens","outcome":"rejected","delay_us":90000000,` +
			`"provider":"openai","request_id":"req_1","status":429,"message":"slow down"}`},
		{"final", fault.Fault{Class: fault.Transient, RequestID: "req_1", Final: true, Status: 500},
			`{"class":"transient","request_id":"req_1","final":true,"status":500}`},
		{"empty", fault.Fault{}, `{}`},
		{"only a class", fault.Fault{Class: fault.Canceled}, `{"class":"canceled"}`},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			row.f.Err = errors.New("live")
			got, err := json.Marshal(row.f)
			if err != nil || string(got) != row.json {
				t.Fatalf("the stored form is a contract: got %s, %v; want %s", got, err, row.json)
			}
			if viaPointer, _ := json.Marshal(&row.f); string(viaPointer) != row.json {
				t.Errorf("value and pointer are stored alike: got %s", viaPointer)
			}
			var back fault.Fault
			if err := json.Unmarshal(got, &back); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(back, row.f, cmpopts.IgnoreFields(fault.Fault{}, "Err")); d != "" || back.Err != nil {
				t.Errorf("everything but Err comes back (-got +want): %s", d)
			}
			if row.f.Reason != "" && !errors.Is(fmt.Errorf("step: %w", &back), row.f.Reason) {
				t.Error("errors.Is against the Reason holds after a restart")
			}
		})
	}
}

func TestFaultJSONIsForgivingAndStrict(t *testing.T) {
	var f fault.Fault
	if err := json.Unmarshal([]byte(`{"class":"transient","shape":{"of":["things"]},"to":"come"}`), &f); err != nil || f.Class != fault.Transient {
		t.Errorf("unknown fields are ignored: got %v, %v", f.Class, err)
	}
	f = fault.Fault{Message: "old", Err: errors.New("old")}
	if err := json.Unmarshal([]byte(`{"class":"transient"}`), &f); err != nil || f.Message != "" || f.Err != nil {
		t.Errorf("decoding replaces the whole fault: got %+v, %v", f, err)
	}
	for _, bad := range []string{`{"class":"weather"}`, `{"outcome":"perhaps"}`, `{"delay_us":"1s"}`, `[]`} {
		if err := json.Unmarshal([]byte(bad), &f); err == nil {
			t.Errorf("what cannot be understood is an error: %s", bad)
		}
	}
}

func TestFaultIsAlwaysStorable(t *testing.T) {
	f := fault.Fault{
		Class: 77, Outcome: 77, Reason: "a\x00\xff" + fault.Reason(strings.Repeat("r", 1000)), Delay: -time.Hour,
		Provider: "\x00", RequestID: strings.Repeat("ü", 1000), Message: "\xff\x00" + strings.Repeat("é", 5000),
	}
	data, err := json.Marshal(f)
	if err != nil {
		t.Fatalf("a failure report never fails to be stored: %v", err)
	}
	var back fault.Fault
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatalf("what was stored can be read: %v", err)
	}
	if back.Class != fault.OutcomeUnknown || back.Outcome != fault.OutcomeMaybeExecuted || back.Delay != 0 || back.Provider != "" {
		t.Errorf("what is outside the constants becomes the careful value: got %+v", back)
	}
	if len(back.Message) > 4096 || len(back.Reason) > 200 || len(back.RequestID) > 200 {
		t.Errorf("texts are cut: got %d, %d, %d bytes", len(back.Message), len(back.Reason), len(back.RequestID))
	}
}

func TestFaultDelayIsStoredInMicroseconds(t *testing.T) {
	for _, row := range []struct{ d, want time.Duration }{
		{time.Microsecond, time.Microsecond},
		{1, time.Microsecond}, // rounded up: never earlier than told
		{time.Second + 1, time.Second + time.Microsecond},
		{math.MaxInt64 - 807, math.MaxInt64 - 807},
		{math.MaxInt64, math.MaxInt64 - 807},
	} {
		data, _ := json.Marshal(fault.Fault{Delay: row.d})
		var f fault.Fault
		if err := json.Unmarshal(data, &f); err != nil || f.Delay != row.want {
			t.Errorf("delay %d: got %d, %v; want %d", row.d, f.Delay, err, row.want)
		}
	}
	for _, text := range []string{`{"delay_us":9223372036854775807}`, `{"delay_us":-9223372036854775808}`, `{"delay_us":-1}`} {
		var f fault.Fault
		if err := json.Unmarshal([]byte(text), &f); err != nil || f.Delay < 0 {
			t.Errorf("a delay never overflows into the past: %s: got %v, %v", text, f.Delay, err)
		}
	}
}

func TestFaultMessageIsCleaned(t *testing.T) {
	rows := []struct{ rule, text, want string }{
		{"plain text stays", "no such tool", "no such tool"},
		{"NUL is removed", "a\x00b", "ab"},
		{"invalid UTF-8 is replaced", "a\xffb", "a\uFFFDb"},
		{"4 KiB fit", strings.Repeat("x", 4096), strings.Repeat("x", 4096)},
		{"more is cut", strings.Repeat("x", 4097), strings.Repeat("x", 4096)},
		{"the cut is at a rune boundary", "x" + strings.Repeat("é", 4096), "x" + strings.Repeat("é", 2047)},
		{"NULs are removed before the cut", strings.Repeat("\x00", 4096) + "x", "x"},
		{"replacements count", strings.Repeat("a\xff", 4096), strings.Repeat("a\uFFFD", 1024)},
		{"huge texts are cut", strings.Repeat("x", 1<<24), strings.Repeat("x", 4096)},
	}
	for _, row := range rows {
		got := fault.From(errors.New(row.text)).Message
		if got != row.want || !utf8.ValidString(got) {
			t.Errorf("%s: got %.60q (%d bytes), want %.60q (%d bytes)", row.rule, got, len(got), row.want, len(row.want))
		}
		if set := fault.From(&fault.Fault{Message: row.text}).Message; set != row.want {
			t.Errorf("%s, set by the step: got %.60q (%d bytes)", row.rule, set, len(set))
		}
	}
}

func TestFaultError(t *testing.T) {
	var none *fault.Fault
	inner := &fault.Fault{Class: fault.Transient, Reason: "unreachable", Message: "dial tcp: refused"}
	rows := []struct {
		rule string
		err  error
		want string
	}{
		{"class, reason, message", inner, "transient (unreachable): dial tcp: refused"},
		{"a reason alone is not said twice", fault.Invalid(fault.Reason("no_such_tool")), "invalid_request (no_such_tool)"},
		{"a wrapped fault is not said twice", fault.From(fmt.Errorf("step: %w", inner)), "step: transient (unreachable): dial tcp: refused"},
		{"without a message", &fault.Fault{Class: fault.Canceled}, "canceled"},
		{"nil", none, "no fault"},
	}
	for _, row := range rows {
		if got := row.err.Error(); got != row.want {
			t.Errorf("%s: got %q, want %q", row.rule, got, row.want)
		}
	}
	if none.Unwrap() != nil || none.Is(fault.Reason("")) {
		t.Error("a nil fault wraps nothing and is nothing")
	}
}

func FuzzFaultJSON(f *testing.F) {
	f.Add(uint8(1), "tokens", uint8(2), int64(5), "openai", "req", 429, "slow\x00 down\xff")
	f.Add(uint8(99), "", uint8(99), int64(math.MinInt64), "", "", -1, "")
	f.Add(uint8(3), "\xed\xa0\x80", uint8(0), int64(math.MaxInt64), "\u2028", "<&>", 0, strings.Repeat("é", 3000))
	f.Fuzz(func(t *testing.T, c uint8, r string, o uint8, d int64, p, id string, status int, msg string) {
		in := fault.Fault{
			Class: fault.Class(c), Reason: fault.Reason(r), Outcome: fault.Outcome(o), Delay: time.Duration(d),
			Provider: p, RequestID: id, Status: status, Message: msg,
		}
		first, err := json.Marshal(in)
		if err != nil {
			t.Fatalf("a failure report never fails to be stored: %v", err)
		}
		var once, twice fault.Fault
		if err := json.Unmarshal(first, &once); err != nil {
			t.Fatalf("what was stored can be read: %s: %v", first, err)
		}
		second, _ := json.Marshal(once)
		if err := json.Unmarshal(second, &twice); err != nil || once != twice || string(first) != string(second) {
			t.Fatalf("a stored fault stays the same: %s, then %s", first, second)
		}
		if !errors.Is(&once, once.Reason) {
			t.Fatalf("errors.Is against the Reason %q does not hold", once.Reason)
		}
		if strings.Contains(once.Message, "\x00") || !utf8.ValidString(once.Message) || len(once.Message) > 4096 {
			t.Fatalf("the message is not clean: %q", once.Message)
		}
	})
}
