package fault

import (
	"reflect"
	"time"
)

// fromGRPC recognises an error with a method GRPCStatus, by the code of what that returns. It goes by
// reflection so that the package needs no gRPC.
func fromGRPC(err error) (Fault, bool) {
	status, ok := call(reflect.ValueOf(err).MethodByName("GRPCStatus"))
	if !ok || status.Kind() == reflect.Pointer && status.IsNil() {
		return Fault{}, false
	}
	number, ok := call(status.MethodByName("Code"))
	if !ok {
		return Fault{}, false
	}
	var code uint64
	switch {
	case number.CanUint():
		code = number.Uint()
	case number.CanInt() && number.Int() >= 0:
		code = uint64(number.Int())
	default:
		return Fault{}, false
	}
	f, ok := fromGRPCCode(code)
	if !ok {
		return Fault{}, false
	}
	f.Status = int(code)
	if d, told := grpcDelay(status); told && (code == 8 || code == 14) {
		f.Class, f.Reason, f.Outcome, f.Delay = RateLimited, ReasonThrottled, OutcomeRejected, d
	}
	return f, true
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

// grpcDelay finds a google.rpc.RetryInfo among the details of a status.
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
		if d, ok := delay.Interface().(interface{ AsDuration() time.Duration }); ok && d.AsDuration() > 0 {
			return d.AsDuration(), true
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
