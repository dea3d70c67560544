package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pawlrun/pawl/internal/sqlstore"
)

// line is the connection on which shared writes follow each other. The second of two is sent while the server works on the first,
// so that the server need not wait for it. They stay transactions of their own, one after the other.
type line struct {
	mu  sync.Mutex
	now *link // nil if nobody uses one that others may follow on; guarded by mu
}

// link is a connection in use by one exchange, or by two.
type link struct {
	conn *sql.Conn
	give func()
	c    *pgx.Conn

	// Guarded by the line's mutex.
	users  int
	last   chan struct{} // closed when the exchange that was sent last has its answers
	status byte          // after the last answers
	lost   bool          // nothing can be sent or read any more
}

var errLost = errors.New("the connection was lost before the answer came")

// sendBatch is sqlstore.Dialect.SendBatch.
func (d *defaults) sendBatch(ctx context.Context, take sqlstore.Take, statements []sqlstore.Batch) (first string, err error) {
	for {
		x := d.exchange(statements)
		k, before, mine := d.line.follow(x, d)
		if k == nil {
			if k, mine, err = d.line.open(ctx, take, x, d); err != nil {
				return "", err
			}
		}
		err = k.read(ctx, &d.line, x, before)
		d.line.leave(ctx, k, mine, x, err)
		// One that failed has left its transaction to be undone, and what came behind it was refused for that.
		if before == nil || sqlState(err) != "25P02" || ctx.Err() != nil {
			return x.first, err
		}
	}
}

// follow sends x behind the exchange that is under way. before is closed when it is x's turn to read, and x has to close mine. It
// returns nil if x cannot be sent there.
func (l *line) follow(x *exchange, d *defaults) (k *link, before, mine chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k = l.now
	if k == nil || k.users > 1 || x.sets || !x.prepared(k.c) {
		return nil, nil, nil
	}
	before, mine = k.last, make(chan struct{})
	k.users++
	k.last = mine
	if x.write(k.c, d) != nil {
		l.lose(k)
	}
	return k, before, mine
}

// open sends x on a connection that nobody uses.
func (l *line) open(ctx context.Context, take sqlstore.Take, x *exchange, d *defaults) (k *link, mine chan struct{}, err error) {
	k = &link{users: 1, last: make(chan struct{})}
	if k.conn, k.give, err = take(); err != nil {
		return nil, nil, err
	}
	err = k.conn.Raw(func(driverConn any) (err error) {
		if k.c, err = pgxConn(driverConn); err != nil {
			return err
		}
		return x.prepare(ctx, k.c, d)
	})
	if err != nil {
		k.give()
		return nil, nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case x.write(k.c, d) != nil:
		l.lose(k)
	case l.now == nil && !x.sets && keeps(k.c):
		l.now = k
	}
	return k, k.last, nil
}

// lose notes that the connection is broken. mu is held.
func (l *line) lose(k *link) {
	k.lost = true
	if l.now == k {
		l.now = nil
	}
}

// read reads x's answers when those before it have been read. If ctx ends, the connection is broken off, for both that use it.
func (k *link) read(ctx context.Context, l *line, x *exchange, before chan struct{}) error {
	conn := k.c.PgConn().Conn()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	if before != nil {
		<-before
	}
	l.mu.Lock()
	lost := k.lost
	l.mu.Unlock()
	err := errLost
	if !lost {
		err = x.answers(k.c.PgConn().Frontend())
	}
	if !stop() {
		x.status = 0
		return errors.Join(err, context.Cause(ctx))
	}
	return err
}

// leave ends x's use of the connection, and passes it on: to the next reader, or, after the last one, to the pool.
func (l *line) leave(ctx context.Context, k *link, mine chan struct{}, x *exchange, err error) {
	l.mu.Lock()
	if k.status = x.status; k.status == 0 || classify(err) == sqlstore.Unusable {
		l.lose(k)
	}
	k.users--
	last := k.users == 0
	if (last || k.status != 'I') && l.now == k {
		l.now = nil
	}
	l.mu.Unlock()
	close(mine)
	if !last {
		return
	}
	defer k.give()
	switch {
	case k.lost:
		_ = k.conn.Raw(func(any) error {
			_ = k.c.PgConn().Conn().Close() // a transaction that is open is undone
			return driver.ErrBadConn
		})
	case k.status != 'I':
		_ = k.conn.Raw(func(any) error {
			if _, err := k.c.Exec(ctx, "ROLLBACK"); err != nil {
				return driver.ErrBadConn
			}
			return nil
		})
	}
}
