package pawl

import (
	"fmt"
	"slices"

	"github.com/pawlrun/pawl/fault"
)

// Kind says what happens if a step runs twice.
type Kind = fault.Kind

// RunState is where a run stands.
type RunState string

// The states of a run.
const (
	Queued    RunState = "queued"    // due, or due at a stored time; any worker with its version may take it
	Running   RunState = "running"   // owned by a worker
	Waiting   RunState = "waiting"   // a stored wake time or event will queue it
	Blocked   RunState = "blocked"   // a person owes an answer, see the inbox
	Succeeded RunState = "succeeded" // terminal
	Failed    RunState = "failed"    // terminal
	Cancelled RunState = "cancelled" // terminal
)

// runMoves is the transition table of runs. What it does not list cannot be written.
var runMoves = map[RunState][]RunState{
	Queued:    {Running, Blocked, Cancelled, Failed},
	Running:   {Running, Queued, Waiting, Blocked, Succeeded, Failed, Cancelled},
	Waiting:   {Running, Queued, Blocked, Cancelled, Failed},
	Blocked:   {Queued, Waiting, Succeeded, Failed, Cancelled},
	Succeeded: nil,
	Failed:    nil,
	Cancelled: nil,
}

// RunStates lists all states in the order a run meets them.
func RunStates() []RunState {
	return []RunState{Queued, Running, Waiting, Blocked, Succeeded, Failed, Cancelled}
}

// Terminal reports whether s never changes any more.
func (s RunState) Terminal() bool { return s == Succeeded || s == Failed || s == Cancelled }

// CanBecome reports whether the transition table has the move from s to next.
func (s RunState) CanBecome(next RunState) bool { return slices.Contains(runMoves[s], next) }

// ParseRunState returns the state that text names.
func ParseRunState(text string) (RunState, error) {
	if s := RunState(text); slices.Contains(RunStates(), s) {
		return s, nil
	}
	return "", fmt.Errorf("unknown run state %q: want one of %v", text, RunStates())
}

// StepState is where a step of a run stands. A step that was never reached has no row.
type StepState string

// The states of a step.
const (
	StepWaiting   StepState = "waiting"   // a wait: for a time, an event, a decision, another run
	StepInFlight  StepState = "in_flight" // the intent is on record, the effect may be happening
	StepRetrying  StepState = "retrying"  // not in progress, will be tried again at a stored time
	StepUncertain StepState = "uncertain" // nobody knows whether the effect happened
	StepSucceeded StepState = "succeeded" // finished; the result never changes
	StepFailed    StepState = "failed"    // finished with an error the body was given
	StepGivenUp   StepState = "given_up"  // a person stopped asking whether it happened
)

// stepMoves is the transition table of steps. A step without an intent (Repeatable, Tx in the store's database) is
// inserted in the state its first attempt ended in, and goes from retrying to its end directly.
var stepMoves = map[StepState][]StepState{
	StepWaiting:   {StepSucceeded, StepFailed},
	StepInFlight:  {StepInFlight, StepSucceeded, StepFailed, StepRetrying, StepUncertain},
	StepRetrying:  {StepInFlight, StepRetrying, StepSucceeded, StepFailed, StepUncertain},
	StepUncertain: {StepSucceeded, StepRetrying, StepGivenUp},
	StepSucceeded: nil,
	StepFailed:    nil,
	StepGivenUp:   nil,
}

// StepStates lists all states in the order a step meets them.
func StepStates() []StepState {
	return []StepState{StepWaiting, StepInFlight, StepRetrying, StepUncertain, StepSucceeded, StepFailed, StepGivenUp}
}

// Finished reports whether the step's row never changes any more.
func (s StepState) Finished() bool {
	return s == StepSucceeded || s == StepFailed || s == StepGivenUp
}

// CanBecome reports whether the transition table has the move from s to next.
func (s StepState) CanBecome(next StepState) bool { return slices.Contains(stepMoves[s], next) }

// EntryKind says what an inbox entry asks about.
type EntryKind string

// The kinds of inbox entry.
const (
	AskUncertain    EntryKind = "uncertain"     // did the effect of this attempt happen?
	AskTwice        EntryKind = "twice"         // the effect may have happened twice; acknowledge
	AskCrashLoop    EntryKind = "crash_loop"    // five workers were lost while they ran it
	AskDecode       EntryKind = "decode"        // a stored value no longer decodes
	AskDiverged     EntryKind = "diverged"      // the body ended without visiting a step it once ran
	AskRenamed      EntryKind = "renamed"       // a new step looks like a finished one under another name
	AskVersion      EntryKind = "version"       // no living worker has the run's version
	AskLimit        EntryKind = "limit"         // attempts are used up, or the run has come to one of its Limits
	AskInputChanged EntryKind = "input_changed" // an unfinished effect would now be sent with another input
	AskGate         EntryKind = "gate"          // may this be done? Answered by [Engine.Decide]
	AskInvalidated  EntryKind = "invalidated"   // what was to be done is not what was approved
)

// EntryKinds lists all kinds of inbox entry.
func EntryKinds() []EntryKind {
	return []EntryKind{AskUncertain, AskTwice, AskCrashLoop, AskDecode, AskDiverged, AskRenamed, AskVersion, AskLimit,
		AskInputChanged, AskGate, AskInvalidated}
}

// Choice is an answer a person may give to an inbox entry.
type Choice string

// The answers there are.
const (
	AnswerHappened     Choice = "happened"       // the effect happened; its result is given
	AnswerDidNotHappen Choice = "did_not_happen" // it did not, and the attempt was over when the looking began
	AnswerGiveUp       Choice = "give_up"        // nobody will ever know; the run ends
	AnswerResume       Choice = "resume"         // the same run goes on at the first unfinished step
	AnswerCancel       Choice = "cancel"         // the run ends as cancelled, its body is not executed again
	AnswerAccept       Choice = "accept"         // finish as the new code ended, without the unvisited steps
	AnswerTakeResult   Choice = "take_result"    // the renamed step takes the old row's result
	AnswerRunIt        Choice = "run_it"         // it is a new step; run it
	AnswerAcknowledge  Choice = "acknowledge"    // seen
	AnswerApprove      Choice = "approve"        // of a gate: do it
	AnswerReject       Choice = "reject"         // of a gate: do not do it
	AnswerEdit         Choice = "edit"           // of a gate: something else is asked about now
	// AnswerEditAndApprove of a gate: do something else than what was asked.
	AnswerEditAndApprove Choice = "edit_and_approve"
	AnswerRevoke         Choice = "revoke" // of a gate: take back an approval that nothing has used yet
	AnswerExpire         Choice = "expire" // of a gate, by itself: nobody has answered in time
)

// answers says which choices each kind of entry has. Moving a run to another version is an act of its own, see
// [Engine.Move]; it closes a version entry.
var answers = map[EntryKind][]Choice{
	AskUncertain:    {AnswerHappened, AnswerDidNotHappen, AnswerGiveUp},
	AskTwice:        {AnswerAcknowledge},
	AskCrashLoop:    {AnswerResume, AnswerCancel},
	AskDecode:       {AnswerResume, AnswerCancel},
	AskDiverged:     {AnswerResume, AnswerAccept, AnswerCancel},
	AskRenamed:      {AnswerTakeResult, AnswerRunIt, AnswerCancel},
	AskVersion:      {AnswerResume, AnswerCancel},
	AskLimit:        {AnswerResume, AnswerCancel},
	AskInputChanged: {AnswerResume, AnswerCancel},
	AskGate:         {AnswerApprove, AnswerReject, AnswerEdit, AnswerEditAndApprove},
	AskInvalidated:  {AnswerResume, AnswerCancel},
}

// Choices lists the answers an entry of kind k accepts.
func (k EntryKind) Choices() []Choice { return slices.Clone(answers[k]) }

// blocksRun reports whether a run with such an open entry may not be worked on at all.
func (k EntryKind) blocksRun() bool { return k != AskUncertain && k != AskTwice && k != AskGate }
