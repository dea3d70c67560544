package smtpfault

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/pawlrun/pawl/fault"
)

// failing breaks at the write that ends in the final dot, of which it takes all but some bytes. The system does so at a
// moment that no test can choose, hence the look inside.
type failing struct {
	net.Conn
	keep int
}

func (f failing) Write(p []byte) (int, error) {
	if strings.HasSuffix(string(p), "\r\n.\r\n") {
		n, _ := f.Conn.Write(p[:len(p)-f.keep])
		if f.keep > 0 {
			f.Conn.Close()
		}
		return n, errors.New("broken")
	}
	return f.Conn.Write(p)
}

func TestADotThatDidNotLeave(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		keep    int
		class   fault.Class
		outcome fault.Outcome
	}{
		{5, fault.Transient, fault.OutcomeRejected},
		{1, fault.Transient, fault.OutcomeRejected},
		{0, fault.OutcomeUnknown, fault.OutcomeMaybeExecuted},
	} {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			in := bufio.NewScanner(theirs)
			_, _ = io.WriteString(theirs, "220 hi\r\n")
			for in.Scan() {
				switch reply, verb := "250 ok\r\n", in.Text(); {
				case verb == "DATA":
					_, _ = io.WriteString(theirs, "354 go on\r\n")
				case strings.HasPrefix(verb, "Message-ID"):
					for in.Scan() && in.Text() != "." {
						continue
					}
					return
				default:
					_, _ = io.WriteString(theirs, reply)
				}
			}
		}()
		mail, err := newLetter("a@b.org", []string{"c@d.org"}, strings.NewReader("Message-ID: <x@y>\r\n\r\ntext\r\n"))
		if err != nil {
			t.Fatal(err)
		}
		w := &wire{Conn: failing{ours, row.keep}, patience: silence, unread: maxReads}
		s := &session{server: &Server{AllowPlain: true}, mail: mail, wire: w}
		_, err = s.run(t.Context())
		f, _ := errors.AsType[*fault.Fault](s.fault(t.Context(), err))
		if f == nil || f.Class != row.class || f.Outcome != row.outcome {
			t.Errorf("%d bytes short of the end: got %v, want %v, %v", row.keep, f, row.class, row.outcome)
		}
		w.Close()
	}
}
