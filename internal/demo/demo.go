// Package demo is `pawl demo`: the story of the e-mail that was sent twice, played for real.
//
// A ticket is closed in five steps: its records are fetched, a paid model scores them, the score is written to a
// database, the owner gets an e-mail, and the ticket is marked complete. Worker processes do that on a plain job runner
// that retries from the top, and on Pawl. The control process holds the outside world (records, model, mail server) on
// the loopback interface, kills the worker with SIGKILL at a chosen line, starts another one, and counts what the world
// and the database have seen in the end.
//
// Nothing in the table is known beforehand. If Pawl's rows are not what they must be, the command fails.
package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// Command is `pawl demo`, with the hidden command that its worker processes run. It writes the table to the command's
// output and everything else to its error output.
func Command() *cobra.Command {
	var db string
	f := text
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Kill workers at every point of a run, with a plain job runner and with Pawl",
		Long: `A ticket is closed in five steps: fetch its records, have a paid model score them, write the score,
e-mail the owner, mark the ticket complete. Worker processes do it on a plain job runner that retries from
the top, and on Pawl. Each is killed (kill -9) at another point and followed by a new one. The table says
what the outside world saw. It takes about ten seconds.`,
		Args: func(cmd *cobra.Command, args []string) error {
			return errors.Join(cobra.NoArgs(cmd, args), checkDB(db))
		},
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return run(ctx, db, f, cmd.OutOrStdout(), cmd.ErrOrStderr(), workerArgs(cmd))
		},
	}
	cmd.Flags().StringVar(&db, "db", "", "`file` or postgres:// URL to keep the runs in (default a new file in a temporary directory)")
	cmd.Flags().VarP(&f, "output", "o", "output: text, or json (also called jsonl): one object per line")
	cmd.AddCommand(&cobra.Command{
		Use:           "worker",
		Short:         "One worker process of the demo, which talks to it through its standard input and output",
		Args:          cobra.NoArgs,
		Hidden:        true,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := work(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			if err != nil { // for the control process, whatever the program does with the error
				_, _ = fmt.Fprintln(cmd.ErrOrStderr(), err)
			}
			return err
		},
	})
	return cmd
}

// workerArgs is how this executable is told to be a worker: the same path of commands, and one more.
func workerArgs(cmd *cobra.Command) []string {
	return append(strings.Fields(cmd.CommandPath())[1:], "worker")
}

// control is the process that owns the world, kills the workers and counts.
type control struct {
	exe   string
	args  []string
	db    string
	label string // in every ticket and version, so that demos on one database do not meet
	store store
	world *world
	turns chan struct{} // one token for each worker that may start or be on its way to its crash point

	mu       sync.Mutex // guards progress
	progress io.Writer
}

// patience bounds one scenario, far above what it takes on an idle machine.
const patience = 2 * time.Minute

// run plays the demo. out gets the rows, progress everything else.
func run(ctx context.Context, db string, f format, out, progress io.Writer, args []string) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program, which is also the worker: %w", err)
	}
	keep := true // what there is to look at
	if db == "" {
		dir, err := os.MkdirTemp("", "pawl-demo-")
		if err != nil {
			return err
		}
		db, keep = filepath.Join(dir, "pawl-demo.db"), false
		defer func() {
			if !keep {
				_ = os.RemoveAll(dir)
			}
		}()
	}
	c := &control{exe: exe, args: args, db: db, label: strings.ToLower(rand.Text()[:5]), progress: progress,
		turns: make(chan struct{}, runtime.GOMAXPROCS(0))}
	if c.store, err = openStore(ctx, db, true); err != nil {
		return err
	}
	defer func() { _ = c.store.Close() }()
	if err := createTables(ctx, c.store.DB()); err != nil {
		return err
	}
	if c.world, err = openWorld(); err != nil {
		return err
	}
	defer c.world.close()
	c.say("database %s, lease %v; killing workers ...", shown(db), lease)
	rows, err := c.play(ctx)
	if ctx.Err() != nil {
		return errors.New("interrupted; all workers are gone")
	}
	keep = true
	if err := errors.Join(writeRows(out, f, rows), err); err != nil {
		return err
	}
	hints := out
	if f != text {
		hints = progress
	}
	if err := writeHints(hints, program(), db, rows); err != nil {
		return err
	}
	return check(rows)
}

// play runs all scenarios side by side and returns those that came to an end, in the table's order.
func (c *control) play(ctx context.Context) ([]row, error) {
	all := scenarios(c.label)
	rows, errs := make([]row, len(all)), make([]error, len(all))
	var wg sync.WaitGroup
	for i, s := range all {
		wg.Go(func() {
			ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("it did not end within %v", patience))
			defer cancel()
			began := time.Now()
			r, err := c.scenario(ctx, s)
			if err != nil {
				errs[i] = fmt.Errorf("%s, crash %s: %w", s.Mode, s.Crash, err)
				c.say("%-5s  %-14s  failed after %.1f s", s.Mode, s.Crash, time.Since(began).Seconds())
				return
			}
			rows[i] = r
			c.say("%-5s  %-14s  %s after %.1f s", s.Mode, s.Crash, r.State, time.Since(began).Seconds())
		})
	}
	wg.Wait()
	var done []row
	for i := range rows {
		if errs[i] == nil {
			done = append(done, rows[i])
		}
	}
	return done, errors.Join(errs...)
}

// say writes one line of progress.
func (c *control) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = fmt.Fprintf(c.progress, format+"\n", args...)
}
