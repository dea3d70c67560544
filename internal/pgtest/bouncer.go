//go:build unix

package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// errNoBouncer says what to do.
var errNoBouncer = errors.New("PgBouncer is not installed: as root `apt-get install pgbouncer` (Debian, Ubuntu)")

// PgBouncer returns the program's path, or an error that says what to install.
func PgBouncer() (string, error) {
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errNoBouncer
}

// bounce is run by /bin/sh with the directory as $1, and ends as [supervise] does.
const bounce = `
cd "$1" || exit 1
"$(cat program)" -q pgbouncer.ini </dev/null >>log 2>&1 &
pid=$!
while read -r _; do :; done
kill -KILL "$pid" 2>/dev/null
wait
rm -rf "$1"
`

// bouncerConf: a session is lent for one transaction. Clients are let in as they come; the server's password is here.
const bouncerConf = `[databases]
* = host=%s port=%s user=%s password='%s'
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 1000
default_pool_size = 60
server_login_retry = 0.2
server_connect_timeout = 3
query_wait_timeout = 10
logfile = %s
pidfile = %s
`

// Bouncer is a PgBouncer of a test's own, in transaction mode: no statement of a client's may rely on what an earlier
// transaction of it has left in a session.
type Bouncer struct {
	port       int
	dir        string
	supervisor *supervisor
}

// NewBouncer starts a PgBouncer in front of the server that the URL target names. It needs [PgBouncer]. It ends with
// the test.
func NewBouncer(t testing.TB, target string) *Bouncer {
	t.Helper()
	b, err := newBouncer(target)
	if err != nil {
		t.Fatalf("pgtest: start PgBouncer: %v", err)
	}
	t.Cleanup(func() { _ = b.supervisor.release() }) // the shell's exit status is that of rm
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = poll(ctx, func() (bool, error) {
		c, err := net.Dial("tcp", b.address())
		if err != nil {
			return false, nil
		}
		return true, c.Close()
	})
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(b.dir, "log"))
		t.Fatalf("pgtest: wait for PgBouncer: %v\n%s", err, log)
	}
	return b
}

func newBouncer(target string) (*Bouncer, error) {
	program, err := PgBouncer()
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(target)
	if err != nil || u.Hostname() == "" {
		return nil, errors.New("its target must be a URL with a host")
	}
	credential, err := unprivileged() // it refuses to be run by root, too
	if err != nil {
		return nil, err
	}
	b := &Bouncer{}
	if b.port, err = freePort(); err != nil {
		return nil, err
	}
	if b.dir, err = makeDir("pawl-pgbouncer-", credential); err != nil {
		return nil, err
	}
	password, _ := u.User.Password()
	conf := fmt.Sprintf(bouncerConf, u.Hostname(), u.Port(), u.User.Username(), password, b.port,
		filepath.Join(b.dir, "log"), filepath.Join(b.dir, "pid"))
	err = errors.Join(write(filepath.Join(b.dir, "pgbouncer.ini"), conf, credential), write(filepath.Join(b.dir, "program"), program, credential))
	if err == nil {
		b.supervisor, err = startSupervisor(bounce, b.dir, credential)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(b.dir))
	}
	return b, nil
}

func (b *Bouncer) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port)) }

// Rewrite returns a URL of the server behind the pooler as one that leads through it, and names no prepared statement:
// see package postgres.
func (b *Bouncer) Rewrite(t testing.TB, rawURL string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal("pgtest: a pooler rewrites only URLs")
	}
	u.Host = b.address()
	q := u.Query()
	q.Set("sslmode", "disable")
	q.Set("default_query_exec_mode", "cache_describe")
	u.RawQuery = q.Encode()
	return u.String()
}

// write puts text into a file that the user in credential can read; nil is who we are.
func write(name, text string, credential *syscall.Credential) error {
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		return err
	}
	if credential == nil {
		return nil
	}
	return os.Chown(name, int(credential.Uid), int(credential.Gid))
}
