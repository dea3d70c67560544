//go:build unix

package pgtest

import (
	"bufio"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// link is one client's connection through the proxy. The goroutine of run carries the client's messages to the
// server and owns stmts, asked and round; a second one carries the answers back.
type link struct {
	proxy  *Proxy
	client net.Conn
	in     *bufio.Reader // of client
	stmts  statements
	asked  int           // rounds begun: messages forwarded that a ReadyForQuery answers, and the session's start
	round  traffic       // of the round that has begun; not of one in which nothing is executed
	mute   atomic.Bool   // answers go nowhere
	gone   chan struct{} // closed when the link is; ends every wait
	once   sync.Once     // closes gone
	rounds chan int      // capacity 1; the latest number of ReadyForQuery messages seen
	down   chan struct{} // closed when the server's side has ended

	mu      sync.Mutex
	server  net.Conn // guarded by mu; nil until connected, which run does once
	holding bool     // guarded by mu; a statement waits here
}

func newLink(p *Proxy, client net.Conn) *link {
	return &link{
		proxy: p, client: client, in: bufio.NewReader(client),
		stmts: statements{prepared: make(map[string]string), portals: make(map[string]string)},
		asked: 1, gone: make(chan struct{}), rounds: make(chan int, 1), down: make(chan struct{}),
	}
}

// close ends both sides.
func (l *link) close() {
	l.once.Do(func() { close(l.gone) })
	l.client.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.server != nil {
		l.server.Close()
	}
}

// cut is close, but for the server's side of a held statement.
func (l *link) cut() {
	l.mu.Lock()
	holding := l.holding
	l.mu.Unlock()
	if holding {
		l.client.Close()
		return
	}
	l.close()
}

func (l *link) setHolding(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holding = on
}

// pass waits until bytes may pass, and reports false when the link is closed first.
func (l *link) pass() bool {
	for {
		gate := l.proxy.gate()
		select {
		case <-l.gone:
			return false
		case <-gate:
			if l.proxy.gate() == gate { // else the hole closed again meanwhile
				return true
			}
		}
	}
}

func (l *link) run() {
	defer l.proxy.leave(l)
	defer l.close()
	first, session, err := l.greet()
	if err != nil || !l.pass() {
		return
	}
	server, err := l.connect()
	if err != nil {
		return
	}
	if _, err := server.Write(first); err != nil {
		return
	}
	l.proxy.wg.Go(func() { l.answers(server) })
	if !session { // a cancel request: the server closes when it is done
		<-l.down
		return
	}
	for {
		f, err := readFrame(l.in)
		if !l.pass() || err != nil {
			return
		}
		if !l.forward(server, f) {
			return
		}
	}
}

// greet refuses encryption until the client sends a message to forward, and tells whether a session follows it.
func (l *link) greet() (first []byte, session bool, err error) {
	for {
		message, code, err := readStartup(l.in)
		if err != nil {
			return nil, false, err
		}
		if code != codeSSL && code != codeGSS {
			return message, code != codeCancel, nil
		}
		if !l.pass() {
			return nil, false, net.ErrClosed
		}
		if _, err := l.client.Write([]byte{'N'}); err != nil {
			return nil, false, err
		}
	}
}

func (l *link) connect() (net.Conn, error) {
	server, err := net.DialTimeout("tcp", l.proxy.address(), patience)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.server = server
	l.mu.Unlock()
	select {
	case <-l.gone: // closed before it could know the server's side
		return nil, errors.Join(net.ErrClosed, server.Close())
	default:
		return server, nil
	}
}

// forward sends a message on, or does what a rule says. It reports whether the link goes on.
func (l *link) forward(server net.Conn, f frame) bool {
	var due *rule
	if sql, ok := l.executes(f); ok {
		due = l.proxy.judge(l.stmts.note(sql))
	}
	if due == nil {
		return l.send(server, []frame{f}) == nil
	}
	if due.action == cutBefore {
		return false
	}
	round, err := l.rest(f)
	if err != nil {
		return false
	}
	if due.action == cutAfter {
		l.mute.Store(true)
		if l.send(server, round) == nil {
			_ = l.await() // the connection is cut, whatever the server said
		}
		return false
	}
	l.setHolding(true)
	defer l.setHolding(false)
	h := l.proxy.hold(due)
	if !<-h.verdict {
		l.close()
		h.done <- nil
		return false
	}
	if err = l.send(server, round); err == nil {
		err = l.await()
	}
	h.done <- err
	return err == nil
}

// executes is that of the statements, and notes what the round is.
func (l *link) executes(f frame) (sql string, ok bool) {
	if sql, ok = l.stmts.executes(f); ok && !isEmpty(sql) {
		l.round.rounds = 1
		if isCommit(sql) {
			l.round.commits++
		}
	}
	return sql, ok
}

// rest returns f and, after an Execute, what the client sends up to the Sync: the server does not answer sooner, and
// a client that goes away while f is held can take with it what was not read.
func (l *link) rest(f frame) ([]frame, error) {
	frames := []frame{f}
	for f.kind() != 'Q' && f.kind() != 'S' {
		var err error
		if f, err = readFrame(l.in); err != nil {
			return nil, err
		}
		l.executes(f)
		frames = append(frames, f)
	}
	return frames, nil
}

func (l *link) send(server net.Conn, frames []frame) error {
	for _, f := range frames {
		if f.endsRound() {
			l.asked++
			l.proxy.count(l.round)
			l.round = traffic{}
		}
		if _, err := server.Write(f); err != nil {
			return err
		}
	}
	return nil
}

// await returns when the server has answered all that it was sent.
func (l *link) await() error {
	timeout := time.After(patience)
	for {
		select {
		case n := <-l.rounds:
			if n >= l.asked {
				return nil
			}
		case <-l.down:
			return errors.New("the server closed the connection")
		case <-timeout:
			return errors.New("the server does not answer")
		}
	}
}

// answers carries the server's messages to the client until the server's side ends. A client that is gone does not
// end it: a held statement of its may still be answered.
func (l *link) answers(server net.Conn) {
	defer close(l.down)
	in := bufio.NewReader(server)
	for seen := 0; ; {
		f, err := readFrame(in)
		if err != nil {
			break
		}
		if f.kind() == 'Z' {
			seen++
			select { // replace a number that nobody took
			case <-l.rounds:
			default:
			}
			l.rounds <- seen
		}
		if l.mute.Load() {
			continue
		}
		if !l.pass() {
			return
		}
		_, _ = l.client.Write(f)
	}
	if l.pass() && !l.mute.Load() {
		l.close()
	}
}
