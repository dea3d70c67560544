package smtpfault_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/fault/smtpfault"
)

const (
	notSent  = fault.OutcomeNotSent
	rejected = fault.OutcomeRejected
	maybe    = fault.OutcomeMaybeExecuted

	letter = "Message-ID: <invoice-42@shop.example>\r\nSubject: Invoice 42\r\n\r\nPlease pay.\r\n"
)

// want is what a row of a table expects of a fault.
type want struct {
	class   fault.Class
	reason  fault.Reason
	outcome fault.Outcome
}

func (w want) String() string { return fmt.Sprintf("%v (%s), %v", w.class, w.reason, w.outcome) }

func check(t *testing.T, rule string, err error, w want) {
	t.Helper()
	f, ok := errors.AsType[*fault.Fault](err)
	if !ok {
		t.Errorf("rule broken: %s\n got no fault, but %v\nwant %v", rule, err, w)
		return
	}
	if g := (want{f.Class, f.Reason, f.Outcome}); g != w {
		t.Errorf("rule broken: %s\n got %v\nwant %v\n in %v", rule, g, w, err)
	}
	if again := fault.From(err); again.Class != w.class || again.Reason != w.reason || again.Outcome != w.outcome {
		t.Errorf("rule broken: %s: it is a complete fault: got %v", rule, again)
	}
}

func send(ctx context.Context, s *smtpfault.Server, text string) (smtpfault.Receipt, error) {
	return s.Send(ctx, "shop@example.com", []string{"customer@example.com"}, strings.NewReader(text))
}

var (
	lostBefore = want{fault.Transient, fault.ReasonConnectionLost, notSent}
	lostIn     = want{fault.Transient, fault.ReasonConnectionLost, rejected}
	canceled   = want{fault.Transient, fault.ReasonCallCanceled, notSent}
	canceledIn = want{fault.Transient, fault.ReasonCallCanceled, rejected}
	forNow     = want{fault.Transient, fault.ReasonMailRefused, rejected}
	closing    = want{fault.Transient, fault.ReasonUnavailable, rejected}
	badReply   = want{fault.InvalidRequest, fault.ReasonProtocolViolation, rejected}
	noEntry    = want{fault.AccessDenied, fault.ReasonAuthorization, rejected}
	noLogin    = want{fault.AccessDenied, fault.ReasonAuthentication, rejected}
	malformed  = want{fault.InvalidRequest, fault.ReasonMalformed, rejected}
	noMailbox  = want{fault.InvalidRequest, fault.ReasonNoSuchMailbox, rejected}
	blocked    = want{fault.ContentPolicy, fault.ReasonMessageBlocked, rejected}
	deferred   = want{fault.Transient, smtpfault.ReasonMailDeferred, rejected}
	tooLarge   = want{fault.InvalidRequest, fault.ReasonRequestTooLarge, rejected}
)

// failures is every phase and every way to fail in it.
var failures = []struct {
	at, how string
	want    want
}{
	{"greeting", "421 4.3.2 later", closing},
	{"greeting", "554 not here", noEntry},
	{"greeting", "550 5.7.1 listed", noEntry},
	{"greeting", "HTTP/1.1 400 Bad Request", want{fault.InvalidRequest, fault.ReasonWrongScheme, notSent}},
	{"greeting", cut, lostBefore},
	{"greeting", stall, canceled},
	{"EHLO", "421 later", closing},
	{"EHLO", "550 go away", noEntry},
	{"EHLO", cut, lostBefore},
	{"EHLO", stall, canceled},
	{"STARTTLS", "454 4.7.0 not available", forNow},
	{"STARTTLS", "502 no", malformed},
	{"STARTTLS", cut, lostBefore},
	{"STARTTLS", stall, canceled},
	{"AUTH", "454 4.7.0 try later", want{fault.Transient, fault.ReasonAuthUnavailable, rejected}},
	{"AUTH", "535 5.7.8 no", noLogin},
	{"AUTH", "550 who are you", noLogin},
	{"AUTH", "334 !", want{fault.AccessDenied, fault.ReasonAuthentication, notSent}},
	{"AUTH", cut, lostBefore},
	{"AUTH", stall, canceled},
	{"MAIL", "451 4.3.0 no", forNow},
	{"MAIL", "452 4.3.1 disk", want{fault.Transient, fault.ReasonOverloaded, rejected}},
	{"MAIL", "450 no", forNow},
	{"MAIL", "530 5.7.0 log in first", noLogin},
	{"MAIL", "502 5.7.0 log in first", noEntry},
	{"MAIL", "550 not you", noEntry},
	{"MAIL", "550 5.7.60 not in that name", noEntry},
	{"MAIL", "553 5.1.8 no such sender domain", want{fault.InvalidRequest, fault.ReasonInvalidValue, rejected}},
	{"MAIL", "xyz", badReply},
	{"MAIL", "354 what", badReply},
	{"MAIL", cut, lostIn},
	{"MAIL", stall, canceledIn},
	{"RCPT", "450 4.2.1 busy", want{fault.Transient, fault.ReasonMailboxBusy, rejected}},
	{"RCPT", "452 4.2.2 full", want{fault.Transient, fault.ReasonMailboxBusy, rejected}},
	{"RCPT", "452 4.5.3 too many", want{fault.RateLimited, fault.ReasonTooManyRecipients, rejected}},
	{"RCPT", "552 5.2.2 full", want{fault.QuotaExhausted, fault.ReasonStorageFull, rejected}},
	{"RCPT", "552 full", want{fault.QuotaExhausted, fault.ReasonStorageFull, rejected}},
	{"RCPT", "451 4.7.1 greylisted", deferred},
	{"RCPT", "550 5.1.1 unknown", noMailbox},
	{"RCPT", "550-5.1.1 unknown\r\n550 5.1.1 sorry", noMailbox},
	{"RCPT", "550 unknown", noMailbox},
	{"RCPT", "550 5.7.1 relaying denied", blocked},
	{"RCPT", "250-4.7.1 broken\r\nxyz\r\n550 5.1.1 off", want{fault.Transient, fault.ReasonCallCanceled, rejected}},
	{"RCPT", "354 what", badReply},
	{"RCPT", cut, lostIn},
	{"RCPT", stall, canceledIn},
	{"DATA", "451 no", forNow},
	{"DATA", "554 5.5.1 no valid recipients", malformed},
	{"DATA", "250 what", badReply},
	{"DATA", cut, lostIn},
	{"DATA", stall, canceledIn},
	{"message", "552 5.3.4 too big|cut", tooLarge},
	{"message", "451 4.3.0 no|cut", forNow},
	{"message", cut, lostIn},
	{"message", stall, canceledIn},
	{"dot", "451 4.3.0 no", forNow},
	{"dot", "421 4.3.2 shutting down|cut", closing},
	{"dot", "450 4.7.1 wait", deferred},
	{"dot", "552 too big", tooLarge},
	{"dot", "554 5.7.1 spam", blocked},
	{"dot", "550 spam", blocked},
	{"dot", "550 5.7.26 not authenticated", blocked},
	{"dot", "554 5.6.0 bad content", malformed},
	{"dot", "xyz", want{fault.OutcomeUnknown, fault.ReasonProtocolViolation, maybe}},
	{"dot", "354 what", want{fault.OutcomeUnknown, fault.ReasonProtocolViolation, maybe}},
	{"dot", cut, want{fault.OutcomeUnknown, fault.ReasonConnectionLost, maybe}},
	{"dot", "250-half|cut", want{fault.OutcomeUnknown, fault.ReasonConnectionLost, maybe}},
	{"dot", stall, want{fault.OutcomeUnknown, fault.ReasonCallCanceled, maybe}},
}

func TestEveryPhaseAndFailure(t *testing.T) {
	t.Parallel()
	for _, row := range failures {
		for _, plain := range []bool{false, true} {
			if plain && (row.at == "STARTTLS" || row.at == "AUTH") {
				continue
			}
			rule := fmt.Sprintf("%s: %q, plain: %v", row.at, row.how, plain)
			t.Run(rule, func(t *testing.T) {
				t.Parallel()
				fails(t, rule, row.at, row.how, plain, row.want)
			})
		}
	}
}

func fails(t *testing.T, rule, at, how string, plain bool, w want) {
	s := newScript(t, at, how, func(s *script) { s.bare = plain })
	server := s.server()
	if plain {
		server.AllowPlain, server.Username = true, ""
	}
	text := letter
	if at == "message" { // more than the system's buffers hold
		text += strings.Repeat("Please pay.\r\n", 1<<20)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	switch {
	case how == stall:
		go func() {
			<-s.stalled
			cancel()
		}()
	case w.reason == fault.ReasonCallCanceled: // a reply without end
		go func() {
			s.wait(at)
			cancel()
		}()
	}
	_, err := send(ctx, server, text)
	check(t, rule, err, w)
	f := fault.From(err)
	if f.Provider != "127.0.0.1" || !strings.Contains(err.Error(), "invoice-42@shop.example") {
		t.Errorf("the fault says who and which mail: %q, %v", f.Provider, err)
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the password is in the error: %v", err)
	}
	if _, messages := s.seen(); at != "dot" && len(messages) > 0 {
		t.Error("the message was ended, and the server may have accepted it")
	}
	reply, is := errors.AsType[*textproto.Error](err)
	if refused := how[0] == '4' || how[0] == '5'; refused && (!is || f.Status != reply.Code || !strings.HasPrefix(how, fmt.Sprint(f.Status))) {
		t.Errorf("the reply and its code are kept: %d in %v", f.Status, err)
	}
}

// wait returns when s has read a command.
func (s *script) wait(verb string) {
	for {
		commands, _ := s.seen()
		if slices.ContainsFunc(commands, func(c string) bool { return strings.HasPrefix(c, verb) }) {
			return
		}
		select {
		case <-s.t.Context().Done():
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// untilPassed is a context whose deadline passes when the test says so.
type untilPassed struct {
	context.Context
	passed chan struct{}
}

func (c untilPassed) Done() <-chan struct{} { return c.passed }

func (c untilPassed) Err() error {
	select {
	case <-c.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// The engine sees its own contexts in what Send returns, and the outcome stays what it is.
func TestTheEnginesContexts(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		at   string
		step bool // the step's deadline passes, not the run's lease
		want want
	}{
		{"MAIL", true, want{fault.Transient, fault.ReasonStepDeadline, rejected}},
		{"dot", true, want{fault.OutcomeUnknown, fault.ReasonStepDeadline, maybe}},
		{"MAIL", false, want{fault.Canceled, fault.ReasonLeaseLost, rejected}},
		{"dot", false, want{fault.Canceled, fault.ReasonLeaseLost, maybe}},
	} {
		s := newScript(t, row.at, stall)
		run, lose := context.WithCancelCause(t.Context())
		step, cancel := context.WithCancel(run)
		if row.step {
			passed := make(chan struct{})
			step, cancel = untilPassed{run, passed}, func() {}
			go func() {
				<-s.stalled
				close(passed)
			}()
		} else {
			go func() {
				<-s.stalled
				lose(fault.ErrLeaseLost)
			}()
		}
		_, err := send(step, s.server(), letter)
		check(t, "at "+row.at, fault.FromContext(run, step, err), row.want)
		cancel()
		lose(nil)
	}
}

func TestWhatIsAcceptedIsSent(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"221 bye", "500 what", cut, stall} {
		s := newScript(t, "QUIT", how)
		ctx, cancel := context.WithCancel(t.Context())
		if how == stall {
			go func() {
				<-s.stalled
				cancel()
			}()
		}
		receipt, err := send(ctx, s.server(), letter)
		if want := (smtpfault.Receipt{MessageID: "invoice-42@shop.example", Reply: "2.0.0 Ok: queued as 4Zx1"}); err != nil || receipt != want {
			t.Errorf("QUIT %q: got %+v, %v, want %+v", how, receipt, err, want)
		}
		cancel()
	}
	s := newScript(t, "dot", "251-2.0.0 taken\x01\r\n251 2.0.0 by us"+strings.Repeat(" and us", 100))
	if receipt, err := send(t.Context(), s.server(), letter); err != nil || len(receipt.Reply) > 500 ||
		!strings.HasPrefix(receipt.Reply, "2.0.0 taken  2.0.0 by us") {
		t.Errorf("any 2yz is an acceptance, and its text is one line: got %q, %v", receipt.Reply, err)
	}
}

func TestTheMessageArrivesAsItWas(t *testing.T) {
	t.Parallel()
	s := newScript(t, "", "", implicit)
	text := "Message-ID:\n <a@b>\n\n.\n..two\n.x\r\nno end"
	if _, err := send(t.Context(), s.server(), text); err != nil {
		t.Fatal(err)
	}
	if _, messages := s.seen(); len(messages) != 1 || messages[0] != "Message-ID:\r\n <a@b>\r\n\r\n.\r\n..two\r\n.x\r\nno end\r\n" {
		t.Errorf("got %q", messages)
	}
}

func TestRecipients(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule, how, only string
		to              []string
		want            want
		said            []string // texts in the error
		unsaid          string
	}{
		{"one refused of three is none sent", "550 5.1.1 no", "b@x.org", []string{"a@x.org", "b@x.org", "c@x.org"}, noMailbox,
			[]string{"<b@x.org>: 550"}, "<a@x.org>"},
		{"all refusals are told", "550 5.1.1 no", "@y.org", []string{"a@y.org", "b@x.org", "c@y.org"}, noMailbox,
			[]string{"<a@y.org>", "<c@y.org>"}, "<b@x.org>"},
		{"more than the server takes at once will never pass", "452 4.5.3 too many", "b@x.org", []string{"a@x.org", "b@x.org"},
			want{fault.InvalidRequest, fault.ReasonTooManyRecipients, rejected}, []string{"<b@x.org>"}, "<a@x.org>"},
		{"a refusal and a hang-up is a refusal", "421 4.3.2 bye|cut", "a@x.org", []string{"a@x.org", "b@x.org"}, closing,
			[]string{"<a@x.org>: 421", "<b@x.org>"}, "<c@x.org>"},
	} {
		s := newScript(t, "RCPT", row.how, only(row.only))
		_, err := s.server().Send(t.Context(), "shop@example.com", row.to, strings.NewReader(letter))
		check(t, row.rule, err, row.want)
		commands, messages := s.seen()
		if len(messages) > 0 || slices.Contains(commands, "DATA") {
			t.Errorf("%s: DATA was sent", row.rule)
		}
		if !strings.HasSuffix(row.how, cut) && commands[len(commands)-1] != "QUIT" {
			t.Errorf("%s: the transaction is given up with QUIT: got %q", row.rule, commands)
		}
		for _, said := range row.said {
			if !strings.Contains(err.Error(), said) {
				t.Errorf("%s: %q is not in %v", row.rule, said, err)
			}
		}
		if strings.Contains(err.Error(), row.unsaid) {
			t.Errorf("%s: %q is in %v", row.rule, row.unsaid, err)
		}
	}
	s := newScript(t, "", "")
	if _, err := s.server().Send(t.Context(), "", []string{"Al <al@x.org>", "al@x.org", "bo@x.org"}, strings.NewReader(letter)); err != nil {
		t.Fatal(err)
	}
	commands, _ := s.seen()
	envelope := slices.DeleteFunc(commands, func(c string) bool { return !strings.HasPrefix(c, "MAIL") && !strings.HasPrefix(c, "RCPT") })
	if want := []string{"MAIL FROM:<> BODY=8BITMIME", "RCPT TO:<al@x.org>", "RCPT TO:<bo@x.org>"}; !slices.Equal(envelope, want) {
		t.Errorf("names are left out and an address is asked for once: got %q, want %q", envelope, want)
	}
}

// SMTPUTF8 is asked for only where it is needed: a server on the way may not have it.
func TestAddressesBeyondASCII(t *testing.T) {
	t.Parallel()
	for to, want := range map[string]string{
		"buecher@x.org": "MAIL FROM:<shop@example.com>",
		"bücher@x.org":  "MAIL FROM:<shop@example.com> SMTPUTF8",
	} {
		s := newScript(t, "EHLO", "250-script\r\n250 SMTPUTF8")
		server := s.server()
		server.AllowPlain, server.Username = true, ""
		_, err := server.Send(t.Context(), "shop@example.com", []string{to}, strings.NewReader(letter))
		if commands, _ := s.seen(); err != nil || !slices.Contains(commands, want) {
			t.Errorf("to %s: got %v, %q, want %q", to, err, commands, want)
		}
	}
}

// What will never pass decides.
func TestThePermanentRefusalDecides(t *testing.T) {
	t.Parallel()
	s := newScript(t, "RCPT", "450 4.2.1 busy", only("busy@"), func(s *script) {
		s.also = map[string]string{"gone@": "550 5.1.1 gone"}
	})
	_, err := s.server().Send(t.Context(), "shop@example.com", []string{"busy@x.org", "gone@x.org", "busy@y.org"}, strings.NewReader(letter))
	check(t, "a refusal for ever outweighs one for now", err, noMailbox)
	if f := fault.From(err); f.Status != 550 || f.Delay != 0 {
		t.Errorf("got status %d, delay %v", f.Status, f.Delay)
	}
}

func TestToldDelays(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"451 4.7.1 Greylisted, please try again in 300 seconds":             5 * time.Minute,
		"450 4.7.1 Greylisted for 5 minutes (see http://example.com/9)":     5 * time.Minute,
		"451 4.7.1 Greylisting in action, please come back in 00:04:30":     4*time.Minute + 30*time.Second,
		"451-4.7.1 busy\r\n451 4.7.1 retry after 60s.":                      time.Minute,
		"421 4.7.0 try again in 2h":                                         2 * time.Hour,
		"451 4.7.1 try again in 5 parsecs":                                  0,
		"451 4.7.1 try again in 500":                                        0,
		"451 4.7.1 try again in -5 minutes":                                 0,
		"451 4.7.1 try again in 90000 hours":                                0,
		"451 4.7.1 try again in 99999999999999999999 seconds":               0,
		"451 4.7.1 try again in 99:99:99":                                   0,
		"451 4.7.1 300 seconds ago":                                         0,
		"451 4.7.1 later":                                                   0,
		"550 5.7.1 blocked for 5 minutes":                                   0,
		"451 4.7.1 " + strings.Repeat("a ", 600) + " in 300 seconds":        0,
		"451 4.7.1 first for nothing, then try again in 10 min \xff\x00 ok": 10 * time.Minute,
	} {
		_, err := send(t.Context(), newScript(t, "RCPT", text).server(), letter)
		if f := fault.From(err); f.Delay != want || f.Outcome != rejected {
			t.Errorf("%q: got %v, %v, want %v", text, f.Delay, f.Outcome, want)
		}
	}
}

func TestWhatIsNotSent(t *testing.T) {
	t.Parallel()
	s := newScript(t, "", "")
	to := []string{"customer@example.com"}
	head := "Message-ID: <a@b>\r\n"
	value := want{fault.InvalidRequest, fault.ReasonInvalidValue, notSent}
	form := want{fault.InvalidRequest, fault.ReasonMalformed, notSent}
	for _, row := range []struct {
		rule, from string
		to         []string
		text       string
		want       want
	}{
		{"no recipient", "a@b.org", nil, letter, value},
		{"an address with a line end", "a@b.org", []string{"a@b.org>\r\nDATA"}, letter, value},
		{"an address with a parameter", "a@b.org> SIZE=1", to, letter, value},
		{"an address in quotes", `"a b"@c.org`, to, letter, value},
		{"a second at sign in quotes", `"a@b"@c.org`, to, letter, value},
		{"no address", "nobody", to, letter, value},
		{"no Message-ID", "a@b.org", to, "Subject: x\r\n\r\ntext", form},
		{"an empty Message-ID", "a@b.org", to, "Message-ID: <>\r\n\r\ntext", form},
		{"a Message-ID that cannot be looked for", "a@b.org", to, "Message-ID: <a b>\r\n\r\ntext", form},
		{"two Message-IDs", "a@b.org", to, head + head + "\r\ntext", form},
		{"an injected field", "a@b.org", to, head + "To: a@b.org\r\nSubject: x\r\nTo: evil@b.org\r\n\r\ntext", form},
		{"no header", "a@b.org", to, "text", form},
		{"a bare CR", "a@b.org", to, head + "\r\nx\r.\r\rDATA", form},
		{"a CR at the end", "a@b.org", to, head + "\r\nx\r", form},
	} {
		_, err := s.server().Send(t.Context(), row.from, row.to, strings.NewReader(row.text))
		check(t, row.rule, err, row.want)
	}
	_, err := s.server().Send(t.Context(), "a@b.org", to, nil)
	check(t, "no message", err, value)
	if commands, _ := s.seen(); len(commands) > 0 {
		t.Errorf("the server was talked to: %q", commands)
	}

	server := s.server()
	server.Addr = "example.com"
	_, err = send(t.Context(), server, letter)
	check(t, "no port", err, want{fault.InvalidRequest, fault.ReasonBadAddress, notSent})
	_, err = send(t.Context(), s.server(), letter+strings.Repeat("x", 20_000_000))
	check(t, "more than the server takes", err, want{fault.InvalidRequest, fault.ReasonRequestTooLarge, notSent})
	_, err = s.server().Send(t.Context(), "ä@b.org", to, strings.NewReader(letter))
	check(t, "an address that the server cannot take", err, want{fault.InvalidRequest, fault.ReasonUnsupported, notSent})
	if _, messages := s.seen(); len(messages) > 0 {
		t.Error("a message was sent")
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	unsupported := want{fault.InvalidRequest, fault.ReasonUnsupported, notSent}
	server := newScript(t, "", "", bare).server()
	_, err := send(t.Context(), server, letter)
	check(t, "no TLS, no mail", err, unsupported)
	server.AllowPlain = true
	_, err = send(t.Context(), server, letter)
	check(t, "no TLS, no password", err, unsupported)
	open := newScript(t, "EHLO", "250-script\r\n250 AUTH PLAIN LOGIN SCRAM-SHA-256")
	exposed := open.server()
	exposed.AllowPlain = true
	_, err = send(t.Context(), exposed, letter)
	check(t, "no TLS, no password, even if the server asks for it", err, unsupported)
	if commands, _ := open.seen(); slices.ContainsFunc(commands, func(c string) bool { return strings.HasPrefix(c, "AUTH") }) {
		t.Errorf("a password was sent in the open: %q", commands)
	}
	server.Username = ""
	if _, err = send(t.Context(), server, letter); err != nil {
		t.Errorf("without TLS if it is allowed: %v", err)
	}

	for how, set := range map[string]func(*script){"after STARTTLS": func(*script) {}, "at once": implicit} {
		server = newScript(t, "", "", set).server()
		server.TLS = nil
		_, err = send(t.Context(), server, letter)
		check(t, "a certificate that nobody knows "+how, err,
			want{fault.InvalidRequest, fault.ReasonTLSCertificate, notSent})
	}
	s := newScript(t, "", "")
	server = s.server()
	server.TLS = &tls.Config{RootCAs: s.tls.RootCAs, ServerName: "mail.example.com"}
	_, err = send(t.Context(), server, letter)
	check(t, "another's certificate", err, want{fault.InvalidRequest, fault.ReasonTLSCertificate, notSent})
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	_, err = send(t.Context(), &smtpfault.Server{Addr: l.Addr().String()}, letter)
	check(t, "no connection", err, want{fault.Transient, fault.ReasonUnreachable, notSent})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = send(ctx, newScript(t, "", "").server(), letter)
	check(t, "the context has ended before", err, canceled)
}

// A server that talks without end is cut off, before it fills the memory.
func TestEndlessReply(t *testing.T) {
	t.Parallel()
	for at, w := range map[string]want{"EHLO": {fault.Transient, fault.ReasonUnrecognized, notSent}, "dot": {fault.OutcomeUnknown, fault.ReasonUnrecognized, maybe}} {
		s := newScript(t, at, strings.Repeat("250-and more\r\n", 1<<18)+"250 ok")
		_, err := send(t.Context(), s.server(), letter)
		check(t, "an endless reply at "+at, err, w)
	}
}
