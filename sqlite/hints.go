package sqlite

import (
	"context"
	"database/sql"
	"time"
)

// The file is looked at after a fiftieth of the time since another process changed it, within these bounds: a start after
// a second of quiet is found within 20 ms, and a file that nobody uses costs next to nothing. One that changes at each look
// is looked at less often.
const (
	watchBusy  = 500 * time.Microsecond
	watchIdle  = 100 * time.Millisecond
	watchShare = 50
	watchEager = 4 * time.Millisecond
	// watchOwn is the least time between two wakes by what may be the store's own commits: what is started in a user's
	// transaction, or through another engine, hints at nothing.
	watchOwn = 20 * time.Millisecond
)

// watcher sees what other connections commit to a file. A look reads shared memory and takes no lock that a writer waits
// for.
type watcher struct{ c *connector }

const selectVersion = `PRAGMA data_version`

// listen calls wake after each change that others than this store have made, and now and then after those of its own. What it sees on
// its own connection may be either, and then others tells: it waits for whoever is writing, which a mere look does not.
func (w watcher) listen(ctx context.Context, others func(context.Context) (int64, error), wake func()) error {
	db := sql.OpenDB(w.c)
	db.SetMaxOpenConns(1) // the number means something only within one connection
	defer func() { _ = db.Close() }()
	plain := context.WithoutCancel(ctx) // a look is over before it could be cut off, and costs less that way
	look, err := db.PrepareContext(plain, selectVersion)
	if err != nil {
		return err
	}
	version, known := int64(-1), int64(-1) // so that it begins with a wake
	var busy, woke time.Time
	changed := false
	var pause time.Duration
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		before, least := version, watchBusy
		if err := look.QueryRowContext(plain).Scan(&version); err != nil {
			return err
		}
		if version != before {
			least = min(max(2*pause, watchBusy), watchEager)
			now, err := others(ctx)
			if err != nil {
				return err
			}
			if now != known {
				known, busy, woke = now, time.Now(), time.Time{}
			}
			changed = true
		}
		if changed && time.Since(woke) >= watchOwn {
			changed, woke = false, time.Now()
			wake()
		}
		pause = min(max(time.Since(busy)/watchShare, least), watchIdle)
		tick.Reset(pause)
	}
}
