// Package pgset has the settings that a transaction on PostgreSQL needs where the connection's own are weaker. They are
// made for the transaction only: behind a pooler the session is somebody else's.
package pgset

// IdleTimeout ends a transaction whose process has frozen while it held a lock that other workers wait for.
const IdleTimeout = "60s"

// The settings, as expressions for a SELECT, and the whole statement.
const (
	SetCommit = `set_config('synchronous_commit', 'on', true)`
	SetIdle   = `set_config('idle_in_transaction_session_timeout', '` + IdleTimeout + `', true)`

	// Strengthen looks at the settings and makes those that lack.
	Strengthen = `SELECT
	CASE WHEN current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN ` + SetCommit + ` END,
	CASE WHEN current_setting('idle_in_transaction_session_timeout') = '0' THEN ` + SetIdle + ` END`
)

// Plans allows the planner nothing in this transaction that reads a whole table or index where a look-up serves: a statement
// that is planned while the tables are small keeps its plan. It is a select list.
const Plans = `set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
	set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true)`

// LockTimeout bounds, in a transaction that many runs share, the wait for a row that somebody is adding or changing. One
// run must not hold up the others.
const LockTimeout = "100ms"

// SetLockTimeout makes that setting.
const SetLockTimeout = `set_config('lock_timeout', '` + LockTimeout + `', true)`
