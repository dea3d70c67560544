package pawl

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/payload"
)

// Event is a kind of thing that happens outside of runs, under a name that is the same for those who send and those who
// await it. Its values travel as JSON.
type Event[T any] struct{ name string }

// DefineEvent makes an event. It panics on a bad name (see [Define]) and if JSON would lose values of T.
func DefineEvent[T any](name string) *Event[T] {
	err := checkName("event name", name)
	if err == nil {
		if err = payload.CheckType(reflect.TypeFor[T]()); err != nil {
			err = fmt.Errorf("pawl: event %q: %w", name, err)
		}
	}
	if err != nil {
		panic(err) //nolint:forbidigo // at registration
	}
	return &Event[T]{name}
}

// Topic is an event's name and what it is about. Events of one topic are in order.
type Topic struct {
	Event string `json:"event"`
	About Key    `json:"about"`
}

// Send says that the event has happened to about: a product key, or a run's id as text. Every run that awaits it goes on,
// and one that comes to await it later finds it: see [Await] for who gets what. The event is durable when Send returns
// (through [InTx]: when the transaction commits, which must be READ COMMITTED on PostgreSQL). Events are kept for 30 days.
//
// With an [EventID], sending again is no second event. Without one, an error that wraps [ErrCommitUnknown] leaves it open
// whether there is an event, and a step that sends and is run again sends again. Inside a body Send belongs in a step.
//
// It returns [ErrConflict] if another value was sent under the same EventID, and an error for a value that cannot be stored.
func (e *Event[T]) Send(ctx context.Context, c Client, about Key, v T, opts ...SendOption) error {
	json, err := encode(v)
	if err != nil {
		return fmt.Errorf("send event %q about %q: %w", e.name, about, err)
	}
	return sendEvent(ctx, c, Topic{e.name, about}, json, opts)
}

// SendJSON is [Event.Send] for tools that have an event's name and its value as JSON. Nothing checks that the value is of
// the type that those who await it expect: if it is not, each of them is blocked by a question about it.
func SendJSON(ctx context.Context, c Client, event string, about Key, json []byte, opts ...SendOption) error {
	return sendEvent(ctx, c, Topic{event, about}, json, opts)
}

// SendOption is an option of [Event.Send].
type SendOption interface{ send(*sendOptions) }

type sendOptions struct {
	id    string
	hasID bool
}

type sendFunc func(*sendOptions)

func (f sendFunc) send(o *sendOptions) { f(o) }

// EventID tells one event from another of the same name about the same thing, such as the id of the webhook's delivery:
// what is sent under it a second time, for as long as the event is kept, is the same event. It is a name of 1 to 200 bytes.
func EventID(id string) SendOption {
	return sendFunc(func(o *sendOptions) { o.id, o.hasID = id, true })
}

// Await suspends the run until the event is sent about about, and gives its value. The run holds no slot of a worker
// meanwhile. name is the step's; a resumed run has the value that it was given first.
//
// Events of one name about one thing are in the order in which they were sent. An Await takes the oldest one that the
// run's lineage has not taken and that was sent after the lineage began, or earlier if no run of the same workflow
// ([KeyName]) has taken it. So an event that comes early is found, one event reaches every run that awaits it, a run gets
// each event once, and a later run about the same thing is not given what an earlier one has dealt with. Events are kept
// for 30 days after they were sent: an Await that begins later does not find them.
//
// [Within] sets a limit. When it has passed by the store's clock, the error is an *[Error] with the reason
// fault.ReasonWaitTimeout; it is stored, so the run meets the same on every execution, and no event is taken then: the
// next Await finds it. A value that does not decode into T blocks the run with a question.
func Await[T any](run *Run, name string, e *Event[T], about Key, opts ...WaitOption) (T, error) {
	c := &stepCall{name: name, kind: fault.KindEvent}
	if e == nil {
		e = new(Event[T])
		c.o.fail(errors.New("Await needs an event: make one with DefineEvent"))
	}
	run.x.awaitEvent(c, Topic{e.name, about}, opts)
	return result[T](run, c)
}

// WaitOption is an option of [Await].
type WaitOption interface{ wait(*waitOptions) }

type waitOptions struct {
	within time.Duration
	err    error
}

type waitFunc func(*waitOptions)

func (f waitFunc) wait(o *waitOptions) { f(o) }

// Within limits a wait to d, counted by the store's clock from when the wait was first recorded. A d of 0 or less is an
// error. A d that later code has changed does not move the stored time.
func Within(d time.Duration) WaitOption {
	return waitFunc(func(o *waitOptions) {
		if o.within = d; d <= 0 {
			o.err = fmt.Errorf("Within(%v): want more than 0; without Within the wait has no limit", d)
		}
	})
}

// awaited is the input of a step that awaits an event.
type awaited struct {
	Topic
	Within time.Duration `json:"within,omitempty"` // nanoseconds
}

// awaitEvent makes c the wait for an event.
func (x *execution) awaitEvent(c *stepCall, topic Topic, opts []WaitOption) {
	var o waitOptions
	for _, opt := range opts {
		opt.wait(&o)
	}
	if o.err != nil {
		c.o.fail(o.err)
	}
	if err := payload.CheckName("about", string(topic.About)); err != nil {
		c.o.fail(err)
	}
	c.in = awaited{topic, o.within}
	c.wait = &waitKind{
		begin: func(ctx context.Context, tx Txn, row *StepRow, now int64) error {
			return x.beginAwait(ctx, tx, row, topic, now)
		},
		late: func(ctx context.Context, tx Txn, row *StepRow, _ int64) error {
			row.State = StepFailed
			row.Fault = &fault.Fault{Class: fault.Canceled, Reason: fault.ReasonWaitTimeout, Outcome: fault.OutcomeNotSent,
				Message: fmt.Sprintf("no event %q about %q came in time", topic.Event, topic.About)}
			return tx.CloseAwait(ctx, row.Run, row.Name)
		},
	}
	if o.within > 0 {
		c.wait.until = AtWrite + max(micro(o.within), 1)
	}
}

// beginAwait takes an event that is there, or puts the wait where Send finds it. Both happen under the topic's lock, which
// a Send holds until its event is committed: so either the event is seen here, or the wait is seen there.
func (x *execution) beginAwait(ctx context.Context, tx Txn, row *StepRow, topic Topic, now int64) error {
	if json, err := encode(topic); err == nil { // for people to look at, and no reason to fail
		row.Input, _ = x.e.seal(json)
	}
	if err := tx.LockTopic(ctx, topic); err != nil {
		return err
	}
	ev, err := tx.NextEvent(ctx, topic, &x.row)
	switch {
	case err != nil:
		return err
	case ev == nil:
		return tx.OpenAwait(ctx, topic, row.Run, row.Name)
	}
	row.State, row.Ended, row.NextAt, row.Value = StepSucceeded, now, 0, ev.Value
	return tx.TakeEvent(ctx, ev, &x.row)
}
