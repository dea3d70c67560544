package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMain lets this test binary be the worker.
func TestMain(m *testing.M) {
	if os.Getenv(workerDir) == "" {
		os.Exit(m.Run())
	}
	main()
}

func TestNights(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	dir := t.TempDir()
	var out bytes.Buffer
	if err := play(ctx, dir, &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	text := out.String()
	t.Log(text)
	for _, want := range []string{"previous_running", "missed", "later_one_runs", "succeeded"} {
		if !strings.Contains(text, want) {
			t.Errorf("the ledger does not say %q", want)
		}
	}
	killed, nights, runs := 0, 0, 0
	var last time.Time
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		at, err := time.Parse("15:04:05", words[0])
		if err != nil {
			continue
		}
		if nights++; nights > 1 && !strings.HasPrefix(words[0], "00:00:0") && at.Sub(last) != 2*time.Second {
			t.Errorf("between %s and the night before are %v", words[0], at.Sub(last))
		}
		if last = at; words[len(words)-1] == "1" {
			killed++
		}
		if strings.Contains(line, "succeeded") {
			runs++
		}
	}
	if killed != 1 {
		t.Errorf("%d runs have lost a worker and gone on, want 1", killed)
	}
	reports, err := filepath.Glob(filepath.Join(dir, "*.report"))
	if err != nil || len(reports) != runs {
		t.Errorf("%d reports of %d runs, %v", len(reports), runs, err)
	}
}
