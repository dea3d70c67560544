package cli

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlrun/pawl/fault"
)

func (a *app) faultsCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "faults",
		Short: "What an answer of a provider means",
		RunE:  group,
	}
	cmd.AddCommand(a.explainCmd())
	return cmd
}

// answer is an HTTP response as a person has it.
type answer struct {
	provider string
	status   int
	header   http.Header
	body     []byte
}

func (a *app) explainCmd() *cobra.Command {
	var provider, body string
	var status int
	var headers []string
	cmd := &cobra.Command{
		Use:   "explain [RESPONSE]",
		Short: "Say what an HTTP response means: class, outcome, delay, and what each kind of step does",
		Long: `Say what an HTTP response means: class, reason, outcome and told delay, and what each kind of step does after it.

RESPONSE is a file with a saved response, status line and headers included, as curl -i prints it; - reads standard input.
Without it the response is given by flags. Nothing is sent, and no database is needed.`,
		Example: "  curl -is https://api.example.com/v1/things | " + a.o.name() + " faults explain -\n  " +
			a.o.name() + ` faults explain --provider openai --status 429 --header "Retry-After: 20" --body '{"error":{"code":"insufficient_quota"}}'`,
		Args: takes(0, "RESPONSE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var got answer
			var err error
			switch {
			case len(args) == 1 && (status != 0 || body != "" || len(headers) > 0):
				return usage(cmd, "the response comes from %q or from flags, not from both", args[0])
			case len(args) == 1:
				got, err = a.savedAnswer(args[0])
			case status == 0:
				return usage(cmd, "a response is needed: a file, - or --status")
			default:
				got, err = a.answerOf(status, headers, body)
			}
			if err != nil {
				return &failure{exitUsage, err, "see " + cmd.CommandPath() + " --help"}
			}
			if got.provider = provider; provider != "" && !fault.Known(provider) {
				return usage(cmd, "no provider is called %q: want one of %s", provider, strings.Join(fault.Providers(), ", "))
			}
			return a.explain(got)
		},
	}
	cmd.Flags().StringVar(&provider, "provider", "", "who answered, such as openai (default: found by the headers)")
	cmd.Flags().IntVar(&status, "status", 0, "HTTP status")
	cmd.Flags().StringArrayVar(&headers, "header", nil, `a header, "Name: value"; may be repeated`)
	cmd.Flags().StringVar(&body, "body", "", "the body, or @FILE")
	return cmd
}

func (a *app) savedAnswer(path string) (answer, error) {
	var text []byte
	var err error
	if path == "-" {
		path = "standard input"
		text, err = io.ReadAll(io.LimitReader(a.in, maxInput+1))
	} else {
		text, err = readFile(path)
	}
	if err != nil {
		return answer{}, fmt.Errorf("read the response: %w", err)
	}
	got, err := parseAnswer(text)
	if err != nil {
		return answer{}, fmt.Errorf("%s is no saved response: %w", path, err)
	}
	return got, nil
}

// parseAnswer reads status line, headers and body. Of several heads, as a proxy, a redirect or a 100 leave them, the last
// one counts. Content-Length and Transfer-Encoding are not heeded: the body was decoded when it was saved.
func parseAnswer(text []byte) (got answer, err error) {
	for {
		r := bufio.NewReader(bytes.NewReader(text))
		head := textproto.NewReader(r)
		line, err := head.ReadLine()
		if err != nil {
			return answer{}, errors.New("it is empty")
		}
		status, ok := statusOf(line)
		if !ok {
			return answer{}, errors.New(`it does not begin with a status line such as "HTTP/1.1 429 Too Many Requests"`)
		}
		header, err := head.ReadMIMEHeader()
		if err != nil && !errors.Is(err, io.EOF) {
			return answer{}, fmt.Errorf("headers: %w", err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			return answer{}, err
		}
		more := status < 200 || status >= 300 && status < 400 || status == http.StatusOK && len(header) == 0 // a proxy's consent
		if !more || !bytes.HasPrefix(body, []byte("HTTP/")) {
			return answer{status: status, header: http.Header(header), body: body}, nil
		}
		text = body
	}
}

// statusOf reads a status line.
func statusOf(line string) (status int, ok bool) {
	word, rest, _ := strings.Cut(line, " ")
	code, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	status, err := strconv.Atoi(code)
	return status, strings.HasPrefix(word, "HTTP/") && err == nil && status >= 100 && status <= 999
}

func (a *app) answerOf(status int, headers []string, body string) (answer, error) {
	got := answer{status: status, header: http.Header{}, body: []byte(body)}
	if status < 100 || status > 999 {
		return answer{}, fmt.Errorf("--status %d is no HTTP status", status)
	}
	for _, h := range headers {
		name, value, ok := strings.Cut(h, ":")
		if !ok || strings.TrimSpace(name) == "" {
			return answer{}, fmt.Errorf(`--header %q is not of the form "Name: value"`, h)
		}
		got.header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	if path, isFile := strings.CutPrefix(body, "@"); isFile {
		var err error
		if got.body, err = readFile(path); err != nil {
			return answer{}, fmt.Errorf("read the body: %w", err)
		}
	}
	return got, nil
}

// explanation is what an answer means, for printing.
type explanation struct {
	Success bool               `json:"success"` // the answer is a success, and all that follows is empty
	Fault   *fault.Fault       `json:"fault,omitempty"`
	Advice  string             `json:"advice,omitempty"`
	Kinds   map[string]verdict `json:"kinds,omitempty"` // by kind of step, after a first attempt
}

type verdict struct {
	Action string `json:"action"`
	WaitMS int64  `json:"wait_ms"` // without jitter
	Why    string `json:"why"`
}

var allKinds = []fault.Kind{fault.KindRepeatable, fault.KindKeyed, fault.KindTx, fault.KindOnce}

func (a *app) explain(got answer) error {
	f := fault.FromHTTP(got.provider, got.status, got.header, got.body)
	if f == nil && strings.HasPrefix(got.header.Get("Content-Type"), "text/event-stream") {
		f = fault.FromStream(got.provider, got.header, got.body)
	}
	e := explanation{Success: f == nil, Fault: f}
	if f != nil {
		e.Advice, e.Kinds = f.Reason.Advice(), map[string]verdict{}
		for _, k := range allKinds {
			d := fault.Decide(f, k, fault.Budget{Attempt: 1, UnknownAttempts: 1})
			e.Kinds[k.String()] = verdict{d.Action.String(), d.Wait.Milliseconds(), d.Why}
		}
	}
	if a.format != text {
		return a.printJSON(e)
	}
	if e.Success {
		return a.say("a success: nothing is wrong with it")
	}
	facts := newTable()
	facts.fact("class", f.Class.String())
	facts.fact("reason", string(f.Reason))
	facts.fact("outcome", f.Outcome.String())
	facts.fact("told delay", span(f.Delay))
	if f.Final {
		facts.fact("veto", "the far end says not to send it again")
	}
	facts.fact("provider", f.Provider)
	facts.fact("request id", f.RequestID)
	facts.fact("message", f.Message)
	facts.fact("what to do", e.Advice)
	if err := a.columns(facts, ""); err != nil {
		return err
	}
	if err := a.say(""); err != nil {
		return err
	}
	kinds := newTable("KIND", "THEN", "WAIT", "WHY")
	for _, k := range allKinds {
		v := e.Kinds[k.String()]
		kinds.row(k.String(), v.Action, span(time.Duration(v.WaitMS)*time.Millisecond), v.Why)
	}
	return a.columns(kinds, "")
}
