package fault_test

import (
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/smtp"
	"net/textproto"
	"testing"
	"time"

	gosmtp "github.com/emersion/go-smtp"

	"github.com/pawlrun/pawl/fault"
)

func quiet() *log.Logger { return log.New(io.Discard, "", 0) }

// port returns a port of this host on which nobody listens.
func port(t *testing.T) string {
	t.Helper()
	_, p, _ := net.SplitHostPort(free(t))
	return p
}

// The shapes of google.golang.org/grpc/status and errdetails, which the package does not import.
type (
	grpcError  struct{ s *grpcStatus }
	grpcStatus struct {
		code    grpcCode
		details []any
	}
	grpcCode      uint32
	retryInfo     struct{ d *protoDuration }
	protoDuration struct{ time.Duration }
)

func (e *grpcError) Error() string                 { return fmt.Sprint("rpc error: ", e.s) }
func (e *grpcError) GRPCStatus() *grpcStatus       { return e.s }
func (s *grpcStatus) Code() grpcCode               { return s.code }
func (s *grpcStatus) Message() string              { return "message" }
func (s *grpcStatus) Details() []any               { return s.details }
func (r *retryInfo) GetRetryDelay() *protoDuration { return r.d }
func (d *protoDuration) AsDuration() time.Duration { return d.Duration }

func TestFromGRPC(t *testing.T) {
	invalid := func(r fault.Reason) want { return want{fault.InvalidRequest, r, rejected} }
	unknown := func(r fault.Reason) want { return want{fault.OutcomeUnknown, r, maybe} }
	rows := map[grpcCode]want{
		0:  unknown("unrecognized"),
		1:  unknown("call_canceled"),
		2:  unknown("unrecognized"),
		3:  invalid("malformed"),
		4:  unknown("client_timeout"),
		5:  invalid("not_found"),
		6:  invalid("already_exists"),
		7:  {fault.AccessDenied, "authorization", rejected},
		8:  {fault.RateLimited, "throttled", maybe},
		9:  invalid("precondition_failed"),
		10: {fault.Transient, "conflict", rejected},
		11: invalid("malformed"),
		12: invalid("unsupported_method"),
		13: {fault.Transient, "server_error", maybe},
		14: unknown("connection_lost"),
		15: unknown("data_loss"),
		16: {fault.AccessDenied, "authentication", rejected},
		17: unknown("unrecognized"),
	}
	for code, w := range rows {
		f := fault.From(fmt.Errorf("call: %w", &grpcError{&grpcStatus{code: code}}))
		check(t, fmt.Sprint("gRPC code ", code), f, w)
	}
	for _, code := range []grpcCode{8, 14} {
		f := fault.From(&grpcError{&grpcStatus{code, []any{nil, "other", &retryInfo{}, &retryInfo{&protoDuration{time.Minute}}}}})
		check(t, "RetryInfo is a refusal with a delay", f, want{fault.RateLimited, "throttled", rejected})
		if f.Delay != time.Minute || f.Status != int(code) {
			t.Errorf("RetryInfo gives the delay, and the code is kept: got %v, %d", f.Delay, f.Status)
		}
	}
	for d, w := range map[time.Duration]time.Duration{math.MaxInt64: 0, 300 * 24 * time.Hour: fault.MaxDelay, -time.Second: 0, 0: 0} {
		for _, code := range []grpcCode{8, 14} {
			if f := fault.From(&grpcError{&grpcStatus{code, []any{&retryInfo{&protoDuration{d}}}}}); f.Delay != w {
				t.Errorf("RetryInfo is believed as any other delay: %v: got %v, want %v", d, f.Delay, w)
			}
		}
	}
	f := fault.From(&grpcError{&grpcStatus{7, []any{&retryInfo{&protoDuration{time.Minute}}}}})
	check(t, "a delay never lifts access_denied", f, want{fault.AccessDenied, "authorization", rejected})
	check(t, "a nil status", fault.From(&grpcError{}), unknown("unrecognized"))
	check(t, "our own cancellation by gRPC", fault.FromContext(ended(t), ended(t), &grpcError{&grpcStatus{code: 1}}),
		want{fault.Canceled, "run_canceled", maybe})
	check(t, "our own deadline by gRPC", fault.FromContext(t.Context(), overdue(t, t.Context()), &grpcError{&grpcStatus{code: 4}}),
		want{fault.OutcomeUnknown, "step_deadline", maybe})
}

// mailError has the shape of wneessen/go-mail's SendError.
type mailError struct {
	code   int
	status string
}

func (e *mailError) Error() string              { return "mail" }
func (e *mailError) ErrorCode() int             { return e.code }
func (e *mailError) EnhancedStatusCode() string { return e.status }

func TestFromSMTP(t *testing.T) {
	transient := want{fault.Transient, "mail_refused_for_now", rejected}
	malformed := want{fault.InvalidRequest, "malformed", rejected}
	unknown := want{fault.OutcomeUnknown, "unrecognized", maybe}
	blocked := want{fault.ContentPolicy, "message_blocked", rejected}
	closing := want{fault.Transient, "unavailable", rejected}
	denied := want{fault.AccessDenied, "authentication", rejected}
	nobody := want{fault.InvalidRequest, "no_such_mailbox", rejected}
	large := want{fault.InvalidRequest, "request_too_large", rejected}
	rows := []struct {
		code   int
		status gosmtp.EnhancedCode
		bare   want // by the code alone, without an enhanced status
		full   want // with the enhanced status
	}{
		{421, gosmtp.EnhancedCode{4, 3, 2}, closing, closing},
		{451, gosmtp.EnhancedCode{4, 0, 0}, transient, transient},
		{454, gosmtp.EnhancedCode{4, 7, 0}, want{fault.Transient, "auth_unavailable", rejected}, want{fault.Transient, "auth_unavailable", rejected}},
		{450, gosmtp.EnhancedCode{4, 2, 1}, want{fault.Transient, "mailbox_busy", rejected}, want{fault.Transient, "mailbox_busy", rejected}},
		{452, gosmtp.EnhancedCode{4, 5, 3}, want{fault.RateLimited, "too_many_recipients", rejected}, want{fault.RateLimited, "too_many_recipients", rejected}},
		{535, gosmtp.EnhancedCode{5, 7, 8}, denied, denied},
		{530, gosmtp.EnhancedCode{5, 7, 1}, denied, denied},
		{550, gosmtp.EnhancedCode{5, 1, 1}, nobody, nobody},
		{553, gosmtp.EnhancedCode{5, 1, 3}, nobody, nobody},
		{501, gosmtp.EnhancedCode{5, 1, 3}, malformed, nobody},
		{550, gosmtp.EnhancedCode{5, 7, 1}, nobody, blocked},
		{550, gosmtp.EnhancedCode{5, 7, 26}, nobody, blocked},
		{552, gosmtp.EnhancedCode{5, 3, 4}, large, large},
		{552, gosmtp.EnhancedCode{5, 2, 2}, large, want{fault.QuotaExhausted, "storage_full", rejected}},
		{554, gosmtp.EnhancedCode{5, 3, 4}, malformed, large},
		{554, gosmtp.EnhancedCode{5, 7, 1}, malformed, blocked},
		{501, gosmtp.EnhancedCode{}, malformed, malformed},
		{250, gosmtp.EnhancedCode{}, unknown, unknown},
		{0, gosmtp.EnhancedCode{}, unknown, unknown},
	}
	for _, row := range rows {
		rule := fmt.Sprintf("reply %d %v", row.code, row.status)
		check(t, rule+" from net/smtp", fault.From(fmt.Errorf("rcpt: %w", &textproto.Error{Code: row.code, Msg: "text 5.7.1"})), row.bare)
		check(t, rule+" from go-smtp", fault.From(fmt.Errorf("rcpt: %w", &gosmtp.SMTPError{Code: row.code, EnhancedCode: row.status})), row.full)
		if row.status != (gosmtp.EnhancedCode{}) {
			text := fmt.Sprintf("%d.%d.%d text", row.status[0], row.status[1], row.status[2])
			check(t, rule+" from net/smtp, with an enhanced status", fault.From(&textproto.Error{Code: row.code, Msg: text}), row.full)
		}
		status := fmt.Sprintf("%d.%d.%d", row.status[0], row.status[1], row.status[2])
		check(t, rule+" from go-mail", fault.From(fmt.Errorf("rcpt: %w", &mailError{row.code, status})), row.full)
	}
	check(t, "an enhanced status that cannot be read", fault.From(&mailError{554, "5.7"}), malformed)
}

func TestFromRealSMTP(t *testing.T) {
	addr := serve(t, func(c net.Conn) {
		if _, err := io.WriteString(c, "554 no mail today\r\n"); err != nil {
			t.Error(err)
		}
		c.Close()
	})
	_, err := smtp.Dial(addr)
	f := fault.From(err)
	check(t, "a refusal in the greeting", f, want{fault.InvalidRequest, "malformed", rejected})
	if f.Status != 554 {
		t.Errorf("the reply code is kept: got %d", f.Status)
	}
}
