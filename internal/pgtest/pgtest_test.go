//go:build unix

package pgtest_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pawlrun/pawl/internal/pgtest"
)

func TestURLIsAFreshDatabaseThatIsDropped(t *testing.T) {
	t.Parallel()
	var first, second string
	t.Run("use", func(t *testing.T) {
		a, b := connect(t, pgtest.URL(t)), connect(t, pgtest.URL(t))
		exec1(t, a, `CREATE TABLE only_in_a (n int)`)
		if got := scan[bool](t, b, `SELECT to_regclass('only_in_a') IS NULL`); !got {
			t.Error("two calls of URL share a database")
		}
		first, second = scan[string](t, a, `SELECT current_database()`), scan[string](t, b, `SELECT current_database()`)
		if !strings.HasPrefix(first, "pawl_test_") {
			t.Errorf("the database is called %s, want pawl_test_*", first)
		}
	})
	c := connect(t, pgtest.URL(t))
	left := scan[int](t, c, `SELECT count(*)::int FROM pg_database WHERE datname IN ($1, $2)`, first, second)
	if left != 0 {
		t.Errorf("%d databases outlive their test, want 0", left)
	}
}

func TestPrivateServer(t *testing.T) {
	t.Parallel()
	s := pgtest.Private(t, pgtest.Setting("max_connections = 23"))
	db := s.NewDatabase(t)
	exec1(t, connect(t, db), `CREATE TABLE kept (n int)`)
	count := func(t *testing.T) int { return scan[int](t, connect(t, db), `SELECT count(*)::int FROM kept`) }

	t.Run("setting", func(t *testing.T) {
		conn := connect(t, s.URL())
		for name, want := range map[string]string{
			"max_connections": "23", "fsync": "on", "synchronous_commit": "on", "data_directory": s.DataDir(),
			"unix_socket_directories": s.SocketDir(), "port": strconv.Itoa(s.Port()), "log_min_messages": "warning",
		} {
			if got := scan[string](t, conn, `SELECT current_setting($1)`, name); got != want {
				t.Errorf("%s = %q, want %q", name, got, want)
			}
		}
	})
	t.Run("socket", func(t *testing.T) {
		conn := connect(t, fmt.Sprintf("host=%s port=%d user=postgres dbname=postgres", s.SocketDir(), s.Port()))
		exec1(t, conn, `SELECT 1`)
	})
	t.Run("password", func(t *testing.T) {
		config := parse(t, s.URL())
		config.Password = "wrong"
		if conn, err := pgx.ConnectConfig(t.Context(), config); err == nil {
			conn.Close(t.Context())
			t.Error("the TCP port lets anybody in")
		}
	})
	t.Run("kill keeps what was committed", func(t *testing.T) {
		conn := connect(t, db)
		exec1(t, conn, `INSERT INTO kept VALUES (1)`)
		exec1(t, conn, `BEGIN`)
		exec1(t, conn, `INSERT INTO kept VALUES (2)`)
		s.Kill(t)
		mustRefuse(t, s)
		if left := processesIn(t, s.DataDir()); len(left) > 0 {
			t.Errorf("processes %v survive the kill", left)
		}
		s.Start(t)
		if got := count(t); got != 1 {
			t.Errorf("%d rows after a kill, want 1", got)
		}
	})
	t.Run("stop ends sessions", func(t *testing.T) {
		conn := connect(t, db)
		s.Stop(t)
		mustRefuse(t, s)
		if err := conn.Ping(t.Context()); err == nil {
			t.Error("a session outlives its server")
		}
		s.Start(t)
		s.Restart(t)
		if got := count(t); got != 1 {
			t.Errorf("%d rows after restarts, want 1", got)
		}
	})
	t.Run("read-only reaches old sessions", func(t *testing.T) {
		conn := connect(t, db)
		s.SetReadOnly(t, true)
		if _, err := conn.Exec(t.Context(), `INSERT INTO kept VALUES (3)`); err == nil {
			t.Error("a session writes after SetReadOnly(true)")
		}
		s.NewDatabase(t) // pgtest's own sessions still may
		s.SetReadOnly(t, false)
		exec1(t, conn, `INSERT INTO kept VALUES (4)`)
	})
}

// TestNothingOutlivesTheProcess runs a process with both kinds of server and looks whether they end with it.
func TestNothingOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"exit", "kill", "kill-stopped"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestServersOfAnotherProcess$", "-test.v")
			cmd.Env = append(os.Environ(), "PGTEST_CHILD="+how, "PAWL_TEST_POSTGRES=")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var dirs []string
			for lines := bufio.NewScanner(out); lines.Scan(); {
				if dir, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
					dirs = append(dirs, dir)
				}
				if lines.Text() == "ready" {
					break
				}
			}
			if len(dirs) != 2 {
				t.Fatalf("the process started %d servers, want 2", len(dirs))
			}
			if how != "exit" {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
			_ = cmd.Wait() // it was killed, or exited with 3
			for _, dir := range dirs {
				waitFor(t, "the removal of "+dir, func() bool {
					_, err := os.Stat(filepath.Dir(dir))
					return os.IsNotExist(err) && len(processesIn(t, dir)) == 0
				})
			}
		})
	}
}

// TestServersOfAnotherProcess is the process of the test above.
func TestServersOfAnotherProcess(t *testing.T) {
	how := os.Getenv("PGTEST_CHILD")
	if how == "" {
		return // this test is a program; the test above runs it
	}
	fmt.Println("data:", scan[string](t, connect(t, pgtest.URL(t)), `SELECT current_setting('data_directory')`))
	s := pgtest.Private(t)
	fmt.Println("data:", s.DataDir())
	if how == "kill-stopped" {
		text, err := os.ReadFile(filepath.Join(s.DataDir(), "postmaster.pid"))
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.Split(string(text), "\n")[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil { // as if we died in the midst of Kill
			t.Fatal(err)
		}
	}
	fmt.Println("ready")
	if how == "exit" {
		os.Exit(3)
	}
	<-t.Context().Done() // never: we are killed
}

// processesIn returns the processes whose working directory is dir: PostgreSQL's all are. Without /proc it sees none.
func processesIn(t *testing.T, dir string) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, link := range links {
		if cwd, err := os.Readlink(link); err == nil && strings.TrimSuffix(cwd, " (deleted)") == dir {
			found = append(found, link)
		}
	}
	return found
}

func mustRefuse(t *testing.T, s *pgtest.Server) {
	t.Helper()
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port())))
	if err == nil {
		conn.Close()
		t.Error("somebody listens on the port of a server that is down")
	}
}

func parse(t *testing.T, url string) *pgx.ConnConfig {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), parse(t, url))
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) }) // most were cut
	return conn
}

func exec1(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func scan[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) T {
	t.Helper()
	var got T
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&got); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return got
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
