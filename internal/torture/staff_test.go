//go:build unix

package torture_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawlrun/pawl"
)

// staff starts, cancels and retries runs, and keeps a history of those that are finished. The database may be away or
// busy at any time: what cannot be done now is done later.
type staff struct {
	*rig
	rnd    *rand.Rand
	quit   atomic.Bool // the day is over: nothing is begun any more
	open   atomic.Int64
	jobs   int
	news   int
	keyed  []keyedJob
	seen   map[pawl.RunID]bool   // runs that were found open once and are not in history yet
	past   map[pawl.RunID]string // finished runs as they were first seen
	sample []pawl.RunID          // the keys of past
}

// keyedJob is a job that was started under a product key.
type keyedJob struct {
	job
	lineage pawl.RunID
}

func (k *keyedJob) key() pawl.Key { return pawl.Key(fmt.Sprintf("job:%d", k.N)) }

// crowd is how many runs are open at a time.
const crowd = 50

func newStaff(r *rig, seed uint64) *staff {
	s := &staff{rig: r, rnd: rand.New(rand.NewPCG(seed, 2)), seen: map[pawl.RunID]bool{}, past: map[pawl.RunID]string{}}
	s.open.Store(1) // not known to be done
	return s
}

// work is the staff's day. It ends with ctx.
func (s *staff) work(ctx context.Context) {
	for ctx.Err() == nil {
		s.round(ctx)
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (s *staff) round(ctx context.Context) {
	quit := s.quit.Load() // before the look: what is counted then includes what was begun
	open, err := s.list(ctx, []pawl.RunState{pawl.Queued, pawl.Running, pawl.Waiting, pawl.Blocked})
	if err != nil {
		return
	}
	now := make(map[pawl.RunID]bool, len(open))
	for i := range open {
		now[open[i].ID], s.seen[open[i].ID] = true, true
	}
	for id := range s.seen {
		if !now[id] {
			s.ended(ctx, id)
		}
	}
	for range min(5, len(s.sample)) {
		s.compare(ctx, s.sample[s.rnd.IntN(len(s.sample))])
	}
	if quit {
		s.open.Store(int64(len(open)))
		return
	}
	if len(open) < crowd {
		s.start(ctx, crowd-len(open))
	}
	for range min(3, len(open)) {
		s.send(ctx, open[s.rnd.IntN(len(open))].ID)
	}
	if len(open) > 0 && s.rnd.IntN(3) == 0 {
		id := open[s.rnd.IntN(len(open))].ID
		if s.rnd.IntN(2) == 0 {
			id = s.caller(ctx, id)
		}
		ctx, cancel := context.WithTimeout(ctx, lease) // its row may be locked by a COMMIT that is held back
		defer cancel()
		if _, err := s.control.Cancel(ctx, id, pawl.Act{By: "staff", Reason: "changed my mind"}); err == nil {
			s.ledger.cancels.Add(1)
		}
	}
}

// send tells a run something, twice under one id now and then.
func (s *staff) send(ctx context.Context, id pawl.RunID) {
	ctx, cancel := context.WithTimeout(ctx, lease)
	defer cancel()
	s.news++
	text := fmt.Sprint("news ", s.news)
	for range 1 + s.rnd.IntN(2) {
		if err := news.Send(ctx, s.control, pawl.Key(id), text, pawl.EventID(text)); err == nil {
			s.ledger.sent.Add(1)
		}
	}
}

// list reads all runs in some states; nil means all states.
func (r *rig) list(ctx context.Context, states []pawl.RunState) (all []pawl.RunInfo, err error) {
	for q := (pawl.RunQuery{States: states, Limit: 1000}); ; {
		page, next, err := r.control.Runs(ctx, q)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if next == "" {
			return all, nil
		}
		q.After = next
	}
}

func (s *staff) newJob() job {
	s.jobs++
	j := job{N: s.jobs}
	for range 3 + s.rnd.IntN(7) {
		verb := verbs[s.rnd.IntN(len(verbs))]
		if verb == "qchild" && !s.parts.queues {
			verb = "child"
		}
		j.Verbs = append(j.Verbs, verb)
	}
	return j
}

// start begins up to n runs: many at once, one with a key, or one that is there already.
func (s *staff) start(ctx context.Context, n int) {
	flow := flow(nil)
	switch d := s.rnd.IntN(10); {
	case d < 3 && len(s.keyed) > 0:
		s.reuse(ctx, flow)
	case d < 6:
		k := keyedJob{job: s.newJob()}
		h, err := flow.Start(ctx, s.control, k.job, append(s.where(), k.key())...)
		if err != nil {
			return
		}
		k.lineage = h.ID()
		s.keyed = append(s.keyed, k)
	default:
		batch := make([]job, min(n, 8))
		for i := range batch {
			batch[i] = s.newJob()
		}
		_, _ = flow.StartMany(ctx, s.control, batch, nil, s.where()...) // or not: the database may be away
	}
}

// reuse starts under a key that is taken: it finds the run, retries it, or is refused for its other input.
func (s *staff) reuse(ctx context.Context, flow *pawl.Workflow[job, string]) {
	k := s.keyed[s.rnd.IntN(len(s.keyed))]
	j, opts := k.job, []pawl.StartOption{k.key()}
	other := s.rnd.IntN(4) == 0
	if other {
		j.Verbs = append([]string{"rep"}, j.Verbs...)
	} else if s.rnd.IntN(3) == 0 {
		opts = append(opts, pawl.Again())
	}
	h, err := flow.Start(ctx, s.control, j, opts...)
	switch {
	case other && err == nil:
		s.violate(h.ID(), "key %s was taken with another input, and started a run", k.key())
	case errors.Is(err, pawl.ErrConflict) && !other:
		s.violate(k.lineage, "key %s with the same input is refused: %v", k.key(), err)
	case errors.Is(err, pawl.ErrConflict):
		s.ledger.refused.Add(1)
	case err == nil && h.New() && len(opts) == 1:
		s.violate(h.ID(), "key %s with the same input started a second run", k.key())
	case err == nil:
		s.ledger.reused.Add(1)
		if info, err := h.Status(ctx); err == nil && info.Lineage != k.lineage {
			s.violate(h.ID(), "key %s led to lineage %s, at first to %s", k.key(), info.Lineage, k.lineage)
		}
	}
}

// ended puts a run that is not open any more into the history, and retries it if it failed.
func (s *staff) ended(ctx context.Context, id pawl.RunID) {
	d, err := s.control.Show(ctx, id)
	if err != nil || !d.State.Terminal() { // an open run that the list had not yet, or has again
		return
	}
	delete(s.seen, id)
	s.past[id] = fingerprint(d)
	s.sample = append(s.sample, id)
	if d.State != pawl.Succeeded {
		if !s.quit.Load() && s.rnd.IntN(3) > 0 {
			s.retry(ctx, id)
		}
	}
}

// retry makes a retry by hand, every other time twice at once, of which one may win.
func (s *staff) retry(ctx context.Context, id pawl.RunID) {
	plan, err := s.control.Plan(ctx, id, pawl.PlanOptions{Mode: pawl.PlanRetry})
	if err != nil {
		return
	}
	var wg sync.WaitGroup
	var won atomic.Int64
	for i := range 1 + s.rnd.IntN(2) {
		wg.Go(func() {
			_, err := s.control.Retry(ctx, plan, pawl.Act{By: fmt.Sprintf("staff %d", i)})
			switch {
			case err == nil:
				won.Add(1)
				s.ledger.retries.Add(1)
			case errors.Is(err, pawl.ErrLive), errors.Is(err, pawl.ErrStale):
				s.ledger.retryLosers.Add(1)
			default: // refused, for a newer run of the lineage; or the database is away
			}
		})
	}
	wg.Wait()
	if won.Load() > 1 {
		s.violate(id, "two retries at once have both been accepted")
	}
}

// compare looks whether a finished run is still what it was.
func (s *staff) compare(ctx context.Context, id pawl.RunID) {
	d, err := s.control.Show(ctx, id)
	if err != nil {
		return
	}
	s.ledger.samples.Add(1)
	if now := fingerprint(d); now != s.past[id] {
		s.violate(id, "a finished run has changed\nfrom %s\nto   %s", s.past[id], now)
	}
}

// fingerprint is what of a finished run must not change any more.
func fingerprint(d *pawl.RunDetail) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s %s %v", d.State, d.Ended, d.Result, d.Fault)
	for i := range d.Steps {
		st := &d.Steps[i]
		fmt.Fprintf(&b, " | %s %s %d %s", st.Name, st.State, st.Attempt, st.Value)
	}
	return b.String()
}

// person answers the inbox, truthfully.
type person struct {
	*rig
	rnd    *rand.Rand
	steady bool                  // answers in one manner
	mu     sync.Mutex            // guards both below
	busy   map[pawl.EntryID]bool // entries that are being answered
	asked  map[string]int        // answers that were accepted about uncertain steps, by line of the table
	gates  *sayings
}

func newPerson(r *rig, seed uint64) *person {
	return &person{rig: r, rnd: rand.New(rand.NewPCG(seed, 3)), busy: map[pawl.EntryID]bool{}, asked: map[string]int{}, gates: newSayings()}
}

// work is the person's day. It ends with ctx, when the last answer is given.
func (p *person) work(ctx context.Context) {
	var answers sync.WaitGroup
	defer answers.Wait()
	for ctx.Err() == nil {
		now, err := p.control.Now(ctx)
		var entries []pawl.Entry
		if err == nil {
			entries, _, err = p.control.Inbox(ctx, pawl.InboxQuery{Limit: 1000})
		}
		for i := range entries {
			if err == nil && !p.wait(&entries[i], now) && p.take(entries[i].ID) {
				m := manner{p.rnd.IntN(6) == 0, p.rnd.IntN(6) == 0, p.rnd.IntN(12) == 0, p.rnd.IntN(100)}
				if p.steady {
					m = manner{mood: 99}
				}
				answers.Go(func() { p.answer(ctx, &entries[i], m) })
			}
		}
		p.recheck(ctx)
		select {
		case <-time.After(150 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// wait leaves a step with a probe to the probe for a while, by the store's clock, which may have been set back since.
func (p *person) wait(en *pawl.Entry, now time.Time) bool {
	age := now.Sub(en.Opened)
	return verbOf(en.Step) == "probed" && age >= 0 && age < 2*lease
}

func (p *person) take(id pawl.EntryID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy[id] || len(p.busy) > 20 || p.gates.isLeft(id) {
		return false
	}
	p.busy[id] = true
	return true
}

// manner is how a question is answered.
type manner struct {
	twice   bool // by two people at once, of whom one is heard
	slow    bool // with a pause after the look
	givesUp bool // without a look: the step is given up, and with it the run
	mood    int  // how a gate is decided, 0 to 99
}

// answer looks and answers.
func (p *person) answer(ctx context.Context, en *pawl.Entry, m manner) {
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.busy, en.ID)
	}()
	a := pawl.Answer{Entry: en.ID, Attempt: en.Attempt, By: "mia"}
	switch en.Kind {
	case pawl.AskTwice:
		a.Choice = pawl.AnswerAcknowledge
	case pawl.AskCrashLoop:
		a.Choice = pawl.AnswerResume
	case pawl.AskGate:
		p.decide(ctx, en.ID, m.mood)
		return
	case pawl.AskInvalidated:
		if a.Choice = pawl.AnswerResume; verbOf(en.Step) != "gwrong" {
			p.violate(en.Run, "step %q does not fit its approval: %s", en.Step, en.Detail)
		}
	case pawl.AskUncertain:
		if m.givesUp {
			a.Choice = pawl.AnswerGiveUp
		} else if !p.look(ctx, en, &a) {
			return
		}
	default:
		p.violate(en.Run, "unexpected question: %s about step %q: %s", en.Kind, en.Step, en.Detail)
		a.Choice = pawl.AnswerCancel
	}
	if m.slow {
		<-time.After(lease)
	}
	var wg sync.WaitGroup
	var heard atomic.Int64
	for i := range 1 + map[bool]int{true: 1}[m.twice] {
		a := a
		if i > 0 {
			a.By = "ben"
		}
		wg.Go(func() {
			switch err := p.control.Resolve(ctx, a); {
			case err == nil:
				heard.Add(1)
				p.note(en, a.Choice)
			case errors.Is(err, pawl.ErrTooEarly):
				p.ledger.tooEarly.Add(1)
			case errors.Is(err, pawl.ErrConflict):
				p.ledger.answerLosers.Add(1)
			}
		})
	}
	wg.Wait()
	if heard.Load() > 1 {
		p.violate(en.Run, "two people have both been heard about step %q, attempt %d", en.Step, en.Attempt)
	}
}

// look fills in what is the case. Whether the attempt is over is left to the engine, which must refuse a "did not
// happen" that may become false.
func (p *person) look(ctx context.Context, en *pawl.Entry, a *pawl.Answer) bool {
	now, err := p.control.Now(ctx)
	if err != nil {
		return false
	}
	ref := p.effects.find(en.OpKey)
	if verbOf(en.Step) == "txin" {
		if ref, err = p.written(ctx, en); err != nil {
			return false
		}
	}
	if ref != "" {
		a.Choice = pawl.AnswerHappened
		a.Result, _ = json.Marshal(ref) // a string always encodes
		return true
	}
	a.Choice, a.Looked = pawl.AnswerDidNotHappen, now
	return true
}

// written looks for what a transaction in the other database has left there.
func (p *person) written(ctx context.Context, en *pawl.Entry) (ref string, err error) {
	info, err := flow(nil).Handle(p.control, en.Run).Status(ctx)
	if err != nil {
		return "", err
	}
	err = p.other.QueryRowContext(ctx, `SELECT ref FROM torture_rows WHERE lineage = $1 AND step = $2`, string(info.Lineage), en.Step).Scan(&ref)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return ref, err
}

func (p *person) note(en *pawl.Entry, c pawl.Choice) {
	if c == pawl.AnswerGiveUp {
		p.ledger.gaveUp.Add(1)
	}
	p.ledger.answers.Add(1)
	switch en.Kind {
	case pawl.AskTwice:
		p.ledger.twice.Add(1)
	case pawl.AskCrashLoop:
		p.ledger.loops.Add(1)
	case pawl.AskInvalidated:
		p.ledger.invalidated.Add(1)
	default:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.asked[lineOf(en.Step)]++
	}
}
