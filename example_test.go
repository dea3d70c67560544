package pawl_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/sqlite"
)

// open gives an engine on a new SQLite file, with a worker that runs until shut is called.
func open(defs ...pawl.Definition) (e *pawl.Engine, db *sql.DB, shut func()) {
	dir, err := os.MkdirTemp("", "pawl-example-")
	if err != nil {
		panic(err)
	}
	store, err := sqlite.Open(filepath.Join(dir, "pawl.db"), nil)
	if err != nil {
		panic(err)
	}
	e, err = pawl.New(store, &pawl.Options{Logger: slog.New(slog.DiscardHandler), Poll: 20 * time.Millisecond}, defs...)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Work(ctx) }()
	return e, store.DB(), func() {
		cancel()
		if err := errors.Join(<-done, store.Close(), os.RemoveAll(dir)); err != nil {
			panic(err)
		}
	}
}

// A workflow is a function whose steps have names. Starting it again with the same key finds the run.
func Example() {
	greet := pawl.Define("greet", "v1", func(run *pawl.Run, name string) (string, error) {
		return pawl.Repeatable(run, "compose", name, func(_ context.Context, name string) (string, error) {
			fmt.Println("composing for", name)
			return "Hello, " + name, nil
		})
	})
	e, _, shut := open(greet)
	defer shut()
	ctx := context.Background()

	for range 2 {
		run, err := greet.Start(ctx, e, "Ada", pawl.Key("guest:ada"))
		if err != nil {
			fmt.Println(err)
			return
		}
		text, err := run.Result(ctx)
		fmt.Println(text, err, "new:", run.New())
	}
	// Output:
	// composing for Ada
	// Hello, Ada <nil> new: true
	// Hello, Ada <nil> new: false
}

// A reading that failed for a reason that passes is tried again.
func ExampleRepeatable() {
	tries := 0
	read := func(_ context.Context, id string) (int, error) {
		if tries++; tries < 3 {
			return 0, fault.NotSent(errors.New("the service is starting"))
		}
		return len(id), nil
	}
	w := pawl.Define("count", "v1", func(run *pawl.Run, id string) (int, error) {
		return pawl.Repeatable(run, "read", id, read, pawl.Retry(pawl.RetryPolicy{Attempts: 5, First: time.Millisecond}))
	})
	e, _, shut := open(w)
	defer shut()

	run, err := w.Start(context.Background(), e, "abc")
	if err != nil {
		fmt.Println(err)
		return
	}
	n, err := run.Result(context.Background())
	fmt.Println(n, err, "after", tries, "attempts")
	// Output: 3 <nil> after 3 attempts
}

// The key is the same for every attempt, resume and manual retry of the step, so the far end can tell a repetition.
func ExampleKeyed() {
	orders := map[pawl.OpKey]string{} // what the far end remembers
	order := func(_ context.Context, key pawl.OpKey, item string) (string, error) {
		if no, seen := orders[key]; seen {
			return no, nil
		}
		orders[key] = "order of a " + item
		return "", errors.New("the answer was lost") // nobody recognises it: it may have happened
	}
	w := pawl.Define("buy", "v1", func(run *pawl.Run, item string) (string, error) {
		return pawl.Keyed(run, "order", item, order, pawl.Retry(pawl.RetryPolicy{First: time.Millisecond}))
	})
	e, _, shut := open(w)
	defer shut()

	run, err := w.Start(context.Background(), e, "lamp", pawl.Key("cart:7"))
	if err != nil {
		fmt.Println(err)
		return
	}
	no, err := run.Result(context.Background())
	fmt.Println(no, err, "orders:", len(orders))
	// Output: order of a lamp <nil> orders: 1
}

// What the callback writes and the step's journal row commit together.
func ExampleTx() {
	w := pawl.Define("book", "v1", func(run *pawl.Run, cents int) (int, error) {
		return pawl.Tx(run, "entry", cents, func(ctx context.Context, tx *sql.Tx, cents int) (balance int, err error) {
			if _, err := tx.ExecContext(ctx, `INSERT INTO ledger VALUES ($1)`, cents); err != nil {
				return 0, err
			}
			return balance, tx.QueryRowContext(ctx, `SELECT sum(cents) FROM ledger`).Scan(&balance)
		})
	})
	e, db, shut := open(w)
	defer shut()
	ctx := context.Background()
	if _, err := db.ExecContext(ctx, `CREATE TABLE ledger (cents INTEGER)`); err != nil {
		fmt.Println(err)
		return
	}

	run, err := w.Start(ctx, e, 250)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(run.Result(ctx))
	// Output: 250 <nil>
}

// Nobody knows whether the message left. It is not sent again: the inbox asks, and a person who has looked answers.
func ExampleOnce() {
	sent := 0
	w := pawl.Define("notify", "v1", func(run *pawl.Run, to string) (string, error) {
		return pawl.Once(run, "send", to, func(_ context.Context, it pawl.Intent, to string) (string, error) {
			sent++
			return "", errors.New("connection closed before the reply")
		})
	})
	e, _, shut := open(w)
	defer shut()
	ctx := context.Background()

	run, err := w.Start(ctx, e, "ada@example.com")
	if err != nil {
		fmt.Println(err)
		return
	}
	var open []pawl.Entry
	for len(open) == 0 && err == nil {
		open, _, err = e.Inbox(ctx, pawl.InboxQuery{Run: run.ID()})
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("asked about:", open[0].Step, string(open[0].Input), open[0].Choices)

	err = e.Resolve(ctx, pawl.Answer{Entry: open[0].ID, Attempt: open[0].Attempt, Choice: pawl.AnswerHappened,
		Result: []byte(`"queued as 17"`), By: "mia", Reason: "found it in Sent"})
	if err != nil {
		fmt.Println(err)
		return
	}
	id, err := run.Result(ctx)
	fmt.Println(id, err, "sent:", sent)
	// Output:
	// asked about: send "ada@example.com" [happened did_not_happen give_up]
	// queued as 17 <nil> sent: 1
}

// The steps of a loop are named by the item, not by its position.
func ExampleRun_Item() {
	w := pawl.Define("import", "v1", func(run *pawl.Run, ids []string) (int, error) {
		total := 0
		for _, id := range ids {
			n, err := pawl.Repeatable(run.Item(id), "fetch", id, func(_ context.Context, id string) (int, error) { return len(id), nil })
			if err != nil {
				return 0, err
			}
			total += n
		}
		return total, nil
	})
	e, _, shut := open(w)
	defer shut()
	ctx := context.Background()

	run, err := w.Start(ctx, e, []string{"a", "bcd"})
	if err != nil {
		fmt.Println(err)
		return
	}
	total, err := run.Result(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	d, err := e.Show(ctx, run.ID())
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, s := range d.Steps {
		fmt.Println(s.Name, s.Kind, s.State)
	}
	fmt.Println(total)
	// Unordered output:
	// a/fetch repeatable succeeded
	// bcd/fetch repeatable succeeded
	// 4
}

// A failed run stays as it is. Its retry is a new run that inherits what is finished; the plan is shown first.
func ExampleEngine_Retry() {
	closed := true
	w := pawl.Define("deliver", "v1", func(run *pawl.Run, parcel string) (string, error) {
		if err := pawl.RepeatableDo(run, "weigh", parcel, func(context.Context, string) error {
			fmt.Println("weighing")
			return nil
		}); err != nil {
			return "", err
		}
		return pawl.Keyed(run, "book", parcel, func(context.Context, pawl.OpKey, string) (string, error) {
			if closed {
				return "", fault.Invalid(fault.Reason("depot_closed"))
			}
			return "booked", nil
		})
	})
	e, _, shut := open(w)
	defer shut()
	ctx := context.Background()

	first, err := w.Start(ctx, e, "p1")
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = first.Result(ctx)
	fmt.Println("closed:", errors.Is(err, fault.Reason("depot_closed")))

	closed = false
	plan, err := e.Plan(ctx, first.ID(), pawl.PlanOptions{Mode: pawl.PlanRetry})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, s := range plan.Steps {
		fmt.Println(s.Name, s.Fate)
	}
	id, err := e.Retry(ctx, plan, pawl.Act{By: "mia", Reason: "the depot is open"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(w.Handle(e, id).Result(ctx))
	// Output:
	// weighing
	// closed: true
	// weigh reuse
	// book rerun
	// booked <nil>
}

// The row and the run are there together, or neither is.
func ExampleInTx() {
	w := pawl.Define("welcome", "v1", func(_ *pawl.Run, user string) (string, error) { return "welcome, " + user, nil })
	e, db, shut := open(w)
	defer shut()
	ctx := context.Background()

	register := func(user string) (*pawl.Handle[string], error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return nil, err
		}
		defer tx.Rollback() // does nothing after the commit
		if _, err := tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS users (name TEXT PRIMARY KEY)`); err != nil {
			return nil, err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO users VALUES ($1)`, user); err != nil {
			return nil, err
		}
		run, err := w.Start(ctx, pawl.InTx(e, tx), user)
		if err != nil {
			return nil, err
		}
		return run, tx.Commit()
	}
	run, err := register("ada")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(run.Result(ctx))
	_, err = register("ada")
	runs, _, listErr := e.Runs(ctx, pawl.RunQuery{})
	fmt.Println("second one failed:", err != nil, "runs:", len(runs), listErr)
	// Output:
	// welcome, ada <nil>
	// second one failed: true runs: 1 <nil>
}
