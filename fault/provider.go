package fault

import (
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
)

// provider is what is known of one far end: how it is recognised, where it puts things, and what its words mean.
// A provider is one file with one such value; nothing in it is ever changed.
type provider struct {
	name      string    // as stored in Fault.Provider
	aliases   []string  // other names it is asked for by
	hosts     []string  // "api.openai.com" with all below it; with a * a pattern of the whole host
	signs     []string  // beginnings of names of response headers that only it sends, in lower case
	keyHeader string    // header in which it takes an idempotency key and honours it; "" if it documents none
	requestID []string  // response headers that carry its request id, best first
	model     bool      // it runs models: a 200 without a result in it is no answer
	rules     []rule    // what its words mean; the first that matches decides
	limits    []limit   // rate limits told in headers
	failed    Reason    // what an error inside a success means that nobody knows by name; "" for none
	like      *provider // whose rules and limits hold where its own say nothing
}

// limit is one dimension of a rate limit, as response headers tell it.
type limit struct {
	remaining string // header with what is left
	reset     string // header with the time until, or the instant at which, it refills
	reason    Reason
}

// rule says what one kind of answer means. A field at zero matches anything, every other one must match.
type rule struct {
	status int    // HTTP status, or the status that the body names
	code   string // the body's machine-readable code, or its type, or a canonical word such as RESOURCE_EXHAUSTED
	kind   string // the body's type, where it must stand beside a code
	detail string // a finer code: of ErrorInfo, of an inner error, a decline code
	quota  string // part of the name of the quota that is used up
	param  string // beginning of the name of the parameter at fault
	text   string // lower-case phrase of the message: only with a status, code or kind beside it

	is      Reason
	class   Class   // instead of the reason's own
	outcome Outcome // instead of the reason's own
}

// providers are all that are known, those first whose signs are surest.
var providers = []*provider{
	&anthropic, &azureOpenAI, &openAI, &bedrock, &aws, &vertex, &gemini, &mistral, &cohere, &groq, &openRouter, &xAI,
	&ollama, &vLLM, &stripe, &webhook, &cdn, &generic,
}

// Providers lists the names of the providers that are known, in order, as [FromHTTP] takes them.
func Providers() []string {
	var names []string
	for _, p := range providers {
		names = append(names, p.name)
	}
	slices.Sort(names)
	return names
}

// Known reports whether name is one of [Providers] or another name that FromHTTP knows one of them by.
func Known(name string) bool { return providerNamed(name) != nil }

// providerNamed returns the provider of that name or alias, nil if there is none.
func providerNamed(name string) *provider {
	for _, p := range providers {
		if strings.EqualFold(p.name, name) || slices.ContainsFunc(p.aliases, func(alias string) bool {
			return strings.EqualFold(alias, name)
		}) {
			return p
		}
	}
	return nil
}

// goesBy reports whether a router's name for a provider, such as "Google AI Studio", is for p.
func (p *provider) goesBy(name string) bool {
	name = strings.ToLower(name)
	return strings.Contains(name, p.name) || slices.ContainsFunc(p.aliases, func(alias string) bool {
		return strings.Contains(name, alias)
	})
}

// providerOf returns the provider that serves host, which may have a port and may be "", else the one that the
// response headers give away, else the one for anybody's API. It never returns nil.
func providerOf(host, urlPath string, h http.Header) *provider {
	port := ""
	if name, p, err := net.SplitHostPort(host); err == nil {
		host, port = name, p
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	for _, p := range providers {
		for _, pattern := range p.hosts {
			if hostMatches(pattern, host) {
				return p
			}
		}
	}
	if port == "11434" {
		return &ollama
	}
	p := providerBySign(h)
	if p == &aws && strings.HasPrefix(urlPath, "/model/") { // Bedrock behind a name of one's own
		return &bedrock
	}
	return p
}

func hostMatches(pattern, host string) bool {
	if strings.Contains(pattern, "*") {
		ok, _ := path.Match(pattern, host)
		return ok
	}
	below, ok := strings.CutSuffix(host, pattern)
	return ok && (below == "" || strings.HasSuffix(below, "."))
}

func providerBySign(h http.Header) *provider {
	for _, p := range providers {
		for _, sign := range p.signs {
			for name := range h {
				if len(name) >= len(sign) && strings.EqualFold(name[:len(sign)], sign) {
					return p
				}
			}
		}
	}
	return &generic
}
