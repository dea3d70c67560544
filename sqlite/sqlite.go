// Package sqlite keeps runs in a SQLite file, created and migrated by [Open]. Several processes of one machine may work
// on one file. It needs no C compiler.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/host"
	"github.com/pawlrun/pawl/internal/sqlstore"
)

// Options configures [Open]. Nil and the zero value are valid.
type Options struct {
	// NetworkFS allows a file on a network file system. SQLite's locks and shared memory do not work there between
	// machines, and the file can be destroyed: it is safe only if no other machine opens the file.
	NetworkFS bool
	// Hooks is for this module's own tests; a program outside it cannot make one.
	Hooks *hooks.Store
}

// Store is a [pawl.Store] on a SQLite file.
type Store struct {
	*sqlstore.Store
	user *sql.DB
}

const (
	// applicationID says "Pawl" in the file's header.
	applicationID = 0x5061776c
	// busy is how long a statement of the user's waits for another process's write transaction.
	busy = 5 * time.Second
	// shortly is the same for the store's own writes: SQLite soon asks for the lock ten times a second only, the store
	// does so more often.
	shortly = 10 * time.Millisecond
	// openTimeout bounds Open, should another process keep the file locked.
	openTimeout = time.Minute
	// readers is how many snapshots may be read at once.
	readers = 4
)

// Open opens the file at path, creates it if there is none, and brings its schema up to date. The directory must exist.
// A file of another program, one with a schema that is newer than this build ([pawl.ErrSchema]) and one on a network
// file system are refused. ":memory:" is a database of its own that ends with the store, for tests.
//
// Committed transactions survive a power failure (WAL, synchronous=FULL).
func Open(path string, o *Options) (*Store, error) {
	if o == nil {
		o = &Options{}
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), openTimeout, //nolint:forbidigo // there is no caller's context; it ends with Open
		errors.New("another process keeps the file locked"))
	defer cancel()
	s, err := open(ctx, path, o)
	if err != nil {
		return nil, fmt.Errorf("open SQLite database %s: %w", path, err)
	}
	return s, nil
}

func open(ctx context.Context, path string, o *Options) (*Store, error) {
	h := hooks.Store{}
	if o.Hooks != nil {
		h = *o.Hooks
	}
	memory := path == ":memory:"
	name := path
	if !memory {
		var err error
		if name, err = filepath.Abs(path); err != nil {
			return nil, err
		}
		if err := checkFile(name, o.NetworkFS); err != nil {
			return nil, err
		}
	}
	c, err := newConnector(name, busy, h)
	if err != nil {
		return nil, err
	}
	ours, err := newConnector(name, shortly, h)
	if err != nil {
		return nil, err
	}
	write := sql.OpenDB(preparing{ours})
	write.SetMaxOpenConns(1) // one writer: waiting for it in order is fair, waiting for SQLite's lock is polling
	write.SetMaxIdleConns(1)
	read, lease, user := write, write, write
	if !memory { // a database in memory is its one connection
		read = sql.OpenDB(preparing{c})
		read.SetMaxOpenConns(readers)
		read.SetMaxIdleConns(readers)
		lease = sql.OpenDB(preparing{ours})
		lease.SetMaxOpenConns(1)
		user = sql.OpenDB(c)
	}
	d := dialect(h, name)
	if !memory && !h.WallLease {
		d.Listen = watcher{ours}.listen
	}
	s := &Store{sqlstore.New(d, write, read, lease, write), user}
	if err := s.setUp(ctx, memory, h); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// DB is a pool on the same file for the user's own tables and for [pawl.InTx]. Its transactions take the file's one
// write lock when they begin; while one is open, no worker can write. It is closed with the store.
func (s *Store) DB() *sql.DB { return s.user }

// Close closes all connections.
func (s *Store) Close() error {
	err := s.Store.Close()
	if s.user != s.Writer() {
		err = errors.Join(err, s.user.Close())
	}
	return err
}

// checkFile says in plain words what SQLite would report as "unable to open database file".
func checkFile(name string, networkFS bool) error {
	dir := filepath.Dir(name)
	switch info, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("directory %s does not exist", dir)
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	}
	if fsName, yes := host.NetworkFS(dir); yes && !networkFS {
		return fmt.Errorf("%s is on a network file system (%s), where SQLite can lose data: use a local directory or PostgreSQL", dir, fsName)
	}
	// The file itself is not opened: closing it would take the locks that this process has on it through another store.
	switch info, err := os.Stat(name); {
	case errors.Is(err, fs.ErrNotExist):
		return checkDir(dir)
	case err != nil:
		return err
	case info.IsDir():
		return errors.New("it is a directory")
	}
	return nil
}

// checkDir reports a directory in which no file can be made.
func checkDir(dir string) error {
	f, err := os.CreateTemp(dir, ".pawl-*")
	if err != nil {
		return fmt.Errorf("no file can be created in directory %s: %w", dir, errors.Unwrap(err))
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// dsn names the file for the driver. Every connection gets the settings that are not kept in the file.
func dsn(name string, busy time.Duration) string {
	q := url.Values{}
	q.Set("_txlock", "immediate")
	q.Set("_busy_timeout", fmt.Sprint(busy.Milliseconds()))
	q.Set("_synchronous", "FULL")
	q.Set("_dqs", "0")
	q.Set("_error_rc", "1")
	if name == ":memory:" {
		return name + "?" + q.Encode()
	}
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(name), RawQuery: q.Encode()}).String()
}
