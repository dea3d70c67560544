//go:build unix

package torture_test

import (
	"bufio"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/pgtest"
)

// rig is one store under torture, with all that is around it.
type rig struct {
	kind    string  // "sqlite" or "postgres"
	url     string  // of the store, past the proxies
	foreign string  // file of the user's own database
	other   *sql.DB // … opened
	dir     string
	server  *pgtest.Server  // nil for sqlite; the siege's own once that is laid
	ways    []*pgtest.Proxy // lead to the server; nobody harms what passes by them
	parts   parts
	wall    *wall // the machine's clock
	store   pawl.Store
	control *pawl.Engine
	effects *effects
	seats   []*seat
	ledger  ledger

	mu     sync.Mutex
	broken []violation // guarded by mu
}

// violation is a requirement that was broken, and by which run; "" if by none in particular.
type violation struct {
	run  pawl.RunID
	text string
}

func (r *rig) violate(run pawl.RunID, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = append(r.broken, violation{run, fmt.Sprintf(format, args...)})
}

// ledger counts what was done to the workers and to the runs.
type ledger struct {
	kills, suicides, stops, selfStops, exits           atomic.Int64
	cuts, cutCommits, holes, delays, holds             atomic.Int64
	oldCommits, claimsLost, claimsHeld                 atomic.Int64
	restarts, crashes, readOnly, failovers, steps      atomic.Int64
	reused, refused, cancels, retries                  atomic.Int64
	sent, retryLosers, answers, answerLosers, tooEarly atomic.Int64
	gaveUp, samples, loops, twice                      atomic.Int64
	decisions, decidedLate, left, invalidated          atomic.Int64
	pauses, callersCancelled                           atomic.Int64
}

func newRig(t *testing.T, kind string, workers int, seed uint64, p parts) *rig {
	t.Helper()
	r := &rig{kind: kind, dir: t.ArtifactDir(), parts: p}
	r.foreign = filepath.Join(r.dir, "other.db")
	r.url = filepath.Join(r.dir, "pawl.db")
	r.seats = make([]*seat, workers)
	for i := range r.seats {
		r.seats[i] = &seat{n: i, url: r.url}
	}
	var err error
	if r.wall, err = openWall(filepath.Join(r.dir, "clock")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.wall.file.Close() })
	if kind == "postgres" {
		r.connect(t)
	}
	if r.store, err = openStore(t.Context(), kind, r.url, 12, r.wall); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.store.Close() })
	if r.other, err = openForeign(r.foreign); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.other.Close() })
	for _, err := range []error{run1(r.own(), createRows), run1(r.other, createRows), run1(r.other, pawl.TxTable("BLOB"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if hooks.Broken(hooks.W6) {
		if err := run1(r.own(), `DROP INDEX pawl_runs_live`); err != nil { // it stands behind the rule
			t.Fatal(err)
		}
	}
	r.control, err = pawl.New(r.store, &pawl.Options{Logger: slog.New(slog.DiscardHandler), Build: "torture"})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.setQueues(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.effects = newEffects(t, r.dir, seed)
	t.Cleanup(func() {
		for _, s := range r.seats {
			if s.p != nil {
				s.p.signal(t, syscall.SIGKILL)
				<-s.p.gone
			}
		}
	})
	return r
}

// connect starts the server, and gives each seat a proxy that harm is done by. With PgBouncer, that stands behind every
// other one.
func (r *rig) connect(t *testing.T) {
	t.Helper()
	var opts []pgtest.Option
	if r.parts.clock {
		opts = append(opts, pgtest.FakeClock())
	}
	r.server = pgtest.Private(t, opts...)
	direct := r.server.NewDatabase(t)
	way := func() string {
		p := pgtest.NewProxy(t, direct)
		r.ways = append(r.ways, p)
		return p.Rewrite(t, direct)
	}
	r.url = way()
	pooled := ""
	if r.parts.bouncer {
		pooled = way()
		pooled = pgtest.NewBouncer(t, pooled).Rewrite(t, pooled)
	}
	for _, s := range r.seats {
		target := direct
		if r.parts.bouncer && s.n%2 == 1 {
			target = pooled
		}
		s.proxy = pgtest.NewProxy(t, target)
		s.url = s.proxy.Rewrite(t, target)
		if target == direct {
			r.ways = append(r.ways, s.proxy)
		}
	}
}

// own is the store's database, which has the rows of the Tx steps.
func (r *rig) own() *sql.DB { return r.store.(interface{ DB() *sql.DB }).DB() }

func run1(db *sql.DB, query string) error {
	_, err := db.Exec(query)
	return err
}

// seat is a place for a worker: whoever dies on it has a successor at once.
type seat struct {
	n       int
	url     string // of the store, by the seat's own proxy
	proxy   *pgtest.Proxy
	p       *process
	counted *process  // the last one whose end is in the ledger
	vain    time.Time // not to be occupied before: its last worker found no database
	thaw    time.Time // when its frozen process is woken; zero: not frozen
	clear   time.Time // when its black hole ends; zero: none
}

// process is a worker process.
type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser // open as long as the driver lives
	frozen atomic.Bool    // it has stopped itself
	once   bool           // it has been frozen, or is to freeze itself; the chaos loop's own
	killed bool           // … or killed by the chaos loop
	begun  time.Time
	woken  time.Time     // when it was woken; zero: not yet
	gone   chan struct{} // closed once it was waited for
}

// occupy starts a worker on a seat. Of fate, its own part is taken: its point, if it has one.
func (r *rig) occupy(t *testing.T, s *seat, fate workerConfig) {
	t.Helper()
	fate.Store, fate.URL, fate.Foreign, fate.Effects = r.kind, s.url, r.foreign, r.effects.url
	fate.Claims, fate.Wall = filepath.Join(r.dir, "claims.log"), r.wall.file.Name()
	if fate.Flush == 0 {
		fate.Flush = *flush
	}
	raw, err := json.Marshal(fate)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(r.dir, fmt.Sprintf("worker-%d.log", s.n)), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p := &process{cmd: exec.Command(exe), once: fate.Freeze, begun: time.Now(), gone: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), workerEnv+"="+string(raw))
	p.cmd.Stderr = log
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
	go func() {
		if bufio.NewScanner(stdout).Scan() {
			p.frozen.Store(true)
		}
		_, _ = io.Copy(io.Discard, stdout)
		_ = p.cmd.Wait() // how it ended, its state tells
		close(p.gone)
	}()
	s.p, s.thaw = p, time.Time{}
}

func (p *process) signal(t testing.TB, sig syscall.Signal) {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal %v: %v", sig, err)
	}
}

func (p *process) ended() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

// bySignal reports whether a process that has ended was ended by SIGKILL.
func (p *process) bySignal() bool {
	ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL
}

// upTo is a random time, never quite d.
func upTo(rnd *rand.Rand, d time.Duration) time.Duration { return time.Duration(rnd.Int64N(int64(d))) }

// dismiss ends the workers in an orderly way: what they would ever have done is done when it returns. One of them may
// freeze itself at this last moment.
func (r *rig) dismiss(t *testing.T) {
	for _, s := range r.seats {
		s.p.signal(t, syscall.SIGTERM)
	}
	for end := time.Now().Add(30 * time.Second); ; <-time.After(tick) {
		left := 0
		for _, s := range r.seats {
			if !s.p.ended() {
				s.p.signal(t, syscall.SIGCONT)
				left++
			}
		}
		if left == 0 {
			return
		}
		if time.Now().After(end) {
			t.Errorf("%d workers did not end on SIGTERM", left)
			return
		}
	}
}
