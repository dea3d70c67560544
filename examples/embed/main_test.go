package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/sqlite"
)

// open gives the shop on a file, served by HTTP, without a worker.
func open(t *testing.T, db string) (*shop, string) {
	t.Helper()
	store, err := sqlite.Open(db, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	s, err := newShop(t.Context(), store, &pawl.Options{Lease: 2 * time.Second, Poll: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s.handler())
	t.Cleanup(server.Close)
	return s, server.URL
}

// work runs a worker until the returned stop is called.
func (s *shop) work(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.engine.Work(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func post(t *testing.T, url, order string) (a answer, status int) {
	t.Helper()
	resp, err := http.Post(url+"/orders", "application/json", strings.NewReader(order))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusAccepted {
		if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
			t.Fatal(err)
		}
	}
	return a, resp.StatusCode
}

func get(t *testing.T, url, id string) (a answer) {
	t.Helper()
	resp, err := http.Get(url + "/orders/" + id)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
		t.Fatal(err)
	}
	return a
}

func (s *shop) result(t *testing.T, id pawl.RunID) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := s.orders.Handle(s.engine, id).Result(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestOrderAndRunAreOneTransaction(t *testing.T) {
	t.Parallel()
	s, url := open(t, filepath.Join(t.TempDir(), "pawl.db"))
	defer s.work(t)()
	a, status := post(t, url, `{"id":"1","item":"lamp","count":2}`)
	if status != http.StatusAccepted || !a.New {
		t.Fatalf("got %+v, status %d", a, status)
	}
	if out := s.result(t, a.Run); out != "8 left" {
		t.Errorf("got %q, want 8 left", out)
	}
	if got := get(t, url, "1"); got.Status != "accepted" {
		t.Errorf("order is %q, want accepted", got.Status)
	}
	again, _ := post(t, url, `{"id":"1","item":"lamp","count":2}`)
	if again.New || again.Run != a.Run {
		t.Errorf("the same order again: got %+v, want run %s", again, a.Run)
	}
	if _, status := post(t, url, `{"id":"1","item":"lamp","count":3}`); status != http.StatusConflict {
		t.Errorf("another order under the id: status %d, want 409", status)
	}
	b, _ := post(t, url, `{"id":"2","item":"chair","count":4}`)
	if out := s.result(t, b.Run); out != "sold out" || get(t, url, "2").Status != "rejected" {
		t.Errorf("got %q, order %q", out, get(t, url, "2").Status)
	}
}

func TestARolledBackOrderHasNoRun(t *testing.T) {
	t.Parallel()
	s, _ := open(t, filepath.Join(t.TempDir(), "pawl.db"))
	tx, err := s.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.orders.Start(t.Context(), pawl.InTx(s.engine, tx), Order{"1", "lamp", 1}, pawl.Key("order:1")); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	runs, _, err := s.engine.Runs(t.Context(), pawl.RunQuery{})
	if err != nil || len(runs) != 0 {
		t.Errorf("got %+v, %v, want no run", runs, err)
	}
}

// An order that was taken by one process is fulfilled by the next one.
func TestTheNextProcessGoesOn(t *testing.T) {
	t.Parallel()
	db := filepath.Join(t.TempDir(), "pawl.db")
	_, url := open(t, db)
	a, _ := post(t, url, `{"id":"1","item":"lamp","count":1}`)
	s, _ := open(t, db)
	defer s.work(t)()
	if out := s.result(t, a.Run); out != "9 left" {
		t.Errorf("got %q, want 9 left", out)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	db := filepath.Join(t.TempDir(), "pawl.db")
	if err := run(t.Context(), db, l.Addr().String()); err == nil {
		t.Error("an address that is taken gave no error")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- run(ctx, db, l.Addr().String()) }()
	for {
		if resp, err := http.Get("http://" + l.Addr().String() + "/orders/1"); err == nil { // it serves
			resp.Body.Close()
			break
		}
		select {
		case err := <-done:
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
