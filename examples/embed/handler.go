package main

import (
	"database/sql"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/pawlrun/pawl"
)

// Order is what a customer posts, and the input of a run.
type Order struct {
	ID    string `json:"id"`
	Item  string `json:"item"`
	Count int    `json:"count"`
}

// answer is what both requests give.
type answer struct {
	Order
	Status string     `json:"status"`
	Run    pawl.RunID `json:"run,omitempty"`
	New    bool       `json:"new,omitempty"`
}

func (s *shop) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", s.post)
	mux.HandleFunc("GET /orders/{id}", s.get)
	return mux
}

// post writes the order and starts its run in one transaction. The order's id is the run's key, so a request that is
// sent again starts nothing.
func (s *shop) post(w http.ResponseWriter, r *http.Request) {
	var o Order
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&o); err != nil || o.ID == "" || o.Count < 1 {
		http.Error(w, "want an order with id, item and count", http.StatusBadRequest)
		return
	}
	ctx := r.Context()
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		fail(w, err)
		return
	}
	defer tx.Rollback() // does nothing after the commit
	_, err = tx.ExecContext(ctx, `INSERT INTO shop_orders VALUES ($1, $2, $3, 'new') ON CONFLICT DO NOTHING`, o.ID, o.Item, o.Count)
	if err != nil {
		fail(w, err)
		return
	}
	h, err := s.orders.Start(ctx, pawl.InTx(s.engine, tx), o, pawl.Key("order:"+o.ID))
	if err != nil {
		fail(w, err)
		return
	}
	if err := tx.Commit(); err != nil {
		fail(w, err)
		return
	}
	reply(w, http.StatusAccepted, answer{o, "new", h.ID(), h.New()})
}

func (s *shop) get(w http.ResponseWriter, r *http.Request) {
	var a answer
	err := s.db.QueryRowContext(r.Context(), `SELECT id, item, count, status FROM shop_orders WHERE id = $1`, r.PathValue("id")).
		Scan(&a.ID, &a.Item, &a.Count, &a.Status)
	if err != nil {
		fail(w, err)
		return
	}
	reply(w, http.StatusOK, a)
}

func fail(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, pawl.ErrConflict): // the same key with another input
		http.Error(w, "there is another order with this id", http.StatusConflict)
	case errors.Is(err, sql.ErrNoRows):
		http.Error(w, "no such order", http.StatusNotFound)
	default:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the caller is gone
}
