package fault

import (
	"crypto/tls"
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Phase says how far a request has come. The zero value is no phase; a larger one is further.
type Phase uint8

// The phases.
const (
	// PhaseNothing: nothing was written, so far as is known.
	PhaseNothing Phase = iota + 1
	// PhaseHeaders: the headers were written, perhaps no further than into a buffer, and none or some of the body.
	PhaseHeaders
	// PhaseRequest: the whole request was written.
	PhaseRequest
	// PhaseFirstByte: a first byte came back.
	PhaseFirstByte
	// PhaseAnswered: status and headers came back.
	PhaseAnswered
	// PhaseDone: the answer was read to its end.
	PhaseDone
)

// String returns the stored text, "nothing_written" for [PhaseNothing]; "phase(9)" outside the constants.
func (p Phase) String() string {
	switch p {
	case PhaseNothing:
		return "nothing_written"
	case PhaseHeaders:
		return "headers_written"
	case PhaseRequest:
		return "request_written"
	case PhaseFirstByte:
		return "first_byte"
	case PhaseAnswered:
		return "answered"
	case PhaseDone:
		return "done"
	}
	return outside("phase", p)
}

// MarshalText returns the text of [Phase.String]. A value outside the constants, zero included, is an error.
func (p Phase) MarshalText() ([]byte, error) { return enumText("phase", p, PhaseDone) }

// UnmarshalText accepts exactly what [Phase.MarshalText] writes; anything else is an error and leaves p alone.
func (p *Phase) UnmarshalText(text []byte) error { return enumParse("phase", text, PhaseDone, p) }

// Send is one request of an attempt, as far as it is known. It holds nothing secret: no query, no header of the
// request, no cookie, no part of a body.
type Send struct {
	Method    string            `json:"method"`
	Host      string            `json:"host"`
	Path      string            `json:"path"`
	Began     time.Time         `json:"began"`
	Ended     time.Time         `json:"ended,omitzero"` // zero while it is under way
	Phase     Phase             `json:"phase"`
	Replays   int               `json:"replays,omitempty"`    // times that net/http sent it again by itself
	Refused   Reason            `json:"refused,omitempty"`    // why our own side did not let it out; "" if it did
	BodyBytes int64             `json:"body_bytes,omitempty"` // of the request's body, given out for the wire the last time
	ReadBytes int64             `json:"read_bytes,omitempty"` // of the answer's body, as read by the caller
	Status    int               `json:"status,omitempty"`     // 0 if no answer came
	RequestID string            `json:"request_id,omitempty"`
	Provider  string            `json:"provider,omitempty"`
	Usage     Usage             `json:"usage,omitzero"`
	Limits    map[string]string `json:"limits,omitempty"` // headers about rate limits, names in lower case
	Class     Class             `json:"class,omitempty"`  // of what went wrong; 0 if nothing did
	Reason    Reason            `json:"reason,omitempty"`
	Outcome   Outcome           `json:"outcome"` // may it have had an effect? An answer of success says maybe_executed too
}

// send is what the transport knows of one request. Attempt.mu guards all of it, but for what is set before it is shared.
type send struct {
	a        *Attempt
	seen     Send
	provider *provider

	// Set before it is shared.
	plain      bool   // there is nothing but net/http's own transport between us and the wire
	clear      bool   // plain, and unencrypted connections speak HTTP/1
	usual      bool   // its scheme is one that net/http speaks by itself
	write      bool   // may have an effect, by its method
	replayable bool   // net/http sends it again even if something was written
	keyIn      string // header in which we add the operation key; "" for none
	mark       fingerprint

	announced bool    // httptrace works: a connection was asked for
	conns     int     // connections got: the first, and one more per replay
	pending   bool    // another one was asked for since
	leg       leg     // on the connection got last
	before    Outcome // worst outcome on those before
	stop      *Fault  // why our own side kept it back

	over   bool
	err    error       // of the round trip
	header http.Header // of the answer
	body   clip        // of the answer, but for streams
	stream *streamTap  // nil if it is none
	coded  bool        // the body is not readable as it is
	broken error       // why reading the body ended, other than at its end
	answer *Fault      // what the answer says went wrong; set when it is over
}

// leg is the way of a request over one connection.
type leg struct {
	conn         net.Conn
	http1, http2 bool // neither, if it is not known what the connection speaks
	headers      bool // were written
}

// got begins the way over another connection, and says why it may not be gone.
func (s *send) got(info httptrace.GotConnInfo, now time.Time) *Fault {
	if s.conns > 0 {
		s.seen.Replays++
		s.before = max(s.before, s.replayed(info.Conn))
	}
	s.conns++
	s.pending = false
	s.leg = leg{conn: info.Conn}
	if c, ok := info.Conn.(interface{ ConnectionState() tls.ConnectionState }); ok {
		s.leg.http2 = c.ConnectionState().NegotiatedProtocol == "h2"
		s.leg.http1 = !s.leg.http2
	} else {
		s.leg.http1 = s.clear
	}
	s.seen.Phase, s.seen.BodyBytes = PhaseNothing, 0
	switch {
	case s.stop != nil:
	case s.a.late(now):
		s.stop = lateFault()
	case s.a.Kind == KindOnce && s.write && s.before == OutcomeMaybeExecuted:
		s.stop = s.a.repeatFault()
	}
	return s.stop
}

// replayed returns the outcome of the last leg, after which net/http decided to send the request again, on conn, or
// on a connection that it has not got yet.
func (s *send) replayed(conn net.Conn) Outcome {
	switch {
	case !s.leg.headers:
		return OutcomeNotSent
	case !s.plain: // somebody else may have decided so
		return OutcomeMaybeExecuted
	case s.leg.http1 && !s.replayable:
		return OutcomeNotSent // it does so only if no byte was written
	case s.leg.http2 && same(conn, s.leg.conn):
		// A stream that was refused. After a stream error of the other kind for which it sends again, which
		// proves nothing, or a GOAWAY, it takes another connection.
		return OutcomeNotSent
	}
	return OutcomeMaybeExecuted
}

func same(a, b net.Conn) bool {
	return a != nil && b != nil && reflect.TypeOf(a).Comparable() && reflect.TypeOf(b).Comparable() && a == b
}

// reach notes a phase of the last leg.
func (s *send) reach(p Phase) { s.seen.Phase = max(s.seen.Phase, p) }

// outcome says whether the request may have had its effect. It is never better than what is proven.
func (s *send) outcome() Outcome {
	o := OutcomeMaybeExecuted
	switch {
	case s.stop != nil:
		o = OutcomeNotSent
	case s.pending:
		o = s.replayed(nil)
	case s.seen.Status > 0:
		if f := s.fault(); f != nil {
			o = f.Outcome
		}
	case s.err == nil: // under way
	case s.conns == 0 && (s.announced || s.plain && s.usual), s.conns > 0 && !s.leg.headers && s.leg.http1:
		o = OutcomeNotSent
	default: // the error speaks for itself: it is a refused stream, or there is no httptrace below us
		o = From(s.failure()).Outcome
	}
	return max(o, s.before)
}

// failure is the error of the round trip. That it comes out of one says something.
func (s *send) failure() error { return &url.Error{Op: s.seen.Method, URL: s.seen.Host, Err: s.err} }

// fault returns what went wrong with the request, nil if nothing did or it is under way.
func (s *send) fault() *Fault {
	switch {
	case s.stop != nil:
		return s.stop
	case s.err != nil:
		err := s.failure()
		f := From(err)
		if s.conns == 0 && s.announced {
			f = unsent(err)
		}
		f.Outcome = s.outcome()
		f.settle()
		return f
	case s.over || s.seen.Status == 0:
		return s.answer
	}
	return s.judge()
}

// settle corrects the class to one that can be with the outcome.
func (f *Fault) settle() {
	if f.Class == OutcomeUnknown && f.Outcome.Proven() {
		f.Class = Transient
	}
}

// judge classifies the answer by what there is of it.
func (s *send) judge() *Fault {
	var f *Fault
	switch status := s.seen.Status; {
	case status < 200:
	case status < 300:
		f = s.judgeSuccess()
	case status < 400 && !s.write: // it will be followed, or is the answer
	default:
		body, _ := s.body.whole()
		f = FromHTTP(s.provider.name, status, s.header, body)
	}
	if f != nil {
		first(&f.Provider, s.provider.name)
		first(&f.RequestID, s.seen.RequestID)
	}
	return f
}

// judgeSuccess looks only at what is no answer in the terms of its own protocol: a model that refused, or ran out of room,
// has answered.
func (s *send) judgeSuccess() *Fault {
	switch {
	case s.stream != nil:
		course := &s.stream.course
		cut := s.stream.cut() && (s.seen.Phase == PhaseDone || s.broken != nil)
		if (s.provider.model || course.model) && (course.fault != nil || cut) {
			return course.end()
		}
	case s.provider.model && s.readable():
		return s.judgeBody()
	}
	return nil
}

// judgeBody finds an error in the body of a success, or that it should have a result and has none.
func (s *send) judgeBody() *Fault {
	body, _ := s.body.whole()
	f := FromHTTP(s.provider.name, s.seen.Status, s.header, body)
	switch {
	case f == nil, failedIn("", body):
		return f
	case f.Reason == ReasonResponseUnreadable && (!json.Valid(body) || s.generates()):
		return f
	}
	return nil
}

// generates reports whether the request asked a model for something, so that an answer without a result is none.
func (s *send) generates() bool {
	if !s.write || s.seen.Usage.Model == "" {
		return false
	}
	path := strings.ToLower(s.seen.Path)
	return slices.ContainsFunc([]string{"/completions", "/messages", "/responses", "generatecontent", "/converse", "/converse-stream",
		"/invoke", "/chat", "/generate"}, func(end string) bool { return strings.HasSuffix(path, end) })
}

// readable reports whether all of the answer's body is there, and is of a kind that can be judged.
func (s *send) readable() bool {
	_, whole := s.body.whole()
	kind, _, _ := strings.Cut(strings.ToLower(s.header.Get("Content-Type")), ";")
	kind = strings.TrimSpace(kind)
	one := kind == "application/json" || strings.HasSuffix(kind, "+json") && !strings.HasSuffix(kind, "stream+json") || kind == "text/html"
	return whole && s.seen.Phase == PhaseDone && !s.coded && s.seen.Method != http.MethodHead && one
}

// end notes that nothing more will come.
func (s *send) end(now time.Time) {
	if s.over {
		return
	}
	if s.stream != nil {
		s.stream.end()
	}
	s.meter()
	if s.err == nil && s.stop == nil {
		s.answer = s.judge()
	}
	s.over, s.seen.Ended = true, now
	s.header, s.body = nil, clip{}
}

// meter reads model and usage out of what there is.
func (s *send) meter() {
	u := &s.seen.Usage
	switch {
	case s.stream != nil:
		u.reach(s.stream.usage)
	case s.coded || s.seen.Status == 0:
	default:
		u.reach(usageOf(&s.body))
	}
	if u.used() || u.Model != "" {
		u.Provider = s.seen.Provider
	}
}

// snapshot returns what is known now.
func (s *send) snapshot() Send {
	if !s.over {
		c := *s // metering must not disturb a stream that is being written
		c.meter()
		s.seen.Usage = c.seen.Usage
	}
	v := s.seen
	v.Outcome = s.outcome()
	if f := s.fault(); f != nil {
		v.Class, v.Reason = f.Class, f.Reason
	}
	if s.stop != nil {
		v.Refused = s.stop.Reason
	}
	return v
}

// answered notes status and headers.
func (s *send) answered(r *http.Response) {
	s.reach(PhaseAnswered)
	s.seen.Status = r.StatusCode
	s.header = r.Header.Clone()
	s.header.Del("Set-Cookie")
	if s.a.Provider == "" {
		s.provider = providerOf(s.seen.Host, s.seen.Path, r.Header)
	}
	s.seen.Provider = s.provider.name
	for _, name := range s.provider.requestID {
		if id := r.Header.Get(name); id != "" {
			s.seen.RequestID = cleanText(id, maxWord)
			break
		}
	}
	s.seen.Limits = limitsIn(r.Header)
	s.coded = r.Header.Get("Content-Encoding") != "" && !r.Uncompressed
	if s.coded || r.StatusCode < 200 || r.StatusCode >= 300 {
		return
	}
	if isStream(r.Header) && !strings.Contains(r.Header.Get("Content-Type"), "amazon") { // whose usage is at its end, as in other bodies
		s.stream = &streamTap{course: stream{p: s.provider, header: s.header}}
	}
}

// saw takes in a piece of the answer's body.
func (s *send) saw(p []byte) {
	s.seen.ReadBytes += int64(len(p))
	switch {
	case s.coded && s.seen.Status < http.StatusBadRequest || s.over:
	case s.stream != nil:
		s.stream.write(p)
	default:
		s.body.write(p)
	}
}

const (
	maxLimits    = 24  // headers about rate limits that are kept of one answer
	maxLimitText = 100 // bytes of the value of one
)

// limitsIn picks the headers that tell about rate limits.
func limitsIn(h http.Header) map[string]string {
	limits := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(h)) {
		values := h[name]
		name = strings.ToLower(name)
		if len(values) == 0 || len(name) > maxLimitText || len(limits) >= maxLimits {
			continue
		}
		if strings.Contains(name, "ratelimit") || strings.HasPrefix(name, "retry-after") {
			limits[name] = cleanText(values[0], maxLimitText)
		}
	}
	if len(limits) == 0 {
		return nil
	}
	return limits
}
