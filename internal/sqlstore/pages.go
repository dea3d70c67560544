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

// A page of a journal has what most rows have; of a row that has more it has the name alone, and the row is read as it is.
//
// Through database/sql a thousand rows take many times as long to read as one that has them all, so there a page is one text: a line a
// row, with a separator that is in no name.
const (
	lineSeparator  = "\n"
	fieldSeparator = "\x1f"

	selectStepLines = `SELECT string_agg(line, '` + lineSeparator + `') FROM (SELECT CASE WHEN %s THEN concat(%s) ELSE name END AS line
FROM pawl_steps WHERE run = $1 AND name %s $2 ORDER BY name LIMIT $3) AS page`

	selectStepRows = `SELECT %s FROM pawl_steps WHERE run = $1 AND name %s $2 ORDER BY name LIMIT $3`

	selectStepsNamed = stepPage + ` WHERE run = $1 AND name IN (%s) ORDER BY name`

	selectItemNames = `SELECT string_agg(name, '` + lineSeparator + `') FROM (SELECT name FROM pawl_steps
WHERE run = $1 AND name > $2 AND name LIKE '%//%' ORDER BY name LIMIT $3) AS page`
	selectEndedIDs = `SELECT string_agg(item, '` + lineSeparator + `') FROM (SELECT item FROM pawl_items
WHERE run = $1 AND batch = $2 AND item >= $3 AND item <= $4 AND (state = 'done' OR NOT $5) ORDER BY item LIMIT $6) AS page`
)

// lineColumns are the columns that are in a line, in this order. batch and item are in the name.
var lineColumns = []string{"name", "kind", "attempt", "epoch", "worker", "begun", "ended", "latency_us", "input_hash", "value"}

// plainStep is the condition that a row has nothing else.
func plainStep() string {
	plain := []string{"state = 'succeeded'", "octet_length(value) <= 4096"}
	for _, name := range stepNames {
		if !slices.Contains(lineColumns, name) && !slices.Contains([]string{"run", "state", "batch", "item"}, name) {
			plain = append(plain, name+" IS NULL")
		}
	}
	return strings.Join(plain, " AND ")
}

// stepLines is the text of a page from a name on, or after it, stepRows its rows.
func stepLines(from string) string {
	fields := slices.Clone(lineColumns)
	for i, name := range fields {
		if name == "input_hash" || name == "value" {
			fields[i] = "{hex}" + name + "{endhex}"
		}
	}
	return fmt.Sprintf(selectStepLines, plainStep(), strings.Join(fields, ", '"+fieldSeparator+"', "), from)
}

func stepRows(from string) string {
	plain := plainStep()
	fields := append(slices.Clone(lineColumns), "CASE WHEN "+plain+" THEN state END")
	fields[len(lineColumns)-1] = "CASE WHEN octet_length(value) <= 4096 THEN value END"
	return fmt.Sprintf(selectStepRows, strings.Join(fields, ", "), from)
}

// plainDest are the fields of such a row. One that is not plain has no state.
func plainDest(s *pawl.StepRow) []any {
	return []any{&s.Name, kindField{&s.Kind}, &s.Attempt, &s.Epoch, zero(&s.Worker), zero(&s.Begun), zero(&s.Ended), microsField{&s.Usage.Latency},
		zero(&s.InputHash), zero(&s.Value), zero(&s.State)}
}

var (
	stepLinesAfter, stepLinesFrom = stepLines(">"), stepLines(">=")
	stepRowsAfter, stepRowsFrom   = stepRows(">"), stepRows(">=")
)

// Steps uses the primary key. It passes over the rows of items, batch by batch.
func (t *txn) Steps(ctx context.Context, run pawl.RunID, after string, limit int) (steps []pawl.StepRow, err error) {
	if err := t.keepSteady(ctx); err != nil { // a plan that sorts a long journal does so for each page
		return nil, fmt.Errorf("read journal of run %s: %w", run, err)
	}
	from, most := false, stepsPage
	for more := true; more && len(steps) < limit; {
		size := min(limit-len(steps), most)
		page, err := t.page(ctx, run, after, from, size)
		if err != nil {
			return nil, fmt.Errorf("read journal of run %s: %w", run, err)
		}
		from, more = false, len(page) == size
		if more {
			after = page[size-1].Name
		}
		if t.native() { // else larger texts cost more than they save
			most = limit
		}
		for i := range page {
			if batch, _ := page[i].Item(); batch != "" {
				after, from, more, most = batch+"/0", true, true, stepsPage // '0' comes after '/'
				page = page[:i]
				break
			}
		}
		if page, err = t.complete(ctx, run, page); err != nil {
			return nil, fmt.Errorf("read journal of run %s: %w", run, err)
		}
		if steps == nil {
			steps = page
		} else {
			steps = append(slices.Grow(steps, limit-len(steps)), page...)
		}
	}
	return steps, nil
}

// native reports whether rows are read past database/sql.
func (t *txn) native() bool {
	_, ok := t.c.(Eacher)
	return ok
}

// page reads plain rows, and of others the names, after a name or from it on.
func (t *txn) page(ctx context.Context, run pawl.RunID, after string, from bool, size int) (page []pawl.StepRow, err error) {
	args := []any{string(run), after, int64(size)}
	if t.native() {
		query := stepRowsAfter
		if from {
			query = stepRowsFrom
		}
		err = t.rows(ctx, query, args, collect(&page, plainDest, size))
		for i := range page {
			page[i].Run, page[i].ValueSize = run, len(page[i].Value)
		}
		return page, err
	}
	query := stepLinesAfter
	if from {
		query = stepLinesFrom
	}
	lines, err := t.lines(ctx, query, args...)
	page = make([]pawl.StepRow, len(lines))
	for i := range page {
		page[i].Run = run
		if err == nil {
			err = readLine(lines[i], &page[i])
		}
	}
	return page, err
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
	stepsPage = 100  // steps of a page
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
