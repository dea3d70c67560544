// Package pgset has the settings that a transaction on PostgreSQL needs where the connection's own are weaker. They are
// made for the transaction only: behind a pooler the session is somebody else's.
package pgset

import (
	"maps"
	"slices"
	"strings"
)

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

// Hot is for transactions that many runs share and for claims. The planner may choose nothing that reads a whole table or index
// where a look-up serves, for a statement that is planned while the tables are small keeps its plan. And a row that somebody
// is adding or changing is not waited for: one run must not hold up the others. A statement that is alone begins no transaction,
// so the isolation is here as well.
var Hot = map[string]string{
	"default_transaction_isolation": "read committed",

	"enable_hashjoin":  "off",
	"enable_mergejoin": "off",
	"enable_seqscan":   "off",
	"jit":              "off",
	"plan_cache_mode":  "force_generic_plan",
	"lock_timeout":     "100ms",
}

// SetHot makes these settings, SetSteady only those for the planner.
var (
	SetHot    = set(slices.Sorted(maps.Keys(Hot)))
	SetSteady = set([]string{"enable_hashjoin", "enable_mergejoin", "enable_seqscan", "jit", "plan_cache_mode"})
)

func set(names []string) string {
	var all []string
	for _, name := range names {
		all = append(all, "set_config('"+name+"', '"+Hot[name]+"', true)")
	}
	return strings.Join(all, ", ")
}
