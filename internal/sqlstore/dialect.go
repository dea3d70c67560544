package sqlstore

import (
	"context"
	"database/sql"
	"strings"
	"sync"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/pawlrun/pawl"
)

// Dialect is everything in which the two databases differ.
type Dialect struct {
	// Name is what [pawl.Store] reports, and Goose what the migrator calls it.
	Name  string
	Goose goose.Dialect
	// Fragments replace {name} in the query texts.
	Fragments Fragments
	// Write is the isolation of write transactions, Read that of snapshots.
	Write, Read sql.IsolationLevel
	// OneWriter says that the database has one write lock for all.
	OneWriter bool
	// Send runs the calls in one write transaction and, being sent as a whole, one round trip. ctx ends only if it has to be
	// given up. Nil where there is no server to go to.
	Send func(ctx context.Context, conn *sql.Conn, calls []Call) error
	// SendBatch is Send for statements with arrays, on a connection that it takes, or behind another batch on the one that this
	// has. It returns the first column of the first answer, as text. An error of take comes back as it is.
	SendBatch func(ctx context.Context, take Take, statements []Batch) (string, error)
	// Begin runs first in every write transaction. Nil for none.
	Begin func(ctx context.Context, tx *sql.Tx) error
	// Native is a transaction that nobody else uses, past database/sql. Nil if there is no such thing.
	Native func(conn *sql.Conn, tx *sql.Tx) pawl.Conn
	// Domains says that a type can have a constraint.
	Domains bool
	// LockTopic locks the number $1 until the transaction ends and gives the transaction's isolation. "" where a write
	// transaction is alone anyway.
	LockTopic string
	// Steady keeps the planner of a transaction to look-ups, whatever the tables were like when a statement was planned. ""
	// if it knows nothing else.
	Steady string
	// Classify says what an error of the driver means for a transaction.
	Classify func(error) Class
	// CommitUnknown reports whether a COMMIT that returned this error may have been applied.
	CommitUnknown func(error) bool
	// Settings looks at how the database is set up.
	Settings func(ctx context.Context, db *sql.DB) ([]pawl.Finding, error)
	// GiveBack gives a statement that returns a bounded part of the file's free space to the system, "" if there is too
	// little to be worth it. Nil where the server deals with free space by itself.
	GiveBack func(ctx context.Context, db *sql.DB) (statement string, err error)
	// Hint wakes those who Listen in other processes. Nil where they see what changes by themselves.
	Hint func(ctx context.Context, db *sql.DB) error
	// Listen calls wake once it listens, and for every hint from then on. It ends with ctx, or with what it listens on;
	// an error that wraps [errors.ErrUnsupported] means that it never will. others gives a number that is another one when
	// somebody but this store has committed, where there is a single writer. Nil if nobody hints.
	Listen func(ctx context.Context, others func(context.Context) (int64, error), wake func()) error
	// Locker lets one migrator in at a time. Nil if the database's own locks suffice.
	Locker func() (lock.Locker, error)
	// MigrateHint ends the error about a schema that is missing or old, with what to do.
	MigrateHint string
}

// Take gives a connection that nobody uses; give returns it to its pool.
type Take func() (conn *sql.Conn, give func(), err error)

// Fragments are the pieces of SQL that differ. Each is put into the texts where they have its name in braces.
type Fragments struct {
	Now      string // {now}: the store's clock, in microseconds
	LeaseNow string // {leasenow}: the clock that leases are measured by, in microseconds
	Clock    string // {clock}: what tells this lease clock from another that its times cannot be compared with
	Server   string // {server}: changes when another server, or a restarted one, answers
	Lock     string // {lock}: locks the selected rows
	Skip     string // {skip}: the same, leaving out rows that others have locked
	ID       string // {id}: type of a UUID
	Bytes    string // {bytes}: type of a payload
	C        string // {c}: collation by bytes
	Row      string // {row}: by what a row that is locked is found again soonest
	AnyOf    string // {anyof}…{end}: an IN over a sub-select that is a look-up for each of its rows
	End      string
	// {byid}, {bydue}, {byowner}, {byslot}: after pawl_runs, insists on the primary key or on another index. (SQLite compares the
	// parameters with the predicates of partial indexes otherwise, and so plans a statement anew for each value.)
	ByID    string
	ByDue   string
	ByOwner string
	BySlot  string
	ByRun   string // {byrun}: the same after pawl_steps
	ByKey   string // {bykey}: the same after pawl_keys
	Hex     string // {hex}…{endhex}: bytes as hexadecimal digits
	EndHex  string
	Stamp   string // {stamp}…{stamped}: microseconds as a timestamp for people
	Stamped string
	Table   string // {table}: a query that gives the number of tables called $1
	// {clustered}: after a CREATE TABLE, for one that is read in the order of its primary key.
	Clustered string
	Churn     string // {churn}: after a CREATE TABLE, for one whose rows change much more often than its size
}

// Class is what an error means for the transaction it came from.
type Class int

// The classes.
const (
	Other    Class = iota
	Aborted        // rolled back for reasons of concurrency: run it again
	Locked         // the same, because a lock was not to be had in time
	SameRow        // a row with that primary key is there
	SameMark       // another unique index has an equal entry
	Unusable       // this connection's server does not take writes: do not keep the connection
	Refused        // a commit that the server turned into a rollback
	Invalid        // a value that the database does not take
)

// texts gives query texts with the dialect's fragments in place, each replaced once.
type texts struct {
	r     *strings.Replacer
	ready sync.Map // const text → text for the database
}

func newTexts(f Fragments) *texts {
	return &texts{r: strings.NewReplacer(
		"{now}", f.Now, "{leasenow}", f.LeaseNow, "{clock}", f.Clock, "{server}", f.Server, "{lock}", f.Lock, "{skip}", f.Skip,
		"{id}", f.ID, "{bytes}", f.Bytes, "{c}", f.C, "{row}", f.Row, "{anyof}", f.AnyOf, "{end}", f.End, "{byid}", f.ByID, "{bydue}", f.ByDue, "{byowner}", f.ByOwner, "{byslot}", f.BySlot, "{byrun}", f.ByRun, "{bykey}", f.ByKey,
		"{hex}", f.Hex, "{endhex}", f.EndHex, "{stamp}", f.Stamp, "{stamped}", f.Stamped, "{table}", f.Table, "{churn}", f.Churn, "{clustered}", f.Clustered,
	)}
}

func (t *texts) get(query string) string {
	if q, ok := t.ready.Load(query); ok {
		return q.(string)
	}
	q := t.r.Replace(query)
	t.ready.Store(query, q)
	return q
}
