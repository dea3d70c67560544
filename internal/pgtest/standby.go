//go:build unix

package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// Standby makes a copy of the running server that follows it, and makes the server wait for it at each commit from then
// on. When it returns, all that was committed is on the standby too. The standby ends with the test; it is a [Server]
// that takes no writes until [Server.Promote].
//
// A server has one standby at a time. While that is away the server's commits wait.
func (s *Server) Standby(t testing.TB) (*Server, error) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	b, err := newDir(ctx, s.faked != "")
	if err != nil {
		return nil, err
	}
	b.password = s.password
	b.own(t)
	if err := s.copyTo(b); err != nil {
		return nil, err
	}
	if err := b.settle(ctx); err != nil {
		return nil, fmt.Errorf("start the standby: %w", err)
	}
	if err := s.waitFor(ctx); err != nil {
		return nil, fmt.Errorf("wait for the standby: %w", err)
	}
	return b, nil
}

// copyTo makes b's cluster a copy of s that follows s. What ALTER SYSTEM has set is not copied.
func (s *Server) copyTo(b *Server) error {
	backup := b.command("pg_basebackup", "--pgdata", b.DataDir(), "--checkpoint=fast", "--wal-method=stream", "--no-sync",
		"--host=127.0.0.1", "--port="+strconv.Itoa(s.port), "--username=postgres", "--no-password")
	backup.Env = append(backup.Env, "PGPASSWORD="+s.password)
	if err := backup.Run(); err != nil {
		return fmt.Errorf("pg_basebackup: %w\n%s", err, b.tail(0))
	}
	name := filepath.Join(b.DataDir(), "postgresql.conf")
	conf, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	more := fmt.Sprintf("\nunix_socket_directories = '%s'\nwal_retrieve_retry_interval = '200ms'\n"+
		"primary_conninfo = 'host=127.0.0.1 port=%d user=postgres password=%s application_name=pgtest_standby'\n", b.dir, s.port, s.password)
	return errors.Join(b.write(name, string(conf)+more), // the last line about a setting counts
		b.write(filepath.Join(b.DataDir(), "postgresql.auto.conf"), ""),
		b.write(filepath.Join(b.DataDir(), "standby.signal"), ""))
}

// waitFor makes s wait for its standby at each commit, and returns when that has all there was before.
func (s *Server) waitFor(ctx context.Context) error {
	for _, sql := range []string{`ALTER SYSTEM SET synchronous_standby_names = '*'`, `SELECT pg_reload_conf()`} {
		if err := execute(ctx, s.URL(), sql); err != nil {
			return err
		}
	}
	err := poll(ctx, func() (ok bool, err error) {
		err = query(ctx, s.URL(), `SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'`, &ok)
		return ok, err
	})
	if err != nil {
		return err
	}
	// The view shows what its own session has read. Whether commits wait, the checkpointer says, which reads it soon.
	select {
	case <-time.After(500 * time.Millisecond):
	case <-ctx.Done():
		return ctx.Err()
	}
	var end string
	if err := query(ctx, s.URL(), `SELECT pg_current_wal_lsn()::text`, &end); err != nil {
		return err
	}
	return poll(ctx, func() (ok bool, err error) {
		err = query(ctx, s.URL(), `SELECT coalesce(bool_or(flush_lsn >= '`+end+`'::pg_lsn), false) FROM pg_stat_replication`, &ok)
		return ok, err
	})
}

// Promote makes a standby take writes. It does not ask whether the former primary is down: see [Server.Kill].
func (s *Server) Promote(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var ok bool
	if err := query(ctx, s.URL(), `SELECT pg_promote(true, 50)`, &ok); err != nil || !ok {
		t.Fatalf("pgtest: promote: %v, %v", ok, err)
	}
}

// Freeze stops all of the server's processes, as a machine that hangs does. Only [Server.Kill] and the test's end follow.
func (s *Server) Freeze(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		t.Fatal("pgtest: freeze the server: it is down")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	pid := s.process.cmd.Process.Pid
	if err := freeze(ctx, pid); err != nil {
		t.Fatalf("pgtest: freeze the server: %v", err)
	}
	pids, err := children(pid)
	if err != nil {
		t.Fatalf("pgtest: freeze the server: list its processes: %v", err)
	}
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGSTOP) // it may have ended by itself
	}
}

// Remove ends the server, if it runs, and removes its files before the test's end.
func (s *Server) Remove(t testing.TB) {
	t.Helper()
	if err := s.close(); err != nil {
		t.Errorf("pgtest: remove a server: %v", err)
	}
}
