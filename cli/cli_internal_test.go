package cli

// Inside the package because a person at a terminal and the rendering of text have no other door.

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
)

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("anything"), 1},
		{pawl.ErrSchema, 1},
		{pawl.ErrCommitUnknown, 1},
		{&failure{code: exitUsage, err: errors.New("wrong")}, 2},
		{pawl.ErrNotFound, 3},
		{pawl.ErrConflict, 4},
		{pawl.ErrStale, 4},
		{pawl.ErrLive, 4},
		{pawl.ErrTerminal, 4},
		{pawl.ErrTooEarly, 4},
		{&failure{code: exitPerson, err: errors.New("blocked")}, 5},
		{&failure{code: exitPerson, err: pawl.ErrConflict}, 5},
	} {
		if got := codeOf(c.err); got != c.want {
			t.Errorf("exit code of %v is %d, want %d", c.err, got, c.want)
		}
		if c.err == nil {
			continue
		}
		if got := codeOf(errors.Join(fmt.Errorf("do it: %w", c.err), nil)); got != c.want {
			t.Errorf("exit code of wrapped %v is %d, want %d", c.err, got, c.want)
		}
		a := &app{opened: true}
		if a.next(c.err) == "" {
			t.Errorf("%v does not say what to do next", c.err)
		}
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain":             "plain",
		"Grüße, 世界 🙂":       "Grüße, 世界 🙂",
		"a\x1b[31mb":        `a\x1b[31mb`,
		"a\nb\tc\rd":        `a\nb\tc\x0dd`,
		"\u009bm":           `\u009bm`,
		"x\u202ey":          `x\u202ey`,
		"bad\xff utf8":      `bad\xff utf8`,
		"\ufffd is genuine": "\ufffd is genuine",
		"tag \U000e0041":    `tag \U000e0041`,
	} {
		if got := clean(in); got != want {
			t.Errorf("clean(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestEscapedJSON(t *testing.T) {
	t.Parallel()
	in := "{\"a\":\"\u009b \u202e \x7f \U000e0041 ü\"}"
	want := `{"a":"\u009b \u202e \u007f \udb40\udc41 ü"}`
	if got := string(escaped([]byte(in))); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		dollars(0):                            "",
		dollars(1):                            "~$0.000001",
		dollars(1_250_000):                    "~$1.25",
		dollars(3_000_000):                    "~$3.00",
		span(0) + "|":                         "|",
		span(1234567):                         "1.23ms",
		span(90*time.Second + 1):              "1m30s",
		quote("plain-1.2/x"):                  "plain-1.2/x",
		quote("it's"):                         `'it'\''s'`,
		compact(nil, 0) + "|":                 "|",
		compact([]byte(`{ "a": 1 }`), 0):      `{"a":1}`,
		compact([]byte(`no json`), 0):         `"no json"`,
		compact([]byte(`"0123456789üü"`), 12): `"0123456789… (16 bytes, all with -o json)`,
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestCompareVersions(t *testing.T) {
	t.Parallel()
	order := []string{"v1", "v1.2", "v1.10", "v2", "v2-beta", "v9", "v10", "v10a", "v20260101"}
	for i, v := range order {
		for j, w := range order {
			if got, want := compareVersions(v, w), min(max(i-j, -1), 1); got != want {
				t.Errorf("compareVersions(%s, %s) = %d, want %d", v, w, got, want)
			}
		}
	}
}

// console is an app with a person in front of it.
type console struct {
	t    *testing.T
	db   string
	defs []pawl.Definition
}

// run runs a command whose questions are answered with input.
func (c *console) run(input string, args ...string) (code int, out, errs string) {
	c.t.Helper()
	var stdout, stderr bytes.Buffer
	a := &app{o: Options{Name: "pawl", DB: c.db}, defs: c.defs, in: bufio.NewReader(strings.NewReader(input)), out: &stdout, err: &stderr, format: text}
	a.prompt = a.ask
	code = a.run(c.t.Context(), args)
	return code, stdout.String(), stderr.String()
}

func TestQuestions(t *testing.T) {
	t.Parallel()
	mail := pawl.Define("mail", "v1", func(run *pawl.Run, to string) (string, error) {
		return pawl.Once(run, "send", to, func(context.Context, pawl.Intent, string) (string, error) { return "", io.ErrUnexpectedEOF })
	})
	c := &console{t, filepath.Join(t.TempDir(), "pawl.db"), []pawl.Definition{mail}}
	_, id, _ := c.run("", "start", "mail", `"ann"`)
	id = strings.TrimSpace(id)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() {
		done <- Run(ctx, []string{"work", "--poll", "10ms"}, strings.NewReader(""), io.Discard, io.Discard, Options{DB: c.db}, mail)
	}()
	code, _, errs := c.run("", "start", "mail", `"bob"`, "--wait")
	if code != exitPerson {
		t.Fatalf("a blocked run that is waited for: exit code %d\n%s", code, errs)
	}
	for code = -1; code != exitPerson; { // the first one too
		code, _, _ = c.run("", "runs", "resume", id)
	}
	stop()
	if code := <-done; code != 0 {
		t.Errorf("work ended with %d", code)
	}
	_, out, _ := c.run("", "inbox", "--run", id, "-o", "jsonl")
	entry := strings.Split(out, `"`)[3]

	code, _, errs = c.run("n\n", "resolve", entry, "--did-not-happen")
	if code != exitFailed || !strings.Contains(errs, "Did you look after 20") || !strings.Contains(errs, "nothing was done") {
		t.Errorf("no: exit code %d\n%s", code, errs)
	}
	code, _, errs = c.run("", "resolve", entry, "--did-not-happen") // end of input is no yes
	if code != exitFailed {
		t.Errorf("end of input: exit code %d\n%s", code, errs)
	}
	code, out, errs = c.run("yes\n", "resolve", entry, "--did-not-happen", "--as", "ann")
	if code != exitOK || out != "answered: did not happen; run "+id+" is queued\n" {
		t.Errorf("yes: exit code %d, %q\n%s", code, out, errs)
	}

	_, fork, _ := c.run("", "runs", "list", "--state", "blocked", "-o", "jsonl")
	bob := strings.Split(fork, `"`)[3]
	code, out, errs = c.run("y\n", "runs", "fork", bob, "--from-start", "--new-keys", "--repeat", "send", "--as", "ann")
	if code != exitOK || !strings.Contains(out, "new run ") || !strings.Contains(errs, "Carry it out? [y/N]") {
		t.Errorf("fork: exit code %d, %q\n%s", code, out, errs)
	}
	code, _, errs = c.run("\n", "doctor", "--after-restore")
	if code != exitFailed || !strings.Contains(errs, "no worker may run") {
		t.Errorf("after restore: exit code %d\n%s", code, errs)
	}
}
