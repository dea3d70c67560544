//go:build unix

package crashtest_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the user's own database, by database/sql
	_ "modernc.org/sqlite"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/postgres"
	"github.com/pawlrun/pawl/sqlite"
)

// workerEnv holds the JSON of a workerConfig. With it this test binary is a worker.
const workerEnv = "PAWL_CRASHTEST_WORKER"

const (
	lease   = 2 * time.Second
	timeout = 1500 * time.Millisecond // of Once, so an attempt is over 4.5 s after its begin if nobody knows better
	settle  = time.Second
)

func TestMain(m *testing.M) {
	if raw := os.Getenv(workerEnv); raw != "" {
		if err := work(raw); err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// workerConfig says what a worker process works on and where it stops.
type workerConfig struct {
	Store    string // "sqlite" or "postgres"
	URL      string // of the store
	Foreign  string // of the user's own database
	Workflow string
	Effects  string // URL of the effect server

	Point hooks.Point // where to report and block; "" nowhere
	Step  string
	Arm   hooks.Point // if set, the point counts only after this point of Step, whatever its own step is
	Nth   int         // the how many-th time it comes to the point, or to Arm; 0 means the first
	Flush time.Duration
	Slots int

	Wait string // the workflow is the one that waits in this way
	Send string // it only sends the event that is awaited to this run
}

// work is the worker process. It stops on SIGTERM, and at once when its standard input ends, so that no worker
// outlives its test.
func work(raw string) error {
	var c workerConfig
	if err := json.Unmarshal([]byte(raw), &c); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	f := &failpoint{c: c, release: make(chan struct{})}
	go f.listen()
	store, err := openStore(ctx, c.Store, c.URL, 4)
	if err != nil {
		return err
	}
	defer store.Close()
	foreign, err := openForeign(c.Store, c.Foreign)
	if err != nil {
		return err
	}
	defer foreign.Close()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	w := &world{effects: c.Effects, foreign: foreign}
	flows := []pawl.Definition{flow(c.Workflow, w)}
	if c.Wait != "" {
		flows = []pawl.Definition{waitFlow(c.Workflow, c.Wait, w), childFlow(c.Workflow, w)}
	}
	e, err := pawl.New(store, &pawl.Options{
		Lease: lease, Poll: 100 * time.Millisecond, Drain: 3 * time.Second, Build: "crashtest", Logger: log, Slots: c.Slots,
		Hooks: &hooks.Hooks{At: f.at, FlushDelay: c.Flush},
	}, flows...)
	if err != nil {
		return err
	}
	if c.Send != "" {
		return send(ctx, e, pawl.RunID(c.Send))
	}
	return e.Work(ctx)
}

func openStore(ctx context.Context, kind, url string, conns int) (pawl.Store, error) {
	if kind == "sqlite" {
		return sqlite.Open(url, nil)
	}
	return postgres.Open(ctx, url, &postgres.Options{Migrate: true, MaxConns: conns})
}

func openForeign(kind, url string) (*sql.DB, error) {
	driver := "pgx"
	if kind == "sqlite" {
		driver, url = "sqlite", "file:"+url+"?_txlock=immediate&_pragma=busy_timeout(500)&_pragma=journal_mode(WAL)"
	}
	db, err := sql.Open(driver, url)
	if err == nil {
		db.SetMaxOpenConns(2)
	}
	return db, err
}

// failpoint reports that its point is reached, and blocks there until it is told to go on.
type failpoint struct {
	c       workerConfig
	release chan struct{}

	mu    sync.Mutex // guards all below
	seen  int        // how often it came to its point, or to what arms it
	armed bool
	done  bool
}

func (f *failpoint) at(p hooks.Point, _, step string) {
	if f.hit(p, step) {
		fmt.Printf("reached %s %s\n", p, step)
		<-f.release
		fmt.Fprintln(os.Stderr, "failpoint: goes on")
	}
}

func (f *failpoint) hit(p hooks.Point, step string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.c.Point == "" || f.done {
		return false
	}
	counted := f.c.Point
	if f.c.Arm != "" {
		counted = f.c.Arm
	}
	f.done = f.armed && p == f.c.Point
	if p == counted && step == f.c.Step {
		f.seen++
	}
	f.armed = f.c.Arm != "" && f.seen >= max(f.c.Nth, 1)
	f.done = f.done || f.c.Arm == "" && f.seen >= max(f.c.Nth, 1)
	return f.done
}

func (f *failpoint) listen() {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		close(f.release)
	}
	os.Exit(3)
}

// world is what the steps of a worker reach.
type world struct {
	effects string
	foreign *sql.DB
	client  http.Client
}

// steps are those of the workflow, in order. Each has the result of the one before as its input, so that a result that
// changes after the next step has begun shows.
var steps = []string{"rep", "paid", "keyed", "txin", "tx", "once", "probed", "last"}

// flow has a step of each kind. Its result lists the steps' results.
func flow(name string, w *world) *pawl.Workflow[string, []string] {
	return pawl.Define(name, "v1", func(run *pawl.Run, in string) (out []string, err error) {
		for _, step := range steps {
			if in, err = w.step(run, step, in); err != nil {
				return nil, err
			}
			out = append(out, in)
		}
		return out, nil
	})
}

func (w *world) step(run *pawl.Run, name, in string) (string, error) {
	plain := func(ctx context.Context, in string) (string, error) { return w.send(ctx, "", in) }
	once := func(ctx context.Context, it pawl.Intent, in string) (string, error) { return w.send(ctx, it.Key, in) }
	switch name {
	case "paid":
		return pawl.Repeatable(run, name, in, plain, pawl.Paid())
	case "keyed":
		return pawl.Keyed(run, name, in, func(ctx context.Context, key pawl.OpKey, in string) (string, error) {
			return w.send(ctx, key, in)
		}, pawl.Timeout(timeout))
	case "txin":
		return pawl.TxIn(run, name, w.foreign, in, insert)
	case "tx":
		return pawl.Tx(run, name, in, insert)
	case "once":
		return pawl.Once(run, name, in, once, pawl.Timeout(timeout), pawl.Settle(settle))
	case "probed":
		return pawl.Once(run, name, in, once, pawl.Timeout(timeout), pawl.Settle(settle), pawl.Probe(0, w.probe))
	}
	return pawl.Repeatable(run, name, in, plain)
}

// insert is the effect of the transaction steps. The table has no unique column: a second row would show.
func insert(ctx context.Context, tx *sql.Tx, in string) (string, error) {
	s, _ := pawl.StepOf(ctx)
	_, err := tx.ExecContext(ctx, `INSERT INTO crash_rows (run, step, input) VALUES ($1, $2, $3)`, string(s.Run), s.Step, in)
	return s.Step + " of " + in, err
}

const createRows = `CREATE TABLE IF NOT EXISTS crash_rows (run TEXT, step TEXT, input TEXT)`

// send has an effect. It is deaf to its context, as the worst client is.
func (w *world) send(ctx context.Context, key pawl.OpKey, in string) (string, error) {
	s, _ := pawl.StepOf(ctx)
	body, err := json.Marshal(effect{Run: s.Run, Step: s.Step, Attempt: s.Attempt, Key: key, PID: os.Getpid(), Input: in})
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodPost, w.effects, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var ref string
	return ref, json.NewDecoder(resp.Body).Decode(&ref)
}

// probe asks the effect server whether the attempt's effect is there.
func (w *world) probe(ctx context.Context, it pawl.Intent, _ string) (string, pawl.Verdict, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s?key=%s&attempt=%d", w.effects, it.Key, it.Attempt), nil)
	if err != nil {
		return "", pawl.CannotTell, err
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return "", pawl.CannotTell, err
	}
	defer resp.Body.Close()
	var ref string
	if err := json.NewDecoder(resp.Body).Decode(&ref); err != nil {
		return "", pawl.CannotTell, err
	}
	if ref == "" {
		return "", pawl.DidNotHappen, nil
	}
	return ref, pawl.Happened, nil
}
