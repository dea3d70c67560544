package sqlstore

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/payload"
)

// Zero values are stored as NULL where the column allows it: most columns of most rows are empty, and a NULL takes no
// room. orZero is the way back.
type orZero[T any] struct{ to *T }

func zero[T any](to *T) sql.Scanner { return orZero[T]{to} }

// OrZero is a destination for a column whose NULL is the zero value.
type OrZero interface {
	sql.Scanner
	Place() any // pointer to the field
}

func (o orZero[T]) Place() any { return o.to }

func (o orZero[T]) Scan(src any) error {
	var none T
	switch to := any(o.to).(type) { // the common cases by themselves, as a page has tens of thousands of them
	case *int64:
		if n, ok := src.(int64); ok {
			*to = n
			return nil
		}
	case *string:
		if text, ok := src.(string); ok {
			*to = text
			return nil
		}
	}
	if src == nil {
		*o.to = none
		return nil
	}
	var n sql.Null[T]
	if err := n.Scan(src); err != nil {
		return err
	}
	*o.to = n.V
	return nil
}

// scanned converts what the driver gives for a column into the field it belongs to.
type scanned func(src any) error

func (f scanned) Scan(src any) error { return f(src) }

func str[S ~string](s S) any {
	if s == "" {
		return nil
	}
	return string(s)
}

// said is str for text that nobody has checked: cut and cleaned, so that it can always be stored.
func said(s string) any { return str(clean(s)) }

func num[N ~int | ~int64](n N) any {
	if n == 0 {
		return nil
	}
	return int64(n)
}

func raw(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

func faultText(f *fault.Fault) (string, error) {
	if f == nil {
		return "", nil
	}
	text, err := json.Marshal(*f)
	return string(text), err
}

// scanFault reads a fault. One that a newer build wrote and this one cannot read still says that there was one.
func scanFault(to **fault.Fault) sql.Scanner {
	return scanned(func(src any) error {
		*to = nil
		if src == nil {
			return nil
		}
		var text sql.Null[[]byte]
		if err := text.Scan(src); err != nil {
			return err
		}
		f := new(fault.Fault)
		if err := json.Unmarshal(text.V, f); err != nil {
			f = &fault.Fault{Class: fault.OutcomeUnknown, Outcome: fault.OutcomeMaybeExecuted,
				Message: payload.Clean(fmt.Sprintf("stored fault cannot be read (%v): %s", err, text.V), 4096)}
		}
		*to = f
		return nil
	})
}

func sentText(sent *fault.Evidence) string {
	if sent == nil {
		return ""
	}
	text, err := json.Marshal(sent)
	if err != nil { // it is for people to look at, and no reason to lose a result
		return ""
	}
	return string(text)
}

// scanSent reads what an attempt sent; one that cannot be read is left out.
func scanSent(to **fault.Evidence) sql.Scanner {
	return scanned(func(src any) error {
		*to = nil
		if src == nil {
			return nil
		}
		var text sql.Null[[]byte]
		if err := text.Scan(src); err != nil {
			return err
		}
		if sent := new(fault.Evidence); json.Unmarshal(text.V, sent) == nil {
			*to = sent
		}
		return nil
	})
}

// kindField is where a kind's name belongs.
type kindField struct{ to *fault.Kind }

func (f kindField) ScanText(text []byte) error { return f.to.UnmarshalText(text) }

func (f kindField) Scan(src any) error {
	var text sql.Null[[]byte]
	if err := text.Scan(src); err != nil {
		return err
	}
	return f.ScanText(text.V)
}

// microsField is where a number of microseconds belongs, if there is one.
type microsField struct{ to *time.Duration }

func (f microsField) ScanNumber(n int64) { *f.to = time.Duration(n) * time.Microsecond }

func (f microsField) Scan(src any) error {
	var n sql.Null[int64]
	err := n.Scan(src)
	f.ScanNumber(n.V)
	return err
}

// TextScanner may be what a [sql.Scanner] of a text is besides, for those who have it at hand.
type TextScanner interface{ ScanText([]byte) error }

// NumberScanner is the same for a number, which is 0 for NULL.
type NumberScanner interface{ ScanNumber(int64) }

const idTemplate = "00000000-0000-0000-0000-000000000000"

// isID reports whether s is a UUID as this module writes them. Anything else names nothing, and would be an error in a
// column of PostgreSQL's type.
func isID[S ~string](s S) bool { return len(s) == len(idTemplate) && isIDPrefix(string(s)) }

func isIDPrefix(s string) bool {
	if len(s) > len(idTemplate) {
		return false
	}
	for i := range len(s) {
		c := s[i]
		hex := '0' <= c && c <= '9' || 'a' <= c && c <= 'f'
		if dash := idTemplate[i] == '-'; dash != (c == '-') || !dash && !hex {
			return false
		}
	}
	return true
}
