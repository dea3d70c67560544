package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/sqlite"
)

func write(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// foreign makes a SQLite file of another program.
func foreign(t *testing.T, path, statement string) string {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(statement); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, c := range []struct{ name, path, want string }{
		{"no directory", filepath.Join(dir, "missing", "pawl.db"), "missing does not exist"},
		{"file as directory", filepath.Join(write(t, filepath.Join(dir, "file"), "x"), "pawl.db"), "not a directory"},
		{"a directory", dir, "directory"},
		{"not a database", write(t, filepath.Join(dir, "text"), strings.Repeat("no database ", 500)), "not a SQLite database"},
		{"damaged", write(t, filepath.Join(dir, "damaged"), "SQLite format 3\x00"+strings.Repeat("\xff", 4096)), "damaged"},
		{"another program's", foreign(t, filepath.Join(dir, "other"), "CREATE TABLE places (id INTEGER)"), "another program's database"},
		{"another application id", foreign(t, filepath.Join(dir, "id"), "PRAGMA application_id = 7"), "another program's database"},
	} {
		s, err := sqlite.Open(c.path, nil)
		if err == nil {
			t.Errorf("%s: opened", c.name)
			_ = s.Close()
			continue
		}
		if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.path) {
			t.Errorf("%s: %q, want the path and %q", c.name, err, c.want)
		}
	}
	for _, name := range []string{"empty file", "a b?c#d%20.db", "ü.db"} {
		path := filepath.Join(dir, name)
		if name == "empty file" {
			write(t, path, "")
		}
		closeStore(t, open(t, path))
		if info, err := os.Stat(path); err != nil || info.Size() == 0 {
			t.Errorf("%q: %v, want a file of that name", name, err)
		}
		open(t, path) // again
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".pawl-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func closeStore(t *testing.T, s *sqlite.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestConnectionsAreDurable(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "pawl.db"))
	for name, db := range map[string]*sql.DB{"writer": s.Writer(), "user": s.DB()} {
		for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "application_id": fmt.Sprint(0x5061776c)} {
			var got string
			if err := db.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil || got != want {
				t.Errorf("%s: %s = %s, %v; want %s", name, pragma, got, err, want)
			}
		}
	}
}

func newRun() pawl.RunRow {
	id := pawl.RunID(uuid.Must(uuid.NewV7()).String())
	return pawl.RunRow{ID: id, Lineage: id, Workflow: "w", Version: "1", KeyName: "w", Queue: "w", State: pawl.Queued}
}

var w1 = []pawl.VersionID{{Workflow: "w", Version: "1"}}

func insert(t *testing.T, s pawl.Store, n int) {
	t.Helper()
	rows := make([]pawl.RunRow, n)
	for i := range rows {
		rows[i] = newRun()
	}
	if err := s.Update(t.Context(), func(ctx context.Context, tx pawl.Txn) error { return tx.InsertRuns(ctx, rows) }); err != nil {
		t.Fatal(err)
	}
}

// Several processes work on one file: here several stores, which share nothing but the file.
func TestStoresShareAFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pawl.db")
	stores := []*sqlite.Store{open(t, path), open(t, path), open(t, path), open(t, path)}
	const total = 200
	insert(t, stores[0], total)
	var mu sync.Mutex
	taken := make(map[pawl.RunID]int)
	var wg sync.WaitGroup
	for _, s := range stores {
		w := pawl.WorkerRow{ID: pawl.WorkerID(uuid.NewString()), Lease: time.Hour}
		if err := s.Register(t.Context(), w, w1); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for {
				got, err := s.Claim(t.Context(), pawl.Claim{Worker: w.ID, Has: w1, Limit: 3, Token: 1, Expired: true})
				if err != nil {
					t.Error(err)
					return
				}
				if len(got) == 0 {
					return
				}
				if _, err := s.Heartbeat(t.Context(), w); err != nil {
					t.Error(err)
				}
				mu.Lock()
				for _, c := range got {
					taken[c.Row.ID]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(taken) != total {
		t.Errorf("%d runs were taken, want %d", len(taken), total)
	}
	for id, n := range taken {
		if n != 1 {
			t.Errorf("run %s was taken %d times", id, n)
		}
	}
}

// A file that another process keeps locked for longer than a statement waits: Update begins again until it is free.
func TestUpdateOutwaitsALock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pawl.db")
	s := open(t, path)
	if _, err := s.Writer().ExecContext(t.Context(), "PRAGMA busy_timeout = 1"); err != nil { // the pool's only connection
		t.Fatal(err)
	}
	holder := open(t, path)
	tx, err := holder.Writer().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = s.Update(short, func(context.Context, pawl.Txn) error { t.Error("fn ran without the lock"); return nil })
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, pawl.ErrCommitUnknown) {
		t.Errorf("Update while the file is locked = %v, want the context's end", err)
	}
	done := make(chan error, 1)
	go func() {
		done <- s.Update(t.Context(), func(ctx context.Context, tx pawl.Txn) error { return tx.InsertRuns(ctx, []pawl.RunRow{newRun()}) })
	}()
	select {
	case err := <-done:
		t.Errorf("Update = %v while the file was locked", err)
	case <-time.After(50 * time.Millisecond): // time to be refused a few times
	}
	if err := tx.Rollback(); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Errorf("Update after the lock was given back = %v", err)
	}
}

// In a bubble the bubble's clock rules due times and, with WallLease, leases.
func TestBubble(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pawl.db")
	synctest.Test(t, func(t *testing.T) {
		s, err := sqlite.Open(path, &sqlite.Options{Hooks: &hooks.Store{WallLease: true}})
		if err != nil {
			t.Fatal(err)
		}
		defer closeStore(t, s)
		lost := pawl.WorkerRow{ID: pawl.WorkerID(uuid.NewString()), Lease: time.Minute}
		other := pawl.WorkerRow{ID: pawl.WorkerID(uuid.NewString()), Lease: 24 * time.Hour}
		if err := errors.Join(s.Register(t.Context(), lost, w1), s.Register(t.Context(), other, w1)); err != nil {
			t.Fatal(err)
		}
		row := newRun()
		row.Due = time.Now().Add(time.Hour).UnixMicro()
		if err := s.Update(t.Context(), func(ctx context.Context, tx pawl.Txn) error { return tx.InsertRuns(ctx, []pawl.RunRow{row}) }); err != nil {
			t.Fatal(err)
		}
		claim := func(w pawl.WorkerID) int {
			got, err := s.Claim(t.Context(), pawl.Claim{Worker: w, Has: w1, Limit: 1, Token: 1, Expired: true})
			if err != nil {
				t.Fatal(err)
			}
			return len(got)
		}
		if in, known, err := s.Due(t.Context(), lost.ID); !known || err != nil || in != time.Hour {
			t.Errorf("Due = %v, %t, %v; want exactly an hour", in, known, err)
		}
		if n := claim(lost.ID); n != 0 {
			t.Error("taken an hour early")
		}
		time.Sleep(time.Hour) // bubble
		if n := claim(lost.ID); n != 1 {
			t.Error("not taken after an hour")
		}
		if _, err := s.Heartbeat(t.Context(), lost); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // bubble
		if n := claim(other.ID); n != 0 {
			t.Error("taken at the lease's last microsecond")
		}
		time.Sleep(time.Microsecond) // bubble
		if n := claim(other.ID); n != 1 {
			t.Error("not taken after the lease")
		}
	})
}

func TestMemory(t *testing.T) {
	t.Parallel()
	a, b := open(t, ":memory:"), open(t, ":memory:")
	insert(t, a, 3)
	for s, want := range map[*sqlite.Store]int{a: 3, b: 0} {
		rows, err := s.ListRuns(t.Context(), pawl.RunQuery{})
		if err != nil || len(rows) != want {
			t.Errorf("%d runs, %v; want %d: each has a database of its own", len(rows), err, want)
		}
	}
	if _, err := a.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// The user's pool is on the same file and has the store's clock.
func TestUserPool(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "pawl.db"))
	row := newRun()
	tx, err := s.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.On(pawl.SQLConn(tx)).InsertRuns(t.Context(), []pawl.RunRow{row}); err != nil {
		t.Error(err)
	}
	if rows, err := s.ListRuns(t.Context(), pawl.RunQuery{}); err != nil || len(rows) != 0 {
		t.Errorf("before the commit %d runs, %v; want none", len(rows), err)
	}
	if err := tx.Commit(); err != nil {
		t.Error(err)
	}
	if rows, err := s.ListRuns(t.Context(), pawl.RunQuery{}); err != nil || len(rows) != 1 || rows[0].Created == 0 {
		t.Errorf("after the commit %+v, %v; want the run", rows, err)
	}
}

// A process whose transactions follow each other closely leaves gaps in which another one gets the lock: without them
// that one would ask for ever at the wrong moments.
func TestBusyProcessLeavesGaps(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pawl.db")
	busy, other := open(t, path), open(t, path)
	w := pawl.WorkerRow{ID: pawl.WorkerID(uuid.NewString()), Lease: time.Hour}
	if err := other.Register(t.Context(), w, w1); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	begun := make(chan struct{}, 1)
	var n atomic.Int64
	done := make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			err := busy.UpdateSQL(t.Context(), time.Minute, func(context.Context, pawl.Txn, *sql.Tx) error {
				select {
				case begun <- struct{}{}:
				default:
				}
				<-time.After(50 * time.Millisecond) // holds the lock
				return nil
			})
			if n.Add(1); err != nil {
				done <- err
				return
			}
		}
	}()
	<-begun
	const beats = 5
	for range beats {
		if _, err := other.Heartbeat(t.Context(), w); err != nil {
			t.Error(err)
		}
	}
	if took := n.Load(); took > 12*beats {
		t.Errorf("%d renewals waited for %d transactions of another process, want at most 12 each", beats, took)
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// What deleted runs took up is given back to the system, in bounded steps, down to what is kept for new ones; a file that was
// made otherwise says so.
func TestSpaceIsGivenBack(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pawl.db")
	s, err := sqlite.Open(path, &sqlite.Options{Hooks: &hooks.Store{Offset: true}})
	if err != nil {
		t.Fatal(err)
	}
	rows := make([]pawl.RunRow, 2000)
	for i := range rows {
		rows[i] = newRun()
		rows[i].State, rows[i].Ended, rows[i].Input = pawl.Succeeded, time.Now().UnixMicro(), []byte(strings.Repeat("x", 9000))
	}
	if err := s.Update(t.Context(), func(ctx context.Context, tx pawl.Txn) error { return tx.InsertRuns(ctx, rows) }); err != nil {
		t.Fatal(err)
	}
	if _, err := s.DB().ExecContext(t.Context(), "UPDATE pawl_test_clock SET offset_us = offset_us + 7200000000"); err != nil {
		t.Fatal(err)
	}
	pages := func(pragma string) (n int) {
		if err := s.Writer().QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := pages("page_count")
	for p := (pawl.PruneTerms{Runs: time.Hour}); ; {
		had := pages("page_count")
		got, err := s.Prune(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if left := had - pages("page_count"); left > 505 { // a page that says where others belong goes with them
			t.Errorf("one call gave back %d pages, want about 500 at most", left)
		}
		if p.After = got.Next; !got.More && got.Next == "" {
			break
		}
	}
	if after, free := pages("page_count"), pages("freelist_count"); after > before/4 || free > 256 {
		t.Errorf("%d of %d pages are left, %d of them free; want at most a quarter, 256 of them free", after, before, free)
	}
	if text := findings(t, s); strings.Contains(text, "never gets smaller") {
		t.Errorf("findings: %s", text)
	}
	if _, err := s.Writer().ExecContext(t.Context(), "PRAGMA auto_vacuum = NONE; VACUUM"); err != nil {
		t.Fatal(err)
	}
	if text := findings(t, s); !strings.Contains(text, "never gets smaller") {
		t.Errorf("findings on a file without incremental vacuum: %q", text)
	}
	if got, err := s.Prune(t.Context(), pawl.PruneTerms{Runs: time.Hour}); err != nil || got != (pawl.Pruned{}) {
		t.Errorf("Prune on such a file = %+v, %v", got, err)
	}
	closeStore(t, s)
	if info, err := os.Stat(path); err != nil || info.Size() > int64(before)*4096/4 {
		t.Errorf("the file has %d bytes, %v; it had %d pages", info.Size(), err, before)
	}
}

func findings(t *testing.T, s *sqlite.Store) (text string) {
	t.Helper()
	found, err := s.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		text += f.Text + "\n"
	}
	return text
}

// Whoever changes a run, past the store even, ends the claim that the store has just written by.
func TestClaimLostBehindTheStore(t *testing.T) {
	t.Parallel()
	const lose = `UPDATE pawl_runs SET epoch = epoch + 1`
	exec := func(db *sql.DB) error {
		_, err := db.Exec(lose)
		return err
	}
	for name, c := range map[string]struct {
		path string
		lose func(path string, s *sqlite.Store) error
	}{
		"another process":      {"pawl.db", func(path string, _ *sqlite.Store) error { return exec(open(t, path).DB()) }},
		"the user's pool":      {"pawl.db", func(_ string, s *sqlite.Store) error { return exec(s.DB()) }},
		"the pool that writes": {"pawl.db", func(_ string, s *sqlite.Store) error { return exec(s.Writer()) }},
		"a database in memory": {":memory:", func(_ string, s *sqlite.Store) error { return exec(s.DB()) }},
		"a transaction, memory": {":memory:", func(_ string, s *sqlite.Store) error {
			tx, err := s.DB().Begin()
			if err != nil {
				return err
			}
			_, err = tx.Exec(lose)
			return errors.Join(err, tx.Commit())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			path := c.path
			if path != ":memory:" {
				path = filepath.Join(t.TempDir(), path)
			}
			ok := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			s := open(t, path)
			w := pawl.WorkerRow{ID: pawl.WorkerID(uuid.NewString()), Lease: time.Minute}
			ok(s.Register(t.Context(), w, w1))
			insert(t, s, 1)
			got, err := s.Claim(t.Context(), pawl.Claim{Worker: w.ID, Has: w1, Limit: 1, Token: 7})
			ok(err)
			write := func(name string) error {
				run := got[0].Row
				_, err := s.Write(t.Context(), []pawl.Change{{Run: run.ID, Epoch: run.Epoch, Token: run.Token, Insert: []*pawl.StepRow{
					{Run: run.ID, Name: name, Kind: fault.KindRepeatable, State: pawl.StepSucceeded, Attempt: 1, Epoch: 1}}}})
				return err
			}
			ok(write("a"))
			ok(write("b"))
			ok(c.lose(path, s))
			if err := write("c"); !errors.Is(err, pawl.ErrOneByOne) {
				t.Errorf("Write = %v, want ErrOneByOne", err)
			}
		})
	}
}
