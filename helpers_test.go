package pawl_test

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
)

var thorough = flag.Bool("thorough", false, "all of the long schedules and crash matrices, as `make crash` plays them")

// upTo is how far a test goes: to few, or to all if there is time.
func upTo(few, all int) int {
	if *thorough {
		return all
	}
	return few
}

// stage is a bench with several worker processes, any of which may die, and with scripted effects.
type stage struct {
	*bench
	desk *pawl.Engine  // a process without definitions: it starts runs and answers for people
	over chan struct{} // closed at the end of the test: what is dead may go then

	procs []*proc

	guard  sync.Mutex // guards all below
	script map[string]effect
	ins    map[string][]string
	keys   map[string][]pawl.OpKey
}

// effect is what a step does in its n-th execution, counted from 1 over all processes.
type effect func(ctx context.Context, n int) (string, error)

var errDead = errors.New("this process is dead")

// scene runs fn in a bubble, in parallel with other tests, and ends every process after it.
func scene(t *testing.T, fn func(t *testing.T, s *stage)) {
	t.Helper()
	t.Parallel()
	alone(t, fn)
}

// alone is scene beside no other test.
func alone(t *testing.T, fn func(t *testing.T, s *stage)) {
	t.Helper()
	inBubble(t, func(t *testing.T, b *bench) {
		s := &stage{bench: b, over: make(chan struct{}), script: map[string]effect{}, ins: map[string][]string{}, keys: map[string][]pawl.OpKey{}}
		s.opts.Poll = 3 * time.Second
		s.desk = b.engine()
		defer func() {
			close(s.over)
			for _, p := range s.procs {
				p.stop()
			}
		}()
		fn(t, s)
	})
}

// proc is a worker process of its own: engine, hooks, and a store that works until the process is dead.
type proc struct {
	*pawl.Engine
	s      *stage
	store  *mortal
	cancel context.CancelFunc
	done   chan error
	once   sync.Once
}

// spawn starts a worker of the given build.
func (s *stage) spawn(build string, defs ...pawl.Definition) *proc {
	s.t.Helper()
	return s.spawnWith(func(o *pawl.Options) { o.Build = build }, defs...)
}

func (s *stage) spawnWith(set func(*pawl.Options), defs ...pawl.Definition) *proc {
	s.t.Helper()
	return s.spawnProc(func(_ *proc, o *pawl.Options) { set(o) }, defs...)
}

// doomed starts a worker that dies when any of its goroutines comes to the point for the nth time in all.
func (s *stage) doomed(point hooks.Point, nth int, defs ...pawl.Definition) {
	s.t.Helper()
	var seen atomic.Int64
	s.spawnProc(func(p *proc, o *pawl.Options) {
		o.Hooks.At = func(at hooks.Point, _, _ string) {
			if at != point || seen.Add(1) != int64(nth) {
				return
			}
			if at == hooks.CommitSending || at == hooks.TxCommitting { // the store's locks are held there
				p.kill()
				return
			}
			p.die()
		}
	}, defs...)
}

// spawnProc starts a worker whose hooks know the process they are in. They are called by many goroutines at once.
func (s *stage) spawnProc(set func(*proc, *pawl.Options), defs ...pawl.Definition) *proc {
	s.t.Helper()
	o := s.opts
	o.Hooks = &hooks.Hooks{Boot: s.hooks.Boot}
	p := &proc{s: s, store: &mortal{Store: s.bench.store}, done: make(chan error, 1)}
	set(p, &o)
	e, err := pawl.New(p.store, &o, defs...)
	if err != nil {
		s.t.Fatal(err)
	}
	p.Engine = e
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(s.t.Context())
	s.procs = append(s.procs, p)
	go func() { p.done <- e.Work(ctx) }()
	return p
}

// stop ends the process gracefully, or buries it if it is dead.
func (p *proc) stop() {
	p.s.t.Helper()
	p.once.Do(func() {
		p.cancel()
		if err := <-p.done; err != nil && !p.store.dead.Load() && !errors.Is(err, context.Canceled) {
			p.s.t.Errorf("Work: %v", err)
		}
	})
}

// die is the end of the process at this very line: its store takes nothing more, and the caller hangs until the test is over.
func (p *proc) die() {
	p.kill()
	<-p.s.over
}

// kill is die for a caller inside a transaction: it goes on, because the database would roll back, which needs the connection.
func (p *proc) kill() { p.store.dead.Store(true) }

// mortal is a store as one process sees it.
type mortal struct {
	pawl.Store
	dead    atomic.Bool
	commits atomic.Int64 // write transactions that were committed, and claims that took something
	views   atomic.Int64 // transactions that read
	deaf    atomic.Int64 // the how many-th commit from now on whose reply is lost
}

func (m *mortal) Update(ctx context.Context, fn func(context.Context, pawl.Txn) error) error {
	return m.UpdateSQL(ctx, time.Minute, func(ctx context.Context, tx pawl.Txn, _ *sql.Tx) error { return fn(ctx, tx) })
}

func (m *mortal) UpdateSQL(ctx context.Context, hold time.Duration, fn func(context.Context, pawl.Txn, *sql.Tx) error) error {
	err := m.Store.UpdateSQL(ctx, hold, func(ctx context.Context, tx pawl.Txn, user *sql.Tx) error {
		if m.dead.Load() {
			return errDead
		}
		if err := fn(ctx, tx, user); err != nil {
			return err
		}
		if m.dead.Load() { // it died inside: nothing was committed
			return errDead
		}
		return nil
	})
	if err == nil {
		m.commits.Add(1)
		if m.deaf.Add(-1) == 0 {
			return fmt.Errorf("lost: %w", pawl.ErrCommitUnknown)
		}
	}
	return err
}

func (m *mortal) Write(ctx context.Context, changes []pawl.Change) (int64, error) {
	if m.dead.Load() {
		return 0, errDead
	}
	now, err := m.Store.Write(ctx, changes)
	if err == nil {
		m.commits.Add(1)
	}
	return now, err
}

func (m *mortal) View(ctx context.Context, fn func(context.Context, pawl.Txn) error) error {
	if m.dead.Load() {
		return errDead
	}
	m.views.Add(1)
	return m.Store.View(ctx, fn)
}

func (m *mortal) Heartbeat(ctx context.Context, w pawl.WorkerRow) (*pawl.Beat, error) {
	if m.dead.Load() {
		return nil, errDead
	}
	return m.Store.Heartbeat(ctx, w)
}

func (m *mortal) Claim(ctx context.Context, c pawl.Claim) ([]pawl.Claimed, error) {
	if m.dead.Load() {
		return nil, errDead
	}
	got, err := m.Store.Claim(ctx, c)
	if len(got) > 0 {
		m.commits.Add(1)
	}
	return got, err
}

func (m *mortal) Unregister(ctx context.Context, id pawl.WorkerID) error {
	if m.dead.Load() {
		return errDead
	}
	return m.Store.Unregister(ctx, id)
}

func (m *mortal) Stray(ctx context.Context, grace time.Duration, limit int) (stray, back []pawl.RunID, err error) {
	if m.dead.Load() {
		return nil, nil, errDead
	}
	return m.Store.Stray(ctx, grace, limit)
}

func (m *mortal) Tidy(ctx context.Context, keep time.Duration) error {
	if m.dead.Load() {
		return errDead
	}
	return m.Store.Tidy(ctx, keep)
}

func (m *mortal) Prune(ctx context.Context, p pawl.PruneTerms) (pawl.Pruned, error) {
	if m.dead.Load() {
		return pawl.Pruned{}, errDead
	}
	return m.Store.Prune(ctx, p)
}

func (m *mortal) PruneEvents(ctx context.Context, keep time.Duration) (bool, error) {
	if m.dead.Load() {
		return false, errDead
	}
	return m.Store.PruneEvents(ctx, keep)
}

func (m *mortal) NextSchedule(ctx context.Context, has []pawl.VersionID) (now, due int64, err error) {
	if m.dead.Load() {
		return 0, 0, errDead
	}
	return m.Store.NextSchedule(ctx, has)
}

// on scripts a step's effect. Without a script a step returns "name(input)".
func (s *stage) on(name string, fn effect) {
	s.guard.Lock()
	defer s.guard.Unlock()
	s.script[name] = fn
}

func (s *stage) act(ctx context.Context, name string, key pawl.OpKey, in string) (string, error) {
	n := s.effect(name)
	s.guard.Lock()
	fn := s.script[name]
	s.ins[name] = append(s.ins[name], in)
	s.keys[name] = append(s.keys[name], key)
	s.guard.Unlock()
	if fn != nil {
		return fn(ctx, n)
	}
	return name + "(" + in + ")", nil
}

// do is a step of any kind with a scripted effect. A Tx step also counts itself in table effects, in its transaction.
func (s *stage) do(run *pawl.Run, k pawl.Kind, name, in string, opts ...any) (string, error) {
	switch k {
	case fault.KindRepeatable:
		return pawl.Repeatable(run, name, in, func(ctx context.Context, in string) (string, error) {
			return s.act(ctx, name, "", in)
		}, optionsOf[pawl.RepeatableOption](opts)...)
	case fault.KindKeyed:
		return pawl.Keyed(run, name, in, func(ctx context.Context, key pawl.OpKey, in string) (string, error) {
			return s.act(ctx, name, key, in)
		}, optionsOf[pawl.KeyedOption](opts)...)
	case fault.KindTx:
		return pawl.Tx(run, name, in, func(ctx context.Context, tx *sql.Tx, in string) (string, error) {
			if _, err := tx.ExecContext(ctx, `INSERT INTO effects (name) VALUES ($1)`, name); err != nil {
				return "", err
			}
			return s.act(ctx, name, "", in)
		}, optionsOf[pawl.TxOption](opts)...)
	case fault.KindOnce:
		return pawl.Once(run, name, in, func(ctx context.Context, it pawl.Intent, in string) (string, error) {
			return s.act(ctx, name, it.Key, in)
		}, optionsOf[pawl.OnceOption](opts)...)
	default:
		panic("no such kind")
	}
}

func (s *stage) rep(run *pawl.Run, name, in string, opts ...any) (string, error) {
	return s.do(run, fault.KindRepeatable, name, in, opts...)
}
func (s *stage) keyed(run *pawl.Run, name, in string, opts ...any) (string, error) {
	return s.do(run, fault.KindKeyed, name, in, opts...)
}
func (s *stage) tx(run *pawl.Run, name, in string, opts ...any) (string, error) {
	return s.do(run, fault.KindTx, name, in, opts...)
}
func (s *stage) mail(run *pawl.Run, name, in string, opts ...any) (string, error) {
	return s.do(run, fault.KindOnce, name, in, opts...)
}

func optionsOf[O any](opts []any) []O {
	var all []O
	for _, o := range opts {
		all = append(all, o.(O))
	}
	return all
}

// table makes the table that Tx steps write to.
func (s *stage) table() {
	s.t.Helper()
	if _, err := s.bench.store.DB().ExecContext(s.t.Context(), `CREATE TABLE effects (name TEXT)`); err != nil {
		s.t.Fatal(err)
	}
}

// rows counts what committed Tx steps of that name wrote.
func (s *stage) rows(name string) (n int) {
	s.t.Helper()
	if err := s.bench.store.DB().QueryRowContext(s.t.Context(), `SELECT count(*) FROM effects WHERE name = $1`, name).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// flow defines a workflow over strings.
func flow(name, version string, fn func(run *pawl.Run, in string) (string, error), opts ...pawl.DefineOption) *pawl.Workflow[string, string] {
	return pawl.Define(name, version, fn, opts...)
}

// begin starts a run from the desk.
func begin[In, Out any](s *stage, w *pawl.Workflow[In, Out], in In, opts ...pawl.StartOption) pawl.RunID {
	s.t.Helper()
	h, err := w.Start(s.t.Context(), s.desk, in, opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	return h.ID()
}

// reach waits for a state, see bench.until, in ever longer steps.
func (s *stage) reach(id pawl.RunID, want ...pawl.RunState) *pawl.RunDetail {
	s.t.Helper()
	for pause := 10 * time.Millisecond; pause < 5*time.Minute; pause += pause / 4 {
		d := s.show(s.desk, id)
		if slices.Contains(want, d.State) {
			s.settle()
			return d
		}
		if d.State.Terminal() {
			s.t.Fatalf("run is %s, want %v; fault %+v", d.State, want, d.Fault)
		}
		time.Sleep(pause)
	}
	s.t.Fatalf("run never became %v: %+v", want, s.show(s.desk, id).RunInfo)
	return nil
}

// blocked waits until the run is blocked by an entry of that kind, and returns the entry.
func (s *stage) blocked(id pawl.RunID, kind pawl.EntryKind) pawl.Entry {
	s.t.Helper()
	d := s.reach(id, pawl.Blocked)
	for _, en := range d.Entries {
		if en.Kind == kind && en.Closed.IsZero() {
			return en
		}
	}
	s.t.Fatalf("the run is blocked by %v, want %s", d.Open, kind)
	return pawl.Entry{}
}

// settle waits until nothing goes on without time or word from outside. What bodies have left in a test's variables can be read
// then: that a run's state shows it is no order to the race detector, which sees nothing of what happens in the store.
func (s *stage) settle() { synctest.Wait() }

// want fails unless each named effect was made that often.
func (s *stage) want(counts map[string]int) {
	s.t.Helper()
	s.settle()
	for name, n := range counts {
		if got := s.count(name); got != n {
			s.t.Errorf("effect %q was made %d times, want %d", name, got, n)
		}
	}
}

func (s *stage) resolve(en pawl.Entry, c pawl.Choice) {
	s.t.Helper()
	if err := s.answer(en, c, "ann"); err != nil {
		s.t.Fatalf("answer %q to %s: %v", c, en.Kind, err)
	}
}

func (s *stage) answer(en pawl.Entry, c pawl.Choice, by string) error {
	a := pawl.Answer{Entry: en.ID, Attempt: en.Attempt, Choice: c, By: by, Reason: "because", Looked: time.Now()}
	if c == pawl.AnswerHappened {
		a.Result = []byte(`"told"`)
	}
	return s.desk.Resolve(s.t.Context(), a)
}

// step is a step of a run as shown.
func step(t *testing.T, d *pawl.RunDetail, name string) pawl.StepDetail {
	t.Helper()
	for _, st := range d.Steps {
		if st.Name == name {
			return st
		}
	}
	t.Fatalf("the journal has no step %q: %+v", name, d.Steps)
	return pawl.StepDetail{}
}

// states are the states of a step's attempts in order, such as "lost succeeded".
func states(st pawl.StepDetail) string {
	var all []string
	for _, a := range st.Attempts {
		all = append(all, a.State)
	}
	return strings.Join(all, " ")
}

// result decodes nothing: strings are shown as JSON.
func result(t *testing.T, d *pawl.RunDetail, want string) {
	t.Helper()
	if d.State != pawl.Succeeded || string(d.Result) != fmt.Sprintf("%q", want) {
		t.Errorf("run is %s with result %s, want %q; fault %+v", d.State, d.Result, want, d.Fault)
	}
}

// mentions fails unless err is an error whose text has all parts.
func mentions(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one that mentions %q", parts)
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %.200q does not mention %q", err, p)
		}
	}
}

var ann = pawl.Act{By: "ann", Reason: "because"}

// plan makes a plan that must be possible.
func (s *stage) plan(id pawl.RunID, o pawl.PlanOptions) *pawl.Plan {
	s.t.Helper()
	p, err := s.desk.Plan(s.t.Context(), id, o)
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

// retry retries a finished run by hand.
func (s *stage) retry(id pawl.RunID) pawl.RunID {
	s.t.Helper()
	next, err := s.desk.Retry(s.t.Context(), s.plan(id, pawl.PlanOptions{Mode: pawl.PlanRetry}), ann)
	if err != nil {
		s.t.Fatal(err)
	}
	return next
}
