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
	wake  chan struct{} // capacity 1, carries nothing: look for due runs now

	build func() string
	hints hinter

	mu      sync.Mutex // guards waiters and space
	waiters map[RunID][]chan struct{}
	space   string // the namespace of operation keys, once read
}

// New makes an engine on a store. A process that only starts runs and answers questions passes no definitions. The
// store stays the caller's to close.
func New(s Store, o *Options, defs ...Definition) (*Engine, error) {
	if s == nil {
		return nil, errors.New("pawl: New needs a store: open one with sqlite.Open or postgres.Open")
	}
	e := &Engine{store: s, defs: make(map[VersionID]*definition), wake: make(chan struct{}, 1),
		waiters: make(map[RunID][]chan struct{})}
	if o != nil {
		e.o = *o
	}
	if err := e.o.check(); err != nil {
		return nil, err
	}
	e.log, e.hooks, e.space = e.o.logger(), e.o.Hooks, e.o.Namespace
	e.build = sync.OnceValue(func() string { return buildRevision(e.o.Build) })
	for _, d := range defs {
		def := d.definition()
		if _, twice := e.defs[def.VersionID]; twice {
			return nil, fmt.Errorf("pawl: workflow %q %s is defined twice", def.Workflow, def.Version)
		}
		e.defs[def.VersionID] = def
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

// InTx gives a client whose Start takes part in tx, a transaction on the store's database that the caller began and
// will end. Nothing runs before it has committed, and no worker is woken by it.
func InTx(e *Engine, tx *sql.Tx) Client { return ClientOn(e, SQLConn(tx)) }

// update is the store's Update, refused inside the callback of a Tx step, where it could wait for itself.
func (e *Engine) update(ctx context.Context, fn func(context.Context, Txn) error) error {
	if s, ok := StepOf(ctx); ok && s.Kind == fault.KindTx && !s.foreign {
		return fmt.Errorf("pawl: engine call inside the Tx step %q: use pawl.InTx with its transaction", s.Step)
	}
	return e.store.Update(ctx, fn)
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
}

func startAll(ctx context.Context, c Client, d *definition, ins []any, key func(int) (Key, bool), o startOptions) ([]started, error) {
	if len(ins) == 0 {
		return nil, nil
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
			Queue: cmpOr(o.queue, d.Workflow), State: Queued, Input: input, InputHash: hash}
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
	if err := checkName("Queue", rows[0].Queue); err != nil {
		return nil, err
	}
	err := c.ledger(ctx, func(ctx context.Context, tx Txn) error {
		out = make([]started, len(rows))
		var fresh []RunRow
		keys := make(map[Key]int)
		for i := range rows {
			row := &rows[i]
			if j, twin := keys[row.Key]; twin && slices.Equal(rows[j].InputHash, row.InputHash) {
				out[i] = started{out[j].id, false}
				continue
			}
			if row.Key != "" {
				keys[row.Key] = i
				found, err := e.byKey(ctx, tx, row, again)
				if err != nil {
					return err
				}
				if found.id != "" {
					out[i] = found
					continue
				}
			}
			out[i] = started{row.ID, true}
			fresh = append(fresh, *row)
		}
		for part := range chunks(fresh, 500) {
			if err := tx.InsertRuns(ctx, part); err != nil {
				return fmt.Errorf("insert %d runs: %w", len(part), err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("start %q: %w", rows[0].Workflow, err)
	}
	if c.local() {
		e.offer(ctx, VersionID{rows[0].Workflow, rows[0].Version}, len(rows))
	}
	return out, nil
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
		return started{newest.ID, false}, nil
	}
	p, err := e.planIn(ctx, tx, newest.ID, PlanOptions{Mode: PlanRetry}, false)
	if err != nil {
		return started{}, err
	}
	id, err := e.retryIn(ctx, tx, p, Act{By: "Again", Reason: "started again with the same key"})
	return started{id, true}, err
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
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// await blocks until the run is terminal and returns its result's JSON.
func (e *Engine) await(ctx context.Context, id RunID) ([]byte, error) {
	pause := 10 * time.Millisecond
	for {
		ended := e.watch(id)
		var run *RunRow
		var result []byte
		err := e.store.View(ctx, func(ctx context.Context, tx Txn) (err error) {
			if run, err = tx.LockRun(ctx, id); err == nil && run.State == Succeeded {
				_, result, err = tx.Payload(ctx, id)
			}
			return err
		})
		switch {
		case err != nil:
			e.unwatch(id, ended)
			return nil, fmt.Errorf("result of run %s: %w", id, err)
		case run.State.Terminal():
			e.unwatch(id, ended)
			return e.outcome(run, result)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			e.unwatch(id, ended)
			return nil, fmt.Errorf("result of run %s, which is %s: %w", id, run.State, context.Cause(ctx))
		case <-ended:
		case <-timer.C:
			pause = min(pause*2, time.Second)
		}
		timer.Stop()
		e.unwatch(id, ended)
	}
}

func (e *Engine) outcome(run *RunRow, result []byte) ([]byte, error) {
	switch run.State {
	case Succeeded:
		return e.open(result)
	case Cancelled:
		return nil, fmt.Errorf("run %s: %w", run.ID, ErrCancelled)
	default:
		f := &fault.Fault{Class: fault.OutcomeUnknown, Reason: fault.ReasonUnrecognized}
		if run.Fault != nil {
			f = run.Fault
		}
		return nil, &Error{Run: run.ID, Fault: *f}
	}
}

func (e *Engine) watch(id RunID) chan struct{} {
	ch := make(chan struct{}, 1)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiters[id] = append(e.waiters[id], ch)
	return ch
}

func (e *Engine) unwatch(id RunID, ch chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	left := slices.DeleteFunc(e.waiters[id], func(c chan struct{}) bool { return c == ch })
	if len(left) == 0 {
		delete(e.waiters, id)
		return
	}
	e.waiters[id] = left
}

// changed wakes those in this process who wait for the run.
func (e *Engine) changed(id RunID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ch := range e.waiters[id] {
		select {
		case ch <- struct{}{}:
		default:
		}
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
