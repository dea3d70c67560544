package pawl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"regexp"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/payload"
)

// Workflow is a named, versioned Go function whose steps are journalled. In and Out travel as JSON.
type Workflow[In, Out any] struct{ def *definition }

// Definition is what [New] takes: a *[Workflow] or a *[Schedule]. It is sealed.
type Definition interface{ definition() *definition }

func (w *Workflow[In, Out]) definition() *definition { return w.def }

// definition is a workflow without its types.
type definition struct {
	VersionID
	keyName          string
	blockOnExhausted bool
	limits           Limits
	inType           reflect.Type
	checkInput       func(json []byte) error
	reencode         func(json []byte) (in any, err error) // as the workflow's own type
	body             func(run *Run, input []byte) (result []byte, err error)
}

var versionPattern = regexp.MustCompile(`^v[0-9][0-9A-Za-z._-]*$`)

// errInput marks a stored input that does not decode.
var errInput = errors.New("stored input does not decode")

// Define makes a workflow of fn. A version is a "v" and a digit, then letters, digits, ".", "_" or "-". Define panics on
// a bad name or version, on a nil fn, and if JSON would lose values of In or Out (chan, func, no exported field).
func Define[In, Out any](name, version string, fn func(*Run, In) (Out, error), opts ...DefineOption) *Workflow[In, Out] {
	d := &definition{VersionID: VersionID{name, version}, keyName: name}
	for _, o := range opts {
		o.define(d)
	}
	if err := d.check(); err != nil {
		panic(err) //nolint:forbidigo // at registration
	}
	if fn == nil {
		panic(fmt.Errorf("pawl: workflow %q has no function", name)) //nolint:forbidigo // at registration
	}
	for _, t := range []reflect.Type{reflect.TypeFor[In](), reflect.TypeFor[Out]()} {
		if err := payload.CheckType(t); err != nil {
			panic(fmt.Errorf("pawl: workflow %q: %w", name, err)) //nolint:forbidigo // at registration
		}
	}
	d.inType = reflect.TypeFor[In]()
	d.checkInput = func(json []byte) error { return decode(json, new(In)) }
	d.reencode = func(doc []byte) (any, error) {
		var in In
		if t := reflect.TypeFor[In](); t.Kind() == reflect.Struct && t.NumField() > 0 && string(bytes.TrimSpace(doc)) == "null" {
			return nil, fmt.Errorf("null would be an empty %v, give {} if that is meant: %w", t, &json.UnmarshalTypeError{Value: "null", Type: t})
		}
		err := decode(doc, &in)
		return in, err
	}
	d.body = func(run *Run, input []byte) ([]byte, error) {
		var in In
		if err := decode(input, &in); err != nil {
			return nil, fmt.Errorf("%w: %w", errInput, err)
		}
		out, err := fn(run, in)
		if err != nil {
			return nil, err
		}
		result, err := encode(out)
		if err != nil {
			return nil, notStorable("the workflow's result", err)
		}
		return result, nil
	}
	return &Workflow[In, Out]{d}
}

func (d *definition) check() error {
	if err := checkName("workflow name", d.Workflow); err != nil {
		return err
	}
	if err := checkName("KeyName", d.keyName); err != nil {
		return err
	}
	if err := d.limits.check(); err != nil {
		return fmt.Errorf("pawl: workflow %q: %w", d.Workflow, err)
	}
	if !versionPattern.MatchString(d.Version) {
		return fmt.Errorf("pawl: workflow %q has version %q: want v and a number, like v1 (the name comes first)",
			d.Workflow, d.Version)
	}
	return nil
}

// Client is where runs are started: an *[Engine], or a transaction of the caller's through [InTx]. It is sealed.
type Client interface {
	// ledger runs fn in a transaction: the client's own, or the one the caller began.
	ledger(ctx context.Context, fn func(ctx context.Context, tx Txn) error) error
	engine() *Engine
	// local reports whether what was started is durable when ledger returns.
	local() bool
}

type txClient struct {
	e    *Engine
	conn Conn
}

// ClientOn makes a client of a transaction that the caller began on the store's database and will end. It is for
// packages that adapt a driver; programs use [InTx] or postgres.InTx.
func ClientOn(e *Engine, c Conn) Client { return &txClient{e, c} }

func (c *txClient) ledger(ctx context.Context, fn func(context.Context, Txn) error) error {
	return fn(ctx, c.e.store.On(c.conn))
}
func (c *txClient) engine() *Engine { return c.e }
func (c *txClient) local() bool     { return false }

// Start begins a run, or finds the one that its [Key] names: same key and input give the lineage's newest run, another
// input gives [ErrConflict]. The run is durable when Start returns (inside [InTx]: when the transaction commits).
func (w *Workflow[In, Out]) Start(ctx context.Context, c Client, in In, opts ...StartOption) (*Handle[Out], error) {
	o := startOptions{}
	for _, opt := range opts {
		opt.start(&o)
	}
	s, err := startAll(ctx, c, w.def, []any{in}, func(int) (Key, bool) { return o.key, o.hasKey }, o)
	if err != nil {
		return nil, err
	}
	return newHandle[Out](c, s[0], time.Now()), nil
}

// StartMany begins a run for each input in one transaction. key gives each its product key; nil means none. Either all
// are started or found, or none is. Handles are in the order of ins.
func (w *Workflow[In, Out]) StartMany(ctx context.Context, c Client, ins []In, key func(In) Key, opts ...StartOption) ([]*Handle[Out], error) {
	o := startOptions{}
	for _, opt := range opts {
		opt.start(&o)
	}
	if o.hasKey {
		return nil, fmt.Errorf("pawl: StartMany of %q: one Key for all inputs: give a key function instead", w.def.Workflow)
	}
	all := make([]any, len(ins))
	for i := range ins {
		all[i] = ins[i]
	}
	s, err := startAll(ctx, c, w.def, all, func(i int) (Key, bool) {
		if key == nil {
			return "", false
		}
		return key(ins[i]), true
	}, o)
	if err != nil {
		return nil, err
	}
	hs, now := make([]*Handle[Out], len(s)), time.Now()
	for i := range s {
		hs[i] = newHandle[Out](c, s[i], now)
	}
	return hs, nil
}

// NameOf is the name and version of a definition; of a schedule, those of its workflow.
func NameOf(d Definition) VersionID { return d.definition().VersionID }

// StartJSON is [Workflow.Start] for tools that have the input as JSON. It reports whether the run is new. An input
// that does not decode into the workflow's own type is refused, and so is null for a struct.
func StartJSON(ctx context.Context, c Client, d Definition, json []byte, opts ...StartOption) (RunID, bool, error) {
	def, o := d.definition(), startOptions{}
	for _, opt := range opts {
		opt.start(&o)
	}
	in, err := def.reencode(json)
	if err != nil {
		return "", false, fmt.Errorf("input of %q: %w", def.Workflow, err)
	}
	s, err := startAll(ctx, c, def, []any{in}, func(int) (Key, bool) { return o.key, o.hasKey }, o)
	if err != nil {
		return "", false, err
	}
	return s[0].id, s[0].isNew, nil
}

// Handle names a run that is there already. It does no I/O; a wrong id shows when it is used.
func (w *Workflow[In, Out]) Handle(c Client, id RunID) *Handle[Out] {
	return &Handle[Out]{e: c.engine(), id: id}
}

// Handle is a run whose result has the type Out. It needs no closing and is safe for concurrent use.
type Handle[Out any] struct {
	e     *Engine
	id    RunID
	isNew bool
	made  time.Time // when the run was started; zero if it was there
	here  *here
}

func newHandle[Out any](c Client, s started, now time.Time) *Handle[Out] {
	h := &Handle[Out]{e: c.engine(), id: s.id, isNew: s.isNew, here: s.here}
	if s.isNew {
		h.made = now
	}
	return h
}

// ID is the run's id.
func (h *Handle[Out]) ID() RunID { return h.id }

// New reports whether the call that gave this handle started the run; false means that it was there already.
func (h *Handle[Out]) New() bool { return h.isNew }

// Status reads the run's state.
func (h *Handle[Out]) Status(ctx context.Context) (RunInfo, error) { return h.e.info(ctx, h.id) }

// Result blocks until the run is terminal or ctx ends. A failed run gives an *[Error], a cancelled one [ErrCancelled].
// A waiting or blocked run keeps it blocking; [Handle.Status] says why. Of a run that has continued ([ContinueAs]) it is the
// last successor that counts.
func (h *Handle[Out]) Result(ctx context.Context) (Out, error) {
	var out Out
	raw, err := h.e.await(ctx, h.id, h.made, h.here)
	if err != nil {
		return out, err
	}
	if err := decode(raw, &out); err != nil {
		return out, fmt.Errorf("result of run %s: %w", h.id, err)
	}
	return out, nil
}

// encode gives the JSON of a payload; it is where values that would not come back as they were are refused.
func encode(v any) ([]byte, error) { return payload.Marshal(v) }

func decode(json []byte, v any) error { return payload.Unmarshal(json, v) }

// notStorable says that something happened but what came of it cannot be kept.
func notStorable(what string, err error) error {
	return &fault.Fault{Class: fault.InvalidRequest, Reason: fault.ReasonNotStorable, Outcome: fault.OutcomeMaybeExecuted,
		Message: payload.Clean(what+" cannot be stored: "+err.Error(), 4096), Err: err}
}

// chunks gives a slice in parts of at most n.
func chunks[T any](s []T, n int) iter.Seq[[]T] {
	return func(yield func([]T) bool) {
		for len(s) > 0 {
			k := min(n, len(s))
			if !yield(s[:k:k]) {
				return
			}
			s = s[k:]
		}
	}
}

// micros converts a stored time.
func micros(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}
