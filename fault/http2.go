package fault

import (
	"reflect"
	"strings"
)

// refusedStream is HTTP/2's error code REFUSED_STREAM.
const refusedStream = 7

// fromHTTP2 recognises how HTTP/2 ends a request: by the shape of the errors, because net/http has its own copy of
// golang.org/x/net/http2 with types that nobody else can name.
func fromHTTP2(err error) (Fault, bool) {
	path := fromPath(err)
	if path != "net/http" && !strings.HasSuffix(path, "/http2") && !strings.HasPrefix(path, "net/http/internal/http2") {
		return Fault{}, false
	}
	v := reflect.Indirect(reflect.ValueOf(err))
	if v.Kind() != reflect.Struct {
		return Fault{}, false
	}
	switch strings.TrimPrefix(v.Type().Name(), "http2") {
	case "StreamError":
		if code := v.FieldByName("Code"); code.IsValid() && code.CanUint() && code.Uint() == refusedStream {
			return ReasonRefusedStream.fault(), true
		}
		return ReasonStreamReset.fault(), true // says nothing of what was done before
	case "GoAwayError":
		// The connection ended with our stream at or below the last that the server took; one above it ends otherwise.
		return Fault{Class: OutcomeUnknown, Reason: ReasonGoAway, Outcome: OutcomeMaybeExecuted}, true
	}
	return Fault{}, false
}

// fromText recognises the few errors of net/http and pgx that are made of nothing but a text and that nobody exports, or
// that would need an import. The whole text or its fixed beginning must be theirs.
func (w *walk) fromText(err error) (Fault, bool) {
	if path := fromPath(err); path != "errors" && path != "fmt" {
		return Fault{}, false
	}
	text := err.Error()
	for _, t := range texts {
		if (w.roundTrip || !t.roundTrip) && (text == t.text || t.more && strings.HasPrefix(text, t.text)) {
			return t.is.fault(), true
		}
	}
	return Fault{}, false
}

var texts = []struct {
	text      string
	more      bool // something follows
	roundTrip bool // believed only inside of a *url.Error
	is        Reason
}{
	{"commit unexpectedly resulted in rollback", false, false, ReasonCommitRolledBack}, // pgx.ErrTxCommitRollback

	// Only streams above the last one that the server took are ended so.
	{"http2: Transport received Server's graceful shutdown GOAWAY", false, false, ReasonGoAway},
	{"http2: Transport received GOAWAY from server ErrCode:", true, false, ReasonGoAway},

	{"http: server closed idle connection", false, false, ReasonConnectionLost}, // bytes may have been written
	{"unsupported protocol scheme ", true, true, ReasonWrongScheme},
	{"http: no Host in request URL", false, true, ReasonBadAddress},
	{"malformed HTTP response ", true, true, ReasonResponseUnreadable},
	{"malformed HTTP status code ", true, true, ReasonResponseUnreadable},
	{"malformed HTTP version ", true, true, ReasonResponseUnreadable},
}

// unsent returns what err means where it is known from elsewhere that no connection was had: only then is the text of a
// proxy's refusal one, because net/http makes an error of nothing but the status text of a CONNECT.
func unsent(err error) *Fault {
	f, _ := NotSent(err).(*Fault)
	if f == nil {
		return nil
	}
	left := maxNodes
	switch {
	case f.Reason != ReasonUnrecognized && f.Reason != ReasonNotSent:
	case anyNode(err, &left, func(err error) bool { return err.Error() == "Proxy Authentication Required" }):
		f.Class, f.Reason = AccessDenied, ReasonProxyAuthentication
	default:
		f.Reason = ReasonProxyUnreachable
	}
	return f
}
