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
