package fault_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/cuthttp"
)

// call is what a step does: it sends, reads the answer to its end and takes an error status for an error.
func call(ctx context.Context, rt http.RoundTripper, method, url, body string) error {
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, r)
	if err != nil {
		return err
	}
	return send(rt, req)
}

func send(rt http.RoundTripper, req *http.Request) error {
	resp, err := (&http.Client{Transport: rt}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.ReadAll(resp.Body); err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("answered %d", resp.StatusCode) // as an SDK that has lost everything else
	}
	return nil
}

// judged runs a step's callback in an attempt and returns its fault, as an engine does.
func judged(ctx context.Context, a *fault.Attempt, step func(ctx context.Context) error) *fault.Fault {
	err := step(fault.WithAttempt(ctx, a))
	return a.Judge(fault.FromContext(ctx, ctx, err), err)
}

func sends(t *testing.T, rule string, a *fault.Attempt, requests, replays, refused int) {
	t.Helper()
	if e := a.Evidence(); e.Requests != requests || e.Replays != replays || e.Refused != refused {
		t.Errorf("rule broken: %s\n got %d requests, %d replays, %d refused\nwant %d, %d, %d\n%v", rule, e.Requests, e.Replays, e.Refused, requests, replays, refused, e)
	}
}

var big = strings.Repeat("x", 4<<20) // longer than what fits between two sockets

func TestTransportJudgesByHowFarARequestCame(t *testing.T) {
	t.Parallel()
	lost := want{fault.OutcomeUnknown, fault.ReasonConnectionLost, maybe}
	reset := want{fault.OutcomeUnknown, fault.ReasonStreamReset, maybe}
	truncated := want{fault.OutcomeUnknown, fault.ReasonResponseTruncated, maybe}
	cut := want{fault.OutcomeUnknown, fault.ReasonStreamTruncated, maybe}
	event := map[string]string{"Content-Type": "text/event-stream"}
	chunk := "data: {\"choices\":[{\"delta\":{}}]}\n\n"
	rows := []struct {
		rule  string
		reply cuthttp.Reply
		body  string
		phase fault.Phase
		http1 want
		http2 want
		seen  int // requests at the server
	}{
		{"an answer", cuthttp.Reply{}, "b", fault.PhaseDone, want{}, want{}, 1},
		{"cut after the headers", cuthttp.Reply{Cut: cuthttp.AfterHeaders}, big, fault.PhaseHeaders, lost, reset, 1},
		{"cut in the body", cuthttp.Reply{Cut: cuthttp.MidBody}, big, fault.PhaseHeaders, lost, reset, 1},
		{"cut before the answer", cuthttp.Reply{Cut: cuthttp.BeforeReply}, "b", fault.PhaseRequest, lost, reset, 1},
		{"cut in the answer", cuthttp.Reply{Cut: cuthttp.MidReply, Body: "{"}, "b", fault.PhaseAnswered, truncated, reset, 1},
		{"cut in a stream", cuthttp.Reply{Cut: cuthttp.MidReply, Header: event, Body: chunk}, "b", fault.PhaseAnswered, cut, cut, 1},
	}
	for _, protocol := range []cuthttp.Protocol{cuthttp.HTTP1, cuthttp.HTTP1TLS, cuthttp.HTTP2} {
		for _, row := range rows {
			for _, kind := range []fault.Kind{fault.KindOnce, fault.KindKeyed, fault.KindRepeatable} {
				rule := fmt.Sprintf("%v, %v: %s", protocol, kind, row.rule)
				s := cuthttp.Start(t, protocol, cuthttp.Always(row.reply))
				a := &fault.Attempt{Kind: kind, Key: "k1"}
				f := judged(t.Context(), a, func(ctx context.Context) error {
					return call(ctx, fault.NewTransport(s.Transport()), "POST", s.URL+"/do", row.body)
				})
				want := row.http1
				if protocol == cuthttp.HTTP2 {
					want = row.http2
				}
				check(t, rule, f, want)
				sends(t, rule, a, 1, 0, 0)
				if got := a.Sends()[0]; row.phase != 0 && got.Phase != row.phase {
					t.Errorf("rule broken: %s\n got phase %v\nwant %v", rule, got.Phase, row.phase)
				}
				s.Close()
				if got := len(s.Requests()); got != row.seen {
					t.Errorf("rule broken: %s\n got %d requests at the server\nwant %d", rule, got, row.seen)
				}
			}
		}
	}
}

func TestTransportOfAConnectionThatIsClosedAtOnce(t *testing.T) {
	t.Parallel()
	for _, protocol := range []cuthttp.Protocol{cuthttp.HTTP1, cuthttp.HTTP1TLS, cuthttp.HTTP2} {
		s := cuthttp.Start(t, protocol, cuthttp.Always(cuthttp.Reply{Cut: cuthttp.AtStart}))
		a := &fault.Attempt{Kind: fault.KindOnce}
		f := judged(t.Context(), a, func(ctx context.Context) error {
			return call(ctx, fault.NewTransport(s.Transport()), "POST", s.URL, "b")
		})
		// It is a race whether the client had begun to write, but not what follows from each.
		written := a.Sends()[0].Phase > fault.PhaseNothing
		if f == nil || f.Outcome.Proven() != (f.Class == fault.Transient) || written && f.Outcome != maybe {
			t.Errorf("rule broken: %v: what was written may have been done, and what was not was not\n got %v, %v", protocol, got(f), a.Evidence())
		}
		sends(t, protocol.String(), a, 1, 0, 0)
	}
}

func TestTransportProvesThatNothingWasSent(t *testing.T) {
	t.Parallel()
	silent := cuthttp.Start(t, cuthttp.HTTP1, cuthttp.Always(cuthttp.Reply{Cut: cuthttp.Stay}))
	closed := cuthttp.Start(t, cuthttp.HTTP1, cuthttp.Always(cuthttp.Reply{}))
	closed.Close()
	tlsServer := cuthttp.Start(t, cuthttp.HTTP1TLS, cuthttp.Always(cuthttp.Reply{}))
	full := silent.Transport() // every connection it may have is taken
	full.MaxConnsPerHost = 1
	busy, release := context.WithCancel(t.Context())
	t.Cleanup(release)
	go func() { _ = call(busy, full, "POST", silent.URL, "x") }()
	eventually(t, func() bool { return len(silent.Requests()) == 1 })
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	for _, row := range []struct {
		rule string
		ctx  context.Context
		rt   http.RoundTripper
		url  string
		want want
	}{
		{"nobody listens", t.Context(), closed.Transport(), closed.URL, want{fault.Transient, fault.ReasonUnreachable, notSent}},
		{"a certificate nobody knows", t.Context(), &http.Transport{}, tlsServer.URL, want{fault.InvalidRequest, fault.ReasonTLSCertificate, notSent}},
		{"HTTP where HTTPS is spoken", t.Context(), silent.Transport(), strings.Replace(tlsServer.URL, "https", "ftp", 1), want{fault.Transient, fault.ReasonUnrecognized, notSent}},
		{"a deadline while waiting for a connection", deadline(t, 20*time.Millisecond), full, silent.URL, want{fault.Transient, fault.ReasonStepDeadline, notSent}},
		{"a context that had ended before", ended, silent.Transport(), silent.URL, want{fault.Canceled, fault.ReasonRunCanceled, notSent}},
	} {
		a := &fault.Attempt{Kind: fault.KindOnce}
		run, step := t.Context(), row.ctx
		if row.ctx == ended {
			run = ended
		}
		err := call(fault.WithAttempt(step, a), fault.NewTransport(row.rt), "POST", row.url, "x")
		f := a.Judge(fault.FromContext(run, step, err), err)
		if row.want.reason == fault.ReasonUnrecognized { // whatever it is called, it is proven
			row.want = want{f.Class, f.Reason, notSent}
		}
		check(t, row.rule, f, row.want)
		sends(t, row.rule, a, 1, 0, 0)
	}
}

func deadline(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits for what another goroutine is about to do.
func eventually(t *testing.T, is func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !is(); {
		if time.Now().After(end) {
			t.Fatal("did not come about within 10 s")
		}
		<-time.After(time.Millisecond)
	}
}

func TestTransportTellsRefusedStreamsFromBrokenOnes(t *testing.T) {
	t.Parallel()
	ok := cuthttp.Reply{Body: "{}"}
	refuse, violate := cuthttp.Reply{Cut: cuthttp.Refuse}, cuthttp.Reply{Cut: cuthttp.Violation}
	before, within := cuthttp.Reply{Cut: cuthttp.GoAwayBefore}, cuthttp.Reply{Cut: cuthttp.GoAwayWithin}
	for _, row := range []struct {
		rule    string
		kind    fault.Kind
		body    string
		script  []cuthttp.Reply
		want    want
		replays int
		outcome fault.Outcome // of the send
	}{
		{"Once: a refused stream was not processed", fault.KindOnce, "x", []cuthttp.Reply{refuse, ok}, want{fault.Transient, fault.ReasonRefusedStream, notSent}, 0, notSent},
		{"Once: nor one above the last of a GOAWAY", fault.KindOnce, "x", []cuthttp.Reply{ok, before, ok}, want{fault.Transient, fault.ReasonGoAway, notSent}, 0, notSent},
		{"Once: one below it may have been", fault.KindOnce, "x", []cuthttp.Reply{ok, within, ok}, want{fault.OutcomeUnknown, "", maybe}, 0, maybe},
		{"Once: a protocol error proves nothing, and net/http may not send it twice", fault.KindOnce, "x", []cuthttp.Reply{violate, ok}, want{fault.OutcomeUnknown, "", maybe}, 0, maybe},
		{"Once: nor where it needs no body for that", fault.KindOnce, "", []cuthttp.Reply{violate, ok}, want{fault.InvalidRequest, "", maybe}, 1, maybe},
		{"Once without a body: a refused stream is sent again on its connection", fault.KindOnce, "", []cuthttp.Reply{refuse, ok}, want{}, 1, maybe},
		{"Keyed: a refused stream is sent again", fault.KindKeyed, "x", []cuthttp.Reply{refuse, ok}, want{}, 1, maybe},
		{"Keyed: a rejection after one still is one", fault.KindKeyed, "x", []cuthttp.Reply{refuse, {Status: 422}}, want{fault.InvalidRequest, "", rejected}, 1, rejected},
		{"Keyed: but not after one that broke", fault.KindKeyed, "x", []cuthttp.Reply{violate, {Status: 422}}, want{fault.InvalidRequest, "", maybe}, 1, maybe},
		{"Keyed: nor after a GOAWAY, which net/http does not tell from that", fault.KindKeyed, "x", []cuthttp.Reply{ok, before, {Status: 422}}, want{fault.InvalidRequest, "", maybe}, 1, maybe},
	} {
		s := cuthttp.Start(t, cuthttp.HTTP2, cuthttp.Script(row.script...))
		rt := fault.NewTransport(s.Transport())
		if row.script[0].Body != "" { // the stream that is cut is not the connection's first
			if err := call(t.Context(), rt, "GET", s.URL, ""); err != nil {
				t.Fatal(err)
			}
		}
		a := &fault.Attempt{Kind: row.kind, Key: "k1"}
		f := judged(t.Context(), a, func(ctx context.Context) error { return call(ctx, rt, "POST", s.URL+"/do", row.body) })
		if row.want.reason == "" && f != nil {
			row.want.reason = f.Reason
		}
		check(t, row.rule, f, row.want)
		sends(t, row.rule, a, 1, row.replays, 0)
		if got := a.Sends()[0].Outcome; got != row.outcome {
			t.Errorf("rule broken: %s\n got send %v\nwant %v", row.rule, got, row.outcome)
		}
	}
}
