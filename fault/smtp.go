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
	case code == 452:
		return ReasonTooManyRecipients.fault()
	case code == 450:
		return ReasonMailboxBusy.fault()
	case code < 500:
		return ReasonMailRefused.fault()
	case code >= 530 && code <= 539:
		return ReasonAuthentication.fault()
	case status == enhanced{5, 7, 1}:
		return ReasonMessageBlocked.fault()
	case code == 552:
		return ReasonTooLarge.fault()
	case code == 550:
		return ReasonNoSuchMailbox.fault()
	}
	return ReasonMalformed.fault()
}

// smtpReply reads the reply out of the errors of net/smtp, emersion/go-smtp and wneessen/go-mail, the latter
// two by their shape so that the package needs neither.
func smtpReply(err error) (code int, status enhanced, ok bool) {
	if x, is := err.(*textproto.Error); is {
		return x.Code, enhanced{}, true
	}
	if x, is := err.(interface {
		ErrorCode() int
		EnhancedStatusCode() string
	}); is {
		if n, _ := fmt.Sscanf(x.EnhancedStatusCode(), "%d.%d.%d", &status[0], &status[1], &status[2]); n != 3 {
			status = enhanced{}
		}
		return x.ErrorCode(), status, true
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
