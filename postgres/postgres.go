// Package postgres keeps runs in PostgreSQL 15 or later, through pgx. Any number of workers may share a database.
//
// Guarantees hold while the server loses no commit: a failover needs a synchronous standby. Each write transaction is
// READ COMMITTED and, where the connection's defaults are weaker, sets synchronous_commit and an idle timeout for itself,
// so nothing depends on the session and PgBouncer in transaction mode may stand between; below PgBouncer 1.21 add
// default_query_exec_mode=cache_describe to the URL.
package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/pgset"
	"github.com/pawlrun/pawl/internal/sqlstore"
)

// Options configures [Open]. Nil and the zero value are valid.
type Options struct {
	// Migrate creates the schema, or brings it up to date. Without it a database whose schema is missing or old is
	// refused with [pawl.ErrSchema]. It needs the right to create tables and types: columns of a few words are domains, which
	// a dump of a schema (pg_dump -n) or of the database has in it, and one of single tables (pg_dump -t) has not.
	Migrate bool
	// MaxConns bounds the connections, but for those kept for the engine's own use: three for shared writes and claims, one
	// for the renewal of leases and, in a process with a worker, one that listens. Zero means 16.
	MaxConns int
	// NoListen keeps workers from listening for the hints (NOTIFY) by which other processes say that runs are due, and
	// saves their connection: such runs are then found by polling (pawl.Options.Poll). Hints are sent all the same. It is
	// for PgBouncer in transaction mode, through which no hint arrives, without any error.
	NoListen bool
	// Hooks is for this module's own tests; a program outside it cannot make one.
	Hooks *hooks.Store
}

func (o Options) maxConns() int {
	if o.MaxConns == 0 {
		return 16
	}
	return o.MaxConns
}

// Store is a [pawl.Store] on a PostgreSQL database.
type Store struct {
	*sqlstore.Store
}

// Open connects to the database that url names, a postgres:// URL or a keyword string. It fails if the server cannot be
// reached, is older than 15, takes no writes, or lacks the schema (see Options.Migrate). No error has the password in it.
func Open(ctx context.Context, url string, o *Options) (*Store, error) {
	if o == nil {
		o = &Options{}
	}
	if o.MaxConns < 0 {
		return nil, fmt.Errorf("open PostgreSQL database: Options.MaxConns is %d: want 0 (16) or more", o.MaxConns)
	}
	cfg, err := parse(url)
	if err != nil {
		return nil, fmt.Errorf("open PostgreSQL database: %w", err)
	}
	s, err := open(ctx, cfg, o)
	if err != nil {
		return nil, fmt.Errorf("open PostgreSQL database %s: %w", place(cfg), err)
	}
	return s, nil
}

// hotConns are two for shared writes and one for claims.
const hotConns = 3

// maxLifetime bounds the age of connections, so that a new primary is found also if nothing ever fails on the old one.
const maxLifetime = 30 * time.Minute

func open(ctx context.Context, cfg *pgx.ConnConfig, o *Options) (*Store, error) {
	var weak defaults
	if err := tune(ctx, cfg, &weak); err != nil {
		return nil, err
	}
	pool := func(cfg *pgx.ConnConfig, conns int, look func(context.Context, *pgx.Conn) error) *sql.DB {
		db := sql.OpenDB(stdlib.GetConnector(*cfg, stdlib.OptionAfterConnect(look)))
		db.SetMaxIdleConns(conns)
		db.SetConnMaxIdleTime(5 * time.Minute)
		db.SetConnMaxLifetime(maxLifetime)
		return db
	}
	db, lease := pool(cfg, o.maxConns(), weak.look), pool(cfg, 1, weak.look)
	hot := pool(heated(ctx, cfg), hotConns, weak.lookHot)
	lease.SetMaxOpenConns(1)
	hot.SetMaxOpenConns(hotConns)
	h := hooks.Store{}
	if o.Hooks != nil {
		h = *o.Hooks
	}
	d := dialect(h, &weak)
	if !o.NoListen {
		d.Listen = listener{cfg, listenQuiet}.listen
	}
	s := &Store{sqlstore.New(d, db, db, lease, hot)}
	if err := s.setUp(ctx, o.Migrate, h); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	db.SetMaxOpenConns(o.maxConns()) // not before: the migrator needs three
	return s, nil
}

func (s *Store) setUp(ctx context.Context, migrate bool, h hooks.Store) error {
	if h.Offset {
		if err := s.AddTestClock(ctx); err != nil {
			return err
		}
	}
	if migrate {
		return s.Migrate(ctx)
	}
	return s.CheckSchema(ctx)
}

// DB is the store's pool, for the user's own tables and for [pawl.InTx].
func (s *Store) DB() *sql.DB { return s.Writer() }

// defaults is in what the connections' own settings are weaker than the protocol needs, and what is known of their statements.
type defaults struct {
	commit atomic.Bool // a commit may be reported before it is durable
	idle   atomic.Bool // an idle transaction is never ended
	hot    atomic.Bool // a connection for shared writes has not what pgset.Hot says

	line  line
	names sync.Map     // text of a statement → the name that it is prepared by
	named atomic.Int64 // how many have one
}

const selectDefaults = `SELECT current_setting('server_version_num')::bigint, current_setting('server_version'),
	current_setting('synchronous_commit'), current_setting('idle_in_transaction_session_timeout')`

// look notes what a connection that has just been opened lacks.
func (d *defaults) look(ctx context.Context, conn *pgx.Conn) error {
	var version int64
	var name, commit, idle string
	if err := conn.QueryRow(ctx, selectDefaults).Scan(&version, &name, &commit, &idle); err != nil {
		return fmt.Errorf("read the connection's settings: %w", err)
	}
	if version < 15_00_00 {
		return fmt.Errorf("the server is PostgreSQL %s: Pawl needs 15 or later", name)
	}
	if commit != "on" && commit != "remote_apply" {
		d.commit.Store(true)
	}
	if idle == "0" {
		d.idle.Store(true)
	}
	return nil
}

// settings is the statement that sets, for a transaction, what the connection's defaults lack; "" for none. Never for the
// session: behind a pooler that is somebody else's.
func (d *defaults) settings(hot bool) string {
	var set []string
	if d.commit.Load() {
		set = append(set, pgset.SetCommit)
	}
	if d.idle.Load() {
		set = append(set, pgset.SetIdle)
	}
	if hot {
		set = append(set, pgset.SetHot)
	}
	if set == nil {
		return ""
	}
	return "SELECT " + strings.Join(set, ", ")
}

func (d *defaults) begin(ctx context.Context, tx *sql.Tx) error {
	set := d.settings(false)
	if set == "" {
		return nil
	}
	_, err := tx.ExecContext(ctx, set)
	return err
}

// tune makes sure that the server can be used, and adds to cfg the settings that our connections start with: the idle
// timeout, where there is none, and no sequential scan where an index serves, because statements that are planned while
// the tables are small keep that plan. A pooler that refuses such parameters gets none: the timeout is then set in each
// transaction, and the planner's part is for ALTER ROLE.
func tune(ctx context.Context, cfg *pgx.ConnConfig, weak *defaults) error {
	var plain defaults
	if err := try(ctx, cfg, &plain); err != nil {
		return err
	}
	tuned := cfg.Copy()
	for name, value := range map[string]string{"enable_seqscan": "off", "jit": "off"} {
		if _, set := tuned.RuntimeParams[name]; !set {
			tuned.RuntimeParams[name] = value
		}
	}
	if plain.idle.Load() {
		tuned.RuntimeParams["idle_in_transaction_session_timeout"] = pgset.IdleTimeout
	}
	switch err := try(ctx, tuned, weak); {
	case err == nil:
		*cfg = *tuned
	case sqlState(err) == "":
		return err // the server is gone
	}
	return nil
}

// heated is cfg for the connections of shared writes and claims, with the settings of pgset.Hot from the start; without, where
// a pooler refuses such parameters.
func heated(ctx context.Context, cfg *pgx.ConnConfig) *pgx.ConnConfig {
	hot := cfg.Copy()
	maps.Copy(hot.RuntimeParams, pgset.Hot)
	if try(ctx, hot, new(defaults)) != nil {
		return cfg
	}
	return hot
}

const selectHot = `SELECT current_setting('enable_mergejoin') = 'on' OR current_setting('lock_timeout') = '0'
	OR current_setting('default_transaction_isolation') <> 'read committed'`

// lookHot is look for such a connection: a pooler may have taken the parameters and done nothing with them.
func (d *defaults) lookHot(ctx context.Context, conn *pgx.Conn) error {
	if err := d.look(ctx, conn); err != nil {
		return err
	}
	var lacks bool
	if err := conn.QueryRow(ctx, selectHot).Scan(&lacks); err != nil {
		return fmt.Errorf("read the connection's settings: %w", err)
	}
	if lacks {
		d.hot.Store(true)
	}
	return nil
}

func try(ctx context.Context, cfg *pgx.ConnConfig, weak *defaults) (err error) {
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return weak.look(ctx, conn)
}

// sqlState is the server's error code, "" if err did not come from a server.
func sqlState(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}
