//go:build unix

package pgtest

import (
	"errors"
	"net"
	"net/url"
	"slices"
	"sync"
	"testing"
)

// Proxy stands between clients and a PostgreSQL server and makes the network misbehave. A new proxy passes everything
// on. It knows as much of the protocol as it takes to find single statements, refuses TLS, and connects to the server
// anew for each client, so the server may be restarted behind it. Safe for use by several goroutines.
type Proxy struct {
	listener net.Listener
	wg       sync.WaitGroup // the accept loop, and two goroutines a link

	mu     sync.Mutex
	target string         // guarded by mu; host:port
	closed bool           // guarded by mu
	links  map[*link]bool // guarded by mu
	open   chan struct{}  // guarded by mu; closed while bytes pass, replaced for a black hole
	rules  []*rule        // guarded by mu; in the order they were made
	held   []*hold        // guarded by mu; statements that wait, oldest first
	sum    traffic        // guarded by mu
}

// traffic is what clients have sent.
type traffic struct{ rounds, commits int }

// action is what a rule does to a statement.
type action uint8

const (
	cutBefore action = iota + 1 // close both sides, do not forward
	cutAfter                    // forward, let the server finish, close both sides without its answer
	holdBack                    // keep until released
)

// rule applies an action once, to the n-th statement that matches from the rule's making on.
type rule struct {
	match  func(s statement) bool
	left   int // matches still to come, this one included; 0 is spent
	action action
	caught chan struct{} // closed when a statement is held
}

// hold is a statement that waits in the proxy. The goroutine of its link receives from verdict.
type hold struct {
	verdict chan bool  // true forwards the statement, false loses it
	done    chan error // receives once: nil after the server has answered it, or the connection was closed for a false
}

// NewProxy starts a proxy in front of the server that the URL target names. It is closed when the test ends.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	address := hostPort(t, target)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("pgtest: start a proxy: %v", err)
	}
	p := &Proxy{
		target: address, listener: listener,
		links: make(map[*link]bool), open: make(chan struct{}),
	}
	close(p.open)
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// hostPort is where a URL leads to.
func hostPort(t testing.TB, rawURL string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil || u.Hostname() == "" {
		t.Fatal("pgtest: a proxy's target must be a URL with a host")
	}
	port := u.Port()
	if port == "" {
		port = "5432"
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// Retarget sends new connections to another server, as a name that is given to another machine does. Those there are
// stay where they lead: see [Proxy.CutAll].
func (p *Proxy) Retarget(t testing.TB, target string) {
	t.Helper()
	address := hostPort(t, target)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = address
}

func (p *Proxy) address() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.target
}

// Rewrite returns a URL of the server behind the proxy as one that leads through it.
func (p *Proxy) Rewrite(t testing.TB, rawURL string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal("pgtest: a proxy rewrites only URLs")
	}
	u.Host = p.listener.Addr().String()
	q := u.Query()
	q.Set("sslmode", "disable")
	u.RawQuery = q.Encode()
	return u.String()
}

// CutAll closes all connections of now, on both sides. A held statement's connection to the server stays, so that it
// can still be released: it is as if the statement were under way in the network.
func (p *Proxy) CutAll() {
	for _, l := range p.all() {
		l.cut()
	}
}

// Connections is the number of connections that pass through the proxy now, those of held statements included.
func (p *Proxy) Connections() int { return len(p.all()) }

// Rounds is how often clients have sent statements and waited for the answer: a pipeline that is sent as a whole is one
// round, whatever is in it. Rounds that execute nothing, such as to prepare a statement or to see whether a connection
// lives, do not count.
func (p *Proxy) Rounds() int { return p.traffic().rounds }

// Commits is how many COMMITs clients have sent.
func (p *Proxy) Commits() int { return p.traffic().commits }

func (p *Proxy) traffic() traffic {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sum
}

// count adds a round that is sent to the server.
func (p *Proxy) count(t traffic) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sum.rounds += t.rounds
	p.sum.commits += t.commits
}

// BlackHole makes the proxy pass nothing in either direction, without closing anything; new clients connect and get no
// answer. BlackHole(false) ends that, and what was sent meanwhile arrives, as by TCP's retransmission.
func (p *Proxy) BlackHole(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
		if on {
			p.open = make(chan struct{})
		}
	default:
		if !on {
			close(p.open)
		}
	}
}

// CutAfterCommit lets the n-th COMMIT from now (1 is the next) take effect and closes its connection before the client
// learns that. The server has finished the transaction when the client sees the connection closed.
func (p *Proxy) CutAfterCommit(n int) { p.add(&rule{match: commits, left: n, action: cutAfter}) }

// CutBeforeCommit closes the connection of the n-th COMMIT from now without forwarding it, so that the server rolls the
// transaction back. The client sees what it sees with [Proxy.CutAfterCommit].
func (p *Proxy) CutBeforeCommit(n int) { p.add(&rule{match: commits, left: n, action: cutBefore}) }

// CutAfter is [Proxy.CutAfterCommit] for any statement, such as one that commits by itself. match gets the SQL text of
// a simple query, or of the prepared statement that is executed; it is called under the proxy's lock.
func (p *Proxy) CutAfter(n int, match func(sql string) bool) {
	p.add(&rule{match: alone(match), left: n, action: cutAfter})
}

// LoseReply lets the n-th transaction from now in which a statement matches take effect, and closes its connection
// before the client learns that. It is for a statement that commits by itself too.
func (p *Proxy) LoseReply(n int, match func(sql string) bool) {
	p.add(&rule{match: ending(match), left: n, action: cutAfter})
}

// CutBefore is [Proxy.CutBeforeCommit] for any statement.
func (p *Proxy) CutBefore(n int, match func(sql string) bool) {
	p.add(&rule{match: alone(match), left: n, action: cutBefore})
}

// HoldCommit keeps back the next COMMIT. The channel is closed when it has come and waits. The client may go away; its
// connection to the server stays open, in the transaction, until [Proxy.ReleaseCommit] or [Proxy.DropCommit].
func (p *Proxy) HoldCommit() <-chan struct{} { return p.holdBack(1, commits) }

// HoldCommitOf is [Proxy.HoldCommit] for the n-th transaction from now in which a statement matches, or for such a
// statement that commits by itself.
func (p *Proxy) HoldCommitOf(n int, match func(sql string) bool) <-chan struct{} {
	return p.holdBack(n, ending(match))
}

func (p *Proxy) holdBack(n int, match func(s statement) bool) <-chan struct{} {
	r := &rule{match: match, left: n, action: holdBack, caught: make(chan struct{})}
	p.add(r)
	return r.caught
}

// ReleaseCommit forwards the oldest held COMMIT and returns when the server has answered it: the delayed COMMIT.
// It fails the test if none is held, or the server does not answer.
func (p *Proxy) ReleaseCommit(t testing.TB) {
	t.Helper()
	p.settle(t, true)
}

// DropCommit loses the oldest held COMMIT with its connection, so that the server rolls the transaction back.
func (p *Proxy) DropCommit(t testing.TB) {
	t.Helper()
	p.settle(t, false)
}

// FreeCommit is [Proxy.ReleaseCommit] for a server that may be gone by now: what became of the COMMIT is the result.
func (p *Proxy) FreeCommit() error { return p.free(true) }

func (p *Proxy) settle(t testing.TB, forward bool) {
	t.Helper()
	if err := p.free(forward); err != nil {
		t.Fatalf("pgtest: the held COMMIT: %v", err)
	}
}

func (p *Proxy) free(forward bool) error {
	p.mu.Lock()
	if len(p.held) == 0 {
		p.mu.Unlock()
		return errors.New("none is held")
	}
	h := p.held[0]
	p.held = p.held[1:]
	p.mu.Unlock()
	h.verdict <- forward
	return <-h.done
}

func (p *Proxy) add(r *rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, r)
}

// judge counts the statement in all rules and returns the one that it makes due, or nil.
func (p *Proxy) judge(s statement) *rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	var due *rule
	p.rules = slices.DeleteFunc(p.rules, func(r *rule) bool {
		if due != nil && r.action == holdBack || !r.match(s) { // a second hold waits for its own statement
			return false
		}
		r.left--
		if r.left > 0 {
			return false
		}
		if due == nil {
			due = r
		}
		return true
	})
	return due
}

// hold registers a statement that waits, and tells who called HoldCommit.
func (p *Proxy) hold(r *rule) *hold {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := &hold{verdict: make(chan bool, 1), done: make(chan error, 1)}
	if p.closed {
		h.verdict <- false
	} else {
		p.held = append(p.held, h)
	}
	close(r.caught)
	return h
}

func (p *Proxy) all() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	links := make([]*link, 0, len(p.links))
	for l := range p.links {
		links = append(links, l)
	}
	return links
}

// gate returns a channel that is closed while bytes may pass.
func (p *Proxy) gate() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // a client that gave up in the queue
		}
		l := newLink(p, client)
		if !p.join(l) {
			client.Close()
			return
		}
		p.wg.Go(l.run)
	}
}

func (p *Proxy) join(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.links[l] = true
	return true
}

func (p *Proxy) leave(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// close ends everything and waits for it. Held statements are lost.
func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	held := p.held
	p.held = nil
	p.mu.Unlock()
	p.listener.Close()
	for _, h := range held {
		h.verdict <- false
	}
	for _, l := range p.all() {
		l.close()
	}
	p.wg.Wait()
}
