package fault

import (
	"net/http"
	"strings"
)

// maxText is how much of a message is searched for phrases and delays. What comes later may be our own request,
// repeated.
const maxText = 512

// FromHTTP classifies an HTTP response by its status, its headers and the beginning of its body, of which no more
// than 64 KiB are looked at. It returns nil for a success: a status of 1xx, 2xx or 304 whose body is
// neither an error nor a page nor half of a JSON text nor, from a provider of models, without a result; a
// refusal and an output cut at its limit are faults too. Of a stream in a 2xx, see [FromStream].
//
// The provider is a name such as "openai", "azure-openai", "bedrock", "stripe", "webhook" or "http-api"; docs/faults.md
// has them all. With "" it is found by the headers. Under any other name the rules for anybody's API hold.
//
// The Message is the far end's, without what looks like a credential. Err is nil. FromHTTP never panics, and
// nothing in a body hides the status.
func FromHTTP(provider string, status int, header http.Header, body []byte) *Fault {
	return providerFor(provider, header).fromHTTP(status, header, body)
}

// providerFor returns the provider of a name that a caller gave.
func providerFor(name string, h http.Header) *provider {
	if name == "" {
		return providerOf("", "", h)
	}
	if p := providerNamed(name); p != nil {
		return p
	}
	p := generic
	p.name = name
	return &p
}

func (p *provider) fromHTTP(status int, header http.Header, body []byte) *Fault {
	if status < 300 && isStream(header) {
		return p.fromStream(header, body)
	}
	a := readAnswer(status, header, body)
	p.unwrap(a)
	var f Fault
	switch {
	case status >= 100 && status < 300:
		var ok bool
		if f, ok = p.insideSuccess(a); !ok {
			return nil
		}
	case status == http.StatusNotModified:
		return nil
	default:
		f = p.judge(a)
	}
	return p.complete(a, f)
}

// complete adds to f what does not depend on the class, and the delay, which does.
func (p *provider) complete(a *answer, f Fault) *Fault {
	f.Provider, f.Status = p.name, a.http
	f.Final, _ = vetoed(a.header)
	f.Delay = p.delay(a, &f)
	for _, name := range p.requestID {
		first(&f.RequestID, a.header.Get(name))
	}
	first(&f.RequestID, a.requestID)
	f.Message = redact(a.message)
	first(&f.Message, http.StatusText(a.http))
	f.clean()
	return &f
}

// unwrap takes the code that AWS gives as the name of the only member of a body: {"throttlingException":{…}}.
func (p *provider) unwrap(a *answer) {
	if a.members != 1 || a.exception == "" || a.http < 400 && p != &aws && p.like != &aws {
		return
	}
	first(&a.code, a.exception)
	a.failed, a.structure = true, true
}

// isCode reports whether a word is a code that somebody's rules know.
func isCode(word string) bool {
	for _, p := range providers {
		for i := range p.rules {
			if word != "" && strings.EqualFold(p.rules[i].code, word) {
				return true
			}
		}
	}
	return false
}

// vetoed reports whether the far end says that the request is not to be sent again, or that it may be.
func vetoed(h http.Header) (never, again bool) {
	for _, name := range []string{"X-Should-Retry", "Stripe-Should-Retry"} {
		switch strings.ToLower(strings.TrimSpace(h.Get(name))) {
		case "false":
			never = true
		case "true":
			again = true
		}
	}
	if _, _, veto := pushback(h.Values("Grpc-Retry-Pushback-Ms")); veto {
		never = true
	}
	return never, again && !never
}

// judge says what an answer that is an error means.
func (p *provider) judge(a *answer) Fault {
	if a.http >= 400 && !p.model {
		a.status = a.http // a number in a body of who knows whom undoes no failure, and no refusal
	}
	if a.code == "" && !strings.Contains(a.word, " ") && isCode(a.word) {
		a.code = a.word
	}
	if a.kind == "" && a.event != "error" && a.event != "exception" {
		a.kind = a.event
	}
	f := p.byWords(a)
	if f.Class == RateLimited {
		p.refine(a, &f)
	}
	if a.http >= 200 && a.http < 300 && !a.blocked {
		f.Outcome = OutcomeMaybeExecuted // it had begun
	}
	return f
}

// byWords judges by the words of an answer, and where it has none that is known, by its status. A code is finer than a
// type: what the code means elsewhere comes before what the type means here.
func (p *provider) byWords(a *answer) Fault {
	own, byType := p.byOwnWord(a)
	if own != nil && !byType {
		return own.fault()
	}
	if own == nil {
		if f, ok := p.behind(a); ok {
			return f
		}
	}
	if f, ok := p.byForeignWord(a, false); ok {
		return f
	}
	if own != nil {
		return own.fault()
	}
	if f, ok := p.byForeignWord(a, true); ok {
		return f
	}
	return p.byStatus(a)
}

// byOwnWord asks the rules about words, the provider's own and those of the one whose dialect it speaks, and reports
// whether it was the type that matched. The first rule that matches decides; where one knows the code, none that knows
// only the type does.
func (p *provider) byOwnWord(a *answer) (r *rule, byType bool) {
	var earliest, untyped *rule
	coded := false
	for ; p != nil; p = p.like {
		for i := range p.rules {
			r := &p.rules[i]
			if r.aboutStatus() || !r.matches(a) {
				continue
			}
			if earliest == nil {
				earliest = r
			}
			if untyped == nil && !r.byType(a) {
				untyped = r
			}
			coded = coded || r.code != "" && !r.byType(a)
		}
	}
	if coded {
		return untyped, false
	}
	return earliest, earliest != nil && earliest.byType(a)
}

// byForeignWord asks the codes of everybody else for the code or the type, because APIs hide behind gateways and speak
// each other's dialects. Of a server that failed, a borrowed word proves no more than its status.
func (p *provider) byForeignWord(a *answer, byType bool) (Fault, bool) {
	if a.code == "" && !byType || a.kind == "" && byType {
		return Fault{}, false
	}
	for _, q := range providers {
		for i := range q.rules {
			r := &q.rules[i]
			if r.code != "" && r.text == "" && r.matches(a) && r.byType(a) == byType {
				f := r.fault()
				if a.status >= 500 {
					f.Outcome = p.byStatus(a).Outcome
				}
				return f, true
			}
		}
	}
	return Fault{}, false
}

// behind judges the answer of the provider that a router repeats inside of its own.
func (p *provider) behind(a *answer) (Fault, bool) {
	if len(a.raw) == 0 || a.raw[0] != '{' && a.raw[0] != '[' {
		return Fault{}, false
	}
	inner := &answer{status: a.status, http: a.status}
	inner.readJSON([]byte(a.raw))
	if inner.kind == "" {
		inner.kind = inner.event
	}
	for _, q := range providers {
		if q == p || !q.model || a.from != "" && !q.goesBy(a.from) {
			continue
		}
		if r, _ := q.byOwnWord(inner); r != nil {
			first(&inner.message, a.message)
			a.message = inner.message
			return r.fault(), true
		}
	}
	return Fault{}, false
}

// byStatus judges by the status alone. What a provider of models means by one holds for an answer in its own form,
// or an empty one, not for a page of some proxy.
func (p *provider) byStatus(a *answer) Fault {
	if a.status == http.StatusForbidden && (a.html || a.header.Get("Cf-Mitigated") != "") {
		return ReasonEdgeBlocked.fault()
	}
	if a.structure || a.empty || !p.model {
		if f, ok := p.byOwnStatus(a); ok {
			return f
		}
	}
	for i := range statuses {
		if r := &statuses[i]; r.status == a.status {
			f := r.fault()
			if a.status == http.StatusServiceUnavailable && namesTime(a) {
				f.Outcome = OutcomeRejected // whoever names a time has looked at it
			}
			return f
		}
	}
	switch a.status / 100 {
	case 3:
		return ReasonRedirect.fault()
	case 4:
		if _, again := vetoed(a.header); again {
			return ReasonRejected.fault() // the only thing that a hint to retry lifts is what nobody knows
		}
		return ReasonMalformed.fault()
	}
	return ReasonUnrecognized.fault()
}

func (p *provider) byOwnStatus(a *answer) (Fault, bool) {
	for ; p != nil; p = p.like {
		for i := range p.rules {
			if r := &p.rules[i]; r.matches(a) && r.aboutStatus() {
				return r.fault(), true
			}
		}
	}
	return Fault{}, false
}

// refine tells a limit that can never be met from one that refills, and finds its dimension.
func (p *provider) refine(a *answer, f *Fault) {
	limit, requested, ok := limitAndRequested(a.lower())
	switch {
	case ok && requested > limit:
		*f = ReasonRequestTooLarge.fault()
	case f.Reason == ReasonRequests:
		if r := p.dimension(a.header); r != "" {
			f.Reason = r
		}
	}
}

// limitAndRequested reads "Limit 30000, Requested 36278", the one place where numbers of a text count: a request that
// is larger than the limit never fits.
func limitAndRequested(s string) (limit, requested float64, ok bool) {
	limit, ok = numberAfter(s, "limit")
	if !ok {
		return 0, 0, false
	}
	requested, ok = numberAfter(s, "requested")
	return limit, requested, ok
}

// numberAfter returns the number that follows the first such word that has one right behind it.
func numberAfter(s, word string) (float64, bool) {
	for {
		_, after, found := strings.Cut(s, word)
		if !found {
			return 0, false
		}
		digits := strings.TrimLeft(after, " :=")
		digits = digits[:len(digits)-len(strings.TrimLeft(digits, "0123456789"))]
		if n, ok := parseFloat(digits); ok {
			return n, true
		}
		s = after
	}
}

// insideSuccess judges a 2xx. It reports whether that is a fault.
func (p *provider) insideSuccess(a *answer) (Fault, bool) {
	unreadable := ReasonResponseUnreadable.fault()
	switch {
	case a.failed && !a.several:
		f := p.judge(a)
		if f.Reason == ReasonUnrecognized {
			f = p.unnamed()
		}
		return f, true
	case a.html, a.json && !a.whole && !a.cut && !a.lines:
		return unreadable, true
	}
	if f, ok := finished(a); ok {
		return f, true
	}
	if p.model && a.http == http.StatusOK && a.nothing() {
		if f := p.judge(a); a.code != "" && f.Reason != ReasonUnrecognized {
			return f, true // nothing but a code
		}
		return unreadable, true
	}
	return Fault{}, false
}

// nothing reports whether there is no result in the answer.
func (a *answer) nothing() bool {
	job := a.state != "" && a.object != "response" // how it stands is all that there is to say
	return !a.cut && (a.empty || a.json && !a.substance && a.finish == "" && !job)
}

// unnamed is an error inside a success that has no name anybody knows.
func (p *provider) unnamed() Fault {
	if p.failed != "" {
		return p.failed.fault()
	}
	return ReasonResponseUnreadable.fault()
}

// finished judges why a model stopped. It reports whether that is a fault.
func finished(a *answer) (Fault, bool) {
	r, known := finishes[strings.ToLower(a.finish)]
	if a.blocked && !strings.HasSuffix(a.finish, "_UNSPECIFIED") {
		return ReasonInputBlocked.fault(), true
	}
	if !known && a.refusal {
		r, known = ReasonRefusal, true
	}
	if !known && (a.object == "response" || strings.HasPrefix(a.event, "response.")) {
		switch {
		case a.state == "failed":
			r, known = ReasonServerError, true
		case a.state == "cancelled" && a.object != "response": // what answers a request to cancel is no fault
			r, known = ReasonServerCanceled, true
		}
	}
	if !known {
		return Fault{}, false
	}
	f := r.fault()
	f.Outcome = OutcomeMaybeExecuted // the model has run
	return f, true
}
