package pawl

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/payload"
)

// defaultCalls is the worst case of one step whose policy is not known: the default number of attempts.
const defaultCalls = 10

// Plan says what a retry, fork or move of a run would do, and writes nothing. What stands in the way is in its
// Refusals. If this engine has the workflow, its body is replayed over the journal, without executing anything, to find
// the first step that is not finished.
func (e *Engine) Plan(ctx context.Context, id RunID, o PlanOptions) (p *Plan, err error) {
	err = e.store.View(ctx, func(ctx context.Context, tx Txn) error {
		p, err = e.planIn(ctx, tx, id, o, true)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	return p, nil
}

// planIn makes a plan in tx. The body is replayed only to show the plan, never inside a write transaction.
func (e *Engine) planIn(ctx context.Context, tx Txn, id RunID, o PlanOptions, replay bool) (*Plan, error) {
	run, err := tx.LockRun(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", id, err)
	}
	space, err := e.namespace(ctx, tx)
	if err != nil {
		return nil, err
	}
	family, err := tx.Lineage(ctx, run.Lineage)
	if err != nil {
		return nil, err
	}
	rows, err := allSteps(ctx, tx, id)
	if err != nil {
		return nil, err
	}
	now, err := tx.Now(ctx)
	if err != nil {
		return nil, err
	}
	p := &Plan{Run: id, Options: o}
	p.refuse(refusals(run, family, &o)...)
	p.live = o.Mode != PlanMove && !o.NewKeys && slices.ContainsFunc(family, func(r RunRow) bool {
		return r.ID != id && !r.NewKeys && !r.State.Terminal()
	})
	pl := &planner{e: e, space: space, plan: p, run: run, rows: rows, now: now}
	if err := pl.fates(ctx, tx); err != nil {
		return nil, err
	}
	if replay {
		pl.replay(ctx, tx)
	}
	pl.totals()
	pl.checkNames()
	p.Digest = digest(run, family, slices.Concat(rows, pl.items), p.Options)
	return p, nil
}

// fates says what becomes of each step.
func (pl *planner) fates(ctx context.Context, tx Txn) error {
	switch mode := pl.plan.Options.Mode; mode {
	case PlanRetry:
		pl.retry()
	case PlanFork:
		pl.fork()
	case PlanMove:
		pl.move()
		return nil
	default:
		return fmt.Errorf("unknown plan mode %q", mode)
	}
	if err := pl.batches(ctx, tx); err != nil {
		return err
	}
	return pl.gates(ctx, tx)
}

func allSteps(ctx context.Context, tx Txn, id RunID) ([]StepRow, error) {
	var all []StepRow
	for after := ""; ; {
		page, err := tx.Steps(ctx, id, after, journalPage)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if len(page) < journalPage {
			break
		}
		after = page[len(page)-1].Name
	}
	slices.SortStableFunc(all, func(a, b StepRow) int {
		switch {
		case a.Begun != b.Begun:
			return int(min(max(a.Begun-b.Begun, -1), 1))
		default:
			return compare(a.Name, b.Name)
		}
	})
	return all, nil
}

func (p *Plan) refuse(texts ...string) { p.Refusals = append(p.Refusals, texts...) }

// refusals are reasons that concern the run as a whole.
func refusals(run *RunRow, family []RunRow, o *PlanOptions) (why []string) {
	if o.Mode == PlanMove {
		return moveRefusals(run, o)
	}
	why = modeRefusals(run, o)
	if o.Mode == PlanFork && o.NewKeys {
		return why
	}
	if !run.State.Terminal() {
		why = append(why, fmt.Sprintf("the run is %s: only a finished run is retried (resume or cancel this one first)", run.State))
	}
	if hooks.Broken(hooks.W6) {
		return why
	}
	for i := range family {
		if other := &family[i]; other.ID != run.ID && !other.NewKeys && !other.State.Terminal() {
			why = append(why, fmt.Sprintf("run %s of the lineage is %s: only one may be live", other.ID, other.State))
		}
	}
	if later := after(family, run.ID); len(later) > 0 && later[len(later)-1].State.Terminal() {
		why = append(why, fmt.Sprintf("run %s of the lineage is newer and knows what has happened since: take that one", later[len(later)-1].ID))
	}
	return why
}

func modeRefusals(run *RunRow, o *PlanOptions) (why []string) {
	switch {
	case o.Mode == PlanFork && (o.From == "") != o.FromStart:
		why = append(why, "a fork needs either a step to begin from or the start")
	case run.NewKeys && !(o.Mode == PlanFork && o.NewKeys):
		why = append(why, "the run is a fork with operation keys of its own, which no other run keeps; `fork --new-keys` re-executes")
	case o.Mode == PlanRetry && run.Successor != "":
		why = append(why, fmt.Sprintf("the run succeeded and goes on as run %s: take that one", run.Successor))
	case o.Mode == PlanRetry && run.State == Succeeded:
		why = append(why, "the run succeeded: there is nothing to retry; `fork` re-executes")
	}
	return why
}

func moveRefusals(run *RunRow, o *PlanOptions) []string {
	switch {
	case run.State.Terminal():
		return []string{fmt.Sprintf("the run is %s: only an unfinished run can be moved", run.State)}
	case run.State == Running:
		return []string{"a worker holds the run: only a queued, waiting or blocked run can be moved"}
	case !versionPattern.MatchString(o.Version):
		return []string{fmt.Sprintf("version %q: want v and a number, like v2", o.Version)}
	}
	return nil
}

// planner fills a plan's steps.
type planner struct {
	e     *Engine
	space string
	plan  *Plan
	run   *RunRow
	rows  []StepRow
	items []StepRow // steps of items that are not done
	from  int64     // where a fork begins
	now   int64
}

func (pl *planner) add(row *StepRow, fate Fate, why string) {
	s := PlannedStep{Name: row.Name, Kind: row.Kind, State: row.State, Fate: fate, Paid: row.Paid, Attempt: row.Attempt, Why: why}
	if fate == Rerun || fate == Ask {
		s.Calls = defaultCalls
		s.Cost = row.Usage.CostMicros
	}
	if row.Kind == fault.KindKeyed || row.Kind == fault.KindOnce || row.Foreign {
		s.Key = pl.key(row.Name)
	}
	pl.plan.Steps = append(pl.plan.Steps, s)
}

// key is the operation key that the step would have in the planned run.
func (pl *planner) key(path string) OpKey {
	run := *pl.run
	run.NewKeys = pl.plan.Options.NewKeys
	if run.NewKeys || slices.Contains(pl.plan.Options.NewKey, path) {
		return "" // derived from the new run's id
	}
	return run.opKey(pl.space, path)
}

func (pl *planner) expired(row *StepRow) bool {
	return row.Kind == fault.KindKeyed && row.FirstIntent > 0 && pl.now > row.FirstIntent+row.KeyTTL
}

// retry continues after what is finished.
func (pl *planner) retry() {
	for i := range pl.rows {
		fate, why := pl.retried(&pl.rows[i])
		pl.add(&pl.rows[i], fate, why)
	}
}

// fork re-executes from a step on. Everything begun after it goes too, because it may depend on it.
func (pl *planner) fork() {
	o := &pl.plan.Options
	from := int64(0)
	if !o.FromStart && o.From != "" {
		i := slices.IndexFunc(pl.rows, func(r StepRow) bool { return r.Name == o.From })
		if i < 0 {
			pl.plan.refuse(fmt.Sprintf("the run has no step %q: it has %q", o.From, names(pl.rows)))
			return
		}
		from = pl.rows[i].Begun
	}
	pl.from = from
	for i := range pl.rows {
		row := &pl.rows[i]
		fate, why := pl.forked(row, row.Begun >= from)
		pl.add(row, fate, why)
		if fate == Refused {
			pl.plan.refuse(fmt.Sprintf("%s %q would run again: allow it with --repeat %q", row.Kind, row.Name, row.Name))
		}
	}
}

// forked says what a fork does with a row; again tells whether it is at or after the step that the fork begins from.
func (pl *planner) forked(row *StepRow, again bool) (Fate, string) {
	o := &pl.plan.Options
	harmful := row.Kind == fault.KindOnce || pl.expired(row)
	switch {
	case row.State == StepSucceeded && !again:
		return Reuse, ""
	case slices.Contains(o.Repeat, row.Name):
		return Rerun, "repeated on purpose"
	case row.State == StepSucceeded:
		return doneAgain(row, harmful, o)
	case row.State == StepGivenUp, harmful && (row.Fault == nil || !row.Fault.Outcome.Proven()):
		return Ask, "nobody knows whether it happened"
	case row.Kind == fault.KindKeyed:
		return Rerun, keyWhy(o, row.Name)
	}
	return Rerun, ""
}

// doneAgain says what a fork does with a step that has succeeded and comes after where it begins.
func doneAgain(row *StepRow, harmful bool, o *PlanOptions) (Fate, string) {
	switch {
	case harmful:
		return Refused, "it happened; name it in Repeat to have it happen again"
	case row.Kind == fault.KindChild:
		return Refused, "the child has ended; name it in Repeat to start another"
	case row.Kind == fault.KindBatch:
		return Refused, "its items were run; name it in Repeat to run them all again"
	case row.Kind == fault.KindTx && !row.Foreign:
		return Rerun, "writes again"
	case row.Kind == fault.KindKeyed:
		return Rerun, keyWhy(o, row.Name)
	}
	return Rerun, ""
}

// gates asks anew what was approved and not done: only the gate of an effect whose result is reused is reused with it.
func (pl *planner) gates(ctx context.Context, tx Txn) error {
	if !slices.ContainsFunc(pl.rows, func(r StepRow) bool { return r.Kind == fault.KindGate }) {
		return nil
	}
	used := make(map[string]string) // gate's step → step that acted under it
	for id := pl.run.ID; id != ""; {
		gates, err := tx.Gates(ctx, id)
		if err != nil {
			return err
		}
		for i := range gates {
			if g := &gates[i]; g.State == GateClaimed && used[g.Step] == "" {
				used[g.Step] = g.Ref
			}
		}
		run, err := tx.LockRun(ctx, id)
		if err != nil {
			return err
		}
		id = run.Parent
	}
	steps := pl.plan.Steps
	for i := range steps {
		s := &steps[i]
		if s.Kind != fault.KindGate {
			continue
		}
		done := slices.ContainsFunc(steps, func(e PlannedStep) bool { return e.Name == used[s.Name] && e.Fate == Reuse })
		if s.Fate == Reuse && !done {
			s.Fate, s.Why = Rerun, "what it is about was not done: it is asked again"
		}
		if s.Fate != Reuse {
			s.Calls, s.Cost = 0, 0
		}
	}
	return nil
}

func keyWhy(o *PlanOptions, path string) string {
	if o.NewKeys || slices.Contains(o.NewKey, path) {
		return "with a new key"
	}
	return "with the same key"
}

func names(rows []StepRow) []string {
	var all []string
	for i := range rows {
		all = append(all, rows[i].Name)
	}
	return all
}

func (pl *planner) move() {
	def := pl.e.defs[VersionID{pl.run.Workflow, pl.plan.Options.Version}]
	if def == nil {
		pl.plan.refuse(fmt.Sprintf("this binary has no %s %s to replay the journal against: use the one that does", pl.run.Workflow, pl.plan.Options.Version))
		return
	}
	for i := range pl.rows {
		row := &pl.rows[i]
		switch row.State {
		case StepSucceeded, StepFailed, StepGivenUp:
			pl.add(row, Reuse, "")
		case StepUncertain:
			pl.add(row, Ask, "nobody knows whether it happened")
		default:
			pl.add(row, Rerun, "")
		}
	}
}

// replay runs the body over the steps that would be reused, to see which it comes by and where it goes on.
func (pl *planner) replay(ctx context.Context, tx Txn) {
	run, p := *pl.run, pl.plan
	if p.Options.Mode == PlanMove {
		run.Version = p.Options.Version
	}
	def := pl.e.defs[VersionID{run.Workflow, run.Version}]
	if def == nil || len(p.Steps) < len(pl.rows) {
		return
	}
	rows, keep := make(map[string]*StepRow, len(pl.rows)), map[string]*StepRow{}
	for i := range pl.rows {
		rows[pl.rows[i].Name] = &pl.rows[i]
	}
	for i := range p.Steps {
		if p.Steps[i].Fate == Reuse {
			keep[p.Steps[i].Name] = rows[p.Steps[i].Name]
		}
	}
	dry := &dryRun{}
	if err := pl.e.replay(ctx, tx, def, &run, keep, dry); err != nil {
		p.refuse(fmt.Sprintf("the body could not be replayed over the journal: %v", err))
		return
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		switch {
		case s.Fate == Reuse && !dry.visited[s.Name]:
			if p.Options.Mode == PlanMove {
				s.Fate, s.Why = Unused, cmpOr(s.Why, "the new version does not come by it before it goes on")
			}
		case s.Name == dry.next:
			s.Calls = dry.calls
		}
	}
	if dry.next != "" && rows[dry.next] == nil {
		p.Steps = append(p.Steps, PlannedStep{Name: dry.next, Kind: dry.kind, Fate: Rerun, Paid: dry.paid, Calls: dry.calls, Why: "the first step without a row"})
	}
}

// checkNames refuses options that name steps the run does not have: a typo would send under the old key.
func (pl *planner) checkNames() {
	o := &pl.plan.Options
	for _, name := range slices.Concat(o.Repeat, o.NewKey) {
		if !slices.ContainsFunc(pl.rows, func(r StepRow) bool { return r.Name == name }) {
			pl.plan.refuse(fmt.Sprintf("the run has no step %q: it has %q", name, names(pl.rows)))
		}
	}
}

func (pl *planner) totals() {
	for _, s := range slices.Concat(pl.plan.Steps, pl.plan.items) {
		if s.Paid && (s.Fate == Rerun || s.Fate == Ask) {
			pl.plan.PaidCalls += s.Calls
			pl.plan.Cost += s.Cost
		}
	}
}

// digest is what a plan was made from: if any of it changes, the plan is stale.
func digest(run *RunRow, family []RunRow, rows []StepRow, o PlanOptions) string {
	opts, _ := json.Marshal(o) // strings and booleans always encode
	text := fmt.Appendf(opts, "\n%s %s %d %s\n", run.ID, run.State, run.Epoch, run.Version)
	for i := range family {
		text = fmt.Appendf(text, "%s %s\n", family[i].ID, family[i].State)
	}
	for i := range rows {
		text = fmt.Appendf(text, "%q %s %d %d\n", rows[i].Name, rows[i].State, rows[i].Attempt, rows[i].Epoch)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:12])
}

// carry makes the plan again under the run's lock and refuses it if anything has changed since it was shown.
func (e *Engine) carry(ctx context.Context, tx Txn, p *Plan, mode PlanMode, a Act) (*RunRow, *Plan, error) {
	if err := checkName("By", a.By); err != nil {
		return nil, nil, err
	}
	if p == nil || p.Options.Mode != mode {
		return nil, nil, fmt.Errorf("this needs a %s plan", mode)
	}
	run, err := tx.LockRun(ctx, p.Run)
	if err != nil {
		return nil, nil, err
	}
	again, err := e.planIn(ctx, tx, p.Run, p.Options, false)
	if err != nil {
		return nil, nil, err
	}
	live := again.live
	if again.Digest != p.Digest && !live { // the loser of two retries is told the other's id, not that its plan is stale
		return nil, nil, fmt.Errorf("run %s has changed since the plan was made: %w", p.Run, ErrStale)
	}
	if len(again.Refusals) > 0 {
		err := fmt.Errorf("%s of run %s: %s", mode, p.Run, strings.Join(again.Refusals, "; "))
		if live {
			err = fmt.Errorf("%w: %w", ErrLive, err)
		}
		return nil, nil, err
	}
	return run, again, nil
}

// Retry carries out a retry plan: a new run, linked to the old one, that inherits what is finished and continues, with
// the same operation keys. The old run stays as it is. [ErrStale] if the plan no longer holds, [ErrLive] if another run
// of the lineage is not finished.
func (e *Engine) Retry(ctx context.Context, p *Plan, a Act) (RunID, error) {
	return e.acted(ctx, func(ctx context.Context, tx Txn) (RunID, error) { return e.retryIn(ctx, tx, p, a) })
}

// Fork carries out a fork plan: a new run, linked to the old one, that re-executes from a step on.
func (e *Engine) Fork(ctx context.Context, p *Plan, a Act) (RunID, error) {
	return e.acted(ctx, func(ctx context.Context, tx Txn) (RunID, error) {
		run, again, err := e.carry(ctx, tx, p, PlanFork, a)
		if err != nil {
			return "", err
		}
		return e.heir(ctx, tx, run, again, Forked, a)
	})
}

// Move carries out a move plan: the same run goes on under another version.
func (e *Engine) Move(ctx context.Context, p *Plan, a Act) error {
	_, err := e.acted(ctx, func(ctx context.Context, tx Txn) (RunID, error) {
		run, _, err := e.carry(ctx, tx, p, PlanMove, a)
		if err != nil {
			return "", err
		}
		now, err := tx.Now(ctx)
		if err != nil {
			return "", err
		}
		from := run.Version
		run.Version = p.Options.Version
		if err := closeKind(ctx, tx, run.ID, AskVersion, AnswerResume, a.By, "moved to "+run.Version); err != nil {
			return "", err
		}
		if err := tx.AddAudit(ctx, &AuditRow{Act: "move", By: a.By, Why: payload.Clean(a.Reason, 1000), Run: run.ID, Detail: from + " to " + run.Version}); err != nil {
			return "", err
		}
		if run.State == Waiting {
			return run.ID, tx.SaveRun(ctx, run)
		}
		if run.State == Blocked {
			if uncertain := noneUncertain(ctx, tx, run.ID); errors.Is(uncertain, ErrConflict) {
				return run.ID, tx.SaveRun(ctx, run) // stays blocked by the question
			} else if uncertain != nil {
				return "", uncertain
			}
		}
		return run.ID, wake(ctx, tx, run, now)
	})
	return err
}

func (e *Engine) acted(ctx context.Context, fn func(context.Context, Txn) (RunID, error)) (id RunID, err error) {
	err = e.update(ctx, func(ctx context.Context, tx Txn) error {
		id, err = fn(ctx, tx)
		return err
	})
	if err != nil {
		return "", err
	}
	e.nudge()
	e.hint(ctx)
	return id, nil
}

func (e *Engine) retryIn(ctx context.Context, tx Txn, p *Plan, a Act) (RunID, error) {
	run, again, err := e.carry(ctx, tx, p, PlanRetry, a)
	if err != nil {
		return "", err
	}
	return e.heir(ctx, tx, run, again, Retried, a)
}

// dryRun is a replay that executes and writes nothing.
type dryRun struct {
	tx      Txn // of the plan, which reads large values
	visited map[string]bool
	next    string // the first step without a finished row
	kind    Kind
	paid    bool
	calls   int
	problem string

	settles string // a step of which a person says that it happened …
	result  []byte // … with this result
	fits    any    // which decodes as this, …
	wrong   error  // … or does not fit the step's type
}

func (d *dryRun) reach(c *stepCall, path string, row *StepRow) {
	if path == d.settles {
		if v, err := c.typed.check(d.result); err != nil {
			d.wrong = err
		} else {
			d.fits = v
		}
	}
	if d.next != "" { // in another branch
		return
	}
	d.next, d.kind, d.paid, d.calls = path, c.kind, c.o.paid, max(c.o.policy.Attempts, 0)
	if d.calls == 0 && c.batch == nil {
		d.calls = defaultCalls
	}
	if row != nil {
		d.kind = row.Kind
	}
}

func (d *dryRun) note(path, text string) { d.problem = path + ": " + text }

func (e *Engine) replay(ctx context.Context, tx Txn, def *definition, run *RunRow, rows map[string]*StepRow, dry *dryRun) error {
	input, _, err := tx.Payload(ctx, run.ID)
	if err == nil {
		input, err = e.open(input)
	}
	if err != nil {
		return err
	}
	dry.tx = tx
	x := &execution{e: e, def: def, row: *run, input: input, dry: dry, hold: ctx, ctx: ctx}
	x.quietN.Store(true)
	x.j = newJournal(rows)
	var root *branch
	done := make(chan struct{})
	go func() { // a goroutine of its own, which the body may end
		defer close(done)
		x.body(func(b *branch, _ []byte, failed error) { root, err = b, failed })
	}()
	<-done
	dry.visited = x.j.visited
	if dry.problem != "" {
		return errors.New(dry.problem)
	}
	if err != nil && !root.over.Load() && errors.Is(err, fault.ReasonPanic) {
		return err
	}
	return nil
}
