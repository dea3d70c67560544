package sqlstore

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pawlrun/pawl"
)

// A thousand rows take many times as long to read as one that has them all, so a page of a journal is one text: a line a row. What
// most rows have is in it, with a separator that is in no name; of a row that has more it is the name alone, and the row is read
// as it is.
const (
	lineSeparator  = "\n"
	fieldSeparator = "\x1f"

	selectStepLines = `SELECT string_agg(line, '` + lineSeparator + `') FROM (SELECT CASE WHEN %s THEN concat(%s) ELSE name END AS line
FROM pawl_steps WHERE run = $1 AND name %s $2 ORDER BY name LIMIT $3) AS page`

	selectStepsNamed = stepPage + ` WHERE run = $1 AND name IN (%s) ORDER BY name`

	selectItemNames = `SELECT string_agg(name, '` + lineSeparator + `') FROM (SELECT name FROM pawl_steps
WHERE run = $1 AND name > $2 AND name LIKE '%//%' ORDER BY name LIMIT $3) AS page`
	selectEndedIDs = `SELECT string_agg(item, '` + lineSeparator + `') FROM (SELECT item FROM pawl_items
WHERE run = $1 AND batch = $2 AND item >= $3 AND item <= $4 AND (state = 'done' OR NOT $5) ORDER BY item LIMIT $6) AS page`
)

// lineColumns are the columns that are in a line, in this order. batch and item are in the name.
var lineColumns = []string{"name", "kind", "attempt", "epoch", "worker", "begun", "ended", "latency_us", "input_hash", "value"}

// stepLines is the text of a page from a name on, or after it.
func stepLines(from string) string {
	plain := []string{"state = 'succeeded'", "octet_length(value) <= 4096"}
	for _, name := range stepNames {
		if !slices.Contains(lineColumns, name) && !slices.Contains([]string{"run", "state", "batch", "item"}, name) {
			plain = append(plain, name+" IS NULL")
		}
	}
	fields := slices.Clone(lineColumns)
	for i, name := range fields {
		if name == "input_hash" || name == "value" {
			fields[i] = "{hex}" + name + "{endhex}"
		}
	}
	return fmt.Sprintf(selectStepLines, strings.Join(plain, " AND "), strings.Join(fields, ", '"+fieldSeparator+"', "), from)
}

var stepLinesAfter, stepLinesFrom = stepLines(">"), stepLines(">=")

// Steps uses the primary key. It passes over the rows of items, batch by batch.
func (t *txn) Steps(ctx context.Context, run pawl.RunID, after string, limit int) (steps []pawl.StepRow, err error) {
	query := stepLinesAfter
	for more := true; more && len(steps) < limit; {
		size := min(limit-len(steps), stepsPage)
		lines, err := t.lines(ctx, query, string(run), after, int64(size))
		if err != nil {
			return nil, fmt.Errorf("read journal of run %s: %w", run, err)
		}
		page := make([]pawl.StepRow, len(lines))
		for i := range page {
			page[i].Run = run
			if err := readLine(lines[i], &page[i]); err != nil {
				return nil, fmt.Errorf("read journal of run %s: %w", run, err)
			}
		}
		query, more = stepLinesAfter, len(page) == size
		if more {
			after = page[size-1].Name
		}
		for i := range page {
			if batch, _ := page[i].Item(); batch != "" {
				query, after, more = stepLinesFrom, batch+"/0", true // '0' comes after '/'
				page = page[:i]
				break
			}
		}
		if page, err = t.complete(ctx, run, page); err != nil {
			return nil, fmt.Errorf("read journal of run %s: %w", run, err)
		}
		steps = append(steps, page...)
	}
	return steps, nil
}

// lines gives the lines of a page, sorted: an aggregate owes no order.
func (t *txn) lines(ctx context.Context, query string, args ...any) ([]string, error) {
	var text string
	if _, err := t.row(ctx, query, args, []any{zero(&text)}); err != nil || text == "" {
		return nil, err
	}
	lines := strings.Split(text, lineSeparator)
	slices.Sort(lines)
	return lines, nil
}

// readLine reads a row; one that is a name alone has no state.
func readLine(line string, row *pawl.StepRow) (err error) {
	var fields [10]string
	n := 0
	for field := range strings.SplitSeq(line, fieldSeparator) {
		if n < len(fields) {
			fields[n] = field
		}
		n++
	}
	row.Name = fields[0]
	if n == 1 {
		return nil
	}
	if n != len(fields) {
		return fmt.Errorf("step %q: its line has %d fields", row.Name, n)
	}
	row.State, row.Worker = pawl.StepSucceeded, pawl.WorkerID(fields[4])
	number := func(text string) (n int64) {
		if text != "" && err == nil {
			n, err = strconv.ParseInt(text, 10, 64)
		}
		return n
	}
	row.Attempt, row.Epoch = int(number(fields[2])), number(fields[3])
	row.Begun, row.Ended = number(fields[5]), number(fields[6])
	row.Usage.Latency = time.Duration(number(fields[7])) * time.Microsecond
	if err == nil {
		err = row.Kind.UnmarshalText([]byte(fields[1]))
	}
	if err == nil && fields[8] != "" {
		row.InputHash, err = hex.DecodeString(fields[8])
	}
	if err == nil && fields[9] != "" {
		row.Value, err = hex.DecodeString(fields[9])
	}
	row.ValueSize = len(row.Value)
	if err != nil {
		return fmt.Errorf("step %q: %w", row.Name, err)
	}
	return nil
}

// complete reads the rows of which only the name is there.
func (t *txn) complete(ctx context.Context, run pawl.RunID, steps []pawl.StepRow) ([]pawl.StepRow, error) {
	at := make(map[string]int)
	var names []string
	for i := range steps {
		if steps[i].State == "" {
			at[steps[i].Name] = i
			names = append(names, steps[i].Name)
		}
	}
	if len(names) == 0 {
		return steps, nil
	}
	rows, err := t.named(ctx, run, names)
	if err != nil {
		return nil, err
	}
	for i := range rows {
		steps[at[rows[i].Name]] = rows[i]
	}
	return slices.DeleteFunc(steps, func(s pawl.StepRow) bool { return s.State == "" }), nil // deleted since
}

// named reads rows by their names.
func (t *txn) named(ctx context.Context, run pawl.RunID, names []string) (steps []pawl.StepRow, err error) {
	for part := range slices.Chunk(names, mostArms) {
		args := []any{string(run)}
		for _, name := range padded(part) {
			args = append(args, name)
		}
		rows, err := listOf(ctx, t, stepDest, fmt.Sprintf(selectStepsNamed, params(2, len(args)-1)), args...)
		if err != nil {
			return nil, err
		}
		steps = append(steps, rows...)
	}
	return steps, nil
}

// ItemSteps uses the primary keys. Most of what it looks at are names of steps whose items have ended, and the ids of these: the
// rows are not read, and a join would look up each.
func (t *txn) ItemSteps(ctx context.Context, run pawl.RunID, after string, limit int, failed bool) ([]pawl.StepRow, error) {
	var names []string
	for more := true; more && len(names) < limit; {
		page, err := t.lines(ctx, selectItemNames, string(run), after, int64(linePage))
		if err == nil && len(page) > 0 {
			after = page[len(page)-1]
			var open []string
			open, err = t.notEnded(ctx, run, page, failed)
			names = append(names, open...)
		}
		if err != nil {
			return nil, fmt.Errorf("read steps of items of run %s: %w", run, err)
		}
		more = len(page) == linePage
	}
	steps, err := t.named(ctx, run, names[:min(limit, len(names))])
	if err != nil {
		return nil, fmt.Errorf("read steps of items of run %s: %w", run, err)
	}
	return steps, nil
}

const (
	stepsPage = 100  // lines of a page: larger texts cost more than they save
	linePage  = 1000 // names or ids of a page
)

// notEnded leaves out the steps whose items have a row; with failed, those whose items are done. The names are sorted.
func (t *txn) notEnded(ctx context.Context, run pawl.RunID, names []string, failed bool) (open []string, err error) {
	var batch string
	items := make([]string, 0, len(names)) // of names that are of one batch
	for i, name := range names {
		of, item := (&pawl.StepRow{Name: name}).Item()
		if i > 0 && of != batch {
			if open, err = t.addOpen(ctx, run, batch, items, names[i-len(items):i], failed, open); err != nil {
				return nil, err
			}
			items = items[:0]
		}
		batch, items = of, append(items, item)
	}
	return t.addOpen(ctx, run, batch, items, names[len(names)-len(items):], failed, open)
}

// addOpen adds those names, of steps of these items, whose items have not ended.
func (t *txn) addOpen(ctx context.Context, run pawl.RunID, batch string, items, names []string, failed bool, open []string) ([]string, error) {
	ended := make(map[string]bool, len(items)) // only those that are asked about: there may be any number between them
	for _, item := range items {
		ended[item] = false
	}
	for from, last := slices.Min(items), slices.Max(items); from != ""; {
		page, err := t.lines(ctx, selectEndedIDs, string(run), batch, from, last, failed, int64(linePage))
		if err != nil {
			return nil, err
		}
		for _, id := range page {
			if _, asked := ended[id]; asked {
				ended[id] = true
			}
		}
		from = ""
		if len(page) == linePage {
			from = page[linePage-1] // it comes again
		}
	}
	for i, item := range items {
		if !ended[item] {
			open = append(open, names[i])
		}
	}
	return open, nil
}
