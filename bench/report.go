package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// report is all that was measured, and where.
type report struct {
	Machine Machine
	Results []Result
}

// line is a line of the JSON file: the first describes the machine, all others are results.
type line struct {
	Machine *Machine `json:"machine"`
	Result
}

// output opens the JSON file; without a name the lines go nowhere.
func (r *report) output(name string) (io.WriteCloser, error) {
	if name == "" {
		name = os.DevNull
	}
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	return f, json.NewEncoder(f).Encode(struct {
		Machine Machine `json:"machine"`
	}{r.Machine})
}

// read adds up the files of several runs of this program. A group that a later file has measured again replaces that of an
// earlier one, because ratios hold within a round only.
func (r *report) read(names []string) error {
	for _, name := range names {
		m, results, err := readLines(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if m != nil {
			commands := append(r.Machine.Commands, m.Commands...)
			r.Machine = *m
			r.Machine.Commands = commands
		}
		again := make(map[string]bool)
		for _, res := range results {
			again[res.group()] = true
		}
		r.Results = append(slices.DeleteFunc(r.Results, func(old Result) bool { return again[old.group()] }), results...)
	}
	return nil
}

func readLines(name string) (m *Machine, results []Result, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }() // only read
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var l line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return nil, nil, err
		}
		if l.Machine != nil {
			m = l.Machine
			continue
		}
		results = append(results, l.Result)
	}
	return m, results, lines.Err()
}

func (r *report) failures() (n int) {
	for _, res := range r.Results {
		if res.Error != "" {
			n++
		}
	}
	return n
}

// cell is one row of a table: the rounds of one spec that did not fail.
type cell struct {
	Spec
	rounds map[int]Result
}

// cells are in the order in which they were first measured, so that a group stays together.
func (r *report) cells() []*cell {
	var all []*cell
	at := make(map[string]*cell)
	for _, res := range r.Results {
		if res.Error != "" {
			continue
		}
		c := at[res.cell()]
		if c == nil {
			c = &cell{Spec: res.Spec, rounds: make(map[int]Result)}
			at[res.cell()] = c
			all = append(all, c)
		}
		c.rounds[res.Round] = res
	}
	return all
}

// find returns the cell, or nil.
func (r *report) find(want Spec) *cell {
	for _, c := range r.cells() {
		if c.Spec.cell() == want.cell() {
			return c
		}
	}
	return nil
}

// figure is a number of a result.
type figure func(Result) float64

func rateOf(r Result) float64 { return r.Rate }
func p50Of(r Result) float64  { return r.P50 }
func p99Of(r Result) float64  { return r.P99 }

// spread is a figure over the rounds.
type spread struct{ min, med, max float64 }

func spreadOf(values []float64) (s spread, ok bool) {
	if len(values) == 0 {
		return s, false
	}
	slices.Sort(values)
	n := len(values)
	return spread{values[0], (values[(n-1)/2] + values[n/2]) / 2, values[n-1]}, true
}

// of is the spread of a figure; rounds in which it is 0 have none.
func (c *cell) of(f figure) (spread, bool) {
	var values []float64
	if c != nil {
		for _, res := range c.rounds {
			if v := f(res); v > 0 {
				values = append(values, v)
			}
		}
	}
	return spreadOf(values)
}

// over is the spread of the ratio to another cell, taken within each round.
func (c *cell) over(base *cell, f figure) (spread, bool) {
	if c == nil || base == nil {
		return spread{}, false
	}
	var values []float64
	for _, round := range slices.Sorted(maps.Keys(c.rounds)) {
		other, both := base.rounds[round]
		if both && f(other) > 0 && f(c.rounds[round]) > 0 {
			values = append(values, f(c.rounds[round])/f(other))
		}
	}
	return spreadOf(values)
}

// best is a cell with, in each round, the result of the one that was fastest.
func best(cells ...*cell) *cell {
	out := &cell{rounds: make(map[int]Result)}
	for _, c := range cells {
		if c == nil {
			continue
		}
		for round, res := range c.rounds {
			if res.Rate > out.rounds[round].Rate {
				out.rounds[round] = res
			}
		}
	}
	return out
}

// column of a table; it gets the row and all rows of its group.
type column struct {
	title string
	text  func(c *cell, group []*cell) string
}

// tables writes one table for each group, in Markdown.
func (r *report) tables(w io.Writer) error {
	var b strings.Builder
	all := r.cells()
	for len(all) > 0 {
		key := tableKey(all[0].Spec)
		var group, rest []*cell
		for _, c := range all {
			if tableKey(c.Spec) == key {
				group = append(group, c)
			} else {
				rest = append(rest, c)
			}
		}
		all = rest
		fmt.Fprintf(&b, "### %s\n\n", key)
		writeTable(&b, columnsFor(group[0].Workload, group[0].Store), group)
	}
	if n := r.failures(); n > 0 {
		fmt.Fprintf(&b, "### Failed\n\n")
		for _, res := range r.Results {
			if res.Error != "" {
				fmt.Fprintf(&b, "- %s, %s, round %d: %s\n", res.group(), res.name(), res.Round, res.Error)
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// tableKey puts all sizes of resume into one table, and everything else by the number of runs at once.
func tableKey(s Spec) string {
	switch s.Workload {
	case Steps:
		return fmt.Sprintf("steps, %s, %s at once", s.Store, count(s.C, "run"))
	case Queue:
		return fmt.Sprintf("queue, %s, %s", s.Store, count(s.C, "worker"))
	case Backlog, Latency, Resume, Memory, Waiting, Batch:
	}
	return fmt.Sprintf("%s, %s", s.Workload, s.Store)
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return thousands(float64(n)) + " " + noun + "s"
}

func writeTable(b *strings.Builder, columns []column, group []*cell) {
	titles := make([]string, len(columns))
	for i, c := range columns {
		titles[i] = c.title
	}
	fmt.Fprintf(b, "| %s |\n|%s\n", strings.Join(titles, " | "), strings.Repeat("---|", len(columns)))
	for _, row := range group {
		texts := make([]string, len(columns))
		for i, c := range columns {
			texts[i] = c.text(row, group)
		}
		fmt.Fprintf(b, "| %s |\n", strings.Join(texts, " | "))
	}
	b.WriteByte('\n')
}
