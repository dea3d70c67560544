package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	netmail "net/mail"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/emersion/go-smtp"
)

// addresses is where the outside world is found.
type addresses struct {
	HTTP string `json:"http"` // base URL of the ticket system and of the model
	SMTP string `json:"smtp"` // host:port
}

// world is all that is outside: a ticket system, a model that bills each call, and a mail server. It counts what it is
// asked for and knows nothing about runners.
type world struct {
	where addresses
	http  *http.Server
	smtp  *smtp.Server
	wg    sync.WaitGroup

	mu      sync.Mutex          // guards all below
	fetches map[string]int      // ticket to how often its records were read
	bills   map[string]int      // ticket to paid model calls
	keys    map[string]struct{} // idempotency keys the ticket system has seen
	status  map[string]string   // ticket to its status
	mails   []delivered
}

// delivered is an e-mail that the mail server has accepted.
type delivered struct {
	To        []string // the envelope's recipients
	MessageID string   // without the angle brackets
	Subject   string
	Body      string
}

// openWorld listens on free ports of the loopback interface.
func openWorld() (*world, error) {
	w := &world{fetches: map[string]int{}, bills: map[string]int{}, keys: map[string]struct{}{}, status: map[string]string{}}
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for HTTP: %w", err)
	}
	post, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		_ = web.Close()
		return nil, fmt.Errorf("listen for SMTP: %w", err)
	}
	w.where = addresses{HTTP: "http://" + web.Addr().String(), SMTP: post.Addr().String()}

	mux := http.NewServeMux()
	mux.HandleFunc("GET /tickets/{id}/records", w.handleRecords)
	mux.HandleFunc("PUT /tickets/{id}/status", w.handleStatus)
	mux.HandleFunc("POST /v1/chat/completions", w.handleChat)
	quiet := log.New(io.Discard, "", 0) // a killed worker's connection breaks off, which is nothing to report
	w.http = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ErrorLog: quiet}
	w.smtp = smtp.NewServer(mailbox{w})
	w.smtp.Domain, w.smtp.ErrorLog = "localhost", quiet
	w.smtp.MaxMessageBytes, w.smtp.MaxRecipients = 1<<20, 10
	w.smtp.ReadTimeout, w.smtp.WriteTimeout = 10*time.Second, 10*time.Second
	w.wg.Go(func() { _ = w.http.Serve(web) }) // it ends with close; before that a worker's call says what is wrong
	w.wg.Go(func() { _ = w.smtp.Serve(post) })
	return w, nil
}

// close ends both servers and waits for them.
func (w *world) close() {
	_ = w.http.Close()
	_ = w.smtp.Close()
	w.wg.Wait()
}

func (w *world) addresses() addresses { return w.where }

// count is what the world has seen of a ticket: reads of its records, paid calls, and e-mails to its owner.
func (w *world) count(ticket string) (fetches, paidCalls, emails int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.mails {
		if slices.Contains(m.To, ownerOf(ticket)) {
			emails++
		}
	}
	return w.fetches[ticket], w.bills[ticket], emails
}

// has reports whether an e-mail with the Message-ID was accepted.
func (w *world) has(messageID string) bool { return w.deliveries(messageID) > 0 }

// deliveries is how often an e-mail with the Message-ID was accepted.
func (w *world) deliveries(messageID string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, m := range w.mails {
		if m.MessageID == messageID {
			n++
		}
	}
	return n
}

func (w *world) handleRecords(rw http.ResponseWriter, req *http.Request) {
	id := req.PathValue("id")
	w.mu.Lock()
	w.fetches[id]++
	w.mu.Unlock()
	writeJSON(rw, http.StatusOK, []record{
		{id, "customer", "The invoice of May was charged twice. Please look into it today."},
		{id, "support", "Confirmed: the payment job ran again after its worker had died."},
		{id, "support", "The second charge is refunded."},
	})
}

func (w *world) handleStatus(rw http.ResponseWriter, req *http.Request) {
	var in struct{ Status string }
	if err := json.NewDecoder(http.MaxBytesReader(rw, req.Body, 1<<20)).Decode(&in); err != nil || in.Status == "" {
		http.Error(rw, "want a status", http.StatusBadRequest)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	key := req.Header.Get("Idempotency-Key")
	if _, seen := w.keys[key]; key == "" || !seen {
		w.keys[key] = struct{}{}
		w.status[req.PathValue("id")] = in.Status
	}
	writeJSON(rw, http.StatusOK, map[string]string{"status": w.status[req.PathValue("id")]})
}

func writeJSON(rw http.ResponseWriter, status int, v any) {
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(status)
	_ = json.NewEncoder(rw).Encode(v) // the caller is gone
}

// mailbox is the mail server's backend. It takes every e-mail, and each as often as it is sent.
type mailbox struct{ w *world }

func (b mailbox) NewSession(*smtp.Conn) (smtp.Session, error) { return &session{w: b.w}, nil }

// session is one SMTP connection.
type session struct {
	w  *world
	to []string
}

func (s *session) Reset()                               { s.to = nil }
func (s *session) Logout() error                        { return nil }
func (s *session) Mail(string, *smtp.MailOptions) error { return nil }

func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	s.to = append(s.to, to)
	return nil
}

// Data keeps the e-mail before it is acknowledged, as a real server does.
func (s *session) Data(r io.Reader) error {
	m, err := netmail.ReadMessage(r)
	if err != nil {
		return &smtp.SMTPError{Code: 554, Message: "not an e-mail"}
	}
	body, err := io.ReadAll(m.Body)
	if err != nil {
		return err
	}
	id := strings.Trim(m.Header.Get("Message-ID"), "<>")
	if id == "" {
		return errors.New("an e-mail without Message-ID")
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.mails = append(s.w.mails, delivered{slices.Clone(s.to), id, m.Header.Get("Subject"), string(body)})
	return nil
}
