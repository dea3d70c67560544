package cli_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pawlrun/pawl/cli"
)

func explain(t *testing.T, in string, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	code := cli.Run(t.Context(), append([]string{"faults", "explain"}, args...), strings.NewReader(in), &out, &errs,
		cli.Options{Name: "pawl", DB: filepath.Join(t.TempDir(), "none", "pawl.db")})
	return result{code, out.String(), errs.String()}
}

// The three responses of the README mean what it says.
func TestExplainTheResponsesOfTheReadme(t *testing.T) {
	t.Parallel()
	type action struct {
		Action string `json:"action"`
		WaitMS int64  `json:"wait_ms"`
	}
	for name, want := range map[string]struct {
		class, outcome string
		keyed, once    action
	}{
		"rate":   {"rate_limited", "rejected", action{"park", 20_000}, action{"park", 20_000}},
		"credit": {"quota_exhausted", "rejected", action{"fail", 0}, action{"fail", 0}},
		"charge": {"transient", "maybe_executed", action{"retry", 0}, action{"uncertain", 0}},
	} {
		r := explain(t, "", "-o", "json", filepath.Join("..", "docs", "responses", name+".http"))
		r.want(t, 0)
		var got struct {
			Success bool
			Fault   struct{ Class, Outcome string }
			Advice  string
			Kinds   map[string]action
		}
		if err := json.Unmarshal([]byte(r.out), &got); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, r.out)
		}
		if got.Success || got.Fault.Class != want.class || got.Fault.Outcome != want.outcome || got.Kinds["keyed"] != want.keyed ||
			got.Kinds["once"] != want.once || got.Advice == "" {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
}

func TestExplainReadsWhatCurlPrints(t *testing.T) {
	t.Parallel()
	const limited = "HTTP/2 429 \r\nretry-after: 7\r\ntransfer-encoding: chunked\r\ncontent-length: 9999\r\n\r\nslow down"
	for name, in := range map[string]string{
		"HTTP/2 without a reason": limited,
		"through a proxy":         "HTTP/1.1 200 Connection established\r\n\r\n" + limited,
		"after a 100":             "HTTP/1.1 100 Continue\r\n\r\n" + limited,
		"plain line ends":         strings.ReplaceAll(limited, "\r\n", "\n"),
	} {
		r := explain(t, in, "-")
		if r.want(t, 0, "rate_limited", "7s", "slow down"); t.Failed() {
			t.Fatal(name)
		}
	}
	explain(t, "HTTP/1.1 204 No Content\r\n\r\n", "-").want(t, 0, "a success")
	explain(t, "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n", "-").want(t, 0, "transient")
	explain(t, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"x\"}}\n\n",
		"-", "--provider", "anthropic").want(t, 0, "overloaded")
}

func TestExplainFromFlags(t *testing.T) {
	t.Parallel()
	body := filepath.Join(t.TempDir(), "body.json")
	if err := os.WriteFile(body, []byte(`{"error":{"code":"insufficient_quota","message":"no"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	explain(t, "", "--provider", "openai", "--status", "429", "--header", "Retry-After: 20", "--body", "@"+body).want(t, 0, "quota_exhausted")
}

func TestExplainSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	explain(t, "").want(t, 2, "--status")
	explain(t, "", "-").want(t, 2, "empty")
	explain(t, "{}", "-").want(t, 2, "status line")
	explain(t, "", filepath.Join(t.TempDir(), "none.http")).want(t, 2, "none.http")
	explain(t, "", "x.http", "--status", "429").want(t, 2, "not from both")
	explain(t, "", "--status", "1").want(t, 2, "--status 1")
	explain(t, "", "--status", "429", "--header", "nonsense").want(t, 2, "nonsense")
	explain(t, "", "--status", "429", "--body", "@"+filepath.Join(t.TempDir(), "none")).want(t, 2, "none")
	explain(t, "", "--status", "429", "--provider", "opnai").want(t, 2, "opnai")
}
