// Package payload turns Go values into the JSON that Pawl stores, and back.
//
// What is stored must come back the same after a crash, so everything that encoding/json would lose without a word is
// refused, with the path of the culprit: by type where that is possible ([CheckType], used when a workflow is defined),
// else by value ([Marshal]). Two things are left out knowingly: unexported fields of a struct that has exported ones, and
// fields that the author tagged `json:"-"` or shadowed by a field of the same name in an outer struct.
//
// [Hash] and [Canonical] say whether two inputs are the same; [Clean] and [CheckName] are the rules for text.
//
// All functions are safe for concurrent use, as long as nobody changes the value meanwhile.
package payload

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"unicode/utf8"
)

// maxNest is how deeply encoding/json reads nested arrays and objects; deeper JSON could be written but never read.
const maxNest = 10_000

// Marshal returns v as JSON, without HTML escaping and without a newline at the end. The bytes are valid JSON and valid
// UTF-8, and belong to the caller. Marshal(nil) is null.
//
// It refuses, with an error that names the path (`Order.Lines[2].Price: NaN cannot be stored as JSON`): types that
// [CheckType] refuses, wherever they turn up in an interface value; NaN and infinities; strings and map keys that are not
// valid UTF-8; integers beyond ±2^53, and numbers beyond float64, inside an interface value (a json.Number or the output
// of a MarshalJSON too), because they come back as float64 (typed fields keep every digit); a value other than nil in an
// interface with methods, which JSON could not be read into; values that contain themselves or nest deeper than 10,000
// levels; an empty json.RawMessage that is not nil; and what v's own MarshalJSON or MarshalText refuses, or breaks by
// giving invalid JSON or UTF-8. The error of such a method is wrapped. A panic in one becomes an error; an endless
// recursion in one cannot be caught.
//
// A MarshalJSON with a pointer receiver is used for v itself and its fields also when v is not a pointer, which is more
// than encoding/json does. Methods in an interface value, or after a refusal, may be called twice.
func Marshal(v any) ([]byte, error) {
	if v == nil {
		return []byte("null"), nil
	}
	rv := reflect.ValueOf(v)
	root := rootName(rv.Type())
	p := planOf(rv.Type(), place{addr: true})
	if p.refused != nil {
		return nil, p.refused.named(root)
	}
	if p.needAddr && rv.Kind() != reflect.Pointer {
		c := reflect.New(rv.Type())
		c.Elem().Set(rv)
		rv, v = c.Elem(), c.Interface()
	}
	if p.walk {
		if err := walk(rv, root, false); err != nil {
			return nil, err
		}
	}
	out, err := encode(v)
	// encoding/json replaces invalid bytes in strings, by \ufffd or the character itself as its version may be. A value
	// whose JSON has neither needs no walk; if one is there it may still be the value's own.
	if err == nil && utf8.Valid(out) && !bytes.Contains(out, []byte(`\ufffd`)) && !bytes.Contains(out, []byte("\ufffd")) {
		return readable(out, root, p)
	}
	if found := walk(rv, root, true); found != nil {
		return nil, found
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s cannot be stored as JSON: %w", root, rv.Type(), err)
	}
	if !utf8.Valid(out) {
		return nil, fmt.Errorf("%s: %s cannot be stored as JSON: its text is not valid UTF-8", root, rv.Type())
	}
	return readable(out, root, p)
}

// readable is the last look at encoded JSON: output of custom marshalers inside other values may nest too deeply only in sum.
func readable(out []byte, root string, p *plan) ([]byte, error) {
	if (p.walk || p.custom) && len(out) > 2*maxNest && !json.Valid(out) {
		return nil, fmt.Errorf("%s: JSON nested deeper than %d levels could not be read back", root, maxNest)
	}
	return out, nil
}

// encoder is used again and again, but not after an error or a panic.
type encoder struct {
	buf  bytes.Buffer
	json *json.Encoder
}

const keptRoom = 64 << 10 // in an encoder's buffer

var encoders = sync.Pool{New: func() any {
	e := &encoder{}
	e.json = json.NewEncoder(&e.buf)
	e.json.SetEscapeHTML(false)
	return e
}}

func encode(v any) (out []byte, err error) {
	defer recovered(&err)
	e := encoders.Get().(*encoder)
	e.buf.Reset()
	if err := e.json.Encode(v); err != nil {
		return nil, err
	}
	out = bytes.Clone(bytes.TrimSuffix(e.buf.Bytes(), []byte("\n")))
	if e.buf.Cap() <= keptRoom {
		encoders.Put(e)
	}
	return out, nil
}

// Plain reports whether every value of t that [Marshal] takes comes back from JSON as it was.
func Plain(t reflect.Type) bool {
	if t.PkgPath() != "" { // it may have methods of its own
		return false
	}
	switch t.Kind() {
	case reflect.Bool, reflect.String,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return true
	}
	return false
}

// Unmarshal reads one JSON value into v, a pointer, by the rules of encoding/json. Anything after the value but space is
// an error, and so is a panic in one of v's methods. The error names v's type and, where known, the field and the byte
// offset, and wraps the error of encoding/json. After an error v may be partly filled.
func Unmarshal(data []byte, v any) error {
	err := decode(data, v)
	if err == nil {
		return nil
	}
	what := "nil"
	if t := reflect.TypeOf(v); t != nil {
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		what = t.String()
	}
	var syntax *json.SyntaxError
	var typed *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("read %s from JSON, at byte %d: %w", what, syntax.Offset, err)
	case errors.As(err, &typed) && typed.Field != "":
		return fmt.Errorf("read %s from JSON, field %s, at byte %d: %w", what, typed.Field, typed.Offset, err)
	case errors.As(err, &typed):
		return fmt.Errorf("read %s from JSON, at byte %d: %w", what, typed.Offset, err)
	}
	return fmt.Errorf("read %s from JSON: %w", what, err)
}

func decode(data []byte, v any) (err error) {
	defer recovered(&err)
	return json.Unmarshal(data, v)
}

// recovered turns a panic of user code into *err. It is deferred itself.
func recovered(err *error) {
	if p := recover(); p != nil {
		cause, _ := p.(error)
		*err = &panicError{text: Clean(fmt.Sprint(p), 300), cause: cause}
	}
}

type panicError struct {
	text  string
	cause error // nil if the panic's value was no error
}

func (e *panicError) Error() string { return "panic: " + e.text }
func (e *panicError) Unwrap() error { return e.cause }

// refusal says which part of a type or value cannot be stored. Refusals of types are cached: never changed once returned.
type refusal struct {
	steps []string // the path, innermost step first; nil at the root
	why   string
	cause error // of a user's method, or nil
}

// under returns r seen from one step further out. It changes r, which must be the caller's own.
func (r *refusal) under(step string) *refusal {
	r.steps = append(r.steps, step)
	return r
}

// named ends the path with the name of the whole.
func (r *refusal) named(root string) error {
	path := []byte(root)
	for i := len(r.steps) - 1; i >= 0; i-- {
		path = append(path, r.steps[i]...)
		if len(path) > 400 {
			break
		}
	}
	text := Clean(string(path), 300) + ": " + r.why
	if r.cause != nil {
		return fmt.Errorf("%s: %w", text, r.cause)
	}
	return errors.New(text)
}

// rootName is how a path begins: the type's own name, or "value" if it has none.
func rootName(t reflect.Type) string {
	for t.Kind() == reflect.Pointer && t.Name() == "" {
		t = t.Elem()
	}
	if t.Name() == "" {
		return "value"
	}
	return t.Name()
}
