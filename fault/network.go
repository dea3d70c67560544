package fault

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"syscall"
)

// fromNetwork recognises errors of net, crypto/tls, net/http, and of timers and contexts, as far as the error
// itself proves something. What left the process and what did not is known better by an HTTP transport.
func (w *walk) fromNetwork(err error) (Fault, bool) {
	switch x := err.(type) {
	case *url.Error:
		w.roundTrip = true
		return Fault{}, false // its Timeout method speaks for what is inside: look there
	case *net.OpError:
		return w.fromOp(x), true
	case *net.DNSError:
		if x.IsNotFound {
			return ReasonHostNotFound.fault(), true
		}
		return ReasonDNS.fault(), true // whatever Temporary says: a resolver that fails, not a name that is wrong
	case *net.AddrError, *net.ParseError, net.UnknownNetworkError, net.InvalidAddrError:
		return Fault{Class: InvalidRequest, Reason: ReasonBadAddress, Outcome: OutcomeMaybeExecuted}, true
	case syscall.Errno:
		return fromErrno(x)
	}
	if f, ok := w.fromTLS(err); ok {
		return f, true
	}
	switch err {
	case http.ErrSchemeMismatch:
		return ReasonWrongScheme.fault(), true
	case io.EOF, net.ErrClosed, io.ErrClosedPipe:
		return ReasonConnectionLost.fault(), true
	case io.ErrUnexpectedEOF:
		return ReasonResponseTruncated.fault(), true
	}
	if r, ok := contextReason(err); ok {
		return r.fault(), true
	}
	return Fault{}, false
}

// fromOp judges a network operation by its phase. While dialling nothing can have been sent, whatever is
// inside; in any other phase something may have been, whatever is inside: even "connection refused", which a
// datagram socket reports for a packet that was sent before.
func (w *walk) fromOp(op *net.OpError) Fault {
	inside, known := w.visit(op.Err)
	var f Fault
	switch op.Op {
	case "dial":
		f = ReasonUnreachable.fault()
	case "proxyconnect", "socks connect":
		f = ReasonProxyUnreachable.fault()
	default:
		f = ReasonConnectionLost.fault()
		if inside.Reason == ReasonClientTimeout {
			f.Reason = ReasonClientTimeout
		}
		return f
	}
	if known && inside.Class != OutcomeUnknown && inside.Class != Canceled && inside.Reason != ReasonUnreachable {
		f.Class, f.Reason = inside.Class, inside.Reason // a name that does not exist, a certificate
	}
	return f
}

// fromTLS recognises a handshake that failed.
func (w *walk) fromTLS(err error) (Fault, bool) {
	switch x := err.(type) {
	case *tls.CertificateVerificationError:
		return ReasonTLSCertificate.fault(), true
	case x509.UnknownAuthorityError, x509.HostnameError, x509.CertificateInvalidError, x509.SystemRootsError:
		// Go's own handshake wraps these. Bare they come from a callback of the handshake, or from code that
		// looks at a certificate for reasons of its own, perhaps after the effect.
		f := ReasonTLSCertificate.fault()
		if !w.roundTrip {
			f.Outcome = OutcomeMaybeExecuted
		}
		return f, true
	case tls.RecordHeaderError:
		if x.Conn != nil { // set only for the first record of a connection
			return ReasonWrongScheme.fault(), true
		}
		return ReasonConnectionLost.fault(), true
	}
	// net/http has no exported name for it, and unlike its other timeouts it proves that nothing was sent.
	if t := reflect.TypeOf(err); t.PkgPath() == "net/http" && t.Name() == "tlsHandshakeTimeoutError" {
		return ReasonUnreachable.fault(), true
	}
	return Fault{}, false
}

// fromErrno judges a system error that no *net.OpError gave a phase to.
func fromErrno(e syscall.Errno) (Fault, bool) {
	switch e {
	case syscall.ECONNREFUSED:
		return ReasonUnreachable.fault(), true // a stream socket reports it for connect alone
	case syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE, syscall.ETIMEDOUT,
		syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ENETDOWN, syscall.ENETRESET, syscall.ENOTCONN:
		return ReasonConnectionLost.fault(), true
	case syscall.ENOSPC, syscall.EDQUOT: // part of it may be written
		return Fault{Class: QuotaExhausted, Reason: ReasonStorageFull, Outcome: OutcomeMaybeExecuted}, true
	}
	return Fault{}, false
}
