package pawl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pawlrun/pawl/internal/hooks"
)

// sending is one Send. Its transaction locks in the order that holds everywhere: the runs that await the topic, then the
// topic. A run that began to await between the look and the topic's lock is committed when that is given, and has to be
// locked too.
type sending struct {
	e     *Engine
	row   EventRow
	late  bool // lock such runs out of order; the database breaks a deadlock
	woken int
}

// errNotLocked says that a run began to await while the others were locked: begin again, with it among them.
var errNotLocked = errors.New("a run began to await the event meanwhile")

// sendInOrder is how often a Send begins again before it locks out of order.
const sendInOrder = 5

func sendEvent(ctx context.Context, c Client, topic Topic, json []byte, opts []SendOption) error {
	var o sendOptions
	for _, opt := range opts {
		opt.send(&o)
	}
	if err := checkName("event name", topic.Event); err != nil {
		return err
	}
	if err := checkName("about", string(topic.About)); err != nil {
		return err
	}
	if o.hasID {
		if err := checkName("EventID", o.id); err != nil {
			return err
		}
	}
	s := &sending{e: c.engine(), row: EventRow{Topic: topic, ID: o.id}, late: !c.local()}
	err := s.pack(json)
	for try := 1; err == nil; try++ {
		err = c.ledger(ctx, s.apply)
		if !errors.Is(err, errNotLocked) {
			break
		}
		s.late, err = try >= sendInOrder, nil
	}
	if err != nil {
		return fmt.Errorf("send event %q about %q: %w", topic.Event, topic.About, err)
	}
	if c.local() && s.woken > 0 {
		s.e.nudge()
		s.e.hint(ctx)
	}
	return nil
}

func (s *sending) pack(json []byte) (err error) {
	if s.row.Hash, err = hashOf(json); err == nil {
		s.row.Value, err = s.e.seal(json)
	}
	return err
}

func (s *sending) apply(ctx context.Context, tx Txn) error {
	s.woken = 0
	waits, err := allAwaits(ctx, tx, s.row.Topic)
	if err != nil {
		return err
	}
	runs := make(map[RunID]*RunRow)
	if err := s.lock(ctx, tx, runs, waits); err != nil {
		return err
	}
	if err := tx.LockTopic(ctx, s.row.Topic); err != nil {
		return err
	}
	if sent, err := s.sent(ctx, tx); err != nil || sent {
		return err
	}
	if err := tx.AddEvent(ctx, &s.row); err != nil {
		return err
	}
	if waits, err = allAwaits(ctx, tx, s.row.Topic); err != nil {
		return err
	}
	for _, w := range waits {
		if _, locked := runs[w.Run]; !locked && !s.late {
			return errNotLocked
		}
	}
	if err := s.lock(ctx, tx, runs, waits); err != nil {
		return err
	}
	if err := s.deliver(ctx, tx, runs, waits); err != nil {
		return err
	}
	s.e.hooks.Reach(hooks.CommitSending, "", s.row.Topic.Event)
	return nil
}

// sent reports whether the event was sent before, under its id.
func (s *sending) sent(ctx context.Context, tx Txn) (bool, error) {
	if s.row.ID == "" {
		return false, nil
	}
	known, err := tx.EventHash(ctx, s.row.Topic, s.row.ID)
	if err == nil && known != nil && !slices.Equal(known, s.row.Hash) {
		err = fmt.Errorf("EventID %q was sent with another value: %w", s.row.ID, ErrConflict)
	}
	return known != nil, err
}

// lock locks the runs that are not locked yet. waits are in the order of the runs' ids.
func (s *sending) lock(ctx context.Context, tx Txn, runs map[RunID]*RunRow, waits []AwaitRow) error {
	for _, w := range waits {
		if _, locked := runs[w.Run]; locked {
			continue
		}
		run, err := tx.LockRun(ctx, w.Run)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		runs[w.Run] = run // nil if it is gone, which is no reason to keep the event from others
	}
	return nil
}

// deliver gives the event to every run that awaits it. A run that a worker holds finds its wait ended when it suspends.
func (s *sending) deliver(ctx context.Context, tx Txn, runs map[RunID]*RunRow, waits []AwaitRow) error {
	now, err := tx.Now(ctx)
	if err != nil {
		return err
	}
	for len(waits) > 0 {
		n := 1
		for n < len(waits) && waits[n].Run == waits[0].Run {
			n++
		}
		if err := s.give(ctx, tx, runs[waits[0].Run], waits[:n], now); err != nil {
			return err
		}
		waits = waits[n:]
	}
	return nil
}

// give ends the oldest of a run's waits. One whose time limit had passed when the event was sent is left alone: it ends by
// the limit.
func (s *sending) give(ctx context.Context, tx Txn, run *RunRow, waits []AwaitRow, now int64) error {
	var row *StepRow
	for _, w := range waits {
		next, err := tx.Step(ctx, w.Run, w.Step)
		if err != nil {
			return err
		}
		if next == nil || next.State != StepWaiting || next.NextAt > 0 && next.NextAt <= s.row.At {
			continue
		}
		if row == nil || next.Begun < row.Begun {
			row = next
		}
	}
	if row == nil || run == nil {
		return nil
	}
	row.State, row.Value = StepSucceeded, s.row.Value
	if err := tx.TakeEvent(ctx, &s.row, run); err != nil {
		return err
	}
	if err := tx.CloseAwait(ctx, row.Run, row.Name); err != nil {
		return err
	}
	ended, err := settleWait(ctx, tx, run, row, now)
	if err == nil && !ended {
		err = fmt.Errorf("wait %q of run %s changed under the run's lock", row.Name, run.ID)
	}
	s.woken++
	return err
}

// awaitsPage is how many waits are read at a time.
const awaitsPage = 1000

// allAwaits reads who awaits the topic, in the order of the runs' ids.
func allAwaits(ctx context.Context, tx Txn, topic Topic) (all []AwaitRow, err error) {
	var after AwaitRow
	for {
		page, err := tx.Awaits(ctx, topic, after, awaitsPage)
		if err != nil {
			return nil, err
		}
		if all = append(all, page...); len(page) < awaitsPage {
			return all, nil
		}
		after = page[len(page)-1]
	}
}

// keepEvents is how long an event can be found.
const keepEvents = 30 * 24 * time.Hour

// pruneEvents deletes the events that are no longer kept, batch after batch.
func (w *worker) pruneEvents(ctx context.Context) error {
	for {
		more, err := w.e.store.PruneEvents(ctx, keepEvents)
		if err != nil || !more {
			return err
		}
		if err := pause(ctx, prunePause); err != nil {
			return err
		}
	}
}
