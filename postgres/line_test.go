package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/pgtest"
	"github.com/pawlrun/pawl/postgres"
)

// shared is a store behind a proxy, on whose connection for shared writes all statements of the test are prepared.
func shared(t *testing.T) (*postgres.Store, *pgtest.Proxy) {
	t.Helper()
	url := pgtest.URL(t)
	open(t, url)
	proxy := pgtest.NewProxy(t, url)
	s, err := postgres.Open(t.Context(), proxy.Rewrite(t, url), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := <-sends(t, s, starts(newRun(), newRun())); err != nil {
		t.Fatal(err)
	}
	if err := <-sends(t, s, nobody()); !errors.Is(err, pawl.ErrOneByOne) {
		t.Fatalf("a write for a run that is not there: %v", err)
	}
	return s, proxy
}

func sends(t *testing.T, s *postgres.Store, changes []pawl.Change) chan error {
	done := make(chan error, 1)
	go func() {
		_, err := s.Write(t.Context(), changes)
		done <- err
	}()
	return done
}

func starts(rows ...pawl.RunRow) (all []pawl.Change) {
	for i := range rows {
		all = append(all, pawl.Change{Start: &rows[i]})
	}
	return all
}

// nobody holds the run that the change is for.
func nobody() []pawl.Change {
	var rows []*pawl.StepRow
	run := newRun().ID
	for _, name := range []string{"a", "b"} {
		rows = append(rows, &pawl.StepRow{Run: run, Name: name, Kind: fault.KindRepeatable, State: pawl.StepSucceeded, Attempt: 1, Epoch: 1,
			Begun: pawl.AtWrite, Ended: pawl.AtWrite, InputHash: []byte{1}, Value: []byte("1"), ValueSize: 1})
	}
	return []pawl.Change{{Run: run, Epoch: 1, Token: 1, Insert: rows}}
}

// still checks that a write has no answer yet.
func still(t *testing.T, done chan error) {
	t.Helper()
	select {
	case err := <-done:
		t.Fatalf("a write that cannot have an answer: %v", err)
	case <-time.After(100 * time.Millisecond): // time to be answered on a connection of its own
	}
}

// A second shared write is sent behind the first one, on its connection, and each has its own answer.
func TestSharedWritesFollowEachOther(t *testing.T) {
	t.Parallel()
	s, proxy := shared(t)
	held := proxy.HoldCommit()
	first, second := newRun(), newRun()
	a := sends(t, s, starts(first))
	<-held
	still(t, a) // until it is known here too that it is sent
	b := sends(t, s, starts(second, newRun()))
	still(t, b)
	go proxy.ReleaseCommit(t)
	for name, done := range map[string]chan error{"first": a, "second": b} {
		if err := <-done; err != nil {
			t.Errorf("the %s: %v", name, err)
		}
	}
	if !there(t, s, first.ID) || !there(t, s, second.ID) {
		t.Error("a run is not there")
	}
}

// What is sent behind a write that fails, in the transaction that it leaves, is sent again.
func TestSharedWriteBehindOneThatFails(t *testing.T) {
	t.Parallel()
	s, proxy := shared(t)
	proxy.BlackHole(true)
	a := sends(t, s, nobody())
	still(t, a)
	row := newRun()
	b := sends(t, s, starts(row))
	still(t, b)
	proxy.BlackHole(false)
	if err := <-a; !errors.Is(err, pawl.ErrOneByOne) {
		t.Errorf("the first: %v, want ErrOneByOne", err)
	}
	if err := <-b; err != nil {
		t.Errorf("the second: %v", err)
	}
	if !there(t, s, row.ID) {
		t.Error("the second one's run is not there")
	}
	if err := <-sends(t, s, starts(newRun())); err != nil {
		t.Errorf("after it: %v", err)
	}
}

// A connection that breaks leaves both writes without an answer: nobody knows what has become of either.
func TestSharedWritesLoseTheirConnection(t *testing.T) {
	t.Parallel()
	s, proxy := shared(t)
	held := proxy.HoldCommit()
	a := sends(t, s, starts(newRun()))
	<-held
	still(t, a)
	b := sends(t, s, starts(newRun()))
	still(t, b)
	proxy.CutAll()
	for name, done := range map[string]chan error{"first": a, "second": b} {
		if err := <-done; !errors.Is(err, pawl.ErrCommitUnknown) {
			t.Errorf("the %s: %v, want ErrCommitUnknown", name, err)
		}
	}
	if err := <-sends(t, s, starts(newRun())); err != nil {
		t.Errorf("after it: %v", err)
	}
}

// Many at once, some of which fail: each has the answer that it would have alone.
func TestSharedWritesKeepTheirAnswers(t *testing.T) {
	t.Parallel()
	s, _ := shared(t)
	failing, ends := context.WithCancel(t.Context())
	failed := make(chan int)
	go func() {
		n := 0
		for ; failing.Err() == nil; n++ {
			if _, err := s.Write(t.Context(), nobody()); !errors.Is(err, pawl.ErrOneByOne) {
				t.Errorf("a write for a run that is not there: %v", err)
			}
		}
		failed <- n
	}()
	for range 300 {
		row := newRun()
		if _, err := s.Write(t.Context(), starts(row)); err != nil {
			t.Errorf("a start: %v", err)
		} else if !there(t, s, row.ID) {
			t.Error("a run is not there")
		}
	}
	ends()
	if n := <-failed; n < 100 {
		t.Errorf("%d writes failed beside: the test shows little", n)
	}
}

// A peer that reads no more holds up nobody beyond the end of their contexts.
func TestSharedWriteThatIsNotRead(t *testing.T) {
	t.Parallel()
	addr := pgtest.URL(t)
	open(t, addr)
	relay, paused, held := relay(t, addr)
	s, err := postgres.Open(t.Context(), relay, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if err := <-sends(t, s, starts(newRun())); err != nil { // so that it is prepared
		t.Fatal(err)
	}
	pause := make(chan struct{})
	paused.Store(&pause)
	big := newRun()
	big.Input = bytes.Repeat([]byte("1"), 32<<20) // more than the buffers on the way hold
	a := sends(t, s, starts(big))
	<-held
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	b := make(chan error, 1)
	go func() {
		_, err := s.Write(ctx, starts(newRun()))
		b <- err
	}()
	select {
	case err := <-b:
		if err == nil {
			t.Error("written, though nothing is read")
		}
	case <-time.After(5 * time.Second): // less than what is waited for an answer
		t.Error("a write does not heed its context while another one is not read")
	}
	close(pause)
	if err := <-a; err != nil {
		t.Errorf("the big one, when it is read again: %v", err)
	}
}

// relay gives a URL that passes everything on to that of addr, but for what clients send while the channel, if any, is open. held is
// closed when the first of them has sent something then.
func relay(t *testing.T, addr string) (url string, paused *atomic.Pointer[chan struct{}], held chan struct{}) {
	t.Helper()
	cfg, err := pgx.ParseConfig(addr)
	if err != nil {
		t.Fatal(err)
	}
	target := net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port)))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	paused, held = new(atomic.Pointer[chan struct{}]), make(chan struct{})
	holds := sync.OnceFunc(func() { close(held) })
	pass := func(to, from net.Conn, paused *atomic.Pointer[chan struct{}]) {
		defer func() { _, _ = to.Close(), from.Close() }()
		for buf := make([]byte, 4096); ; {
			if pause := paused.Load(); pause != nil {
				holds()
				<-*pause
			}
			n, err := from.Read(buf)
			if err == nil {
				_, err = to.Write(buf[:n])
			}
			if err != nil {
				return
			}
		}
	}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				return
			}
			go pass(server, client, paused)
			go pass(client, server, new(atomic.Pointer[chan struct{}]))
		}
	}()
	return strings.Replace(addr, target, l.Addr().String(), 1), paused, held
}

// A connection whose session takes no writes is not used again.
func TestSharedWriteDropsASessionThatTakesNone(t *testing.T) {
	t.Parallel()
	s := open(t, pgtest.URL(t))
	if err := <-sends(t, s, starts(newRun())); err != nil {
		t.Fatal(err)
	}
	_, err := s.DB().ExecContext(t.Context(), `CREATE SEQUENCE session; CREATE SEQUENCE calls; CREATE TABLE again (same bool);
CREATE FUNCTION refuse_first() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	IF nextval('calls') = 1 THEN
		PERFORM setval('session', pg_backend_pid()); -- stays, whatever becomes of the transaction
		RAISE EXCEPTION 'test' USING ERRCODE = '25006';
	END IF;
	INSERT INTO again SELECT last_value = pg_backend_pid() FROM session;
	RETURN NULL;
END $$;
CREATE TRIGGER refuse AFTER INSERT ON pawl_runs FOR EACH ROW EXECUTE FUNCTION refuse_first()`)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-sends(t, s, starts(newRun())); err == nil || errors.Is(err, pawl.ErrCommitUnknown) {
		t.Errorf("a write in a session that takes none: %v", err)
	}
	if err := <-sends(t, s, starts(newRun())); err != nil {
		t.Errorf("the next one: %v", err)
	}
	var same bool
	if err := s.DB().QueryRowContext(t.Context(), `SELECT same FROM again`).Scan(&same); err != nil || same {
		t.Errorf("the next one used the same session: %t, %v", same, err)
	}
}

// The server may have much to say before it has been told everything: then neither waits for the other.
func TestSharedWriteIsReadWhileItIsSent(t *testing.T) {
	t.Parallel()
	server := pgtest.Private(t)
	url := server.NewDatabase(t)
	open(t, url)
	at, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	s, err := postgres.Open(t.Context(), fmt.Sprintf("host=%s port=%d user=%s dbname=%s", server.SocketDir(), server.Port(), at.User, at.Database), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	run := newRun()
	run.State, run.Owner, run.Token, run.Epoch = pawl.Running, "0192d0c0-0000-7000-8000-000000000001", 1, 1
	if err := <-sends(t, s, starts(run)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.DB().ExecContext(t.Context(), `
CREATE FUNCTION talk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	RAISE NOTICE '%', repeat('x', 20000);
	RETURN NULL;
END $$;
CREATE TRIGGER talk AFTER INSERT ON pawl_runs FOR EACH ROW EXECUTE FUNCTION talk()`); err != nil {
		t.Fatal(err)
	}
	var rows []pawl.RunRow
	for range 200 {
		rows = append(rows, newRun())
	}
	changes := starts(rows...) // first, so that 4 MB of notices come before 4 MB of results have been read
	steps := nobody()[0]
	steps.Run = run.ID
	for _, row := range steps.Insert {
		row.Run, row.Value = run.ID, bytes.Repeat([]byte("1"), 2<<20-4096)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := s.Write(ctx, append(changes, steps)); err != nil {
		t.Errorf("%.300v", err)
	}
}

// A session that has lost its prepared statements is used no more, and what was to be written on it is written.
func TestSharedWriteOnAForgetfulSession(t *testing.T) {
	t.Parallel()
	s, _ := shared(t)
	if _, err := s.DB().ExecContext(t.Context(), `
CREATE SEQUENCE calls;
CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	IF nextval('calls') = 1 THEN EXECUTE 'DEALLOCATE ALL'; END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER forget AFTER INSERT ON pawl_runs FOR EACH ROW EXECUTE FUNCTION forget()`); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		row := newRun()
		if err := <-sends(t, s, starts(row, newRun())); err != nil || !there(t, s, row.ID) {
			t.Errorf("%v; the run is there: %t", err, there(t, s, row.ID))
		}
	}
}
