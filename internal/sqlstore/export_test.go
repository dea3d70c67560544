package sqlstore

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

// Hot is a statement that workers or people send all the time, and the index that it has to use: the last part of its
// name on PostgreSQL ("pkey" for a primary key).
type Hot struct {
	Name, Text, Table, Index string
	Sent                     bool // as part of a whole, with settings of its own
}

// Hot gives those statements as this store sends them.
func (s *Store) Hot() []Hot {
	key := &filter{}
	key.add(runsOfKey, "")
	keyList := key.text(selectRuns, byRun, 10)
	live := &filter{where: []string{"state IN ('blocked')", "ended IS NULL"}}
	var hot []Hot
	for _, h := range [][4]string{
		{"claim due", claimText(claimShape{pairs: 2, ways: "\x00\x00\x01"}), "pawl_runs", "claim"},
		{"claim due and lost", claimText(claimShape{pairs: 2, ways: "\x00\x01", lost: true}), "pawl_runs", "owner"},
		{"claim from a backlog", claimText(claimShape{pairs: 1, ways: "\x00", from: true}), "pawl_runs", "claim"},
		{"claim with suspects", claimText(claimShape{pairs: 1, ways: "\x00", lost: true, suspect: true}), "pawl_runs", "claim"},
		{"share walk", walkShares, "pawl_runs", "claim"},
		{"slots", selectSlots, "pawl_runs", "slots"},
		{"first due", selectMinDue, "pawl_runs", "claim"},
		{"heeding claim", heedText(2, ""), "pawl_runs", "claim"},
		{"heeding take", heedTakeText(2), "pawl_runs", "pkey"},
		{"next place", nextPlace, "pawl_runs", "claim"},
		{"place", countPlace, "pawl_runs", "claim"},
		{"take", claimText(claimShape{pairs: 2, ways: "\x00\x01", lost: true}), "pawl_runs", "row"},
		{"lock", lockRun, "pawl_runs", "pkey"},
		{"save", fmt.Sprintf(saveRun, "'queued', 'running'"), "pawl_runs", "pkey"},
		{"payload", selectPayload, "pawl_runs", "pkey"},
		{"lineage", selectLineage, "pawl_runs", "lineage"},
		{"held", selectHeld, "pawl_runs", "owner"},
		{"release", releaseLost, "pawl_runs", "pkey"},
		{"due", selectDue, "pawl_runs", "claim"},
		{"next version", nextPair, "pawl_runs", "claim"},
		{"stray", selectStray, "pawl_runs", "claim"},
		{"back", selectBack, "pawl_runs", "pkey"},
		{"runs of a key", keyList, "pawl_keys", "pkey"},
		{"step", selectStep, "pawl_steps", "pkey"},
		{"journal", stepLinesAfter, "pawl_steps", "pkey"},
		{"journal after a batch", stepLinesFrom, "pawl_steps", "pkey"},
		{"journal, its rows", stepRowsAfter, "pawl_steps", "pkey"},
		{"journal after a batch, its rows", stepRowsFrom, "pawl_steps", "pkey"},
		{"steps by name", fmt.Sprintf(selectStepsNamed, params(2, 64)), "pawl_steps", "pkey"},
		{"names of steps of items", selectItemNames, "pawl_steps", "pkey"},
		{"ids of ended items", selectEndedIDs, "pawl_items", "pkey"},
		{"journals", selectClaimedSteps, "pawl_steps", "pkey"},
		{"runs of journals", selectClaimedSteps, "pawl_runs", "owner"},
		{"open steps", selectOpenSteps, "pawl_steps", "pkey"},
		{"move", fmt.Sprintf(moveStep, "'in_flight', 'retrying'"), "pawl_steps", "pkey"},
		{"mark", markStep, "pawl_steps", "pkey"},
		{"inherit", inheritStep, "pawl_steps", "pkey"},
		{"attempts", selectAttempts, "pawl_attempts", "pkey"},
		{"open entries", selectOpenEntries, "pawl_inbox", ""},
		{"find", findRuns, "pawl_runs", "pkey"},
		{"oldest runs", selectOldest, "pawl_runs", "pkey"},
		{"gone keys", selectGone, "pawl_keys", "gone"},
		{"gone acts", selectGone, "pawl_audit", "gone"},
		{"lock lineages", withIDs(lockRuns), "pawl_runs", "lineage"},
		{"lock first runs", withIDs(lockRuns), "pawl_runs", "pkey"},
		{"fates", withIDs(selectFates), "pawl_runs", "pkey"},
		{"calls", selectCalls, "pawl_calls", "pkey"},
		{"callers", selectCallers, "pawl_calls", "child"},
		{"move calls", moveCalls, "pawl_calls", "child"},
		{"move key", moveKey, "pawl_keys", "pkey"},
		{"fates by calls", withIDs(selectFates), "pawl_calls", "child"},
		{"fates by steps", withIDs(selectFates), "pawl_steps", "pkey"},
		{"mark keys", withIDs(markKeys), "pawl_keys", "pkey"},
		{"mark acts", withIDs(markActs), "pawl_audit", "run"},
		{"delete steps", withIDs(deleteSteps), "pawl_steps", "pkey"},
		{"finished items", selectItems, "pawl_items", "pkey"},
		{"item", selectItem, "pawl_items", "pkey"},
		{"ended items", selectEndedItems, "pawl_items", "pkey"},
		{"delete items", withIDs(deleteItems), "pawl_items", "pkey"},
		{"delete attempts", withIDs(deleteAttempts), "pawl_attempts", "pkey"},
		{"delete entries", withIDs(deleteEntries), "pawl_inbox", "run"},
		{"delete evidence", withIDs(deleteEvidence), "pawl_evidence", "pkey"},
		{"delete runs", withIDs(deleteRuns), "pawl_runs", "pkey"},
		{"delete keys", deleteKeys, "pawl_keys", "gone"},
		{"delete acts", deleteActs, "pawl_audit", "gone"},
		{"next event", selectNextEvent, "pawl_events", "pkey"},
		{"taken by the lineage", selectTaken, "pawl_takings", "pkey"},
		{"taken by the workflow", selectTaken, "pawl_takings", "workflow"},
		{"add event", insertEvent, "pawl_events", "pkey"},
		{"event by id", selectEventHash, "pawl_events", "given"},
		{"awaits", selectAwaits, "pawl_awaits", "topic"},
		{"close await", deleteAwait, "pawl_awaits", "pkey"},
		{"old events", selectOldEvents, "pawl_events", "age"},
		{"old takings", selectOldEvents, "pawl_takings", "age"},
		{"delete events", deleteEvents, "pawl_events", "age"},
		{"delete takings", deleteTakings, "pawl_takings", "age"},
		{"next schedule", nextText(2), "pawl_schedules", "due"},
		{"next schedule that waits", nextText(2), "pawl_schedules", "buffered"},
		{"due schedules", fmt.Sprintf(selectDueSchedules, ""), "pawl_schedules", "due"},
		{"schedules that wait", selectReady + fmt.Sprintf(waitsReady, "$1", "$2"), "pawl_runs", "pkey"},
		{"lock schedules", fmt.Sprintf(lockSchedules, params(1, 64)), "pawl_schedules", "pkey"},
		{"save schedules", saveText(64), "pawl_schedules", "pkey"},
		{"open occurrences", fmt.Sprintf(selectOpenOccurrences, params(1, 64)), "pawl_occurrences", "open"},
		{"occurrences ahead", fmt.Sprintf(selectAhead, params(1, 64)), "pawl_occurrences", "pkey"},
		{"live runs of occurrences", fmt.Sprintf(selectOpenOccurrences, params(1, 64)), "pawl_runs", "lineage"},
		{"first runs of occurrences", fmt.Sprintf(selectOpenOccurrences, params(1, 64)), "pawl_runs", "pkey"},
		{"close occurrences", closeText(64), "pawl_occurrences", ""},
		{"move occurrence", moveOccurrence, "pawl_occurrences", "pkey"},
		{"ledger", selectOccurrences, "pawl_occurrences", "pkey"},
		{"ledger within", selectWithin, "pawl_occurrences", "range"},
		{"triggered", selectTriggered, "pawl_occurrences", "trigger"},
		{"old occurrences", selectOldOccurrences, "pawl_occurrences", "age"},
		{"delete occurrences", deleteOccurrences, "pawl_occurrences", "age"},
		{"live runs", live.text(selectRuns, byRun, 10), "pawl_runs", ""},
	} {
		hot = append(hot, Hot{Name: h[0], Text: h[1], Table: h[2], Index: h[3]})
	}
	hot = append(hot, s.hotWrites()...)
	for i := range hot {
		hot[i].Text = s.texts.get(hot[i].Text)
	}
	return hot
}

// hotWrites are the statements of Write.
func (s *Store) hotWrites() []Hot {
	result := shape{set: 1<<0 | 1<<1 | 1<<2 | 1<<3, relative: 0}
	if s.d.Send == nil {
		return []Hot{
			{Name: "write: fence", Text: rowFence, Table: "pawl_runs", Index: "pkey"},
			{Name: "write: settle", Text: rowSettleOf(shape{set: 0xff}), Table: "pawl_steps", Index: "pkey"},
			{Name: "write: end", Text: rowEnd, Table: "pawl_runs", Index: "pkey"},
			{Name: "write: open steps", Text: rowEnd, Table: "pawl_steps", Index: "pkey"},
		}
	}
	var hot []Hot
	for _, f := range []struct {
		name, table string
		form        *form
	}{
		{"fence", "pawl_runs", &batchFence}, {"settle", "pawl_steps", &batchSettle}, {"end", "pawl_runs", &batchEnd},
		{"open steps", "pawl_steps", &batchEnd}, {"keys", "pawl_keys", &batchKeys}, {"insert", "", arrayInsert(result)},
		{"start", "", &batchStart}, {"starts alone", "", &aloneStart},
	} {
		for _, even := range []bool{false, true} {
			h := Hot{Name: fmt.Sprintf("write: %s, even %t", f.name, even), Text: f.form.sql(even), Table: f.table}
			if f.table != "" {
				h.Index = "pkey"
			}
			hot = append(hot, h)
		}
	}
	hot = append(hot, []Hot{
		{Name: "write: fenced insert", Text: fenced(result), Table: "pawl_runs", Index: "pkey"},
		{Name: "claim due, sent", Text: claimText(claimShape{pairs: 2, ways: "\x00\x00\x01"}), Table: "pawl_runs", Index: "claim"},
		{Name: "claim due and lost, sent", Text: claimText(claimShape{pairs: 2, ways: "\x00\x01", lost: true}), Table: "pawl_runs", Index: "owner"},
		{Name: "claim from a backlog, sent", Text: claimText(claimShape{pairs: 1, ways: "\x00", from: true}), Table: "pawl_runs", Index: "claim"},
		{Name: "take, sent", Text: claimText(claimShape{pairs: 2, ways: "\x00\x01", lost: true}), Table: "pawl_runs", Index: "row"},
	}...)
	for i := range hot {
		hot[i].Sent = true
	}
	return hot
}

// Versions is what this build's schema has, and its texts by file.
func Versions() (int64, map[string]string, error) {
	all, err := steps()
	texts := make(map[string]string)
	files, _ := migrations.ReadDir("migrations")
	for i, f := range files {
		texts[f.Name()] = all[i].text
	}
	return int64(len(all)), texts, err
}

// HasOf lists the workers whose versions the store remembers.
func (s *Store) HasOf() []pawl.WorkerID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.has))
}

// PruneOn looks and deletes as Prune does, in one transaction of the caller's.
func (s *Store) PruneOn(ctx context.Context, conn pawl.Conn, p pawl.PruneTerms) (done pawl.Pruned, err error) {
	t := &txn{s: s, c: conn}
	due, err := t.pruneDue(ctx, p)
	if err == nil && (len(due.lineages) > 0 || due.keys || due.acts) {
		err = t.prune(ctx, p, due, &done)
	}
	return done, err
}

// RowTexts are the statements by which a database inside the process writes journals, row by row.
func (s *Store) RowTexts() map[string]string {
	var sh shaper
	if err := putStep(&pawl.StepRow{Run: "r", Name: "n", Kind: fault.KindOnce, State: pawl.StepInFlight, Attempt: 1}, &sh); err != nil {
		panic(err)
	}
	return map[string]string{"fence": s.texts.get(rowFence), "start": s.texts.get(rowStart), "insert": shapeText{shape: sh.shape, kind: fault.KindOnce, state: pawl.StepInFlight}.insert(sh.shape),
		"settle": rowSettleOf(shape{set: 0xff}),
		"end":    s.texts.get(rowEnd), "item": insertItem}
}

// Setting reads one of PostgreSQL's, as the transaction has it.
func Setting(ctx context.Context, tx pawl.Txn, name string) (value string, err error) {
	_, err = tx.(*txn).row(ctx, `SELECT current_setting($1)`, []any{name}, []any{&value})
	return value, err
}
