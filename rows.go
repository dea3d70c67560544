package pawl

import (
	"time"

	"github.com/pawlrun/pawl/fault"
)

// RunRow is a run as stored.
type RunRow struct {
	ID       RunID
	Lineage  RunID // the id of the lineage's first run
	Parent   RunID // the run this one retries or forks, ""
	Relation Relation
	Workflow string
	Version  string
	KeyName  string // the workflow's name in operation and product keys
	Key      Key    // product key, ""
	NewKeys  bool   // a fork with operation keys of its own
	OwnKeys  string // steps that a fork gave an operation key of its own: a line each, the fork's id and the path
	Queue    string
	Priority int // minutes of head start in its queue
	Share    Key // whose turn it is in its queue, "" nobody's

	State     RunState
	Due       int64 // when it may be claimed; 0 unless queued or waiting
	Epoch     int64 // grows with each claim and each release
	Token     int64 // random per claim
	Owner     WorkerID
	Claimed   int64 // time of the last claim
	Intended  RunState
	Fault     *fault.Fault // of a failed run, or of the intended failure
	Input     []byte
	InputHash []byte
	Result    []byte
	SetResult bool // SaveRun writes Result

	CancelAt  int64 // cancel requested; 0 no
	CancelBy  string
	CancelWhy string

	Created   int64
	Started   int64 // first claim
	Ended     int64
	Lost      int // workers lost since the last committed result
	LostTotal int
	Releases  int    // graceful releases
	Builds    string // revisions of the builds that have worked on it, comma separated
	Restored  int64  // when the database was declared restored from a backup while the run was open; 0 never

	Deadline  int64 // the run's own; 0 none
	TimeLimit int64 // what lies between its start and Deadline, in microseconds: a retry has as much again
	Called    bool  // another run waits for it, or did: see [CallRows]

	Successor RunID  // the run that it continues as, "" none: it has succeeded then, and has no result of its own
	Continues RunID  // the run that it, or the run that it retries or forks, is the successor of
	NextHash  []byte // not nil: what is kept as its result is the input of its successor, with this hash
}

// Relation says how a run came from another of its lineage.
type Relation string

// The relations.
const (
	Original Relation = ""      // started
	Retried  Relation = "retry" // continues after what its parent finished
	Forked   Relation = "fork"  // re-executes from a chosen step
)

// CallRow says for which run a step of kind child waits, or waited.
type CallRow struct {
	Run      RunID
	Step     string
	Child    RunID
	Started  bool // the call has started the run, or its retry; false means that it found it by its key
	Detached bool // the child goes on when the caller does not wait for it any more
}

// StepRow is a step as stored.
type StepRow struct {
	Run       RunID
	Name      string // full path, see [Run.Item]
	Kind      Kind
	State     StepState
	Attempt   int    // of the attempt that State speaks of, from 1
	Epoch     int64  // of the run when the row was last written by a worker
	InputHash []byte // of the input the attempt had
	Input     []byte // Keyed, Once and transactions in another database; of an event's wait, what is awaited
	Value     []byte // of a succeeded step
	ValueSize int
	Fault     *fault.Fault // of the last failure
	Key       OpKey
	Paid      bool
	Foreign   bool // Tx in another database: has an intent
	Worker    WorkerID

	Begun       int64 // of this attempt
	Ended       int64 // when the attempt's own process reported its end; 0 unknown
	Deadline    int64 // no effect begins after this; 0 none
	Settle      int64 // how much later the far end may still act, in microseconds
	FirstIntent int64 // first intent in the lineage
	KeyTTL      int64 // microseconds
	NextAt      int64 // retrying: not before; waiting: until, 0 for as long as it takes
	FirstTry    int64 // begin of the first attempt of this round, for the elapsed budget
	Unknown     int   // attempts of this round that ended outcome_unknown
	Round       int   // attempts before this round; a resume after "limit" begins a new one
	Told        int64 // microseconds of told delays that do not count as elapsed
	ProbeAfter  int64 // microseconds; 0 no probe
	NextProbe   int64 // when the probe may be asked next; 0 not again
	Probes      int   // how often it was asked about this attempt

	OtherHash []byte // a later build called the finished step with this input
	UseStored bool   // a person said: go on with the stored input
	Orphaned  bool   // its branch was ended here, because a sibling had failed
	Inherited RunID  // the run that made the row; "" this one
	Items     int    // of a batch: how many it was called with last
	TakenFrom string // the row whose result a person gave to this step
	Usage     Usage
	Sent      *fault.Evidence // what the last attempt sent over HTTP; nil if nothing was seen
}

// AttemptRow is an attempt that ended without success. The successful one is the step's row itself.
type AttemptRow struct {
	Run     RunID
	Step    string
	Attempt int
	Worker  WorkerID
	Begun   int64
	Ended   int64
	Fault   fault.Fault
	Wait    int64 // microseconds until the next attempt; 0 none planned
	Usage   Usage
	Sent    *fault.Evidence
}

// EntryRow is an inbox entry as stored.
type EntryRow struct {
	ID      EntryID
	Run     RunID
	Step    string
	Kind    EntryKind
	Attempt int
	Opened  int64
	Other   string // renamed: the finished step it looks like
	Detail  string // one sentence for people
	Closed  int64  // 0 open
	Choice  Choice
	By      string
	Why     string
	Result  []byte
}

// EvidenceRow is a report about an attempt. It never changes a row by itself.
type EvidenceRow struct {
	Run     RunID
	Step    string
	Attempt int
	At      int64
	Worker  WorkerID
	Source  string // "worker" or "probe"
	Verdict Verdict
	Value   []byte
	Fault   *fault.Fault
}

// AuditRow is an act of a person.
type AuditRow struct {
	ID     string
	At     int64
	Act    string
	By     string
	Why    string
	Run    RunID
	Step   string
	Entry  EntryID
	Detail string
}

// KeyRow is what makes a product key unique. It outlives the runs.
type KeyRow struct {
	KeyName   string
	Key       Key
	InputHash []byte
	Lineage   RunID
	End       RunState // "" not ended
	EndedAt   int64
}

// EventRow is an event as stored.
type EventRow struct {
	Topic Topic
	At    int64  // when it was sent; no two of a topic are equal
	ID    string // the sender's, ""
	Hash  []byte // of the value
	Value []byte
}

// AwaitRow is a step that awaits a topic.
type AwaitRow struct {
	Run  RunID
	Step string
}

// VersionID is a workflow and its version.
type VersionID struct{ Workflow, Version string }

// WorkerRow is a worker as stored.
type WorkerRow struct {
	ID           WorkerID
	Lease        time.Duration
	Expires      int64 // by the store's lease clock
	Alive        bool  // the lease has not expired; set on reads
	Registered   int64
	Hostname     string
	Machine      string
	Boot         string
	PIDNS        string
	PID          int
	ProcessStart string
	Build        string
	SuspectRun   RunID
	SuspectSince int64
	Overlap      int // other workers whose leases ended within one lease of this one's; set on reads
}

// Beat is what a heartbeat learns.
type Beat struct {
	Now    int64  // the store's clock
	Server string // changes when another server, or a restarted one, answers
	Runs   []Held
	Lapse  time.Duration // until the first lease of another worker is over, unless that is renewed; 0 if there is none
}

// Held is a run that the worker owns by the store's record.
type Held struct {
	Run    RunID
	Epoch  int64
	Cancel bool
}

// Claim asks for work.
type Claim struct {
	Worker  WorkerID
	Has     []VersionID
	Limit   int
	Token   int64
	Build   string // recorded as the run's build if none is
	Expired bool   // take runs of expired owners …
	Clock   int64  // … if the store's clock is within a second of this, which the worker expects it to be; 0 whatever it is
	Suspect bool   // take runs that have lost two workers
}

// Claimed is a run that was taken. Row has the input and no result.
type Claimed struct {
	Row    RunRow
	From   RunState // the state it was taken from; Running means that its owner was lost
	Owner  WorkerID // the lost owner
	Before int64    // when that one had claimed it
	Slot   bool     // it has a slot of a queue with limits: its end may let another run of the queue begin
}

// Finding is one thing that the doctor found.
type Finding struct {
	Level  string `json:"level"` // "error": an invariant is broken; "warn": a setting or a stuck run
	Rule   string `json:"rule"`  // "I1" … "I8", "gate", "setting", "stuck", "paused", "schedule", "retention"
	Run    RunID  `json:"run,omitempty"`
	Text   string `json:"text"`
	Advice string `json:"advice,omitempty"`
}
