package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pawlrun/pawl"
)

// hashShown is how many digits of a gate's hash people are shown; as many are asked back.
const hashShown = 12

// decision is what the commands about gates have in common.
type decision struct {
	person
	groups []string
	hash   string
}

func (f *decision) flags(cmd *cobra.Command, hash string) {
	f.person.flags(cmd)
	cmd.Flags().StringSliceVar(&f.groups, "group", nil, "a group that you decide for")
	if hash != "" {
		cmd.Flags().StringVar(&f.hash, "hash", "", hash)
	}
}

func (f *decision) of(gate pawl.EntryID, c pawl.Choice) pawl.Decision {
	act := f.act()
	return pawl.Decision{Gate: gate, Choice: c, Hash: strings.TrimSuffix(f.hash, "…"), By: act.By, Groups: f.groups, Via: "cli", Reason: act.Reason}
}

const hashHelp = "the hash that you were shown, or at least its first 8 digits"

func (a *app) approveCmd() *cobra.Command {
	var f decision
	cmd := &cobra.Command{
		Use:   "approve ENTRY --hash HASH",
		Short: "Approve what a run asks to do",
		Long: `Approve what a run asks to do. ` + "`inbox show ENTRY`" + ` shows it, with the hash that stands for exactly that. If it has changed
since, or somebody else has decided otherwise, nothing is done (exit 4). To approve once more is no error.`,
		Example: "  " + a.o.name() + ` approve 0199 --hash 3f9c21ab77d0 --reason "order checked"`,
		Args:    takes(1, "ENTRY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.hash == "" {
				err := usage(cmd, "--hash is missing: it says what you approve")
				err.next = "look at it first: " + a.command("inbox show "+quote(args[0]))
				return err
			}
			return a.decide(cmd, args[0], &f, pawl.AnswerApprove)
		},
	}
	f.flags(cmd, hashHelp)
	return cmd
}

func (a *app) rejectCmd() *cobra.Command {
	var f decision
	cmd := &cobra.Command{
		Use:     "reject ENTRY",
		Short:   "Refuse what a run asks to do",
		Long:    `Refuse what a run asks to do. The run goes on with the refusal, and the reason, as its answer.`,
		Example: "  " + a.o.name() + ` reject 0199 --reason "the customer has been paid already"`,
		Args:    takes(1, "ENTRY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.decide(cmd, args[0], &f, pawl.AnswerReject)
		},
	}
	f.flags(cmd, hashHelp)
	return cmd
}

func (a *app) revokeCmd() *cobra.Command {
	var f decision
	cmd := &cobra.Command{
		Use:   "revoke ENTRY",
		Short: "Take back an approval that has not been used",
		Long: `Take back an approval that has not been used. Once what was approved has begun it is too late (exit 4); ` + "`runs cancel`" + `
ends the run.`,
		Example: "  " + a.o.name() + ` revoke 0199 --reason "wrong order"`,
		Args:    takes(1, "ENTRY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.decide(cmd, args[0], &f, pawl.AnswerRevoke)
		},
	}
	f.flags(cmd, "")
	return cmd
}

func (a *app) editCmd() *cobra.Command {
	var f decision
	var payload string
	var approve bool
	cmd := &cobra.Command{
		Use:   "edit ENTRY --payload JSON",
		Short: "Change what a run asks to do",
		Long: `Change what a run asks to do. The question is then about the new payload, under an entry and a hash of its own, and
what was asked before cannot be approved any more. --approve approves the new payload in the same act; it needs the
hash of that, which is shown if --hash is left out.`,
		Example: "  " + a.o.name() + ` edit 0199 --payload '{"Order":"o1","Cents":5000}'` + "\n  " +
			a.o.name() + " edit 0199 --payload @refund.json --approve --hash 3f9c21ab77d0",
		Args: takes(1, "ENTRY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			doc, err := document(cmd, payload)
			if err != nil {
				return err
			}
			return a.with(cmd, look, func(ctx context.Context, s *session) error {
				en, err := s.gateEntry(ctx, args[0])
				if err != nil {
					return err
				}
				d := f.of(en.ID, pawl.AnswerEdit)
				d.Payload = doc
				if approve {
					d.Choice = pawl.AnswerEditAndApprove
				}
				if approve && f.hash == "" {
					return s.previewEdit(ctx, d)
				}
				return s.decide(ctx, d)
			})
		},
	}
	cmd.Flags().StringVar(&payload, "payload", "", "the new payload: JSON, or @FILE")
	cmd.Flags().BoolVar(&approve, "approve", false, "approve the new payload in the same act")
	f.flags(cmd, "with --approve: the hash of the new payload; otherwise of what you were shown")
	return cmd
}

// document reads a JSON argument, or the file that it names.
func document(cmd *cobra.Command, arg string) ([]byte, error) {
	doc := []byte(arg)
	name, isFile := strings.CutPrefix(arg, "@")
	switch {
	case arg == "":
		return nil, usage(cmd, "--payload is missing")
	case isFile:
		var err error
		if doc, err = os.ReadFile(name); err != nil {
			return nil, usage(cmd, "--payload: %w", err)
		}
	}
	return doc, checkJSON(cmd, "the payload", doc)
}

// decide carries out one decision.
func (a *app) decide(cmd *cobra.Command, arg string, f *decision, c pawl.Choice) error {
	return a.with(cmd, look, func(ctx context.Context, s *session) error {
		en, err := s.gateEntry(ctx, arg)
		if err != nil {
			return err
		}
		return s.decide(ctx, f.of(en.ID, c))
	})
}

// gateEntry finds the entry of a gate.
func (s *session) gateEntry(ctx context.Context, arg string) (*pawl.Entry, error) {
	en, err := s.entry(ctx, arg)
	if err == nil && en.Kind != pawl.AskGate {
		bad := usage(s.cmd, "entry %s (%s) does not ask for approval", en.ID, about(en))
		bad.next = "how to answer it: " + s.a.command("inbox show "+string(en.ID))
		return nil, bad
	}
	return en, err
}

func (s *session) decide(ctx context.Context, d pawl.Decision) error {
	g, err := s.Decide(ctx, d)
	switch {
	case errors.Is(err, pawl.ErrStale):
		return &failure{exitConflict, err, "what is asked now: " + s.a.command("inbox --kind gate")}
	case errors.Is(err, pawl.ErrNotAllowed):
		return &failure{exitFailed, err, "--as and --group say who decides"}
	case err != nil:
		return err
	}
	if s.a.format != text {
		return s.a.printJSON(gateOf(g))
	}
	if d.Choice == pawl.AnswerEdit {
		return s.a.say("edited: it is now asked about as %s, hash %s…", g.ID, g.Hash[:hashShown])
	}
	said := "gate: " + g.State
	if g.By != "" {
		said += ", decided by " + clean(g.By) + " at " + when(g.Decided)
	}
	return s.a.say("%s", said)
}

// previewEdit shows what an edit would make, with the hash to approve it by.
func (s *session) previewEdit(ctx context.Context, d pawl.Decision) error {
	g, err := s.Edited(ctx, d)
	if err != nil {
		return err
	}
	if err := s.a.say("nothing is changed yet; this is what would be approved"); err != nil {
		return err
	}
	if err := s.a.printDiff(g.Previous, g.Payload); err != nil {
		return err
	}
	err = usage(s.cmd, "--hash is missing: it says what you approve")
	return &failure{exitUsage, err, "if that is right, the same again with --hash " + g.Hash[:hashShown]}
}

// gate is a gate for machines.
type gate struct {
	pawl.GateInfo
	Payload  json.RawMessage `json:"payload"`
	Previous json.RawMessage `json:"previous_payload,omitempty"`
	Form     json.RawMessage `json:"schema,omitempty"`
}

func gateOf(g *pawl.GateInfo) gate { return gate{*g, raw(g.Payload), raw(g.Previous), raw(g.Form)} }

func (s *session) gateJSON(ctx context.Context, id pawl.EntryID) error {
	g, err := s.Gate(ctx, id)
	if err != nil {
		return err
	}
	return s.a.printJSON(gateOf(g))
}

// gateQuestion is an open gate in one line.
func gateQuestion(en *pawl.Entry) string {
	line := en.Detail + " " + compact(en.Input, shownBytes)
	if !en.Expires.IsZero() {
		line += ", until " + when(en.Expires)
	}
	if len(en.Hash) >= hashShown {
		line += ", hash " + en.Hash[:hashShown] + "…"
	}
	return line
}

// showGate shows what is asked, and the command for each answer.
func (s *session) showGate(ctx context.Context, en *pawl.Entry) error {
	g, err := s.Gate(ctx, en.ID)
	if err != nil {
		return err
	}
	if err := s.a.say("\ngate %s: %s", en.ID, clean(en.Detail)); err != nil {
		return err
	}
	if err := s.a.columns(gateFacts(g), "  "); err != nil {
		return err
	}
	if err := s.a.say("  payload"); err != nil {
		return err
	}
	if err := s.a.printDiff(g.Previous, g.Payload); err != nil {
		return err
	}
	answers := newTable()
	switch g.State {
	case string(pawl.GatePending):
		answers.row(s.a.line(fmt.Sprintf("approve %s --hash %s", g.ID, g.Hash[:hashShown])), "do it")
		answers.row(s.a.line(fmt.Sprintf("reject %s --reason TEXT", g.ID)), "do not do it")
		answers.row(s.a.line(fmt.Sprintf("edit %s --payload JSON", g.ID)), "ask about something else")
	case string(pawl.GateApproved):
		answers.row(s.a.line(fmt.Sprintf("revoke %s --reason TEXT", g.ID)), "take the approval back")
	default:
		return nil
	}
	if err := s.a.say("  answers"); err != nil {
		return err
	}
	return s.a.columns(answers, "    ")
}

func gateFacts(g *pawl.GateInfo) *table {
	t := newTable()
	t.row("state", g.State)
	t.row("asked", when(g.Requested))
	if !g.Expires.IsZero() {
		t.row("until", when(g.Expires)+", then it is denied")
	}
	t.row("generation", fmt.Sprint(g.Generation))
	t.fact("edited by", g.EditedBy)
	t.fact("deciders", strings.Join(g.Deciders, ", "))
	t.fact("under key", string(g.OpKey))
	t.row("hash", g.Hash[:hashShown]+"…")
	if !g.Decided.IsZero() {
		t.row("decided", fmt.Sprintf("by %s at %s via %s", g.By, when(g.Decided), cmp.Or(g.Via, "pawl")))
		t.fact("reason", g.Reason)
	}
	if !g.GrantExpires.IsZero() {
		t.row("good until", when(g.GrantExpires))
	}
	t.fact("used by", g.Acts)
	return t
}

// printDiff shows a payload field by field, and beside each field that an edit has changed what it was before.
func (a *app) printDiff(before, after []byte) error {
	now, was := fieldsOf(after), fieldsOf(before)
	names := slices.Collect(maps.Keys(now))
	for name := range was {
		if _, kept := now[name]; !kept {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	t := newTable()
	for _, name := range names {
		value, old := now[name], was[name]
		switch {
		case len(before) == 0 || value == old:
			t.row("", name, value)
		case old == "":
			t.row("+", name, value)
		case value == "":
			t.row("-", name, old)
		default:
			t.row("*", name, value+"   was "+old)
		}
	}
	return a.columns(t, "    ")
}

// fieldsOf flattens a JSON text into paths and values.
func fieldsOf(doc []byte) map[string]string {
	all := make(map[string]string)
	var v any
	d := json.NewDecoder(strings.NewReader(string(doc)))
	d.UseNumber()
	if len(doc) == 0 || d.Decode(&v) != nil {
		return all
	}
	flatten(all, "", v)
	return all
}

func flatten(all map[string]string, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			flatten(all, strings.TrimPrefix(path+"."+name, "."), member)
		}
		if len(v) > 0 {
			return
		}
	case []any:
		for i, element := range v {
			flatten(all, fmt.Sprintf("%s[%d]", path, i), element)
		}
		if len(v) > 0 {
			return
		}
	}
	text, err := json.Marshal(v)
	if err != nil { // unreachable: it came from JSON
		text = []byte(err.Error())
	}
	all[cmp.Or(path, "value")] = compact(text, shownBytes)
}
