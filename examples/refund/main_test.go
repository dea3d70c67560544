package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/sqlite"
)

// TestMain lets this test binary be the program itself, so that a test can kill it.
func TestMain(m *testing.M) {
	switch os.Getenv("REFUND_PROGRAM") {
	case "":
		os.Exit(m.Run())
	case "killed": // right before the provider is called
		before = func() {
			fmt.Println("about to pay")
			select {}
		}
	}
	main()
}

type desk struct {
	t    *testing.T
	dir  string
	args []string
}

func (d *desk) play() string {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	if err := run(ctx, d.args, &out); err != nil {
		d.t.Fatal(err)
	}
	return strings.TrimSpace(out.String())
}

// killed runs the program until it is about to pay, and kills it there.
func (d *desk) killed() {
	d.t.Helper()
	cmd := exec.CommandContext(d.t.Context(), os.Args[0], d.args...)
	cmd.Env = append(os.Environ(), "REFUND_PROGRAM=killed")
	out, err := cmd.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	line := make([]byte, 64)
	n, _ := out.Read(line)
	if !strings.HasPrefix(string(line[:n]), "about to pay") {
		d.t.Errorf("the program said %q", line[:n])
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// decide finds the open gate and decides on it.
func (d *desk) decide(with func(e *pawl.Engine, en pawl.Entry) error) {
	d.t.Helper()
	store, err := sqlite.Open(filepath.Join(d.dir, "refund.db"), nil)
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	e, err := pawl.New(store, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	open, _, err := e.Inbox(d.t.Context(), pawl.InboxQuery{Kind: pawl.AskGate})
	if err != nil || len(open) != 1 {
		d.t.Fatalf("the inbox has %d gates, want 1: %v", len(open), err)
	}
	if err := with(e, open[0]); err != nil {
		d.t.Fatal(err)
	}
}

func newDesk(t *testing.T) *desk {
	dir := t.TempDir()
	return &desk{t, dir, []string{"-db", filepath.Join(dir, "refund.db"), "-ledger", filepath.Join(dir, "ledger"), "-order", "o1", "-cents", "9900"}}
}

func (d *desk) ledger() string {
	text, err := os.ReadFile(filepath.Join(d.dir, "ledger"))
	if err != nil && !os.IsNotExist(err) {
		d.t.Fatal(err)
	}
	return string(text)
}

// What was edited is what is paid, once, though the process is killed between approval and payment.
func TestRefundEditedAndKilled(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	if got := d.play(); !strings.HasPrefix(got, `asked: {"Cents":9900,"Order":"o1"}`) {
		t.Errorf("it said %q", got)
	}
	by := pawl.Decision{By: "ann", Groups: []string{"finance"}}
	d.decide(func(e *pawl.Engine, en pawl.Entry) error {
		x := by
		x.Gate, x.Choice, x.Payload = en.ID, pawl.AnswerEdit, []byte(`{"Order":"o1","Cents":5000}`)
		_, err := e.Decide(t.Context(), x)
		return err
	})
	d.decide(func(e *pawl.Engine, en pawl.Entry) error {
		x := by
		x.Gate, x.Choice, x.Hash = en.ID, pawl.AnswerApprove, en.Hash
		_, err := e.Decide(t.Context(), x)
		return err
	})
	d.killed()
	if paid := d.ledger(); paid != "" {
		t.Errorf("before it was paid the ledger has %q", paid)
	}
	if got := d.play(); got != "refunded re_1 by ann" {
		t.Errorf("it said %q", got)
	}
	if got := d.play(); got != "refunded re_1 by ann" {
		t.Errorf("asked again it said %q", got)
	}
	if paid := d.ledger(); strings.Count(paid, "\n") != 1 || !strings.HasSuffix(paid, " o1 5000\n") {
		t.Errorf("the ledger has %q", paid)
	}
}

func TestRefundRejected(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.play()
	d.decide(func(e *pawl.Engine, en pawl.Entry) error {
		_, err := e.Decide(t.Context(), pawl.Decision{Gate: en.ID, Choice: pawl.AnswerReject, By: "finance", Reason: "worn"})
		return err
	})
	if got := d.play(); got != "rejected  by finance" {
		t.Errorf("it said %q", got)
	}
	if paid := d.ledger(); paid != "" {
		t.Errorf("the ledger has %q", paid)
	}
}
