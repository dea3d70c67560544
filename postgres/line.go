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
	conn   *sql.Conn
	give   func()
	c      *pgx.Conn
	opened time.Time

	// Guarded by the line's mutex.
	users   int
	writing bool          // the newest exchange is not sent yet
	sent    time.Time     // when the newest one began to be sent
	last    chan struct{} // closed when the newest one has its answers
	status  byte          // after the last answers, 0 if they broke off
	lost    bool          // nothing can be sent or read any more, or the server takes no writes
}

// Behind an exchange that was sent longer ago nothing is sent: it may be waiting for something. A variable for tests.
var freshExchange = 100 * time.Millisecond

const (
	// For so long a link is followed on. Then it goes back to the pool, which looks at the age of connections.
	linkAge = time.Second
	// So often something is sent behind others, should each of them fail.
	followTries = 3
)

var errLost = errors.New("the connection was lost before the answer came")

// unsent is the error of a write of which no byte has left.
type unsent struct{ error }

func (u unsent) Unwrap() error { return u.error }

// SafeToRetry is how [pgconn.SafeToRetry] asks.
func (unsent) SafeToRetry() bool { return true }

// forgotten is what a session says that does not know a statement any more which was prepared on it. It has done nothing then.
const forgotten = "26000"

// sendBatch is sqlstore.Dialect.SendBatch.
func (d *defaults) sendBatch(ctx context.Context, take sqlstore.Take, statements []sqlstore.Batch) (first string, err error) {
	for try := 1; ; try++ {
		x := d.exchange(statements)
		behind, err := d.line.send(ctx, take, x, d, try <= followTries)
		// One that failed has left its transaction to be undone, and what came behind it was refused for that.
		again := behind && sqlState(err) == "25P02" || sqlState(err) == forgotten && try <= followTries
		if !again || ctx.Err() != nil {
			return x.first, err
		}
	}
}

// send sends x and reads its answers, behind another exchange, if it may and there is one, or on a connection that nobody uses.
// If ctx ends, the connection is broken off, for both that use it.
func (l *line) send(ctx context.Context, take sqlstore.Take, x *exchange, d *defaults, may bool) (behind bool, err error) {
	var k *link
	var before, mine chan struct{}
	if may {
		k, before, mine = l.follow(x)
	}
	if k == nil {
		if k, mine, err = newLink(ctx, take, x, d); err != nil {
			return false, err
		}
	}
	err = errLost
	defer func() { l.leave(ctx, k, mine, x, err) }()
	conn := k.c.PgConn().Conn()
	breakOff := func() { _ = conn.SetDeadline(time.Unix(1, 0)) }
	stop := context.AfterFunc(ctx, breakOff)
	written, err := x.write(k.c, d)
	if err == nil && written == nil {
		l.written(k, x)
	}
	if before != nil {
		<-before // also if nothing was sent: the link is passed on in order
	}
	switch {
	case err != nil:
	case before != nil && l.broken(k):
		err = errLost
	default:
		err = x.answers(k.c.PgConn().Frontend())
	}
	if written != nil {
		if x.status == 0 {
			breakOff()
		}
		err = errors.Join(err, <-written)
	}
	if !stop() {
		x.status = 0
		err = errors.Join(err, context.Cause(ctx))
	}
	return before != nil, err
}

// follow reserves the place behind the exchange that is under way. before is closed when it is x's turn to read, and x has to
// close mine. It returns nil if x cannot be sent there.
func (l *line) follow(x *exchange) (k *link, before, mine chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k = l.now
	now := time.Now()
	if k == nil || k.users > 1 || k.writing || now.Sub(k.sent) > freshExchange || now.Sub(k.opened) > linkAge || x.sets || !x.prepared(k.c) {
		return nil, nil, nil
	}
	before, mine = k.last, make(chan struct{})
	k.users++
	k.last, k.sent, k.writing = mine, now, true
	return k, before, mine
}

// newLink gives one that nobody else knows of.
func newLink(ctx context.Context, take sqlstore.Take, x *exchange, d *defaults) (k *link, mine chan struct{}, err error) {
	now := time.Now()
	k = &link{users: 1, last: make(chan struct{}), opened: now, sent: now, writing: true}
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
	return k, k.last, nil
}

// written lets others follow.
func (l *line) written(k *link, x *exchange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k.writing = false
	failed := k.status != 0 && k.status != 'I' // what comes now would be refused too
	if l.now == nil && !k.lost && !failed && !x.sets && keeps(k.c) {
		l.now = k
	}
}

// broken reports whether the answers before have broken off.
func (l *line) broken(k *link) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return k.status == 0
}

// leave ends x's use of the connection, and passes it on: to the next reader, or, after the last one, to the pool.
func (l *line) leave(ctx context.Context, k *link, mine chan struct{}, x *exchange, err error) {
	l.mu.Lock()
	k.status = x.status
	k.lost = k.lost || k.status == 0 || classify(err) == sqlstore.Unusable || sqlState(err) == forgotten
	k.users--
	last := k.users == 0
	if (last || k.lost || k.status != 'I') && l.now == k {
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
