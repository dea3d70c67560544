package fault_test

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pawlrun/pawl/fault"
)

func zipped(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestHostileBodiesHideNothing(t *testing.T) {
	quota := want{fault.QuotaExhausted, fault.ReasonCredit, rejected}
	rate := want{fault.RateLimited, fault.ReasonRequests, rejected}
	const code = `{"error":{"code":"insufficient_quota","message":"x"`
	gz := http.Header{"Content-Encoding": {"gzip"}}
	rows := []struct {
		rule   string
		header http.Header
		body   []byte
		want   want
	}{
		{"100 MB, its code at the beginning", nil, append([]byte(code+`,"pad":"`), bytes.Repeat([]byte("x"), 100<<20)...), quota},
		{"100 MB of brackets", nil, bytes.Repeat([]byte("["), 100<<20), rate},
		{"deep nesting before the code", nil, []byte(`{"a":` + strings.Repeat(`[`, 9000) + strings.Repeat(`]`, 9000) + `,` + code[1:] + "}}"), quota},
		{"cut behind the code", nil, []byte(code), quota},
		{"invalid UTF-8 in the message", nil, []byte(`{"error":{"message":"` + "\xff\xfe" + `","code":"insufficient_quota"}}`), quota},
		{"an escape in a key and in a code", nil, []byte(`{"\u0065rror":{"code":"insufficient\u005fquota"}}`), quota},
		{"gzip that net/http left alone", gz, zipped(t, code+"}}"), quota},
		{"gzip that is cut shows its beginning", gz, zipped(t, code+"}}"+strings.Repeat(" ", 1000))[:60], quota},
		{"gzip that lies", gz, []byte("not gzip"), rate},
		{"gzip that lies about its header", gz, []byte("\x1f\x8b\x08 and then nothing"), rate},
		{"gzip of 100 MB", gz, zipped(t, code+`,"pad":"`+strings.Repeat("x", 100<<20)), quota},
		{"a page", http.Header{"Content-Type": {"text/html"}}, []byte("<html>insufficient_quota</html>"), rate},
		{"NUL", nil, []byte("\x00\x00"), rate},
		{"an array of one", nil, []byte("[" + code + "}}]"), quota},
		{"a byte order mark", nil, []byte("\xef\xbb\xbf" + code + "}}"), quota},
		{"error is a number", nil, []byte(`{"error":429}`), rate},
		{"error is a list", nil, []byte(`{"error":["x"]}`), rate},
		{"code is an object", nil, []byte(`{"error":{"code":{"a":1}}}`), rate},
		{"the same key twice", nil, []byte(`{"error":{"code":"insufficient_quota","code":"x"}}`), quota},
	}
	for _, row := range rows {
		start := time.Now()
		f := fault.FromHTTP("openai", 429, row.header, row.body)
		check(t, row.rule, f, row.want)
		if f.Status != 429 || len(f.Message) > 4<<10 {
			t.Errorf("%s: got status %d and a message of %d bytes", row.rule, f.Status, len(f.Message))
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("%s: took %v", row.rule, took)
		}
	}
}

func TestA200ThatIsTooLongToReadIsNoFault(t *testing.T) {
	body := `{"id":"x","choices":[{"message":{"content":"` + strings.Repeat("x", 1<<20)
	if f := fault.FromHTTP("openai", 200, nil, []byte(body)); f != nil {
		t.Errorf("what was not looked at proves nothing: got %v", f)
	}
}

func TestCredentialsAreNotKept(t *testing.T) {
	for _, secret := range []string{
		"sk-proj-abcdEFGH1234abcdEFGH1234", "sk-ant-api03-x_y-z0123456789", "sk_live_51H8abcdefgh", "AIzaSyA1234567890abcdefghij", "gsk_abc123def456",
		"xai-abcdef123456", "AKIAIOSFODNN7EXAMPLE", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-DEF_1", "ghp_abcdef1234567890", "wJalrXUtnFEMI7K7MDENGbPxRfiCYEXAMPLEKEY1",
		"sk-abc***************************wxyz",
	} {
		for _, text := range []string{
			"Incorrect API key provided: %. You can find your key", "key % is invalid", "Authorization: Bearer %", "call https://x.invalid/v1?key=%&alt=sse", `{"api_key":"%"}`,
		} {
			message := strings.Replace(text, "%", secret, 1)
			if got := fault.Redact(message); strings.Contains(got, secret) || !strings.Contains(got, "[redacted]") {
				t.Errorf("a credential is masked: got %q", got)
			}
		}
	}
	if got := fault.Redact("found wJalrXUtnFEMI7K7MDENGbPxRfiCYEXAMPLEKEY1 in it"); got != "found [redacted] in it" {
		t.Errorf("what looks like nothing but a credential is one: got %q", got)
	}
	for _, secret := range []string{"a1b2c3d4e5f6", "0123456789abcdef0123456789abcdef"} {
		if got := fault.Redact("Invalid API key: " + secret + "."); got != "Invalid API key: [redacted]." {
			t.Errorf("what is called a key is one: got %q", got)
		}
	}
	for _, text := range []string{
		"The model claude-sonnet-4-5-20250929 does not exist", "Rate limit reached for gpt-4o in organization org-abc on tokens per min (TPM): Limit 30000",
		"GenerateRequestsPerDayPerProjectPerModel-FreeTier", "request 3f2b8c1e-7d4a-4b1c-9e57-0a1b2c3d4e5f failed", "dial tcp 10.0.0.1:443: connect: connection refused",
		"You exceeded your current quota, please check your plan and billing details.", "Keys for idempotent requests can only be used with the same parameters",
		"https://platform.openai.com/account/api-keys", "ERROR: duplicate key value violates unique constraint \"orders_pkey\"",
	} {
		if got := fault.Redact(text); got != text {
			t.Errorf("what is no credential stays: got %q, want %q", got, text)
		}
	}
	f := fault.FromHTTP("openai", 401, nil, []byte(`{"error":{"message":"Incorrect API key provided: sk-abcdef1234567890.","code":"invalid_api_key"}}`))
	if strings.Contains(f.Message, "abcdef") {
		t.Errorf("a message that repeats our key is masked: got %q", f.Message)
	}
}
