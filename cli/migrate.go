package cli

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/spf13/cobra"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/postgres"
	"github.com/pawlrun/pawl/sqlite"
)

func (a *app) migrateCmd() *cobra.Command {
	var url string
	var printOnly bool
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Create the database's tables, or bring them up to date",
		Long: `Create the database's tables, or bring them up to date. A PostgreSQL database is migrated by nothing else, and the role
needs the right to create tables; a SQLite file is also migrated whenever it is opened. Any number may run at once.

With --tx-table URL it makes the table pawl_tx in a database of your own, the one that pawl.TxIn or postgres.Tx steps
write to, and leaves Pawl's database alone. --print prints the statement instead, for a migration tool of your own.`,
		Example: "  " + a.o.name() + " migrate --db postgres://pawl@db/pawl\n  " + a.o.name() + " migrate --tx-table postgres://app@db/shop --print",
		Args:    takes(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case cmd.Flags().Changed("tx-table"):
				return a.makeTxTable(cmd, url, printOnly)
			case printOnly:
				return usage(cmd, "--print belongs to --tx-table URL")
			}
			return a.migrate(cmd)
		},
	}
	cmd.Flags().StringVar(&url, "tx-table", "", "make the table pawl_tx in this database of your own: a SQLite file or a postgres:// URL")
	cmd.Flags().BoolVar(&printOnly, "print", false, "with --tx-table: print the SQL, change nothing")
	return cmd
}

// migrated is what migrate prints as JSON.
type migrated struct {
	Store   string `json:"store"`
	Version int64  `json:"version"`
	Changed bool   `json:"changed"`
}

func (a *app) migrate(cmd *cobra.Command) error {
	store, changed, err := a.openMigrated(cmd)
	if err != nil {
		return err
	}
	version, err := schemaVersion(cmd.Context(), store)
	if err := errors.Join(err, store.Close()); err != nil {
		return err
	}
	if a.format != text {
		return a.printJSON(migrated{store.Name(), version, changed})
	}
	what := "is up to date"
	if changed {
		what = "has been brought up to date"
	}
	return a.say("%s schema %s: version %d", store.Name(), what, version)
}

// sqlStore is what both stores have besides being one.
type sqlStore interface {
	pawl.Store
	DB() *sql.DB
}

func (a *app) openMigrated(cmd *cobra.Command) (s sqlStore, changed bool, err error) {
	db := a.database()
	pg, err := isPostgres(cmd, db)
	if err != nil {
		return nil, false, err
	}
	if !pg {
		_, missing := os.Stat(db)
		s, err := sqlite.Open(db, nil)
		if err != nil {
			return nil, false, a.unopened(err)
		}
		return s, errors.Is(missing, fs.ErrNotExist), nil
	}
	ps, err := postgres.Open(cmd.Context(), db, nil)
	if errors.Is(err, pawl.ErrSchema) {
		changed = true
		ps, err = postgres.Open(cmd.Context(), db, &postgres.Options{Migrate: true})
	}
	if err != nil {
		return nil, false, a.unopened(err)
	}
	return ps, changed, nil
}

const selectSchemaVersion = `SELECT max(version_id) FROM pawl_schema`

func schemaVersion(ctx context.Context, s sqlStore) (version int64, err error) {
	if err := s.DB().QueryRowContext(ctx, selectSchemaVersion).Scan(&version); err != nil {
		return 0, fmt.Errorf("read the schema's version: %w", err)
	}
	return version, nil
}

// txTable is what migrate --tx-table prints as JSON.
type txTable struct {
	Store string `json:"store"`
	Table string `json:"table"`
	SQL   string `json:"sql,omitempty"` // with --print
}

// makeTxTable makes the table of transaction steps in a database of the user's own.
func (a *app) makeTxTable(cmd *cobra.Command, url string, printOnly bool) error {
	pg, err := isPostgres(cmd, url)
	if err != nil {
		f := usage(cmd, "--tx-table is neither a file nor a postgres:// URL")
		f.next = "write it like postgres://user:password@host:5432/database, or name a SQLite file"
		return f
	}
	out, statement := txTable{Store: "sqlite", Table: "pawl_tx"}, pawl.TxTable("BLOB")
	if pg {
		out.Store, statement = "postgres", pawl.TxTable("BYTEA")
	}
	if printOnly {
		if a.format != text {
			out.SQL = statement + ";"
			return a.printJSON(out)
		}
		return a.say("%s;", statement)
	}
	db, err := openUser(url, pg)
	if err != nil {
		return err
	}
	_, err = db.ExecContext(cmd.Context(), statement)
	if err := errors.Join(err, db.Close()); err != nil {
		return &failure{exitFailed, fmt.Errorf("create table pawl_tx: %w", err), "--print prints the statement, to be run by somebody who may create tables"}
	}
	if a.format != text {
		return a.printJSON(out)
	}
	return a.say("table pawl_tx is there")
}

func openUser(url string, pg bool) (*sql.DB, error) {
	if pg {
		cfg, err := pgx.ParseConfig(url)
		if err != nil { // its text may have a part of the password in it
			return nil, &failure{exitUsage, errors.New("the URL of --tx-table cannot be read"), "write it like postgres://user:password@host:5432/database"}
		}
		return stdlib.OpenDB(*cfg), nil
	}
	if _, err := os.Stat(url); err != nil {
		return nil, &failure{exitNotFound, fmt.Errorf("open the database of --tx-table: %w", err), "name the file that your steps write to; it is not created here"}
	}
	return sql.Open("sqlite", url)
}
