package fault

import (
	"reflect"
	"strings"
	"time"
)

// FromGRPC is [From] for the error of a gRPC call whose trailer is at hand: a metadata.MD, of which it reads
// grpc-retry-pushback-ms. A delay there is a refusal for now; a negative or unreadable one is a refusal for good, which
// makes the fault final.
func FromGRPC(err error, trailer map[string][]string) *Fault {
	f := From(err)
	if f == nil {
		return nil
	}
	d, told, veto := pushback(trailer["grpc-retry-pushback-ms"])
	pushed := f.Status == 8 || f.Status == 14 // RESOURCE_EXHAUSTED, UNAVAILABLE
	switch {
	case told && pushed && f.Class != InvalidRequest:
		f.Class, f.Reason, f.Outcome, f.Delay = RateLimited, ReasonRequests, OutcomeRejected, d
	case veto && f.Status == 14:
		f.Class, f.Reason, f.Outcome, f.Final = Transient, ReasonUnavailable, OutcomeRejected, true
	case veto:
		f.Final = true
	}
	return f
}

// tooLarge tells a message that is too large from a rate: grpc-go has one code for both. Whose limit it was is not in
// the text, so the call may have run and its answer been refused on our side.
func tooLarge(f *Fault, text string) {
	switch {
	case strings.Contains(text, "trying to send message larger than max"):
		*f = Fault{Class: InvalidRequest, Reason: ReasonRequestTooLarge, Outcome: OutcomeNotSent, Status: f.Status}
	case strings.Contains(text, "larger than max"):
		*f = Fault{Class: InvalidRequest, Reason: ReasonTooLarge, Outcome: OutcomeMaybeExecuted, Status: f.Status}
	}
}

// fromGRPC recognises an error with a method GRPCStatus, by the code of what that returns. It goes by
// reflection so that the package needs no gRPC.
func fromGRPC(err error) (Fault, bool) {
	if x, ok := err.(interface{ Unprocessed() bool }); ok && x.Unprocessed() {
		return ReasonRefusedStream.fault(), true // the protocol's word that it was not handed on
	}
	status, ok := call(reflect.ValueOf(err).MethodByName("GRPCStatus"))
	if !ok || status.Kind() == reflect.Pointer && status.IsNil() {
		return Fault{}, false
	}
	code, ok := grpcCode(status)
	if !ok {
		return Fault{}, false
	}
	f, ok := fromGRPCCode(code)
	if !ok {
		return Fault{}, false
	}
	f.Status = int(code)
	if text, ok := call(status.MethodByName("Message")); ok && code == 8 && text.Kind() == reflect.String {
		tooLarge(&f, text.String())
	}
	if d, told := grpcDelay(status); told && (f.Class == RateLimited || code == 14) {
		f.Class, f.Reason, f.Outcome, f.Delay = RateLimited, ReasonThrottled, OutcomeRejected, d
	}
	return f, true
}

// grpcCode reads the code of a status.
func grpcCode(status reflect.Value) (uint64, bool) {
	number, ok := call(status.MethodByName("Code"))
	switch {
	case !ok:
	case number.CanUint():
		return number.Uint(), true
	case number.CanInt() && number.Int() >= 0:
		return uint64(number.Int()), true
	}
	return 0, false
}

func fromGRPCCode(code uint64) (Fault, bool) { //nolint:cyclop // a table: one case per row
	switch code {
	case 1: // CANCELLED
		return ReasonCallCanceled.fault(), true
	case 3, 11: // INVALID_ARGUMENT, OUT_OF_RANGE
		return ReasonMalformed.fault(), true
	case 4: // DEADLINE_EXCEEDED, which can follow success
		return ReasonClientTimeout.fault(), true
	case 5: // NOT_FOUND
		return ReasonNotFound.fault(), true
	case 6: // ALREADY_EXISTS
		return ReasonAlreadyExists.fault(), true
	case 7: // PERMISSION_DENIED
		return ReasonAuthorization.fault(), true
	case 8: // RESOURCE_EXHAUSTED: a rate, or a message too large, even an answer that our side refused to read
		return Fault{Class: RateLimited, Reason: ReasonThrottled, Outcome: OutcomeMaybeExecuted}, true
	case 9: // FAILED_PRECONDITION
		return ReasonPrecondition.fault(), true
	case 10: // ABORTED
		return ReasonConflict.fault(), true
	case 12: // UNIMPLEMENTED
		return ReasonUnsupported.fault(), true
	case 13: // INTERNAL
		return ReasonServerError.fault(), true
	case 14: // UNAVAILABLE: the same code for "never sent" and for "broke half-way"
		return ReasonConnectionLost.fault(), true
	case 15: // DATA_LOSS
		return ReasonDataLoss.fault(), true
	case 16: // UNAUTHENTICATED
		return ReasonAuthentication.fault(), true
	case 2: // UNKNOWN
		return ReasonUnrecognized.fault(), true
	}
	return Fault{}, false
}

// grpcDelay finds a google.rpc.RetryInfo among the details of a status, and believes it as any other delay.
func grpcDelay(status reflect.Value) (time.Duration, bool) {
	x, ok := status.Interface().(interface{ Details() []any })
	if !ok {
		return 0, false
	}
	for _, detail := range x.Details() {
		v := reflect.ValueOf(detail)
		if !v.IsValid() {
			continue
		}
		delay, ok := call(v.MethodByName("GetRetryDelay"))
		if !ok || delay.Kind() == reflect.Pointer && delay.IsNil() {
			continue
		}
		if x, ok := delay.Interface().(interface{ AsDuration() time.Duration }); ok {
			if d, ok := believe(x.AsDuration()); ok && d > 0 {
				return d, true
			}
		}
	}
	return 0, false
}

// call calls a method without arguments and with one result; anything else is not ok.
func call(method reflect.Value) (reflect.Value, bool) {
	if !method.IsValid() || method.Type().NumIn() != 0 || method.Type().NumOut() != 1 {
		return reflect.Value{}, false
	}
	return method.Call(nil)[0], true
}
