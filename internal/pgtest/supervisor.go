//go:build unix

package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// supervise is run by /bin/sh with the cluster's directory as $1 and the read end of a pipe as its standard input. The
// test process alone holds the write end, so the loop ends when that process closes it or dies, by whatever death.
// Nothing in the test process can do this job: a SIGKILL or os.Exit runs no deferred call, and Linux's parent-death
// signal follows the thread that forked, which Go may end at any time.
//
// Only a postmaster that nobody reaped left a postmaster.pid (see [Server.Kill]), so the number in it is not stale. The
// removal is tried several times because initdb or a starting server may still be writing; without its files it ends.
const supervise = `
while read -r _; do :; done
pidfile=$1/data/postmaster.pid
if read -r pid <"$pidfile" 2>/dev/null && [ "${pid:-0}" -gt 1 ]; then
	kill -CONT "$pid" 2>/dev/null
	kill -QUIT "$pid" 2>/dev/null
	n=0
	while [ -e "$pidfile" ] && [ "$n" -lt 80 ]; do sleep 0.1; n=$((n+1)); done
	[ -e "$pidfile" ] && kill -KILL "$pid" 2>/dev/null
fi
n=0
while rm -rf "$1" 2>/dev/null; [ -e "$1" ] && [ "$n" -lt 50 ]; do sleep 0.1; n=$((n+1)); done
sleep 0.3
rm -rf "$1"
`

// supervisor stops a server and removes its directory when the test process lets go of the lifeline.
type supervisor struct {
	lifeline *os.File // write end of the pipe; closed on exec, so no child of the test process holds it too
	cmd      *exec.Cmd
}

// startSupervisor runs a script, with the directory as $1, as credential says; nil is who we are.
func startSupervisor(script, dir string, credential *syscall.Credential) (*supervisor, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make the supervisor's pipe: %w", err)
	}
	// Its output goes nowhere: an inherited stderr would make `go test` wait for it.
	cmd := exec.Command("/bin/sh", "-c", script, "pgtest", dir)
	cmd.Stdin = r
	cmd.Dir = "/"
	// A session of its own, so that ^C at a terminal ends the tests but not the clean-up.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: credential}
	err = cmd.Start()
	err = errors.Join(err, r.Close()) // the supervisor has its own copy
	if err != nil {
		return nil, fmt.Errorf("start the supervisor: %w", errors.Join(err, w.Close()))
	}
	return &supervisor{lifeline: w, cmd: cmd}, nil
}

// release lets the supervisor do its work, and waits for it.
func (s *supervisor) release() error {
	return errors.Join(s.lifeline.Close(), s.cmd.Wait())
}
