package fault

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
)

// reply is an HTTP response, as far as the error of an SDK has kept it.
type reply struct {
	provider string
	status   int
	header   http.Header
	request  *http.Request
	body     []byte
}

// fromSDK recognises the errors in which SDKs keep an HTTP response, by their methods and the names of their fields, so
// that the package needs none of them: openai-go, anthropic-sdk-go, google genai and googleapi, AWS, stripe-go,
// Azure, and what else has a field Response of type *http.Response.
func (w *walk) fromSDK(err error) (Fault, bool) {
	f, ok := fromReply(err)
	w.said, f.Message = f.Message, ""
	return f, ok
}

func fromReply(err error) (Fault, bool) {
	if f, ok := fromSmithy(err); ok {
		return f, true
	}
	v := reflect.Indirect(reflect.ValueOf(err))
	if v.Kind() != reflect.Struct {
		return Fault{}, false
	}
	if event := field(v, "Event"); event.Kind() == reflect.Struct { // openai-go: an error inside a stream
		if data := field(event, "Data"); data.Kind() == reflect.Slice && data.Type().Elem().Kind() == reflect.Uint8 {
			return given(FromStream(sdkOf(v.Type()), nil, data.Bytes()))
		}
	}
	r, ok := replyOf(err, v)
	if !ok {
		return Fault{}, false
	}
	return given(r.fault(""))
}

func given(f *Fault) (Fault, bool) {
	if f == nil {
		return Fault{}, false
	}
	return *f, true
}

// fault classifies the reply. An SDK that returns an error after a success could not read it.
func (r *reply) fault(code string) *Fault {
	p := providerFor(r.provider, r.header)
	if r.request != nil && r.request.URL != nil {
		if at := providerOf(r.request.URL.Host, r.request.URL.Path, r.header); at != &generic {
			p = at
		}
	}
	h := r.header
	if code != "" {
		h = h.Clone()
		if h == nil {
			h = http.Header{}
		}
		h.Set("X-Amzn-Errortype", code)
	}
	f := p.fromHTTP(r.status, h, r.body)
	if f == nil {
		f = p.complete(&answer{http: r.status, header: h}, ReasonResponseUnreadable.fault())
	}
	return f
}

// replyOf reads the reply out of the fields of err.
func replyOf(err error, v reflect.Value) (reply, bool) {
	r := reply{provider: sdkOf(v.Type())}
	known := r.provider != ""
	for _, name := range []string{"Response", "RawResponse"} {
		if response, ok := valueOf[*http.Response](field(v, name)); ok && response != nil {
			r.status, r.header, r.request, known = response.StatusCode, response.Header, response.Request, true
		}
	}
	if r.status == 0 {
		r.status = statusOf(v)
	}
	if h, ok := valueOf[http.Header](field(v, "Header")); ok {
		r.header, known = h, known || v.Type().Name() == "Error"
	}
	r.body = bodyOf(err, v)
	if last := reflect.Indirect(field(v, "LastResponse")); last.Kind() == reflect.Struct { // stripe-go
		r.header, _ = valueOf[http.Header](field(last, "Header"))
		r.body, _ = valueOf[[]byte](field(last, "RawJSON"))
	}
	if len(r.body) == 0 && r.provider != "" {
		if text, err := json.Marshal(v.Interface()); err == nil {
			r.body = append(append([]byte(`{"error":`), text...), '}')
		}
	}
	return r, known && r.status >= 100 && r.status <= 599
}

func statusOf(v reflect.Value) int {
	for _, name := range []string{"StatusCode", "HTTPStatusCode", "Code"} {
		if n := field(v, name); n.IsValid() && n.CanInt() {
			return int(n.Int())
		}
	}
	return 0
}

func bodyOf(err error, v reflect.Value) []byte {
	if x, ok := err.(interface{ RawJSON() string }); ok {
		return []byte(x.RawJSON())
	}
	if text, ok := valueOf[string](field(v, "Body")); ok {
		return []byte(text)
	}
	body, _ := valueOf[[]byte](field(v, "Body"))
	return body
}

// field returns an exported field, also one of an embedded struct; the zero Value if there is none.
func field(v reflect.Value, name string) reflect.Value {
	t, ok := v.Type().FieldByName(name)
	if !ok || !t.IsExported() {
		return reflect.Value{}
	}
	f, err := v.FieldByIndexErr(t.Index)
	if err != nil || !f.CanInterface() {
		return reflect.Value{}
	}
	return f
}

func valueOf[T any](v reflect.Value) (t T, ok bool) {
	if v.IsValid() {
		t, ok = v.Interface().(T)
	}
	return t, ok
}

// sdkOf returns the provider whose SDK a type comes from, "" if it is none that is known.
func sdkOf(t reflect.Type) string {
	path := t.PkgPath()
	for _, sdk := range []struct{ part, provider string }{
		{"/anthropic-sdk-go", "anthropic"}, {"/openai-go", "openai"}, {"/go-openai", "openai"},
		{"google.golang.org/genai", "gemini"}, {"google.golang.org/api/googleapi", "gemini"},
		{"/stripe-go", "stripe"}, {"/ollama/api", "ollama"},
	} {
		if strings.Contains(path, sdk.part) {
			return sdk.provider
		}
	}
	return ""
}

// fromSmithy recognises the errors of the AWS SDK. The status is in one error and the code in another inside of it.
// That it calls every failed send a connection error says nothing: what was sent is in the error that it wraps.
func fromSmithy(err error) (Fault, bool) {
	r := reply{provider: "aws", status: http.StatusOK} // a code alone is an exception in a stream
	outer, answered := err.(interface{ HTTPStatusCode() int })
	inner := err
	if answered {
		response, ok := call(reflect.ValueOf(err).MethodByName("HTTPResponse"))
		if !ok {
			return Fault{}, false
		}
		r.status = outer.HTTPStatusCode()
		if response = reflect.Indirect(response); response.Kind() == reflect.Struct {
			if raw, ok := valueOf[*http.Response](field(response, "Response")); ok && raw != nil {
				r.header, r.request = raw.Header, raw.Request
			}
		}
	}
	for left := maxNodes; inner != nil && left > 0; left-- {
		if x, ok := inner.(interface {
			ErrorCode() string
			ErrorMessage() string
		}); ok {
			if strings.Contains(reflect.TypeOf(inner).String(), "bedrock") || strings.Contains(fromPath(inner), "/bedrock") {
				r.provider = "bedrock"
			}
			r.body, _ = json.Marshal(map[string]string{"__type": x.ErrorCode(), "message": x.ErrorMessage()})
			return given(r.fault(x.ErrorCode()))
		}
		next, ok := inner.(interface{ Unwrap() error })
		if !answered || !ok {
			break
		}
		inner = next.Unwrap()
	}
	if !answered || r.status == 0 { // 0: a send that failed, with nothing of a response in it
		return Fault{}, false
	}
	return given(r.fault(""))
}

// fromPath returns the path of the package that the concrete type of err comes from.
func fromPath(err error) string {
	t := reflect.TypeOf(err)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.PkgPath()
}
