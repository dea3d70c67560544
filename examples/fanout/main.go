// Command fanout scores the documents of a folder, each in a run of its own, and reports on them when all are done.
package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/cli"
)

// Folder says what to score.
type Folder struct {
	Name string
	Docs []string
}

// Score is what a document's run has found.
type Score struct {
	Doc    string
	Points int
}

type app struct {
	read func(context.Context, string) (string, error) // the text of a document
	note func(context.Context, string) error
}

// document is the child: a run of its own, with its own journal, retries and history.
func (a *app) document(run *pawl.Run, name string) (Score, error) {
	text, err := pawl.Repeatable(run, "read", name, a.read)
	if err != nil {
		return Score{}, err
	}
	return Score{name, len(strings.Fields(text))}, nil
}

// folder waits for a child at a time. It holds no slot of a worker while it waits.
func (a *app) folder(document *pawl.Workflow[string, Score]) func(*pawl.Run, Folder) (int, error) {
	return func(run *pawl.Run, f Folder) (int, error) {
		sum := 0
		for _, doc := range f.Docs {
			score, err := pawl.Child(run.Item(doc), "score", document, doc, pawl.Deadline(time.Hour))
			if err != nil {
				return 0, err
			}
			sum += score.Points
		}
		return sum, pawl.RepeatableDo(run, "note", fmt.Sprintf("%s: %d points", f.Name, sum), a.note)
	}
}

func (a *app) definitions() (*pawl.Workflow[Folder, int], *pawl.Workflow[string, Score]) {
	document := pawl.Define("document", "v1", a.document)
	return pawl.Define("folder", "v1", a.folder(document)), document
}

func main() {
	a := &app{
		read: func(_ context.Context, name string) (string, error) { return "the text of " + name, nil },
		note: func(context.Context, string) error { return nil },
	}
	folder, document := a.definitions()
	cli.Main(folder, document)
}
