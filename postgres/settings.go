package postgres

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/pawlrun/pawl"
)

// What the server says about its settings. reset_val is what a connection begins with, whatever this one has set since.
const selectSettings = `SELECT current_setting('server_version_num')::bigint, current_setting('server_version'),
	current_setting('fsync'), current_setting('full_page_writes'),
	(SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'),
	current_setting('synchronous_standby_names'),
	(SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_isolation'),
	(SELECT reset_val FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout')::bigint,
	(SELECT count(*) FROM pg_stat_replication), pg_is_in_recovery(),
	current_setting('autovacuum') = 'on' AND current_setting('track_counts') = 'on' AND NOT EXISTS (SELECT 1 FROM pg_class
		WHERE relname LIKE 'pawl\_%' AND pg_table_is_visible(oid) AND reloptions && ARRAY['autovacuum_enabled=false', 'autovacuum_enabled=off'])`

// settings looks for what weakens the guarantees. Most of it is mended in each transaction; it is said because other
// programs on the same server do not do that.
func settings(ctx context.Context, db *sql.DB) ([]pawl.Finding, error) {
	var version, idle, standbys int64
	var name, fsync, fullPages, commit, syncStandbys, isolation string
	var standby, vacuums bool
	err := db.QueryRowContext(ctx, selectSettings).Scan(&version, &name, &fsync, &fullPages, &commit, &syncStandbys, &isolation,
		&idle, &standbys, &standby, &vacuums)
	if err != nil {
		return nil, err
	}
	var found []pawl.Finding
	warn := func(when bool, text, advice string) {
		if when {
			found = append(found, pawl.Finding{Level: "warn", Rule: "setting", Text: text, Advice: advice})
		}
	}
	const turnOn = "set it to on and restart the server"
	warn(version < 15_00_00, fmt.Sprintf("the server is PostgreSQL %s", name), "upgrade to PostgreSQL 15 or later")
	warn(fsync != "on", "fsync is off: a crash of the machine can destroy the database", turnOn)
	warn(fullPages != "on", "full_page_writes is off: a crash of the machine can destroy the database", turnOn)
	warn(commit != "on" && commit != "remote_apply",
		fmt.Sprintf("synchronous_commit is %s by default; Pawl's transactions turn it on, yours may not", commit), "set it to on")
	warn(standbys > 0 && syncStandbys == "",
		fmt.Sprintf("%d standbys replicate asynchronously: a failover loses the last commits, and steps may run twice", standbys),
		"name a synchronous standby in synchronous_standby_names; after a failover run pawl doctor --after-restore")
	warn(isolation != "read committed",
		fmt.Sprintf("default_transaction_isolation is %s; Pawl's transactions are READ COMMITTED, yours may be aborted more often", isolation),
		"nothing to do unless your own transactions suffer")
	warn(idle == 0, "idle_in_transaction_session_timeout is 0: a frozen program can hold a run's lock for ever",
		"set it for the role; Pawl's own transactions do that for themselves")
	warn(!vacuums, "autovacuum is off, in the server or for a table of Pawl's: what changed or deleted rows took up is not used again, and claims get slower",
		"turn on autovacuum and track_counts, and reset the table's autovacuum_enabled")
	warn(standby, "this server is a standby and takes no writes", "point the URL at the primary")
	return found, nil
}
