// Command refund pays money back after a person has approved it, and pays exactly what was approved. It stops as soon as it has
// asked; whoever decides may take days, and no process need run meanwhile.
//
//	go run ./examples/refund -order o1 -cents 9900     # asks, and ends
//	pawl inbox show ENTRY --db refund.db               # what is asked, and the hash that stands for it
//	pawl edit ENTRY --payload '{"Order":"o1","Cents":5000}' --group finance --db refund.db
//	pawl approve ENTRY --hash HASH --group finance --db refund.db
//	go run ./examples/refund -order o1 -cents 9900     # the same order: the same run, which now pays
//
// The payment is Keyed: the provider absorbs a repetition by the key, so a process that is killed anywhere pays once.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/sqlite"
)

// Refund is what is asked, and what is approved.
type Refund struct {
	Order string
	Cents int64
}

// Outcome is what became of it.
type Outcome struct{ State, RefundID, By string }

// PSP is the provider of payments.
type PSP interface {
	Refund(ctx context.Context, idempotencyKey, order string, cents int64) (id string, err error)
}

type app struct{ psp PSP }

func (a *app) refund(run *pawl.Run, asked Refund) (Outcome, error) {
	ok, err := pawl.Approve(run, "approve", asked, pawl.Deciders("finance"), pawl.Expires(24*time.Hour))
	if no, is := errors.AsType[*pawl.Denied](err); is {
		return Outcome{State: no.State, By: no.By}, nil
	}
	if err != nil {
		return Outcome{}, err
	}
	id, err := pawl.Keyed(run, "refund", ok.Payload, a.pay, pawl.Under(ok))
	return Outcome{State: "refunded", RefundID: id, By: ok.By}, err
}

func (a *app) pay(ctx context.Context, key pawl.OpKey, r Refund) (string, error) {
	return a.psp.Refund(ctx, string(key), r.Order, r.Cents)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "refund:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has been called
	}
}

// run starts the refund, works until it has ended or waits for a person, and says which.
func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("refund", flag.ContinueOnError)
	db := flags.String("db", "refund.db", "database file")
	ledger := flags.String("ledger", "refunds.txt", "file that plays the payment provider: a line for each refund")
	order := flags.String("order", "o1", "order to pay back")
	cents := flags.Int64("cents", 9900, "how much")
	if err := flags.Parse(args); err != nil {
		return err
	}
	store, err := sqlite.Open(*db, nil)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	w := pawl.Define("refund", "v1", (&app{psp: book(*ledger)}).refund)
	e, err := pawl.New(store, &pawl.Options{Poll: 100 * time.Millisecond, Lease: 2 * time.Second, Logger: slog.New(slog.DiscardHandler)}, w)
	if err != nil {
		return err
	}
	h, err := w.Start(ctx, e, Refund{Order: *order, Cents: *cents}, pawl.Key("order:"+*order))
	if err != nil {
		return err
	}
	work, quit := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- e.Work(work) }()
	err = report(ctx, e, h, out)
	quit()
	if stopped := <-done; !errors.Is(stopped, context.Canceled) { // it may not have begun yet
		err = errors.Join(err, stopped)
	}
	return err
}

// report waits until the run ends or asks, and says what it came to.
func report(ctx context.Context, e *pawl.Engine, h *pawl.Handle[Outcome], out io.Writer) error {
	for {
		info, err := h.Status(ctx)
		if err != nil {
			return err
		}
		switch info.State {
		case pawl.Waiting:
			return ask(ctx, e, h.ID(), out)
		case pawl.Succeeded, pawl.Failed, pawl.Cancelled:
			o, err := h.Result(ctx)
			if err == nil {
				_, err = fmt.Fprintf(out, "%s %s by %s\n", o.State, o.RefundID, o.By)
			}
			return err
		case pawl.Blocked:
			_, err := fmt.Fprintln(out, "the run needs an answer: pawl inbox")
			return err
		case pawl.Queued, pawl.Running:
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func ask(ctx context.Context, e *pawl.Engine, id pawl.RunID, out io.Writer) error {
	entries, _, err := e.Inbox(ctx, pawl.InboxQuery{Run: id, Kind: pawl.AskGate})
	for _, en := range entries {
		_, err = fmt.Fprintf(out, "asked: %s, entry %s, hash %.12s\n", en.Input, en.ID, en.Hash)
	}
	return err
}

// book plays a provider that remembers keys: a repetition gets the answer of the first time.
type book string

// before is called before money moves; the test kills the process there.
var before = func() {}

// Refund appends a line for a key that it has not seen.
func (b book) Refund(_ context.Context, key, order string, cents int64) (string, error) {
	before()
	seen, err := os.ReadFile(string(b))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	for i, line := range splitLines(seen) {
		if len(line) > len(key) && line[:len(key)] == key {
			return fmt.Sprint("re_", i+1), nil
		}
	}
	f, err := os.OpenFile(string(b), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	_, err = fmt.Fprintf(f, "%s %s %d\n", key, order, cents)
	return fmt.Sprint("re_", len(splitLines(seen))+1), errors.Join(err, f.Close())
}

func splitLines(text []byte) (lines []string) {
	for line := range strings.Lines(string(text)) {
		lines = append(lines, strings.TrimSuffix(line, "\n"))
	}
	return lines
}
