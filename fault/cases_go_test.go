package fault_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"syscall"
	"testing"

	gosmtp "github.com/emersion/go-smtp"
	"github.com/jackc/pgx/v5"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/fault/internal/fakesdk/http2"
	"github.com/pawlrun/pawl/fault/internal/fakesqlite"
)

// tripped is what http.Client makes of an error of its transport.
func tripped(err error) error { return &url.Error{Op: "Post", URL: "http://far.invalid/", Err: err} }

func dialled(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }

func called(e syscall.Errno) error { return os.NewSyscallError("connect", e) }

// timeout is a timeout as net/http makes them: context.DeadlineExceeded to errors.Is, although no context ended.
type timeout struct{ text string }

func (e timeout) Error() string        { return e.text }
func (e timeout) Timeout() bool        { return true }
func (e timeout) Is(target error) bool { return target == context.DeadlineExceeded }

func from(err error) func(*testing.T) *fault.Fault {
	return func(*testing.T) *fault.Fault { return fault.From(err) }
}

// stopped is an error of a step whose run has ended by cause.
func stopped(cause, err error) func(*testing.T) *fault.Fault {
	return func(t *testing.T) *fault.Fault {
		run := endedBy(t, cause)
		return fault.FromContext(run, run, err)
	}
}

// timedOut is an error of a step whose own deadline has passed.
func timedOut(err error) func(*testing.T) *fault.Fault {
	return func(t *testing.T) *fault.Fault { return fault.FromContext(t.Context(), overdue(t, t.Context()), err) }
}

// unsent is an error before which no connection was had, as an HTTP transport knows.
func unsent(err error) func(*testing.T) *fault.Fault {
	return func(*testing.T) *fault.Fault { return fault.Unsent(err) }
}

func grpc(code grpcCode) error { return &grpcError{&grpcStatus{code: code}} }

func pushed(code grpcCode, ms string) func(*testing.T) *fault.Fault {
	return func(*testing.T) *fault.Fault {
		return fault.FromGRPC(grpc(code), map[string][]string{"grpc-retry-pushback-ms": {ms}})
	}
}

func mail(code int, status gosmtp.EnhancedCode) error {
	return fmt.Errorf("mail: %w", &gosmtp.SMTPError{Code: code, EnhancedCode: status})
}

func sqlite(code fakesqlite.Error) error { return &code }

type unprocessed struct{}

func (unprocessed) Error() string     { return "stream closed" }
func (unprocessed) Unprocessed() bool { return true }

// A scheme that nobody speaks, and a name, as net/http says it.
func badScheme(t *testing.T) *fault.Fault {
	_, err := http.Get("gopher://far.invalid/") //nolint:noctx // it ends at once
	if err == nil {
		t.Fatal("gopher lives")
	}
	return fault.From(err)
}

// made has a constructor for each case that is no response: what the transport, the engine or the owner of a transaction
// knows besides the error is said as they say it.
var made = map[string]func(t *testing.T) *fault.Fault{
	"go-bad-scheme":                     badScheme,
	"go-client-timeout-body":            from(timeout{"Client.Timeout or context cancellation while reading body"}),
	"go-client-timeout-headers":         from(tripped(timeout{"Client.Timeout exceeded while awaiting headers"})),
	"go-dial-ehostunreach":              from(tripped(dialled(called(syscall.EHOSTUNREACH)))),
	"go-dial-timeout":                   from(tripped(dialled(timeout{"i/o timeout"}))),
	"go-econnrefused":                   from(tripped(dialled(called(syscall.ECONNREFUSED)))),
	"go-eof-fresh-conn":                 from(tripped(io.EOF)),
	"go-epipe-partial-write":            from(&net.OpError{Op: "write", Net: "tcp", Err: called(syscall.EPIPE)}),
	"go-h2-enhance-your-calm":           from(tripped(http2.StreamError{StreamID: 1, Code: 11})),
	"go-h2-goaway-above-last":           from(tripped(errors.New("http2: Transport received Server's graceful shutdown GOAWAY"))),
	"go-h2-goaway-below-last":           from(tripped(http2.GoAwayError{LastStreamID: 1})),
	"go-h2-goaway-first-stream-error":   from(tripped(fmt.Errorf("http2: Transport received GOAWAY from server ErrCode:%v", "ENHANCE_YOUR_CALM"))),
	"go-h2-internal-error":              from(tripped(http2.StreamError{StreamID: 1, Code: 2})),
	"go-h2-protocol-error-replayed":     from(tripped(http2.StreamError{StreamID: 3, Code: 1, Cause: errors.New("received from peer")})),
	"go-h2-refused-stream":              from(tripped(http2.StreamError{StreamID: 3, Code: 7})),
	"go-https-to-http-port":             from(tripped(http.ErrSchemeMismatch)),
	"go-lease-lost":                     stopped(fault.ErrLeaseLost, tripped(fault.ErrLeaseLost)),
	"go-malformed-response":             from(tripped(fmt.Errorf("net/http: HTTP/1.x transport connection broken: %w", fmt.Errorf("malformed HTTP response %q", "SSH-2.0")))),
	"go-nxdomain":                       from(tripped(dialled(&net.DNSError{IsNotFound: true}))),
	"go-panic-in-executor":              func(*testing.T) *fault.Fault { return fault.FromPanic("index out of range") },
	"go-proxy-connect-407":              unsent(tripped(errors.New(http.StatusText(http.StatusProxyAuthRequired)))),
	"go-proxyconnect-refused":           from(tripped(&net.OpError{Op: "proxyconnect", Err: dialled(called(syscall.ECONNREFUSED))})),
	"go-reset-at-dial":                  from(tripped(dialled(called(syscall.ECONNRESET)))),
	"go-reused-nothing-written":         unsent(tripped(io.EOF)),
	"go-run-cancel":                     stopped(nil, tripped(context.Canceled)),
	"go-server-closed-idle":             from(tripped(errors.New("http: server closed idle connection"))),
	"go-step-deadline-awaiting-headers": timedOut(tripped(context.DeadlineExceeded)),
	"go-step-deadline-before-conn":      timedOut(fault.NotSent(tripped(context.DeadlineExceeded))),
	"go-step-deadline-inference":        timedOut(tripped(context.DeadlineExceeded)),
	"go-tls-expired":                    from(tripped(&tls.CertificateVerificationError{Err: x509.CertificateInvalidError{Reason: x509.Expired}})),
	"go-tls-handshake-timeout":          from(tripped(dialled(timeout{"TLS handshake timeout"}))),
	"go-tls-unknown-authority":          from(tripped(&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}})),
	"go-unexpected-eof-body":            from(io.ErrUnexpectedEOF),
	"go-unknown-error":                  from(errors.New("something")),
	"go-worker-shutdown-cause":          stopped(fault.ErrStopping, tripped(fault.ErrStopping)),

	"grpc-already-exists":       from(grpc(6)),
	"grpc-canceled-by-us":       stopped(nil, grpc(1)),
	"grpc-deadline":             timedOut(grpc(4)),
	"grpc-failed-precondition":  from(grpc(9)),
	"grpc-internal":             from(grpc(13)),
	"grpc-permission-denied":    from(grpc(7)),
	"grpc-pushback-ms":          pushed(14, "250"),
	"grpc-pushback-negative":    pushed(14, "-1"),
	"grpc-unauthenticated":      from(grpc(16)),
	"grpc-unavailable-mid-call": from(grpc(14)),
	"grpc-unimplemented":        from(grpc(12)),
	"grpc-unknown":              from(grpc(2)),
	"grpc-unprocessed":          from(unprocessed{}),

	// Before COMMIT was sent the owner of the transaction says so; at COMMIT, that nobody knows.
	"pg-08006-at-commit":         from(&fault.Fault{Reason: fault.ReasonCommitUnknown, Err: state("08006")}),
	"pg-08006-in-tx":             from(fault.Rejected(state("08006"))),
	"pg-08007":                   from(state("08007")),
	"pg-08p01":                   from(state("08P01")),
	"pg-22p02":                   from(state("22P02")),
	"pg-28p01":                   from(state("28P01")),
	"pg-40001":                   from(state("40001")),
	"pg-40p01":                   from(state("40P01")),
	"pg-42501":                   from(state("42501")),
	"pg-42p01":                   from(state("42P01")),
	"pg-53100":                   from(state("53100")),
	"pg-57014-own-cancel":        stopped(nil, state("57014")),
	"pg-57014-statement-timeout": from(state("57014")),
	"pg-57p01-autocommit":        from(&fault.Fault{Reason: fault.ReasonCommitUnknown, Err: state("57P01")}),
	"pg-57p01-in-tx":             from(fault.Rejected(state("57P01"))),
	"pg-57p02":                   from(fault.Rejected(state("57P02"))),
	"pg-57p03":                   from(state("57P03")),
	"pg-errbadconn":              from(driver.ErrBadConn),
	"pg-pgx-commit-rollback":     from(fmt.Errorf("commit: %w", pgx.ErrTxCommitRollback)),
	"pg-pgx-safe-to-retry":       from(fault.NotSent(io.EOF)), // a real one is in TestFromPgxSafeToRetry

	"smtp-421-greeting":       from(fault.NotSent(mail(421, gosmtp.EnhancedCode{4, 3, 2}))),
	"smtp-450-rcpt":           from(mail(450, gosmtp.EnhancedCode{4, 2, 1})),
	"smtp-452-rcpt":           from(mail(452, gosmtp.EnhancedCode{4, 5, 3})),
	"smtp-454-auth-temporary": from(mail(454, gosmtp.EnhancedCode{4, 7, 0})),
	"smtp-535":                from(mail(535, gosmtp.EnhancedCode{5, 7, 8})),
	"smtp-550-rcpt":           from(mail(550, gosmtp.EnhancedCode{5, 1, 1})),
	"smtp-552-size":           from(mail(552, gosmtp.EnhancedCode{5, 3, 4})),
	"smtp-554-policy":         from(&textproto.Error{Code: 554, Msg: "5.7.1 refused by policy"}),
	"smtp-eof-after-dot":      from(io.EOF),
	"smtp-eof-before-dot":     from(fault.Rejected(io.EOF)),

	"sqlite-busy-snapshot-517": from(sqlite(517)),
	"sqlite-constraint-2067":   from(sqlite(2067)),
	"sqlite-corrupt-11":        from(sqlite(11)),
	"sqlite-full-13":           from(sqlite(13)),
	"sqlite-ioerr-commit":      from(sqlite(1034)),
	"sqlite-locked-6":          from(sqlite(6)),

	"stripe-conn-lost-keyed": from(tripped(io.EOF)),
	"webhook-timeout":        from(tripped(timeout{"net/http: timeout awaiting response headers"})),
}
