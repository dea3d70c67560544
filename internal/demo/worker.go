package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/hooks"
)

const (
	// lease is how long the runs of a killed worker stay its own: the shortest that a slow machine renews safely.
	lease = 3 * time.Second
	// readyLine is what a worker writes when it has opened its store, and reachedLine when it stands at its crash point.
	readyLine, reachedLine = "ready", "reached"
)

// work is a worker process. The first line of in says what to do; when in ends, the control process is gone or has no
// use for the worker any more, and the worker ends too.
func work(ctx context.Context, in io.Reader, out, errs io.Writer) error {
	r := bufio.NewReader(in)
	line, err := r.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read what to do (this command is started by pawl demo): %w", err)
	}
	var s scenario
	if err := json.Unmarshal(line, &s); err != nil {
		return fmt.Errorf("read what to do: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // it lives as long as the process
		_, _ = io.Copy(io.Discard, r)
		cancel()
		time.AfterFunc(2*drain, func() { os.Exit(1) }) // stuck at a crash point, or somewhere else
	}()
	db, err := openStore(ctx, s.DB, false)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	if _, err := fmt.Fprintln(out, readyLine); err != nil {
		return err
	}
	// At its crash point the worker says so and stands still until it is killed. Its other goroutines go on, as those of
	// a process that is about to be killed do.
	reach := func(c crash) {
		if c == s.Crash {
			_, _ = fmt.Fprintln(out, reachedLine)
			select {}
		}
	}
	if s.Mode == plain {
		return plainJob(ctx, db.DB(), newClerk(s.World), s.Ticket, reach)
	}
	return durableWorker(ctx, db, s, reach, errs)
}

// drain is how long a worker that is told to stop waits for its steps.
const drain = time.Second

// durableWorker works on the runs of the scenario's version until ctx ends.
func durableWorker(ctx context.Context, db store, s scenario, reach func(crash), errs io.Writer) error {
	point, step := s.Crash.point()
	e, err := pawl.New(db, &pawl.Options{
		Lease:  lease,
		Poll:   200 * time.Millisecond,
		Drain:  drain,
		Logger: slog.New(slog.NewTextHandler(errs, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Hooks: &hooks.Hooks{At: func(p hooks.Point, _, name string) {
			if p == point && name == step {
				reach(s.Crash)
			}
		}},
	}, closeTicket(s.Version, newClerk(s.World)))
	if err != nil {
		return err
	}
	return e.Work(ctx)
}
