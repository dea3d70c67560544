package payload_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/pawlrun/pawl/internal/payload"
)

func TestClean(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   string
		max  int
		want string
	}{
		{"", 10, ""}, {"abc", 3, "abc"}, {"abcd", 3, "…"}, {"abcde", 4, "a…"}, {"ab", 1, "a"}, {"é", 1, ""}, {"abc", 0, ""}, {"abc", -1, ""},
		{"ééé", 6, "ééé"}, {"éééé", 7, "éé…"}, {"éééé", 6, "é…"}, {"😀😀", 7, "😀…"},
		{"a\x00b\tc\nd\x1b[31m\x7f\u0085", 100, "a�b\tc\nd�[31m��"}, {"a\r\nb\rc", 100, "a\nb�c"}, {"a\xff\xfeb", 100, "a��b"},
		{"\x00\x00", 3, "…"}, {"\x00", 3, "�"}, {"a\r\n", 2, "a\n"}, {strings.Repeat("x", 1e6), 5, "xx…"},
	} {
		if got := payload.Clean(c.in, c.max); got != c.want {
			t.Errorf("Clean(%.20q, %d) = %q, want %q", c.in, c.max, got, c.want)
		}
	}
}

func FuzzClean(f *testing.F) {
	f.Add("a\x00é\xff\r\n", 5)
	f.Fuzz(func(t *testing.T, s string, max int) {
		got := payload.Clean(s, max)
		if !utf8.ValidString(got) || len(got) > max && got != "" || payload.Clean(got, max) != got {
			t.Fatalf("Clean(%q, %d) = %q", s, max, got)
		}
		if i := strings.IndexFunc(got, unicode.IsControl); i >= 0 && got[i] != '\n' && got[i] != '\t' {
			t.Fatalf("Clean(%q, %d) = %q keeps a control character", s, max, got)
		}
	})
}

func TestCheckName(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"a", "charge card", "Größe/日本語", strings.Repeat("x", 200), "a\u200bb", `"`} {
		if err := payload.CheckName("step name", s); err != nil {
			t.Errorf("CheckName(%q) = %v", s, err)
		}
	}
	const rule = "; want 1 to 200 bytes of UTF-8 without control characters, and no space at either end"
	for _, c := range []struct{ in, want string }{
		{"", `step name "": it is empty` + rule},
		{strings.Repeat("é", 101), `step name "` + strings.Repeat("é", 40) + `"…: it has 202 bytes` + rule},
		{"a\xff", `step name "a\xff": it is not valid UTF-8` + rule},
		{"a\x00", `step name "a\x00": it has a control character` + rule}, {"a\nb", `step name "a\nb": it has a control character` + rule},
		{"\u0085a", `step name "\u0085a": it has a control character` + rule},
		{" a", `step name " a": it begins or ends with space` + rule}, {"a\u00a0", `step name "a\u00a0": it begins or ends with space` + rule},
		{"\u2028a", `step name "\u2028a": it begins or ends with space` + rule}, {"\u3000", `step name "\u3000": it begins or ends with space` + rule},
	} {
		if err := payload.CheckName("step name", c.in); err == nil || err.Error() != c.want {
			t.Errorf("CheckName(%.20q)\n got %v\nwant %s", c.in, err, c.want)
		}
	}
}
