// Command tickets enriches the tickets of a JSON file with a model and saves what it finds in a ticket service. All
// tickets are one run. Kill it at any point and start it again: tickets that are done are neither paid for nor written
// a second time. If some tickets fail, the run fails, and the next start makes a linked run that does only those.
//
//	go run ./examples/tickets
//	go run ./examples/tickets -file my.json -model-url https://api.example/v1 -model NAME -tickets-url https://desk.example
//
// Without URLs it talks to a model and a ticket service of its own on the loopback interface. The model's key is read
// from MODEL_API_KEY.
package main

import (
	"context"
	"errors"
	"flag"
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

// Job is the input of a run.
type Job struct {
	ID      string   `json:"id"`
	Tickets []Ticket `json:"tickets"`
}

// enrichAll does the tickets one after the other. A ticket that fails does not stop the others.
func (s *services) enrichAll(run *pawl.Run, job Job) (map[string]string, error) {
	saved := make(map[string]string)
	var failures []error
	for _, t := range job.Tickets {
		ref, err := s.enrichOne(run.Item(t.ID), t)
		switch {
		case errors.Is(err, pawl.ErrSuspended): // this execution is over, the run goes on later
			return nil, err
		case err != nil:
			failures = append(failures, err)
		default:
			saved[t.ID] = ref
		}
	}
	return saved, errors.Join(failures...)
}

func (s *services) enrichOne(item *pawl.Run, t Ticket) (string, error) {
	found, err := pawl.Repeatable(item, "enrich", t, s.enrich, pawl.Paid())
	if err != nil {
		return "", err
	}
	return pawl.Keyed(item, "save", found, s.save)
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("tickets", flag.ContinueOnError)
	db := flags.String("db", "pawl.db", "SQLite file")
	file := flags.String("file", "", "JSON file with the tickets (default the one built in)")
	modelURL := flags.String("model-url", "", "base URL of a chat completions API (default a fake)")
	model := flags.String("model", "small", "the model's name")
	ticketsURL := flags.String("tickets-url", "", "base URL of the ticket service (default a fake)")
	lease := flags.Duration("lease", 30*time.Second, "how long the runs of a killed worker stay its own")
	if err := flags.Parse(args); err != nil {
		return err
	}
	job, err := read(*file)
	if err != nil {
		return err
	}
	s, stop, err := connect(*modelURL, *model, *ticketsURL)
	if err != nil {
		return err
	}
	defer stop()
	store, err := sqlite.Open(*db, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	w := pawl.Define("enrich-tickets", "v1", s.enrichAll)
	e, err := pawl.New(store, &pawl.Options{Lease: *lease}, w)
	if err != nil {
		return err
	}
	h, err := w.Start(ctx, e, job, pawl.Key("job:"+job.ID), pawl.Again())
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
	saved, err := h.Result(ctx)
	return errors.Join(err, report(context.WithoutCancel(ctx), out, e, h.ID(), saved))
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "tickets:", err)
		os.Exit(1)
	}
}
