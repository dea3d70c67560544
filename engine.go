package pawl

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
)

// Engine starts runs, works on them and answers for them. It is safe for concurrent use. Without Work it owns no
// goroutines, but for a moment after many starts, when it tells the workers of other processes about the last ones.
type Engine struct {
	store Store
	o     Options
	log   *slog.Logger
	hooks *hooks.Hooks
	defs  map[VersionID]*definition
	// What code declares, by name.
	schedules map[string]*Schedule
	wake      chan struct{} // capacity 1, carries nothing: look for due runs now

	build  func() string
	writer *writer
	hints  hinter

	mu      sync.Mutex // guards all below
	waiters map[RunID][]chan *RunRow
	space   string // the namespace of operation keys, once read
	workers []*worker
	lanes   map[string]laneSeen
	heeded  map[string]time.Time // queues in which no run begins at its start, for so long
}

// New makes an engine on a store. A process that only starts runs and answers questions passes no definitions. The
// store stays the caller's to close.
func New(s Store, o *Options, defs ...Definition) (*Engine, error) {
	if s == nil {
		return nil, errors.New("pawl: New needs a store: open one with sqlite.Open or postgres.Open")
	}
	e := &Engine{store: s, defs: make(map[VersionID]*definition), schedules: make(map[string]*Schedule), wake: make(chan struct{}, 1),
		waiters: make(map[RunID][]chan *RunRow), heeded: make(map[string]time.Time), lanes: make(map[string]laneSeen)}
	if o != nil {
		e.o = *o
	}
	if err := e.o.check(); err != nil {
		return nil, err
	}
	e.log, e.hooks, e.space, e.writer = e.o.logger(), e.o.Hooks, e.o.Namespace, newWriter(e)
	e.build = sync.OnceValue(func() string { return buildRevision(e.o.Build) })
	for _, d := range defs {
		def := d.definition()
		if sched, is := d.(*Schedule); is {
			if e.schedules[sched.Name()] != nil {
				return nil, fmt.Errorf("pawl: schedule %q is defined twice", sched.Name())
			}
			e.schedules[sched.Name()] = sched
			continue
		}
		if _, twice := e.defs[def.VersionID]; twice {
			return nil, fmt.Errorf("pawl: workflow %q %s is defined twice", def.Workflow, def.Version)
		}
		e.defs[def.VersionID] = def
	}
	for _, sched := range e.schedules { // a schedule brings its workflow along
		if d := e.defs[sched.def.VersionID]; d != nil && d != sched.def {
			return nil, fmt.Errorf("pawl: schedule %q is of another workflow %q %s than the one that is defined", sched.Name(), d.Workflow, d.Version)
		}
		e.defs[sched.def.VersionID] = sched.def
	}
	return e, nil
}

func (e *Engine) ledger(ctx context.Context, fn func(context.Context, Txn) error) error {
	return e.update(ctx, fn)
}
func (e *Engine) engine() *Engine { return e }
func (e *Engine) local() bool     { return true }

// Workflows lists what the engine can execute, in order.
func (e *Engine) Workflows() []VersionID {
	return slices.SortedFunc(maps.Keys(e.defs), func(a, b VersionID) int {
		if a.Workflow != b.Workflow {
			return compare(a.Workflow, b.Workflow)
		}
		return compare(a.Version, b.Version)
	})
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// Store is the store the engine was made with.
func (e *Engine) Store() Store { return e.store }

// oneWriter reports whether the store has one write lock for all.
func (e *Engine) oneWriter() bool { return e.store.Name() == "sqlite" }

// InTx gives a client whose Start takes part in tx, a transaction on the store's database that the caller began and
// will end. Nothing runs before it has committed, and no worker is woken by it.
func InTx(e *Engine, tx *sql.Tx) Client { return ClientOn(e, SQLConn(tx)) }

// update is the store's Update, refused where it could wait for itself.
func (e *Engine) update(ctx context.Context, fn func(context.Context, Txn) error) error {
	if err := e.outside(ctx); err != nil {
		return err
	}
	return e.store.Update(ctx, fn)
}

// outside refuses what is called inside the callback of a Tx step.
func (e *Engine) outside(ctx context.Context) error {
	if s, ok := StepOf(ctx); ok && s.Kind == fault.KindTx && !s.foreign {
		return fmt.Errorf("pawl: engine call inside the Tx step %q: use pawl.InTx with its transaction", s.Step)
	}
	return nil
}

func (e *Engine) namespace(ctx context.Context, tx Txn) (string, error) {
	e.mu.Lock()
	space := e.space
	e.mu.Unlock()
	if space != "" {
		return space, nil
	}
	space, err := tx.Namespace(ctx)
	if err != nil {
		return "", fmt.Errorf("read namespace: %w", err)
	}
	e.mu.Lock()
	e.space = space
	e.mu.Unlock()
	return space, nil
}

// started is what became of one start.
type started struct {
	id    RunID
	isNew bool
	here  *here
}

// here is a run that has begun in this process when it was started, so that its end need not be looked up.
type here struct {
	done  chan struct{} // closed when this execution is over; final is set then
	final *RunRow       // how the run has ended, with its result; nil if it has not
}

func startAll(ctx context.Context, c Client, d *definition, ins []any, key func(int) (Key, bool), o startOptions) ([]started, error) {
	if len(ins) == 0 {
		return nil, nil
	}
	switch {
	case o.err != nil:
		return nil, fmt.Errorf("pawl: start %q: %w", d.Workflow, o.err)
	case o.detached:
		return nil, fmt.Errorf("pawl: start %q: Detached is for Child: nothing waits for this run", d.Workflow)
	}
	e := c.engine()
	rows := make([]RunRow, len(ins))
	for i, in := range ins {
		k, has := key(i)
		if has {
			if err := checkName("Key", string(k)); err != nil {
				return nil, err
			}
		}
		if o.again && !has {
			return nil, fmt.Errorf("pawl: start %q: Again needs a Key", d.Workflow)
		}
		input, hash, err := e.pack(in)
		if err != nil {
			return nil, fmt.Errorf("input of %q: %w", d.Workflow, err)
		}
		id := newRunID()
		rows[i] = RunRow{ID: id, Lineage: id, Workflow: d.Workflow, Version: d.Version, KeyName: d.keyName, Key: k,
			Queue: cmpOr(o.queue, d.Workflow), Priority: o.priority, Share: o.share, State: Queued, Input: input, InputHash: hash}
		o.times(&rows[i])
	}
	return e.startRows(ctx, c, rows, o.again)
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// startRows inserts runs or finds those their keys name.
func (e *Engine) startRows(ctx context.Context, c Client, rows []RunRow, again bool) ([]started, error) {
	var out []started
	if err := rows[0].checkPlace(); err != nil {
		return nil, err
	}
	if c.local() && !slices.ContainsFunc(rows, func(r RunRow) bool { return r.Key != "" }) {
		if out, err := e.startFree(ctx, rows); !errors.Is(err, ErrOneByOne) {
			return out, err
		}
	}
	err := c.ledger(ctx, func(ctx context.Context, tx Txn) (err error) {
		out, err = e.startIn(ctx, tx, rows, again)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("start %q: %w", rows[0].Workflow, err)
	}
	if c.local() {
		n := 0
		for i := range out {
			if out[i].isNew {
				n++
			}
		}
		e.offer(ctx, VersionID{rows[0].Workflow, rows[0].Version}, n)
	}
	return out, nil
}

// startIn is startRows inside a transaction.
func (e *Engine) startIn(ctx context.Context, tx Txn, rows []RunRow, again bool) ([]started, error) {
	out := make([]started, len(rows))
	var fresh []RunRow
	keys := make(map[Key]int)
	for i := range rows {
		row := &rows[i]
		if j, twin := keys[row.Key]; twin && slices.Equal(rows[j].InputHash, row.InputHash) {
			out[i] = started{id: out[j].id}
			continue
		}
		if row.Key != "" {
			keys[row.Key] = i
			found, err := e.byKey(ctx, tx, row, again)
			if err != nil {
				return nil, err
			}
			if found.id != "" {
				out[i] = found
				continue
			}
		}
		out[i] = started{id: row.ID, isNew: true}
		fresh = append(fresh, *row)
	}
	if err := schedule(ctx, tx, fresh); err != nil {
		return nil, err
	}
	for part := range chunks(fresh, 500) {
		if err := tx.InsertRuns(ctx, part); err != nil {
			return nil, fmt.Errorf("insert %d runs: %w", len(part), err)
		}
	}
	return out, nil
}

// startFree starts runs without keys, all or none.
func (e *Engine) startFree(ctx context.Context, rows []RunRow) (out []started, err error) {
	var begun *here
	if len(rows) == 1 {
		begun, err = e.startOne(ctx, &rows[0])
	} else {
		err = e.startMany(ctx, rows)
	}
	if err != nil {
		return nil, fmt.Errorf("start %q: %w", rows[0].Workflow, err)
	}
	for i := range rows {
		out = append(out, started{id: rows[i].ID, isNew: true, here: begun})
	}
	return out, nil
}

// startOne starts a run without a key, together with whatever else is being written. If a worker of this process has a free
// slot for it, the run is begun at once.
func (e *Engine) startOne(ctx context.Context, row *RunRow) (*here, error) {
	if err := e.outside(ctx); err != nil {
		return nil, err
	}
	w := e.host(row)
	err := e.writer.join(ctx, Change{Start: row})
	switch {
	case err != nil && w != nil:
		w.unreserve(row.ID)
		if errors.Is(err, ErrOneByOne) { // its queue may have settings to heed
			e.heed(row.Queue)
		}
		row.State, row.Epoch, row.Token, row.Owner, row.Builds = Queued, 0, 0, "", ""
	case err != nil:
	case w != nil:
		h := &here{done: make(chan struct{})}
		w.begin(Claimed{Row: *row, From: Queued}, nil, h)
		return h, nil
	default:
		e.offer(ctx, VersionID{row.Workflow, row.Version}, 1)
	}
	return nil, err
}

// startBytes is how much may start in one statement. A server takes only so much.
const startBytes = 64 << 20

// startMany starts runs without keys in one transaction of their own, unless their inputs are too much for a statement.
func (e *Engine) startMany(ctx context.Context, rows []RunRow) error {
	if err := e.outside(ctx); err != nil {
		return err
	}
	changes := make([]Change, len(rows))
	size := 0
	for i := range rows {
		changes[i].Start = &rows[i]
		size += changes[i].size()
	}
	if size > startBytes {
		return ErrOneByOne
	}
	if _, err := e.store.Write(ctx, changes); err != nil {
		return err
	}
	e.offer(ctx, VersionID{rows[0].Workflow, rows[0].Version}, len(rows))
	return nil
}

// host finds a worker of this process that will execute the run as its own.
func (e *Engine) host(row *RunRow) *worker {
	id := VersionID{row.Workflow, row.Version}
	if e.defs[id] == nil || row.Due > 0 || row.Share != "" {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if time.Now().Before(e.heeded[row.Queue]) {
		return nil
	}
	for _, w := range e.workers {
		if w.reserve(row) {
			return w
		}
	}
	return nil
}

func (e *Engine) employ(w *worker) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.workers = append(e.workers, w)
}

// dismiss lets the worker begin nothing any more.
func (e *Engine) dismiss(w *worker) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.workers = slices.DeleteFunc(e.workers, func(o *worker) bool { return o == w })
	w.stopping.Store(true)
}

// byKey claims the row's product key and returns nothing, or the run that has it, or the retry of that run.
func (e *Engine) byKey(ctx context.Context, tx Txn, row *RunRow, again bool) (started, error) {
	key, isNew, err := tx.ClaimKey(ctx, KeyRow{KeyName: row.KeyName, Key: row.Key, InputHash: row.InputHash, Lineage: row.Lineage})
	if err != nil || isNew {
		return started{}, err
	}
	if !slices.Equal(key.InputHash, row.InputHash) {
		return started{}, fmt.Errorf("key %q was started with another input (run %s): %w", row.Key, key.Lineage, ErrConflict)
	}
	family, err := tx.Lineage(ctx, key.Lineage)
	if err != nil {
		return started{}, err
	}
	if len(family) == 0 {
		return started{}, fmt.Errorf("key %q: the run is done (%s) and its details are deleted: %w", row.Key, key.End, ErrConflict)
	}
	newest := family[max(0, slices.IndexFunc(family, func(r RunRow) bool { return r.ID == key.Lineage }))]
	if later := after(family, newest.ID); len(later) > 0 {
		newest = later[len(later)-1]
	}
	if !again || !newest.State.Terminal() || newest.State == Succeeded {
		return started{id: newest.ID}, nil
	}
	p, err := e.planIn(ctx, tx, newest.ID, PlanOptions{Mode: PlanRetry}, false)
	if err != nil {
		return started{}, err
	}
	id, err := e.retryIn(ctx, tx, p, Act{By: "Again", Reason: "started again with the same key"})
	return started{id: id, isNew: true}, err
}

// pack makes the stored form of a payload and the hash of its input.
func (e *Engine) pack(v any) (stored, hash []byte, err error) {
	json, err := encode(v)
	if err != nil {
		return nil, nil, err
	}
	hash, err = hashOf(json)
	if err != nil {
		return nil, nil, err
	}
	stored, err = e.seal(json)
	return stored, hash, err
}

// seal applies the codec and the size limit.
func (e *Engine) seal(json []byte) ([]byte, error) {
	if limit := e.o.maxPayload(); len(json) > limit {
		return nil, &fault.Fault{Class: fault.InvalidRequest, Reason: fault.ReasonTooLarge, Outcome: fault.OutcomeMaybeExecuted,
			Message: fmt.Sprintf("%d bytes of JSON exceed the limit of %d: store it elsewhere and pass a reference", len(json), limit)}
	}
	return e.cover(json)
}

// cover is seal without the limit, for what the engine adds of its own.
func (e *Engine) cover(json []byte) ([]byte, error) {
	if e.o.Codec == nil {
		return json, nil
	}
	sealed, err := e.o.Codec.Seal(json)
	if err != nil {
		return nil, fmt.Errorf("codec: %w", err)
	}
	return sealed, nil
}

// open undoes seal. A run without input or result has none to open.
func (e *Engine) open(stored []byte) ([]byte, error) {
	if e.o.Codec == nil || len(stored) == 0 {
		return stored, nil
	}
	json, err := e.o.Codec.Open(stored)
	if err != nil {
		return nil, fmt.Errorf("codec: %w", err)
	}
	return json, nil
}

// nudge makes an idle worker of this process look for work now.
func (e *Engine) nudge() {
	e.mu.Lock()
	for _, w := range e.workers {
		w.busy()
	}
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// buildRevision is the given revision, else the VCS revision of a clean build, else a digest of the executable.
func buildRevision(given string) string {
	if given != "" {
		return given
	}
	revision, modified := "", false
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				revision = s.Value
			case "vcs.modified":
				modified = s.Value == "true"
			}
		}
	}
	if revision != "" && !modified {
		return revision[:min(12, len(revision))]
	}
	path, err := os.Executable()
	if err != nil {
		return "unknown"
	}
	f, err := os.Open(path)
	if err != nil {
		return "unknown"
	}
	defer func() { _ = f.Close() }() // only read
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "unknown"
	}
	return "exe-" + hex.EncodeToString(h.Sum(nil))[:12]
}
