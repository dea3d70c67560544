package storetest

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
)

var txRules = []rule{
	{"commit", "Update commits if fn returns nil and otherwise writes nothing, whatever the error", testCommit},
	{"panic", "a panic in fn rolls the transaction back and goes on", testPanic},
	{"cancelled", "Update does not commit for a context that has ended", testCancelled},
	{"first_error", "the error of fn comes back as it is, also after the transaction has broken", testFirstError},
	{"user", "UpdateSQL hands out the transaction that the row operations are in", testUser},
	{"on", "On works inside the caller's transaction and neither commits nor rolls back", testOn},
	{"fence", "a locked run makes a rival wait, who then reads the epoch as it was committed", testFence},
	{"snapshot", "a View sees one snapshot, however long it takes", testSnapshot},
	{"clock", "times are microseconds by the store's clock and move with it", testClock},
	{"restored", "SetRestored notes the time, which is 0 before", testRestored},
	{"namespace", "a database has a namespace of its own that stays", testNamespace},
}

var errTest = errors.New("test error")

func testCommit(t *testing.T, f *fixture) {
	row := newRun()
	err := f.s.Update(f.ctx(), func(ctx context.Context, tx pawl.Txn) error {
		if err := tx.InsertRuns(ctx, []pawl.RunRow{row}); err != nil {
			return err
		}
		return errTest
	})
	if !errors.Is(err, errTest) {
		t.Errorf("Update = %v, want the error of fn", err)
	}
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		if _, err := tx.LockRun(ctx, row.ID); !errors.Is(err, pawl.ErrNotFound) {
			t.Errorf("after an error LockRun = %v, want ErrNotFound", err)
		}
		return nil
	})
	f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.InsertRuns(ctx, []pawl.RunRow{row}) })
	if got := f.row(row.ID); got.State != pawl.Queued {
		t.Errorf("after the commit the run is %s, want queued", got.State)
	}
}

func testPanic(t *testing.T, f *fixture) {
	row := newRun()
	func() {
		defer func() {
			if got := recover(); got != "boom" {
				t.Errorf("recovered %v, want the panic of fn", got)
			}
		}()
		_ = f.s.Update(f.ctx(), func(ctx context.Context, tx pawl.Txn) error {
			if err := tx.InsertRuns(ctx, []pawl.RunRow{row}); err != nil {
				return err
			}
			panic("boom") //nolint:forbidigo // what this test is about
		})
	}()
	f.update(func(ctx context.Context, tx pawl.Txn) error { // the connection is free again
		if _, err := tx.LockRun(ctx, row.ID); !errors.Is(err, pawl.ErrNotFound) {
			t.Errorf("after a panic LockRun = %v, want ErrNotFound", err)
		}
		return nil
	})
}

func testCancelled(t *testing.T, f *fixture) {
	row := newRun()
	ctx, cancel := context.WithCancelCause(f.ctx())
	err := f.s.Update(ctx, func(ctx context.Context, tx pawl.Txn) error {
		if err := tx.InsertRuns(ctx, []pawl.RunRow{row}); err != nil {
			return err
		}
		cancel(errTest)
		return nil
	})
	if !errors.Is(err, errTest) {
		t.Errorf("Update = %v, want the cause of the context's end", err)
	}
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		if _, err := tx.LockRun(ctx, row.ID); !errors.Is(err, pawl.ErrNotFound) {
			t.Errorf("LockRun = %v, want ErrNotFound", err)
		}
		return nil
	})
}

func testFirstError(t *testing.T, f *fixture) {
	err := f.s.UpdateSQL(f.ctx(), time.Minute, func(ctx context.Context, _ pawl.Txn, user *sql.Tx) error {
		if _, err := user.ExecContext(ctx, "SELECT nonsense FROM nowhere"); err == nil {
			t.Error("a query of a table that is not there gave no error")
		}
		return errTest
	})
	if !errors.Is(err, errTest) {
		t.Errorf("Update = %v, want the error of fn", err)
	}
}

func testUser(t *testing.T, f *fixture) {
	row := newRun()
	f.exec(`CREATE TABLE mine (n BIGINT)`)
	err := f.s.UpdateSQL(f.ctx(), time.Minute, func(ctx context.Context, tx pawl.Txn, user *sql.Tx) error {
		if err := tx.InsertRuns(ctx, []pawl.RunRow{row}); err != nil {
			return err
		}
		var n int
		if err := user.QueryRowContext(ctx, `SELECT count(*) FROM pawl_runs WHERE id = $1`, string(row.ID)).Scan(&n); err != nil {
			return err
		}
		if n != 1 {
			t.Error("the user's transaction does not see the run that was inserted in it")
		}
		if _, err := user.ExecContext(ctx, `INSERT INTO mine VALUES (1)`); err != nil {
			return err
		}
		return errTest
	})
	if !errors.Is(err, errTest) {
		t.Errorf("UpdateSQL = %v", err)
	}
	if n := f.text(`SELECT CAST(count(*) AS TEXT) FROM mine`); n != "0" {
		t.Errorf("%s of the user's rows outlived the rollback, want 0", n)
	}
}

func testOn(t *testing.T, f *fixture) {
	row := newRun()
	err := f.s.UpdateSQL(f.ctx(), time.Minute, func(ctx context.Context, _ pawl.Txn, user *sql.Tx) error {
		tx := f.s.On(pawl.SQLConn(user))
		if err := tx.InsertRuns(ctx, []pawl.RunRow{row}); err != nil {
			return err
		}
		got, err := tx.LockRun(ctx, row.ID)
		if err == nil && got.State != pawl.Queued {
			t.Errorf("inside the transaction the run is %s, want queued", got.State)
		}
		return errors.Join(err, errTest)
	})
	if !errors.Is(err, errTest) {
		t.Errorf("UpdateSQL = %v", err)
	}
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		if _, err := tx.LockRun(ctx, row.ID); !errors.Is(err, pawl.ErrNotFound) {
			t.Errorf("after the caller's rollback LockRun = %v, want ErrNotFound", err)
		}
		return nil
	})
}

func testFence(t *testing.T, f *fixture) {
	run, _ := f.running(time.Minute)
	locked, done := make(chan struct{}), make(chan int64, 1)
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		row, err := tx.LockRun(ctx, run.ID)
		if err != nil {
			return err
		}
		go func() {
			close(locked)
			var epoch int64
			err := f.s.Update(f.ctx(), func(ctx context.Context, tx pawl.Txn) error {
				row, err := tx.LockRun(ctx, run.ID)
				if err == nil {
					epoch = row.Epoch
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
			done <- epoch
		}()
		<-locked
		select {
		case <-done:
			t.Error("the rival got the lock while this transaction held it")
		case <-time.After(100 * time.Millisecond): // time for the rival to get it wrong
		}
		row.Epoch += 5
		return tx.SaveRun(ctx, row)
	})
	if got, want := <-done, run.Epoch+5; got != want {
		t.Errorf("the rival read epoch %d under its lock, want %d", got, want)
	}
}

func testSnapshot(t *testing.T, f *fixture) {
	first := f.runs(1)[0]
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		before, err := tx.LockRun(ctx, first.ID)
		if err != nil {
			return err
		}
		second := newRun()
		f.ok(f.s.Update(f.ctx(), func(ctx context.Context, tx pawl.Txn) error {
			row, err := tx.LockRun(ctx, first.ID)
			if err != nil {
				return err
			}
			row.Epoch = 9
			return errors.Join(tx.SaveRun(ctx, row), tx.InsertRuns(ctx, []pawl.RunRow{second}))
		}))
		after, err := tx.LockRun(ctx, first.ID)
		if err != nil {
			return err
		}
		if after.Epoch != before.Epoch {
			t.Errorf("the epoch changed from %d to %d inside a View", before.Epoch, after.Epoch)
		}
		if _, err := tx.LockRun(ctx, second.ID); !errors.Is(err, pawl.ErrNotFound) {
			t.Errorf("a run that was added during the View: %v, want ErrNotFound", err)
		}
		return nil
	})
}

func testClock(t *testing.T, f *fixture) {
	wall := time.Now().UnixMicro()
	first := f.now()
	if diff := time.Duration(first-wall) * time.Microsecond; diff.Abs() > time.Minute {
		t.Errorf("the store's clock is %v off the wall clock: not microseconds of UTC?", diff)
	}
	f.advance(time.Hour)
	if moved := time.Duration(f.now()-first) * time.Microsecond; moved < time.Hour || moved > time.Hour+time.Minute {
		t.Errorf("after an hour the clock has moved by %v", moved)
	}
	f.update(func(ctx context.Context, tx pawl.Txn) error { // not the time of the transaction's begin
		before, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		for range 1000 {
			if after, err := tx.Now(ctx); err != nil || after > before {
				return err
			}
		}
		t.Error("the clock stands still inside a transaction")
		return nil
	})
}

func testNamespace(t *testing.T, f *fixture) {
	read := func() (ns string) {
		f.view(func(ctx context.Context, tx pawl.Txn) (err error) {
			ns, err = tx.Namespace(ctx)
			return err
		})
		return ns
	}
	if a, b := read(), read(); a != b || len(a) < 16 {
		t.Errorf("namespaces %q and %q: want one, of at least 16 characters", a, b)
	}
}

func testRestored(t *testing.T, f *fixture) {
	read := func() (at int64) {
		f.view(func(ctx context.Context, tx pawl.Txn) (err error) {
			at, err = tx.Restored(ctx)
			return err
		})
		return at
	}
	if at := read(); at != 0 {
		t.Errorf("restored at %d before anybody said so", at)
	}
	before := f.now()
	f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.SetRestored(ctx) })
	if at, now := read(), f.now(); at < before || at > now {
		t.Errorf("restored at %d, want between %d and %d", at, before, now)
	}
}
