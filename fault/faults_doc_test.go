package fault

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write docs/faults.md instead of comparing it")

// This test is inside of the package because the document shows its tables.
func TestFaultsDocument(t *testing.T) {
	const path = "../docs/faults.md"
	want := faultsDocument()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("docs/faults.md is not what the tables say: run go test ./fault -run FaultsDocument -update")
	}
}

// fuzzed are the figures of the last long run, by hand.
var fuzzed = []struct {
	target     string
	took       string
	executions string
}{
	{"FuzzFromHTTP", "100 s", "70,035"},
	{"FuzzStream", "100 s", "657,889"},
	{"FuzzDelay", "100 s", "572,676"},
}

type document struct{ strings.Builder }

func (d *document) say(text string) { d.WriteString(text + "\n\n") }

func (d *document) row(cells ...string) {
	for i, c := range cells {
		cells[i] = strings.ReplaceAll(c, "|", `\|`)
	}
	d.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}

func (d *document) head(cells ...string) {
	d.row(cells...)
	d.WriteString(strings.Repeat("|---", len(cells)) + "|\n")
}

func (d *document) end() { d.WriteString("\n") }

func code(s string) string { return "`" + s + "`" }

func faultsDocument() string {
	d := &document{}
	d.say("# Faults")
	d.say("What Pawl makes of a failure: its class, whether the effect may have happened all the same, how long to wait, and what a person\n" +
		"can do. `pawl faults explain` says it for one response; package `fault` for any error. This page is generated from the tables of\n" +
		"that package (`go test ./fault -run FaultsDocument -update`).")
	decisions(d)
	delays(d)
	reasons(d)
	d.say("## Statuses")
	d.say("An HTTP status counts when the body has no code that is known. Under a 5xx the far end may have done it, unless it says otherwise;\n" +
		"a 503 with a Retry-After is a refusal. A status that is missing here is malformed as a 3xx or 4xx, and unrecognized else.")
	d.head("status", "class", "outcome", "reason")
	for _, r := range statuses {
		f := r.fault()
		d.row(fmt.Sprint(r.status), f.Class.String(), f.Outcome.String(), code(string(f.Reason)))
	}
	d.end()
	d.say("## Models that stopped")
	d.say("A success is no result if the model stopped for one of these. The outcome is maybe_executed: it has run.")
	d.head("it says", "class", "reason")
	for _, word := range slices.Sorted(maps.Keys(finishes)) {
		f := finishes[word].fault()
		d.row(code(word), f.Class.String(), code(string(f.Reason)))
	}
	d.end()
	d.say("## Providers")
	d.say("A provider is named, or found by host and response headers. Its rules hold in the order of the table, the first that matches\n" +
		"decides; after them those of the provider whose dialect it speaks, then the codes of all others, then the status. A code comes\n" +
		"before a type, also one that only others know.")
	for _, p := range slices.SortedFunc(slices.Values(providers), func(a, b *provider) int { return cmp.Compare(a.name, b.name) }) {
		p.document(d)
	}
	d.say("## Fuzzing")
	d.say("Last long run: no panic, nothing hopeless that is sent again, no delay below zero or above the longest.")
	d.head("target", "time", "executions")
	for _, f := range fuzzed {
		d.row(code(f.target), f.took, f.executions)
	}
	return d.String()
}

// decisions shows what Decide says to the first failed attempt.
func decisions(d *document) {
	d.say("## Classes, outcomes, decisions")
	d.say("What follows from a first failed attempt, by the kind of the step. `not_sent` and `rejected` are proven: nothing happened.\n" +
		"A `Tx` step is proven undone, whatever the error.")
	d.head("class", "outcome", "Repeatable", "Keyed", "Tx", "Once")
	for c := RateLimited; c <= Canceled; c++ {
		for _, o := range []Outcome{OutcomeRejected, OutcomeMaybeExecuted} {
			name := o.String()
			if o == OutcomeRejected {
				name = "not_sent, rejected"
			}
			cells := []string{c.String(), name}
			for k := KindRepeatable; k <= KindOnce; k++ {
				f := Fault{Class: c, Reason: c.reason(), Outcome: o}
				if c == OutcomeUnknown {
					f.Reason = ReasonConnectionLost
				}
				cells = append(cells, Decide(&f, k, Budget{Attempt: 1, UnknownAttempts: 1}).Action.String())
			}
			d.row(cells...)
		}
	}
	d.end()
	d.say(fmt.Sprintf("Beyond that: at most %d attempts and %v of our own time; %d attempts that ended outcome_unknown; a wait over %v parks the step. A\n"+
		"quota whose reset is told is parked until then. Output of a model that is invalid is sampled again at most %d times, and a\n"+
		"clock that is wrong is forgiven once. Whoever says that it is not to be sent again (`x-should-retry: false`,\n"+
		"`Stripe-Should-Retry: false`, a negative `grpc-retry-pushback-ms`) is obeyed.",
		defaultAttempts, defaultTotal, unknownAttempts, parkAfter, resamples))
}

func delays(d *document) {
	d.say("## Delays")
	d.say(fmt.Sprintf("The first that is there: `retry-after-ms`; `Retry-After` in seconds, a fraction of them, or a date; `RetryInfo`;\n"+
		"`grpc-retry-pushback-ms`; the reset of the limit that is used up; a text such as \"try again in 20s\". Dates count from the response's\n"+
		"own `Date`, and tell nothing without one. What is past is no wait; what is negative or unreadable is ignored, and so is more than\n"+
		"%v. A delay is at most %d days, and one above %v fails the step. It never lifts a quota or a denial: the\n"+
		"end of a quota is told by a reset alone.", year, MaxDelay/(24*time.Hour), longestTold))
}

func reasons(d *document) {
	d.say("## Reasons")
	d.say("Why it failed, and what to do. Class and outcome are those that a reason stands for on its own; an answer may say otherwise.")
	d.head("reason", "class", "outcome", "what to do")
	all := slices.SortedFunc(maps.Keys(meanings), func(a, b Reason) int {
		x, y := meanings[a], meanings[b]
		return cmp.Or(cmp.Compare(x.class, y.class), cmp.Compare(x.outcome, y.outcome), cmp.Compare(a, b))
	})
	for _, r := range all {
		m := meanings[r]
		d.row(code(string(r)), m.class.String(), m.outcome.String(), m.advice)
	}
	d.end()
}

func (p *provider) document(d *document) {
	d.say("### " + p.name)
	list := func(label string, words []string) {
		if len(words) > 0 {
			for i, w := range words {
				words[i] = code(w)
			}
			d.WriteString("- " + label + ": " + strings.Join(words, ", ") + "\n")
		}
	}
	list("also named", slices.Clone(p.aliases))
	list("hosts", slices.Clone(p.hosts))
	list("headers that begin with", slices.Clone(p.signs))
	list("request id", slices.Clone(p.requestID))
	if p.keyHeader != "" {
		list("idempotency key", []string{p.keyHeader})
	}
	if p.like != nil {
		list("dialect of", []string{p.like.name})
	}
	d.end()
	if len(p.rules) == 0 {
		return
	}
	d.head("answer", "class", "outcome", "reason")
	for i := range p.rules {
		f := p.rules[i].fault()
		d.row(p.rules[i].String(), f.Class.String(), f.Outcome.String(), code(string(f.Reason)))
	}
	d.end()
}

// String says in words what a rule asks for.
func (r *rule) String() string {
	var parts []string
	add := func(format string, v any) { parts = append(parts, fmt.Sprintf(format, v)) }
	if r.status != 0 {
		add("%d", r.status)
	}
	for _, part := range []struct{ format, text string }{
		{"`%s`", r.code}, {"type `%s`", r.kind}, {"detail `%s`", r.detail}, {"quota …%s…", r.quota}, {"parameter `%s`", r.param}, {"“%s”", r.text},
	} {
		if part.text != "" {
			add(part.format, part.text)
		}
	}
	return strings.Join(parts, ", ")
}

func TestRulesAreSound(t *testing.T) {
	for _, p := range providers {
		seen := map[rule]bool{}
		for _, r := range p.rules {
			key := r
			key.is, key.class, key.outcome = "", 0, 0
			if seen[key] {
				t.Errorf("%s: a rule stands twice: %v", p.name, r.String())
			}
			seen[key] = true
			if _, _, known := r.is.natural(); !known {
				t.Errorf("%s: %s: the reason %q is no constant", p.name, r.String(), r.is)
			}
			if r.text != "" && r.code == "" && r.status == 0 {
				t.Errorf("%s: a text counts only within a status or type: %s", p.name, r.String())
			}
			if r.text != strings.ToLower(r.text) || r.text != "" && strings.Trim(r.text, "0123456789 ") == "" {
				t.Errorf("%s: a text is in lower case, and no number: %s", p.name, r.String())
			}
			if r == (rule{is: r.is, class: r.class, outcome: r.outcome}) {
				t.Errorf("%s: a rule asks for something", p.name)
			}
		}
		for _, sign := range p.signs {
			if sign != strings.ToLower(sign) {
				t.Errorf("%s: a sign is in lower case: %s", p.name, sign)
			}
		}
		if providerNamed(p.name) != p {
			t.Errorf("%s is found by its name", p.name)
		}
		for _, alias := range p.aliases {
			if providerNamed(strings.ToUpper(alias)) != p {
				t.Errorf("%s is found by its alias %s, in any case", p.name, alias)
			}
		}
	}
}

func TestReasonsHaveAdvice(t *testing.T) {
	for r, m := range meanings {
		if !m.class.valid() || !m.outcome.valid() || !strings.HasSuffix(m.advice, ".") || strings.Contains(m.advice, "\n") {
			t.Errorf("%s: class, outcome and one line of advice: got %+v", r, m)
		}
		if r.Advice() != m.advice {
			t.Errorf("%s: Advice is the table's: got %q", r, r.Advice())
		}
	}
	if Reason("of_the_step").Advice() != "" {
		t.Error("a reason of the step's own has no advice")
	}
}

func TestProviderOf(t *testing.T) {
	for host, want := range map[string]string{
		"api.openai.com": "openai", "API.OPENAI.COM:443": "openai", "eu.api.openai.com": "openai", "notapi.openai.com.evil.invalid": "http-api",
		"fakeapi.openai.com.": "http-api", "my.openai.azure.com": "azure-openai", "x.services.ai.azure.com": "azure-openai",
		"api.anthropic.com": "anthropic", "generativelanguage.googleapis.com": "gemini", "aiplatform.googleapis.com": "vertex",
		"us-central1-aiplatform.googleapis.com": "vertex", "bedrock-runtime.us-east-1.amazonaws.com": "bedrock",
		"vpce-1.bedrock-runtime.us-east-1.vpce.amazonaws.com": "bedrock", "dynamodb.us-east-1.amazonaws.com": "aws",
		"api.mistral.ai": "mistral", "api.cohere.com": "cohere", "api.groq.com": "groq", "openrouter.ai": "openrouter",
		"api.x.ai": "xai", "localhost:11434": "ollama", "[::1]:11434": "ollama", "api.stripe.com": "stripe", "example.invalid": "http-api", "": "http-api",
	} {
		if p := providerOf(host, "/v1/x", nil); p.name != want {
			t.Errorf("%s is served by %s: got %s", host, want, p.name)
		}
	}
	h := map[string][]string{"X-Amzn-Requestid": {"x"}}
	if p := providerOf("proxy.invalid", "/model/m/converse", h); p.name != "bedrock" {
		t.Errorf("Bedrock behind another name: got %s", p.name)
	}
	if p := providerOf("proxy.invalid", "/", h); p.name != "aws" {
		t.Errorf("AWS behind another name: got %s", p.name)
	}
}
