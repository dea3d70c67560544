package pawl

import "context"

// ScheduleRows are the operations on schedules and on the ledger of their occurrences. A schedule's occurrences, but for
// Open, change only while its row is locked, which comes before the locks of runs.
type ScheduleRows interface {
	// Schedule returns one schedule, locked until the transaction ends unless it only reads; ErrNotFound if there is none.
	Schedule(ctx context.Context, name string) (*ScheduleRow, error)
	// Schedules returns up to limit schedules with names after after, in the order of their names.
	Schedules(ctx context.Context, after string, limit int) ([]ScheduleRow, error)
	// InsertSchedule adds a schedule, Created and Changed being now, and reports whether its name was free.
	InsertSchedule(ctx context.Context, s *ScheduleRow) (bool, error)
	// SaveSchedules writes all columns of locked schedules but Name and Created.
	SaveSchedules(ctx context.Context, all []ScheduleRow) error
	// DeleteSchedule deletes a locked schedule. Its ledger stays.
	DeleteSchedule(ctx context.Context, name string) error

	// DueSchedules returns up to limit schedules that are to be looked at, but those named in except. It locks nothing.
	DueSchedules(ctx context.Context, has []VersionID, except []string, limit int) ([]ScheduleRow, error)
	// LockSchedules locks those of the schedules that nobody else has locked, and returns them.
	LockSchedules(ctx context.Context, names []string) ([]ScheduleRow, error)

	// AddOccurrences adds rows to the ledger, Decided being now, and returns those that were not there yet.
	AddOccurrences(ctx context.Context, rows []OccurrenceRow) ([]OccurrenceRow, error)
	// MoveOccurrence writes what became of an occurrence over the stored row if that one is in state from, and reports
	// whether it was. At, Until and Count are those of the row.
	MoveOccurrence(ctx context.Context, row *OccurrenceRow, from OccurrenceState) (bool, error)
	// ShrinkOccurrence makes a range begin at at and have count instants; with none it is deleted.
	ShrinkOccurrence(ctx context.Context, row *OccurrenceRow, at int64, count int) error
	// Occurrences returns up to limit occurrences of a schedule that begin before before, newest first.
	Occurrences(ctx context.Context, schedule string, before int64, limit int) ([]OccurrenceRow, error)
	// Within returns up to limit occurrences that are, or whose range begins or ends, between two instants, both included,
	// oldest first, and the range that covers the first instant.
	Within(ctx context.Context, schedule string, from, to int64, limit int) ([]OccurrenceRow, error)
	// Triggered returns the occurrence that a person made under a key; nil if there is none.
	Triggered(ctx context.Context, schedule, key string) (*OccurrenceRow, error)
	// OpenOccurrences returns the occurrences of the schedules that are marked open, with the run that is live now in the
	// lineage that they started, oldest first.
	OpenOccurrences(ctx context.Context, names []string) ([]OpenOccurrence, error)
	// OccurrencesAhead returns the occurrences of the schedules that come after what each has decided, because a person asked
	// for them earlier.
	OccurrencesAhead(ctx context.Context, names []string) ([]OccurrenceRow, error)
	// HandOccurrence names another run in the open occurrence of a lineage, if there is one.
	HandOccurrence(ctx context.Context, lineage, run RunID) error
	// CloseOccurrences takes the marks away.
	CloseOccurrences(ctx context.Context, all []OpenOccurrence) error
	// ClaimKeys is ClaimKey for many keys, none of them twice. It returns those that were free.
	ClaimKeys(ctx context.Context, keys []KeyRow) ([]Key, error)
}

// ScheduleRow is a schedule as stored.
type ScheduleRow struct {
	Name     string
	Workflow string
	Version  string // "" that of the worker that decides
	Coded    bool   // its input comes from the code of a program
	Spec     []byte // JSON of a [ScheduleSpec]
	Input    []byte // template of the input, as stored; nil if Coded
	Overlap  OverlapPolicy
	CodeHash []byte // of the spec that code declared last and that was taken over
	Edited   bool   // a person has changed what code declares
	Revision int    // grows with each edit, from 1

	PausedAt  int64 // 0 not paused
	PausedBy  string
	PausedWhy string
	Created   int64
	Changed   int64

	Upto     int64 // every instant up to this one is in the ledger
	Due      int64 // when it is to be looked at; 0 if no instant is left
	Started  int   // runs started for instants of its timetable
	Buffered int64 // the instant that waits for a run to end; 0 none …
	Blocker  RunID // … and that run
	Streak   int   // instants without a run since the last one that had one
}

// OccurrenceRow is a row of the ledger: one instant, or a range of missed ones.
type OccurrenceRow struct {
	Schedule string
	At       int64
	Until    int64  // the last instant of a range; 0 it is one instant
	Count    int    // instants; of a range, those that have no row of their own
	Spec     []byte // of a range: JSON of the [ScheduleSpec] whose timetable has the instants
	State    OccurrenceState
	Reason   string
	Run      RunID // that was started: the first one of its lineage
	Other    RunID // that was in the way
	Revision int   // of the schedule whose timetable had the instant
	Decided  int64
	Key      string // under which a person made it
	By       string // the person
	Open     bool   // its lineage may have a live run
}

// OpenOccurrence is an occurrence that has started a run which may not have ended.
type OpenOccurrence struct {
	Schedule string
	At       int64
	Run      RunID    // live in the lineage; "" none …
	State    RunState // … and its state
	Cancel   bool     // it has been asked to end
}
