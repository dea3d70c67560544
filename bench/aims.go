package main

import (
	"fmt"
	"strings"
)

// aim is one line of the table of aims.
type aim struct {
	what string
	want string
	got  string // "" if it was not measured
	met  bool
}

// least builds aims of the form "at least so many times another".
func (r *report) least(what string, times float64, of string, c, base *cell) aim {
	s, ok := c.over(base, rateOf)
	a := aim{what: what, want: fmt.Sprintf(">= %s x %s", short(times), of), met: ok && s.med >= times}
	if ok {
		a.got = s.text(ok)
	}
	return a
}

// most builds aims of the form "at most so much".
func most(what string, limit float64, unit string, c *cell, f figure) aim {
	s, ok := c.of(f)
	a := aim{what: what, want: "<= " + short(limit) + unit, met: ok && s.med <= limit}
	if ok {
		a.got = s.text(ok) + unit
	}
	return a
}

func (r *report) mostTimes(what string, limit float64, of string, c, base *cell, f figure) aim {
	s, ok := c.over(base, f)
	a := aim{what: what, want: fmt.Sprintf("<= %s x %s", short(limit), of), met: ok && s.med <= limit}
	if ok {
		a.got = s.text(ok)
	}
	return a
}

// aims compares what was measured with what was aimed at.
func (r *report) aims() (all []aim) {
	all = append(all, r.stepAims()...)
	all = append(all, r.queueAims()...)
	all = append(all, r.latencyAims()...)
	all = append(all, r.resumeAims()...)
	all = append(all, r.costAims()...)
	all = append(all, r.backlogAims()...)
	all = append(all, r.memoryAims()...)
	all = append(all, r.waitingAims()...)
	return append(all, r.batchAims()...)
}

func (r *report) stepAims() (all []aim) {
	at := func(st Store, c int, peer, variant string) *cell {
		return r.find(Spec{Workload: Steps, Store: st, C: c, Peer: peer, Variant: variant})
	}
	for _, row := range []struct {
		store               Store
		claim, direct, once float64
		dbos                float64
	}{{Postgres, 0.5, 0.6, 0.35, 10}, {SQLite, 0.45, 0.65, 0.35, 15}} {
		what := fmt.Sprintf("steps, %s, 64 runs at once, ", row.store)
		batch := at(row.store, 64, "floor-batch", "")
		all = append(all,
			r.least(what+claimed, row.claim, "floor-batch", at(row.store, 64, "pawl", claimed), batch),
			r.least(what+inProcess, row.direct, "floor-batch", at(row.store, 64, "pawl", inProcess), batch),
			r.least(what+onceSteps, row.once, "floor-batch", at(row.store, 64, "pawl", onceSteps), batch),
			r.least(what+claimed, row.dbos, "DBOS", at(row.store, 64, "pawl", claimed), at(row.store, 64, "dbos", "")))
	}
	for _, st := range []Store{Postgres, SQLite} {
		what := fmt.Sprintf("steps, %s, one run at a time, ", st)
		floor := at(st, 1, "floor", "")
		all = append(all, r.least(what+claimed, 0.75, "floor", at(st, 1, "pawl", claimed), floor),
			r.least(what+inProcess, 0.9, "floor", at(st, 1, "pawl", inProcess), floor))
	}
	for _, variant := range []string{claimed, inProcess} {
		all = append(all, r.least("steps, postgres, 1,000 runs at once, "+variant, 0.5, "floor-batch",
			at(Postgres, 1000, "pawl", variant), at(Postgres, 1000, "floor-batch", "")))
	}
	return all
}

func (r *report) queueAims() (all []aim) {
	for _, row := range []struct {
		store   Store
		workers int
		times   float64
	}{{Postgres, 64, 1.2}, {Postgres, 1000, 1.5}, {SQLite, 64, 8}} {
		at := func(peer, variant string) *cell {
			return r.find(Spec{Workload: Queue, Store: row.store, C: row.workers, Peer: peer, Variant: variant})
		}
		all = append(all, r.least(fmt.Sprintf("queue drain, %s, %s", row.store, count(row.workers, "worker")), row.times,
			"River at its best", at("pawl", ""), best(at("river", riverTuned), at("river", riverDefault))))
	}
	return all
}

func (r *report) latencyAims() (all []aim) {
	for _, st := range []Store{Postgres, SQLite} {
		at := func(peer, variant string) *cell {
			return r.find(Spec{Workload: Latency, Store: st, C: 64, Peer: peer, Variant: variant})
		}
		for _, row := range []struct {
			variant, of string
			floor       *cell
			times       float64
		}{
			{inProcess, "floor's, in process", at("floor", floorLocal), 1},
			{otherProc, "floor's", at("floor", ""), 1.5},
		} {
			what, mine := fmt.Sprintf("pick-up, %s, %s", st, row.variant), at("pawl", row.variant)
			all = append(all, r.mostTimes(what+", p50", row.times, row.of, mine, row.floor, p50Of),
				r.mostTimes(what+", p99", 2, row.of, mine, row.floor, p99Of))
		}
	}
	return all
}

// resumeAims looks at both ways to count: the body alone, and with the reading of the journal, which happens before it.
func (r *report) resumeAims() (all []aim) {
	for _, st := range []Store{Postgres, SQLite} {
		var group []*cell
		var longest *cell
		for _, c := range r.cells() {
			if c.Workload == Resume && c.Store == st && c.Peer == "pawl" {
				group = append(group, c)
				if longest == nil || c.K > longest.K {
					longest = c
				}
			}
		}
		what := fmt.Sprintf("resume, %s, ", st)
		all = append(all, most(what+"body only", 5, " µs a step", longest, replayPerStep))
		a := aim{what: what + "with reading", want: "<= 5 µs a step"}
		if longest != nil {
			if us, ok := slopeOf(longest, group); ok {
				a.got, a.met = us.text(ok)+" µs a step", us.med > 0 && us.med <= 5 // less than nothing is noise
			}
		}
		all = append(all, a)
	}
	return all
}

func (r *report) costAims() (all []aim) {
	for _, row := range []struct {
		variant string
		wal     float64
	}{{claimed, 520}, {inProcess, 480}, {onceSteps, 800}} {
		c := r.find(Spec{Workload: Steps, Store: Postgres, C: 64, Peer: "pawl", Variant: row.variant})
		what := "postgres, 64 runs at once, " + row.variant
		all = append(all, most("WAL of a step, "+what, row.wal, " B", c, walOf), most("commits a step, "+what, 0.1, "", c, commitOf))
	}
	return all
}

func (r *report) backlogAims() (all []aim) {
	for _, st := range []Store{Postgres, SQLite} {
		var empty, full *cell
		for _, c := range r.cells() {
			if c.Workload != Backlog || c.Store != st || c.Peer != "pawl" {
				continue
			}
			if c.Finished == 0 {
				empty = c
			} else {
				full = c
			}
		}
		n := 1_000_000
		if full != nil {
			n = full.Finished
		}
		what := fmt.Sprintf("%s, %s finished runs kept", st, thousands(float64(n)))
		all = append(all, r.least("queue drain, "+what, 0.9, "that of an empty table", full, empty))
		if st == Postgres {
			all = append(all, r.mostTimes("idle worker's commits, "+what, 1.1, "those with an empty table", full, empty,
				func(r Result) float64 { return r.IdleCommits }),
				r.mostTimes("idle worker's buffers, "+what, 1.5, "those with an empty table, as indexes have more levels", full, empty,
					func(r Result) float64 { return r.IdleBuffers }))
		}
	}
	return all
}

func (r *report) memoryAims() (all []aim) {
	for _, st := range []Store{Postgres, SQLite} {
		for _, c := range r.cells() {
			if c.Workload == Memory && c.Store == st && c.Peer == "pawl" {
				what := fmt.Sprintf("memory, %s, %s queued, %s running", st, thousands(float64(c.Queued)), thousands(float64(c.C)))
				all = append(all, most(what, 150, " MB", c, rssOf))
			}
		}
	}
	return all
}

// pollMillis is the longest that a worker waits before it looks again.
const pollMillis = 1000

func (r *report) waitingAims() (all []aim) {
	for _, st := range []Store{Postgres, SQLite} {
		for _, c := range r.cells() {
			if c.Workload != Waiting || c.Store != st || c.Peer != "pawl" {
				continue
			}
			what := fmt.Sprintf("waiting, %s, %s asleep", st, thousands(float64(c.Queued)))
			all = append(all, most(what, 50, " MB", c, rssOf),
				most("1,000 due at once, as a share of 1.5 times the time of 1,000 jobs and a poll, "+what, 1, "", c,
					func(r Result) float64 { return r.Woken / (1.5*r.Jobs + pollMillis) }))
		}
	}
	return all
}

func (r *report) batchAims() (all []aim) {
	for _, st := range []Store{Postgres, SQLite} {
		for _, c := range r.cells() {
			if c.Workload != Batch || c.Store != st || c.Kills == 0 {
				continue
			}
			base := r.find(Spec{Workload: Batch, Store: st, C: c.C, K: c.K, Peer: c.Peer})
			what := fmt.Sprintf("batch, %s, %s items, %d kills", st, thousands(float64(c.K)), c.Kills)
			all = append(all, r.mostTimes("seconds without leases, "+what, 1.2, "unkilled", c, base, workingOf),
				most("effects again, "+what, float64(c.Kills*itemsAtOnce), "", c, againOf))
		}
	}
	return all
}

// aimTable is the table of aims in Markdown.
func (r *report) aimTable() string {
	var b strings.Builder
	b.WriteString("| what | aim | measured | |\n|---|---|---|---|\n")
	for _, a := range r.aims() {
		got, verdict := a.got, "**not met**"
		switch {
		case got == "":
			got, verdict = "-", "not measured"
		case a.met:
			verdict = "met"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", a.what, a.want, got, verdict)
	}
	return b.String()
}
