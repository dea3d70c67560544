package pawl

import (
	"time"

	"github.com/pawlrun/pawl/fault"
)

// Cursor marks where the next page begins; "" means from the start, and from a list that there is no more.
type Cursor string

// RunQuery selects runs. The zero value selects the newest 100.
type RunQuery struct {
	States   []RunState // any of these; none means all
	Workflow string
	Key      Key
	Lineage  RunID
	After    Cursor
	Limit    int // 0 means 100, at most 1,000
}

// InboxQuery selects inbox entries. The zero value selects the oldest 100 open ones.
type InboxQuery struct {
	Run   RunID
	Kind  EntryKind
	All   bool // answered ones too
	After Cursor
	Limit int // 0 means 100, at most 1,000
}

// RunInfo is what is known about a run without its journal. Times are UTC; a zero time means not yet.
type RunInfo struct {
	ID        RunID        `json:"id"`
	Lineage   RunID        `json:"lineage"`
	Parent    RunID        `json:"parent,omitempty"`
	Relation  Relation     `json:"relation,omitempty"`
	Workflow  string       `json:"workflow"`
	Version   string       `json:"version"`
	Key       Key          `json:"key,omitempty"`
	Queue     string       `json:"queue"`
	Priority  int          `json:"priority,omitempty"`
	Share     Key          `json:"share,omitempty"`
	State     RunState     `json:"state"`
	Cancel    bool         `json:"cancel_requested,omitempty"`
	Due       time.Time    `json:"due,omitzero"`
	Created   time.Time    `json:"created"`
	Started   time.Time    `json:"started,omitzero"`
	Ended     time.Time    `json:"ended,omitzero"`
	Owner     WorkerID     `json:"owner,omitempty"`
	Lost      int          `json:"workers_lost,omitempty"`
	Releases  int          `json:"releases,omitempty"`
	Builds    string       `json:"builds,omitempty"`
	Fault     *fault.Fault `json:"fault,omitempty"`
	CancelBy  string       `json:"cancel_by,omitempty"`
	CancelWhy string       `json:"cancel_reason,omitempty"`
	Open      []EntryKind  `json:"open_entries,omitempty"`
	Deadline  time.Time    `json:"deadline,omitzero"`
	Successor RunID        `json:"successor,omitempty"` // the run that it continues as, see [ContinueAs]
	Continues RunID        `json:"continues,omitempty"` // the run that it, or what it retries or forks, is the successor of
}

// RunDetail is a run with its journal and everything people did to it.
type RunDetail struct {
	RunInfo
	Input    []byte       `json:"-"`                 // JSON
	Result   []byte       `json:"-"`                 // JSON, of a succeeded run without a successor
	Steps    []StepDetail `json:"steps"`             // without those of items of batches
	Batches  []BatchInfo  `json:"batches,omitempty"` // see [Batch]
	Entries  []Entry      `json:"entries,omitempty"`
	Evidence []Evidence   `json:"evidence,omitempty"`
	Audit    []AuditEntry `json:"audit,omitempty"`
	Family   []RunInfo    `json:"lineage_runs,omitempty"` // the other runs of the lineage
	Children []Call       `json:"children,omitempty"`     // the runs that it has waited for, see [Child]
	Callers  []Call       `json:"callers,omitempty"`      // the runs that have waited for it
	Cost     Usage        `json:"cost"`                   // sum over all attempts, failed ones included
}

// Call is a step of one run that waits, or has waited, for another run.
type Call struct {
	Step     string   `json:"step"`  // of the run that waits
	Run      RunID    `json:"run"`   // the other run: the child, or, in Callers, the one that waits
	State    RunState `json:"state"` // of that run; "" if it is deleted
	Detached bool     `json:"detached,omitempty"`
	Found    bool     `json:"found,omitempty"` // the child was there already, and was found by its key
}

// StepDetail is a step with all its attempts.
type StepDetail struct {
	Name         string        `json:"name"`
	Kind         Kind          `json:"kind"`
	State        StepState     `json:"state"`
	Attempt      int           `json:"attempt"`
	Key          OpKey         `json:"key,omitempty"`
	Paid         bool          `json:"paid,omitempty"`
	Reused       RunID         `json:"reused_from,omitempty"` // the run that executed it
	TakenFrom    string        `json:"taken_from,omitempty"`
	InputDiffers bool          `json:"input_differs,omitempty"` // a later build called it with another input
	Input        []byte        `json:"-"`                       // of an effect that is not finished
	Value        []byte        `json:"-"`                       // left out if it is longer than 4 KiB
	ValueSize    int           `json:"value_size,omitempty"`    // bytes as stored
	Fault        *fault.Fault  `json:"fault,omitempty"`
	NextAt       time.Time     `json:"next_at,omitzero"`
	Attempts     []AttemptInfo `json:"attempts"`
	PaidTwice    bool          `json:"possibly_paid_twice,omitempty"` // more than one attempt may have been billed
}

// AttemptInfo is one attempt. The class is 0 for one that succeeded or is still open.
type AttemptInfo struct {
	Attempt int           `json:"attempt"`
	State   string        `json:"state"` // "succeeded", "failed", "lost", "in_flight", "uncertain"
	Class   fault.Class   `json:"class,omitempty"`
	Outcome fault.Outcome `json:"outcome,omitempty"`
	Reason  fault.Reason  `json:"reason,omitempty"`
	Message string        `json:"message,omitempty"`
	Worker  WorkerID      `json:"worker,omitempty"`
	Begun   time.Time     `json:"begun,omitzero"`
	Ended   time.Time     `json:"ended,omitzero"`
	Latency time.Duration `json:"latency_ns,omitempty"`
	Wait    time.Duration `json:"wait_ns,omitempty"`
	Usage   Usage         `json:"usage,omitzero"`

	// Sent is what the attempt sent over HTTP, as far as the transport of package fault saw it; nil if it saw nothing.
	Sent *fault.Evidence `json:"sent,omitempty"`
}

// Entry is an inbox entry as people see it.
type Entry struct {
	ID       EntryID   `json:"id"`
	Run      RunID     `json:"run"`
	Workflow string    `json:"workflow"`
	Version  string    `json:"version"`
	Key      Key       `json:"key,omitempty"`
	Step     string    `json:"step,omitempty"`
	Kind     EntryKind `json:"kind"`
	Attempt  int       `json:"attempt,omitempty"`
	Opened   time.Time `json:"opened"`
	Detail   string    `json:"detail"`
	Choices  []Choice  `json:"answers"`
	// OverAt is when the attempt is over and "did not happen" may be said of it; a later time means that the effect
	// may still happen until then. Over says that it has passed.
	OverAt time.Time `json:"over_at,omitzero"`
	Over   bool      `json:"over,omitempty"`
	OpKey  OpKey     `json:"key_sent,omitempty"`
	Input  []byte    `json:"-"` // what the step was asked to send, JSON
	Begun  time.Time `json:"begun,omitzero"`

	// Hash and Expires are those of a gate, whose payload is Input. An approval names the hash.
	Hash    string    `json:"hash,omitempty"`
	Expires time.Time `json:"expires,omitzero"`

	Closed time.Time `json:"closed,omitzero"`
	Choice Choice    `json:"answer,omitempty"`
	By     string    `json:"by,omitempty"`
	Reason string    `json:"reason,omitempty"`
}

// Answer is what a person says to an inbox entry.
type Answer struct {
	Entry   EntryID
	Attempt int // the attempt that was shown; 0 if the entry has none
	Choice  Choice
	// Result is the step's result as JSON, for "happened". Empty means null.
	Result []byte
	// Looked is when the person began to look into the outside world, for "did not happen". It counts only if the
	// attempt was over by then.
	Looked time.Time
	By     string
	Reason string
}

// Act says who does something and why. By is required.
type Act struct{ By, Reason string }

// Evidence is what a fenced worker or a probe reported about an attempt.
type Evidence struct {
	Step    string       `json:"step"`
	Attempt int          `json:"attempt"`
	At      time.Time    `json:"at"`
	Source  string       `json:"source"`
	Verdict string       `json:"verdict"`
	Value   []byte       `json:"-"`
	Fault   *fault.Fault `json:"fault,omitempty"`
}

// AuditEntry is an act of a person.
type AuditEntry struct {
	At     time.Time `json:"at"`
	Act    string    `json:"act"`
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
	Step   string    `json:"step,omitempty"`
	Entry  EntryID   `json:"entry,omitempty"`
	Detail string    `json:"detail,omitempty"`
}

// PlanMode says what the planned run does with what its parent has finished.
type PlanMode string

// The modes.
const (
	PlanRetry PlanMode = "retry" // reuse every finished step, continue
	PlanFork  PlanMode = "fork"  // re-execute from a step or from the start
	PlanMove  PlanMode = "move"  // the same run goes on under another version
)

// PlanOptions says what to plan.
type PlanOptions struct {
	Mode PlanMode `json:"mode"`
	// From is the first step to re-execute, with everything begun after it. For forks; exclusive with FromStart.
	From      string `json:"from,omitempty"`
	FromStart bool   `json:"from_start,omitempty"`
	// Repeat names Once steps that may run again. Each one that would needs to be named.
	Repeat []string `json:"repeat,omitempty"`
	// NewKeys gives the run operation keys of its own. A fork whose parent is not finished needs it.
	NewKeys bool `json:"new_keys,omitempty"`
	// NewKey names steps that get a new operation key in the new run, because the far end replays a stored error.
	NewKey []string `json:"new_key,omitempty"`
	// Version to move to.
	Version string `json:"version,omitempty"`
}

// Fate is what a plan does with a step.
type Fate string

// The fates.
const (
	Reuse   Fate = "reuse"   // its stored result is returned
	Rerun   Fate = "rerun"   // it is executed (again)
	Ask     Fate = "ask"     // it is uncertain: a person is asked before it runs
	Refused Fate = "refused" // it would run again and must be named in Repeat first
	Unused  Fate = "unused"  // the new version never visits it
)

// PlannedStep is one line of a plan.
type PlannedStep struct {
	Name    string    `json:"name"`
	Kind    Kind      `json:"kind"`
	State   StepState `json:"state"`
	Fate    Fate      `json:"fate"`
	Key     OpKey     `json:"key,omitempty"`
	Paid    bool      `json:"paid,omitempty"`
	Calls   int       `json:"worst_case_calls,omitempty"`
	Cost    int64     `json:"estimated_cost_micros,omitempty"`
	Why     string    `json:"why,omitempty"`
	Attempt int       `json:"attempt,omitempty"`
}

// Plan says, before anything is done, what a retry, fork or move would do. It holds for the state it was made from.
type Plan struct {
	Run       RunID         `json:"run"`
	Options   PlanOptions   `json:"options"`
	Steps     []PlannedStep `json:"steps"`
	PaidCalls int           `json:"worst_case_paid_calls"`
	Cost      int64         `json:"estimated_cost_micros"`
	Refusals  []string      `json:"refusals,omitempty"` // why it cannot be carried out as it stands
	Digest    string        `json:"digest"`             // of what the plan was made from

	items []PlannedStep // steps of items of batches, but those that a person is asked about

	live bool // another run of the lineage is not finished
}
