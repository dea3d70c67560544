package sqlite

import (
	"context"
	"database/sql"
	"time"
)

// The file is looked at after a fiftieth of the time since another process changed it, within these bounds: a start after
// a second of quiet is found within 20 ms, and a file that nobody uses costs next to nothing.
const (
	watchBusy  = 2 * time.Millisecond
	watchIdle  = 100 * time.Millisecond
	watchShare = 50
	// watchOwn is the least time between two wakes by changes that may all be this process's own.
	watchOwn = 20 * time.Millisecond
)

// watcher sees what other connections commit to a file. A look reads shared memory and takes no lock that a writer waits
// for.
type watcher struct{ c *connector }

const selectVersion = `PRAGMA data_version`

// listen calls wake after each change that it sees. It cannot tell the changes of this process from others, only whether
// there were own ones in the time between two looks: then wake is called at most every watchOwn.
func (w watcher) listen(ctx context.Context, own func() int64, wake func()) error {
	db := sql.OpenDB(w.c)
	db.SetMaxOpenConns(1) // the number means something only within one connection
	defer func() { _ = db.Close() }()
	plain := context.WithoutCancel(ctx) // a look is over before it could be cut off, and costs less that way
	look, err := db.PrepareContext(plain, selectVersion)
	if err != nil {
		return err
	}
	var version, owned int64
	var woke, busy time.Time
	changed := true
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		before, mine := version, owned
		if err := look.QueryRowContext(plain).Scan(&version); err != nil {
			return err
		}
		owned = own()
		now := time.Now()
		foreign := version != before && owned == mine
		changed = changed || version != before
		if foreign {
			busy = now
		}
		if foreign || changed && now.Sub(woke) >= watchOwn {
			changed, woke = false, now
			wake()
		}
		tick.Reset(min(max(now.Sub(busy)/watchShare, watchBusy), watchIdle))
	}
}
