package main

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/sqlite"
)

func TestFolder(t *testing.T) {
	s, err := sqlite.Open(filepath.Join(t.TempDir(), "pawl.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	var notes atomic.Int64
	a := &app{
		read: func(_ context.Context, name string) (string, error) { return "about " + name, nil },
		note: func(context.Context, string) error { notes.Add(1); return nil },
	}
	folder, document := a.definitions()
	e, err := pawl.New(s, &pawl.Options{Slots: 1}, folder, document)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Work(ctx) }()
	h, err := folder.Start(t.Context(), e, Folder{"f", []string{"a", "b", "c"}})
	if err != nil {
		t.Fatal(err)
	}
	sum, err := h.Result(t.Context())
	if err != nil || sum != 6 || notes.Load() != 1 {
		t.Errorf("%d points, %v, %d notes; want 6 and one", sum, err, notes.Load())
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
