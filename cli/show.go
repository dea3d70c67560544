package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

// shownBytes is how much of a payload text output shows.
const shownBytes = 2000

func (a *app) showCmd() *cobra.Command {
	var payloads bool
	cmd := &cobra.Command{
		Use:   "show RUN",
		Short: "Show a run with its journal, questions and history; only looks",
		Long: `Show a run: its state, input and result, each step with all its attempts, open questions with the commands that answer
them, evidence, what people did, and the other runs of its lineage. It only looks: nothing is written or executed. RUN is
an id or the beginning of one.`,
		Example: "  " + a.o.name() + " runs show 0199\n  " + a.o.name() + " runs show 0199 -o json | jq .steps",
		Args:    takes(1, "RUN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd, look, func(ctx context.Context, s *session) error {
				id, err := s.run(ctx, args[0])
				if err != nil {
					return err
				}
				d, err := s.Show(ctx, id)
				if err != nil {
					return err
				}
				if a.format != text {
					return a.printJSON(detailOf(d))
				}
				return a.printRun(d, payloads)
			})
		},
	}
	cmd.Flags().BoolVar(&payloads, "values", false, "show the results of the steps too")
	return cmd
}

// detail is a [pawl.RunDetail] with its payloads as JSON.
type detail struct {
	pawl.RunDetail
	Input    json.RawMessage `json:"input,omitempty"`
	Result   json.RawMessage `json:"result,omitempty"`
	Steps    []step          `json:"steps"`
	Entries  []entry         `json:"entries,omitempty"`
	Evidence []evidence      `json:"evidence,omitempty"`
}

type step struct {
	pawl.StepDetail
	Input json.RawMessage `json:"input,omitempty"`
	Value json.RawMessage `json:"value,omitempty"`
}

type entry struct {
	pawl.Entry
	Input json.RawMessage `json:"input,omitempty"`
}

type evidence struct {
	pawl.Evidence
	Value json.RawMessage `json:"value,omitempty"`
}

func detailOf(d *pawl.RunDetail) detail {
	out := detail{RunDetail: *d, Input: raw(d.Input), Result: raw(d.Result), Steps: []step{}, Entries: entriesOf(d.Entries)}
	for _, s := range d.Steps {
		out.Steps = append(out.Steps, step{s, raw(s.Input), raw(s.Value)})
	}
	for _, e := range d.Evidence {
		out.Evidence = append(out.Evidence, evidence{e, raw(e.Value)})
	}
	return out
}

func entriesOf(list []pawl.Entry) []entry {
	var out []entry
	for _, e := range list {
		out = append(out, entry{e, raw(e.Input)})
	}
	return out
}

func (a *app) printRun(d *pawl.RunDetail, payloads bool) error {
	if err := a.columns(head(d), ""); err != nil {
		return err
	}
	if err := a.section("steps", len(d.Steps), stepTable(d, payloads)); err != nil {
		return err
	}
	if err := a.section("batches", len(d.Batches), batchTable(d.Batches)); err != nil {
		return err
	}
	for i := range d.Entries {
		if en := &d.Entries[i]; en.Closed.IsZero() {
			if err := a.printQuestion(en); err != nil {
				return err
			}
		}
	}
	if err := a.section("evidence", len(d.Evidence), evidenceTable(d.Evidence)); err != nil {
		return err
	}
	acts := newTable("AT", "ACT", "BY", "STEP", "DETAIL", "REASON")
	for i := range d.Audit {
		x := &d.Audit[i]
		acts.row(when(x.At), x.Act, x.By, cmp.Or(x.Step, "-"), cmp.Or(x.Detail, "-"), cmp.Or(x.Reason, "-"))
	}
	if err := a.section("acts of people", len(d.Audit), acts); err != nil {
		return err
	}
	if err := a.section("children", len(d.Children), callTable(d.Children)); err != nil {
		return err
	}
	if err := a.section("called by", len(d.Callers), callTable(d.Callers)); err != nil {
		return err
	}
	return a.section("other runs of the lineage", len(d.Family), runTable(d.Family))
}

func callTable(calls []pawl.Call) *table {
	t := newTable("STEP", "RUN", "STATE", "NOTE")
	for _, c := range calls {
		var notes []string
		if c.Found {
			notes = append(notes, "found by its key")
		}
		if c.Detached {
			notes = append(notes, "detached")
		}
		t.row(c.Step, string(c.Run), cmp.Or(string(c.State), "deleted"), cmp.Or(strings.Join(notes, ", "), "-"))
	}
	return t
}

func (a *app) section(title string, n int, t *table) error {
	if n == 0 {
		return nil
	}
	if err := a.say("\n%s", title); err != nil {
		return err
	}
	return a.columns(t, "  ")
}

func head(d *pawl.RunDetail) *table {
	t := newTable()
	t.row("run", string(d.ID))
	t.row("workflow", d.Workflow+" "+d.Version)
	state := string(d.State)
	if d.Cancel && !d.State.Terminal() {
		state += ", cancel requested"
	}
	t.row("state", state)
	t.fact("due", when(d.Due))
	t.fact("deadline", when(d.Deadline))
	t.fact("fault", faultText(d.Fault))
	if d.Cancel {
		t.fact("cancel", strings.TrimSuffix(d.CancelBy+": "+d.CancelWhy, ": "))
	}
	t.fact("key", string(d.Key))
	if d.Relation != pawl.Original {
		t.fact("relation", fmt.Sprintf("%s of %s", d.Relation, d.Parent))
	}
	t.fact("continues", string(d.Continues))
	t.fact("continued as", string(d.Successor))
	t.row("created", when(d.Created))
	t.fact("started", when(d.Started))
	if !d.Ended.IsZero() {
		took := ""
		if !d.Started.IsZero() {
			took = " (" + cmp.Or(span(d.Ended.Sub(d.Started)), "0s") + ")"
		}
		t.row("ended", when(d.Ended)+took)
	}
	t.fact("worker", string(d.Owner))
	if d.Lost+d.Releases > 0 {
		t.row("taken over", fmt.Sprintf("%s lost, %s", count(d.Lost, "worker", "workers"), count(d.Releases, "release", "releases")))
	}
	t.fact("builds", d.Builds)
	t.fact("input", compact(d.Input, shownBytes))
	t.fact("result", compact(d.Result, shownBytes))
	t.fact("cost", usageText(d.Cost))
	return t
}

// usageText shows cost and tokens.
func usageText(u pawl.Usage) string {
	var parts []string
	if u.CostMicros != 0 {
		parts = append(parts, dollars(u.CostMicros)+" (estimate)")
	}
	if u.TokensIn+u.TokensOut != 0 {
		parts = append(parts, fmt.Sprintf("%d tokens in, %d out", u.TokensIn, u.TokensOut))
	}
	return strings.Join(parts, ", ")
}

func faultText(f *fault.Fault) string {
	if f == nil {
		return ""
	}
	s := f.Error()
	if f.Outcome != 0 {
		s += " [" + f.Outcome.String() + "]"
	}
	return s
}

// stepTable is the journal: each step with its attempts below it.
func stepTable(d *pawl.RunDetail, payloads bool) *table {
	t := newTable("STEP", "KIND", "STATE", "TOOK", "COST", "NOTE")
	for i := range d.Steps {
		s := &d.Steps[i]
		var cost int64
		for j := range s.Attempts {
			cost += s.Attempts[j].Usage.CostMicros
		}
		t.row(s.Name, s.Kind.String(), string(s.State), "", dollars(cost), stepNote(s))
		for j := range s.Attempts {
			at := &s.Attempts[j]
			t.row(fmt.Sprintf("  #%d", at.Attempt), "", at.State, span(latency(at)), dollars(at.Usage.CostMicros), attemptNote(at))
		}
		if value := compact(s.Value, shownBytes); payloads && value != "" {
			t.row("  = " + value)
		}
	}
	return t
}

func latency(a *pawl.AttemptInfo) time.Duration {
	if a.Latency > 0 || a.Ended.IsZero() || a.Begun.IsZero() {
		return a.Latency
	}
	return a.Ended.Sub(a.Begun)
}

func stepNote(s *pawl.StepDetail) string {
	var notes []string
	add := func(cond bool, note string) {
		if cond {
			notes = append(notes, note)
		}
	}
	add(s.Reused != "" && s.State == pawl.StepSucceeded, "reused from "+string(s.Reused))
	add(s.Reused != "" && s.State != pawl.StepSucceeded, "inherited from "+string(s.Reused))
	add(s.TakenFrom != "", fmt.Sprintf("result taken from step %q", s.TakenFrom))
	add(s.InputDiffers, "called later with another input")
	add(s.Paid, "paid")
	add(s.PaidTwice, "possibly paid twice")
	add(!s.NextAt.IsZero() && s.State == pawl.StepRetrying, "next attempt "+when(s.NextAt))
	add(s.State == pawl.StepWaiting && s.Kind == fault.KindEvent, "awaits "+topicText(s.Input))
	add(s.State == pawl.StepWaiting && !s.NextAt.IsZero(), "until "+when(s.NextAt))
	return strings.Join(notes, "; ")
}

// topicText shows what a step awaits.
func topicText(input []byte) string {
	var topic pawl.Topic
	if json.Unmarshal(input, &topic) != nil || topic.Event == "" { // sealed
		return "an event"
	}
	return fmt.Sprintf("%s about %s", topic.Event, topic.About)
}

func attemptNote(a *pawl.AttemptInfo) string {
	var notes []string
	if a.Class != 0 {
		note := faultText(&fault.Fault{Class: a.Class, Reason: a.Reason, Outcome: a.Outcome, Message: a.Message})
		if a.State == string(pawl.StepSucceeded) {
			note = "reported first as " + note // a person or a probe knew better
		}
		notes = append(notes, note)
	}
	if a.Wait > 0 {
		notes = append(notes, "waited "+span(a.Wait))
	}
	if id := strings.TrimSpace(a.Usage.Provider + " " + a.Usage.RequestID); id != "" {
		notes = append(notes, id)
	}
	if s := a.Sent; s != nil && s.Requests+s.Replays > 1 {
		notes = append(notes, fmt.Sprintf("%d requests", s.Requests+s.Replays))
	}
	return strings.Join(notes, "; ")
}

func evidenceTable(list []pawl.Evidence) *table {
	t := newTable("AT", "STEP", "ATTEMPT", "FROM", "VERDICT", "DETAIL")
	for i := range list {
		e := &list[i]
		t.row(when(e.At), e.Step, fmt.Sprint(e.Attempt), e.Source, e.Verdict, cmp.Or(faultText(e.Fault), compact(e.Value, 200), "-"))
	}
	return t
}

// batchTable is how far each batch is.
func batchTable(list []pawl.BatchInfo) *table {
	t := newTable("BATCH", "ITEMS", "DONE", "FAILED", "LEFT", "REUSED", "RATE", "ETA")
	for i := range list {
		b := &list[i]
		rate, eta := "-", "-"
		if b.PerSecond > 0 {
			rate = fmt.Sprintf("%.3g/s", b.PerSecond)
		}
		if b.Wait > 0 {
			eta = span(b.Wait)
		}
		t.row(b.Name, fmt.Sprint(b.Items), fmt.Sprint(b.Done), fmt.Sprint(b.Failed), fmt.Sprint(b.Left), fmt.Sprint(b.Reused), rate, eta)
	}
	return t
}
