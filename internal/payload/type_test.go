package payload_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawlrun/pawl/internal/payload"
)

// Types of which JSON loses nothing.
type (
	Line struct {
		SKU   string `json:"sku"`
		Price int64  `json:",string"`
		note  string //nolint:unused // mixing is allowed
	}
	Order struct {
		Line
		*Address
		ID      string
		Lines   []Line
		ByName  map[string]*Order
		When    time.Time
		Amount  *big.Int
		Rate    big.Rat
		Any     any
		Raw     json.RawMessage
		Skipped func() `json:"-"`
		Parent  *Order
		Prices  map[netip.Addr]float64
		Ports   map[uint16][]byte
		Empty   struct{}
		mu      sync.Mutex //nolint:unused // not stored
	}
	Address struct{ Street string }
	Tree    struct {
		Kids []Tree
		Next *Tree
		All  map[string]Tree
	}
	List   []List
	Ptr    *Ptr
	Cents  struct{ n int64 }
	Level  int
	ReadMe struct { // like the response types of SDKs: read by hand, written by kind
		Name string
		Err  error
	}
	OnlyRead   string
	Opt[T any] struct {
		Cents
		Val T
	}
)

func (c Cents) MarshalJSON() ([]byte, error)     { return json.Marshal(c.n) }
func (c *Cents) UnmarshalJSON(b []byte) error    { return json.Unmarshal(b, &c.n) }
func (l Level) MarshalText() ([]byte, error)     { return []byte{'a' + byte(l)}, nil }
func (l *Level) UnmarshalText(b []byte) error    { *l = Level(b[0] - 'a'); return nil }
func (r *ReadMe) UnmarshalJSON(b []byte) error   { return nil }
func (o *OnlyRead) UnmarshalText(b []byte) error { *o = OnlyRead(b); return nil }
func (o Opt[T]) MarshalJSON() ([]byte, error)    { return json.Marshal(o.Val) }
func (o *Opt[T]) UnmarshalJSON(b []byte) error   { return json.Unmarshal(b, &o.Val) }

// Types that JSON loses something of.
type (
	Fn        struct{ Fn func() }
	Items     struct{ Items []Fn }
	Opaque    struct{ a, b int } //nolint:unused // that is the point
	OnlyJSON  struct{ A int }
	Secret    string
	OnlyUText struct{ A int }
	Mixed     struct{ A int }
	PtrOnly   struct{ n int }
	Event     struct {
		time.Time
		Name string
	}
	EventPtr struct {
		*Cents
		Name string
	}
	EventAny struct {
		json.Marshaler
		Name string
	}
	EventText struct {
		Level
		Name string
	}
	EventRead struct { // written whole, read in part
		ReadMe
		Extra string
	}
	EventFine struct {
		time.Time
		Name string
	}
	hidden struct{ Street string }
	Pinned struct{ *hidden }
	Halves map[Half]int
	Half   int
)

func (OnlyJSON) MarshalJSON() ([]byte, error)    { return []byte("1"), nil }
func (Secret) MarshalText() ([]byte, error)      { return []byte("***"), nil }
func (*OnlyUText) UnmarshalText(b []byte) error  { return nil }
func (Mixed) MarshalJSON() ([]byte, error)       { return []byte("1"), nil }
func (*Mixed) UnmarshalText(b []byte) error      { return nil }
func (p *PtrOnly) MarshalJSON() ([]byte, error)  { return json.Marshal(p.n) }
func (p *PtrOnly) UnmarshalJSON(b []byte) error  { return json.Unmarshal(b, &p.n) }
func (Half) MarshalText() ([]byte, error)        { return []byte("half"), nil }
func (e EventFine) MarshalJSON() ([]byte, error) { return json.Marshal(e.Name) }
func (e *EventFine) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &e.Name)
}

func TestCheckTypeAccepts(t *testing.T) {
	t.Parallel()
	for _, typ := range []reflect.Type{
		nil,
		reflect.TypeFor[int](), reflect.TypeFor[string](), reflect.TypeFor[any](), reflect.TypeFor[error](),
		reflect.TypeFor[struct{}](), reflect.TypeFor[*struct{}](), reflect.TypeFor[[]byte](), reflect.TypeFor[[3]int](),
		reflect.TypeFor[map[string]any](), reflect.TypeFor[map[int8]bool](),
		reflect.TypeFor[Order](), reflect.TypeFor[**Order](), reflect.TypeFor[Tree](), reflect.TypeFor[List](), reflect.TypeFor[Ptr](),
		reflect.TypeFor[Cents](), reflect.TypeFor[Level](), reflect.TypeFor[map[Level]Cents](), reflect.TypeFor[[]Level](),
		reflect.TypeFor[ReadMe](), reflect.TypeFor[OnlyRead](), reflect.TypeFor[Opt[int]](), reflect.TypeFor[EventFine](),
		reflect.TypeFor[PtrOnly](), reflect.TypeFor[[]PtrOnly](), reflect.TypeFor[map[string]*PtrOnly](), reflect.TypeFor[struct{ P PtrOnly }](),
		reflect.TypeFor[json.Number](), reflect.TypeFor[sql.NullString](), reflect.TypeFor[net.IPNet](), reflect.TypeFor[time.Duration](),
		reflect.TypeFor[big.Int](), reflect.TypeFor[big.Float](), reflect.TypeFor[sql.Null[time.Time]](),
		reflect.TypeFor[struct {
			sync.Mutex
			N int
		}](),
		reflect.TypeFor[struct {
			Fn func() `json:"-"`
			n  int
		}](), // its author knows that nothing is stored
		reflect.TypeFor[struct {
			Address // shadowed
			Line
			Street string
		}](),
	} {
		if err := payload.CheckType(typ); err != nil {
			t.Errorf("CheckType(%v) = %v, want nil: nothing of it is lost", typ, err)
		}
	}
}

func TestCheckTypeRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		typ  reflect.Type
		want string // beginning of the error
	}{
		{reflect.TypeFor[func()](), "value: func() cannot be stored as JSON"},
		{reflect.TypeFor[chan int](), "value: chan int cannot"},
		{reflect.TypeFor[complex128](), "complex128: complex128 cannot"},
		{reflect.TypeFor[Fn](), "Fn.Fn: func() cannot be stored as JSON"},
		{reflect.TypeFor[struct{ Order Items }](), "value.Order.Items[].Fn: func() cannot"},
		{reflect.TypeFor[*Items](), "Items.Items[].Fn: func() cannot be stored as JSON"},
		{reflect.TypeFor[map[string][2]*chan int](), "value[][]: chan int cannot"},
		{reflect.TypeFor[Opaque](), "Opaque: payload_test.Opaque cannot be stored as JSON: all its fields are unexported"},
		{reflect.TypeFor[struct{ M sync.Mutex }](), "value.M: sync.Mutex cannot"},
		{reflect.TypeFor[struct{ sync.Mutex }](), "value: struct { sync.Mutex } cannot"},
		{reflect.TypeFor[url.URL](), "URL.User: url.Userinfo cannot"},
		{reflect.TypeFor[map[float64]int](), "value: map[float64]int cannot be stored as JSON: map keys must"},
		{reflect.TypeFor[map[any]int](), "value: map[interface {}]int cannot"},
		{reflect.TypeFor[map[*Level]int](), "value: map[*payload_test.Level]int cannot"},
		{reflect.TypeFor[Halves](), "Halves: payload_test.Halves cannot"},
		{reflect.TypeFor[OnlyJSON](), "OnlyJSON: payload_test.OnlyJSON cannot be stored as JSON: it has MarshalJSON but no UnmarshalJSON"},
		{reflect.TypeFor[Secret](), "Secret: payload_test.Secret cannot be stored as JSON: it has MarshalText but no"},
		{reflect.TypeFor[OnlyUText](), "OnlyUText: payload_test.OnlyUText cannot be stored as JSON: it has UnmarshalText but no"},
		{reflect.TypeFor[Mixed](), "Mixed: payload_test.Mixed cannot be stored as JSON: it has MarshalJSON but no"},
		{reflect.TypeFor[map[string]PtrOnly](), "value[]: payload_test.PtrOnly cannot be stored as JSON: its marshal method has a pointer"},
		{reflect.TypeFor[Event](), "Event: payload_test.Event cannot be stored as JSON: its JSON methods are those of the embedded time.Time"},
		{reflect.TypeFor[EventAny](), "EventAny: payload_test.EventAny cannot be stored as JSON: it has MarshalJSON but no"},
		{reflect.TypeFor[EventText](), "EventText: payload_test.EventText cannot be stored as JSON: its JSON methods are those of the embedded"},
		{reflect.TypeFor[EventRead](), "EventRead: payload_test.EventRead cannot be stored as JSON: its JSON methods are those of the embedded"},
		{reflect.TypeFor[[]EventPtr](), "value[]: payload_test.EventPtr cannot be stored as JSON: its JSON methods are those of the embedded"},
		{reflect.StructOf([]reflect.StructField{ // go vet would find it in a struct type
			{Name: "A", Type: reflect.TypeFor[int](), Tag: `json:"x"`}, {Name: "B", Type: reflect.TypeFor[int](), Tag: `json:"x"`},
		}), `value: struct { A int "json:\"x\""; B int "json:\"x\"" } cannot be stored as JSON: fields A and B have one JSON name`},
		{reflect.TypeFor[struct{ T []struct{ time.Time } }](), "value.T[]: struct { time.Time } cannot be stored as JSON: it has MarshalJSON but no"},
		{reflect.TypeFor[Pinned](), "Pinned: payload_test.Pinned cannot be stored as JSON: it embeds a pointer to an unexported"},
	} {
		err := payload.CheckType(c.typ)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("CheckType(%v)\n got %v\nwant %s…", c.typ, err, c.want)
		}
	}
}

// What CheckType accepts must do what it promises: come back equal.
func TestAcceptedTypesComeBack(t *testing.T) {
	t.Parallel()
	amount, _ := new(big.Int).SetString("123456789012345678901234567890", 10)
	for _, v := range []any{
		Order{
			Line: Line{SKU: "a<b>&\u2028\x00", Price: 1<<63 - 1}, Address: &Address{"s"}, ID: "ü�", Lines: []Line{{SKU: "x"}},
			ByName: map[string]*Order{"n": {ID: "inner", Raw: json.RawMessage("null"), Rate: *big.NewRat(2, 3)}}, Rate: *big.NewRat(1, 3),
			When: time.Unix(1, 2).UTC(), Amount: amount,
			Any: map[string]any{"f": 1.5, "n": nil, "l": []any{"x", true}}, Raw: json.RawMessage(`{"a":1e999}`),
			Prices: map[netip.Addr]float64{netip.MustParseAddr("::1"): 1}, Ports: map[uint16][]byte{80: {0, 255}},
		},
		Tree{Kids: []Tree{{}, {Next: &Tree{}}}, All: map[string]Tree{"": {}}},
		map[Level]Cents{1: {n: 5}}, []Level{1, 2}, OnlyRead("x"), Opt[string]{Val: "v"}, EventFine{Name: "n"},
		PtrOnly{n: 1}, []PtrOnly{{n: 2}}, map[string]*PtrOnly{"a": {n: 3}}, struct{ P [1]PtrOnly }{[1]PtrOnly{{n: 4}}},
		uint64(1<<64 - 1), int64(-1 << 63), json.Number("12345678901234567890"), sql.NullString{String: "x", Valid: true},
		*big.NewRat(1, 3), struct{}{}, [3]int{1, 2, 3}, "", "\x00\x1f", true, map[int8]bool{-1: true},
	} {
		data, err := payload.Marshal(v)
		if err != nil {
			t.Errorf("Marshal(%T): %v", v, err)
			continue
		}
		back := reflect.New(reflect.TypeOf(v))
		if err := payload.Unmarshal(data, back.Interface()); err != nil {
			t.Errorf("Unmarshal(%s) into %T: %v", data, v, err)
			continue
		}
		if !reflect.DeepEqual(back.Elem().Interface(), v) {
			t.Errorf("%T came back changed:\n got %+v\nwant %+v\nJSON %s", v, back.Elem(), v, data)
		}
	}
}

func TestCheckTypeConcurrently(t *testing.T) {
	t.Parallel()
	type fresh struct {
		A []*fresh
		B map[string]any
		C func()
	}
	var wg sync.WaitGroup
	errs := make([]error, 16)
	for i := range errs {
		wg.Go(func() { errs[i] = payload.CheckType(reflect.TypeFor[fresh]()) })
	}
	wg.Wait()
	for _, err := range errs {
		if err == nil || err.Error() != "fresh.C: func() cannot be stored as JSON" {
			t.Fatalf("CheckType gave %v", errors.Join(errs...))
		}
	}
}
