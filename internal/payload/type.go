package payload

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"sync"
)

// CheckType returns an error if values of t, or of anything inside t, would not survive being stored as JSON and read
// back into t. The error names the path and the type: `Order.Items[].Fn: func() cannot be stored as JSON`. A nil t, the
// type of a nil interface, is fine. Recursive types are fine.
//
// Refused are: channels, functions, complex numbers, unsafe pointers, also as exported fields, unless tagged `json:"-"`;
// structs all of whose fields are unexported (struct{} is fine); map keys that encoding/json cannot write or read; two
// fields with one JSON name, which encoding/json both drops; an embedded pointer to an unexported struct, which it cannot
// set.
//
// Methods: a type with MarshalJSON and UnmarshalJSON, or MarshalText and UnmarshalText, on itself or its pointer, is
// trusted and not looked into. One that has only the writing half is refused: what it writes is its own, so encoding/json
// could not read it back, or would read something else (think of a secret that writes "***"). One that has only
// UnmarshalJSON is written field by field and reads that as it likes, so its fields are checked, but not how they are
// read; only UnmarshalText is enough for a type of string kind, as it reads nothing but strings. A marshaler with a
// pointer receiver as a map's element is refused, because encoding/json does not call it there; store pointers. A struct that
// merely inherits these methods from an embedded field is refused if it has other fields, which they would not store
// (found for types that are not generic).
//
// An interface is fine, whatever it may hold: [Marshal] checks the value. It also refuses any value but nil in an
// interface that has methods, such as error.
func CheckType(t reflect.Type) error {
	if t == nil {
		return nil
	}
	if r := planOf(t, place{addr: true}).refused; r != nil {
		return r.named(rootName(t))
	}
	return nil
}

// place is where a value sits, as far as it matters to how encoding/json treats it.
type place struct {
	addr bool // addressable, so that methods with a pointer receiver are called
	free bool // inside an interface or a type with its own reader: how it is read back does not matter
}

type planKey struct {
	t reflect.Type
	place
}

// plan is what there is to know about a type at a place. It does not change.
type plan struct {
	refused  *refusal // why no value can be stored; nil if values can
	walk     bool     // has an interface inside or contains itself: look at the value before encoding it
	custom   bool     // has a marshaler of its own inside
	needAddr bool     // has a marshaler inside that is called only if the whole is addressable
	write    way      // how encoding/json writes the type itself
	read     way
	fields   []field // of a struct written by kind
}

// plans caches a *plan per planKey. It depends on the types of the program alone and holds no other state.
var plans sync.Map

func planOf(t reflect.Type, at place) *plan {
	key := planKey{t, at}
	if p, ok := plans.Load(key); ok {
		return p.(*plan)
	}
	p := &plan{write: writes(t, at.addr), read: reads(t)}
	if t.Kind() == reflect.Struct && p.write == byKind {
		p.fields, _ = fieldsOf(t)
	}
	c := checker{plan: p, done: map[planKey]bool{}}
	p.refused = c.check(t, at)
	got, _ := plans.LoadOrStore(key, p)
	return got.(*plan)
}

// way is how encoding/json writes or reads a type.
type way uint8

const (
	byKind way = iota // as its kind says: object, array, string, …
	byText            // MarshalText, UnmarshalText
	byJSON            // MarshalJSON, UnmarshalJSON
)

func writes(t reflect.Type, addr bool) way {
	if t.Kind() == reflect.Pointer || t.Kind() == reflect.Interface {
		return byKind // looked through
	}
	m := t
	if addr {
		m = reflect.PointerTo(t)
	}
	switch {
	case m.Implements(reflect.TypeFor[json.Marshaler]()):
		return byJSON
	case m.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return byText
	}
	return byKind
}

func reads(t reflect.Type) way {
	if t.Kind() == reflect.Pointer || t.Kind() == reflect.Interface || t.Name() == "" {
		return byKind // encoding/json calls the methods of named types only
	}
	switch p := reflect.PointerTo(t); {
	case p.Implements(reflect.TypeFor[json.Unmarshaler]()):
		return byJSON
	case p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		return byText
	}
	return byKind
}

type checker struct {
	plan *plan
	done map[planKey]bool // false while being checked
}

func (c *checker) check(t reflect.Type, at place) *refusal {
	key := planKey{t, at}
	if done, seen := c.done[key]; seen {
		c.plan.walk = c.plan.walk || !done // contains itself, so a value may be cyclic or too deep
		return nil
	}
	c.done[key] = false
	defer func() { c.done[key] = true }()
	switch t.Kind() {
	case reflect.Interface:
		c.plan.walk = true
		return nil
	case reflect.Pointer:
		return c.check(t.Elem(), place{addr: true, free: at.free})
	}
	w, r := writes(t, at.addr), reads(t)
	c.plan.custom = c.plan.custom || w != byKind
	c.plan.needAddr = c.plan.needAddr || at.addr && w != writes(t, false)
	if why := unreadable(t, at, w, r); why != "" && !at.free {
		return refuse(t, why)
	}
	if why := inherited(t, w, r); why != "" && (w != byKind || !at.free) {
		return refuse(t, why)
	}
	if w != byKind {
		return nil
	}
	if r == byJSON {
		at.free = true
	}
	return c.checkKind(t, at)
}

func refuse(t reflect.Type, why string) *refusal {
	text := t.String() + " cannot be stored as JSON"
	if why != "" {
		text += ": " + why
	}
	return &refusal{why: text}
}

// unreadable says why what w writes could not be read back by r, or "".
func unreadable(t reflect.Type, at place, w, r way) string {
	switch {
	case !at.addr && w != writes(t, true):
		return "its marshal method has a pointer receiver, and encoding/json does not call it for the elements of a map; " +
			"store pointers"
	case w == r, r == byJSON:
		return ""
	case w == byJSON:
		return "it has MarshalJSON but no UnmarshalJSON, so it could not be read back"
	case w == byText:
		return "it has MarshalText but no UnmarshalText, so it could not be read back"
	case t.Kind() == reflect.String:
		return "" // written as a string, which UnmarshalText reads
	}
	return "it has UnmarshalText but no MarshalText, so it could not be read back"
}

func (c *checker) checkKind(t reflect.Type, at place) *refusal {
	switch t.Kind() {
	case reflect.Chan, reflect.Func, reflect.Complex64, reflect.Complex128, reflect.UnsafePointer:
		return refuse(t, "")
	case reflect.Slice:
		return step(c.check(t.Elem(), place{addr: true, free: at.free}), "[]")
	case reflect.Array:
		return step(c.check(t.Elem(), at), "[]")
	case reflect.Map:
		if !keyFine(t.Key(), at.free) {
			return refuse(t, "map keys must be strings, integers, or have both MarshalText (not on the pointer) and UnmarshalText")
		}
		return step(c.check(t.Elem(), place{free: at.free}), "[]")
	case reflect.Struct:
		return c.checkStruct(t, at)
	}
	return nil
}

func step(r *refusal, s string) *refusal {
	if r != nil {
		r.under(s)
	}
	return r
}

func keyFine(k reflect.Type, free bool) bool {
	text := k.Implements(reflect.TypeFor[encoding.TextMarshaler]())
	back := reflect.PointerTo(k).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
	switch k.Kind() {
	case reflect.String:
		return true // written as it is, whatever its methods
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return free || text == back
	}
	return text && (back || free)
}

func (c *checker) checkStruct(t reflect.Type, at place) *refusal {
	fields, clash := fieldsOf(t)
	if clash != "" {
		return refuse(t, clash)
	}
	if len(fields) == 0 && t.Size() > 0 && !dashed(t) {
		return refuse(t, "all its fields are unexported")
	}
	for _, f := range fields {
		if f.pinned && !at.free {
			return refuse(t, "it embeds a pointer to an unexported struct, which encoding/json cannot set")
		}
		addr := at.addr || f.deref
		if r := c.check(f.typ, place{addr: addr, free: at.free}); r != nil {
			return r.under("." + f.name)
		}
	}
	return nil
}

// dashed reports whether t's author left a field out by tag, and so knows what is stored.
func dashed(t reflect.Type) bool {
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() && f.Tag.Get("json") == "-" {
			return true
		}
	}
	return false
}

// field is a struct field that encoding/json stores.
type field struct {
	name   string // in Go; Outer.Inner for a promoted one
	json   string
	tagged bool
	typ    reflect.Type
	index  []int
	deref  bool // promoted through a pointer, so it is addressable
	pinned bool // promoted through a pointer to an unexported struct
}

// fieldsOf lists what encoding/json stores of a struct. clash is set if it would silently drop some.
func fieldsOf(t reflect.Type) (fields []field, clash string) {
	best := map[string]int{} // JSON name to place in fields
	tie := map[string]string{}
	for _, f := range candidates(t, nil, map[reflect.Type]bool{}) {
		i, ok := best[f.json]
		if !ok {
			best[f.json] = len(fields)
			fields = append(fields, f)
			continue
		}
		switch old := fields[i]; {
		case len(f.index) < len(old.index), len(f.index) == len(old.index) && f.tagged && !old.tagged:
			fields[i] = f
			delete(tie, f.json)
		case len(f.index) == len(old.index) && f.tagged == old.tagged:
			tie[f.json] = fmt.Sprintf("fields %s and %s have one JSON name, %q, so both would be left out", old.name, f.name, f.json)
		}
	}
	for _, f := range fields { // in order, so that the error is always the same one
		if why := tie[f.json]; why != "" {
			return fields, why
		}
	}
	return fields, ""
}

// candidates lists all fields by the rules of encoding/json, before those of one name compete. outer is the way to t.
func candidates(t reflect.Type, outer *field, above map[reflect.Type]bool) []field {
	if above[t] {
		return nil // embeds itself: all its fields are shadowed
	}
	above[t] = true
	defer delete(above, t)
	var all []field
	for i := range t.NumField() {
		sf := t.Field(i)
		inner := sf.Type
		if inner.Kind() == reflect.Pointer && inner.Name() == "" {
			inner = inner.Elem()
		}
		embeds := sf.Anonymous && inner.Kind() == reflect.Struct
		if !sf.IsExported() && !embeds || sf.Tag.Get("json") == "-" {
			continue
		}
		f := candidate(sf, i, outer)
		if embeds && !f.tagged {
			if sf.Type.Kind() == reflect.Pointer {
				f.deref, f.pinned = true, f.pinned || !sf.IsExported()
			}
			all = append(all, candidates(inner, &f, above)...)
			continue
		}
		if !f.tagged {
			f.json = sf.Name
		}
		all = append(all, f)
	}
	return all
}

// candidate is sf, the i-th field of its struct; json is the name in the tag alone. outer is the way to the struct.
func candidate(sf reflect.StructField, i int, outer *field) field {
	name, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
	if !validTag(name) {
		name = ""
	}
	f := field{name: sf.Name, json: name, tagged: name != "", typ: sf.Type, index: []int{i}}
	if outer != nil {
		f.name, f.index = outer.name+"."+sf.Name, append(append([]int{}, outer.index...), i)
		f.deref, f.pinned = outer.deref, outer.pinned
	}
	return f
}

// validTag reports whether encoding/json takes s as a name.
func validTag(s string) bool {
	return s != "" && strings.IndexFunc(s, func(c rune) bool {
		return !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", c) && !isLetterOrDigit(c)
	}) < 0
}

// inherited says why a struct that has its marshal methods from an embedded field would lose its other fields, or "".
// What a type declares itself and what it inherits look the same to reflection; but the compiler writes a wrapper for the
// latter, whose source file has a telling name. Where that is not so (generic types) nothing is said.
func inherited(t reflect.Type, w, r way) string {
	if t.Kind() != reflect.Struct || w == byKind && r != byJSON || strings.Contains(t.Name(), "[") {
		return ""
	}
	fields, _ := fieldsOf(t)
	for i := range t.NumField() {
		sf := t.Field(i)
		if !sf.Anonymous || !giver(sf.Type, w, r) {
			continue
		}
		for _, f := range fields {
			if f.index[0] != i && wrapper(t, w, r) {
				return fmt.Sprintf("its JSON methods are those of the embedded %s, which leave out the other fields; "+
					"give it methods of its own or name the field", sf.Type)
			}
		}
	}
	return ""
}

// giver reports whether embedding t gives a struct the method that makes it written by w or, if by kind, read by r.
func giver(t reflect.Type, w, r way) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() == reflect.Interface {
		return w == byJSON && t.Implements(reflect.TypeFor[json.Marshaler]())
	}
	if w != byKind {
		return writes(t, true) == w
	}
	return reads(t) == r
}

// wrapper reports whether the compiler wrote the method by which t is written, or read if it is written by kind.
func wrapper(t reflect.Type, w, r way) bool {
	for _, on := range []reflect.Type{t, reflect.PointerTo(t)} {
		var m reflect.Method
		var ok bool
		switch { // constant names, so that the linker need not keep every method of the program
		case w == byJSON:
			m, ok = on.MethodByName("MarshalJSON")
		case w == byText:
			m, ok = on.MethodByName("MarshalText")
		case r == byJSON:
			m, ok = on.MethodByName("UnmarshalJSON")
		}
		if !ok {
			continue
		}
		fn := runtime.FuncForPC(m.Func.Pointer())
		if fn == nil {
			return false
		}
		file, _ := fn.FileLine(fn.Entry())
		return file == "<autogenerated>"
	}
	return false
}
