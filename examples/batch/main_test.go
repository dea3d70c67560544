package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/sqlite"
)

// The worker is stopped three times, and gets the list in another order each time. Each document is indexed under one key.
func TestDocuments(t *testing.T) {
	n := 10_000
	if testing.Short() {
		n = 600
	}
	var scored atomic.Int64
	var mu sync.Mutex
	indexed := map[pawl.OpKey]int{}
	stopAt := make(chan struct{}, 1)
	a := &app{
		list: func(job Job) []Document {
			docs := make([]Document, job.Documents)
			for i := range docs {
				docs[i] = Document{fmt.Sprintf("doc-%06d", i), fmt.Sprint(i)}
			}
			if scored.Load() > 0 {
				slices.Reverse(docs)
			}
			return docs
		},
		score: func(_ context.Context, text string) (int, error) {
			if scored.Add(1)%int64(n/4) == 0 {
				select {
				case stopAt <- struct{}{}:
				default:
				}
			}
			if text == "7" {
				return 0, fault.Invalid(fmt.Errorf("no text"))
			}
			return 1, nil
		},
		index: func(_ context.Context, key pawl.OpKey, _ int) error {
			mu.Lock()
			defer mu.Unlock()
			indexed[key]++
			return nil
		},
	}
	path := filepath.Join(t.TempDir(), "pawl.db")
	w := pawl.Define("score", "v1", a.documents)
	var id pawl.RunID
	for round := range 4 {
		s, err := sqlite.Open(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		e, err := pawl.New(s, nil, w)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.Work(ctx) }()
		if id == "" {
			h, err := w.Start(t.Context(), e, Job{n})
			if err != nil {
				t.Fatal(err)
			}
			id = h.ID()
		}
		if round < 3 {
			<-stopAt
		} else {
			r, err := w.Handle(e, id).Result(t.Context())
			if err != nil || r.Done != n-1 || r.Failed != 1 || r.Points != n-1 || len(r.Worst) != 1 || r.Worst[0] != "doc-000007" {
				t.Errorf("%+v, %v", r, err)
			}
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if len(indexed) != n-1 || scored.Load() != int64(n) {
		t.Errorf("%d documents were indexed and %d scored; want %d, and each once, as nobody was killed", len(indexed), scored.Load(), n)
	}
}
