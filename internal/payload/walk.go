package payload

import (
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"unicode/utf8"
	"unsafe"
)

const (
	maxExact  = 1 << 53 // float64 holds every integer up to here
	maxHops   = 100_000 // pointers, interfaces and containers between the root and a value
	watchFrom = 200     // hops after which a way through the value is remembered, to find cycles
)

// walk looks for parts of v that JSON would lose. Without all it looks for what encoding/json does not notice, and only
// where the types allow it. With all it looks for everything, to give the path of what went wrong.
func walk(v reflect.Value, root string, all bool) (err error) {
	defer recovered(&err) // somebody changes v meanwhile
	w := walker{all: all}
	if r := w.value(v, spot{}); r != nil {
		return r.named(root)
	}
	return nil
}

// spot is where the walk is.
type spot struct {
	loose bool // inside an interface: numbers come back as float64
	free  bool // as in place
	nest  int  // containers so far
	hops  int  // steps so far
}

func (s spot) deeper() spot { s.nest++; s.hops++; return s }
func (s spot) hop() spot    { s.hops++; return s }

type walker struct {
	all  bool
	open map[visit]bool // pointers between the root and here, from watchFrom on
}

type visit struct {
	at  unsafe.Pointer
	len int
	t   reflect.Type
}

func (w *walker) value(v reflect.Value, at spot) *refusal {
	t := v.Type()
	switch t.Kind() {
	case reflect.Interface:
		return w.iface(v, at)
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		leave, r := w.enter(v, 0, at)
		if r != nil {
			return r
		}
		defer leave()
		return w.value(v.Elem(), at.hop())
	}
	if t.PkgPath() == "" && t.Name() != "" { // predeclared, has no methods
		return w.scalar(v, at)
	}
	p := planOf(t, place{addr: v.CanAddr(), free: at.free})
	if !w.all && !at.loose && !p.walk {
		return nil
	}
	if p.write != byKind {
		return w.custom(v, at, p.write)
	}
	if p.read == byJSON {
		at.free = true
	}
	switch t.Kind() {
	case reflect.Struct:
		return w.structure(v, at, p)
	case reflect.Map:
		return w.mapping(v, at)
	case reflect.Slice, reflect.Array:
		return w.list(v, at)
	}
	return w.scalar(v, at)
}

// enter notes that the walk goes through the pointer, map or slice v. The caller calls leave when it comes back.
func (w *walker) enter(v reflect.Value, n int, at spot) (leave func(), r *refusal) {
	if at.nest > maxNest || at.hops > maxHops {
		return nil, &refusal{why: fmt.Sprintf("nested deeper than %d levels, which cannot be stored as JSON", maxNest)}
	}
	if at.hops < watchFrom || v.Kind() == reflect.Array || v.Kind() == reflect.Struct {
		return func() {}, nil
	}
	if w.open == nil {
		w.open = map[visit]bool{}
	}
	here := visit{v.UnsafePointer(), n, v.Type()}
	if w.open[here] {
		return nil, refuse(v.Type(), "the value contains itself")
	}
	w.open[here] = true
	return func() { delete(w.open, here) }, nil
}

func (w *walker) iface(v reflect.Value, at spot) *refusal {
	if v.IsNil() {
		return nil
	}
	if v.NumMethod() > 0 && !at.free {
		return refuse(v.Type(), fmt.Sprintf("it holds %s, which could not be read back into an interface that has methods", v.Elem().Type()))
	}
	v, at = v.Elem(), at.hop()
	at.loose, at.free = true, true
	if t := v.Type(); t.PkgPath() != "" || t.Name() == "" {
		if r := planOf(t, place{free: true}).refused; r != nil {
			return &refusal{steps: append([]string{}, r.steps...), why: r.why}
		}
	}
	return w.value(v, at)
}

func (w *walker) structure(v reflect.Value, at spot, p *plan) *refusal {
	at = at.deeper()
	if _, r := w.enter(v, 0, at); r != nil {
		return r
	}
	for i := range p.fields {
		f := &p.fields[i]
		fv, err := v.FieldByIndexErr(f.index)
		if err != nil {
			continue // promoted through a nil pointer: not stored
		}
		if r := w.value(fv, at); r != nil {
			return r.under("." + f.name)
		}
	}
	return nil
}

func (w *walker) mapping(v reflect.Value, at spot) *refusal {
	if v.IsNil() {
		return nil
	}
	at = at.deeper()
	leave, r := w.enter(v, 0, at)
	if r != nil {
		return r
	}
	defer leave()
	for it := v.MapRange(); it.Next(); {
		if w.all {
			if r := w.key(it.Key()); r != nil {
				return r
			}
		}
		if r := w.value(it.Value(), at); r != nil {
			name, _ := keyText(it.Key())
			return r.under(fmt.Sprintf("[%s]", strconv.Quote(Clean(name, 60))))
		}
	}
	return nil
}

func (w *walker) key(k reflect.Value) *refusal {
	s, r := keyText(k)
	if r == nil && !utf8.ValidString(s) {
		r = &refusal{why: fmt.Sprintf("the map key %s is not valid UTF-8 and cannot be stored as JSON", shown(s))}
	}
	return r
}

// keyText is the name that encoding/json gives a map key.
func keyText(k reflect.Value) (string, *refusal) {
	if k.Kind() == reflect.String {
		return k.String(), nil
	}
	if _, ok := k.Interface().(encoding.TextMarshaler); ok {
		if k.Kind() == reflect.Pointer && k.IsNil() {
			return "", nil
		}
		out, r := call(k, byText)
		return string(out), r
	}
	return fmt.Sprint(k.Interface()), nil
}

func (w *walker) list(v reflect.Value, at spot) *refusal {
	if w.skips(v.Type().Elem()) && !(at.loose && wide(v.Type().Elem().Kind())) {
		return nil
	}
	if v.Kind() == reflect.Slice && v.IsNil() {
		return nil
	}
	at = at.deeper()
	leave, r := w.enter(v, v.Len(), at)
	if r != nil {
		return r
	}
	defer leave()
	for i := range v.Len() {
		if r := w.value(v.Index(i), at); r != nil {
			return r.under("[" + strconv.Itoa(i) + "]")
		}
	}
	return nil
}

// skips reports whether there is nothing to find in elements of type e, but for wide integers: bytes, numbers and, unless all
// is looked at, strings.
func (w *walker) skips(e reflect.Type) bool {
	if e.Kind() == reflect.Uint8 {
		return writes(e, true) == byKind
	}
	return !w.all && e.Kind() != reflect.Interface && e.PkgPath() == "" && e.Name() != ""
}

// wide reports whether integers of kind k may be beyond maxExact.
func wide(k reflect.Kind) bool {
	switch k {
	case reflect.Int, reflect.Int64, reflect.Uint, reflect.Uint64, reflect.Uintptr:
		return true
	}
	return false
}

func (w *walker) scalar(v reflect.Value, at spot) *refusal {
	switch v.Kind() {
	case reflect.Int, reflect.Int64:
		if n := v.Int(); at.loose && (n > maxExact || n < -maxExact) {
			return tooBig(strconv.FormatInt(n, 10))
		}
	case reflect.Uint, reflect.Uint64, reflect.Uintptr:
		if n := v.Uint(); at.loose && n > maxExact {
			return tooBig(strconv.FormatUint(n, 10))
		}
	case reflect.Float32, reflect.Float64:
		if f := v.Float(); math.IsNaN(f) || math.IsInf(f, 0) {
			return &refusal{why: fmt.Sprintf("%v cannot be stored as JSON", f)}
		}
	case reflect.String:
		s := v.String()
		if v.Type() == reflect.TypeFor[json.Number]() {
			return number(s, at)
		}
		if w.all && !utf8.ValidString(s) {
			return &refusal{why: fmt.Sprintf("%s is not valid UTF-8 and cannot be stored as JSON", shown(s))}
		}
	}
	return nil
}

// number checks a json.Number, which encoding/json writes as it is, the empty one as 0.
func number(s string, at spot) *refusal {
	switch {
	case s == "":
		return nil
	case s[0] != '-' && (s[0] < '0' || s[0] > '9') || !json.Valid([]byte(s)):
		return &refusal{why: fmt.Sprintf("json.Number %s is no number and cannot be stored as JSON", shown(s))}
	case at.loose && inexact(s):
		return tooBig(s)
	}
	return nil
}

func tooBig(digits string) *refusal {
	return &refusal{why: fmt.Sprintf("%s inside an interface value would come back as a float64 and lose digits (beyond 2^53); "+
		"use a typed field or a string", Clean(digits, 60))}
}

// inexact reports whether the JSON number s cannot be read back into an any: an integer beyond maxExact, or beyond float64.
func inexact(s string) bool {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n > maxExact || n < -maxExact
	}
	for _, c := range []byte(s) {
		if c == '.' || c == 'e' || c == 'E' {
			_, err := strconv.ParseFloat(s, 64)
			return err != nil
		}
	}
	return true // an integer of more than 64 bits
}

// custom checks what a marshaler gives: always if everything is looked at, else where its numbers would lose digits.
func (w *walker) custom(v reflect.Value, at spot, by way) *refusal {
	if !w.all && !at.loose || !v.CanInterface() {
		return nil
	}
	t := v.Type()
	out, r := call(v, by)
	switch {
	case r != nil:
		return r
	case by == byJSON && len(out) == 0 && t == reflect.TypeFor[json.RawMessage]():
		return &refusal{why: "empty json.RawMessage cannot be stored as JSON: put JSON in it, or nil for null"}
	case by == byJSON && !json.Valid(out):
		return refuse(t, "its MarshalJSON gives invalid JSON: "+shown(string(out)))
	case !utf8.Valid(out):
		return refuse(t, "its text is not valid UTF-8: "+shown(string(out)))
	case by == byJSON && at.loose:
		if big := findInexact(out); big != "" {
			return tooBig(big)
		}
	}
	return nil
}

// call calls v's marshal method; a panic in it becomes a refusal, as does an error.
func call(v reflect.Value, by way) (out []byte, r *refusal) {
	t := v.Type()
	name := "MarshalText"
	if by == byJSON {
		name = "MarshalJSON"
	}
	if v.CanAddr() {
		v = v.Addr()
	}
	err := func() (err error) {
		defer recovered(&err)
		switch m := v.Interface().(type) {
		case json.Marshaler:
			if by == byJSON {
				out, err = m.MarshalJSON()
				return err
			}
		}
		if m, ok := v.Interface().(encoding.TextMarshaler); ok {
			out, err = m.MarshalText()
		}
		return err
	}()
	if err != nil {
		r = refuse(t, "its "+name+" failed")
		r.cause = err
	}
	return out, r
}

// findInexact returns the first number in valid JSON that is inexact, or "".
func findInexact(data []byte) string {
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case c == '"':
			i = stringEnd(data, i) - 1
		case c == '-' || c >= '0' && c <= '9':
			end := numberEnd(data, i)
			if inexact(string(data[i:end])) {
				return string(data[i:end])
			}
			i = end - 1
		}
	}
	return ""
}

// shown quotes s for an error message, cut to something readable.
func shown(s string) string {
	const most = 40
	if utf8.RuneCountInString(s) <= most {
		return strconv.Quote(s)
	}
	n := 0
	for i := range s {
		if n == most {
			return strconv.Quote(s[:i]) + "…"
		}
		n++
	}
	return strconv.Quote(s) // unreachable: there are more than most runes
}
