package fault

import (
	"database/sql"
	"database/sql/driver"
	"strings"
)

// fromSQLState recognises any error that carries an SQLSTATE, as those of pgx and lib/pq do. Whether a
// COMMIT was under way is not in it, so a lost session is outcome_unknown here; the owner of the transaction
// may know better.
func fromSQLState(err error) (Fault, bool) {
	x, ok := match[interface{ SQLState() string }](err)
	if !ok {
		return Fault{}, false
	}
	code := x.SQLState()
	if len(code) != 5 {
		return Fault{}, false
	}
	if f, ok := sqlStateCode(code); ok {
		return f, true
	}
	return sqlStateClass(code[:2])
}

// sqlStateCode has the codes that differ from their class.
func sqlStateCode(code string) (Fault, bool) { //nolint:cyclop // a table: one case per row
	switch code {
	case "40001":
		return ReasonSerialization.fault(), true
	case "40P01":
		return ReasonDeadlock.fault(), true
	case "40002":
		return ReasonConstraint.fault(), true
	case "08007", "40003":
		return ReasonCommitUnknown.fault(), true
	case "55P03", "55006":
		return ReasonLocked.fault(), true
	case "57014", "25P03", "25P04":
		return ReasonStatementTimeout.fault(), true
	case "25006":
		return ReasonReadOnly.fault(), true
	case "08001":
		return ReasonUnreachable.fault(), true
	case "57P03", "53300":
		return ReasonUnavailable.fault(), true
	case "08004":
		return Fault{Class: AccessDenied, Reason: ReasonAuthentication, Outcome: OutcomeNotSent}, true
	case "08P01":
		return ReasonProtocolViolation.fault(), true
	case "57P01", "57P05":
		return ReasonAdminShutdown.fault(), true
	case "57P02":
		return ReasonCrashShutdown.fault(), true
	case "23505", "23P01":
		return ReasonUniqueViolation.fault(), true
	case "42501":
		return ReasonAuthorization.fault(), true
	case "53100":
		return ReasonStorageFull.fault(), true
	case "XX001", "XX002":
		return ReasonStorageCorrupt.fault(), true
	}
	return Fault{}, false
}

// sqlStateClass has the classes whose codes all mean the same to a queue.
func sqlStateClass(class string) (Fault, bool) {
	switch class {
	case "08":
		return ReasonConnectionLost.fault(), true
	case "22":
		return ReasonMalformed.fault(), true
	case "23", "44":
		return ReasonConstraint.fault(), true
	case "21", "24", "26", "2F", "34":
		return ReasonMalformed.fault(), true
	case "40":
		return ReasonSerialization.fault(), true
	case "55":
		return ReasonPrecondition.fault(), true
	case "28":
		return Fault{Class: AccessDenied, Reason: ReasonAuthentication, Outcome: OutcomeNotSent}, true
	case "42", "3D", "3F":
		return ReasonSchema.fault(), true
	case "0A":
		return ReasonUnsupported.fault(), true
	case "53":
		return ReasonOverloaded.fault(), true
	case "54":
		return ReasonTooLarge.fault(), true
	}
	return Fault{}, false
}

// fromSQLite recognises the errors of modernc.org/sqlite. A method Code() int is common, so only types from a
// package with sqlite in its path count.
func fromSQLite(err error) (Fault, bool) { //nolint:cyclop // a table: one case per row
	x, ok := err.(interface{ Code() int })
	if !ok || !fromPackage(err, "sqlite") {
		return Fault{}, false
	}
	code := x.Code()
	switch code { // extended codes that differ from their primary
	case 517: // BUSY_SNAPSHOT: busy_timeout does not apply
		return ReasonStaleSnapshot.fault(), true
	case 1555, 2067, 2579: // CONSTRAINT_PRIMARYKEY, _UNIQUE, _ROWID
		return ReasonUniqueViolation.fault(), true
	}
	switch code & 0xff {
	case 3, 23: // PERM, AUTH
		return ReasonAuthorization.fault(), true
	case 4: // ABORT: rolled back
		return ReasonConflict.fault(), true
	case 5, 6, 15: // BUSY, LOCKED, PROTOCOL
		return ReasonLocked.fault(), true
	case 7: // NOMEM
		return ReasonOverloaded.fault(), true
	case 8: // READONLY: a right of the file or its directory, which does not change by itself
		return ReasonAuthorization.fault(), true
	case 9: // INTERRUPT
		return ReasonStatementTimeout.fault(), true
	case 10: // IOERR, at worst while committing
		return ReasonCommitUnknown.fault(), true
	case 11, 26: // CORRUPT, NOTADB
		return ReasonStorageCorrupt.fault(), true
	case 13: // FULL
		return ReasonStorageFull.fault(), true
	case 1, 17: // ERROR, SCHEMA: no such table, bad SQL
		return ReasonSchema.fault(), true
	case 18: // TOOBIG
		return ReasonTooLarge.fault(), true
	case 19: // CONSTRAINT
		return ReasonConstraint.fault(), true
	case 20, 21, 25: // MISMATCH, MISUSE, RANGE
		return ReasonMalformed.fault(), true
	}
	return Fault{}, false
}

// fromDatabase recognises what database/sql itself returns, and what pgx proves.
func fromDatabase(err error) (Fault, bool) {
	switch err {
	case driver.ErrBadConn, sql.ErrConnDone: // drivers return ErrBadConn also after a statement was sent
		return ReasonConnectionLost.fault(), true
	}
	if x, ok := err.(interface{ SafeToRetry() bool }); ok && fromPackage(err, "/pgx/") && x.SafeToRetry() {
		return Fault{Class: Transient, Reason: ReasonConnectionLost, Outcome: OutcomeNotSent}, true
	}
	return Fault{}, false
}

// fromPackage reports whether the concrete type of err comes from a package whose path contains part.
func fromPackage(err error, part string) bool { return strings.Contains(fromPath(err), part) }
