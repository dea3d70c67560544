package pawl

import (
	"context"
	"database/sql"
	"time"

	"github.com/pawlrun/pawl/fault"
)

// Store keeps runs, journals and leases. Package sqlite and package postgres provide the two there are; both pass the
// suite in package storetest, which states the rules an implementation must keep.
//
// All times are microseconds since 1970 UTC by the store's own clock, read in SQL. Methods are safe for concurrent use.
// An error that wraps [ErrCommitUnknown] means that the transaction may or may not have been applied; every other error
// means that nothing was written.
type Store interface {
	Ledger
	Leases
	Lists
	Pruner
	Hints

	// Name is "sqlite" or "postgres".
	Name() string
	// Close releases the connections and ends Listen. It does not wait for transactions of other processes.
	Close() error
}

// Ledger runs transactions over runs and their journals.
type Ledger interface {
	// Update runs fn in one write transaction and commits if fn returns nil. The transaction is READ COMMITTED on
	// PostgreSQL and BEGIN IMMEDIATE on SQLite. If the database aborted the transaction for reasons of concurrency
	// (40001, 40P01, SQLITE_BUSY) it is rolled back and fn runs again, so fn must set its results, not add to them.
	Update(ctx context.Context, fn func(ctx context.Context, tx Txn) error) error
	// UpdateSQL is Update for a Tx step: fn also gets the transaction itself, for the user's statements. On a database
	// with one write lock, which the heartbeats of all processes need, fn's context ends hold after the transaction has
	// begun, and it is rolled back.
	UpdateSQL(ctx context.Context, hold time.Duration, fn func(ctx context.Context, tx Txn, user *sql.Tx) error) error
	// View runs fn in one read-only snapshot.
	View(ctx context.Context, fn func(ctx context.Context, tx Txn) error) error
	// Write applies changes of several runs in one transaction and, on PostgreSQL, one round trip: all of them or none.
	// It returns the store's clock in that transaction, has resolved the times of the rows by it (see [AtWrite]), and has
	// waited for no lock of a run. [ErrOneByOne] says that one of the changes does not hold, or that a run is locked by
	// somebody: nothing was written, and Update has to find out which. It does not keep the slice.
	Write(ctx context.Context, changes []Change) (now int64, err error)
	// On gives the row operations inside a transaction that the caller began on this database and will end.
	On(conn Conn) Txn
}

// AtWrite makes a time of a row to which it is added relative: the store puts its clock, as it is when it writes the row,
// in place of AtWrite.
const AtWrite int64 = 1 << 60

func resolve(now int64, times ...*int64) {
	for _, t := range times {
		if *t > AtWrite/2 {
			*t += now - AtWrite
		}
	}
}

// Resolve replaces the row's relative times.
func (row *StepRow) Resolve(now int64) {
	resolve(now, &row.Begun, &row.Ended, &row.Deadline, &row.FirstIntent, &row.NextAt, &row.FirstTry, &row.NextProbe)
}

// timesOf takes over what Resolve changes.
func (row *StepRow) timesOf(of *StepRow) {
	row.Begun, row.Ended, row.Deadline, row.FirstIntent = of.Begun, of.Ended, of.Deadline, of.FirstIntent
	row.NextAt, row.FirstTry, row.NextProbe = of.NextAt, of.FirstTry, of.NextProbe
}

// Change is what [Ledger.Write] does to one run: adds it, or, for the claim that holds it, writes journal rows and its end.
type Change struct {
	Start *RunRow // a new run; the claim is then none

	Run    RunID
	Epoch  int64 // of the claim, …
	Token  int64 // … compared under the lock of the run's row
	Insert []*StepRow
	Items  []*ItemRow
	Settle []*StepRow // intents of this claim, and waits, that have succeeded: end, result, usage, what was sent
	End    *RunEnd
}

// RunEnd ends a run whose effects are all known and for which no other end is decided.
type RunEnd struct {
	State  RunState
	Fault  *fault.Fault
	Result []byte
	Row    *RunRow // says which product key it speaks for
}

// Conn is a transaction of the caller's. [SQLConn] makes one from a *sql.Tx, package postgres one from a pgx.Tx.
type Conn interface {
	Exec(ctx context.Context, query string, args ...any) (affected int64, err error)
	Query(ctx context.Context, query string, args ...any) (Rows, error)
}

// Rows is what a query gives; *sql.Rows and pgx.Rows fit after a little adapting.
type Rows interface {
	Next() bool
	Scan(dest ...any) error
	Close() error
	Err() error
}

// Txn is the set of row operations inside one transaction. Locks are taken in the order schedule, run, topic, journal, gate, inbox.
type Txn interface {
	RunRows
	CallRows
	StepRows
	ItemRows
	GateRows
	PeopleRows
	EventRows
	QueueRows
	ScheduleRows

	// Now is the store's clock at this moment, not at the start of the transaction.
	Now(ctx context.Context) (int64, error)
	// Namespace is the random text made at the first migration, part of every operation key.
	Namespace(ctx context.Context) (string, error)
	// Restored returns when the database was last declared restored from a backup, 0 if never; SetRestored declares it
	// now.
	Restored(ctx context.Context) (int64, error)
	SetRestored(ctx context.Context) error
}

// RunRows are the operations on runs and product keys.
type RunRows interface {
	// LockRun locks the run's row until the transaction ends (FOR NO KEY UPDATE) and returns it without input and
	// result. ErrNotFound if there is none. Lock several runs in the order of their ids. In a View it only reads.
	LockRun(ctx context.Context, id RunID) (*RunRow, error)
	// Payload returns a run's input and result as stored.
	Payload(ctx context.Context, id RunID) (input, result []byte, err error)
	// SaveRun writes the columns of a locked run that may change; the result only if SetResult. It refuses a move
	// that the transition table does not have from the state stored now, so a terminal run stays as it is.
	SaveRun(ctx context.Context, run *RunRow) error
	// InsertRuns adds runs. Created is set by the store; Due is set to now where it is 0 and the state is queued.
	// A second live run of a lineage fails with ErrLive.
	InsertRuns(ctx context.Context, runs []RunRow) error
	// Lineage returns all runs of a lineage, oldest first, without payloads.
	Lineage(ctx context.Context, lineage RunID) ([]RunRow, error)
	// ClaimKey inserts the key row and reports true, or returns the row that is there. It waits for a concurrent
	// transaction that is inserting the same key.
	ClaimKey(ctx context.Context, key KeyRow) (KeyRow, bool, error)
	// EndKey notes on the run's key row, if it has one, how its lineage ended last.
	EndKey(ctx context.Context, run *RunRow) error
	// MoveKey gives the run's product key to the lineage to, as one that has not ended, if the run's lineage has it and the
	// run speaks for it. It reports whether that is so. The hash of the input stays that of the first start.
	MoveKey(ctx context.Context, run *RunRow, to RunID) (bool, error)
}

// CallRows are the operations on calls: which steps of kind child wait for which runs, or did. Whoever adds a call, or ends
// a run that is called, holds the lock of the run that is called.
type CallRows interface {
	// AddCall adds a call; its run and step are in no other one.
	AddCall(ctx context.Context, c CallRow) error
	// Calls returns the calls that a run has made, in byte order of the steps.
	Calls(ctx context.Context, run RunID) ([]CallRow, error)
	// Callers returns the calls for a run, in the order of the ids of the runs that made them.
	Callers(ctx context.Context, child RunID) ([]CallRow, error)
	// MoveCalls turns all calls for a run, whose lock is held, into calls for another one.
	MoveCalls(ctx context.Context, child, to RunID) error
}

// StepRows are the operations on the journal.
type StepRows interface {
	// Step returns one row with its value and input, nil if there is none.
	Step(ctx context.Context, run RunID, name string) (*StepRow, error)
	// Steps returns up to limit rows with names after after, in byte order of the name, without those of items of batches.
	// Values longer than 4 KiB and inputs are left out, ValueSize tells.
	Steps(ctx context.Context, run RunID, after string, limit int) ([]StepRow, error)
	// ClaimedSteps returns, like Steps, up to limit rows of the runs that a claim took and that were taken before, in the
	// order of the runs and their names.
	ClaimedSteps(ctx context.Context, worker WorkerID, token int64, limit int) ([]StepRow, error)
	// OpenSteps returns the rows that are waiting, in flight, retrying or uncertain, with inputs.
	OpenSteps(ctx context.Context, run RunID) ([]StepRow, error)
	// InsertStep adds a row with a plain INSERT; ErrStepExists if the name is taken.
	InsertStep(ctx context.Context, row *StepRow) error
	// MoveStep writes row over the stored row only if that one is in a state from which the table allows row.State
	// and its attempt is attempt; it reports whether it was.
	MoveStep(ctx context.Context, row *StepRow, attempt int) (bool, error)
	// InheritStep copies a row of another run into run, in the given state, without usage and cost and with a budget of
	// attempts that begins anew.
	InheritStep(ctx context.Context, from, run RunID, name string, state StepState) error
	// MarkStep sets the columns that say how people and later builds relate to the row (OtherHash, UseStored, Orphaned,
	// NextProbe, Probes), and Items, and nothing else.
	MarkStep(ctx context.Context, row *StepRow) error
	// AddAttempt records an attempt that ended without success. A second record of the same attempt is ignored.
	AddAttempt(ctx context.Context, a *AttemptRow) error
	// Attempts returns the attempts of a run that ended without success, in order.
	Attempts(ctx context.Context, run RunID) ([]AttemptRow, error)
}

// GateRows are the operations on gates. A run's gates change only while the run's row is locked.
type GateRows interface {
	// InsertGate adds a gate. Requested is set, and relative times are resolved, by the store's clock. It fails if the run
	// has a live gate for the step already, or one of that generation.
	InsertGate(ctx context.Context, g *GateRow) error
	// MoveGate writes the gate's state, decision and claim over the stored row if that one has g.Rev still and its state
	// may become g.State; it reports whether it did, and g.Rev is then the next one.
	MoveGate(ctx context.Context, g *GateRow) (bool, error)
	// Gate returns one gate; ErrNotFound if there is none.
	Gate(ctx context.Context, id EntryID) (*GateRow, error)
	// Gates returns a run's gates, oldest first, without payloads and forms.
	Gates(ctx context.Context, run RunID) ([]GateRow, error)
	// LiveGate returns the run's gate for the step that is pending, approved or claimed; nil if there is none.
	LiveGate(ctx context.Context, run RunID, step string) (*GateRow, error)
	// LastGate returns the newest generation of the step's gates in the whole lineage; nil if there is none.
	LastGate(ctx context.Context, lineage RunID, step string) (*GateRow, error)
}

// PeopleRows are the operations on the inbox, on evidence and on the audit trail.
type PeopleRows interface {
	// OpenEntry adds an inbox entry unless one of that kind is open for the run and step. ID and Opened are set.
	OpenEntry(ctx context.Context, e *EntryRow) error
	// CloseEntry records the answer in e if the entry is still open and reports whether it was.
	CloseEntry(ctx context.Context, e *EntryRow) (bool, error)
	// Entry returns one entry; ErrNotFound if there is none.
	Entry(ctx context.Context, id EntryID) (*EntryRow, error)
	// Entries returns a run's entries, oldest first, only open ones if open.
	Entries(ctx context.Context, run RunID, open bool) ([]EntryRow, error)
	// AddEvidence stores what a fenced worker or a probe reports.
	AddEvidence(ctx context.Context, e *EvidenceRow) error
	// Evidence returns what has been reported for a run, oldest first.
	Evidence(ctx context.Context, run RunID) ([]EvidenceRow, error)
	// AddAudit records an act of a person.
	AddAudit(ctx context.Context, a *AuditRow) error
	// Audit returns the acts of people on a run, oldest first.
	Audit(ctx context.Context, run RunID) ([]AuditRow, error)
	// Worker returns a worker's row; nil if it is gone.
	Worker(ctx context.Context, id WorkerID) (*WorkerRow, error)
	// MarkSuspect notes on a worker's row that it runs this suspect run now, or none if run is "".
	MarkSuspect(ctx context.Context, id WorkerID, run RunID) error
	// ExtendLease renews a worker's lease with the transaction, if it is not over yet, and reports whether it did.
	ExtendLease(ctx context.Context, id WorkerID) (bool, error)
}

// EventRows are the operations on events, on who awaits them and on who has taken which.
type EventRows interface {
	// LockTopic locks the topic until the transaction ends: what others have written under the lock is seen from here on.
	// It is an error in a transaction whose isolation would hide that.
	LockTopic(ctx context.Context, topic Topic) error
	// AddEvent adds an event and sets its At, which is later than that of every other event of the locked topic.
	AddEvent(ctx context.Context, ev *EventRow) error
	// EventHash returns the hash of the event that was sent under an id, nil if there is none.
	EventHash(ctx context.Context, topic Topic, id string) ([]byte, error)
	// NextEvent returns the oldest event of the topic that run may take, nil if there is none: later than every event of
	// the topic that its lineage has taken, and either sent after the lineage was created or later than every one that
	// its workflow has taken. As each run takes the oldest event that it may take, that leaves out nothing untaken. A fork with
	// keys of its own is a lineage of its own here.
	NextEvent(ctx context.Context, topic Topic, run *RunRow) (*EventRow, error)
	// TakeEvent records that run's lineage has taken the event.
	TakeEvent(ctx context.Context, ev *EventRow, run *RunRow) error
	// OpenAwait notes that a step of run awaits the topic; CloseAwait ends that, and does nothing if it is not so.
	OpenAwait(ctx context.Context, topic Topic, run RunID, step string) error
	CloseAwait(ctx context.Context, run RunID, step string) error
	// Awaits returns up to limit of those that await the topic, in the order of run and step, after after.
	Awaits(ctx context.Context, topic Topic, after AwaitRow, limit int) ([]AwaitRow, error)
}

// QueueRows are the operations on queues and lanes.
type QueueRows interface {
	// Queue returns the row of a queue, locked until the transaction ends unless it only reads. A queue that has no row
	// gets one without settings, if the transaction does not only read.
	Queue(ctx context.Context, name string) (*QueueRow, error)
	// Queues returns all rows, in the order of their names.
	Queues(ctx context.Context) ([]QueueRow, error)
	// SaveQueue writes the settings and the pause of a queue, Turn and Spent as they are stored. If they are the first
	// that claims have to heed, what is running of the queue counts from now on.
	SaveQueue(ctx context.Context, q *QueueRow) error
	// Backlog counts what waits in queues and what is running of them, by queue, up to most runs of each workflow version.
	Backlog(ctx context.Context, most int) (map[string]Backlog, error)
	// HoldLane lets no step of the lane begin an attempt before until, unless it is held for longer already.
	HoldLane(ctx context.Context, l LaneRow) error
	// Lane returns until when the lane is held; 0 if it is not.
	Lane(ctx context.Context, name string) (until int64, err error)
	// Lanes returns the lanes that are held now.
	Lanes(ctx context.Context) ([]LaneRow, error)
}

// QueueRow is the settings of a queue as stored, and what claims remember of it. Zero limits are none.
type QueueRow struct {
	Name        string
	PausedAt    int64 // 0 not paused
	PausedBy    string
	PausedWhy   string
	MaxRunning  int
	MaxPerShare int
	Rate        int   // runs that may begin …
	RatePer     int64 // … in so many microseconds …
	Burst       int   // … and how many of them at once
	Shared      bool  // runs with shares have been started in it
	Spent       int64 // the rate is used up to this time
	Turn        Key   // the share that had its turn last
	Changed     int64 // when a person changed it last
}

// Backlog is what a queue holds.
type Backlog struct {
	Due     int   // may be claimed now
	Later   int   // wait for a time
	More    bool  // there are more than were counted
	Running int   // owned by workers
	Oldest  int64 // since when the first has been due; 0 none
}

// LaneRow is a lane that is held as stored.
type LaneRow struct {
	Name  string
	Until int64
	Why   string
}

// Leases is what a worker calls in its loops. No call touches a row of a run that the worker does not hold or take.
type Leases interface {
	// Register adds the worker's row with a lease and the workflow versions it has.
	Register(ctx context.Context, w WorkerRow, has []VersionID) error
	// Heartbeat renews the lease (the row comes back if somebody removed it) and reads which runs the worker owns.
	Heartbeat(ctx context.Context, w WorkerRow) (*Beat, error)
	// Unregister ends the worker's lease at once. Runs it still owns are then abandoned.
	Unregister(ctx context.Context, id WorkerID) error
	// Claim takes up to c.Limit runs: due ones, and, if c.Expired, those whose owner's lease is over. Each gets the next
	// epoch, c.Token and the worker as owner. It is one statement unless a queue of the worker's has settings to heed:
	// nothing is taken from a paused queue, and no more than a queue's limits allow; a run of a lost worker has its slot
	// already. Of what may be taken, the longest due comes first, after [RunRow.Priority] minutes of head start, and where
	// runs have shares, one share after the other. While more of one version is due than a worker can take, what is older, of
	// another version or lost may be overlooked for 100 ms, unless runs wait in other queues or at priorities. What was
	// taken comes with an error too.
	Claim(ctx context.Context, c Claim) ([]Claimed, error)
	// ReleaseLost queues a run that the worker's row owns but the worker does not hold, if the epoch is still that.
	ReleaseLost(ctx context.Context, id WorkerID, run RunID, epoch int64) (bool, error)
	// Due returns when the next run that this worker could claim is due, as a time from now; false if none is known.
	Due(ctx context.Context, id WorkerID) (time.Duration, bool, error)
	// NextSchedule returns the store's clock and when the first schedule of the versions is to be looked at; 0 if none is.
	// A schedule without a version is everybody's who has its workflow. One that waits for a run is to be looked at when
	// that run has ended, or has to be asked to.
	NextSchedule(ctx context.Context, has []VersionID) (now, due int64, err error)
	// Stray returns up to limit runs that are due but whose version no worker has had for grace while other workers
	// live, and blocked: version runs whose version is back.
	Stray(ctx context.Context, grace time.Duration, limit int) (stray, back []RunID, err error)
	// Tidy removes rows of workers that ended more than keep ago and own nothing, and gives runs whose owner has no
	// row an expired one, so that they can be claimed.
	Tidy(ctx context.Context, keep time.Duration) error
}

// Lists are reads for people. Each is paged by key and bounded.
type Lists interface {
	// ListRuns returns runs, newest first.
	ListRuns(ctx context.Context, q RunQuery) ([]RunRow, error)
	// ListInbox returns open entries, oldest first; all entries if q.All.
	ListInbox(ctx context.Context, q InboxQuery) ([]EntryRow, error)
	// FindRun returns the one run whose id begins with prefix; ErrNotFound or an error that lists the candidates.
	FindRun(ctx context.Context, prefix string) (RunID, error)
	// FindEntry is FindRun for inbox entries.
	FindEntry(ctx context.Context, prefix string) (EntryID, error)
	// Check runs the invariant and set-up checks that need only the rows at rest.
	Check(ctx context.Context) ([]Finding, error)
}

// Pruner deletes what has been kept for long enough.
type Pruner interface {
	// Prune deletes whole lineages: each run with its journal, entries and evidence, or none of it. A lineage goes if every
	// run of it ended more than p.Runs ago, no inbox entry of it is open, and the deadline of every attempt, with the
	// time the far end may take, is as long ago: nothing is reported about it any more. The rows of its product keys, and
	// those of people's acts, stay until p.Keys and p.Acts are over, and are deleted by themselves then.
	//
	// A call is bounded: it looks at so many runs from p.After on, in the order of their ids, deletes so many rows in a
	// transaction, and passes over lineages that others have locked. It writes nothing if there is nothing to delete, and
	// what that costs does not depend on how many runs there are. Any number of callers may prune at once.
	Prune(ctx context.Context, p PruneTerms) (Pruned, error)
	// PruneEvents deletes a bounded number of the events that were sent more than keep ago and, once no older event is left,
	// what is known about who has taken them. It reports whether there may be more, and begins no write transaction if there
	// is nothing to delete.
	PruneEvents(ctx context.Context, keep time.Duration) (more bool, err error)
	// PruneOccurrences does the same for instants of schedules that were more than keep ago, but for open ones.
	PruneOccurrences(ctx context.Context, keep time.Duration) (more bool, err error)
}

// Hints save workers of other processes the wait for their next poll. Any hint may be lost, come late, come twice or mean
// nothing, and nobody relies on one; what is looked at is committed before it is sent.
type Hints interface {
	// Hint tells all who listen, in other processes too, that runs may be due. It is a transaction of its own, and nothing is done
	// about an error. Where Listen sees the commits of others by itself, it tells those who listen at this store.
	Hint(ctx context.Context) error
	// Listen calls wake when another process may have made runs due, and once each time it begins to listen, because
	// hints may have been lost until then. wake must not block, may be called by several goroutines at a time, and for what this
	// process did. Listen blocks until ctx ends or the store is closed. Outages it outlives; any other error means that
	// listening is not possible.
	Listen(ctx context.Context, wake func()) error
}

// PruneTerms says what Prune deletes.
type PruneTerms struct {
	Runs  time.Duration // a lineage, after its last run ended
	Keys  time.Duration // a product key, after the last run under it ended, if its lineage is deleted
	Acts  time.Duration // an act of a person, after it was done, if its run is deleted or it was about none
	After RunID         // where to look for lineages: Next of the last call, "" at the oldest
	Dry   bool          // delete nothing, only count the lineages and runs that would go
}

// Pruned is what a Prune did.
type Pruned struct {
	Lineages int   // deleted, …
	Runs     int   // … with so many runs
	Keys     int   // product keys forgotten
	Acts     int   // acts of people forgotten
	Next     RunID // where the next call goes on; "" if no run is left that is old enough to look at
	More     bool  // there was more to do than one call does
}

// sqlConn adapts *sql.Tx.
type sqlConn struct{ tx *sql.Tx }

// SQLConn adapts a transaction of database/sql.
func SQLConn(tx *sql.Tx) Conn { return sqlConn{tx} }

func (c sqlConn) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	res, err := c.tx.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (c sqlConn) Query(ctx context.Context, query string, args ...any) (Rows, error) {
	return c.tx.QueryContext(ctx, query, args...)
}
