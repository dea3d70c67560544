//go:build unix

package torture_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawlrun/pawl/internal/pgtest"
)

// parts are what a torture may have beyond killing, freezing and cutting off.
type parts struct {
	bouncer  bool // every other worker reaches PostgreSQL through PgBouncer in transaction mode
	readOnly bool // the server takes no writes for a while
	standby  bool // it is lost, and its standby takes over
	clock    bool // the store's clock is set, by minutes
	late     bool // a COMMIT lands when all that had to do with it was over
	queues   bool // queues have limits; otherwise workers claim in one statement
}

// part is one of them by name. A light one is taken in short runs too.
type part struct {
	name  string
	light bool
	store string // "" for both
	lacks func() error
	on    func(*parts)
}

var allParts = []part{
	{"readonly", true, "postgres", nil, func(p *parts) { p.readOnly = true }},
	{"late", false, "postgres", nil, func(p *parts) { p.late = true }},
	{"standby", false, "postgres", nil, func(p *parts) { p.standby = true }},
	{"bouncer", false, "postgres", func() error { _, err := pgtest.PgBouncer(); return err }, func(p *parts) { p.bouncer = true }},
	{"queues", false, "", nil, func(p *parts) { p.queues = true }},
	{"clock", false, "", func() error { _, err := pgtest.FakeTime(); return err }, func(p *parts) { p.clock = true }},
}

// shortRun is the longest torture that leaves out what takes long.
const shortRun = time.Minute

// choose takes the parts that -with names. Of "auto" it takes what is installed, and says what is not; of names, all. Of the two
// stores, one has queues with limits in any case: which one, the seed says.
func choose(t *testing.T, with, kind string, span time.Duration, seed uint64) (p parts) {
	t.Helper()
	names := strings.Split(with, ",")
	for _, name := range names {
		if name != "auto" && name != "none" && !slices.ContainsFunc(allParts, func(p part) bool { return p.name == name }) {
			t.Fatalf("-with %s: there is no part %q", with, name)
		}
	}
	for _, x := range allParts {
		asked := slices.Contains(names, x.name)
		if x.store != "" && x.store != kind || !asked && (x.name == "queues" || with != "auto" || !x.light && span <= shortRun) {
			continue
		}
		if x.lacks != nil && !(x.name == "clock" && kind == "sqlite") {
			if err := x.lacks(); err != nil && asked {
				t.Fatalf("-with %s: %v", x.name, err)
			} else if err != nil {
				fmt.Printf("torture: without %s: %v\n", x.name, err)
				continue
			}
		}
		x.on(&p)
	}
	if (seed%2 == 0) == (kind == "sqlite") {
		p.queues = true
	}
	return p
}

// wall is what the machine's clock is off by, for SQLite: a file that all processes read. They are on one machine, so
// that it is off for all of them alike.
type wall struct{ file *os.File }

func openWall(name string) (*wall, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	return &wall{f}, nil
}

func (w *wall) set(offset time.Duration) error {
	_, err := w.file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(offset)), 0)
	return err
}

func (w *wall) offset() time.Duration {
	var raw [8]byte
	if _, err := w.file.ReadAt(raw[:], 0); err != nil {
		return 0 // not set yet
	}
	return time.Duration(binary.NativeEndian.Uint64(raw[:]))
}
