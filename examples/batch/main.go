// Command batch scores ten thousand documents in one run. Kill it at any time and start it again: it goes on with the documents that
// are left.
//
//	go run ./examples/batch start score '{"Documents": 10000}'
//	go run ./examples/batch work
//	go run ./examples/batch runs show …
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/cli"
)

// Job says what to score.
type Job struct{ Documents int }

// Document is an item of the batch. Its ID is what it is known by, wherever it stands in the list.
type Document struct{ ID, Text string }

// Report is what became of the documents.
type Report struct {
	Done, Failed int
	Points       int
	Worst        []string // up to ten that failed
}

type app struct {
	list  func(Job) []Document
	score func(context.Context, string) (int, error)
	index func(context.Context, pawl.OpKey, int) error // a service that takes the same key once
}

func (a *app) documents(run *pawl.Run, job Job) (Report, error) {
	res, err := pawl.Batch(run, "documents", a.list(job), func(d Document) string { return d.ID }, a.document, pawl.AtOnce(32))
	if _, some := errors.AsType[*pawl.BatchError](err); err != nil && !some {
		return Report{}, err
	}
	// Some documents may have failed, which is reported here. A body that returns err instead fails, and can be retried:
	// failed documents run again, finished ones do not.
	report := Report{Done: res.Done, Failed: res.Failed}
	for id, r := range res.All() {
		switch {
		case r.Err == nil:
			report.Points += r.Value
		case len(report.Worst) < 10:
			report.Worst = append(report.Worst, id)
		}
	}
	return report, res.Err()
}

// document is what is done with each: its steps, retries and keys are its own.
func (a *app) document(run *pawl.Run, d Document) (int, error) {
	points, err := pawl.Repeatable(run, "score", d.Text, a.score)
	if err != nil {
		return 0, err
	}
	return points, pawl.KeyedDo(run, "index", points, a.index)
}

func main() {
	a := &app{
		list: func(job Job) []Document {
			docs := make([]Document, job.Documents)
			for i := range docs {
				docs[i] = Document{fmt.Sprintf("doc-%06d", i), fmt.Sprintf("the text of document %d", i)}
			}
			return docs
		},
		score: func(ctx context.Context, text string) (int, error) {
			select {
			case <-time.After(10 * time.Millisecond): // a model thinks
				return len(text), nil
			case <-ctx.Done():
				return 0, context.Cause(ctx)
			}
		},
		index: func(context.Context, pawl.OpKey, int) error { return nil },
	}
	cli.Main(pawl.Define("score", "v1", a.documents))
}
