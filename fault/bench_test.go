package fault_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/pawlrun/pawl/fault"
)

// usual is an error body of one kilobyte.
var usual = []byte(`{"error":{"message":"Rate limit reached for gpt-4o in organization org-abc on tokens per min (TPM): Limit 30000, ` +
	`Used 28000, Requested 4000. Please try again in 4s. Visit https://platform.openai.com/account/rate-limits to learn more. ` +
	strings.Repeat("Rate limits are set for the organization and not for its users. ", 11) +
	`","type":"tokens","param":null,"code":"rate_limit_exceeded"}}`)

func BenchmarkFromHTTP(b *testing.B) {
	h := http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"req_1"}, "Retry-After": {"4"}, "Date": {sent}}
	b.SetBytes(int64(len(usual)))
	for b.Loop() {
		if f := fault.FromHTTP("openai", 429, h, usual); f.Class != fault.RateLimited {
			b.Fatal(f)
		}
	}
}

func BenchmarkJSONUnmarshal(b *testing.B) {
	b.SetBytes(int64(len(usual)))
	for b.Loop() {
		var v any
		if err := json.Unmarshal(usual, &v); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkJSONUnmarshalStruct(b *testing.B) {
	b.SetBytes(int64(len(usual)))
	for b.Loop() {
		var v struct {
			Error struct {
				Message, Type string
				Param, Code   *string
			}
		}
		if err := json.Unmarshal(usual, &v); err != nil {
			b.Fatal(err)
		}
	}
}
