package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/payload"
)

// maxInput bounds what start reads; the engine's own limit on payloads is the one that counts.
const maxInput = 64 << 20

type startFlags struct {
	key     string
	version string
	again   bool
	wait    bool
	at      string
	limit   time.Duration

	queue    string
	share    string
	priority int
}

func (a *app) startCmd() *cobra.Command {
	var f startFlags
	cmd := &cobra.Command{
		Use:   "start WORKFLOW [JSON | - | @FILE]",
		Short: "Start a run",
		Long: `Start a run of one of this program's workflows and print its id. The input is JSON from the argument, from standard
input (-) or from a file (@FILE); without it, null, which a workflow whose input is a struct refuses. A worker executes
the run. With --key, a run that was started with that key and the same input is found, not started again.`,
		Example: "  " + a.o.name() + ` start enrich '{"ticket":42}' --key ticket:42 --wait`,
		Args:    takes(1, "WORKFLOW", "JSON"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.start(cmd, &f, args)
		},
		ValidArgsFunction: a.completeWorkflows,
	}
	cmd.Flags().StringVar(&f.key, "key", "", "product key, such as ticket:42: the same key and input are one run")
	cmd.Flags().StringVar(&f.version, "version", "", "version of the workflow (default the newest this program has)")
	cmd.Flags().BoolVar(&f.again, "again", false, "retry the key's newest run if it failed or was cancelled")
	cmd.Flags().StringVar(&f.at, "at", "", "do not begin before this time (RFC 3339), or this long from now, such as 90m")
	cmd.Flags().DurationVar(&f.limit, "deadline", 0, "how long the run may take from its start; then its steps are cut off")
	cmd.Flags().StringVar(&f.queue, "queue", "", "where the run waits (default the workflow's name)")
	cmd.Flags().StringVar(&f.share, "share", "", "on whose behalf: shares of a queue take turns")
	cmd.Flags().IntVar(&f.priority, "priority", 0, "minutes of head start over other runs, -100 to 100")
	cmd.Flags().BoolVar(&f.wait, "wait", false, "wait for the end and print the result; exit 5 if a person must answer")
	return cmd
}

// when are the options that say when a run begins, before which others, and how long it may take.
func (f *startFlags) when(cmd *cobra.Command) (opts []pawl.StartOption, err error) {
	if f.at != "" {
		at, err := parseAt(f.at)
		if err != nil {
			return nil, usage(cmd, "--at %s: want a time such as 2030-01-02T15:04:05Z, or a duration such as 90m", f.at)
		}
		opts = append(opts, pawl.At(at))
	}
	if cmd.Flags().Changed("deadline") {
		if f.limit <= 0 {
			return nil, usage(cmd, "--deadline %v: want a positive duration, such as 2h", f.limit)
		}
		opts = append(opts, pawl.Deadline(f.limit))
	}
	if f.priority < -pawl.MostPriority || f.priority > pawl.MostPriority {
		return nil, usage(cmd, "--priority is %d: want -%d to %d", f.priority, pawl.MostPriority, pawl.MostPriority)
	}
	return append(opts, pawl.Queue(f.queue), pawl.Share(pawl.Key(f.share)), pawl.Priority(f.priority)), nil
}

func (a *app) start(cmd *cobra.Command, f *startFlags, args []string) error {
	def, err := a.workflow(args[0], f.version)
	if err != nil {
		return err
	}
	var opts []pawl.StartOption
	if cmd.Flags().Changed("key") {
		if f.key == "" {
			return usage(cmd, "--key is empty")
		}
		if err := payload.CheckName("--key", f.key); err != nil {
			return usage(cmd, "%w", err)
		}
		opts = append(opts, pawl.Key(f.key))
	}
	if f.again {
		if f.key == "" {
			return usage(cmd, "--again needs --key")
		}
		opts = append(opts, pawl.Again())
	}
	when, err := f.when(cmd)
	if err != nil {
		return err
	}
	opts = append(opts, when...)
	input, err := a.input(cmd, args[1:])
	if err != nil {
		return err
	}
	return a.with(cmd, write, func(ctx context.Context, s *session) error {
		id, isNew, err := pawl.StartJSON(ctx, s, def, input, opts...)
		if err != nil {
			return s.unstarted(ctx, def, pawl.Key(f.key), err)
		}
		if !f.wait {
			return s.started(ctx, id, isNew)
		}
		row, err := s.row(ctx, id)
		if err != nil {
			return err
		}
		a.note("run %s %s; waiting for its end, which needs a worker: %s", id, verb(row, isNew), a.command("work"))
		return s.await(ctx, id, isNew)
	})
}

// parseAt reads a time, or a duration from now.
func parseAt(s string) (time.Time, error) {
	if d, err := time.ParseDuration(s); err == nil {
		return time.Now().Add(d), nil
	}
	return time.Parse(time.RFC3339, s)
}

// unstarted says what to do about a run that could not be started.
func (s *session) unstarted(ctx context.Context, def pawl.Definition, key pawl.Key, err error) error {
	if !errors.Is(err, pawl.ErrConflict) || key == "" {
		return badInput(s.cmd, err)
	}
	runs, _, listed := s.Runs(ctx, pawl.RunQuery{Workflow: pawl.NameOf(def).Workflow, Key: key, Limit: 1})
	if listed != nil || len(runs) == 0 {
		return &failure{exitConflict, err, "the key stays taken for 400 days after the run's end; use another key to do it once more"}
	}
	has := runs[0].ID
	return &failure{exitConflict, err, fmt.Sprintf("run %s has the key: %s shows its input; another input needs another key",
		has, s.a.command("runs show "+string(has)))}
}

// badInput makes a usage error of an input that does not fit the workflow's type.
func badInput(cmd *cobra.Command, err error) error {
	_, syntax := errors.AsType[*json.SyntaxError](err)
	_, typed := errors.AsType[*json.UnmarshalTypeError](err)
	switch {
	case syntax || typed:
		return usage(cmd, "%w", err)
	case errors.Is(err, fault.ReasonTooLarge):
		err := usage(cmd, "%w", err)
		err.next = "keep what is large in a file or an object store, and give its name to the run"
		return err
	}
	return err
}

// workflow finds a definition by name and version; without a version the newest.
func (a *app) workflow(name, version string) (pawl.Definition, error) {
	var found pawl.Definition
	has := false
	for _, d := range a.defs {
		id := pawl.NameOf(d)
		if id.Workflow != name {
			continue
		}
		has = true
		if version == "" && (found == nil || compareVersions(id.Version, pawl.NameOf(found).Version) > 0) || version == id.Version {
			found = d
		}
	}
	switch {
	case found != nil:
		return found, nil
	case has:
		return nil, &failure{exitNotFound, fmt.Errorf("this program has workflow %q, but not version %q", name, version), a.howToDefine()}
	}
	return nil, a.unknownWorkflow(name)
}

// compareVersions orders versions by their numbers: v9 comes before v10.
func compareVersions(v, w string) int {
	for v != "" && w != "" {
		vn, wn := digits(v), digits(w)
		if vn == 0 || wn == 0 {
			if c := cmp.Compare(v[0], w[0]); c != 0 {
				return c
			}
			v, w = v[1:], w[1:]
			continue
		}
		x, xerr := strconv.ParseUint(v[:vn], 10, 64)
		y, yerr := strconv.ParseUint(w[:wn], 10, 64)
		if c := cmp.Compare(x, y); c != 0 && xerr == nil && yerr == nil {
			return c
		}
		if c := cmp.Compare(v[:vn], w[:wn]); c != 0 {
			return c
		}
		v, w = v[vn:], w[wn:]
	}
	return cmp.Compare(len(v), len(w))
}

func digits(s string) int {
	if i := strings.IndexFunc(s, func(r rune) bool { return !unicode.IsDigit(r) }); i >= 0 {
		return i
	}
	return len(s)
}

// input reads the run's input.
func (a *app) input(cmd *cobra.Command, args []string) ([]byte, error) {
	if len(args) == 0 {
		return []byte("null"), nil
	}
	doc, from := []byte(args[0]), "the argument"
	var err error
	if path, isFile := strings.CutPrefix(args[0], "@"); isFile {
		from = path
		doc, err = readFile(path)
	} else if args[0] == "-" {
		from = "standard input"
		doc, err = io.ReadAll(io.LimitReader(a.in, maxInput+1))
	}
	if err != nil {
		return nil, &failure{exitUsage, fmt.Errorf("read the input: %w", err), "give the input as JSON, - for standard input, or @FILE"}
	}
	return doc, checkJSON(cmd, "the input from "+from, doc)
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	return io.ReadAll(io.LimitReader(f, maxInput+1))
}

// checkJSON refuses what is not one JSON value.
func checkJSON(cmd *cobra.Command, what string, doc []byte) error {
	if len(doc) > maxInput {
		return usage(cmd, "%s is longer than %d bytes", what, maxInput)
	}
	if !utf8.Valid(doc) {
		err := usage(cmd, "%s is not valid UTF-8", what)
		err.next = "JSON is UTF-8: convert the text, or encode bytes that are no text as base64"
		return err
	}
	var value json.RawMessage
	err := json.Unmarshal(doc, &value)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		err := usage(cmd, "%s is not JSON, at byte %d: %w", what, syntax.Offset, syntax)
		err.next = `text needs quotes of its own: '"like this"'`
		return err
	}
	return err
}

func verb(row *pawl.RunRow, isNew bool) string {
	switch {
	case !isNew:
		return "was there already"
	case row.Parent != "":
		return fmt.Sprintf("is new, a %s of run %s", row.Relation, row.Parent)
	}
	return "started"
}

// startedRun is what start prints as JSON.
type startedRun struct {
	Run    pawl.RunID      `json:"run"`
	New    bool            `json:"new"`
	Parent pawl.RunID      `json:"parent,omitempty"` // the run that it retries
	State  pawl.RunState   `json:"state"`
	Result json.RawMessage `json:"result,omitempty"`
	Fault  *fault.Fault    `json:"fault,omitempty"`
	Open   []openEntry     `json:"open,omitempty"` // what a person must answer
}

type openEntry struct {
	ID   pawl.EntryID   `json:"id"`
	Kind pawl.EntryKind `json:"kind"`
	Step string         `json:"step,omitempty"`
}

func openEntries(entries []pawl.Entry) (open []openEntry) {
	for i := range entries {
		if en := &entries[i]; en.Closed.IsZero() {
			open = append(open, openEntry{en.ID, en.Kind, en.Step})
		}
	}
	return open
}

func (s *session) started(ctx context.Context, id pawl.RunID, isNew bool) error {
	row, err := s.row(ctx, id)
	if err != nil {
		return err
	}
	if s.a.format != text {
		return s.a.printJSON(startedRun{Run: id, New: isNew, Parent: row.Parent, State: row.State})
	}
	switch {
	case !isNew:
		s.a.note("the run was there already; it is %s", row.State)
	case row.Parent != "":
		s.a.note("a new run, %s of run %s", row.Relation, row.Parent)
	}
	return s.a.say("%s", id)
}

// await waits until the run has ended or needs a person.
func (s *session) await(ctx context.Context, id pawl.RunID, isNew bool) error {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		row, err := s.row(ctx, id)
		if err != nil {
			return err
		}
		if row.Successor != "" {
			id = row.Successor
			continue
		}
		if row.State.Terminal() || row.State == pawl.Blocked {
			return s.ended(ctx, row, isNew)
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return &failure{exitFailed, fmt.Errorf("run %s is %s: %w", id, row.State, context.Cause(ctx)),
				"it goes on without you; " + s.a.command("runs show "+string(id)) + " tells how"}
		case <-t.C:
		}
	}
}

// ended prints what a run has come to.
func (s *session) ended(ctx context.Context, row *pawl.RunRow, isNew bool) error {
	d, err := s.Show(ctx, row.ID)
	if err != nil {
		return err
	}
	switch {
	case s.a.format != text:
		err = s.a.printJSON(startedRun{Run: d.ID, New: isNew, Parent: d.Parent, State: d.State, Result: raw(d.Result),
			Fault: d.Fault, Open: openEntries(d.Entries)})
	case d.State == pawl.Succeeded:
		err = s.a.say("%s", compact(d.Result, 0))
	}
	if err != nil {
		return err
	}
	show := "see " + s.a.command("runs show "+string(d.ID))
	switch d.State {
	case pawl.Succeeded:
		return nil
	case pawl.Failed:
		return &failure{exitFailed, fmt.Errorf("run %s failed: %w", d.ID, d.Fault), show}
	case pawl.Cancelled:
		return &failure{exitFailed, fmt.Errorf("run %s is cancelled", d.ID), show}
	case pawl.Blocked:
		return s.needsAnswer(d.ID, d.Entries)
	case pawl.Queued, pawl.Running, pawl.Waiting: // resumed by somebody just now
	}
	return &failure{exitFailed, fmt.Errorf("run %s is %s", d.ID, d.State), show}
}
