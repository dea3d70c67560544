package fault

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"
)

const (
	maxHead  = 64 << 10 // bytes of a body that are kept from its beginning
	maxTail  = 16 << 10 // and from its end, if it is longer
	maxModel = 1 << 20  // bytes of a request that are looked through for its model
)

// clip keeps the beginning and the end of what is written to it, however long that is.
type clip struct {
	head, tail []byte // tail is empty while head holds all
	size       int64
}

func (c *clip) write(p []byte) {
	c.size += int64(len(p))
	n := min(len(p), maxHead-len(c.head))
	c.head = append(c.head, p[:n]...)
	p = p[n:]
	if len(p) > maxTail {
		p = p[len(p)-maxTail:]
	}
	if len(c.tail)+len(p) > 4*maxTail { // move seldom
		keep := maxTail - len(p)
		c.tail = append(c.tail[:0], c.tail[len(c.tail)-keep:]...)
	}
	c.tail = append(c.tail, p...)
}

// whole returns all that was written, if that was no more than what is kept of a beginning.
func (c *clip) whole() ([]byte, bool) { return c.head, c.size == int64(len(c.head)) }

func (c *clip) reset() { c.head, c.tail, c.size = c.head[:0], c.tail[:0], 0 }

// streamTap follows a body of events while it passes by, and keeps no more than one of them.
type streamTap struct {
	course stream // how it goes
	line   clip   // that is being written
	name   string // of the event that is being written
	data   clip   // and its data
	usage  Usage
	begun  bool // a first line was seen
}

func (s *streamTap) write(p []byte) {
	for {
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			s.line.write(p)
			return
		}
		s.line.write(p[:end])
		s.next()
		p = p[end+1:]
	}
}

// end takes in what the body ended with.
func (s *streamTap) end() {
	s.next()
	s.dispatch()
}

// next takes in the line that has just been completed. One that begins like JSON is an event of its own: in bodies of
// JSON line by line, and in Gemini's errors between two events.
func (s *streamTap) next() {
	defer s.line.reset()
	line, whole := s.line.whole()
	if whole {
		line = bytes.TrimSuffix(line, []byte("\r"))
	}
	if !s.begun { // a byte order mark may come before it
		s.begun, line = true, bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
	}
	switch {
	case len(line) == 0:
		s.dispatch()
		return
	case line[0] == '{' || line[0] == '[':
		s.dispatch()
		s.line, s.data = s.data, s.line
		s.dispatch()
		return
	}
	switch field, value, _ := bytes.Cut(line, []byte(":")); string(field) {
	case "event":
		s.name = string(bytes.TrimSpace(value[:min(len(value), maxWord)]))
	case "data":
		if s.data.size > 0 {
			s.data.write([]byte("\n"))
		}
		s.data.write(value)
		if !whole {
			s.data.write(s.line.tail)
			s.data.size += s.line.size // what is missing between the two, and a little more
		}
	}
}

// dispatch takes in the event that has just been completed.
func (s *streamTap) dispatch() {
	if s.data.size == 0 && s.name == "" {
		return
	}
	data, whole := s.data.whole()
	if !whole || s.usage.Model == "" || told(data) {
		s.usage.reach(usageOf(&s.data))
	}
	s.course.event(s.name, data)
	if !whole { // its end, which was not looked at, may have said that it was the last
		s.course.ended = true
	}
	if s.course.fault != nil && !failedIn(s.name, data) { // a model that says why it stopped has answered
		s.course.fault, s.course.model, s.course.ended = nil, true, true
	}
	s.name = ""
	s.data.reset()
}

// cut reports whether the stream, whose body has ended, broke off before it had finished.
func (s *streamTap) cut() bool { return s.course.model && !s.course.ended && s.course.fault == nil }

// told reports whether data may tell usage.
func told(data []byte) bool {
	return slices.ContainsFunc(usageMarks, func(mark []byte) bool { return bytes.Contains(data, mark) })
}

// failedIn reports whether a JSON body, or the data of an event of that name, says that it is an error.
func failedIn(name string, data []byte) bool {
	var e struct {
		Type    string          `json:"type"`
		Error   json.RawMessage `json:"error"`
		Choices []struct {
			Error json.RawMessage `json:"error"` // OpenRouter
		} `json:"choices"`
	}
	if !lenient(json.Unmarshal(data, &e)) {
		return name == "error"
	}
	if name == "error" || e.Type == "error" || e.Type == "response.failed" || isError(e.Error) {
		return true
	}
	for _, c := range e.Choices {
		if isError(c.Error) {
			return true
		}
	}
	return false
}

// isError reports whether the member "error" is there and says something.
func isError(member json.RawMessage) bool {
	switch string(member) {
	case "", "null", `""`, "false", "{}":
		return false
	}
	return true
}

// modelIn finds the member "model" of the JSON object that r begins with.
func modelIn(r io.Reader) string {
	d := json.NewDecoder(io.LimitReader(r, maxModel))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return ""
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return ""
		}
		if name == "model" {
			var model string
			_ = d.Decode(&model)
			return cleanText(model, maxWord)
		}
		var skipped json.RawMessage
		if d.Decode(&skipped) != nil {
			return ""
		}
	}
	return ""
}

// modelOfPath finds the model in the path of a request, where Gemini, Bedrock and Azure put it.
func modelOfPath(path string) string {
	for _, before := range []string{"/models/", "/model/", "/deployments/"} {
		if _, rest, ok := strings.Cut(path, before); ok {
			if end := strings.IndexAny(rest, "/"); end >= 0 {
				rest = rest[:end]
			}
			if verb := strings.LastIndexByte(rest, ':'); verb > 0 && before == "/models/" {
				rest = rest[:verb]
			}
			return cleanText(rest, maxWord)
		}
	}
	return ""
}
