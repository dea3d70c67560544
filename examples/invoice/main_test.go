package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/sqlite"
)

// TestMain lets this test binary be the program itself, so that a test can kill it.
func TestMain(m *testing.M) {
	if os.Getenv("INVOICE_PROGRAM") == "" {
		os.Exit(m.Run())
	}
	main()
}

func newTestServer(t *testing.T) *server {
	t.Helper()
	s, err := newServer()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	return s
}

// accepted is how many mails the server has taken.
func (s *server) accepted() (mails int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.ids {
		mails += n
	}
	return mails
}

func outcome(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	args = append([]string{"-db", filepath.Join(t.TempDir(), "pawl.db")}, args...)
	if err := run(ctx, args, &out); err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return out.String()
}

func TestIsSentOnce(t *testing.T) {
	t.Parallel()
	s := newTestServer(t)
	db := filepath.Join(t.TempDir(), "pawl.db")
	for range 2 {
		if out := outcome(t, "-smtp", s.addr, "-db", db); !strings.Contains(out, "succeeded") {
			t.Errorf("output: %s", out)
		}
	}
	if mails := s.accepted(); mails != 1 {
		t.Errorf("%d mails were accepted, want 1", mails)
	}
}

func TestALostReplyIsSettledByTheProbe(t *testing.T) {
	t.Parallel()
	out := outcome(t, "-lose-reply")
	for _, want := range []string{": succeeded", "(outcome_unknown, maybe_executed)", "the probe says of attempt 1: happened"} {
		if !strings.Contains(out, want) {
			t.Errorf("output lacks %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "attempt 2") {
		t.Errorf("it was sent again:\n%s", out)
	}
}

func TestALostReplyThatNobodyCanSettleIsAsked(t *testing.T) {
	t.Parallel()
	s := newTestServer(t)
	s.lose = true
	db := filepath.Join(t.TempDir(), "pawl.db")
	out := outcome(t, "-smtp", s.addr, "-db", db)
	if !strings.Contains(out, "pawl resolve") || strings.Contains(out, "succeeded") {
		t.Fatalf("output: %s", out)
	}
	answer(t, db)
	if out := outcome(t, "-smtp", s.addr, "-db", db); !strings.Contains(out, "succeeded, Message-ID it-is-there") {
		t.Errorf("output: %s", out)
	}
	if mails := s.accepted(); mails != 1 {
		t.Errorf("%d mails were accepted, want 1", mails)
	}
}

// answer says of the one open entry that the mail is there.
func answer(t *testing.T, db string) {
	t.Helper()
	store, err := sqlite.Open(db, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	e, err := pawl.New(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	entries, _, err := e.Inbox(t.Context(), pawl.InboxQuery{})
	if err != nil || len(entries) != 1 {
		t.Fatalf("inbox: %+v, %v", entries, err)
	}
	if err := e.Resolve(t.Context(), pawl.Answer{Entry: entries[0].ID, Attempt: entries[0].Attempt, Choice: pawl.AnswerHappened,
		Result: []byte(`"it-is-there"`), By: "mia", Reason: "the customer has it"}); err != nil {
		t.Fatal(err)
	}
}

// The program is killed when the server has accepted the mail and has not yet said so. The next one asks and does not
// send.
func TestKilledBetweenSendAndReply(t *testing.T) {
	t.Parallel()
	s := newTestServer(t)
	db := filepath.Join(t.TempDir(), "pawl.db")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-db", db, "-smtp", s.addr, "-lease", "2s")
	cmd.Env = append(os.Environ(), "INVOICE_PROGRAM=1")
	s.mu.Lock()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.then = func() { _ = cmd.Process.Kill() }
	s.mu.Unlock()
	if err := cmd.Wait(); err == nil {
		t.Fatal("the program was not killed")
	}
	if out := outcome(t, "-smtp", s.addr, "-db", db, "-lease", "2s"); !strings.Contains(out, "had begun when its worker was lost") {
		t.Errorf("output: %s", out)
	}
	if mails := s.accepted(); mails != 1 {
		t.Errorf("%d mails were accepted, want 1", mails)
	}
}

// A refusal proves that nothing happened: it is tried again.
func TestARefusalIsTriedAgain(t *testing.T) {
	t.Parallel()
	s := newTestServer(t)
	s.busy = true
	out := outcome(t, "-smtp", s.addr)
	if !strings.Contains(out, "attempt 1: failed (transient, rejected)") || !strings.Contains(out, "attempt 2: succeeded") {
		t.Errorf("output: %s", out)
	}
}
