// Command invoice sends one invoice by e-mail, once. Plain SMTP has no key by which a server would recognise a second
// copy, so the step is Once: if nobody knows whether the mail went out, it is not sent again. A probe looks for its
// Message-ID in the folder Sent; where it cannot tell, a person is asked.
//
//	go run ./examples/invoice                               # a mail server of its own
//	go run ./examples/invoice -no 43 -lose-reply            # its reply is lost: the probe finds the mail
//	go run ./examples/invoice -no 44 -lose-reply -no-sent   # nobody can tell: the inbox asks
//	go run ./examples/invoice -no 45 -smtp mail.example:587 -from me@example.com -to you@example.com
//
// A server named with -smtp may need SMTP_USER and SMTP_PASSWORD in the environment.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/sqlite"
)

// Invoice is the input of a run.
type Invoice struct{ No, From, To string }

// office sends mail and knows what has been sent.
type office struct {
	smtp string // host:port
	// sent looks a Message-ID up in the folder Sent; nil if there is no such folder.
	sent func(ctx context.Context, messageID string) (bool, error)
}

func (o *office) invoice(run *pawl.Run, inv Invoice) (string, error) {
	// Pure work needs no step.
	m := Mail{From: inv.From, To: inv.To, Subject: "Invoice " + inv.No, Body: "Please pay within 14 days.\n"}
	return pawl.Once(run, "mail", m, o.send, pawl.Probe(time.Second, o.look))
}

func (o *office) send(ctx context.Context, it pawl.Intent, m Mail) (string, error) {
	return messageID(it), deliver(ctx, o.smtp, messageID(it), m)
}

// look finds out whether the mail went out. Finding it proves that it did; not finding it proves nothing.
func (o *office) look(ctx context.Context, it pawl.Intent, _ Mail) (string, pawl.Verdict, error) {
	if o.sent == nil {
		return "", pawl.CannotTell, nil
	}
	if found, err := o.sent(ctx, messageID(it)); err != nil || !found {
		return "", pawl.CannotTell, err
	}
	return messageID(it), pawl.Happened, nil
}

// messageID is made of the operation key, which is the same for every attempt, so that the mail can be found by it.
func messageID(it pawl.Intent) string { return string(it.Key) + "@shop.example" }

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	f, err := parse(args)
	if err != nil {
		return err
	}
	o, stop, err := f.office()
	if err != nil {
		return err
	}
	defer stop()
	store, err := sqlite.Open(f.db, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	w := pawl.Define("invoice", "v1", o.invoice)
	e, err := pawl.New(store, &pawl.Options{Lease: f.lease, Poll: 200 * time.Millisecond}, w)
	if err != nil {
		return err
	}
	h, err := w.Start(ctx, e, Invoice{f.no, f.from, f.to}, pawl.Key("invoice:"+f.no))
	if err != nil {
		return err
	}
	ctx, quit := context.WithCancelCause(ctx)
	var work sync.WaitGroup
	work.Go(func() {
		if err := e.Work(ctx); err != nil {
			quit(err)
		}
	})
	defer work.Wait()
	defer quit(nil)
	for tick := time.Tick(100 * time.Millisecond); ; {
		info, err := h.Status(ctx)
		switch {
		case err != nil:
			return err
		case info.State == pawl.Blocked:
			return question(ctx, out, e, h.ID())
		case info.State.Terminal():
			id, err := h.Result(ctx)
			return errors.Join(err, report(ctx, out, e, h.ID(), id))
		}
		<-tick // Status tells if ctx has ended
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "invoice:", err)
		os.Exit(1)
	}
}
