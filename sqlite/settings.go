package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/host"
)

// autoVacuumIncremental is what PRAGMA auto_vacuum reads if free pages may be given back in parts.
const autoVacuumIncremental = 2

// settings looks at the file and at how it was opened.
func settings(ctx context.Context, db *sql.DB, name string) ([]pawl.Finding, error) {
	var found []pawl.Finding
	add := func(level, text, advice string) {
		found = append(found, pawl.Finding{Level: level, Rule: "setting", Text: text, Advice: advice})
	}
	var journal, integrity string
	var synchronous, vacuum int
	if err := db.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&journal); err != nil {
		return nil, err
	}
	if err := db.QueryRowContext(ctx, "PRAGMA synchronous").Scan(&synchronous); err != nil {
		return nil, err
	}
	if err := db.QueryRowContext(ctx, "PRAGMA auto_vacuum").Scan(&vacuum); err != nil {
		return nil, err
	}
	if err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&integrity); err != nil {
		return nil, err
	}
	memory := name == ":memory:"
	if journal != "wal" && !memory {
		add("warn", fmt.Sprintf("the file's journal mode is %s", journal),
			"open it with sqlite.Open, which sets write-ahead logging; something else has changed it")
	}
	if synchronous < 2 {
		add("error", "synchronous is off or normal: a power failure can take back what was reported as durable",
			"open the file with sqlite.Open")
	}
	if integrity != "ok" {
		add("error", "the file is damaged: "+integrity, "restore a backup, then run pawl doctor --after-restore")
	}
	if vacuum != autoVacuumIncremental && !memory {
		add("warn", "the file never gets smaller: the space of deleted runs is reused, and not given back to the system",
			"if that matters, stop all workers and run sqlite3 FILE 'PRAGMA auto_vacuum=INCREMENTAL; VACUUM'")
	}
	if fsName, yes := host.NetworkFS(filepath.Dir(name)); yes && !memory {
		add("warn", "the file is on a network file system ("+fsName+")", "move it to a local directory, or use PostgreSQL")
	}
	return found, nil
}
