package fault

import (
	"cmp"
	"context"
	"maps"
	"math"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"sync"
	"time"
)

// Attempt is one attempt of a step and what it sends over HTTP. Put into a context by [WithAttempt], it is found by the
// transport of [NewTransport], which holds the attempt's requests to what Kind, Key and Until say, and notes what
// became of them. The fields are set before it is first used and not changed then; the methods are safe for concurrent
// use, also while requests are under way, and a nil Attempt has seen nothing. It must not be copied.
//
// For kinds [KindKeyed] and [KindOnce] an attempt is one write, that is one request by another method than GET, HEAD,
// OPTIONS or TRACE:
//
//   - A second write that is not the same, by method, URL and body, is refused with [ReasonKeyConflict], unless it is
//     certain that nothing of the first one left.
//   - The same write again, which is what an SDK's own retries come to, passes for KindKeyed. For KindOnce it is
//     refused unless every earlier one is proven not to have happened.
//   - A write whose body cannot be read ahead, having no GetBody or being too large, counts as another one.
//
// A request that is no part of the effect, such as a search by POST or the renewal of a token, is made with a context
// from WithAttempt(ctx, nil).
type Attempt struct {
	Kind     Kind      // what happens if the step runs twice
	Key      string    // operation key; "" for none
	Until    time.Time // no request is begun from then on; zero for no limit. Its monotonic reading counts, if it has one
	Provider string    // who is called; "" to find out by host and headers

	// Late is asked as well whether it is too late to begin a request, by clocks that Until does not have. It must be
	// quick and safe for concurrent use, and not call the attempt. Nil never is.
	Late func() bool

	mu    sync.Mutex // guards what follows, and the sends
	sends []*send    // oldest first
	early totals     // of sends that are not kept any more
	first *send      // the write that later ones must equal
}

// totals are what remains of sends that are not kept.
type totals struct {
	requests, replays, refused int
	worst                      Outcome // of writes
	usage                      map[model]Usage
}

type model struct{ provider, name string }

// maxSends is how many sends of an attempt are kept one by one. Older ones are in its counts and sums only.
const maxSends = 64

type attemptKey struct{}

// WithAttempt returns a context whose requests belong to a. A nil a makes requests of ctx belong to no attempt.
func WithAttempt(ctx context.Context, a *Attempt) context.Context {
	return context.WithValue(ctx, attemptKey{}, a)
}

// AttemptOf returns the attempt that ctx belongs to, nil if there is none.
func AttemptOf(ctx context.Context) *Attempt {
	a, _ := ctx.Value(attemptKey{}).(*Attempt)
	return a
}

// Sends returns the requests so far, oldest first, the latest 64 at least and refused ones included.
func (a *Attempt) Sends() []Send {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	sends := make([]Send, 0, len(a.sends))
	for _, s := range a.sends {
		sends = append(sends, s.snapshot())
	}
	return sends
}

// Usage returns the sum of what all answers said that they used, with the names of the last one.
func (a *Attempt) Usage() Usage {
	var sum Usage
	for _, u := range a.UsageByModel() {
		sum.add(u)
	}
	if sends := a.Sends(); len(sends) > 0 {
		if last := sends[len(sends)-1].Usage; last.Model != "" {
			sum.Provider, sum.Model = last.Provider, last.Model
		}
	}
	return sum
}

// UsageByModel returns what all answers said that they used, one sum per provider and model, in the order of their
// names.
func (a *Attempt) UsageByModel() []Usage {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	sums := maps.Clone(a.early.usage)
	if sums == nil {
		sums = map[model]Usage{}
	}
	for _, s := range a.sends {
		addTo(sums, s.snapshot().Usage)
	}
	return slices.SortedFunc(maps.Values(sums), func(x, y Usage) int {
		return cmp.Or(cmp.Compare(x.Provider, y.Provider), cmp.Compare(x.Model, y.Model))
	})
}

// Estimate returns what the attempt's requests probably cost, in micro-dollars, those left out whose price nobody knows. Each
// request is priced by itself, because a long prompt may cost more; of the oldest, beyond the latest 64, the sum is.
func (a *Attempt) Estimate(p *Prices) (microUSD int64) {
	if a == nil {
		return 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	add := func(u Usage) {
		if cost, ok := p.Estimate(u); ok && microUSD <= math.MaxInt64-cost {
			microUSD += cost
		}
	}
	for _, u := range a.early.usage {
		add(u)
	}
	for _, s := range a.sends {
		add(s.snapshot().Usage)
	}
	return microUSD
}

func addTo(sums map[model]Usage, u Usage) {
	if u == (Usage{}) {
		return
	}
	name := model{u.Provider, u.Model}
	sum := sums[name]
	sum.add(u)
	sums[name] = sum
}

// admit takes s into the attempt, and refuses it if it must not be sent.
func (a *Attempt) admit(s *send, now time.Time) *Fault {
	a.mu.Lock()
	defer a.mu.Unlock()
	held := s.write && a.held()
	worst, _ := a.worst()
	switch {
	case a.late(now):
		s.stop = lateFault()
	case !held:
	case a.first == nil || worst <= OutcomeNotSent:
		a.first = s
	case !s.mark.equal(a.first.mark):
		s.stop = &Fault{Class: InvalidRequest, Reason: ReasonKeyConflict, Outcome: OutcomeNotSent,
			Message: "not sent: another write than the attempt's first, under the same operation key; make it a step of its own, " +
				"or give it a context from fault.WithAttempt(ctx, nil) if it has no effect"}
	case a.Kind == KindOnce && worst == OutcomeMaybeExecuted:
		s.stop = a.repeatFault()
	}
	a.sends = append(a.sends, s)
	if s.stop != nil {
		s.end(now)
	}
	a.fold()
	return s.stop
}

// held reports whether the attempt is one write.
func (a *Attempt) held() bool { return a.Kind == KindKeyed || a.Kind == KindOnce }

func (a *Attempt) late(now time.Time) bool {
	return !a.Until.IsZero() && !now.Before(a.Until) || a.Late != nil && a.Late()
}

func lateFault() *Fault {
	return &Fault{Class: Transient, Reason: ReasonStepDeadline, Outcome: OutcomeNotSent,
		Message: "not sent: the attempt's deadline had passed"}
}

func (a *Attempt) repeatFault() *Fault {
	return &Fault{Class: InvalidRequest, Reason: ReasonKeyConflict, Outcome: OutcomeNotSent,
		Message: "not sent again: the first time it may have happened, and it must not happen twice; turn off the retries of the SDK"}
}

// fold gives up the oldest sends that are over, beyond the number that is kept.
func (a *Attempt) fold() {
	for i := 0; i < len(a.sends) && len(a.sends) > maxSends; {
		s := a.sends[i]
		if !s.over {
			i++
			continue
		}
		a.early.count(s)
		if s.write {
			a.early.worst = max(a.early.worst, s.outcome())
		}
		if a.early.usage == nil {
			a.early.usage = map[model]Usage{}
		}
		addTo(a.early.usage, s.seen.Usage)
		a.sends = slices.Delete(a.sends, i, i+1)
	}
}

func (t *totals) count(s *send) {
	if s.stop != nil && s.conns == 0 {
		t.refused++
		return
	}
	t.requests++
	t.replays += s.seen.Replays
}

// worst returns the worst outcome of all writes, and of all but the last. It is zero if there were none.
func (a *Attempt) worst() (all, before Outcome) {
	all = a.early.worst
	for i, s := range a.sends {
		if !s.write {
			continue
		}
		o := s.outcome()
		if i+1 < len(a.sends) && s.seen.Status > 300 && s.seen.Status < 304 {
			o = OutcomeMaybeExecuted // a redirect that was followed is how a form says that it is done
		}
		before, all = all, max(all, o)
	}
	return all, before
}

// Judge returns f, which is what [FromContext] made of err, the error of the step's callback, corrected by what the
// transport knows. It does not change f. A nil f is returned as it is: see [Attempt.Verdict].
//
//   - The outcome becomes the worst of all writes of the attempt: a refusal that is the answer to an SDK's third try
//     proves nothing about the first. It becomes a better one only where err is the error of the attempt's last
//     request, or says nothing of its own, and the transport has the proof.
//   - Where the last answer was a failure, and err is about it or says nothing of its own, class, reason and delay
//     are those of the answer. So an SDK that sleeps through a told delay until the step's deadline, or that cannot
//     read an error's body, hides nothing.
//   - What the step itself states, by a wrapper such as [Rejected] or by a [Reason], is believed of the last write, if
//     that was the last request.
//
// In a step with an effect that does not go through the transport, such an error must be told by [MaybeExecuted]
// wherever it may be a bare context error, or one that nobody recognises.
func (a *Attempt) Judge(f *Fault, err error) *Fault {
	if a == nil || f == nil {
		return f
	}
	k := a.know()
	if k == nil {
		return f
	}
	j := *f
	if k.stated(err) {
		if j.Outcome = max(j.Outcome, k.before); !k.write || j.Outcome == OutcomeNotSent {
			j.Outcome = max(j.Outcome, k.worst) // it speaks of something else
		}
		return &j
	}
	if k.concerns(f, err) {
		j.learn(k)
		if k.over && (k.write || !k.held) {
			j.Outcome = k.worst
		}
	}
	j.Outcome = max(j.Outcome, k.worst)
	j.settle()
	return &j
}

// knowledge is what an attempt knows when it judges: copied, so that nobody's methods are called under its lock.
type knowledge struct {
	last   Send
	write  bool     // the last one is one
	over   bool     // all are
	err    error    // of the last round trip
	broken bool     // the last answer's body was
	fault  *Fault   // what went wrong with the last request; of the one before, if it was that one's repetition
	told   bool     // fault says more than err can
	ours   []*Fault // that the transport has returned as errors
	held   bool
	worst  Outcome // of all writes and, in an attempt that is not held to one, of the last request
	before Outcome // of all writes but the last
}

func (a *Attempt) know() *knowledge {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.sends) == 0 {
		return nil
	}
	k := &knowledge{held: a.held(), over: true}
	for _, s := range a.sends {
		k.over = k.over && s.over
		if s.stop != nil {
			k.ours = append(k.ours, s.stop)
		} else if f, ok := s.err.(*Fault); ok {
			k.ours = append(k.ours, f)
		}
	}
	last := a.sends[len(a.sends)-1]
	k.last, k.write, k.err, k.broken = last.snapshot(), last.write, last.err, last.broken != nil
	k.fault = last.fault()
	_, own := last.err.(*Fault)
	k.told = own || last.stop != nil || last.seen.Status > 0
	for i := len(a.sends) - 2; i >= 0 && last.stop != nil && last.mark.equal(a.sends[i].mark); i-- {
		if f := a.sends[i].fault(); f != nil && a.sends[i].stop == nil {
			k.fault = f
			break
		}
	}
	k.worst, k.before = a.worst()
	if !k.held {
		k.worst = max(k.worst, k.last.Outcome)
	}
	return k
}

// stated reports whether the step says itself what err means.
func (k *knowledge) stated(err error) bool {
	return someNode(err, func(err error) bool {
		if f, ok := err.(*Fault); ok {
			return f != nil && !slices.Contains(k.ours, f)
		}
		r, ok := err.(Reason)
		class, _, _ := r.natural()
		return ok && r != ReasonStepDeadline && class != Canceled // those are causes of contexts, not the step's words
	})
}

// concerns reports whether err, which was taken for f, is the error of the last request or says nothing of its own.
func (k *knowledge) concerns(f *Fault, err error) bool {
	mute := []Reason{ReasonUnrecognized, ReasonStepDeadline, ReasonClientTimeout, ReasonCallCanceled}
	if k.broken {
		mute = append(mute, ReasonResponseTruncated, ReasonConnectionLost, ReasonStreamReset)
	}
	if slices.Contains(mute, f.Reason) || f.Status != 0 && f.Status == k.last.Status {
		return true
	}
	return someNode(err, func(err error) bool {
		switch x := err.(type) {
		case *Fault:
			return slices.Contains(k.ours, x)
		case *url.Error:
			u, e := url.Parse(x.URL)
			return e == nil && u.Host == k.last.Host && k.err != nil && sameError(x.Err, k.err)
		}
		return false
	})
}

func sameError(a, b error) bool {
	return a != nil && reflect.TypeOf(a) == reflect.TypeOf(b) && reflect.TypeOf(a).Comparable() && a == b
}

// someNode is [anyNode] for an error whose methods may panic.
func someNode(err error, is func(error) bool) (some bool) {
	defer func() {
		if recover() != nil {
			some = false
		}
	}()
	left := maxNodes
	return anyNode(err, &left, is)
}

// learn takes over what the last answer, or a refusal of our own, says. Without either the error itself knows best.
func (f *Fault) learn(k *knowledge) {
	first(&f.Provider, k.last.Provider)
	first(&f.RequestID, k.last.RequestID)
	if f.Status == 0 {
		f.Status = k.last.Status
	}
	known := k.fault
	if known == nil || f.Class == Canceled || !k.told && f.Reason != ReasonUnrecognized {
		return
	}
	if f.Class.hopeless() && f.Status >= http.StatusBadRequest && f.Status == k.last.Status && !known.Class.hopeless() &&
		known.Class == FromHTTP(generic.name, f.Status, nil, nil).Class {
		return // an SDK that has read the body knows more than the status tells, which is all that we know
	}
	f.Class, f.Reason, f.Delay, f.Final = known.Class, known.Reason, known.Delay, known.Final
	if f.Message != known.Message && known.Message != "" {
		f.Message = cleanText(f.Message+": "+known.Message, maxMessage)
	}
}

// Verdict returns what is wrong with the last answer although the step saw no error, nil if nothing is. It is for the
// caller of a step that succeeded, who makes it the step's error: the value that the step returned was made of no
// answer. It speaks only of models' answers with a status of success, and only on evidence:
//
//   - the body is an error, or an event of the stream is;
//   - the body is no JSON, broke off, or has no result in it;
//   - the stream came to its end without having said that it was complete.
//
// It is silent where the step stopped reading early, where the status was an error, which the step has seen and dealt
// with, and where a model answered that it refuses or was cut off by its limit.
func (a *Attempt) Verdict() *Fault {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.sends) == 0 {
		return nil
	}
	last := a.sends[len(a.sends)-1]
	ok := last.seen.Status >= http.StatusOK && last.seen.Status < http.StatusMultipleChoices
	if !ok || last.stop != nil {
		return nil
	}
	f := last.fault()
	if f == nil {
		return nil
	}
	v := *f
	v.Outcome, _ = a.worst()
	v.Outcome = max(v.Outcome, last.outcome())
	return &v
}
