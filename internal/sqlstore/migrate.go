package sqlstore

import (
	"context"
	"crypto/rand"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/pressly/goose/v3"

	"github.com/pawlrun/pawl"
)

//go:embed migrations/*.sql
var migrations embed.FS

// schemaTable is where goose keeps the version, lockTable where its locker does.
const (
	schemaTable = "pawl_schema"
	lockTable   = "pawl_schema_lock"
)

// LockTable is the table that a dialect's locker is to use.
const LockTable = lockTable

// step is one migration, for any dialect.
type step struct {
	version int64
	text    string
}

// steps reads the embedded migrations, in order of their numbers.
func steps() ([]step, error) {
	files, err := migrations.ReadDir("migrations")
	if err != nil {
		return nil, err
	}
	var all []step
	for _, f := range files {
		number, _, _ := strings.Cut(f.Name(), "_")
		version, err := strconv.ParseInt(number, 10, 64)
		if err != nil || version != int64(len(all)+1) {
			return nil, fmt.Errorf("migration %s does not have number %d", f.Name(), len(all)+1)
		}
		text, err := migrations.ReadFile(path.Join("migrations", f.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, step{version, string(text)})
	}
	return all, nil
}

// CheckSchema returns [pawl.ErrSchema] unless the database has exactly this build's schema.
func (s *Store) CheckSchema(ctx context.Context) error {
	have, want, err := s.versions(ctx)
	switch {
	case err != nil:
		return err
	case have == 0:
		return fmt.Errorf("%w: the database has no Pawl tables, this build wants version %d: %s", pawl.ErrSchema, want, s.d.MigrateHint)
	case have < want:
		return fmt.Errorf("%w: the database has version %d, this build wants version %d: %s", pawl.ErrSchema, have, want, s.d.MigrateHint)
	case have > want:
		return newer(have, want)
	}
	return nil
}

func newer(have, want int64) error {
	return fmt.Errorf("%w: the database has version %d, this build knows versions up to %d: use a newer build", pawl.ErrSchema, have, want)
}

const (
	selectTable   = `{table}`
	selectVersion = `SELECT max(version_id) FROM ` + schemaTable
)

// versions reads which version the database has, 0 for none, and which this build wants.
func (s *Store) versions(ctx context.Context) (have, want int64, err error) {
	all, err := steps()
	if err != nil {
		return 0, 0, err
	}
	want = int64(len(all))
	t := &txn{s: s, c: pool{s.write}}
	var tables int64
	if _, err := t.row(ctx, selectTable, []any{schemaTable}, []any{&tables}); err != nil || tables == 0 {
		return 0, want, err
	}
	_, err = t.row(ctx, selectVersion, nil, []any{zero(&have)})
	return have, want, err
}

// Migrate brings the schema to this build's version; a database that is newer is refused. Any number of processes may
// do so at once: each step is one transaction, and who comes second finds it done.
func (s *Store) Migrate(ctx context.Context) error {
	var failure error
	for try := range 20 {
		have, want, err := s.versions(ctx)
		switch {
		case err != nil && s.d.Classify(err) != Aborted:
			return fmt.Errorf("read schema version: %w", err)
		case err == nil && have > want:
			return newer(have, want)
		case err == nil && have == want:
			return nil
		}
		if err == nil {
			err = s.up(ctx)
		}
		if err == nil {
			continue
		}
		// Another migrator may have been faster, in a table or in the whole step. If not, it fails again.
		failure = err
		t := time.NewTimer(mathrand.N(min(time.Duration(try+1)*20*time.Millisecond, 200*time.Millisecond)))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return errors.Join(context.Cause(ctx), failure)
		}
	}
	return fmt.Errorf("migrate the schema: %w", failure)
}

func (s *Store) up(ctx context.Context) error {
	all, err := steps()
	if err != nil {
		return err
	}
	opts := []goose.ProviderOption{goose.WithTableName(schemaTable), goose.WithDisableGlobalRegistry(true)}
	for _, m := range all {
		opts = append(opts, goose.WithGoMigrations(goose.NewGoMigration(m.version, &goose.GoFunc{
			RunTx: func(ctx context.Context, tx *sql.Tx) error { return s.run(ctx, tx, m) },
		}, nil)))
	}
	if s.d.Locker != nil {
		locker, err := s.d.Locker()
		if err != nil {
			return err
		}
		opts = append(opts, goose.WithLocker(locker))
	}
	p, err := goose.NewProvider(s.d.Goose, s.write, nil, opts...)
	if err != nil {
		return err
	}
	_, err = p.Up(ctx)
	return err
}

const insertMeta = `INSERT INTO pawl_meta (one, namespace, created) VALUES (1, $1, {now})`

func (s *Store) run(ctx context.Context, tx *sql.Tx, m step) error {
	if _, err := tx.ExecContext(ctx, s.texts.get(s.words(m.text))); err != nil {
		return err
	}
	if m.version == 1 {
		_, err := tx.ExecContext(ctx, s.texts.get(insertMeta), strings.ToLower(rand.Text()))
		return err
	}
	return nil
}

var (
	wordTypes = regexp.MustCompile(`\{(\w+): ([^}]+)\}\n`)
	wordUses  = regexp.MustCompile(`\{(\w+) (\w+)\}`)
)

// words writes out the columns of a migration that take one of some words, which are known in that migration alone. A CHECK of
// the form column IN (…) would do, but both databases pay for it in each statement that writes to the table: PostgreSQL reads
// and plans the constraint anew, where the constraint of a domain is kept, and SQLite makes a temporary index of the list,
// where it just compares words one by one.
func (s *Store) words(text string) string {
	words := make(map[string][]string)
	text = wordTypes.ReplaceAllStringFunc(text, func(def string) string {
		m := wordTypes.FindStringSubmatch(def)
		for word := range strings.FieldsSeq(m[2]) {
			words[m[1]] = append(words[m[1]], "'"+strings.Trim(word, "'")+"'")
		}
		if !s.d.Domains {
			return ""
		}
		return "DROP DOMAIN IF EXISTS pawl_" + m[1] + "; CREATE DOMAIN pawl_" + m[1] + " AS TEXT CHECK (VALUE IN (" + strings.Join(words[m[1]], ", ") + "));\n"
	})
	return wordUses.ReplaceAllStringFunc(text, func(use string) string {
		m := wordUses.FindStringSubmatch(use)
		switch {
		case words[m[1]] == nil: // what the comment says about all of them
			return use
		case s.d.Domains:
			return "pawl_" + m[1]
		}
		return "TEXT CHECK (" + m[2] + " = " + strings.Join(words[m[1]], " OR "+m[2]+" = ") + ")"
	})
}

const (
	createTestClock = `CREATE TABLE IF NOT EXISTS pawl_test_clock (one BIGINT PRIMARY KEY CHECK (one = 1), offset_us BIGINT NOT NULL)`
	insertTestClock = `INSERT INTO pawl_test_clock (one, offset_us) VALUES (1, 0) ON CONFLICT (one) DO NOTHING`
)

// AddTestClock creates the table that a clock with an offset reads. Production schemas lack it.
func (s *Store) AddTestClock(ctx context.Context) error {
	var err error
	for range 10 { // IF NOT EXISTS does not help against somebody who creates it at the same moment
		if _, err = s.write.ExecContext(ctx, createTestClock); err == nil {
			_, err = s.write.ExecContext(ctx, insertTestClock)
		}
		if err == nil {
			return nil
		}
	}
	return fmt.Errorf("create the test clock: %w", err)
}
