package demo

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/wneessen/go-mail"

	"github.com/pawlrun/pawl"
)

// ticket is what a run is about.
type ticket struct {
	ID string `json:"id"`
}

// record is one entry of a ticket's history.
type record struct {
	Ticket string `json:"ticket"`
	Author string `json:"author"`
	Text   string `json:"text"`
}

// score is what the model makes of a ticket's records.
type score struct {
	Ticket  string `json:"ticket"`
	Urgency int    `json:"urgency"`
	Reason  string `json:"reason"`
}

// closed is what closing a ticket gives.
type closed struct {
	Score     score  `json:"score"`
	MessageID string `json:"message_id"`
}

// clerk has the five functions, which both runners call as they are.
type clerk struct {
	world addresses
	http  *http.Client
}

func newClerk(world addresses) *clerk {
	return &clerk{world, &http.Client{Timeout: 10 * time.Second}}
}

// closeTicket is the workflow. Its steps say what happens if they run twice; that is all it knows about crashes. A
// process that only starts runs passes no clerk.
func closeTicket(version string, c *clerk) *pawl.Workflow[ticket, closed] {
	return pawl.Define("close-ticket", version, func(run *pawl.Run, t ticket) (closed, error) {
		records, err := pawl.Repeatable(run, "fetch", t.ID, c.fetch)
		if err != nil {
			return closed{}, err
		}
		s, err := pawl.Repeatable(run, "score", records, c.score, pawl.Paid())
		if err != nil {
			return closed{}, err
		}
		if _, err := pawl.Tx(run, "record", s, c.record); err != nil {
			return closed{}, err
		}
		// The far end is on this machine and answers at once, so little time need pass before "it did not happen" is
		// certain where a killed process cannot be proven dead.
		id, err := pawl.Once(run, "notify", s, func(ctx context.Context, it pawl.Intent, s score) (string, error) {
			return c.notify(ctx, messageIDOf(it.Key), s)
		}, pawl.Timeout(5*time.Second), pawl.Settle(time.Second))
		if err != nil {
			return closed{}, err
		}
		return closed{s, id}, pawl.KeyedDo(run, "close", s.Ticket, c.complete)
	}, pawl.KeyName("close-ticket"))
}

// messageIDOf names the e-mail of a notify step, so that it can be looked for.
func messageIDOf(key pawl.OpKey) string { return string(key) + "@pawl.example" }

// fetch reads the ticket's records.
func (c *clerk) fetch(ctx context.Context, id string) ([]record, error) {
	var records []record
	err := c.call(ctx, http.MethodGet, "/tickets/"+url.PathEscape(id)+"/records", nil, nil, &records)
	return records, err
}

// score pays a model to read the records.
func (c *clerk) score(ctx context.Context, records []record) (score, error) {
	if len(records) == 0 {
		return score{}, fmt.Errorf("a ticket without records cannot be scored")
	}
	id := records[0].Ticket
	var history strings.Builder
	for _, r := range records {
		fmt.Fprintf(&history, "%s: %s\n", r.Author, r.Text)
	}
	req := chatRequest{
		Model: "demo-small",
		Messages: []chatMessage{
			{Role: "system", Content: `Rate how urgent this ticket is. Answer as JSON: {"urgency": 0 to 100, "reason": "..."}`},
			{Role: "user", Content: history.String()},
		},
		ResponseFormat: &chatFormat{Type: "json_object"},
		Metadata:       map[string]string{"ticket": id},
	}
	var resp chatResponse
	header := http.Header{"Authorization": {"Bearer sk-demo"}}
	if err := c.call(ctx, http.MethodPost, "/v1/chat/completions", header, req, &resp); err != nil {
		return score{}, err
	}
	pawl.Report(ctx, pawl.Usage{Provider: "demo", Model: resp.Model, RequestID: resp.ID, TokensIn: resp.Usage.PromptTokens,
		TokensOut: resp.Usage.CompletionTokens, CostMicros: priceOf(resp.Usage)})
	if len(resp.Choices) == 0 {
		return score{}, fmt.Errorf("the model gave no choice")
	}
	s := score{Ticket: id}
	if err := json.Unmarshal([]byte(resp.Choices[0].Message.Content), &s); err != nil {
		return score{}, fmt.Errorf("the model's answer: %w", err)
	}
	return s, nil
}

// record writes the score's row.
func (c *clerk) record(ctx context.Context, tx *sql.Tx, s score) (int64, error) {
	return insertScore(ctx, tx, s)
}

// notify sends the owner an e-mail and returns its Message-ID. Without one given the mail gets a random one, as is usual.
func (c *clerk) notify(ctx context.Context, messageID string, s score) (string, error) {
	m := mail.NewMsg()
	if err := cmp.Or(m.From("tickets@example.com"), m.To(ownerOf(s.Ticket))); err != nil {
		return "", err
	}
	m.Subject("Ticket " + s.Ticket + " is closed")
	m.SetBodyString(mail.TypeTextPlain, fmt.Sprintf("Urgency %d: %s\n", s.Urgency, s.Reason))
	if messageID == "" {
		m.SetMessageID()
	} else {
		m.SetMessageIDWithValue(messageID)
	}
	host, port, err := net.SplitHostPort(c.world.SMTP)
	if err != nil {
		return "", err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return "", err
	}
	client, err := mail.NewClient(host, mail.WithPort(n), mail.WithTLSPolicy(mail.NoTLS), mail.WithHELO("localhost"))
	if err != nil {
		return "", err
	}
	if err := client.DialAndSendWithContext(ctx, m); err != nil {
		return "", err
	}
	return strings.Trim(m.GetMessageID(), "<>"), nil
}

// ownerOf is the mailbox of a ticket's owner.
func ownerOf(ticket string) string { return "owner+" + ticket + "@example.com" }

// complete marks the ticket as closed. The ticket system does nothing twice under one key.
func (c *clerk) complete(ctx context.Context, key pawl.OpKey, id string) error {
	header := http.Header{}
	if key != "" {
		header.Set("Idempotency-Key", string(key))
	}
	status := map[string]string{"status": "closed"}
	return c.call(ctx, http.MethodPut, "/tickets/"+url.PathEscape(id)+"/status", header, status, nil)
}

// call sends one HTTP request. in and out are JSON; nil means no body, and that the answer's body does not matter.
func (c *clerk) call(ctx context.Context, method, path string, header http.Header, in, out any) error {
	var body io.Reader = http.NoBody
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.world.HTTP+path, body)
	if err != nil {
		return err
	}
	if header != nil {
		req.Header = header
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(b))
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}
