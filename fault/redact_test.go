package fault_test

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/pawlrun/pawl/fault"
)

// What looks like a credential does not get into a message; what an operator needs to find a thing does.
func TestMessagesHaveIDsAndNoSecrets(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{"sk-proj-abcdefghijklmnop", "AIzaSyA1234567890abcdefghijklmnopqrstu", "hunter2hunter2"} {
		for _, text := range []string{"Incorrect API key provided: %s.", "authorization: Bearer %s", "GET /v1?key=%s failed", "password=%s"} {
			if got := fault.From(fmt.Errorf(text, secret)).Message; strings.Contains(got, secret) {
				t.Errorf("message %q has the secret", got)
			}
		}
	}
	for _, id := range []string{"01a228d7-bab1-782b-a7ad-0357a10fac1d", "3reqjfb7w3f74q3cnppbaqeaxl2yuxeewd6b3lfaglfbq2j4uogq",
		"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "order-12345678", "gpt-4o-mini-2024-07-18"} {
		for _, text := range []string{"no such thing: %s", "duplicate key %s", "the key (%s) is taken"} {
			if got := fault.From(fmt.Errorf(text, id)).Message; !strings.Contains(got, id) {
				t.Errorf("message %q has lost %q", got, id)
			}
		}
	}
}

// What is given to a secret's name is masked however it looks, and prose about secrets is not.
func TestMessagesHaveNoGivenSecrets(t *testing.T) {
	t.Parallel()
	for text, secret := range map[string]string{
		"dial postgres://app:hunter2secret@db.example/prod failed": "hunter2secret",
		"dial postgres://app:p@ss/word@db.example/prod failed":     "ss/word",
		"dial https://ghp_x@github.com/a/b failed":                 "ghp_x",
		"mysql user:letmein@tcp(host)/db":                          "letmein",
		`{"password":"correcthorsebattery"}`:                       "correcthorsebattery",
		`{\"password\": \"correct horse\"}`:                        "horse",
		"db_password=hunter":                                       "hunter",
		"Authorization: Basic dXNlcjpwYXNzd29yZA==":                "dXNlcjpwYXNzd29yZA",
		`"authorization":"Bearer abc"`:                             "abc",
		"Authorization: Bearer abcdefghijklmnopqrstuvwxyzabcdef":   "abcdefghijk",
		"Cookie: id=abc; session=abcdef":                           "abc",
		"session=abcdefghijkl":                                     "abcdefghijkl",
		"https://h/c/b?sv=2022&sig=abcDEF%2Fxyz%3D":                "abcDEF",
		"https://s3/b?X-Amz-Signature=0123456789abcdef&x=1":        "0123456789",
		"signature=abcdefgh":                                       "abcdefgh",
		"refresh_token: 1//0abcdefghijklmnop-qrstuvwxyz":           "qrstuvwxyz",
		"key SG.aaaaaaaaaaaaaaaaaaaaaa.bbbbbbbbbbbbbbbbbbbbbbb1":   "bbbbbb",
		"bad key wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY":         "wJalr",
	} {
		if got := fault.From(errors.New(text)).Message; strings.Contains(got, secret) || !strings.Contains(got, "[redacted]") {
			t.Errorf("message %q has the secret", got)
		}
	}
	for _, text := range []string{
		"Basic authentication failed", "the bearer token is missing", "password: required", "invalid password for user bob@example.com",
		"https://example.com:8080/@bob/status", "write to alice:bob@example.com", "no session: it has ended", `"password":null`,
		"design=blue", "max_tokens=100 is too many", "rpc error: code = Unavailable desc = x", "digest sha256:e3b0c442",
	} {
		if got := fault.From(errors.New(text)).Message; got != text {
			t.Errorf("message %q has become %q", text, got)
		}
	}
}

// The address in the text of a failed request is shown without query, user and what looks like a secret in its path.
func TestMessagesHaveOpenAddresses(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"https://api.example.com/v1/things?token=tok123":                      "https://api.example.com/v1/things?…",
		"https://me:pass1@api.example.com/v1":                                 "https://api.example.com/v1",
		"https://hooks.example.com/services/T000/B000/XyZ12abcDEF34ghiJKLmno": "https://hooks.example.com/services/T000/B000/XyZ12a…",
		"http://[::1]:namedport/":                                             "[redacted]",
	} {
		err := fmt.Errorf("notify: %w", &url.Error{Op: "Post", URL: in, Err: errors.New("EOF, or something")})
		if got := fault.From(err).Message; got != fmt.Sprintf("notify: Post %q: EOF, or something", want) {
			t.Errorf("%s: message %q, want the address %q", in, got, want)
		}
	}
}
