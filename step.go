package pawl

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"sync"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/payload"
)

// stepCall is one call of a step verb without its types.
type stepCall struct {
	name    string
	kind    Kind
	in      any
	inType  reflect.Type
	outType reflect.Type
	o       stepOptions
	db      TxDB      // of a transaction in another database
	wait    *waitKind // of a wait, which has no callback
	batch   *batchCall
	typed   typed  // nil of a wait without an input and of a batch
	read    any    // the callback's result as the body will get it, an Out or a *Out …
	of      []byte // … and its JSON
	run     stepRun
}

// typed is the part of a call that knows its types.
type typed interface {
	// exec runs the callback on the live input, or on stored if that is not nil, and gives the result.
	exec(ctx context.Context, a attempt, stored []byte) (any, error)
	// check decodes a result as the body will get it, into a *Out.
	check(json []byte) (any, error)
	// checkIn is check for an input.
	checkIn(json []byte) (any, error)
}

// typedCall is a stepCall with its types.
type typedCall[In, Out any] struct {
	stepCall
	live In
	fn   func(context.Context, attempt, In) (Out, error) // nil of a wait
}

// attempt is what a callback of any kind may be given.
type attempt struct {
	intent Intent
	tx     *sql.Tx
	user   TxSession
}

// Repeatable runs fn as a step that may run twice without harm. After a crash it runs again.
//
// All steps: in is hashed beside the step's name, and for [Keyed] and [Once] stored and shown. The result and the error
// are the stored ones, on the first execution too; the error is an *[Error], or [ErrSuspended], [ErrCancelled]. A name
// may be used once in a run; loops use [Run.Item]. fn runs in the caller's goroutine, its context ends when the run is
// cancelled, the worker stops or loses its lease, or the step's [Timeout] passes.
func Repeatable[In, Out any](run *Run, name string, in In, fn func(context.Context, In) (Out, error), opts ...RepeatableOption) (Out, error) {
	c := newCall[In, Out](name, fault.KindRepeatable, in, func(ctx context.Context, _ attempt, in In) (Out, error) { return fn(ctx, in) })
	for _, o := range opts {
		o.repeatable(&c.o)
	}
	return result[Out](run, c)
}

// Keyed runs fn as a step whose repetition the far end absorbs through the key. After a crash it runs again with the
// same key while that is alive ([KeyTTL]), then it is treated as [Once].
func Keyed[In, Out any](run *Run, name string, in In, fn func(context.Context, OpKey, In) (Out, error), opts ...KeyedOption) (Out, error) {
	c := newCall[In, Out](name, fault.KindKeyed, in, func(ctx context.Context, a attempt, in In) (Out, error) { return fn(ctx, a.intent.Key, in) })
	for _, o := range opts {
		o.keyed(&c.o)
	}
	return result[Out](run, c)
}

// Tx runs fn in a transaction on the store's database. What fn writes and the journal row commit together, so the
// effect happens exactly once. fn must not commit or roll back, and must not call the engine but through [InTx]; it may
// be called again if the database aborts the transaction. On SQLite it has a third of the lease.
func Tx[In, Out any](run *Run, name string, in In, fn func(context.Context, *sql.Tx, In) (Out, error), opts ...TxOption) (Out, error) {
	c := newCall[In, Out](name, fault.KindTx, in, func(ctx context.Context, a attempt, in In) (Out, error) { return fn(ctx, a.tx, in) })
	for _, o := range opts {
		o.tx(&c.o)
	}
	return result[Out](run, c)
}

// TxIn is [Tx] in a database of the user's own, PostgreSQL or SQLite, in which `pawl migrate --tx-table` has made the
// table pawl_tx. A record there, unique by operation key, is written first in the user's transaction.
func TxIn[In, Out any](run *Run, name string, db *sql.DB, in In, fn func(context.Context, *sql.Tx, In) (Out, error), opts ...TxOption) (Out, error) {
	return TxVia(run, name, sqlTxDB{db}, in, func(ctx context.Context, s TxSession, in In) (Out, error) {
		return fn(ctx, s.(*sqlSession).tx, in)
	}, opts...)
}

// TxVia is [TxIn] for any driver. Programs use TxIn or postgres.Tx, which are made of it.
func TxVia[In, Out any](run *Run, name string, db TxDB, in In, fn func(context.Context, TxSession, In) (Out, error), opts ...TxOption) (Out, error) {
	c := newCall[In, Out](name, fault.KindTx, in, func(ctx context.Context, a attempt, in In) (Out, error) { return fn(ctx, a.user, in) })
	for _, o := range opts {
		o.tx(&c.o)
	}
	c.db = db
	return result[Out](run, c)
}

// Once runs fn as a step that must not run twice. Its intent is durable first. If the process dies meanwhile, or fn
// fails without a proof that nothing happened, the step is uncertain: a [Probe] is asked, then a person. In the
// documented residual window, a process frozen between its last check and the send for longer than deadline, lease and
// [Settle] together, the effect may still happen after somebody said that it had not.
func Once[In, Out any](run *Run, name string, in In, fn func(context.Context, Intent, In) (Out, error), opts ...OnceOption) (Out, error) {
	c := newCall[In, Out](name, fault.KindOnce, in, func(ctx context.Context, a attempt, in In) (Out, error) { return fn(ctx, a.intent, in) })
	for _, o := range opts {
		o.once(&c.o)
	}
	return result[Out](run, c)
}

// None is the result of a step without one. Its JSON is {}.
type None = struct{}

// RepeatableDo is [Repeatable] for a step without a result.
func RepeatableDo[In any](run *Run, name string, in In, fn func(context.Context, In) error, opts ...RepeatableOption) error {
	_, err := Repeatable(run, name, in, func(ctx context.Context, in In) (None, error) { return None{}, fn(ctx, in) }, opts...)
	return err
}

// KeyedDo is [Keyed] for a step without a result.
func KeyedDo[In any](run *Run, name string, in In, fn func(context.Context, OpKey, In) error, opts ...KeyedOption) error {
	_, err := Keyed(run, name, in, func(ctx context.Context, k OpKey, in In) (None, error) { return None{}, fn(ctx, k, in) }, opts...)
	return err
}

// TxDo is [Tx] for a step without a result.
func TxDo[In any](run *Run, name string, in In, fn func(context.Context, *sql.Tx, In) error, opts ...TxOption) error {
	_, err := Tx(run, name, in, func(ctx context.Context, tx *sql.Tx, in In) (None, error) { return None{}, fn(ctx, tx, in) }, opts...)
	return err
}

// OnceDo is [Once] for a step without a result.
func OnceDo[In any](run *Run, name string, in In, fn func(context.Context, Intent, In) error, opts ...OnceOption) error {
	_, err := Once(run, name, in, func(ctx context.Context, it Intent, in In) (None, error) { return None{}, fn(ctx, it, in) }, opts...)
	return err
}

func newCall[In, Out any](name string, kind Kind, in In, fn func(context.Context, attempt, In) (Out, error)) *stepCall {
	t := &typedCall[In, Out]{live: in, fn: fn}
	t.name, t.kind, t.in, t.inType, t.outType, t.typed = name, kind, in, reflect.TypeFor[In](), reflect.TypeFor[Out](), t
	return &t.stepCall
}

func (t *typedCall[In, Out]) exec(ctx context.Context, a attempt, stored []byte) (any, error) {
	in := t.live
	if stored != nil {
		in = *new(In)
		if err := decode(stored, &in); err != nil {
			return nil, fault.NotSent(fault.Invalid(fmt.Errorf("stored input: %w", err)))
		}
	}
	return t.fn(ctx, a, in)
}

func (t *typedCall[In, Out]) check(json []byte) (any, error) {
	out := new(Out)
	return out, decode(json, out)
}

func (t *typedCall[In, Out]) checkIn(json []byte) (any, error) {
	in := new(In)
	return in, decode(json, in)
}

func result[Out any](run *Run, c *stepCall) (Out, error) {
	json, err := run.step(c)
	if err != nil {
		return *new(Out), err
	}
	if c.read != nil && bytes.Equal(json, c.of) {
		switch read := c.read.(type) {
		case *Out:
			return *read, nil
		case Out:
			return read, nil
		}
	}
	out := new(Out)
	if err := decode(json, out); err != nil {
		return *new(Out), run.branch.undecodable(run.path(c.name), err)
	}
	return *out, nil
}

func (r *Run) path(name string) string { return stepPath(r.scope, name) }

// StepInfo says which step of which run a context belongs to.
type StepInfo struct {
	Run      RunID
	Lineage  RunID
	Workflow string
	Version  string
	Step     string // full path
	Kind     Kind
	Key      OpKey
	Attempt  int

	foreign bool // a Tx in another database: the engine may be called
	report  *report
	of      *stepRun
}

type stepKey struct{}

// StepOf returns the step whose callback was given ctx; false outside of one.
func StepOf(ctx context.Context) (StepInfo, bool) {
	s, ok := ctx.Value(stepKey{}).(*StepInfo)
	if !ok {
		return StepInfo{}, false
	}
	info := *s
	if info.Key == "" { // few ask
		info.Key = s.of.x.row.opKey(s.of.x.w.space, info.Step)
	}
	return info, true
}

// Report adds to what is known about the running attempt's cost and ids, where nobody else can read them. Texts replace
// what was reported before, numbers are added. What the transport of package fault saw counts only where nothing was
// reported. Outside a step it does nothing. It is safe for concurrent use.
func Report(ctx context.Context, u Usage) {
	if s, ok := ctx.Value(stepKey{}).(*StepInfo); ok && s.report != nil {
		s.report.add(u)
	}
}

// report collects what an attempt used.
type report struct {
	mu sync.Mutex // guards u
	u  Usage
}

func (r *report) add(u Usage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for dst, src := range map[*string]string{&r.u.Provider: u.Provider, &r.u.Model: u.Model, &r.u.RequestID: u.RequestID} {
		if src != "" {
			*dst = payload.Clean(src, 200)
		}
	}
	r.u.TokensIn += u.TokensIn
	r.u.TokensOut += u.TokensOut
	r.u.CostMicros += u.CostMicros
}

func (r *report) usage() Usage {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.u
}
