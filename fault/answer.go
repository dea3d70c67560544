package fault

import (
	"bytes"
	"compress/gzip"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
)

// maxBody is how much of a body is looked at. Codes stand at the beginning of it.
const maxBody = 64 << 10

// answer is what a far end said, brought into one form whatever the dialect: the status, the headers, and the few
// things in a body that a classification can hang on.
type answer struct {
	status int // of the body if it names one, else of HTTP
	http   int // of HTTP
	header http.Header

	code      string // machine-readable code
	kind      string // type, or canonical status word
	details   []string
	quota     string // names of the quotas that are used up
	param     string
	message   string
	word      string // all that an error says, where it is one text
	exception string // the last member of the body whose name ends in Exception
	members   int    // of the body
	folded    string // the beginning of message, in lower case
	requestID string
	retryIn   string // RetryInfo
	reset     string // a limit's reset that the body tells, in epoch milliseconds
	raw       string // the answer of somebody further behind, as text
	from      string // and who that was

	event   string // what the body, or one event of a stream, says that it is
	object  string // what kind of thing the body says it is
	state   string // of a job
	finish  string // why a model stopped
	refusal bool
	blocked bool // the prompt was, before a model saw it

	done    bool // a stream says that it is complete
	dialect bool // a model speaks, in a way whose end is known

	failed    bool // the body says that it is an error
	structure bool // the body is JSON or XML with something in it that we know
	substance bool // and something besides the envelope
	json      bool // the body looks like JSON
	html      bool // a page for people
	whole     bool // the body could be read to its end
	cut       bool // and that end is ours: the rest was not looked at
	empty     bool
	lines     bool // the body may be JSON line by line: it is called something else than JSON
	several   bool // and it is: a file of records, whose errors are theirs
}

// slot puts a value of a body where it belongs in an [answer].
type slot func(a *answer, v value)

// textTo makes a slot of which the first text wins.
func textTo(field func(a *answer) *string) slot {
	return func(a *answer, v value) { first(field(a), v.text()) }
}

func first(to *string, text string) {
	if *to == "" {
		*to = text
	}
}

var (
	toMessage   = textTo(func(a *answer) *string { return &a.message })
	toParam     = textTo(func(a *answer) *string { return &a.param })
	toRequestID = textTo(func(a *answer) *string { return &a.requestID })
	toRetryIn   = textTo(func(a *answer) *string { return &a.retryIn })
	toReset     = textTo(func(a *answer) *string { return &a.reset })
	toRaw       = textTo(func(a *answer) *string { return &a.raw })
	toFrom      = textTo(func(a *answer) *string { return &a.from })
	toState     = textTo(func(a *answer) *string { return &a.state })
	toFinish    = textTo(func(a *answer) *string { return &a.finish })
)

// toCode takes a code. One that is an HTTP status is the status, unless that would make of a refusal what it is not.
func toCode(a *answer, v value) {
	code := v.text()
	if n, err := strconv.Atoi(code); err != nil {
		first(&a.code, awsCode(code))
	} else if n >= 400 && n <= 599 && a.status == a.http {
		if !a.settled(n) {
			a.status = n
		}
	} else if n < 100 || n > 599 {
		first(&a.code, code)
	}
}

// settled reports whether a number in the body cannot replace the status: none does where identity or money refused,
// and none turns a refusal into a failure.
func (a *answer) settled(n int) bool {
	switch a.http {
	case http.StatusUnauthorized, http.StatusPaymentRequired, http.StatusForbidden, http.StatusProxyAuthRequired:
		return true
	}
	return a.http >= 400 && a.http < 500 && n >= 500
}

func toKind(a *answer, v value) {
	if v.kind == '"' { // some repeat the HTTP status there, as a number
		first(&a.kind, v.text())
	}
}

func toDetail(a *answer, v value) {
	if len(a.details) < 8 && v.kind == '"' {
		a.details = append(a.details, v.text())
	}
}

func toQuota(a *answer, v value) {
	if len(a.quota) < 1000 {
		a.quota += " " + v.text()
	}
}

func toEvent(a *answer, v value) {
	name := v.text()
	a.failed = a.failed || name == "error" || name == "exception"
	first(&a.event, name)
}

// toObject takes the kind of thing that a body says it is. It is no name of an event where there is a better one.
func toObject(a *answer, v value) {
	a.object = v.text()
	a.failed = a.failed || a.object == "error"
}

func toPrompt(a *answer, v value) { a.finish, a.blocked = v.text(), v.kind == '"' }

func toRefusal(a *answer, v value) { a.refusal = a.refusal || len(v.raw) > 0 }

func toPart(a *answer, v value) { a.refusal = a.refusal || string(v.raw) == "refusal" }

func toFlagged(a *answer, v value) {
	if v.kind != 'n' {
		a.details = append(a.details[:min(len(a.details), 7)], "moderation")
	}
}

func toDone(a *answer, v value) { a.done, a.dialect = v.kind == 't', true }

func toDialect(a *answer, _ value) { a.dialect = true }

// toError takes what an API keeps for errors: a text, or just true. Null and false are none; of an object counts what is
// in it.
func toError(a *answer, v value) {
	a.failed = a.failed || v.kind == 't' || v.kind == '"' && len(v.raw) > 0
	if v.kind == '"' {
		first(&a.word, v.text())
		toMessage(a, v)
	}
}

// inError reports whether a path leads into what an API keeps for errors.
func inError(path []byte) bool {
	for _, outer := range []string{"", "response.", "choices[]."} {
		if in, ok := bytes.CutPrefix(path, []byte(outer+"error")); ok && len(in) > 0 && (in[0] == '.' || in[0] == '[') {
			return true
		}
	}
	return false
}

// says reports whether a value is a scalar that says something: not null, false, zero or "".
func (v value) says() bool {
	switch v.kind {
	case '"', '0':
		return len(v.raw) > 0 && string(v.raw) != "0"
	}
	return v.kind == 't'
}

// toSeconds and toNanos take the two parts of a duration that is an object.
func toSeconds(a *answer, v value) {
	if text := v.text(); text != "" && (a.retryIn == "" || strings.Trim(a.retryIn, "0123456789") == "ns") {
		a.retryIn = text + "s" + a.retryIn
	}
}

func toNanos(a *answer, v value) {
	if text := v.text(); text != "" && !strings.HasSuffix(a.retryIn, "ns") {
		a.retryIn += text + "ns"
	}
}

// slots says where things stand in the bodies of all dialects. What is nil belongs to the envelope of an answer,
// and is no result.
var slots = map[string]slot{
	"error.code": toCode, "code": toCode, "Code": toCode, "__type": toCode, "Error.Code": toCode,
	"Output.__type": toCode, "error_code": toCode, "errorCode": toCode, "statusCode": toCode,
	":exception-type": toCode, ":error-code": toCode,
	"response.error.code": toCode, "choices[].error.code": toCode,

	"error.type": toKind, "error.status": toKind, "response.error.type": toKind, "choices[].error.type": toKind,
	"error.metadata.error_type": toKind, "choices[].error.metadata.error_type": toKind,

	"error.details[].reason": toDetail, "error.innererror.code": toDetail, "error.inner_error.code": toDetail,
	"error.details.error_code": toDetail, "error.decline_code": toDetail, "error.metadata.limit_source": toDetail,
	"error.errors[].reason": toDetail,

	"error.details[].metadata.quota_limit": toQuota, "error.details[].violations[].quotaId": toQuota,

	"error.param": toParam, "param": toParam, "error.details[].fieldViolations[].field": toParam,

	"error.message": toMessage, "message": toMessage, "Message": toMessage, "detail": toMessage, "msg": toMessage,
	"detail[].msg": toMessage, "error_description": toMessage, "error_message": toMessage, "title": toMessage,
	"response.error.message": toMessage, "choices[].error.message": toMessage, "x_groq.error": toMessage,
	":error-message": toMessage,

	"request_id": toRequestID, "requestId": toRequestID, "RequestId": toRequestID, "x_groq.id": toRequestID,

	"error.details[].retryDelay":               toRetryIn,
	"error.details[].retryDelay.seconds":       toSeconds,
	"error.details[].retryDelay.nanos":         toNanos,
	"error.metadata.headers.X-RateLimit-Reset": toReset,
	"error.metadata.raw":                       toRaw,
	"error.metadata.provider_name":             toFrom,
	"error.metadata.reasons[]":                 toFlagged,
	"error.metadata.flagged_input":             toFlagged,

	"type": toEvent, "event_type": toEvent, ":event-type": toEvent, ":message-type": toEvent, "object": toObject,
	"status": toState, "response.status": toState, "done": toDone,

	"choices[].finish_reason": toFinish, "candidates[].finishReason": toFinish, "finish_reason": toFinish,
	"stop_reason": toFinish, "stopReason": toFinish, "delta.stop_reason": toFinish, "done_reason": toFinish,
	"incomplete_details.reason": toFinish, "response.incomplete_details.reason": toFinish,
	"delta.finish_reason": toFinish, "response.finish_reason": toFinish, "messageStop.stopReason": toFinish,
	"promptFeedback.blockReason": toPrompt,

	"choices[].message.refusal": toRefusal, "choices[].delta.refusal": toRefusal,
	"output[].content[].type": toPart, "response.output[].content[].type": toPart,

	"error": toError, "response.error": toError, "choices[].error": toError,

	"id": nil, "created": nil, "created_at": nil, "model": nil, "usage": nil, "usageMetadata": nil, "modelVersion": nil,
	"responseId": nil, "provider": nil, "system_fingerprint": nil, "service_tier": nil,
	"choices": toDialect, "candidates": toDialect,
}

var byteOrderMark = []byte("\xef\xbb\xbf")

// isJSON reports whether a content type is that of one JSON text, and not of lines of them.
func isJSON(contentType string) bool {
	kind, _, _ := mime.ParseMediaType(contentType)
	switch kind {
	case "application/json", "text/json":
		return true
	case "application/stream+json":
		return false
	}
	return strings.HasSuffix(kind, "+json")
}

// readAnswer brings a response into one form. The body may be anything, of any length.
func readAnswer(status int, h http.Header, body []byte) *answer {
	a := &answer{status: status, http: status, header: h, whole: true}
	a.code = awsCode(h.Get("X-Amzn-Errortype"))
	a.failed = a.code != ""
	if len(body) > maxBody {
		body, a.cut = body[:maxBody], true
	}
	kind := h.Get("Content-Type")
	if body = bytes.TrimSpace(bytes.TrimPrefix(a.unzip(body), byteOrderMark)); len(body) > 0 {
		a.read(kind, body)
	} else {
		a.empty = true
	}
	a.html = a.html || strings.HasPrefix(kind, "text/html") && !a.json
	a.structure = a.structure || a.code != ""
	return a
}

// read reads a body by how it begins; what it is called by the content type is often wrong.
func (a *answer) read(kind string, body []byte) {
	switch {
	case body[0] == '{' || body[0] == '[':
		a.json, a.lines = true, kind != "" && !isJSON(kind)
		a.readJSON(body)
		if line, rest, _ := bytes.Cut(body, []byte("\n")); a.lines && !a.whole && len(rest) > 0 {
			a.several = scanJSON(bytes.TrimSpace(line), func([]byte, value) {})
		}
	case body[0] == '<':
		a.readMarkup(body)
	case a.http >= 400 && (bytes.HasPrefix(body, []byte("data:")) || bytes.HasPrefix(body, []byte("event:"))):
		a.readEvents(body)
	default:
		a.json = a.http < 300 && isJSON(kind)
		a.whole = !a.json || scanJSON(body, func([]byte, value) {})
		a.message = firstLine(body)
	}
}

func (a *answer) readJSON(body []byte) {
	if !scanJSON(body, a.see) {
		a.whole = false
	}
}

// readEvents reads the error out of a stream that has an error status.
func (a *answer) readEvents(body []byte) {
	for line := range bytes.Lines(body) {
		if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			a.readJSON(bytes.TrimSpace(data))
		}
	}
}

// readMarkup tells AWS's XML from a page.
func (a *answer) readMarkup(body []byte) {
	text := string(body)
	if code := awsCode(element(text, "Code")); code != "" {
		a.structure, a.failed = true, true
		a.code, a.message, a.requestID = code, element(text, "Message"), element(text, "RequestId")
		return
	}
	if !strings.HasPrefix(text, "<?xml") {
		a.html, a.message = true, strings.TrimSpace(element(text, "title"))
	}
}

// element returns what stands in the first element of that name, with attributes or without.
func element(text, name string) string {
	for {
		_, after, ok := strings.Cut(text, "<"+name)
		if !ok {
			return ""
		}
		text = after
		attributes, inside, ok := strings.Cut(text, ">")
		if !ok {
			return ""
		}
		if attributes != "" && strings.IndexByte(" \t\r\n", attributes[0]) < 0 {
			continue // a longer name
		}
		inside, _, _ = strings.Cut(inside, "</"+name+">")
		return inside
	}
}

// unzip returns the beginning of a body that net/http was not to unzip, and the body itself where the header lies.
func (a *answer) unzip(body []byte) []byte {
	if len(body) < 2 || body[0] != 0x1f || body[1] != 0x8b {
		return body
	}
	r, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return body
	}
	plain, err := io.ReadAll(io.LimitReader(r, maxBody+1))
	if err != nil && len(plain) == 0 {
		return body
	}
	if len(plain) > maxBody {
		plain, a.cut = plain[:maxBody], true
	}
	return plain
}

// see takes a value of a JSON body where it belongs.
func (a *answer) see(path []byte, v value) {
	put, known := slots[string(path)]
	a.structure = a.structure || known
	if v.says() && inError(path) {
		a.failed = true
	}
	a.member(path, v)
	switch {
	case put != nil:
		put(a, v)
	case a.exception != "" && string(path) == a.exception+".message":
		toMessage(a, v)
	case !known && len(path) > 0 && v.kind != 'n':
		a.substance = true
	}
}

// member counts the members of the body, and notes one that is named after an exception.
func (a *answer) member(path []byte, v value) {
	if len(path) == 0 || bytes.IndexByte(path, '.') >= 0 || path[len(path)-1] == ']' {
		return
	}
	a.members++
	if v.kind == '{' && bytes.HasSuffix(path, []byte("Exception")) {
		a.exception = string(path)
	}
}

// awsCode strips what AWS puts around a code: com.amazonaws.service#Code:http://…
func awsCode(code string) string {
	if _, name, ok := strings.Cut(code, "#"); ok {
		code = name
	}
	code, _, _ = strings.Cut(code, ":http")
	return code
}

func firstLine(body []byte) string {
	line, _, _ := bytes.Cut(body, []byte("\n"))
	return string(line[:min(len(line), maxMessage)])
}
