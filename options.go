package pawl

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
)

// Options configures an [Engine]. Nil and the zero value are valid.
type Options struct {
	// Slots is how many bodies the worker executes at once. Zero means 100. The next run may begin while the end of the one before
	// is being written, so that a worker owns up to twice as many.
	Slots int
	// Lease is how long a silent worker keeps its runs. It is renewed at a third. Zero means 30 s; less than 2 s is
	// refused.
	Lease time.Duration
	// Poll is how often a worker with free slots asks for due runs when nothing woke it. Zero means 1 s.
	Poll time.Duration
	// Drain is how long Work lets steps finish after its context has ended before it cancels them. Zero means 20 s.
	Drain time.Duration
	// MaxPayload bounds one stored input or result, in bytes. Zero means 1 MiB.
	MaxPayload int
	// Codec transforms stored payloads, for example to encrypt them. Nil stores JSON as it is.
	Codec Codec
	// Logger gets what the engine has to say. Nil means [slog.Default].
	Logger *slog.Logger
	// Build is the revision recorded beside the version of a run. Empty means the VCS revision of the binary, or a
	// digest of the executable where it has none or was built from a changed tree.
	Build string
	// Prices are what models cost, for estimates. Nil means fault.DefaultPrices.
	Prices *fault.Prices
	// Namespace replaces the store's own in operation keys, so that two systems share keys or a copy does not.
	Namespace string
	// Retention is how long a finished run can be looked at and retried: workers delete each lineage, with its journal,
	// when every run of it ended that long ago and nobody owes or is owed an answer. Zero means for ever, because what is
	// deleted cannot be brought back; less than 1 h is refused. If workers differ, the shortest counts.
	//
	// A product key is remembered for 400 days after the last run under it ended, and is not started again before; acts of
	// people are kept for three years. Both are kept at least as long as the run.
	Retention time.Duration
	// OnOccurrence is told what this process's workers have made of an instant of a schedule, after it is durable: for
	// metrics, and for alerts about schedules that start no run, which is no failed run. A process that dies in between does
	// not tell. It must not block. Nil for none.
	OnOccurrence func(Occurrence)
	// Hooks is for this module's own tests; a program outside it cannot make one.
	Hooks *hooks.Hooks
}

func (o Options) slots() int {
	if o.Slots == 0 {
		return 100
	}
	return o.Slots
}

func (o Options) lease() time.Duration {
	if o.Lease == 0 {
		return 30 * time.Second
	}
	return o.Lease
}

func (o Options) poll() time.Duration {
	if o.Poll == 0 {
		return time.Second
	}
	return o.Poll
}

func (o Options) prices() *fault.Prices {
	if o.Prices == nil {
		return fault.DefaultPrices()
	}
	return o.Prices
}

func (o Options) drain() time.Duration {
	if o.Drain == 0 {
		return 20 * time.Second
	}
	return o.Drain
}

func (o Options) maxPayload() int {
	if o.MaxPayload == 0 {
		return 1 << 20
	}
	return o.MaxPayload
}

func (o Options) logger() *slog.Logger {
	if o.Logger == nil {
		return slog.Default()
	}
	return o.Logger
}

func (o Options) flushDelay() time.Duration {
	if o.Hooks != nil && o.Hooks.FlushDelay > 0 {
		return o.Hooks.FlushDelay
	}
	return 2 * time.Millisecond
}

// check refuses values that would make the engine unsafe or idle.
func (o Options) check() error {
	switch {
	case o.Slots < 0:
		return fmt.Errorf("pawl: Options.Slots is %d: want 0 (100) or more", o.Slots)
	case o.Lease != 0 && o.Lease < 2*time.Second:
		return fmt.Errorf("pawl: Options.Lease is %v: want 2s or more", o.Lease)
	case o.Poll < 0 || o.Drain < 0 || o.MaxPayload < 0:
		return fmt.Errorf("pawl: Options.Poll, Drain and MaxPayload must not be negative")
	case o.Retention != 0 && o.Retention < minRetention:
		return fmt.Errorf("pawl: Options.Retention is %v: want 0 (for ever), or %v or more", o.Retention, minRetention)
	case strings.Contains(o.Build, ","):
		return fmt.Errorf("pawl: Options.Build is %q: want no comma", o.Build)
	}
	for _, o := range []struct{ what, value string }{{"Options.Build", o.Build}, {"Options.Namespace", o.Namespace}} {
		if o.value == "" {
			continue
		}
		if err := checkName(o.what, o.value); err != nil {
			return err
		}
	}
	return nil
}

// Codec transforms a payload between its JSON and what is stored.
type Codec interface {
	// Seal returns what to store for a JSON text.
	Seal(json []byte) ([]byte, error)
	// Open is the inverse of Seal.
	Open(stored []byte) ([]byte, error)
}

// DefineOption is an option of [Define].
type DefineOption interface{ define(*definition) }

type defineFunc func(*definition)

func (f defineFunc) define(d *definition) { f(d) }

// KeyName fixes the name that stands in operation and product keys, so that a workflow can be renamed without sending
// anything twice. The default is the workflow's name.
func KeyName(name string) DefineOption {
	return defineFunc(func(d *definition) { d.keyName = name })
}

// BlockOnExhausted makes a step whose attempts are used up block the run, so that a person may resume it, instead of
// handing the error to the body.
func BlockOnExhausted() DefineOption {
	return defineFunc(func(d *definition) { d.blockOnExhausted = true })
}

// StartOption is an option of [Workflow.Start].
type StartOption interface{ start(*startOptions) }

type startOptions struct {
	key    Key
	hasKey bool
	again  bool
	queue  string

	at       int64         // not before, 0 now
	deadline time.Duration // 0 none
	detached bool
	priority int
	share    Key
	err      error // the first thing wrong with an option
}

func (o *startOptions) fail(err error) {
	if o.err == nil {
		o.err = err
	}
}

type startFunc func(*startOptions)

func (f startFunc) start(o *startOptions) { f(o) }

func (k Key) start(o *startOptions) { o.key, o.hasKey = k, true }

// Again retries the lineage's newest run, as [Engine.Retry] does with the plan of the moment, if it has failed or was
// cancelled; the retry counts as new. A step that may have happened is asked about before it runs again. It needs a [Key].
func Again() StartOption { return startFunc(func(o *startOptions) { o.again = true }) }

// Queue names where the run waits. The default is its workflow's name. Queues are few: each costs every claim a look-up.
// Where there is one for each customer, use [Share].
func Queue(name string) StartOption { return startFunc(func(o *startOptions) { o.queue = name }) }

// At queues the run for t: it does not begin before that, by the store's clock. A t in the past, or zero, means now; one
// after the year 9999 is refused. It does nothing to a run that a [Key] finds.
func At(t time.Time) StartOption {
	return startFunc(func(o *startOptions) {
		switch {
		case t.Year() > 9999: // beyond that, microseconds overflow sooner or later
			o.fail(fmt.Errorf("At(%v): want a time before the year 10000", t))
		case t.Year() >= 1970:
			o.at = t.UnixMicro()
		}
	})
}

// Deadline gives the run d from its start, or from its [At], by the store's clock. When that is over, the contexts of its
// steps end with [fault.ReasonRunDeadline], a run that waits is woken, and its body is executed to the end once more, so
// that steps under [Run.WithoutCancel] can compensate: then it has failed, class canceled, reason run_deadline. A step
// that a person is asked about is waited for. A retry of the run has d again. A d of 0 or less is refused.
func Deadline(d time.Duration) StartOption {
	return startFunc(func(o *startOptions) {
		if d <= 0 {
			o.fail(fmt.Errorf("Deadline(%v): want a positive duration", d))
		}
		o.deadline = d
	})
}

// Detached lets the run that [Child] starts go on when the one that waits for it is cancelled or ends. It is for Child only.
func Detached() StartOption { return startFunc(func(o *startOptions) { o.detached = true }) }

// RepeatableOption is an option of [Repeatable].
type RepeatableOption interface{ repeatable(*stepOptions) }

// KeyedOption is an option of [Keyed].
type KeyedOption interface{ keyed(*stepOptions) }

// TxOption is an option of [Tx] and [TxIn].
type TxOption interface{ tx(*stepOptions) }

// OnceOption is an option of [Once].
type OnceOption interface{ once(*stepOptions) }

// EffectOption is an option of the kinds whose effect is outside: [Keyed] and [Once].
type EffectOption interface {
	KeyedOption
	OnceOption
}

// StepOption is an option of every kind.
type StepOption interface {
	RepeatableOption
	TxOption
	EffectOption
}

// stepOptions is what the options of one step call add up to. The zero value means defaults.
type stepOptions struct {
	policy     fault.Policy
	timeout    time.Duration
	lane       string
	paid       bool
	keyTTL     time.Duration
	settle     time.Duration
	probeAfter time.Duration
	probe      probeFunc
	probeIn    reflect.Type
	probeOut   reflect.Type
	grant      *grant     // acts under an approval …
	ask        *gateTerms // … or asks for one first
	err        error      // the first thing wrong with an option
}

func (o *stepOptions) fail(err error) {
	if o.err == nil {
		o.err = err
	}
}

type anyOption func(*stepOptions)

func (f anyOption) repeatable(o *stepOptions) { f(o) }
func (f anyOption) keyed(o *stepOptions)      { f(o) }
func (f anyOption) tx(o *stepOptions)         { f(o) }
func (f anyOption) once(o *stepOptions)       { f(o) }

type keyedOption func(*stepOptions)

func (f keyedOption) keyed(o *stepOptions) { f(o) }

type effectOption func(*stepOptions)

func (f effectOption) keyed(o *stepOptions) { f(o) }
func (f effectOption) once(o *stepOptions)  { f(o) }

type paidOption struct{}

func (paidOption) repeatable(o *stepOptions) { o.paid = true }
func (paidOption) keyed(o *stepOptions)      { o.paid = true }
func (paidOption) once(o *stepOptions)       { o.paid = true }

// RetryPolicy bounds the attempts of a step. A zero field means its default: 10 attempts, first delay 500 ms, longest
// delay 1 min, 15 min in all. More than 100 attempts are refused.
type RetryPolicy = fault.Policy

// Retry sets the step's policy. On [Once] it covers only faults that prove that nothing happened.
func Retry(p RetryPolicy) StepOption {
	return anyOption(func(o *stepOptions) {
		if err := p.Validate(); err != nil {
			o.fail(err)
		}
		o.policy = p
	})
}

// Timeout bounds one attempt. Zero means 1 min for [Once] and none for the others.
func Timeout(d time.Duration) StepOption {
	return anyOption(func(o *stepOptions) {
		if d < 0 {
			o.fail(fmt.Errorf("Timeout(%v): want a positive duration", d))
		}
		o.timeout = d
	})
}

// Paid says that each attempt costs money: its intent is durable before the callback runs, and an error that nobody
// recognises is not tried again.
func Paid() interface {
	RepeatableOption
	EffectOption
} {
	return paidOption{}
}

// KeyTTL is how long the far end remembers the key, counted from the first intent in the lineage. After that the step
// is treated as [Once]. Zero means 24 h.
func KeyTTL(d time.Duration) KeyedOption {
	return keyedOption(func(o *stepOptions) {
		if d < 0 {
			o.fail(fmt.Errorf("KeyTTL(%v): want a positive duration", d))
		}
		o.keyTTL = d
	})
}

// Settle is how long after an attempt's deadline the far end may still act on what it was sent. Zero means 1 min. It is
// not waited for where the attempt's process has reported its end, or is known to be dead: whoever looks then must know
// that the far end is through with what it was sent.
func Settle(d time.Duration) EffectOption {
	return effectOption(func(o *stepOptions) {
		if d < 0 {
			o.fail(fmt.Errorf("Settle(%v): want a positive duration", d))
		}
		o.settle = d
	})
}

// Verdict is what a probe found out.
type Verdict uint8

// The verdicts.
const (
	CannotTell   Verdict = iota // the zero value: ask a person
	Happened                    // the effect is there; its result is returned
	DidNotHappen                // proven not to have happened; counts only once the attempt is over
)

// String gives "cannot tell", "happened" or "did not happen".
func (v Verdict) String() string {
	switch v {
	case Happened:
		return "happened"
	case DidNotHappen:
		return "did not happen"
	case CannotTell:
	}
	return "cannot tell"
}

type probeFunc func(ctx context.Context, it Intent, in []byte) (value []byte, v Verdict, err error)

// Probe asks the outside world about an uncertain step before a person is asked, not earlier than after its attempt
// began plus after. In and Out must be the step's own types. "Happened" counts at any time, "did not happen" only if
// the attempt was over when the probe began. An error means [CannotTell].
func Probe[In, Out any](after time.Duration, fn func(context.Context, Intent, In) (Out, Verdict, error)) EffectOption {
	return effectOption(func(o *stepOptions) {
		if fn == nil || after < 0 {
			o.fail(fmt.Errorf("Probe(%v, …): want a function and a duration of 0 or more", after))
			return
		}
		o.probeAfter, o.probeIn, o.probeOut = after, reflect.TypeFor[In](), reflect.TypeFor[Out]()
		o.probe = func(ctx context.Context, it Intent, raw []byte) ([]byte, Verdict, error) {
			var in In
			if err := decode(raw, &in); err != nil {
				return nil, CannotTell, err
			}
			out, v, err := fn(ctx, it, in)
			if err != nil || v != Happened {
				return nil, v, err
			}
			value, err := encode(out)
			return value, v, err
		}
	})
}

// Intent is on record before the effect of a [Once] step. Put Key where the effect can be found by it later.
type Intent struct {
	Key     OpKey
	Attempt int       // from 1
	Begun   time.Time // by the store's clock
}

// Usage is what an attempt used, where known.
type Usage struct {
	Provider   string        `json:"provider,omitempty"`
	Model      string        `json:"model,omitempty"`
	RequestID  string        `json:"request_id,omitempty"`
	TokensIn   int64         `json:"tokens_in,omitempty"`
	TokensOut  int64         `json:"tokens_out,omitempty"`
	CostMicros int64         `json:"estimated_cost_micros,omitempty"` // an estimate, in millionths of a US dollar
	Latency    time.Duration `json:"-"`                               // set by the engine
}
