package sqlstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/pawlrun/pawl"
)

// pageSize applies the bounds that [pawl.RunQuery] and [pawl.InboxQuery] document.
func pageSize(limit int) int64 {
	if limit <= 0 {
		return 100
	}
	return int64(min(limit, 1000))
}

// filter collects the conditions of a list. A condition has its parameter in place of %s.
type filter struct {
	where []string
	args  []any
}

func (f *filter) add(condition string, arg any) {
	f.args = append(f.args, arg)
	f.where = append(f.where, fmt.Sprintf(condition, "$"+strconv.Itoa(len(f.args))))
}

// text is the WHERE clause with what follows it; the last parameter is the limit.
func (f *filter) text(head, order string, limit int) string {
	where := ""
	if len(f.where) > 0 {
		where = " WHERE " + strings.Join(f.where, " AND ")
	}
	f.args = append(f.args, pageSize(limit))
	return head + where + order + " LIMIT $" + strconv.Itoa(len(f.args))
}

const (
	selectRuns = `SELECT ` + runColumns + ` FROM pawl_runs`
	byRun      = ` ORDER BY id DESC`

	// Every run of a key is of the lineage that the key row names: the first by its id, the others by pawl_runs_lineage.
	runsOfKey = `id {anyof}SELECT lineage FROM pawl_keys WHERE product_key = %[1]s
	UNION ALL SELECT id FROM pawl_runs WHERE lineage {anyof}SELECT lineage FROM pawl_keys WHERE product_key = %[1]s{end} AND lineage <> id{end}`
	runsOfLineage = `id {anyof}SELECT id FROM pawl_runs WHERE id = %[1]s
	UNION ALL SELECT id FROM pawl_runs WHERE lineage = %[1]s AND lineage <> id{end}`
)

// ListRuns walks the primary key backwards; ids are of version 7, so that is newest first. Live states only are read from
// pawl_runs_live.
func (s *Store) ListRuns(ctx context.Context, q pawl.RunQuery) ([]pawl.RunRow, error) {
	var f filter
	if len(q.States) > 0 {
		live := true
		names := make([]string, len(q.States))
		for i, state := range q.States {
			if _, err := pawl.ParseRunState(string(state)); err != nil {
				return nil, fmt.Errorf("list runs: %w", err)
			}
			names[i] = "'" + string(state) + "'"
			live = live && !state.Terminal()
		}
		f.where = append(f.where, "state IN ("+strings.Join(names, ", ")+")")
		if live {
			f.where = append(f.where, "ended IS NULL")
		}
	}
	if q.Workflow != "" {
		f.add("workflow = %s", q.Workflow)
	}
	if q.Key != "" {
		f.add(runsOfKey, string(q.Key))
	}
	if q.Lineage != "" {
		if !isID(q.Lineage) {
			return nil, nil
		}
		f.add(runsOfLineage, string(q.Lineage))
	}
	if q.After != "" {
		if !isID(q.After) {
			return nil, fmt.Errorf("list runs: %q is not a cursor of this list", q.After)
		}
		f.add("id < %s", string(q.After))
	}
	query := f.text(selectRuns, byRun, q.Limit)
	runs, err := listOf(ctx, s.reader(), runDest, query, f.args...)
	if err != nil {
		return nil, fmt.Errorf("list runs: %w", err)
	}
	return runs, nil
}

const (
	selectInbox = `SELECT ` + entryColumns + ` FROM pawl_inbox`
	byEntry     = ` ORDER BY id`
)

// ListInbox walks pawl_inbox_todo, or the primary key for all entries.
func (s *Store) ListInbox(ctx context.Context, q pawl.InboxQuery) ([]pawl.EntryRow, error) {
	var f filter
	if !q.All {
		f.where = append(f.where, "closed IS NULL")
	}
	if q.Run != "" {
		if !isID(q.Run) {
			return nil, nil
		}
		f.add("run = %s", string(q.Run))
	}
	if q.Kind != "" {
		f.add("kind = %s", string(q.Kind))
	}
	if q.After != "" {
		if !isID(q.After) {
			return nil, fmt.Errorf("list inbox: %q is not a cursor of this list", q.After)
		}
		f.add("id > %s", string(q.After))
	}
	query := f.text(selectInbox, byEntry, q.Limit)
	entries, err := list(ctx, s.reader(), scanEntry, query, f.args...)
	if err != nil {
		return nil, fmt.Errorf("list inbox: %w", err)
	}
	return entries, nil
}

const findRuns = `SELECT id FROM pawl_runs WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT 11`

// FindRun reads a range of the primary key.
func (s *Store) FindRun(ctx context.Context, prefix string) (pawl.RunID, error) {
	id, err := s.find(ctx, "run", findRuns, prefix)
	return pawl.RunID(id), err
}

const findEntries = `SELECT id FROM pawl_inbox WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT 11`

// FindEntry reads a range of the primary key.
func (s *Store) FindEntry(ctx context.Context, prefix string) (pawl.EntryID, error) {
	id, err := s.find(ctx, "inbox entry", findEntries, prefix)
	return pawl.EntryID(id), err
}

func (s *Store) find(ctx context.Context, what, query, prefix string) (string, error) {
	prefix = strings.ToLower(prefix)
	if prefix == "" || !isIDPrefix(prefix) {
		return "", fmt.Errorf("%s %q: %w", what, prefix, pawl.ErrNotFound)
	}
	rest := idTemplate[len(prefix):]
	found, err := list(ctx, s.reader(), func(rows pawl.Rows) (id string, err error) {
		err = rows.Scan(&id)
		return id, err
	}, query, prefix+rest, prefix+strings.ReplaceAll(rest, "0", "f"))
	switch {
	case err != nil:
		return "", fmt.Errorf("find %s %q: %w", what, prefix, err)
	case len(found) == 0:
		return "", fmt.Errorf("%s %q: %w", what, prefix, pawl.ErrNotFound)
	case len(found) > 1:
		more := ""
		if len(found) > 10 {
			found, more = found[:10], " and more"
		}
		return "", fmt.Errorf("%s %q could be any of %s%s", what, prefix, strings.Join(found, ", "), more)
	}
	return found[0], nil
}
