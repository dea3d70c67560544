package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMain lets the test binary be the process that is killed.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == childArg {
		if err := childMain(context.Background(), os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func testJob(t *testing.T, s Spec) job {
	t.Helper()
	s.Store = SQLite
	return job{Spec: s, Phase: measure, Target: target{Path: filepath.Join(t.TempDir(), "bench.db")}, Seconds: 0.01}
}

// Every peer does the work of every load, on SQLite.
func TestLoads(t *testing.T) {
	sel := selection{workloads: []Workload{Steps, Queue}, stores: []Store{SQLite}, cs: []int{2}}
	for _, group := range sel.plan() {
		for _, s := range group {
			t.Run(string(s.Workload)+"/"+s.name(), func(t *testing.T) {
				j := testJob(t, s)
				l, err := pass(t.Context(), j, 5)
				if err != nil {
					t.Fatal(err)
				}
				if l.ck.elapsed <= 0 {
					t.Error("the clock did not run")
				}
				if err := verifyLoad(t.Context(), j, 5); err != nil {
					t.Error(err)
				}
				if err := verifyLoad(t.Context(), j, 6); err == nil {
					t.Error("a run that was not executed is not missed")
				}
			})
		}
	}
}

func TestLatency(t *testing.T) {
	for _, s := range latencyCells(SQLite) {
		t.Run(s.name(), func(t *testing.T) {
			s.Workload, s.N = Latency, 3
			r, err := runLatency(t.Context(), testJob(t, s))
			if err != nil {
				t.Fatal(err)
			}
			if r.N != 3 || r.P50 <= 0 || r.Done50 < r.P50 {
				t.Errorf("got %+v, want 3 samples with a pick-up before the end", r)
			}
		})
	}
}

// A killed batch goes on with the items that are left.
func TestBatch(t *testing.T) {
	r, err := runBatch(t.Context(), testJob(t, Spec{Workload: Batch, Peer: "pawl", C: itemsAtOnce, K: 200, Kills: 1}))
	if err != nil || r.Again > itemsAtOnce || r.Working <= 0 || r.Rate <= 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// A killed run is resumed after its last finished step.
func TestResume(t *testing.T) {
	for _, peer := range []string{"floor", "dbos", "pawl"} {
		t.Run(peer, func(t *testing.T) {
			t.Parallel()
			r, err := runResume(t.Context(), testJob(t, Spec{Workload: Resume, Peer: peer, C: 1, K: 5}))
			if err != nil {
				t.Fatal(err)
			}
			if r.Recovery < r.Replay || r.Replay <= 0 {
				t.Errorf("recovery %v ms, replay %v ms: want the first to hold the second", r.Recovery, r.Replay)
			}
		})
	}
}

// The copies of a finished job are rows that the peer takes for its own.
func TestBacklog(t *testing.T) {
	for _, peer := range []string{"floor-batch", "river", "pawl"} {
		t.Run(peer, func(t *testing.T) {
			j := testJob(t, Spec{Workload: Backlog, Peer: peer, C: 2, Finished: 50})
			if err := fillIn(t.Context(), j); err != nil {
				t.Fatal(err)
			}
			if _, err := pass(t.Context(), j, 5); err != nil {
				t.Fatal(err)
			}
			if err := verifyLoad(t.Context(), j, 5); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestMemory(t *testing.T) {
	for _, peer := range []string{"river", "pawl"} {
		t.Run(peer, func(t *testing.T) {
			j := testJob(t, Spec{Workload: Memory, Peer: peer, C: 2, Queued: 3})
			if err := fillIn(t.Context(), j); err != nil {
				t.Fatal(err)
			}
			p, err := openAs[holder](t.Context(), j)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.hold(t.Context(), 2, time.Millisecond); err != nil {
				t.Error(err)
			}
		})
	}
}

// Ratios are taken within a round, and the aims are read from them.
func TestReport(t *testing.T) {
	t.Parallel()
	r := &report{}
	for round := 1; round <= 3; round++ {
		for _, s := range []struct {
			spec Spec
			rate float64
		}{
			{Spec{Workload: Steps, Store: SQLite, C: 64, Peer: "floor-batch"}, float64(1000 * round)},
			{Spec{Workload: Steps, Store: SQLite, C: 64, Peer: "pawl", Variant: claimed}, float64(500 * round)},
			{Spec{Workload: Steps, Store: SQLite, C: 64, Peer: "pawl", Variant: inProcess}, float64(600 * round)},
		} {
			s.spec.Round = round
			r.Results = append(r.Results, Result{Spec: s.spec, Rate: s.rate})
		}
	}
	r.Results = append(r.Results, Result{Spec: Spec{Workload: Steps, Store: SQLite, C: 64, Peer: "dbos", Round: 1}, Error: "lost"})
	var tables bytes.Buffer
	if err := r.tables(&tables); err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string]string{
		"a row":         "| **pawl, claimed** | 500 / **1,000** / 1,500 | - | 0.50 | - |",
		"a failure":     "- steps/sqlite/64/0, dbos, round 1: lost",
		"a met aim":     "| steps, sqlite, 64 runs at once, claimed | >= 0.45 x floor-batch | 0.50 | met |",
		"a missed aim":  "| steps, sqlite, 64 runs at once, in process | >= 0.65 x floor-batch | 0.60 | **not met** |",
		"a silent aim":  "| steps, sqlite, 64 runs at once, once | >= 0.35 x floor-batch | - | not measured |",
		"another of it": "| WAL of a step, postgres, 64 runs at once, claimed | <= 520 B | - | not measured |",
	} {
		if !strings.Contains(tables.String()+r.aimTable(), text) {
			t.Errorf("%s is missing: %s\n%s%s", what, text, tables.String(), r.aimTable())
		}
	}
}
