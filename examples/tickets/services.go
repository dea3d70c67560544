package main

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

//go:embed tickets.json
var sample []byte

// read gives the tickets of a JSON file, or the built-in ones.
func read(file string) (job Job, err error) {
	raw := sample
	if file != "" {
		if raw, err = os.ReadFile(file); err != nil {
			return job, err
		}
	}
	if err := json.Unmarshal(raw, &job); err != nil {
		return job, fmt.Errorf("%s: %w", cmp.Or(file, "tickets.json"), err)
	}
	return job, nil
}

// Ticket is one ticket of the file.
type Ticket struct {
	ID      string `json:"id"`
	Subject string `json:"subject"`
	Body    string `json:"body"`
}

// Enrichment is what the model makes of a ticket.
type Enrichment struct {
	Ticket  string `json:"ticket"`
	Team    string `json:"team"`
	Urgency int    `json:"urgency"`
}

// services are the two far ends.
type services struct {
	modelURL, model, modelKey string
	ticketsURL                string
	http                      *http.Client
}

// connect uses the given URLs, and starts a fake for each that is empty.
func connect(modelURL, model, ticketsURL string) (s *services, stop func(), err error) {
	s = &services{modelURL: modelURL, model: model, modelKey: os.Getenv("MODEL_API_KEY"), ticketsURL: ticketsURL,
		http: &http.Client{Timeout: time.Minute, Transport: fault.NewTransport(nil)}}
	if modelURL != "" && ticketsURL != "" {
		return s, func() {}, nil
	}
	url, stop, err := newFake().listen()
	if err != nil {
		return nil, nil, err
	}
	s.modelURL, s.ticketsURL = cmp.Or(modelURL, url), cmp.Or(ticketsURL, url)
	return s, stop, nil
}

// enrich asks the model. Running it twice does no harm, but costs money: the step is Repeatable and Paid.
func (s *services) enrich(ctx context.Context, t Ticket) (Enrichment, error) {
	ask := map[string]any{"model": s.model, "messages": []map[string]string{
		{"role": "system", "content": `Answer as JSON: {"team": "billing, app or none", "urgency": 0 to 100}`},
		{"role": "user", "content": t.ID + ": " + t.Subject + "\n" + t.Body},
	}}
	var answer struct {
		Choices []struct{ Message struct{ Content string } }
	}
	header := http.Header{"Authorization": {"Bearer " + s.modelKey}}
	if err := s.call(ctx, http.MethodPost, s.modelURL+"/chat/completions", header, ask, &answer); err != nil {
		return Enrichment{}, err
	}
	if len(answer.Choices) == 0 {
		return Enrichment{}, fmt.Errorf("the model gave no answer")
	}
	found := Enrichment{Ticket: t.ID}
	if err := json.Unmarshal([]byte(answer.Choices[0].Message.Content), &found); err != nil {
		return Enrichment{}, fmt.Errorf("the model's answer: %w", err)
	}
	return found, nil
}

// save writes the enrichment. The service does nothing twice under one key: the step is Keyed. The transport sends the key.
func (s *services) save(ctx context.Context, _ pawl.OpKey, found Enrichment) (string, error) {
	var answer struct{ Ref string }
	err := s.call(ctx, http.MethodPut, s.ticketsURL+"/tickets/"+url.PathEscape(found.Ticket)+"/enrichment", http.Header{}, found, &answer)
	return answer.Ref, err
}

func (s *services) call(ctx context.Context, method, url string, header http.Header, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fault.Invalid(err)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return fault.Invalid(err)
	}
	req.Header = header
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.http.Do(req)
	if err != nil {
		return err // the engine knows what network errors prove
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fault.FromHTTP("", resp.StatusCode, resp.Header, body) // what the status and the body mean
	}
	return json.Unmarshal(body, out)
}

// report prints what was saved and what the model calls cost, those of earlier runs of the lineage not included.
func report(ctx context.Context, out io.Writer, e *pawl.Engine, id pawl.RunID, saved map[string]string) error {
	d, err := e.Show(ctx, id)
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "run %s: %s\n", id, d.State)
	for _, s := range d.Steps {
		note := ""
		switch {
		case s.Reused != "":
			note = "  reused from run " + string(s.Reused)
		case s.PaidTwice:
			note = "  may have been paid twice"
		case s.Fault != nil:
			note = "  " + s.Fault.Error()
		}
		fmt.Fprintf(&b, "  %-10s %-16s %s%s\n", s.Kind, s.Name, s.State, note)
	}
	var tickets []string
	for ticket := range saved {
		tickets = append(tickets, ticket)
	}
	slices.Sort(tickets)
	for _, ticket := range tickets {
		fmt.Fprintf(&b, "  %s is saved as %s\n", ticket, saved[ticket])
	}
	fmt.Fprintf(&b, "  %d tokens in, %d out; estimated cost, where the model's price is known: $%.6f\n", d.Cost.TokensIn, d.Cost.TokensOut,
		float64(d.Cost.CostMicros)/1e6)
	_, err = io.WriteString(out, b.String())
	return err
}
