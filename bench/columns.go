package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// columnsFor are the figures that say something about a workload on a store.
func columnsFor(w Workload, s Store) []column {
	var columns []column
	switch w {
	case Steps:
		columns = append(columns, name(), wide("steps/s", rateOf), times("x floor", "floor", ""),
			times("x floor-batch", "floor-batch", ""), times("x DBOS", "dbos", ""),
			narrow("p50 ms", p50Of), narrow("p99 ms", p99Of))
		columns = append(columns, costs("step", s)...)
	case Queue:
		columns = append(columns, name(), wide("jobs/s", rateOf), times("x floor-batch", "floor-batch", ""),
			times("x River", "river", riverTuned), narrow("enqueue jobs/s", func(r Result) float64 { return r.Enqueue }))
		columns = append(columns, costs("job", s)...)
	case Latency:
		columns = append(columns, name(), narrow("samples", func(r Result) float64 { return float64(r.N) }),
			wide("pick-up p50 ms", p50Of), wide("p99 ms", p99Of),
			narrow("done p50 ms", func(r Result) float64 { return r.Done50 }), timesBy("p50 x floor", "floor", "", p50Of))
	case Resume:
		columns = append(columns, name(), column{"finished steps", func(c *cell, _ []*cell) string { return thousands(float64(c.K)) }},
			wide("worker start to step K+1, ms", func(r Result) float64 { return r.Recovery }),
			wide("body to step K+1, ms", func(r Result) float64 { return r.Replay }),
			narrow("µs a step, body only", replayPerStep), column{"µs a step, with reading", slope})
	case Backlog:
		columns = append(columns, name(), column{"finished", func(c *cell, _ []*cell) string { return thousands(float64(c.Finished)) }},
			wide("jobs/s", rateOf), column{"x empty", timesEmpty},
			narrow("idle commits/s", func(r Result) float64 { return r.IdleCommits }),
			narrow("idle buffers/s", func(r Result) float64 { return r.IdleBuffers }))
		columns = append(columns, costs("job", s)...)
	case Batch:
		columns = append(columns, name(), column{"items", func(c *cell, _ []*cell) string { return thousands(float64(c.K)) }},
			column{"kills", func(c *cell, _ []*cell) string { return thousands(float64(c.Kills)) }},
			wide("items/s, without the leases", rateOf), wide("seconds", func(r Result) float64 { return r.Seconds }),
			column{"x unkilled", timesUnkilled}, narrow("effects made again", againOf), narrow("RSS MB", rssOf))
	case Waiting:
		columns = append(columns, name(), column{"asleep", func(c *cell, _ []*cell) string { return thousands(float64(c.Queued)) }},
			wide("1,000 due at once, last one woken after, ms", func(r Result) float64 { return r.Woken }),
			wide("1,000 jobs, ms", func(r Result) float64 { return r.Jobs }), wide("RSS MB", rssOf))
	case Memory:
		columns = append(columns, name(), column{"running", func(c *cell, _ []*cell) string { return thousands(float64(c.C)) }},
			column{"queued", func(c *cell, _ []*cell) string { return thousands(float64(c.Queued)) }}, wide("RSS MB", rssOf))
	}
	return columns
}

func againOf(r Result) float64   { return r.Again }
func workingOf(r Result) float64 { return r.Working }
func rssOf(r Result) float64     { return r.RSS }
func walOf(r Result) float64     { return r.WAL }
func commitOf(r Result) float64  { return r.Commits }
func replayPerStep(r Result) float64 {
	return r.Replay * 1000 / float64(max(r.K, 1))
}

// costs of one step or job. SQLite counts nothing but the client's time.
func costs(unit string, s Store) (columns []column) {
	if s == Postgres {
		columns = append(columns, narrow("commits/"+unit, commitOf), narrow("WAL syncs", func(r Result) float64 { return r.Syncs }),
			narrow("WAL B", walOf))
	}
	columns = append(columns, narrow("client µs", func(r Result) float64 { return r.ClientCPU }))
	if s == Postgres {
		columns = append(columns, narrow("server µs", func(r Result) float64 { return r.ServerCPU }))
	}
	return append(columns, narrow("RSS MB", rssOf), narrow("others' CPU", func(r Result) float64 { return r.Foreign }))
}

func name() column {
	return column{"peer", func(c *cell, _ []*cell) string {
		if c.Peer == "pawl" {
			return "**" + c.name() + "**"
		}
		return c.name()
	}}
}

// wide shows the least, the median and the most.
func wide(title string, f figure) column {
	return column{title + " (min / med / max)", func(c *cell, _ []*cell) string {
		s, ok := c.of(f)
		if !ok {
			return "-"
		}
		return fmt.Sprintf("%s / **%s** / %s", short(s.min), short(s.med), short(s.max))
	}}
}

// narrow shows the median.
func narrow(title string, f figure) column {
	return column{title, func(c *cell, _ []*cell) string {
		s, ok := c.of(f)
		if !ok {
			return "-"
		}
		return short(s.med)
	}}
}

func times(title, peer, variant string) column { return timesBy(title, peer, variant, rateOf) }

// timesBy shows the ratio to another row of the group.
func timesBy(title, peer, variant string, f figure) column {
	return column{title, func(c *cell, group []*cell) string {
		for _, base := range group {
			if base.Peer == peer && base.Variant == variant {
				s, ok := c.over(base, f)
				return s.text(ok)
			}
		}
		return "-"
	}}
}

// text is the median, and the range where there is one.
func (s spread) text(ok bool) string {
	switch {
	case !ok:
		return "-"
	case short(s.min) == short(s.max):
		return short(s.med)
	}
	return fmt.Sprintf("%s (%s-%s)", short(s.med), short(s.min), short(s.max))
}

// timesEmpty is the ratio to the row without finished runs.
func timesEmpty(c *cell, group []*cell) string {
	for _, base := range group {
		if base.Peer == c.Peer && base.Variant == c.Variant && base.Finished == 0 && c.Finished > 0 {
			s, ok := c.over(base, rateOf)
			return s.text(ok)
		}
	}
	return "-"
}

// timesUnkilled is the ratio of the seconds, without the leases, to those of the row without kills.
func timesUnkilled(c *cell, group []*cell) string {
	for _, base := range group {
		if base.Kills == 0 && c.Kills > 0 {
			s, ok := c.over(base, workingOf)
			return s.text(ok)
		}
	}
	return "-"
}

// slope is what one more finished step costs, from the worker's start: it holds the reading of the journal, and leaves out
// what does not depend on its length.
func slope(c *cell, group []*cell) string {
	s, ok := slopeOf(c, group)
	return s.text(ok)
}

// slopeOf compares with the shortest of the group, within each round.
func slopeOf(c *cell, group []*cell) (us spread, ok bool) {
	base := c
	for _, other := range group {
		if other.Peer == c.Peer && other.Variant == c.Variant && other.K < base.K {
			base = other
		}
	}
	if base == c {
		return us, false
	}
	var values []float64
	for round, long := range c.rounds {
		if less, both := base.rounds[round]; both {
			values = append(values, (long.Recovery-less.Recovery)*1000/float64(c.K-base.K))
		}
	}
	return spreadOf(values)
}

// short writes a number with three digits, or whole with separators.
func short(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1000:
		return thousands(v)
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 0.1 || a == 0:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'f', 3, 64)
}

func thousands(v float64) string {
	s := strconv.FormatInt(int64(math.Round(v)), 10)
	var parts []string
	for len(s) > 3 {
		parts = append([]string{s[len(s)-3:]}, parts...)
		s = s[:len(s)-3]
	}
	return strings.Join(append([]string{s}, parts...), ",")
}

// String is one line of progress.
func (r Result) String() string {
	where := fmt.Sprintf("round %d  %s  %s", r.Round, r.group(), r.name())
	if r.Finished > 0 {
		where += fmt.Sprintf(" with %d finished", r.Finished)
	}
	switch {
	case r.Error != "":
		return where + ": FAILED: " + r.Error
	case r.Rate > 0:
		return fmt.Sprintf("%s: %s/s, n=%d in %.1f s, others %.2f cores", where, short(r.Rate), r.N, r.Seconds, r.Foreign)
	case r.Recovery > 0:
		return fmt.Sprintf("%s: %s ms, replay %s ms", where, short(r.Recovery), short(r.Replay))
	case r.P50 > 0:
		return fmt.Sprintf("%s: p50 %s ms, p99 %s ms, done %s ms, n=%d", where, short(r.P50), short(r.P99), short(r.Done50), r.N)
	}
	return fmt.Sprintf("%s: %s MB", where, short(r.RSS))
}
