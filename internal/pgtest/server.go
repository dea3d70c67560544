//go:build unix

package pgtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// config is what tests need of a server: durable like a real one, small, and quick to start. What a test asks
// for follows it and so wins.
const config = `
listen_addresses = '127.0.0.1'
max_connections = 200
shared_buffers = 32MB
fsync = on
synchronous_commit = on
full_page_writes = on
jit = off
timezone = 'UTC'
log_timezone = 'UTC'
log_line_prefix = '%m [%p] %q%u@%d '
log_min_messages = warning
logging_collector = off
`

// Server is a PostgreSQL cluster of a test's own, listening on 127.0.0.1 and on a Unix socket. Its methods may be
// called from several goroutines, but for those that stop and start it.
type Server struct {
	dir        string // holds data/, the Unix socket and postgres.log; removed by the supervisor
	bin        string
	port       int
	password   string
	credential *syscall.Credential // nil: run as who we are
	log        *os.File
	supervisor *supervisor
	faked      string    // library that fakes the clock; "" for the machine's
	once       sync.Once // closes it
	closed     error     // how that went; guarded by once

	mu      sync.Mutex
	process *process // guarded by mu; nil while the server is down
}

// process is one run of the postmaster.
type process struct {
	cmd  *exec.Cmd
	gone chan struct{} // closed once the process was waited for
}

// Option sets up a private server.
type Option func(*settings)

type settings struct {
	lines []string
	faked bool
}

// Setting adds a line to the server's postgresql.conf, such as "max_connections = 20".
func Setting(line string) Option {
	return func(s *settings) { s.lines = append(s.lines, line) }
}

// Private starts a cluster for this test alone. It is stopped and removed when the test ends; the end of its log is
// shown if the test failed. PAWL_TEST_POSTGRES has no influence on it.
func Private(t testing.TB, opts ...Option) *Server {
	t.Helper()
	var set settings
	for _, o := range opts {
		o(&set)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := newServer(ctx, set)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	s.own(t)
	return s
}

// own ends the server with the test.
func (s *Server) own(t testing.TB) {
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Errorf("pgtest: stop the private server: %v", err)
		}
	})
	s.showLog(t)
}

// URL is the address of the server's database called postgres, for its superuser. It stays the same over restarts.
func (s *Server) URL() string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword("postgres", s.password),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)), Path: "/postgres", RawQuery: "sslmode=disable",
	}
	return u.String()
}

// NewDatabase creates an empty database and returns its URL. It goes with the server.
func (s *Server) NewDatabase(t testing.TB) string {
	t.Helper()
	name := "pawl_test_" + strings.ToLower(rand.Text()[:16])
	if err := execute(t.Context(), s.URL(), `CREATE DATABASE `+name+` TEMPLATE template0`); err != nil {
		t.Fatalf("pgtest: create database %s: %v", name, err)
	}
	u, err := withDatabase(s.URL(), name)
	if err != nil {
		t.Fatalf("pgtest: %v", err) // unreachable unless URL returns no URL
	}
	return u
}

// Port is the TCP port on 127.0.0.1.
func (s *Server) Port() int { return s.port }

// SocketDir is the directory of the Unix socket, which asks for no password.
func (s *Server) SocketDir() string { return s.dir }

// DataDir is the cluster's data directory.
func (s *Server) DataDir() string { return filepath.Join(s.dir, "data") }

// Start starts a server that is down, recovering it if need be, and returns when it answers.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := s.start(ctx); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
}

// Stop shuts the server down in an orderly way that ends all sessions ("fast"), and returns when it is down.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	if err := s.stop(); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
}

// Restart is Stop, then Start.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Stop(t)
	s.Start(t)
}

// Kill ends all of the server's processes with SIGKILL, as a power cut or the kernel's out-of-memory killer would, and
// returns when they are gone. The next Start goes through crash recovery.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	if err := s.kill(); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
}

// SetReadOnly makes every transaction of every session read-only by default, as on a server that was demoted, or ends
// that. When it returns the change holds for all statements sent from then on, in old sessions too.
func (s *Server) SetReadOnly(t testing.TB, on bool) {
	t.Helper()
	want := "off"
	if on {
		want = "on"
	}
	ctx := t.Context()
	for _, sql := range []string{
		`ALTER SYSTEM SET default_transaction_read_only = ` + want, `SELECT pg_reload_conf()`,
	} {
		if err := execute(ctx, s.URL(), sql); err != nil {
			t.Fatalf("pgtest: set read-only %s: %v", want, err)
		}
	}
	// The postmaster reads its settings, then signals its sessions, then accepts the next connection. So once a new
	// session shows the setting, the old ones were told.
	err := poll(ctx, func() (bool, error) {
		var got string
		err := query(ctx, s.URL(), `SHOW default_transaction_read_only`, &got)
		return got == want, err
	})
	if err != nil {
		t.Fatalf("pgtest: wait for read-only %s: %v", want, err)
	}
}

// newServer makes a cluster and starts it.
func newServer(ctx context.Context, set settings) (*Server, error) {
	s, err := newDir(ctx, set.faked)
	if err != nil {
		return nil, err
	}
	if err := s.boot(ctx, set.lines); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// newDir makes a server's directory, with nothing but its log in it.
func newDir(ctx context.Context, fake bool) (*Server, error) {
	bin, err := findBinaries(ctx)
	if err != nil {
		return nil, err
	}
	credential, err := unprivileged()
	if err != nil {
		return nil, err
	}
	dir, err := makeDir("pawl-pg-", credential)
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, bin: bin, password: rand.Text(), credential: credential}
	if s.supervisor, err = startSupervisor(supervise, dir, nil); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if fake {
		if s.faked, err = FakeTime(); err == nil {
			err = s.SetClock(0)
		}
	}
	if err == nil {
		s.log, err = os.OpenFile(filepath.Join(dir, "postgres.log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// boot runs initdb and starts the server.
func (s *Server) boot(ctx context.Context, lines []string) error {
	secret := filepath.Join(s.dir, "password")
	if err := s.write(secret, s.password); err != nil {
		return err
	}
	initdb := s.command("initdb", "--pgdata", s.DataDir(), "--username=postgres", "--pwfile", secret,
		"--auth-local=trust", "--auth-host=password", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")
	if err := initdb.Run(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, s.tail(0))
	}
	conf := config
	if runtime.GOOS == "linux" { // or crash recovery first syncs the files one by one, for seconds
		conf += "recovery_init_sync_method = syncfs\n"
	}
	conf += "unix_socket_directories = '" + s.dir + "'\n" + strings.Join(lines, "\n") + "\n"
	if err := s.write(filepath.Join(s.DataDir(), "postgresql.conf"), conf); err != nil {
		return err
	}
	return s.settle(ctx)
}

// settle starts the server on a port that nobody uses.
func (s *Server) settle(ctx context.Context) (err error) {
	for range 4 { // another process may take the port between our look and the server's
		if s.port, err = freePort(); err != nil {
			return err
		}
		if err = s.start(ctx); err == nil {
			return nil
		}
	}
	return err
}

// write puts text into a file that the server's user can read.
func (s *Server) write(name, text string) error { return write(name, text, s.credential) }

// command prepares one of PostgreSQL's programs: as the unprivileged user, with none of our environment but PATH, and
// its output in the log. Its context is none of the caller's: a server outlives the call that starts it.
func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC", "HOME=" + s.dir}, s.fakeEnv()...)
	cmd.Stdout, cmd.Stderr = s.log, s.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: s.credential}
	return cmd
}

func (s *Server) start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		return errors.New("start the server: it is running")
	}
	before := s.logSize()
	p := &process{cmd: s.command("postgres", "-D", s.DataDir(), "-p", strconv.Itoa(s.port)), gone: make(chan struct{})}
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	go func() {
		defer close(p.gone)
		_ = p.cmd.Wait() // how it ended is in the log
	}()
	err := poll(ctx, func() (bool, error) {
		select {
		case <-p.gone:
			return false, errors.New("it ended at once")
		default:
		}
		var one int
		return query(ctx, s.URL(), `SELECT 1`, &one) == nil, nil
	})
	if err != nil {
		p.signal(syscall.SIGQUIT)
		<-p.gone
		return fmt.Errorf("start the server: %w\n%s", err, s.tail(before))
	}
	s.process = p
	return nil
}

func (s *Server) stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.process
	if p == nil {
		return errors.New("stop the server: it is down")
	}
	s.process = nil
	p.signal(syscall.SIGINT)
	select {
	case <-p.gone:
		return nil
	case <-time.After(patience):
		p.signal(syscall.SIGQUIT)
		<-p.gone
		return fmt.Errorf("stop the server: it was still running after %v", patience)
	}
}

// kill freezes the postmaster, so that it neither starts nor cleans up after its children, and then kills them all.
// A signal to its process group would not do: each of PostgreSQL's processes leads a session of its own.
func (s *Server) kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.process
	if p == nil {
		return errors.New("kill the server: it is down")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := freeze(ctx, p.cmd.Process.Pid); err != nil {
		return fmt.Errorf("kill the server: freeze it: %w", err)
	}
	pids, err := children(p.cmd.Process.Pid)
	if err != nil {
		p.signal(syscall.SIGCONT)
		return fmt.Errorf("kill the server: list its processes: %w", err)
	}
	s.process = nil
	p.signal(syscall.SIGKILL)
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended by itself
	}
	<-p.gone
	err = poll(ctx, func() (bool, error) {
		for _, pid := range pids {
			if alive(pid) {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("kill the server: wait for its processes: %w", err)
	}
	return s.forget()
}

// forget removes what no killed server removes: its process id, so that nobody takes a later process with the same
// number for it, and its System V segment, of which the machine has few.
func (s *Server) forget() error {
	name := filepath.Join(s.DataDir(), "postmaster.pid")
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if lines := strings.Split(string(text), "\n"); len(lines) > 6 {
		if key := strings.Fields(lines[6]); len(key) == 2 {
			_ = exec.Command("ipcrm", "-m", key[1]).Run() // best effort: a leak of 56 bytes
		}
	}
	return os.Remove(name)
}

// close ends the server, if it runs, and removes the cluster. Later calls do nothing.
func (s *Server) close() error {
	s.once.Do(func() { s.closed = s.end() })
	return s.closed
}

func (s *Server) end() error {
	s.mu.Lock()
	p := s.process
	s.process = nil
	s.mu.Unlock()
	if p != nil {
		p.signal(syscall.SIGQUIT)
		p.signal(syscall.SIGCONT) // see Freeze
		<-p.gone
	}
	err := s.supervisor.release()
	if s.log != nil {
		err = errors.Join(err, s.log.Close())
	}
	return err
}

func (p *process) signal(sig syscall.Signal) {
	_ = p.cmd.Process.Signal(sig) // an error means that it is gone, which the caller waits for anyway
}

// showLog shows what the server logs from now on, up to 60 lines, if the test fails.
func (s *Server) showLog(t testing.TB) {
	from := s.logSize()
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		if text := s.tail(from); text != "" {
			t.Logf("the end of PostgreSQL's log:\n%s", text)
		}
	})
}

func (s *Server) logSize() int64 {
	info, err := s.log.Stat()
	if err != nil {
		return 0
	}
	return info.Size()
}

// tail returns the last 60 lines of the log after an offset.
func (s *Server) tail(from int64) string {
	const most = 64 << 10
	from = max(from, s.logSize()-most)
	text, err := io.ReadAll(io.NewSectionReader(s.log, from, most))
	if err != nil {
		return "no log: " + err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-60):], []byte("\n")))
}

// unprivileged is who runs the server: PostgreSQL refuses to run as root. It is nil for who we are.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("root may not run PostgreSQL, and there is no user called postgres or nobody: run the tests as another user")
}

// makeDir makes the cluster's directory where the server's user can reach it and the socket's path is short enough
// (about 100 bytes on most systems).
func makeDir(prefix string, credential *syscall.Credential) (string, error) {
	parent := os.TempDir()
	if len(parent) > 60 || credential != nil && !reachable(parent) {
		parent = "/tmp"
	}
	dir, err := os.MkdirTemp(parent, prefix)
	if err != nil {
		return "", fmt.Errorf("make the server's directory: %w", err)
	}
	if credential != nil {
		if err := os.Chown(dir, int(credential.Uid), int(credential.Gid)); err != nil {
			return "", errors.Join(err, os.Remove(dir))
		}
	}
	return dir, nil
}

// reachable reports whether everybody may go through dir and all that is above it.
func reachable(dir string) bool {
	for dir = filepath.Clean(dir); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
	}
}

// freePort looks below the range from which systems choose the ports of outgoing connections, or a connection could
// take the port while the server is down.
func freePort() (int, error) {
	var err error
	for range 100 {
		port := 20000 + mathrand.IntN(12000)
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("find a free port: %w", err)
}

// poll calls done every few milliseconds until it says true or returns an error, or ctx ends.
func poll(ctx context.Context, done func() (bool, error)) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
