package payload_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pawlrun/pawl/internal/payload"
)

var errMine = errors.New("mine")

type (
	Bad     struct{ how string }
	BadText struct{ how string }
	Holder  struct {
		Name string
		List []any
		Map  map[string]any
		F    []float32
		Err  error
		B    *Bad
		T    map[string]*BadText
		Raw  json.RawMessage
		Num  json.Number
		Keys map[string]int
	}
	Node    struct{ Next *Node }
	IDs     struct{ ID uint64 }
	WriteMe struct{ A int }
)

func (b Bad) MarshalJSON() ([]byte, error) {
	switch b.how {
	case "error":
		return nil, errMine
	case "panic":
		panic(errMine)
	case "nil map":
		var m map[string]int
		m["x"] = 1
	case "invalid":
		return []byte(`{"a":`), nil
	case "utf8":
		return []byte("\"\xff\""), nil
	case "big":
		return []byte(`{"a": ["12345678901234567890", 12345678901234567890]}`), nil
	case "fffd":
		return []byte(`"\ufffd"`), nil
	}
	return []byte(b.how), nil
}

func (b *Bad) UnmarshalJSON(d []byte) error {
	if string(d) == `"panic"` {
		panic("boom\x00")
	}
	return nil
}

func (b BadText) MarshalText() ([]byte, error) {
	if b.how == "panic" {
		panic(42)
	}
	return []byte(b.how), nil
}
func (b *BadText) UnmarshalText(d []byte) error { b.how = string(d); return nil }
func (w WriteMe) MarshalJSON() ([]byte, error)  { return []byte(`{"a":1}`), nil }

func TestMarshalWrites(t *testing.T) {
	t.Parallel()
	var nilOrder *Order
	for _, c := range []struct {
		v    any
		want string
	}{
		{nil, "null"}, {nilOrder, "null"}, {"<a>&\x00\u2028", `"<a>&\u0000\u2028"`}, {"�", `"` + "�" + `"`},
		{map[string]any{"b": 1, "a": []any{nil, true, int64(1 << 53), -1 << 53, uint64(7)}}, `{"a":[null,true,9007199254740992,-9007199254740992,7],"b":1}`},
		{int64(math.MinInt64), "-9223372036854775808"}, {IDs{math.MaxUint64}, `{"ID":18446744073709551615}`},
		{[]any{json.Number("1.50"), json.Number("9007199254740992"), 1e300}, `[1.50,9007199254740992,1e+300]`},
		{json.RawMessage(` {"a": [1, 2]} `), `{"a":[1,2]}`}, {json.RawMessage(nil), "null"}, {json.Number(""), "0"},
		{PtrOnly{n: 3}, "3"}, {struct{ P PtrOnly }{PtrOnly{n: 3}}, `{"P":3}`},
		{[]byte{1}, `"AQ=="`}, {`\ufffd`, `"\\ufffd"`}, {Bad{how: "fffd"}, `"\ufffd"`},
		{map[string]any{"w": WriteMe{}, "t": time.Time{}, "b": []byte("x"), "n": (*Bad)(nil)}, `{"b":"eA==","n":null,"t":"0001-01-01T00:00:00Z","w":{"a":1}}`},
		{Holder{Raw: json.RawMessage(`18446744073709551616`), Num: "18446744073709551616"},
			`{"Name":"","List":null,"Map":null,"F":null,"Err":null,"B":null,"T":null,"Raw":18446744073709551616,"Num":18446744073709551616,"Keys":null}`},
	} {
		got, err := payload.Marshal(c.v)
		if err != nil || string(got) != c.want {
			t.Errorf("Marshal(%#v)\n got %s, %v\nwant %s", c.v, got, err, c.want)
		}
	}
}

func TestMarshalRefusesWithThePath(t *testing.T) {
	t.Parallel()
	type anyMap = map[string]any
	for _, c := range []struct {
		v    any
		want string
	}{
		{math.NaN(), "float64: NaN cannot be stored as JSON"},
		{Holder{F: []float32{0, float32(math.Inf(-1))}}, "Holder.F[1]: -Inf cannot be stored as JSON"},
		{Holder{Map: anyMap{"a b": []any{1, math.Inf(1)}}}, `Holder.Map["a b"][1]: +Inf cannot`},
		{Holder{Name: "a\xff"}, `Holder.Name: "a\xff" is not valid UTF-8`},
		{[]string{"ok", "\x80" + strings.Repeat("x", 60)}, `value[1]: "\x80` + strings.Repeat("x", 39) + `"… is not valid UTF-8`},
		{Holder{Keys: map[string]int{"\xc3": 1}}, `Holder.Keys: the map key "\xc3" is not valid UTF-8`},
		{anyMap{"k": anyMap{"\xff": 1}}, `value["k"]: the map key`},
		{anyMap{"n": 1<<53 + 1}, `value["n"]: 9007199254740993 inside an interface value would come back as a float64`},
		{[]any{uint64(math.MaxUint64)}, `value[0]: 18446744073709551615 inside`},
		{[]any{[]int64{1, -1<<53 - 1}}, `value[0][1]: -9007199254740993 inside`},
		{[]any{IDs{1 << 60}}, `value[0].ID: 1152921504606846976 inside`},
		{[]any{&IDs{1 << 60}}, `value[0].ID: 1152921504606846976 inside`},
		{[]any{time.Duration(1 << 60)}, `value[0]: 1152921504606846976 inside`},
		{[]any{json.Number("9007199254740993")}, `value[0]: 9007199254740993 inside`},
		{[]any{json.Number("123456789012345678901234567890")}, `value[0]: 123456789012345678901234567890 inside`},
		{[]any{json.Number("1e999")}, `value[0]: 1e999 inside`},
		{[]any{json.RawMessage(`{"x":9007199254740993}`)}, `value[0]: 9007199254740993 inside`},
		{[]any{Bad{how: "big"}}, `value[0]: 12345678901234567890 inside`},
		{[]any{new(big.Int).Lsh(big.NewInt(1), 70)}, `value[0]: 1180591620717411303424 inside`},
		{[]any{*big.NewInt(1)}, `value[0]: big.Int cannot be stored as JSON: all its fields are unexported`},
		{json.Number("abc"), `Number: json.Number "abc" is no number`}, {json.Number("1 "), "Number: json.Number"},
		{[]any{func() {}}, "value[0]: func() cannot be stored as JSON"},
		{[]any{[]any{struct{ A []chan int }{}}}, "value[0][0].A[]: chan int cannot"},
		{errMine, "errorString: errors.errorString cannot be stored as JSON: all its"},
		{Holder{Err: errMine}, "Holder.Err: error cannot be stored as JSON: it holds *errors.errorString"},
		{Holder{Raw: json.RawMessage{}}, "Holder.Raw: empty json.RawMessage cannot"},
		{Holder{Raw: json.RawMessage(`{"a`)}, "Holder.Raw: " + reflect.TypeFor[json.RawMessage]().String() + " cannot be stored as JSON: its MarshalJSON gives invalid JSON: \"{\\\"a\""},
		{Holder{Raw: json.RawMessage("\"\xff\"")}, "Holder.Raw: " + reflect.TypeFor[json.RawMessage]().String() + ` cannot be stored as JSON: its text is not valid UTF-8`},
		{Holder{B: &Bad{how: "error"}}, "Holder.B: payload_test.Bad cannot be stored as JSON: its MarshalJSON failed: mine"},
		{Holder{B: &Bad{how: "panic"}}, "Holder.B: payload_test.Bad cannot be stored as JSON: its MarshalJSON failed: panic: mine"},
		{Holder{List: []any{Bad{how: "nil map"}}}, "Holder.List[0]: payload_test.Bad cannot be stored as JSON: its MarshalJSON failed: panic: assignment to entry"},
		{Holder{B: &Bad{how: "invalid"}}, "Holder.B: payload_test.Bad cannot be stored as JSON: its MarshalJSON gives invalid JSON"},
		{Holder{B: &Bad{how: "utf8"}}, "Holder.B: payload_test.Bad cannot be stored as JSON: its text is not valid UTF-8"},
		{Holder{B: &Bad{}}, "Holder.B: payload_test.Bad cannot be stored as JSON: its MarshalJSON gives invalid JSON"},
		{[]any{map[Level]any{1: math.NaN()}}, `value[0]["b"]: NaN`},
		{map[int]float64{7: math.NaN()}, `value["7"]: NaN`},
		{map[Level]string{-99: ""}, `value: the map key "\xfe" is not valid UTF-8`},
		{Holder{T: map[string]*BadText{"x": {"panic"}}}, `Holder.T["x"]: payload_test.BadText cannot be stored as JSON: its MarshalText failed: panic: 42`},
		{Holder{T: map[string]*BadText{"x": {"\xff"}}}, `Holder.T["x"]: payload_test.BadText cannot be stored as JSON: its text is not`},
	} {
		got, err := payload.Marshal(c.v)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("Marshal(%T)\n got %s, %v\nwant %s…", c.v, got, err, c.want)
		}
	}
	for _, how := range []string{"error", "panic"} {
		if _, err := payload.Marshal(Holder{B: &Bad{how: how}}); !errors.Is(err, errMine) {
			t.Errorf("the %s of a MarshalJSON is not wrapped: %v", how, err)
		}
	}
}

func TestMarshalRefusesCyclesAndDepth(t *testing.T) {
	t.Parallel()
	ring := &Node{}
	ring.Next = ring
	list := make([]any, 1)
	list[0] = list
	m := map[string]any{}
	m["self"] = []any{m}
	var p Ptr
	p = &p
	wide := Tree{}
	wide.Kids = []Tree{{}, {}}
	wide.Kids[1].Next = &wide
	tooDeep := chain(10_001)
	for name, v := range map[string]any{"pointer": ring, "slice": list, "map": m, "ptr": p, "tree": &wide, "deep": tooDeep, "deeper": chain(2_000_000)} {
		_, err := payload.Marshal(v)
		if err == nil {
			t.Fatalf("%s: a value without end was stored", name)
		}
		if want := "contains itself"; !strings.Contains(err.Error(), want) && !strings.HasPrefix(name, "deep") {
			t.Errorf("%s: got %v, want %s", name, err, want)
		}
		if len(err.Error()) > 1000 {
			t.Errorf("%s: the error has %d bytes", name, len(err.Error()))
		}
	}
	data, err := payload.Marshal(chain(9_999))
	if err != nil {
		t.Fatalf("a value as deep as JSON can be read is refused: %v", err)
	}
	if err := payload.Unmarshal(data, new(Node)); err != nil {
		t.Fatalf("what was stored cannot be read: %v", err)
	}
	deepRaw := json.RawMessage(strings.Repeat("[", 9_999) + strings.Repeat("]", 9_999))
	if _, err := payload.Marshal([][]json.RawMessage{{deepRaw}}); err == nil {
		t.Error("JSON that is too deep only in sum was stored")
	}
	shared := &IDs{ID: 1}
	if _, err := payload.Marshal([]any{shared, shared, map[string]any{"a": shared}}); err != nil {
		t.Errorf("a value that occurs twice but not in itself is refused: %v", err)
	}
}

func chain(n int) *Node {
	var first *Node
	for range n {
		first = &Node{first}
	}
	return first
}

func TestUnmarshalErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		data string
		v    any
		want string
	}{
		{`{"sku":1}`, new(Line), "read payload_test.Line from JSON, field sku, at byte "},
		{`{"ID":"x"} {}`, new(Order), "read payload_test.Order from JSON, at byte "},
		{``, new(int), "read int from JSON, at byte 0: "},
		{`"x"`, new(int), "read int from JSON, at byte "},
		{`"panic"`, new(Bad), "read payload_test.Bad from JSON: panic: boom�"},
		{`1`, nil, "read nil from JSON: "}, {`1`, 3, "read int from JSON: "},
	} {
		err := payload.Unmarshal([]byte(c.data), c.v)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("Unmarshal(%s, %T)\n got %v\nwant %s…", c.data, c.v, err, c.want)
		}
	}
	var typed *json.UnmarshalTypeError
	if err := payload.Unmarshal([]byte(`"x"`), new(int)); !errors.As(err, &typed) {
		t.Errorf("the error of encoding/json is not wrapped: %v", err)
	}
	var n int
	if err := payload.Unmarshal([]byte(" 5 \n"), &n); err != nil || n != 5 {
		t.Errorf("space around the value: got %d, %v", n, err)
	}
}

// Whatever JSON is read into an any is stored and comes back as the same value, or refused for its numbers.
func FuzzMarshalAny(f *testing.F) {
	for _, s := range []string{`{"a":[1,"\ufffd",null,{"":1e5}]}`, `"\ud800"`, `9007199254740993`, `[[[]]]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var v, back any
		if json.Unmarshal(data, &v) != nil {
			return
		}
		out, err := payload.Marshal(v)
		if err != nil {
			t.Fatalf("Marshal(%q): %v", data, err)
		}
		if err := payload.Unmarshal(out, &back); err != nil || !reflect.DeepEqual(v, back) {
			t.Fatalf("%q came back as %q: %v", data, out, err)
		}
	})
}

// Any string is kept exactly or refused.
func FuzzMarshalString(f *testing.F) {
	f.Add("a\x00\u2028<\ufffd", "\xff")
	f.Fuzz(func(t *testing.T, s, k string) {
		type both struct {
			S []string
			M map[string]any
		}
		in := both{[]string{s}, map[string]any{k: s}}
		out, err := payload.Marshal(in)
		if valid := strings.ToValidUTF8(s+"|"+k, "") == s+"|"+k; (err == nil) != valid {
			t.Fatalf("Marshal(%q, %q) = %s, %v", s, k, out, err)
		}
		var back both
		if err == nil && (payload.Unmarshal(out, &back) != nil || !reflect.DeepEqual(in, back)) {
			t.Fatalf("%q came back as %q", in, back)
		}
	})
}

func BenchmarkMarshal(b *testing.B) {
	type row struct {
		ID   int64
		Name string
		Tags []string
		Blob []byte
	}
	plain := make([]row, 40)
	free := make([]any, 40)
	for i := range plain {
		plain[i] = row{int64(i), fmt.Sprint("name ", i), []string{"a", "b"}, bytes.Repeat([]byte{1}, 20)}
		free[i] = map[string]any{"id": float64(i), "name": plain[i].Name, "tags": []any{"a", "b"}}
	}
	for name, v := range map[string]any{"plain": plain, "any": free} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := payload.Marshal(v); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/std", func(b *testing.B) {
			for b.Loop() {
				if _, err := json.Marshal(v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
