package fault

import (
	"bytes"
	"mime"
	"net/http"
	"strings"
)

// FromStream classifies the body of a stream that began with a status of 2xx: server-sent events, JSON values
// line by line, or AWS's event stream, which is told by how it begins. The first event that is an error decides, or that
// says why a model stopped if that makes it no result. A stream of a provider of models, or in the manner of one, that
// ended without its last event is outcome_unknown, stream_truncated. It returns nil for a stream that is complete.
//
// One event's data alone will do, if it is an error. The provider is named as for [FromHTTP], and the headers, which may be
// nil, serve the same. Of an event no more than 64 KiB are looked at. Whatever the class, the outcome is maybe_executed,
// but for a prompt that was blocked before a model saw it. FromStream never panics.
func FromStream(provider string, header http.Header, body []byte) *Fault {
	return providerFor(provider, header).fromStream(header, body)
}

// isStream reports whether a response streams events.
func isStream(h http.Header) bool {
	kind, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	switch kind {
	case "text/event-stream", "application/x-ndjson", "application/json-seq",
		"application/vnd.amazon.eventstream":
		return true
	}
	return false
}

func (p *provider) fromStream(h http.Header, body []byte) *Fault {
	s := stream{p: p, header: h}
	if len(body) > 0 && body[0] == 0 { // the length of a frame; text has no NUL
		s.frames(body)
	} else {
		s.lines(body)
	}
	return s.end()
}

// stream follows one stream from event to event.
type stream struct {
	p      *provider
	header http.Header
	fault  *Fault // the first
	model  bool   // a model streams, by its manner
	ended  bool   // the stream said that it is complete
	name   string // of the event whose data comes next
	data   []byte // of the event that is being read
	text   []byte // of a JSON value over several lines that is being read
}

// end judges a stream that has ended.
func (s *stream) end() *Fault {
	if s.fault == nil && !s.ended && (s.p.model || s.model) {
		f := ReasonStreamTruncated.fault()
		s.fault = s.p.complete(&answer{http: http.StatusOK, header: s.header}, f)
		s.fault.Message = "the stream ended before it had said that it was complete"
	}
	return s.fault
}

// lines reads server-sent events and lines of JSON alike: a line that begins like JSON is an event of its own, as is
// Gemini's error between two events.
func (s *stream) lines(body []byte) {
	for line := range bytes.Lines(body) {
		if s.fault != nil {
			return
		}
		line = bytes.TrimPrefix(bytes.TrimRight(line, "\r\n"), byteOrderMark)
		if len(s.text) > 0 && s.more(line) {
			continue
		}
		if len(line) == 0 {
			s.dispatch()
			continue
		}
		if line[0] == '{' || line[0] == '[' || line[0] == 0x1e {
			s.json(line)
			continue
		}
		field, text, _ := bytes.Cut(line, []byte(":"))
		text = bytes.TrimPrefix(text, []byte(" "))
		switch string(field) {
		case "event":
			s.name = string(text[:min(len(text), maxWord)])
		case "data":
			if len(s.data) > 0 {
				s.data = append(s.data, '\n')
			}
			s.data = append(s.data, text[:min(len(text), max(0, maxBody-len(s.data)))]...)
		}
	}
	s.whole()
	s.dispatch()
}

// json takes in a line that begins like JSON: an event, or the beginning of one over several lines.
func (s *stream) json(line []byte) {
	if end := line[len(line)-1]; end == '{' || end == '[' || end == ',' {
		s.text = append(s.text[:0], bytes.TrimLeft(line[:min(len(line), maxBody)], "\x1e[")...)
		if len(s.text) > 0 {
			return
		}
	}
	s.event("", bytes.TrimLeft(line, "\x1e"))
}

// more takes in a line of a JSON value over several lines, which ends where it stands at the margin again. It reports
// whether the line is one.
func (s *stream) more(line []byte) bool {
	if len(line) == 0 || bytes.IndexByte([]byte(" \t\"}]"), line[0]) < 0 {
		s.whole()
		return false
	}
	end := line[0] == '}' || line[0] == ']'
	if end {
		line = line[:1]
	}
	s.text = append(append(s.text, line[:min(len(line), max(0, maxBody-len(s.text)))]...), '\n')
	if end {
		s.whole()
	}
	return true
}

// whole hands on a JSON value over several lines.
func (s *stream) whole() {
	if len(s.text) > 0 {
		s.event("", s.text)
	}
	s.text = s.text[:0]
}

// dispatch hands on the event that was read.
func (s *stream) dispatch() {
	if s.name != "" || len(s.data) > 0 {
		s.event(s.name, s.data)
	}
	s.name, s.data = "", s.data[:0]
}

// event takes in one event. A name given by the framing stands for a type inside of the data.
func (s *stream) event(name string, data []byte) {
	if s.fault != nil {
		return
	}
	data = bytes.TrimSpace(data)
	if string(data) == "[DONE]" {
		s.ended = true
		return
	}
	a := &answer{status: http.StatusOK, http: http.StatusOK, header: s.header, event: name}
	a.failed = name == "error" || name == "exception"
	if len(data) > 0 && (data[0] == '{' || data[0] == '[') {
		if len(data) > maxBody {
			data = data[:maxBody]
		}
		a.whole = scanJSON(data, a.see)
		s.p.unwrap(a)
	} else if a.failed {
		a.message = firstLine(data)
	}
	s.take(a)
}

// take judges an event, and notes whether it is the last.
func (s *stream) take(a *answer) {
	if a.failed {
		f := s.p.judge(a)
		if f.Reason == ReasonUnrecognized {
			f = s.p.unnamed()
		}
		s.fault = s.p.complete(a, f)
		return
	}
	if f, ok := finished(a); ok {
		s.fault = s.p.complete(a, f)
		return
	}
	if !a.modelSpeaks() {
		return
	}
	s.model = true
	s.ended = s.ended || a.last()
}

// modelSpeaks reports whether an event is of a dialect whose last event is known.
func (a *answer) modelSpeaks() bool {
	return a.dialect || a.finish != "" || strings.HasPrefix(a.event, "response.") || lastEvents[a.event] || firstEvents[a.event]
}

var firstEvents = map[string]bool{
	"message_start": true, "messageStart": true, "message-start": true, "stream-start": true,
	"content_block_start": true, "content_block_delta": true,
}

var lastEvents = map[string]bool{
	"message_stop": true, "messageStop": true, "message-end": true, "stream-end": true,
	"response.completed": true, "response.incomplete": true, "response.failed": true, "response.done": true,
	"interaction.complete": true, "interaction.completed": true,
	"image_generation.completed": true, "image_edit.completed": true, "transcript.text.done": true, "speech.audio.done": true,
}

// last reports whether an event ends its stream.
func (a *answer) last() bool {
	switch {
	case lastEvents[a.event], a.done:
		return true
	case firstEvents[a.event], strings.HasPrefix(a.event, "message"), strings.HasPrefix(a.event, "response."):
		return false // why the model stopped is told before the end
	}
	return a.finish != "" && a.whole
}
