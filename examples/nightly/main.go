// Command nightly is a scheduled agent. It plays some nights of two seconds each: one in which the report takes longer than
// a night, so that the next one is skipped; one in which the worker is killed in the middle; and some without any worker.
// Then it prints the schedule's ledger.
//
//	go run ./examples/nightly
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/sqlite"
)

// workerDir is the environment variable by which the program tells another one of itself to be the worker.
const workerDir = "NIGHTLY_WORKER_DIR"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := func() error {
		if dir := os.Getenv(workerDir); dir != "" {
			return work(ctx, dir)
		}
		dir, err := os.MkdirTemp("", "nightly-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		return play(ctx, dir, os.Stdout)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "nightly:", err)
		os.Exit(1)
	}
}

// Night is the input of a run.
type Night struct{ Time string }

// agent writes a report each night.
type agent struct{ dir string }

// definitions are the workflow and its schedule. A real one would be pawl.Cron("0 2 * * *", "Europe/Berlin").
func (a *agent) definitions() (*pawl.Workflow[Night, string], *pawl.Schedule) {
	w := pawl.Define("report", "v1", a.report)
	return w, w.Schedule("nightly", pawl.Cron("*/2 * * * * *", "Europe/Berlin"), func(at time.Time) Night {
		return Night{at.Format("15:04:05")}
	}, pawl.RunsWithin(time.Hour))
}

func (a *agent) report(run *pawl.Run, n Night) (string, error) {
	text, err := pawl.Repeatable(run, "model", n, a.ask, pawl.Paid())
	if err != nil {
		return "", err
	}
	return pawl.Keyed(run, "publish", text, a.publish)
}

// ask stands for a call of a model. While there is a file "slow" it takes its time.
func (a *agent) ask(ctx context.Context, n Night) (string, error) {
	for {
		if _, err := os.Stat(filepath.Join(a.dir, "slow")); err != nil {
			return "report of " + n.Time, nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// publish stands for an API that takes a key: the same key is one report.
func (a *agent) publish(_ context.Context, key pawl.OpKey, text string) (string, error) {
	return text, os.WriteFile(filepath.Join(a.dir, string(key)+".report"), []byte(text), 0o600)
}

// work is the worker process.
func work(ctx context.Context, dir string) (err error) {
	store, err := sqlite.Open(filepath.Join(dir, "pawl.db"), nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	w, s := (&agent{dir}).definitions()
	e, err := pawl.New(store, &pawl.Options{Lease: 2 * time.Second, Poll: 100 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)}, w, s)
	if err != nil {
		return err
	}
	return e.Work(ctx)
}

// spawn starts a worker process.
func spawn(ctx context.Context, dir string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), workerDir+"="+dir)
	cmd.Stderr = os.Stderr
	return cmd, cmd.Start()
}

// play lets the nights pass.
func play(ctx context.Context, dir string, out io.Writer) (err error) {
	store, err := sqlite.Open(filepath.Join(dir, "pawl.db"), nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	e, err := pawl.New(store, nil)
	if err != nil {
		return err
	}
	if err := nights(ctx, dir, e, out); err != nil {
		return err
	}
	return ledger(ctx, e, out)
}

func nights(ctx context.Context, dir string, e *pawl.Engine, out io.Writer) error {
	slow := filepath.Join(dir, "slow")
	say := func(text string) { _, _ = fmt.Fprintln(out, text) }

	say("a worker is started")
	worker, err := spawn(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { _ = worker.Process.Kill() }()
	if err := await(ctx, e, func(o pawl.Occurrence, s pawl.RunState) bool { return s == pawl.Succeeded }); err != nil {
		return err
	}

	say("a report takes longer than a night")
	if err := os.WriteFile(slow, nil, 0o600); err != nil {
		return err
	}
	if err := await(ctx, e, func(o pawl.Occurrence, _ pawl.RunState) bool { return o.State == pawl.OccurrenceSkipped }); err != nil {
		return err
	}

	say("the worker is killed in the middle of it, and for some nights there is none")
	if err := errors.Join(worker.Process.Kill(), os.Remove(slow)); err != nil {
		return err
	}
	_ = worker.Wait() // it was killed
	restart := time.Now().Add(11 * time.Second)
	<-time.After(time.Until(restart))

	say("another worker is started")
	if worker, err = spawn(ctx, dir); err != nil {
		return err
	}
	err = await(ctx, e, func(o pawl.Occurrence, s pawl.RunState) bool { return s == pawl.Succeeded && o.At.After(restart) })
	if err != nil {
		return err
	}
	if err := worker.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return worker.Wait()
}

// await waits for an occurrence, and the state of its run, that will do.
func await(ctx context.Context, e *pawl.Engine, will func(pawl.Occurrence, pawl.RunState) bool) error {
	for {
		all, _, err := e.Occurrences(ctx, "nightly", "", 20)
		if err != nil {
			return err
		}
		for _, o := range all {
			state := pawl.RunState("")
			if o.Run != "" {
				d, err := e.Show(ctx, o.Run)
				if err != nil {
					return err
				}
				state = d.State
			}
			if will(o, state) {
				return nil
			}
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ledger prints what became of each night.
func ledger(ctx context.Context, e *pawl.Engine, out io.Writer) error {
	all, _, err := e.Occurrences(ctx, "nightly", "", 1000)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "NIGHT\tSTATE\tREASON\tRUN\tWORKERS LOST")
	for i := len(all) - 1; i >= 0; i-- {
		o, run, lost := all[i], "-", ""
		if o.Run != "" {
			d, err := e.Show(ctx, o.Run)
			if err != nil {
				return err
			}
			run, lost = string(d.State), fmt.Sprint(d.Lost)
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", o.At.Format("15:04:05"), o.State, o.Reason, run, lost)
	}
	return t.Flush()
}
