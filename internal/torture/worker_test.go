//go:build unix

package torture_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"path"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the user's own database, by database/sql

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/postgres"
	"github.com/pawlrun/pawl/sqlite"
)

// workerEnv holds the JSON of a workerConfig. With it this test binary is a worker.
const workerEnv = "PAWL_TORTURE_WORKER"

// A frozen process wakes after three leases at most, and is frozen only once. So whatever it sends, it sends before
// timeout, lease and settle have passed since the attempt's begin, which is when the engine counts the attempt as over.
const (
	lease    = 2 * time.Second
	longest  = 3 * lease // of a freeze
	timeout  = 2 * time.Second
	settling = 3 * lease
	slots    = 6                          // of a worker
	over     = timeout + lease + settling // since its begin an attempt of a worker of which nothing is known
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

// workerConfig says what a worker process works on, and how it dies by its own hand.
type workerConfig struct {
	Store   string // "sqlite" or "postgres"
	URL     string // of the store
	Foreign string // file of the user's own database
	Effects string // URL of the effect server
	Claims  string // file that gets a line for each run that is claimed
	Wall    string // file of what the machine's clock is off by

	Flush  time.Duration // see -flush
	Point  hooks.Point   // where it ends or freezes itself; "" nowhere
	Once   bool          // there only in a Once step
	Count  int64         // at the how many-th time it comes there
	Freeze bool          // SIGSTOP instead of SIGKILL
}

// work is the worker process. It stops on SIGTERM, and at once when its standard input ends, so that no worker outlives
// its driver.
func work(raw string) error {
	var c workerConfig
	if err := json.Unmarshal([]byte(raw), &c); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(3)
	}()
	wall, err := openWall(c.Wall)
	if err != nil {
		return err
	}
	defer wall.file.Close()
	store, err := openStore(ctx, c.Store, c.URL, 6, wall)
	if err != nil {
		return err
	}
	defer store.Close()
	foreign, err := openForeign(c.Foreign)
	if err != nil {
		return err
	}
	defer foreign.Close()
	claims, err := os.OpenFile(c.Claims, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer claims.Close()
	e, err := pawl.New(store, &pawl.Options{
		Lease: lease, Poll: 100 * time.Millisecond, Drain: 3 * time.Second, Build: "torture", Slots: slots,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Hooks:  &hooks.Hooks{At: c.fate(claims), FlushDelay: c.Flush},
	}, flow(&world{effects: c.Effects, foreign: foreign}), child(&world{effects: c.Effects, foreign: foreign}))
	if err != nil {
		return err
	}
	return e.Work(ctx)
}

// fate notes the claims, and is what the worker does to itself at its point. The driver is told of a freeze, so that it
// ends it.
func (c workerConfig) fate(claims *os.File) func(hooks.Point, string, string) {
	var seen atomic.Int64
	return func(p hooks.Point, run, step string) {
		if p == hooks.Claimed {
			_, _ = fmt.Fprintf(claims, "%s %d\n", run, time.Now().UnixNano())
		}
		if p != c.Point || c.Once && !isOnce(verbOf(step)) || seen.Add(1) != c.Count {
			return
		}
		sig := syscall.SIGKILL
		if c.Freeze {
			sig = syscall.SIGSTOP
			fmt.Println("frozen")
		}
		_ = syscall.Kill(os.Getpid(), sig)
		<-time.After(tick) // another thread may be the one that gets the signal: this one must not go on before
	}
}

func openStore(ctx context.Context, kind, url string, conns int, w *wall) (pawl.Store, error) {
	if kind == "sqlite" {
		return sqlite.Open(url, &sqlite.Options{Hooks: &hooks.Store{Wall: w.offset}})
	}
	return postgres.Open(ctx, url, &postgres.Options{Migrate: true, MaxConns: conns})
}

func openForeign(file string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", "file:"+file+"?_txlock=immediate&_pragma=busy_timeout(1000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	if err == nil {
		db.SetMaxOpenConns(2)
	}
	return db, err
}

// job is the input of a run: the verbs of its steps in order.
type job struct {
	N     int
	Verbs []string
}

// verbs are what a job is made of. Those that are there twice are taken twice as often.
var verbs = []string{"rep", "rep", "paid", "long", "keyed", "keyed", "tx", "tx", "slowtx", "txin", "txin", "once", "once", "probed", "probed", "flaky",
	"nap", "await", "pair", "pair", "child", "qchild", "haste", "detached", "gonce", "gkeyed", "gtx", "askonce", "askkeyed", "gwrong",
	"batch", "batch"}

// verbOf is the verb of a step's path.
func verbOf(step string) string { return path.Base(step) }

// kinds in the order of the table.
var kinds = []string{"Repeatable", "Keyed", "Tx", "Tx elsewhere", "Once", "Once, probed", itemsLine}

// lineOf is the line of the table that a step belongs to.
func lineOf(step string) string {
	if isItem(step) {
		return itemsLine
	}
	return kindOf(step)
}

// kindOf is a step's kind.
func kindOf(step string) string {
	switch verbOf(step) {
	case "keyed", "gkeyed", "askkeyed", "gwrong":
		return "Keyed"
	case "tx", "slowtx", "gtx":
		return "Tx"
	case "txin":
		return "Tx elsewhere"
	case "once", "gonce", "askonce":
		return "Once"
	case "probed":
		return "Once, probed"
	}
	return "Repeatable"
}

// isOnce reports whether a verb's effect must not be repeated and is not absorbed by a key.
func isOnce(verb string) bool { return verb == "probed" || kindOf(verb) == "Once" }

// world is what the steps of a worker reach.
type world struct {
	effects string
	foreign *sql.DB
	client  http.Client
}

// flow goes through a job's steps. Each has the result of the one before as its input, so that a result that changes
// after the next step has begun shows.
func flow(w *world) *pawl.Workflow[job, string] {
	return pawl.Define("torture", "v1", w.body)
}

// child is the workflow of the runs that a job waits for.
func child(w *world) *pawl.Workflow[job, string] {
	return pawl.Define("torture-child", "v1", w.body)
}

func (w *world) body(run *pawl.Run, j job) (last string, err error) {
	for i, verb := range j.Verbs {
		item := run.Item(strconv.Itoa(i))
		switch {
		case isWait(verb):
			last, err = w.wait(item, verb, last)
		case verb == "pair":
			last, err = w.pair(item, last)
		case verb == "batch":
			err = w.batch(item, last)
		case isGated(verb):
			err = w.gated(item, verb, askedAt(i, last))
		default:
			last, err = w.step(item, verb, last)
		}
		if err != nil {
			return "", err
		}
	}
	return last, nil
}

// isWait reports whether a verb waits and has no effect of its own.
func isWait(verb string) bool { return verb == "nap" || verb == "await" || isChild(verb) }

// isChild reports whether a verb waits for another run.
func isChild(verb string) bool {
	return verb == "child" || verb == "qchild" || verb == "haste" || verb == "detached"
}

// news is what jobs await. Anybody may send it about any run, and nobody has to.
var news = pawl.DefineEvent[string]("news")

// wait suspends the run for a while. What comes of it is the last result, or the child's.
func (w *world) wait(run *pawl.Run, verb, last string) (string, error) {
	switch verb {
	case "nap":
		return last, pawl.Sleep(run, verb, 300*time.Millisecond)
	case "await":
		_, err := pawl.Await(run, verb, news, pawl.Key(run.ID()), pawl.Within(lease))
		if errors.Is(err, fault.ReasonWaitTimeout) {
			err = nil
		}
		return last, err
	default:
		return pawl.Child(run, verb, child(w), job{Verbs: []string{"rep", "keyed", "nap", "gkeyed", "tx", "once"}}, childOptions(verb)...)
	}
}

// childOptions: a child may wait in the same full queue as its caller, have little time, or outlive its caller.
func childOptions(verb string) []pawl.StartOption {
	switch verb {
	case "qchild":
		return []pawl.StartOption{pawl.Queue(narrow), pawl.Share("share:0")}
	case "haste":
		return []pawl.StartOption{pawl.Deadline(2 * lease)}
	case "detached":
		return []pawl.StartOption{pawl.Detached()}
	}
	return nil
}

// pair goes two ways at once, of which one also naps. Its result is that of the first.
func (w *world) pair(run *pawl.Run, in string) (first string, err error) {
	g := run.Group()
	g.Go(func(run *pawl.Run) (err error) {
		first, err = w.step(run.Item(wayA), "keyed", in)
		return err
	})
	g.Go(func(run *pawl.Run) error {
		run = run.Item(wayB)
		if err := pawl.Sleep(run, "nap", 200*time.Millisecond); err != nil {
			return err
		}
		_, err := w.step(run, "once", in)
		return err
	})
	return first, g.Wait()
}

// The two ways of a pair.
const (
	wayA = "a"
	wayB = "b"
)

// policy tries again soon, and gives up after a while, which fails the run.
var policy = pawl.Retry(pawl.RetryPolicy{First: 50 * time.Millisecond, Max: time.Second})

func (w *world) once(ctx context.Context, it pawl.Intent, in string) (string, error) {
	return w.send(ctx, it.Key, in)
}

func (w *world) keyed(ctx context.Context, key pawl.OpKey, in string) (string, error) {
	return w.send(ctx, key, in)
}

func (w *world) step(run *pawl.Run, verb, in string) (string, error) {
	plain := func(ctx context.Context, in string) (string, error) { return w.send(ctx, "", in) }
	switch verb {
	case "paid":
		return pawl.Repeatable(run, verb, in, plain, pawl.Paid(), policy)
	case "keyed":
		return pawl.Keyed(run, verb, in, w.keyed, pawl.Timeout(timeout), policy)
	case "tx", "slowtx":
		return pawl.Tx(run, verb, in, insert, policy)
	case "txin":
		return pawl.TxIn(run, verb, w.foreign, in, insert, policy)
	case "once":
		return pawl.Once(run, verb, in, w.once, pawl.Timeout(timeout), pawl.Settle(settling), policy)
	case "probed":
		return pawl.Once(run, verb, in, w.once, pawl.Timeout(timeout), pawl.Settle(settling), pawl.Probe(0, w.probe), policy)
	}
	return pawl.Repeatable(run, verb, in, plain, policy)
}

// createRows makes the table of the transactions' effects. It has no unique column: a second row would show.
const createRows = `CREATE TABLE IF NOT EXISTS torture_rows (lineage TEXT, step TEXT, input TEXT, ref TEXT)`

// insert is the effect of the transaction steps.
func insert(ctx context.Context, tx *sql.Tx, in string) (string, error) {
	s, _ := pawl.StepOf(ctx)
	ref := "r" + rand.Text()[:12]
	_, err := tx.ExecContext(ctx, `INSERT INTO torture_rows (lineage, step, input, ref) VALUES ($1, $2, $3, $4)`, string(s.Lineage), s.Step, in, ref)
	if err == nil && verbOf(s.Step) == "slowtx" {
		<-time.After(150 * time.Millisecond)
	}
	return ref, err
}

// send has an effect. It is deaf to its context, as the worst client is.
func (w *world) send(ctx context.Context, key pawl.OpKey, in string) (string, error) {
	s, _ := pawl.StepOf(ctx)
	body, err := json.Marshal(effect{op: op{s.Lineage, s.Step}, Run: s.Run, Attempt: s.Attempt, Key: key, PID: os.Getpid(), Input: in})
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
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusTooManyRequests:
		return "", fault.RetryAfter(errors.New("busy"), 50*time.Millisecond)
	default:
		return "", fault.Rejected(fault.Invalid(errors.New(resp.Status)))
	}
	var ref string
	return ref, json.NewDecoder(resp.Body).Decode(&ref)
}

// probe asks the effect server whether the effect is there, and cannot tell every third time.
func (w *world) probe(ctx context.Context, it pawl.Intent, _ string) (string, pawl.Verdict, error) {
	if time.Now().UnixNano()%3 == 0 {
		return "", pawl.CannotTell, nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.effects+"?key="+string(it.Key), nil)
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
