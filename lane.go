package pawl

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/payload"
)

// Lane names what the step uses up together with others, such as a provider with its account and model:
// "openai/acct-1/gpt-5". When an attempt of any step of the lane ends rate_limited, or is told a delay, all its steps wait
// for as long, in all runs and processes, before they begin an attempt; none is spent by that. They come back one by one,
// within half of that time or a minute after it. Another process knows within a second.
func Lane(name string) StepOption {
	return anyOption(func(o *stepOptions) {
		if err := payload.CheckName("Lane", name); err != nil {
			o.fail(err)
		}
		o.lane = name
	})
}

const (
	// laneFresh is how long what is known of a lane is not looked up again.
	laneFresh = time.Second
	// laneMost is the longest time for which a lane is held by what a provider said.
	laneMost = 24 * time.Hour
	// lanesKept bounds what a process knows of lanes.
	lanesKept = 10_000
)

// laneSeen is what a process knows of a lane.
type laneSeen struct {
	until int64     // by the store's clock
	at    time.Time // when it was looked up
}

func (e *Engine) laneSeen(name string) (laneSeen, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	seen := e.lanes[name]
	return seen, time.Since(seen.at) < laneFresh
}

func (e *Engine) noteLane(name string, until int64, looked bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.lanes) >= lanesKept {
		clear(e.lanes)
	}
	seen := e.lanes[name]
	seen.until = max(seen.until, until)
	if looked {
		seen.at = time.Now()
	}
	e.lanes[name] = seen
}

// laneUntil is until when the lane is held. If it cannot be looked up, what was known holds.
func (s *stepRun) laneUntil(name string) int64 {
	e := s.x.e
	seen, fresh := e.laneSeen(name)
	if fresh {
		return seen.until
	}
	var until int64
	err := e.store.View(s.x.hold, func(ctx context.Context, tx Txn) (err error) {
		until, err = tx.Lane(ctx, name)
		return err
	})
	if err != nil {
		s.x.logger().Warn("lane could not be looked up", "lane", name, "err", err)
		return seen.until
	}
	e.noteLane(name, until, true)
	return max(seen.until, until)
}

// inLane waits until the step's lane lets the next attempt begin. The error is what the body gets if that is not to be here.
func (s *stepRun) inLane() error {
	name := s.c.o.lane
	if name == "" {
		return nil
	}
	for {
		left := time.Duration(s.laneUntil(name)-s.x.w.now()) * time.Microsecond
		if left <= 0 {
			return nil
		}
		left += rand.N(min(max(left/2, time.Second/2), time.Minute))
		if left > parkAfter {
			s.park(name, left)
		}
		if err := s.wait(left); err != nil {
			return err
		}
	}
}

// park records that the next attempt has to wait for the lane.
func (s *stepRun) park(lane string, d time.Duration) {
	prev := s.row
	op := stepOp{insert: prev == nil}
	if prev == nil {
		op.row = s.next(nil)
		op.row.Attempt, op.row.Begun = 0, AtWrite
		op.row.Fault = &fault.Fault{Class: fault.RateLimited, Reason: fault.ReasonThrottled, Outcome: fault.OutcomeNotSent,
			Message: payload.Clean(fmt.Sprintf("lane %q is held, no attempt has begun", lane), 1000)}
	} else {
		row := *prev
		op.row, op.attempt = &row, prev.Attempt
		op.row.Told += micro(d)
		op.row.Epoch = s.x.row.Epoch
	}
	op.row.State, op.row.NextAt = StepRetrying, AtWrite+micro(d)
	s.keep(op.row)
	s.x.buffer(op)
}

// hold is what an attempt that ended with f says about the step's lane; nil for nothing.
func (s *stepRun) hold(f *fault.Fault, d fault.Decision) *laneHold {
	name := s.c.o.lane
	length := f.Delay
	if length == 0 && f.Class == fault.RateLimited {
		length = d.Wait
	}
	if name == "" || length <= 0 {
		return nil
	}
	length = min(length, laneMost)
	s.x.e.noteLane(name, s.x.w.now()+micro(length), false)
	return &laneHold{name, micro(length), f.Error()}
}

// laneHold is written with the attempt that it comes from.
type laneHold struct {
	name   string
	length int64 // in microseconds, from the write on
	why    string
}

func (h *laneHold) apply(ctx context.Context, tx Txn, now int64) error {
	if h == nil {
		return nil
	}
	return tx.HoldLane(ctx, LaneRow{Name: h.name, Until: now + h.length, Why: h.why})
}
