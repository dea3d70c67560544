//go:build unix

package crashtest_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/pgtest"
)

// patience bounds every wait. Nothing takes as long unless it never comes.
const patience = 60 * time.Second

// until polls for a condition. It is the one place of these tests where time passes by itself.
func until(t testing.TB, d time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(d)
	for !cond() {
		if time.Now().After(deadline) {
			t.Errorf("waited %v for %s", d, what)
			return
		}
		<-time.After(25 * time.Millisecond)
	}
}

// pass lets time go by until at.
func pass(t testing.TB, at time.Time) {
	until(t, time.Until(at)+time.Second, "time to pass", func() bool { return !time.Now().Before(at) })
}

// site is a store, a user's database beside it, and the outside world.
type site struct {
	kind    string // "sqlite" or "postgres"
	url     string // for the control side
	foreign string
	store   pawl.Store
	control *pawl.Engine
	own     *sql.DB // the store's database, for the user's table in it
	other   *sql.DB
	effects *effects
}

func newSite(t *testing.T, kind string, o *effects) *site {
	t.Helper()
	if kind == "postgres" {
		return siteAt(t, kind, pgtest.URL(t), pgtest.URL(t), o)
	}
	dir := t.TempDir()
	return siteAt(t, kind, filepath.Join(dir, "pawl.db"), filepath.Join(dir, "other.db"), o)
}

func siteAt(t *testing.T, kind, url, foreign string, o *effects) *site {
	t.Helper()
	s := &site{kind: kind, url: url, foreign: foreign, effects: o}
	var err error
	if s.store, err = openStore(t.Context(), kind, url, 8); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.store.Close() })
	if s.other, err = openForeign(kind, foreign); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.other.Close() })
	s.own = s.store.(interface{ DB() *sql.DB }).DB()
	bytes := map[string]string{"sqlite": "BLOB", "postgres": "BYTEA"}[kind]
	for _, err := range []error{
		run1(s.own, createRows), run1(s.other, createRows), run1(s.other, pawl.TxTable(bytes)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s.control, err = pawl.New(s.store, &pawl.Options{Logger: slog.New(slog.DiscardHandler), Build: "crashtest"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func run1(db *sql.DB, query string) error {
	_, err := db.Exec(query)
	return err
}

// start begins a run of the workflow.
func (s *site) start(t *testing.T, workflow string) pawl.RunID {
	t.Helper()
	h, err := flow(workflow, nil).Start(t.Context(), s.control, "in")
	if err != nil {
		t.Fatal(err)
	}
	return h.ID()
}

// worker starts a worker process. c lacks only what the site knows.
func (s *site) worker(t *testing.T, c workerConfig) *process {
	t.Helper()
	c.Store, c.Effects = s.kind, s.effects.url
	if c.URL == "" {
		c.URL = s.url
	}
	if c.Foreign == "" {
		c.Foreign = s.foreign
	}
	raw, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := workerBinary()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(exe), gone: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), workerEnv+"="+string(raw))
	p.cmd.Stderr = &p.log
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.reached = make(chan struct{})
	go func() {
		if bufio.NewScanner(stdout).Scan() {
			close(p.reached)
		}
		_, _ = io.Copy(io.Discard, stdout)
		_ = p.cmd.Wait()
		close(p.gone)
	}()
	t.Cleanup(func() { p.kill(t) })
	return p
}

// workerBinary is this test binary. Under the race detector it is one without it, which would make the workers too slow
// for their leases: they share no memory with anybody, and the engine's own tests look for races.
var workerBinary = sync.OnceValues(func() (string, error) {
	exe, err := os.Executable()
	if !raceEnabled || err != nil {
		return exe, err
	}
	plain := filepath.Join(filepath.Dir(exe), "worker.test") // go test removes the directory with the binary
	out, err := exec.Command("go", "test", "-c", "-race=false", "-o", plain, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the worker: %w\n%s", err, out)
	}
	return plain, nil
})

// process is a worker process.
type process struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	log     lines
	reached chan struct{} // closed once it has reported its point
	gone    chan struct{} // closed once it was waited for
}

func (p *process) signal(t testing.TB, sig syscall.Signal) {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal %v: %v", sig, err)
	}
}

// kill is kill -9. When it returns the process is gone.
func (p *process) kill(t testing.TB) {
	p.signal(t, syscall.SIGKILL)
	<-p.gone
}

// stop is SIGTERM. When it returns everything that the process would ever have done is done.
func (p *process) stop(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGTERM)
	select {
	case <-p.gone:
	case <-time.After(patience):
		t.Errorf("worker %d did not end on SIGTERM", p.cmd.Process.Pid)
		p.kill(t)
	}
}

// goOn lets it leave its point; if it is frozen, when it is woken.
func (p *process) goOn(t testing.TB) {
	if _, err := io.WriteString(p.stdin, "go\n"); err != nil {
		t.Errorf("release the worker: %v", err)
	}
}

// arrives reports whether it comes to its point within d.
func (p *process) arrives(d time.Duration) bool {
	select {
	case <-p.reached:
		return true
	case <-p.gone:
	case <-time.After(d):
	}
	return false
}

// starved reports whether the worker has said that it lost a run.
func (p *process) starved() bool {
	return p.log.has("the run is dropped") || p.log.has("run was taken over") || p.log.has("released a run")
}

// freeze is SIGSTOP. A process that was caught inside another write transaction on a SQLite file, such as a heartbeat,
// would stop everybody; it is let go and caught again.
func (s *site) freeze(t *testing.T, p *process, inside bool) time.Time {
	t.Helper()
	for {
		p.signal(t, syscall.SIGSTOP)
		// The signal only asks for the stop. The parent is told when the last thread has come to it.
		var ws syscall.WaitStatus
		if _, err := syscall.Wait4(p.pid(), &ws, syscall.WUNTRACED, nil); err != nil || !ws.Stopped() {
			t.Errorf("worker %d did not stop: %v, status %#x", p.pid(), err, ws)
		}
		frozen := time.Now()
		if inside || s.kind != "sqlite" || s.writable(t) {
			return frozen
		}
		p.signal(t, syscall.SIGCONT)
		pass(t, time.Now().Add(20*time.Millisecond))
	}
}

// writable reports whether nobody holds the file's write lock for longer than a transaction takes.
func (s *site) writable(t *testing.T) bool {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	return s.store.Update(ctx, func(context.Context, pawl.Txn) error { return nil }) == nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// lines is a buffer for what a process writes.
type lines struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Contains(l.b.Bytes(), []byte(text))
}

func (l *lines) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := strings.Split(strings.TrimSpace(l.b.String()), "\n")
	return strings.Join(all[max(0, len(all)-30):], "\n")
}

// desk is the person who answers the inbox, truthfully.
type desk struct {
	s     *site
	quiet bool                   // does not answer uncertain steps
	slow  time.Duration          // how long an uncertain step is left to settle by itself
	asked map[pawl.EntryKind]int // entries a person answered, by kind
	steps map[string]pawl.Choice // … and the answers to uncertain ones, by step
}

func newDesk(s *site) *desk {
	return &desk{s: s, asked: map[pawl.EntryKind]int{}, steps: map[string]pawl.Choice{}}
}

// look answers what can be answered now.
func (d *desk) look(t *testing.T, q pawl.InboxQuery) {
	t.Helper()
	ctx := t.Context()
	entries, _, err := d.s.control.Inbox(ctx, q)
	if err != nil {
		t.Logf("read the inbox: %v", err)
		return
	}
	for i := range entries {
		en := &entries[i]
		a := pawl.Answer{Entry: en.ID, Attempt: en.Attempt, By: "desk"}
		switch en.Kind {
		case pawl.AskTwice:
			a.Choice = pawl.AnswerAcknowledge
		case pawl.AskCrashLoop:
			a.Choice = pawl.AnswerResume
		case pawl.AskGate: // who decides is not the desk
			continue
		case pawl.AskUncertain:
			if en.Step == "probed" || d.quiet || time.Since(en.Opened) < d.slow || !d.truth(ctx, en, &a) {
				continue
			}
		default:
			t.Errorf("unexpected question: %s about step %q: %s", en.Kind, en.Step, en.Detail)
			a.Choice = pawl.AnswerCancel
		}
		switch err := d.s.control.Resolve(ctx, a); {
		case errors.Is(err, pawl.ErrTooEarly), errors.Is(err, pawl.ErrConflict):
		case err != nil:
			t.Logf("answer %q to the %s entry about step %q: %v", a.Choice, en.Kind, en.Step, err)
		default:
			d.asked[en.Kind]++
			if en.Kind == pawl.AskUncertain {
				d.steps[en.Step] = a.Choice
			}
		}
	}
}

// truth fills in what is the case; false if that cannot be said yet.
func (d *desk) truth(ctx context.Context, en *pawl.Entry, a *pawl.Answer) bool {
	now, err := d.s.control.Now(ctx)
	if err != nil {
		return false
	}
	ref := d.s.effects.find(func(e *effect) bool { return e.Run == en.Run && e.Step == en.Step && e.Attempt == en.Attempt })
	if ref != "" {
		a.Choice, a.Result = pawl.AnswerHappened, fmt.Appendf(nil, "%q", ref)
		return true
	}
	a.Choice, a.Looked = pawl.AnswerDidNotHappen, now
	return en.Over
}

// terminal reports whether the run is finished.
func (s *site) terminal(t *testing.T, id pawl.RunID) bool {
	info, err := flow("x", nil).Handle(s.control, id).Status(t.Context())
	if err != nil {
		t.Logf("status: %v", err)
		return false
	}
	return info.State.Terminal()
}

// attend answers until the run is finished.
func (s *site) attend(t *testing.T, d *desk, id pawl.RunID) {
	t.Helper()
	until(t, patience, "the run to finish", func() bool {
		d.look(t, pawl.InboxQuery{Run: id})
		return s.terminal(t, id)
	})
}

// record is the run as it must not change any more: its row, journal and values, without evidence and questions.
func (s *site) record(t *testing.T, id pawl.RunID) string {
	t.Helper()
	d := s.show(t, id)
	if d == nil {
		return ""
	}
	var values []string
	for i := range d.Steps {
		values = append(values, string(d.Steps[i].Value))
	}
	d.Open = nil
	raw, err := json.MarshalIndent(map[string]any{"run": d.RunInfo, "result": string(d.Result), "steps": d.Steps, "values": values}, "", " ")
	if err != nil {
		t.Error(err)
	}
	return string(raw)
}

func (s *site) show(t *testing.T, id pawl.RunID) *pawl.RunDetail {
	t.Helper()
	d, err := s.control.Show(t.Context(), id)
	if err != nil {
		t.Error(err)
		return nil
	}
	return d
}

// rows counts what the transaction step of the run has written.
func (s *site) rows(t *testing.T, id pawl.RunID, step string) (n int) {
	t.Helper()
	db := s.own
	if step == "txin" {
		db = s.other
	}
	if err := db.QueryRow(`SELECT count(*) FROM crash_rows WHERE run = $1 AND step = $2`, string(id), step).Scan(&n); err != nil {
		t.Error(err)
	}
	return n
}

// check asserts the invariants that rows at rest can show.
func (s *site) check(t *testing.T) {
	t.Helper()
	found, err := s.store.Check(t.Context())
	if err != nil {
		t.Error(err)
	}
	for _, f := range found {
		if f.Level == "error" {
			t.Errorf("invariant %s is broken by run %s: %s", f.Rule, f.Run, f.Text)
		}
	}
}

// dump shows everything about the run and its workers, if the test has failed.
func (s *site) dump(t *testing.T, id pawl.RunID, workers ...*process) {
	t.Helper()
	if !t.Failed() {
		return
	}
	if d := s.show(t, id); d != nil {
		raw, _ := json.MarshalIndent(d, "", " ")
		t.Logf("run:\n%s", raw)
	}
	for _, step := range steps {
		for _, e := range s.effects.of(id, step) {
			t.Logf("effect: %+v", e)
		}
	}
	for i, p := range workers {
		t.Logf("worker %c (pid %d):\n%s", 'A'+i, p.pid(), p.log.tail())
	}
}
