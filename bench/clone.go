package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// cloned is a table whose one row is copied; set gives the columns that differ, by name. "" leaves a column to its
// default.
type cloned struct {
	table string
	set   map[string]string
}

// clonedTables are the tables of a peer that hold a finished job. id stands for the copy's id.
func clonedTables(peer string) ([]cloned, error) {
	switch peer {
	case "pawl":
		return []cloned{
			{"pawl_runs", map[string]string{"id": "i.id", "lineage": "i.id"}},
			{"pawl_steps", map[string]string{"run": "i.id"}},
		}, nil
	case "floor", "floor-batch":
		return []cloned{
			{"runs", map[string]string{"id": "i.id"}},
			{"steps", map[string]string{"run": "i.id"}},
		}, nil
	case "river":
		return []cloned{{"river_job", map[string]string{"id": ""}}}, nil
	}
	return nil, fmt.Errorf("backlog, %s: %w", peer, errCannot)
}

// fillFinished copies the one finished job until there are j.Finished. Ids rise like those of version 7 do, from a day
// ago on.
func fillFinished(ctx context.Context, j job) (err error) {
	tables, err := clonedTables(j.Peer)
	if err != nil {
		return err
	}
	db, err := openSQL(j.Target, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	pg := j.Target.URL != ""
	first := fmt.Sprint(now()/1000 - 86_400_000)
	id := `(lpad(to_hex(` + first + ` + n), 12, '0') || '70008000' || lpad(to_hex(n), 12, '0'))::uuid`
	numbers := `SELECT n, ` + id + ` AS id FROM generate_series(1::bigint, ` + fmt.Sprint(j.Finished-1) + `) n`
	if !pg {
		hex := `printf('%012x70008000%012x', ` + first + ` + n, n)`
		id = `unhex(` + hex + `)`
		if j.Peer == "pawl" {
			id = `printf('%08x-%04x-7000-8000-%012x', (` + first + ` + n) >> 16, (` + first + ` + n) & 65535, n)`
		}
		numbers = `WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < ` + fmt.Sprint(j.Finished-1) + `)
			SELECT n, ` + id + ` AS id FROM c`
	}
	if err := execAll(ctx, db, `CREATE TABLE bench_ids AS `+numbers); err != nil {
		return err
	}
	for _, c := range tables {
		if err := c.copy(ctx, db, pg); err != nil {
			return fmt.Errorf("copy the row of %s: %w", c.table, err)
		}
	}
	if err := execAll(ctx, db, `DROP TABLE bench_ids`); err != nil {
		return err
	}
	if pg {
		return execAll(ctx, db, `VACUUM ANALYZE`, `CHECKPOINT`)
	}
	return execAll(ctx, db, `ANALYZE`, `PRAGMA wal_checkpoint(TRUNCATE)`)
}

func (c cloned) copy(ctx context.Context, db *sql.DB, pg bool) error {
	columns, err := columnsOf(ctx, db, c.table, pg)
	if err != nil {
		return err
	}
	var names, values []string
	for _, name := range columns {
		value, other := c.set[name]
		switch {
		case !other:
			value = "t." + name
		case value == "":
			continue
		}
		names, values = append(names, name), append(values, value)
	}
	return execAll(ctx, db, fmt.Sprintf(`INSERT INTO %s (%s) SELECT %s FROM (SELECT * FROM %s LIMIT 1) t CROSS JOIN bench_ids i ORDER BY i.n`,
		c.table, strings.Join(names, ", "), strings.Join(values, ", "), c.table))
}

func columnsOf(ctx context.Context, db *sql.DB, table string, pg bool) (names []string, err error) {
	query := `SELECT name FROM pragma_table_info($1)`
	if pg {
		query = `SELECT column_name::text FROM information_schema.columns
			WHERE table_schema = current_schema() AND table_name = $1 AND is_generated = 'NEVER'`
	}
	rows, err := db.QueryContext(ctx, query, table)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return slices.Clip(names), rows.Err()
}
