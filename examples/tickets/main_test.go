package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlrun/pawl/fault"
)

// TestMain lets this test binary be the program itself, so that a test can kill it.
func TestMain(m *testing.M) {
	if os.Getenv("TICKETS_PROGRAM") == "" {
		os.Exit(m.Run())
	}
	main()
}

// far is the fake behind a handler that a test may put in front of it.
func far(t *testing.T, front func(f *fake, w http.ResponseWriter, r *http.Request) (handled bool)) (*fake, string) {
	t.Helper()
	f := newFake()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if front == nil || !front(f, w, r) {
			f.mux.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return f, s.URL
}

func args(t *testing.T, db, url string) []string {
	t.Helper()
	return []string{"-db", db, "-model-url", url, "-tickets-url", url, "-lease", "2s"}
}

func (f *fake) counts() (asked, writes map[string]int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked, f.writes
}

var once = map[string]int{"T-1001": 1, "T-1002": 1, "T-1003": 1}

func TestEachTicketIsDoneOnce(t *testing.T) {
	t.Parallel()
	f, url := far(t, nil)
	db := filepath.Join(t.TempDir(), "pawl.db")
	for range 2 { // the second start finds the run, and nothing is executed
		var out bytes.Buffer
		if err := run(t.Context(), args(t, db, url), &out); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), "T-1003 is saved as enrichment/T-1003") {
			t.Errorf("output:\n%s", &out)
		}
	}
	asked, writes := f.counts()
	if diff := cmp.Diff(asked, once) + cmp.Diff(writes, once); diff != "" {
		t.Errorf("model calls and writes (-got +want):\n%s", diff)
	}
}

func TestAFailingTicketRepeatsNoOther(t *testing.T) {
	t.Parallel()
	refused := false
	f, url := far(t, func(f *fake, w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "T-1002") && !refused {
			refused = true
			http.Error(w, "this ticket is closed", http.StatusForbidden)
			return true
		}
		return false
	})
	db := filepath.Join(t.TempDir(), "pawl.db")
	err := run(t.Context(), args(t, db, url), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "this ticket is closed") {
		t.Fatalf("first run: got %v, want the refusal", err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), args(t, db, url), &out); err != nil {
		t.Fatalf("second run: %v", err)
	}
	if n := strings.Count(out.String(), "reused from run"); n != 5 {
		t.Errorf("%d steps were reused, want all 5 that had succeeded:\n%s", n, &out)
	}
	asked, writes := f.counts()
	if diff := cmp.Diff(asked, once) + cmp.Diff(writes, once); diff != "" {
		t.Errorf("model calls and writes (-got +want):\n%s", diff)
	}
}

// The ticket service writes the second ticket and the program is killed before it has the answer. The next one sends
// the same key, and nothing is written or paid for twice.
func TestKilledInTheMiddleOfAWrite(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex // guards all below
	var keys []string
	var kill func()
	f, url := far(t, func(f *fake, w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if !strings.Contains(r.URL.Path, "T-1002") {
			return false
		}
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		if len(keys) > 1 {
			return false
		}
		f.mux.ServeHTTP(httptest.NewRecorder(), r) // written …
		kill()                                     // … and nobody hears of it
		return true
	})
	db := filepath.Join(t.TempDir(), "pawl.db")
	program := func() *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), os.Args[0], args(t, db, url)...)
		cmd.Env = append(os.Environ(), "TICKETS_PROGRAM=1")
		return cmd
	}
	first := program()
	mu.Lock()
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() { _ = first.Process.Kill() }
	mu.Unlock()
	if err := first.Wait(); err == nil {
		t.Fatal("the first program was not killed")
	}
	out, err := program().CombinedOutput()
	if err != nil {
		t.Fatalf("second program: %v\n%s", err, out)
	}
	asked, writes := f.counts()
	if diff := cmp.Diff(asked, once) + cmp.Diff(writes, once); diff != "" {
		t.Errorf("model calls and writes (-got +want):\n%s", diff)
	}
	if len(keys) != 2 || keys[0] != keys[1] {
		t.Errorf("keys sent for the second ticket: %q, want the same twice", keys)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for code, want := range map[int]string{429: "rate_limited", 401: "access_denied", 400: "invalid_request", 503: "transient"} {
		_, url := far(t, func(_ *fake, w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "no", code)
			return true
		})
		s, stop, err := connect(url, "m", url)
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := s.enrich(ctx, Ticket{ID: "T"}); fault.ClassOf(err).String() != want {
			t.Errorf("status %d: got %v, want class %s", code, err, want)
		}
	}
}

func TestTheSampleIsReadable(t *testing.T) {
	t.Parallel()
	job, err := read("")
	if err != nil || len(job.Tickets) != 3 {
		t.Errorf("got %+v, %v", job, err)
	}
	path := filepath.Join(t.TempDir(), "x.json")
	raw, err := json.Marshal(Job{ID: "x"})
	if err := fmt.Sprint(err, os.WriteFile(path, raw, 0o600)); err != "<nil> <nil>" {
		t.Fatal(err)
	}
	if job, err := read(path); err != nil || job.ID != "x" {
		t.Errorf("got %+v, %v", job, err)
	}
}
