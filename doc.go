// Package pawl is a durable execution engine for jobs of several steps, such as the runs of an agent. A workflow is a
// Go function; its steps are journalled by name. If the process dies, the next worker executes the function again:
// finished steps return their stored results, and the run goes on at the first step that is not finished.
//
// Each step says what happens if it runs twice, and the engine acts on that. Where nobody can know whether an effect
// happened, the engine does not guess. It asks a person.
//
// # A workflow
//
// [Define] makes a workflow of a name, a version and a function. [New] makes an [Engine] of a store and the workflows
// this process can execute. [Workflow.Start] begins a run; [Engine.Work] claims runs and executes them until its context
// ends. The function takes a [*Run] and no context, because it does no I/O of its own: it is executed again on each
// resume. Whatever it calls outside goes into a step. [Run.StartedAt], [Run.ID] and [Run.Log] are there so that it need
// not read the clock, make up an id or print a line twice.
//
// A [Key] given to Start names what the run is about. The same key with the same input is one run, however often it is
// started. With another input it is [ErrConflict]. Finished runs are kept for ever unless [Options.Retention] says
// otherwise; the key of a deleted one stays taken for 400 days after its end, and starting it is [ErrConflict] too.
//
// # Kinds of step
//
//	verb          running it twice ...           after a crash in the middle
//	[Repeatable]  is harmless                    runs again
//	[Keyed]       is absorbed through the key    is sent again with the same key, see [KeyTTL]
//	[Tx]          is impossible                  did not happen, runs
//	[Once]        would do harm                  is uncertain: a [Probe] is asked, then a person
//
// The callbacks have different types, so that a function written for one kind does not compile under another: a Keyed
// step gets an [OpKey], a Tx step a transaction, a Once step an [Intent]. [Paid] marks calls that cost money. [TxIn]
// and postgres.Tx are Tx in a database of your own. Steps without a result have the verbs with Do.
//
// For Keyed, Once, TxIn and Paid steps the engine writes an intent before it calls your function. It stores the name,
// the key, the attempt and the deadline, so that after a crash it is known that the effect may have happened.
//
// Names are unique in a run. A loop gives each item its own scope with [Run.Item]. Rows are found by name, so steps may
// be moved, and new ones inserted, while runs are open. The input of a step is hashed; a finished step that is called
// with another input returns its stored result, and the difference is shown.
//
// # Results and errors
//
// The body sees stored results and stored errors only, on the first execution too. What does not survive JSON is
// refused. An error of a step is an [*Error]; errors.Is and errors.As find its [fault.Fault] and its [fault.Reason],
// and nothing else. Give a step's failure a reason of your own if the body is to branch on it:
//
//	return fault.Invalid(fault.Reason("sold_out"))
//
// For calls over HTTP give the client [fault.NewTransport], once and under any SDK: it sends the key of a Keyed step,
// sees whether a request has left, and knows what the answers of many providers mean. Package fault/smtpfault does the
// same for mail.
//
// [ErrSuspended] means that this execution of the body is over, because a step waits for its next attempt or for an
// answer, or because the worker stops. Return it. Whatever a suspended body does further is refused and ignored.
//
// # Waiting
//
// [Sleep] and [Await] suspend the run until a time has come, or an event that [Event.Send] sends from anywhere. An event that
// comes before it is awaited is kept for 30 days; [Within] limits a wait. docs/waiting.md says who gets what.
//
// # Branches
//
// [Run.Group] runs branches of a body side by side, each with a [Run] of its own. One that waits does not stop the others; when
// one fails the others are cut short, and what they waited for is closed, unless the group collects all errors.
//
// [Run.Finally] cleans up when the body has ended, however it did. [Limit] bounds what a run may do before a person is asked.
//
// # Batches
//
// [Batch] runs a function for each item of a list, several at once, and keeps what it came to item by item, under the item's own
// id. After a crash, and in a manual retry, finished items are not run again, however the list has changed. docs/waiting.md says
// more.
//
// # Children
//
// [Child] starts a run and waits for its end, without a slot of a worker. The child is recorded together with the wait, so
// there is one however often the caller is resumed, and its last transaction ends the wait. A retry of the caller goes on
// with the failed child instead of starting another. A cancel goes down, but not to one that is [Detached].
//
// # Long runs
//
// [ContinueAs] ends a run and begins its successor, with an empty journal, in one transaction. Whoever waits for the run gets the
// result of the last one.
//
// # Retry, resume, reopen
//
// Retry executes again. Inside a step it is automatic, by the class of the fault and within the [RetryPolicy]; a wait of
// more than 5 s gives the worker's slot free. A manual retry is [Engine.Retry]: a new run, linked to the old one, which
// inherits what is finished and keeps the operation keys. [Engine.Plan] says before what it would do.
//
// Resume continues the same run. After a crash, a deploy or a lost lease it happens by itself. [Engine.Resume] does it
// for a run that is blocked by a question.
//
// Reopening only looks. [Engine.Show], [Engine.Runs] and [Engine.Inbox] write nothing and execute nothing.
//
// # People
//
// The inbox holds what a person owes an answer to. [EntryKind] lists what is asked, [EntryKind.Choices] what can be
// said, and [Engine.Resolve] says it. An answer names the attempt it was shown; a second, different answer is
// [ErrConflict] and tells who was first. "Did not happen" counts only if the looking began after the attempt was over,
// because before that a true answer may become false; Entry.OverAt says when that is. Each act leaves an audit row.
//
// [Approve] asks before something is done, and [Under] binds a step to the answer; [AskFirst] is both in one. [Engine.Decide] is
// how a person answers. What was approved, by its hash, is what runs, once.
//
// # Errors
//
// What a step hands to the body:
//
//	[ErrSuspended]             this execution is over; return it
//	[*Error]                   the step failed; Fault says why
//	[ErrDuplicate]             the name is used twice in the run
//	[fault.ErrRunCanceled]     the run is cancelled, the step was not begun or was cut short
//	[fault.ReasonRunDeadline]  likewise, by the run's own [Deadline]
//
// What callers and operators get:
//
//	[*Error]                   Result: the run failed
//	[ErrCancelled]             Result: the run was cancelled
//	[ErrConflict]              the key has another input or its run is deleted, or what is answered has changed or is answered
//	[ErrStale]                 what was shown no longer holds: a plan, or what is to be approved
//	[ErrExpired]               the time for a decision is over
//	[ErrNotAllowed]            the gate does not let this person decide
//	[ErrLive]                  another run of the lineage is not finished
//	[ErrNotFound]              no such run or entry
//	[ErrTerminal]              the run is finished and stays as it is
//	[ErrTooEarly]              "did not happen" was said while the attempt might still act
//	[ErrAbandoned]             Work: steps did not end although they were cancelled
//
// What a store reports:
//
//	[ErrCommitUnknown]         the answer to a COMMIT was lost
//	[ErrStepExists]            a journal row of that name is there already
//	[ErrLeaseLost]             another worker may own the run
//	[ErrSchema]                the database's schema does not fit this build
//
// # Flow control
//
// A run waits in a [Queue], with a [Priority] and a [Share]. [Engine.SetQueue] limits how many of a queue, or of a share in
// it, are running at once and how many begin in a time, [Engine.PauseQueue] lets none begin; both hold for all processes.
// Steps that name a [Lane] wait together when a provider says "wait". docs/flow.md says what can be exceeded when.
//
// # Schedules
//
// [Workflow.Schedule] starts runs at the instants of [Cron], [Every] or [OneOff]. Workers decide about instants, any number of
// them, and each instant has one row in the schedule's ledger: [Engine.Occurrences]. While a run has not ended, the [Overlap]
// policy says what happens; after a time without workers, [CatchUp]. docs/schedules.md says which instants there are where
// clocks jump.
//
// # Stores
//
// Package sqlite keeps runs in a file, which several processes of one machine may share. Package postgres keeps them in
// PostgreSQL 15 or later, for any number of workers. Both have a DB method for your own tables; [InTx] (and
// postgres.InTx for pgx) starts a run inside a transaction of yours, so that a row and its run exist together or not at
// all. The guarantees hold while the database loses no commit.
//
// # Testing
//
// Functions that are steps take plain values and can be tested alone. A whole run is tested on a SQLite file in
// t.TempDir: an engine, Work in a goroutine and [Handle.Result]. The examples of this package do that.
package pawl
