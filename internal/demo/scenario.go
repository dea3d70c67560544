package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/hooks"
)

// mode says who runs the five functions.
type mode string

const (
	plain   mode = "plain" // a job runner that retries from the top
	durable mode = "pawl"
)

// crash is where the first worker is killed.
type crash string

// The points, in the order a worker meets them. The plain runner has neither intents nor a journal; it is killed at the
// line that comes closest.
const (
	never         crash = "none"
	beforeNotify  crash = "before-notify"
	intentWritten crash = "intent-written"
	effectDone    crash = "effect-done"
	journalled    crash = "journalled"
	lastWrite     crash = "last-write"
)

func crashes() []crash {
	return []crash{never, beforeNotify, intentWritten, effectDone, journalled, lastWrite}
}

// point is the engine's name of the place, and the step it is about.
func (c crash) point() (p hooks.Point, step string) {
	switch c {
	case beforeNotify:
		return hooks.StepReached, "notify"
	case intentWritten:
		return hooks.IntentWritten, "notify"
	case effectDone:
		return hooks.EffectDone, "notify"
	case journalled:
		// The row rides with the intent of "close" or is written on its own. Either way the engine comes here before
		// the callback of "close" begins.
		return hooks.ResultWritten, "notify"
	case lastWrite:
		return hooks.BodyDone, ""
	case never:
	}
	return "", ""
}

// scenario is one run, or job, and where its first worker is killed. It is what a worker process is told.
type scenario struct {
	Mode   mode   `json:"mode"`
	Crash  crash  `json:"crash"`
	Ticket string `json:"ticket"`
	// Version of the workflow. Each scenario has its own, so that its workers take no other's run.
	Version string    `json:"version"`
	DB      string    `json:"db"`
	World   addresses `json:"world"`
}

func scenarios(label string) []scenario {
	var all []scenario
	for _, c := range crashes() {
		for _, m := range []mode{plain, durable} {
			all = append(all, scenario{
				Mode:    m,
				Crash:   c,
				Ticket:  fmt.Sprintf("%s-%s-%s", label, m, c),
				Version: fmt.Sprintf("v1.%s.%s", label, c),
			})
		}
	}
	return all
}

// scenario plays s to its end and counts what came of it.
func (c *control) scenario(ctx context.Context, s scenario) (row, error) {
	s.DB, s.World = c.db, c.world.addresses()
	r := row{Mode: s.Mode, Crash: s.Crash}
	var err error
	if s.Mode == plain {
		r.State, err = c.plain(ctx, s)
	} else {
		r.run, r.State, r.Inbox, err = c.durable(ctx, s)
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w (%w)", cause, err)
		}
		return row{}, err
	}
	r.Fetches, r.PaidCalls, r.Emails = c.world.count(s.Ticket)
	r.Rows, err = countScores(ctx, c.store.DB(), s.Ticket)
	return r, err
}

// turn waits for a turn and returns what ends it. So that a small machine is not flooded with new processes, which would
// then renew their leases late, few are under way at once. Waiting for a lease to expire takes no turn.
func (c *control) turn() (end func()) {
	c.turns <- struct{}{}
	return func() { <-c.turns }
}

// next starts the worker that goes on after the first.
func (c *control) next(ctx context.Context, s scenario) (*child, error) {
	defer c.turn()()
	s.Crash = never
	return c.start(ctx, s)
}

// killed starts a worker that stops at the crash point, kills it there, and returns when its process is gone. Without a
// crash point it returns at once.
func (c *control) killed(ctx context.Context, s scenario) error {
	if s.Crash == never {
		return nil
	}
	defer c.turn()()
	w, err := c.start(ctx, s)
	if err != nil {
		return err
	}
	defer w.kill()
	select {
	case <-w.reached:
		return nil
	case <-w.done:
		return fmt.Errorf("the worker ended before it came to the crash point: %w", w.failure())
	}
}

// plain is what a plain job runner and its supervisor do: when the worker is gone, the job goes back on the queue, and
// the next worker starts it at the top.
func (c *control) plain(ctx context.Context, s scenario) (state string, err error) {
	db := c.store.DB()
	if err := enqueue(ctx, db, s.Ticket); err != nil {
		return "", err
	}
	if err := c.killed(ctx, s); err != nil {
		return "", err
	}
	if err := requeue(ctx, db, s.Ticket); err != nil {
		return "", err
	}
	w, err := c.next(ctx, s)
	if err != nil {
		return "", err
	}
	<-w.done // it ends when it has no job any more, or with ctx
	if err := w.failure(); err != nil {
		return "", err
	}
	return jobStatus(ctx, db, s.Ticket)
}

// durable starts the run, kills its first worker, and lets a second one go on. It answers what lands in the inbox by
// looking into the mail server.
func (c *control) durable(ctx context.Context, s scenario) (id pawl.RunID, state string, asked int, err error) {
	e, err := pawl.New(c.store, &pawl.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return "", "", 0, err
	}
	run, err := closeTicket(s.Version, nil).Start(ctx, e, ticket{s.Ticket}, pawl.Key("ticket:"+s.Ticket))
	if err != nil {
		return "", "", 0, err
	}
	id = run.ID()
	if err := c.killed(ctx, s); err != nil {
		return id, "", 0, err
	}
	w, err := c.next(ctx, s)
	if err != nil {
		return id, "", 0, err
	}
	defer w.stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		info, err := run.Status(ctx)
		if err != nil {
			return id, "", asked, err
		}
		if info.State.Terminal() {
			return id, string(info.State), asked, nil
		}
		if len(info.Open) > 0 {
			n, err := c.answer(ctx, e, id)
			if err != nil {
				return id, "", asked, err
			}
			asked += n
		}
		select {
		case <-w.done:
			return id, "", asked, fmt.Errorf("the second worker ended while the run was %s: %w", info.State, w.failure())
		case <-ctx.Done():
			return id, "", asked, fmt.Errorf("the run is %s, open in the inbox: %q", info.State, info.Open)
		case <-tick.C:
		}
	}
}

// answer does what a person would do with the run's inbox: once the attempt is surely over, look for the e-mail with
// its key, and say what was found. It returns how many entries it has answered.
func (c *control) answer(ctx context.Context, e *pawl.Engine, id pawl.RunID) (int, error) {
	open, _, err := e.Inbox(ctx, pawl.InboxQuery{Run: id})
	if err != nil {
		return 0, err
	}
	n := 0
	for _, entry := range open {
		if entry.Kind != pawl.AskUncertain {
			return n, fmt.Errorf("the inbox asks what the demo cannot know, %s: %s", entry.Kind, entry.Detail)
		}
		if !entry.Over { // it may still happen, so that it is not there would prove nothing
			continue
		}
		a := pawl.Answer{Entry: entry.ID, Attempt: entry.Attempt, By: "demo", Reason: "looked into the mail server"}
		if a.Looked, err = e.Now(ctx); err != nil {
			return n, err
		}
		a.Choice = pawl.AnswerDidNotHappen
		if messageID := messageIDOf(entry.OpKey); c.world.has(messageID) {
			a.Choice = pawl.AnswerHappened
			if a.Result, err = json.Marshal(messageID); err != nil {
				return n, err
			}
		}
		switch err := e.Resolve(ctx, a); {
		case errors.Is(err, pawl.ErrTooEarly): // only now the process is known to be dead: look again
		case err != nil:
			return n, err
		default:
			n++
		}
	}
	return n, nil
}
