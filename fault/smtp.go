package fault

import (
	"fmt"
	"net/textproto"
	"reflect"
)

// enhanced is an enhanced mail status such as 5.7.1 (RFC 3463); zero if the reply had none.
type enhanced [3]int

// fromSMTP recognises a mail server's reply by its code. A reply of 4yz or 5yz states that the action did not
// happen, also after the final dot.
func fromSMTP(err error) (Fault, bool) {
	code, status, ok := smtpReply(err)
	if !ok || code < 400 || code > 599 {
		return Fault{}, false
	}
	f := smtpFault(code, status)
	f.Status = code
	return f, true
}

func smtpFault(code int, status enhanced) Fault {
	switch {
	case code == 421: // whenever the server closes the connection
		return Fault{Class: Transient, Reason: ReasonUnavailable, Outcome: OutcomeRejected}
	case code == 452:
		return ReasonTooManyRecipients.fault()
	case code == 450:
		return ReasonMailboxBusy.fault()
	case code == 454:
		return ReasonAuthUnavailable.fault()
	case code < 500:
		return ReasonMailRefused.fault()
	case code >= 530 && code <= 539, status == enhanced{5, 7, 8}:
		return ReasonAuthentication.fault()
	case status[0] == 5 && status[1] == 7:
		return ReasonMessageBlocked.fault()
	case code == 552 && status == enhanced{5, 2, 2}:
		return ReasonStorageFull.fault()
	case code == 552, status == enhanced{5, 3, 4}, status == enhanced{5, 2, 3}:
		return ReasonRequestTooLarge.fault()
	case code == 550, code == 551, code == 553, status[0] == 5 && status[1] == 1:
		return ReasonNoSuchMailbox.fault()
	}
	return ReasonMalformed.fault()
}

// smtpReply reads the reply out of the errors of net/smtp, emersion/go-smtp and wneessen/go-mail, the latter
// two by their shape so that the package needs neither.
func smtpReply(err error) (code int, status enhanced, ok bool) {
	if x, is := err.(*textproto.Error); is {
		return x.Code, parseEnhanced(x.Msg), true // which stands at the beginning of the reply (RFC 2034)
	}
	if x, is := err.(interface {
		ErrorCode() int
		EnhancedStatusCode() string
	}); is {
		return x.ErrorCode(), parseEnhanced(x.EnhancedStatusCode()), true
	}
	v := reflect.Indirect(reflect.ValueOf(err))
	if v.Kind() != reflect.Struct || v.Type().Name() != "SMTPError" {
		return 0, enhanced{}, false
	}
	number, detail := v.FieldByName("Code"), v.FieldByName("EnhancedCode")
	if !number.IsValid() || !number.CanInt() || !detail.IsValid() || !detail.CanConvert(reflect.TypeFor[enhanced]()) {
		return 0, enhanced{}, false
	}
	return int(number.Int()), detail.Convert(reflect.TypeFor[enhanced]()).Interface().(enhanced), true
}

func parseEnhanced(text string) (status enhanced) {
	n, _ := fmt.Sscanf(text[:min(len(text), 20)], "%1d.%3d.%3d", &status[0], &status[1], &status[2])
	if n != 3 {
		return enhanced{}
	}
	return status
}
