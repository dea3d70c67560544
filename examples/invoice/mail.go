package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/wneessen/go-mail"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/fault/smtpfault"
)

// Mail is what the step is asked to send. It is stored with the intent and shown in the inbox.
type Mail struct{ From, To, Subject, Body string }

// deliver sends m. Its error says what is proven: a refusal that the mail was not accepted, a reply that is lost nothing.
func deliver(ctx context.Context, server, messageID string, m Mail) error {
	msg := mail.NewMsg()
	if err := cmp.Or(msg.From(m.From), msg.To(m.To)); err != nil {
		return fault.Invalid(err)
	}
	msg.SetMessageIDWithValue(messageID)
	msg.SetDate()
	msg.Subject(m.Subject)
	msg.SetBodyString(mail.TypeTextPlain, m.Body)
	s := &smtpfault.Server{
		Addr: server, Username: os.Getenv("SMTP_USER"), Password: os.Getenv("SMTP_PASSWORD"),
		AllowPlain: true, // the own server speaks no TLS; a password is never sent without
	}
	_, err := s.Send(ctx, m.From, []string{m.To}, msg)
	return err
}

// report prints how the run ended and what its attempts were.
func report(ctx context.Context, out io.Writer, e *pawl.Engine, id pawl.RunID, messageID string) error {
	d, err := e.Show(ctx, id)
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "run %s: %s, Message-ID %s\n", id, d.State, messageID)
	for _, s := range d.Steps {
		for _, a := range s.Attempts {
			fmt.Fprintf(&b, "  %s %s, attempt %d: %s", s.Kind, s.Name, a.Attempt, a.State)
			if a.Outcome != 0 {
				fmt.Fprintf(&b, " (%s, %s)", a.Class, a.Outcome)
			}
			b.WriteString("\n")
		}
	}
	for _, ev := range d.Evidence {
		fmt.Fprintf(&b, "  the %s says of attempt %d: %s\n", ev.Source, ev.Attempt, ev.Verdict)
	}
	_, err = io.WriteString(out, b.String())
	return err
}

// question prints what a person has to answer, and how.
func question(ctx context.Context, out io.Writer, e *pawl.Engine, id pawl.RunID) error {
	entries, _, err := e.Inbox(ctx, pawl.InboxQuery{Run: id})
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, en := range entries {
		fmt.Fprintf(&b, "run %s asks: %s\n  it was to send %s\n  look for Message-ID %s, then say one of:\n", id, en.Detail, en.Input,
			messageID(pawl.Intent{Key: en.OpKey}))
		fmt.Fprintf(&b, "  pawl resolve %s --happened '%q'\n  pawl resolve %[1]s --did-not-happen\n  pawl resolve %[1]s --give-up\n",
			en.ID, messageID(pawl.Intent{Key: en.OpKey}))
	}
	_, err = io.WriteString(out, b.String())
	return err
}
