package pawl

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Schedule starts runs of a workflow at the instants of a timetable. [Workflow.Schedule] makes one; it is a [Definition].
type Schedule struct {
	def   *definition
	spec  ScheduleSpec
	input func(at time.Time) any
}

func (s *Schedule) definition() *definition { return s.def }

// Name is the schedule's.
func (s *Schedule) Name() string { return s.spec.Name }

// Schedule makes a schedule of the workflow, for [New]. When a worker starts, the schedule is stored under its name, or
// changed if code says something else than when it was stored; what a person has paused or edited stays so. A schedule that
// is not in the code any more goes on until it is deleted.
//
// input gives the input of the run for an instant, which is in the zone of the timetable. It is called by the worker that
// decides about the instant, perhaps more than once, and must give the same each time; it should do no more than that. An
// instant for which it panics is rejected. Schedule panics if something about the schedule is wrong.
func (w *Workflow[In, Out]) Schedule(name string, when Timetable, input func(at time.Time) In, opts ...ScheduleOption) *Schedule {
	s := &Schedule{def: w.def, spec: ScheduleSpec{Name: name, Workflow: w.def.Workflow, Version: w.def.Version, When: when}}
	for _, o := range opts {
		o.schedule(&s.spec)
	}
	err := s.spec.Check()
	if err == nil && input == nil {
		err = errors.New("it has no input function")
	}
	if err != nil {
		panic(fmt.Errorf("pawl: schedule %q: %w", name, err)) //nolint:forbidigo // at registration
	}
	s.input = func(at time.Time) any { return input(at) }
	return s
}

// OverlapPolicy is what happens at an instant while a run of the schedule has not ended. One that is queued or waits,
// also for a person, has not.
type OverlapPolicy string

// The policies.
const (
	// OverlapSkip starts no run for the instant; it is skipped. It is the default.
	OverlapSkip OverlapPolicy = "skip"
	// OverlapBuffer lets the first such instant wait for the end of the run; further ones are skipped.
	OverlapBuffer OverlapPolicy = "buffer_one"
	// OverlapAllow starts a run beside the others.
	OverlapAllow OverlapPolicy = "allow"
	// OverlapCancel cancels the run and waits for its end; if another instant comes before that, the older one is skipped.
	OverlapCancel OverlapPolicy = "cancel_previous"
)

// CatchUpPolicy is what happens to instants that no worker was there to decide about: for more than a minute, or for more
// than five seconds if the next one is due as well.
type CatchUpPolicy string

// The policies.
const (
	// CatchUpLatest starts a run for the latest of them if it is not older than the window; the others are missed. It is the
	// default, with a window of 24 h.
	CatchUpLatest CatchUpPolicy = "latest"
	// CatchUpNone starts none of them.
	CatchUpNone CatchUpPolicy = "none"
	// CatchUpAll starts the newest ones, up to a number. It needs [OverlapAllow]: else they would wait for each other.
	CatchUpAll CatchUpPolicy = "all"
)

const (
	defaultWindow = 24 * time.Hour
	mostCatchUp   = 1000
	// onTime is how late an instant may be decided about without being late, and onTimeBefore the same if the next one is
	// due too.
	onTime       = time.Minute
	onTimeBefore = 5 * time.Second
)

// ScheduleSpec says what a schedule is. It is also its stored form: fields are added, never renamed.
type ScheduleSpec struct {
	Name     string `json:"-"`
	Workflow string `json:"-"`
	// Version is that of the runs. Empty means the newest that the worker has which decides about the instant.
	Version string    `json:"-"`
	When    Timetable `json:"when"`
	// Starts is before the first instant, or is it; zero means when the schedule was made. There is no instant after Ends;
	// zero means no end.
	Starts time.Time `json:"starts,omitzero"`
	Ends   time.Time `json:"ends,omitzero"`
	// Jitter puts each instant off by less than this, always the same for an instant. Zero means none.
	Jitter time.Duration `json:"jitter_ns,omitempty"`
	// Overlap is empty for [OverlapSkip].
	Overlap OverlapPolicy `json:"overlap,omitempty"`
	// CatchUp is empty for [CatchUpLatest], whose Window is 24 h if it is zero. CatchUpMost belongs to [CatchUpAll].
	CatchUp     CatchUpPolicy `json:"catch_up,omitempty"`
	Window      time.Duration `json:"window_ns,omitempty"`
	CatchUpMost int           `json:"catch_up_most,omitempty"`
	// MaxRuns ends the schedule when it has started so many runs by its timetable. Zero means no limit.
	MaxRuns int `json:"max_runs,omitempty"`
	// Of the runs: see [Queue], [Priority], [Share] and [Deadline].
	Queue    string        `json:"queue,omitempty"`
	Priority int           `json:"priority,omitempty"`
	Share    Key           `json:"share,omitempty"`
	Deadline time.Duration `json:"deadline_ns,omitempty"`
	// Input is the JSON of the runs' input, of a schedule that is not from code. In its strings {{at}} stands for the
	// instant, in RFC 3339 and the timetable's zone, {{date}} and {{time}} for its date and time of day there, {{unix}} for
	// the seconds since 1970 and {{schedule}} for the schedule's name. Empty means null.
	Input json.RawMessage `json:"-"`
}

// ScheduleOption is an option of [Workflow.Schedule].
type ScheduleOption interface{ schedule(*ScheduleSpec) }

type scheduleFunc func(*ScheduleSpec)

func (f scheduleFunc) schedule(s *ScheduleSpec) { f(s) }

// Between bounds the instants: none before starts, none after ends. A zero time is no bound.
func Between(starts, ends time.Time) ScheduleOption {
	return scheduleFunc(func(s *ScheduleSpec) { s.Starts, s.Ends = starts, ends })
}

// Jitter puts each instant off by less than d, so that many schedules of one minute do not begin at once. An instant is
// always put off by the same.
func Jitter(d time.Duration) ScheduleOption {
	return scheduleFunc(func(s *ScheduleSpec) { s.Jitter = d })
}

// Overlap says what happens while an earlier run has not ended. The default is [OverlapSkip].
func Overlap(p OverlapPolicy) ScheduleOption {
	return scheduleFunc(func(s *ScheduleSpec) { s.Overlap = p })
}

// CatchUp says what happens to instants while no worker was there. The default is [CatchUpLatest]. n is the window of
// CatchUpLatest, zero for 24 h; for CatchUpAll see [CatchUpUpTo].
func CatchUp(p CatchUpPolicy, window time.Duration) ScheduleOption {
	return scheduleFunc(func(s *ScheduleSpec) { s.CatchUp, s.Window = p, window })
}

// CatchUpUpTo is [CatchUpAll] for the newest most instants.
func CatchUpUpTo(most int) ScheduleOption {
	return scheduleFunc(func(s *ScheduleSpec) { s.CatchUp, s.CatchUpMost = CatchUpAll, most })
}

// MaxRuns ends the schedule when it has started n runs.
func MaxRuns(n int) ScheduleOption {
	return scheduleFunc(func(s *ScheduleSpec) { s.MaxRuns = n })
}

// RunsIn says where the runs wait, see [Queue] and [Priority]; "" is the queue of the workflow's name.
func RunsIn(queue string, priority int) ScheduleOption {
	return scheduleFunc(func(s *ScheduleSpec) { s.Queue, s.Priority = queue, priority })
}

// RunsWithin gives each run a [Deadline], so that one which waits for a person for ever does not keep the schedule from
// starting the next.
func RunsWithin(d time.Duration) ScheduleOption {
	return scheduleFunc(func(s *ScheduleSpec) { s.Deadline = d })
}

func (s *ScheduleSpec) overlap() OverlapPolicy {
	if s.Overlap == "" {
		return OverlapSkip
	}
	return s.Overlap
}

func (s *ScheduleSpec) catchUp() CatchUpPolicy {
	if s.CatchUp == "" {
		return CatchUpLatest
	}
	return s.CatchUp
}

func (s *ScheduleSpec) window() time.Duration { return orDefault(s.Window, defaultWindow) }

// longestName leaves room for the instant in the key of a run.
const longestName = 150

// Check returns what is wrong with the spec, nil if nothing is. Whether the workflow and its input exist it does not know.
func (s *ScheduleSpec) Check() error {
	if err := checkName("schedule name", s.Name); err != nil {
		return err
	}
	if err := checkName("workflow", s.Workflow); err != nil {
		return err
	}
	switch {
	case len(s.Name) > longestName:
		return fmt.Errorf("its name has %d bytes: want %d at most", len(s.Name), longestName)
	case s.When.kind == noTable:
		return errNoTimetable
	case s.MaxRuns < 0:
		return fmt.Errorf("MaxRuns is %d: want 0 (no limit) or more", s.MaxRuns)
	}
	if err := s.checkTimes(); err != nil {
		return err
	}
	if err := s.checkPolicies(); err != nil {
		return err
	}
	return (&RunRow{Queue: cmpOr(s.Queue, s.Workflow), Priority: s.Priority, Share: s.Share}).checkPlace()
}

func (s *ScheduleSpec) checkTimes() error {
	switch {
	case !s.Ends.IsZero() && !s.Starts.IsZero() && s.Ends.Before(s.Starts):
		return fmt.Errorf("it ends (%s) before it starts (%s)", s.Ends.Format(time.RFC3339), s.Starts.Format(time.RFC3339))
	case !s.Starts.IsZero() && outside(s.Starts) || !s.Ends.IsZero() && outside(s.Ends):
		return errors.New("its bounds: want times from 1970 to 9999")
	case s.Jitter < 0 || s.Window < 0 || s.Deadline < 0:
		return errors.New("a jitter, window or deadline must not be negative")
	case s.Jitter > 0 && s.Jitter < time.Millisecond || s.Jitter > 24*time.Hour:
		return fmt.Errorf("a jitter of %v: want 1ms to 24h, or 0 for none", s.Jitter)
	}
	return nil
}

func outside(t time.Time) bool { return t.Year() < 1970 || t.Year() > 9999 }

func (s *ScheduleSpec) checkPolicies() error {
	switch s.overlap() {
	case OverlapSkip, OverlapBuffer, OverlapAllow, OverlapCancel:
	default:
		return fmt.Errorf("overlap policy %q: want %s, %s, %s or %s", s.Overlap, OverlapSkip, OverlapBuffer, OverlapAllow, OverlapCancel)
	}
	switch c := s.catchUp(); {
	case c != CatchUpLatest && c != CatchUpNone && c != CatchUpAll:
		return fmt.Errorf("catch-up policy %q: want %s, %s or %s", s.CatchUp, CatchUpLatest, CatchUpNone, CatchUpAll)
	case c != CatchUpLatest && s.Window != 0:
		return fmt.Errorf("a window of %v with catch-up %q: it belongs to %q", s.Window, c, CatchUpLatest)
	case c == CatchUpAll && (s.CatchUpMost < 1 || s.CatchUpMost > mostCatchUp):
		return fmt.Errorf("catch-up of all up to %d: want 1 to %d", s.CatchUpMost, mostCatchUp)
	case c != CatchUpAll && s.CatchUpMost != 0:
		return fmt.Errorf("catch-up of up to %d with catch-up %q: it belongs to %q", s.CatchUpMost, c, CatchUpAll)
	case c == CatchUpAll && s.overlap() != OverlapAllow:
		return fmt.Errorf("catch-up of all with overlap %q: all but one would be skipped, or cancelled, at once: want overlap %q, or catch-up %q",
			s.overlap(), OverlapAllow, CatchUpLatest)
	}
	return nil
}

// after is the first instant after at, in microseconds; 0 if there is none.
func (s *ScheduleSpec) after(at int64) int64 {
	if !s.Starts.IsZero() {
		at = max(at, s.Starts.UnixMicro()-1)
	}
	next := s.When.Next(time.UnixMicro(at).UTC())
	if next.IsZero() || !s.Ends.IsZero() && next.After(s.Ends) {
		return 0
	}
	return next.UnixMicro()
}

// look is when the instant is decided about.
func (s *ScheduleSpec) look(at int64) int64 { return at + jitter(s.Name, at, s.Jitter) }

func (s *ScheduleSpec) encode() ([]byte, error) {
	doc, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("schedule %q: %w", s.Name, err)
	}
	return doc, nil
}

// equal reports whether nothing differs.
func (s *ScheduleSpec) equal(o *ScheduleSpec) (bool, error) {
	a, err := s.encode()
	b, err2 := o.encode()
	return s.Version == o.Version && bytes.Equal(a, b) && bytes.Equal(s.Input, o.Input), errors.Join(err, err2)
}

// hash tells whether code declares something else than it did. The version is followed whatever it is.
func (s *ScheduleSpec) hash() ([]byte, error) {
	doc, err := s.encode()
	sum := sha256.Sum256(doc)
	return sum[:], err
}

// spec is what the row says.
func (r *ScheduleRow) spec() (*ScheduleSpec, error) {
	s := &ScheduleSpec{Name: r.Name, Workflow: r.Workflow, Version: r.Version}
	if err := json.Unmarshal(r.Spec, s); err != nil {
		return nil, fmt.Errorf("schedule %q: %w", r.Name, err)
	}
	return s, nil
}

// OccurrenceKey is the [Key] of the run that a schedule starts for an instant. Whoever starts a run of the schedule's
// workflow under it, with the same input, has started the schedule's.
func OccurrenceKey(schedule string, at time.Time) Key {
	return Key("schedule:" + schedule + "@" + at.UTC().Format("2006-01-02T15:04:05.999999Z"))
}

// fill puts an instant into the strings of a template.
func fill(template []byte, name string, at time.Time) ([]byte, error) {
	if len(template) == 0 {
		return []byte("null"), nil
	}
	var pairs []string
	for _, p := range [][2]string{{"{{at}}", at.Format(time.RFC3339Nano)}, {"{{date}}", at.Format(time.DateOnly)}, {"{{time}}", at.Format(time.TimeOnly)},
		{"{{unix}}", strconv.FormatInt(at.Unix(), 10)}, {"{{schedule}}", name}} {
		quoted, err := json.Marshal(p[1])
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, p[0], string(quoted[1:len(quoted)-1]))
	}
	return []byte(strings.NewReplacer(pairs...).Replace(string(template))), nil
}
