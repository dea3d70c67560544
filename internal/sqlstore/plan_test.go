package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/pgset"
	"github.com/pawlrun/pawl/internal/pgtest"
	"github.com/pawlrun/pawl/internal/sqlstore"
	"github.com/pawlrun/pawl/postgres"
	"github.com/pawlrun/pawl/sqlite"
)

// TestPlans looks at how each hot statement is executed while the tables are empty, tiny and large. A statement that is
// planned on an empty table keeps its plan, so all three have to be right.
func TestPlans(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		s, err := sqlite.Open(filepath.Join(t.TempDir(), "pawl.db"), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer closed(t, s)
		plans(t, s.Store, 4_000, explainSQLite) // its statistics say as much as of more, and the race detector makes it slow
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		s, err := postgres.Open(t.Context(), pgtest.URL(t), &postgres.Options{Migrate: true})
		if err != nil {
			t.Fatal(err)
		}
		defer closed(t, s)
		plans(t, s.Store, 20_000, explainPostgres)
	})
}

func closed(t *testing.T, s interface{ Close() error }) {
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// explain returns the lines of a plan, and what is wrong with it.
type explain func(t *testing.T, conn *sql.Conn, hot sqlstore.Hot) (lines []string, wrong string)

func plans(t *testing.T, s *sqlstore.Store, large int, explain explain) {
	conn, err := s.Writer().Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, conn)
	check := func(when string) {
		for _, hot := range s.Hot() {
			if lines, wrong := explain(t, conn, hot); wrong != "" {
				t.Errorf("%s tables, statement %q: %s; want a look-up by %s_%s:\n%s", when, hot.Name, wrong, hot.Table, hot.Index, strings.Join(lines, "\n"))
			}
		}
	}
	check("empty")
	fill(t, s, conn, 3)
	check("tiny")
	fill(t, s, conn, large)
	check("large")
}

// fill adds n finished runs, some with three steps, a product key and an act each, and a few live ones, and lets the planner
// know.
func fill(t *testing.T, s *sqlstore.Store, conn *sql.Conn, n int) {
	t.Helper()
	tx, err := conn.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	rows := make([]pawl.RunRow, n)
	for i := range rows {
		id := pawl.RunID(uuid.Must(uuid.NewV7()).String())
		rows[i] = pawl.RunRow{ID: id, Lineage: id, Workflow: "refund", Version: strconv.Itoa(i % 3), KeyName: "refund", Queue: "refund",
			State: pawl.Succeeded, Ended: int64(i + 1), Input: []byte(`{"some":"input"}`)}
		if i%100 == 0 {
			rows[i].State, rows[i].Ended = pawl.Queued, 0
		}
	}
	on := s.On(pawl.SQLConn(tx))
	if err := on.InsertRuns(t.Context(), rows); err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		for k := range 3 {
			if i%20 == 0 || i < 3 { // enough
				step := pawl.StepRow{Run: rows[i].ID, Name: fmt.Sprint(k), Kind: fault.KindRepeatable, State: pawl.StepSucceeded, Attempt: 1, Value: []byte(`"value"`)}
				if err := on.InsertStep(t.Context(), &step); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for i := range rows {
		if i%20 != 0 && i >= 3 {
			continue
		}
		key := pawl.KeyRow{KeyName: "refund", Key: pawl.Key(rows[i].ID), Lineage: rows[i].ID}
		if _, _, err := on.ClaimKey(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		topic := pawl.Topic{Event: "paid", About: pawl.Key("order:" + strconv.Itoa(i%7))}
		ev := pawl.EventRow{Topic: topic, Hash: []byte("h"), Value: []byte(`"v"`)}
		if i%40 == 0 {
			ev.ID = string(rows[i].ID)
		}
		for _, err := range []error{on.AddEvent(t.Context(), &ev), on.TakeEvent(t.Context(), &ev, &rows[i]),
			on.OpenAwait(t.Context(), topic, rows[i].ID, "wait")} {
			if err != nil {
				t.Fatal(err)
			}
		}
		s := pawl.ScheduleRow{Name: string(rows[i].ID), Workflow: "refund", Version: rows[i].Version, Spec: []byte("{}"), Overlap: pawl.OverlapSkip, Due: int64(i + 1)}
		if i%400 == 0 {
			s.Buffered, s.Blocker = 1, rows[i].ID
		}
		if _, err := on.InsertSchedule(t.Context(), &s); err != nil {
			t.Fatal(err)
		}
		var past []pawl.OccurrenceRow
		for at := range int64(20) {
			past = append(past, pawl.OccurrenceRow{Schedule: s.Name, At: at + 1, Count: 1, State: pawl.OccurrenceSkipped})
		}
		past[0].Until, past[0].Spec, past[1].Key = 5, []byte("{}"), "key"
		past[19].State, past[19].Run, past[19].Open = pawl.OccurrenceStarted, rows[i].ID, true
		if _, err := on.AddOccurrences(t.Context(), past); err != nil {
			t.Fatal(err)
		}
		if err := on.AddAudit(t.Context(), &pawl.AuditRow{Act: "cancel", By: "ann", Run: rows[i].ID}); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ExecContext(t.Context(), "ANALYZE"); err != nil {
		t.Fatal(err)
	}
}

var param = regexp.MustCompile(`\$(\d+)`)

func params(text string) (n int) {
	for _, m := range param.FindAllStringSubmatch(text, -1) {
		i, _ := strconv.Atoi(m[1])
		n = max(n, i)
	}
	return n
}

func query(t *testing.T, conn *sql.Conn, column int, text string, args ...any) (lines []string) {
	t.Helper()
	rows, err := conn.QueryContext(context.WithoutCancel(t.Context()), text, args...)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	defer func() { _ = rows.Close() }()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		dest := make([]any, len(columns))
		for i := range dest {
			dest[i] = new(any)
		}
		if err := rows.Scan(dest...); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprint(*dest[column].(*any)))
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return lines
}

// In SQLite's plans a full read is SCAN and a look-up SEARCH. Tables stand there under their alias.
var sqliteScan = regexp.MustCompile(`^SCAN (pawl_runs|pawl_steps|pawl_attempts|pawl_inbox|pawl_evidence|pawl_keys|pawl_audit|pawl_calls|pawl_events|pawl_takings|pawl_awaits|pawl_schedules|pawl_occurrences|r|s|e|k|a|c|p|o)\b`)

func explainSQLite(t *testing.T, conn *sql.Conn, hot sqlstore.Hot) (lines []string, wrong string) {
	lines = query(t, conn, 3, "EXPLAIN QUERY PLAN "+hot.Text, make([]any, params(hot.Text))...)
	index := hot.Table + "_" + hot.Index
	if hot.Index == "pkey" || hot.Index == "row" {
		index = "sqlite_autoindex_" + hot.Table + "_1"
	}
	found := hot.Index == ""
	for _, line := range lines {
		if sqliteScan.MatchString(line) && hot.Name != "live runs" && !strings.Contains(line, "pawl_inbox_todo") {
			return lines, "a scan"
		}
		found = found || strings.Contains(line, index) || hot.Index == "pkey" && strings.Contains(line, "USING PRIMARY KEY") // of a clustered table
	}
	if !found {
		return lines, "another index"
	}
	return lines, ""
}

// A list of more than two words becomes a temporary index, anew each time that the statement runs.
func TestWritesMakeNoTemporaryIndex(t *testing.T) {
	t.Parallel()
	s, err := sqlite.Open(filepath.Join(t.TempDir(), "pawl.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, s)
	conn, err := s.Writer().Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, conn)
	for name, text := range s.RowTexts() {
		if code := query(t, conn, 1, "EXPLAIN "+text, make([]any, params(text))...); slices.Contains(code, "OpenEphemeral") || !slices.Contains(code, "Halt") {
			t.Errorf("%s opens a temporary index, or is no program: %v", name, code)
		}
	}
}

// Tables that have a row for each worker, open question, or queue with settings.
var smallTable = regexp.MustCompile(`on pawl_(worker|inbox|queues|ways)`)

var pgIndexScan = regexp.MustCompile(`Index (Only )?Scan( Backward)? using \w+ on (pawl_runs|pawl_steps|pawl_calls|pawl_events|pawl_takings|pawl_awaits|pawl_schedules|pawl_occurrences)`)

func explainPostgres(t *testing.T, conn *sql.Conn, hot sqlstore.Hot) (lines []string, wrong string) {
	exec := func(text string) {
		if _, err := conn.ExecContext(t.Context(), text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	exec("BEGIN")
	defer exec("ROLLBACK")
	exec("SET plan_cache_mode = force_generic_plan")
	if hot.Sent { // whatever the connection has: its own settings must do
		exec("SET enable_seqscan = on")
		exec("SELECT " + pgset.SetHot)
	}
	exec("PREPARE hot AS " + hot.Text)
	defer exec("DEALLOCATE hot")
	nulls := strings.TrimSuffix(strings.Repeat("NULL, ", params(hot.Text)), ", ")
	if nulls != "" {
		nulls = "(" + nulls + ")"
	}
	lines = query(t, conn, 0, "EXPLAIN (COSTS OFF) EXECUTE hot"+nulls)
	index := hot.Table + "_" + hot.Index
	if hot.Index == "row" {
		index = "TID Cond"
	}
	found := hot.Index == ""
	for i, line := range lines {
		switch {
		case strings.Contains(line, "Seq Scan on pawl_") && !smallTable.MatchString(line):
			return lines, "a sequential scan"
		case pgIndexScan.MatchString(line) && hot.Name != "live runs" && (i+1 == len(lines) || !strings.Contains(lines[i+1], "Index Cond")) &&
			!strings.Contains(line, "pawl_runs_claim"): // the first version in order needs no condition
			return lines, "a scan of a whole index"
		}
		found = found || strings.Contains(line, index)
	}
	if !found {
		return lines, "another index"
	}
	return lines, ""
}

// A journal is read with a plan that does not depend on what is known of the table when it is made: one that sorts the whole
// journal would do so for each page.
func TestJournalsAreReadWithASteadyPlan(t *testing.T) {
	t.Parallel()
	s, err := postgres.Open(t.Context(), pgtest.URL(t), &postgres.Options{Migrate: true})
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, s)
	err = s.View(t.Context(), func(ctx context.Context, tx pawl.Txn) error {
		if _, err := tx.Steps(ctx, pawl.RunID(uuid.Must(uuid.NewV7()).String()), "", 10); err != nil {
			return err
		}
		mode, err := sqlstore.Setting(ctx, tx, "plan_cache_mode")
		if mode != "force_generic_plan" {
			t.Errorf("plan_cache_mode is %q", mode)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
