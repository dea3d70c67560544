package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
)

// fake is a model and a ticket service in one. It counts what it is asked for.
type fake struct {
	mux *http.ServeMux

	mu     sync.Mutex        // guards all below
	asked  map[string]int    // model calls by ticket
	writes map[string]int    // writes by ticket
	keys   map[string]string // Idempotency-Key to the body it came with
}

func newFake() *fake {
	f := &fake{mux: http.NewServeMux(), asked: map[string]int{}, writes: map[string]int{}, keys: map[string]string{}}
	f.mux.HandleFunc("POST /chat/completions", f.chat)
	f.mux.HandleFunc("PUT /tickets/{id}/enrichment", f.save)
	return f
}

// listen serves on a free port of the loopback interface until stop.
func (f *fake) listen() (url string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	s := &http.Server{Handler: f.mux}
	go func() { _ = s.Serve(l) }() // ends with Close
	return "http://" + l.Addr().String(), func() { _ = s.Close() }, nil
}

func (f *fake) chat(w http.ResponseWriter, r *http.Request) {
	var in struct{ Messages []struct{ Content string } }
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || len(in.Messages) == 0 {
		http.Error(w, "want messages", http.StatusBadRequest)
		return
	}
	text := in.Messages[len(in.Messages)-1].Content
	ticket, _, _ := strings.Cut(text, ":")
	f.mu.Lock()
	f.asked[ticket]++
	n := f.asked[ticket]
	f.mu.Unlock()
	team, urgency := "none", 5
	switch {
	case strings.Contains(text, "charged"):
		team, urgency = "billing", 90
	case strings.Contains(text, "login"):
		team, urgency = "app", 60
	}
	answer(w, map[string]any{
		"id":      fmt.Sprintf("chat-%s-%d", ticket, n),
		"choices": []any{map[string]any{"message": map[string]any{"content": fmt.Sprintf(`{"team": %q, "urgency": %d}`, team, urgency)}}},
		"usage":   map[string]int{"prompt_tokens": len(text) / 4, "completion_tokens": 12},
	})
}

// save applies a write once per key. The same key with another body is a conflict, never a second write.
func (f *fake) save(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	key, ticket := r.Header.Get("Idempotency-Key"), r.PathValue("id")
	if err != nil || key == "" {
		http.Error(w, "want an Idempotency-Key", http.StatusBadRequest)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch before, seen := f.keys[key]; {
	case seen && before != string(body):
		http.Error(w, "the key was used for something else", http.StatusConflict)
		return
	case !seen:
		f.keys[key] = string(body)
		f.writes[ticket]++
	}
	answer(w, map[string]string{"ref": "enrichment/" + ticket})
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the caller is gone
}
