package payload_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/pawlrun/pawl/internal/payload"
)

func TestCanonical(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want string }{
		{`null`, `null`}, {` false `, `false`}, {`0`, `0`}, {`""`, `""`}, {`[]`, `[]`}, {`{ }`, `{}`}, {`true`, `true`}, // the top stays
		{`{"b":1,"a":2,"B":3,"":4,"é":5,"aa":6}`, `{"":4,"B":3,"a":2,"aa":6,"b":1,"é":5}`},
		{`{"n":null,"f":false,"z":0,"s":"","l":[],"o":{},"t":true}`, `{"t":true}`},
		{`{"a":-0,"b":0.0,"c":0e5,"d":-0.000E-7,"e":0E+0,"f":0.01,"g":10,"h":1e0,"i":0.0e9}`, `{"f":0.01,"g":10,"h":1e0}`},
		{`{"a":{"b":{"c":0,"d":[]}},"x":[{"y":{}}]}`, `{"x":[{}]}`},
		{`[null,false,0,-0.0,"",[],{},{"a":0}]`, `[null,false,0,-0.0,"",[],{},{}]`},
		{`{"a":1,"a":2}`, `{"a":2}`}, {`{"a":1,"a":0}`, `{}`}, {`{"a":0,"a":1}`, `{"a":1}`}, {`{"a":1,"\u0061":{"x":null}}`, `{}`},
		{`"\u0041\/\n\"\\\u00e9\ud83d\ude00"`, "\"A/\\u000a\\\"\\\\é😀\""}, {`"\u0000\u001f\u007f"`, "\"\\u0000\\u001f\x7f\""},
		{`"\ud800"`, `"` + "�" + `"`}, {`{"\u0061":"\u0062"}`, `{"a":"b"}`},
		{"\t[ 1 , 1.0 , 1e2 , 100 , 12345678901234567890.10 ]\r\n", `[1,1.0,1e2,100,12345678901234567890.10]`},
		{`{"a":"null","b":"0","c":" "}`, `{"a":"null","b":"0","c":" "}`},
	} {
		got, err := payload.Canonical([]byte(c.in))
		if err != nil || string(got) != c.want {
			t.Errorf("Canonical(%s)\n got %s, %v\nwant %s", c.in, got, err, c.want)
		}
	}
}

// The hashes are stored with steps and keys: if this test fails, every stored input would seem to have changed.
func TestHashIsFixedForever(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want string }{
		{`null`, "74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b"},
		{`{"a":0}`, "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"},
		{`{"to":"ann@example.org","lines":[{"sku":"A-1","n":2,"note":""},null,0],"total":12.50,"é\n":"\u00e9\t<&>"}`,
			"7ea7ee67a4e6f7213c1416259bcf46b206ec6e97375b251f61eb85f8089ca867"},
	} {
		got, err := payload.Hash([]byte(c.in))
		if err != nil || hex.EncodeToString(got[:]) != c.want {
			t.Errorf("Hash(%s)\n got %x, %v\nwant %s", c.in, got, err, c.want)
		}
	}
}

func TestCanonicalErrors(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		"", " ", "{", `{"a":1,}`, "01", "[1] 2", "\"\xff\"", "nul", strings.Repeat("[", 5_000_000), `{"a":"` + "\n" + `"}`,
		strings.Repeat(`{"a":`, 10_001) + "1" + strings.Repeat("}", 10_001),
	} {
		if got, err := payload.Canonical([]byte(in)); err == nil {
			t.Errorf("Canonical(%.20q) = %.20q, want an error", in, got)
		}
		if _, err := payload.Hash([]byte(in)); err == nil {
			t.Errorf("Hash(%.20q) gave no error", in)
		}
	}
	deep := strings.Repeat(`{"b":1,"a":`, 10_000) + "1" + strings.Repeat("}", 10_000)
	if _, err := payload.Canonical([]byte(deep)); err != nil {
		t.Errorf("10,000 levels: %v", err)
	}
}

// A type that gets new fields hashes as before while they have their zero values.
func TestNewFieldAtItsZeroChangesNothing(t *testing.T) {
	t.Parallel()
	type old struct {
		ID    string
		Inner []struct{ N int }
	}
	type inner struct {
		M map[string]int
		N int
		P *inner
	}
	type grown struct {
		Extra struct{ A, B any }
		Inner []inner
		Flag  bool
		ID    string
		F     float64
		L     []string
		S     string
	}
	a := hash(t, old{ID: "x", Inner: []struct{ N int }{{1}, {0}}})
	b := hash(t, grown{ID: "x", Inner: []inner{{N: 1}, {M: map[string]int{}}}})
	if a != b {
		t.Errorf("new fields at zero changed the hash: %x, %x", a, b)
	}
	if c := hash(t, grown{ID: "x", Inner: []inner{{N: 1}, {}}, F: 0.1}); c == a {
		t.Error("a new field that is not zero did not change the hash")
	}
	if c := hash(t, old{ID: "x", Inner: []struct{ N int }{{1}}}); c == a {
		t.Error("a list with one element less has the same hash")
	}
}

func hash(t *testing.T, v any) [32]byte {
	t.Helper()
	data, err := payload.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	h, err := payload.Hash(data)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// spell writes v with random spaces, key order, escapes and added zero members.
func spell(r *rand.Rand, b *bytes.Buffer, v any) {
	gap := func() { b.WriteString([]string{"", " ", "\n\t"}[r.IntN(3)]) }
	str := func(s string) {
		b.WriteByte('"')
		for _, c := range s {
			if c < ' ' || c == '"' || c == '\\' || c < 0x10000 && r.IntN(3) == 0 {
				fmt.Fprintf(b, `\u%04x`, c)
			} else {
				b.WriteRune(c)
			}
		}
		b.WriteByte('"')
	}
	gap()
	defer gap()
	switch v := v.(type) {
	case string:
		str(v)
	case []any:
		b.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			spell(r, b, e)
		}
		b.WriteByte(']')
	case map[string]any:
		b.WriteString("{")
		for k, e := range v { // Go's map order is random
			str(k)
			b.WriteByte(':')
			spell(r, b, e)
			b.WriteByte(',')
		}
		zeros := []string{"null", "false", "-0.0e1", `""`, "[ ]", `{"n":{"m":0}}`}
		fmt.Fprintf(b, `"added%d":%s}`, r.IntN(9), zeros[r.IntN(len(zeros))])
	default:
		out, _ := json.Marshal(v)
		b.Write(out)
	}
}

// FuzzCanonical checks what makes the form canonical: it is JSON, canonical itself, loses nothing but zero members, and is
// the same for other spellings of the value.
func FuzzCanonical(f *testing.F) {
	for _, s := range []string{`{"a":[1,{"b":null,"c":"\u00e9"}],"a":{"x":-0.0}}`, `[[],{},"\ud800",1e5]`, `{"":{"":{"":0}}}`, "5"} {
		f.Add([]byte(s), uint64(1))
	}
	f.Fuzz(func(t *testing.T, data []byte, seed uint64) {
		got, err := payload.Canonical(data)
		if err != nil {
			return
		}
		again, err := payload.Canonical(got)
		if err != nil || !bytes.Equal(got, again) {
			t.Fatalf("Canonical(%q) = %q, and of that %q, %v", data, got, again, err)
		}
		in, out := generic(t, data), generic(t, got)
		if want := prune(in); !reflect.DeepEqual(want, out) {
			t.Fatalf("Canonical(%q) = %q means something else", data, got)
		}
		var b bytes.Buffer
		spell(rand.New(rand.NewPCG(seed, 0)), &b, in)
		if hasKey(in, "added") {
			return
		}
		if other, err := payload.Canonical(b.Bytes()); err != nil || !bytes.Equal(got, other) {
			t.Fatalf("%q is spelled %q: %q, want %q, %v", data, b.Bytes(), other, got, err)
		}
	})
}

// generic decodes data with numbers as they are written.
func generic(t *testing.T, data []byte) any {
	t.Helper()
	var v any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%q: %v", data, err)
	}
	return v
}

// prune is the rule of zero members, written a second time.
func prune(v any) any {
	switch v := v.(type) {
	case []any:
		all := []any{}
		for _, e := range v {
			all = append(all, prune(e))
		}
		return all
	case map[string]any:
		kept := map[string]any{}
		for k, e := range v {
			e = prune(e)
			n, isNumber := e.(json.Number)
			zero := e == nil || e == false || e == "" || isNumber && !strings.ContainsAny(mantissa(n), "123456789")
			switch e := e.(type) {
			case []any:
				zero = len(e) == 0
			case map[string]any:
				zero = len(e) == 0
			}
			if !zero {
				kept[k] = e
			}
		}
		return kept
	}
	return v
}

func mantissa(n json.Number) string {
	m, _, _ := strings.Cut(strings.ToLower(string(n)), "e")
	return m
}

func hasKey(v any, prefix string) bool {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			if hasKey(e, prefix) {
				return true
			}
		}
	case map[string]any:
		for k, e := range v {
			if strings.HasPrefix(k, prefix) || hasKey(e, prefix) {
				return true
			}
		}
	}
	return false
}

func BenchmarkHash4KiB(b *testing.B) {
	var rows []map[string]any
	for i := range 38 {
		rows = append(rows, map[string]any{"id": i, "name": fmt.Sprint("näme ", i), "tags": []string{"a", "b\n"}, "zero": nil, "amount": 12.5, "sku": "ABCDEFGH"})
	}
	data, err := payload.Marshal(rows)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := payload.Hash(data); err != nil {
			b.Fatal(err)
		}
	}
}
