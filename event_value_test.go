package pawl_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pawlrun/pawl"
)

// A value that is not of the awaited type blocks the run with a question; values come as they were sent, sealed or not.
func TestEventValues(t *testing.T) {
	type note struct {
		N    int64
		Text string
	}
	notes := pawl.DefineEvent[note]("note")
	scene(t, func(t *testing.T, s *stage) {
		s.opts.Codec = reverse{}
		desk := s.engine()
		w := flow("reader", "v1", func(run *pawl.Run, in string) (string, error) {
			v, err := pawl.Await(run, "note", notes, pawl.Key(in))
			return fmt.Sprintf("%d %q", v.N, v.Text), err
		})
		s.spawn("b1", w)
		if err := notes.Send(t.Context(), desk, "o1", note{1<<62 + 1, "a\x00b"}); err != nil {
			t.Fatal(err)
		}
		h, err := w.Start(t.Context(), desk, "o1")
		if err != nil {
			t.Fatal(err)
		}
		got, err := h.Result(t.Context())
		if want := fmt.Sprintf("%d %q", int64(1<<62+1), "a\x00b"); got != want || err != nil {
			t.Errorf("got %s (%v), want %s", got, err, want)
		}
		if err := pawl.SendJSON(t.Context(), desk, "note", "o2", []byte(`{"N":"many"}`)); err != nil {
			t.Fatal(err)
		}
		if h, err = w.Start(t.Context(), desk, "o2"); err != nil {
			t.Fatal(err)
		}
		if en := s.blocked(h.ID(), pawl.AskDecode); !strings.Contains(en.Detail, "note") {
			t.Errorf("the question is %q", en.Detail)
		}
	})
}

// reverse is a codec.
type reverse struct{}

func (reverse) Seal(json []byte) ([]byte, error)   { return reversed(json), nil }
func (reverse) Open(stored []byte) ([]byte, error) { return reversed(stored), nil }

func reversed(b []byte) []byte {
	b = slices.Clone(b)
	slices.Reverse(b)
	return b
}
