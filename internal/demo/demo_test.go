//go:build unix

package demo_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlrun/pawl/internal/demo"
	"github.com/pawlrun/pawl/internal/pgtest"
)

// asDemo makes this test binary the demo's program, for the control process and its workers.
const asDemo = "PAWL_DEMO_TEST_PROCESS"

func TestMain(m *testing.M) {
	if os.Getenv(asDemo) == "" {
		os.Exit(m.Run())
	}
	if err := demo.Command().ExecuteContext(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// program is the demo in a process group of its own, with a directory of its own for temporary files.
func program(t *testing.T, args ...string) (cmd *exec.Cmd, tmp string) {
	t.Helper()
	tmp = t.TempDir()
	cmd = exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), asDemo+"=1", "TMPDIR="+tmp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd, tmp
}

const wantRows = `
{"mode":"plain","crash":"none","fetches":1,"paid_calls":1,"rows":1,"emails":1,"state":"succeeded","inbox":0}
{"mode":"pawl","crash":"none","fetches":1,"paid_calls":1,"rows":1,"emails":1,"state":"succeeded","inbox":0}
{"mode":"plain","crash":"before-notify","fetches":2,"paid_calls":2,"rows":2,"emails":1,"state":"succeeded","inbox":0}
{"mode":"pawl","crash":"before-notify","fetches":1,"paid_calls":1,"rows":1,"emails":1,"state":"succeeded","inbox":0}
{"mode":"plain","crash":"intent-written","fetches":2,"paid_calls":2,"rows":2,"emails":1,"state":"succeeded","inbox":0}
{"mode":"pawl","crash":"intent-written","fetches":1,"paid_calls":1,"rows":1,"emails":1,"state":"succeeded","inbox":1}
{"mode":"plain","crash":"effect-done","fetches":2,"paid_calls":2,"rows":2,"emails":2,"state":"succeeded","inbox":0}
{"mode":"pawl","crash":"effect-done","fetches":1,"paid_calls":1,"rows":1,"emails":1,"state":"succeeded","inbox":1}
{"mode":"plain","crash":"journalled","fetches":2,"paid_calls":2,"rows":2,"emails":2,"state":"succeeded","inbox":0}
{"mode":"pawl","crash":"journalled","fetches":1,"paid_calls":1,"rows":1,"emails":1,"state":"succeeded","inbox":0}
{"mode":"plain","crash":"last-write","fetches":2,"paid_calls":2,"rows":2,"emails":2,"state":"succeeded","inbox":0}
{"mode":"pawl","crash":"last-write","fetches":1,"paid_calls":1,"rows":1,"emails":1,"state":"succeeded","inbox":0}
`

// The two subtests are not parallel: each has a dozen processes that must renew short leases.
func TestKilledWorkersSendOneEmail(t *testing.T) {
	for _, store := range []string{"sqlite", "postgres"} {
		t.Run(store, func(t *testing.T) {
			db := filepath.Join(t.TempDir(), "runs.db")
			if store == "postgres" {
				db = pgtest.URL(t)
			}
			cmd, tmp := program(t, "-o", "json", "--db", db)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			if err := cmd.Run(); err != nil {
				t.Errorf("the demo failed: %v\n%s", err, &stderr)
			}
			if diff := cmp.Diff(stdout.String(), strings.TrimPrefix(wantRows, "\n")); diff != "" {
				t.Errorf("rows (-got +want):\n%s", diff)
			}
			for line := range strings.Lines(stdout.String()) {
				if !json.Valid([]byte(line)) {
					t.Errorf("not JSON: %s", line)
				}
			}
			hint := "pawl runs list --db "
			if store == "postgres" { // its URL has a password
				hint = "export PAWL_DB="
			}
			if !strings.Contains(stderr.String(), hint) {
				t.Errorf("nothing says how to look at the runs:\n%s", &stderr)
			}
			if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
				t.Errorf("temporary files although --db was given: %v, %v", left, err)
			}
			waitForGroup(t, cmd.Process.Pid)
		})
	}
}

func TestInterruptLeavesNothing(t *testing.T) {
	cmd, tmp := program(t)
	stop(t, cmd, os.Interrupt)
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("after an interrupt temporary files are left: %v, %v", left, err)
	}
}

func TestWorkersDieWithTheControlProcess(t *testing.T) {
	cmd, _ := program(t)
	stop(t, cmd, os.Kill)
}

// stop starts the demo, signals the control process when some of the workers have been killed, and waits until its
// group has no process any more.
func stop(t *testing.T, cmd *exec.Cmd, sig os.Signal) {
	t.Helper()
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var seen []string
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		seen = append(seen, lines.Text())
		if len(seen) == 3 { // where the database is, and two scenarios of the first to end
			break
		}
	}
	if len(seen) < 3 {
		t.Errorf("the demo ended early: %q", seen)
	}
	if err := cmd.Process.Signal(sig); err != nil {
		t.Error(err)
	}
	for lines.Scan() {
		seen = append(seen, lines.Text())
	}
	if err := cmd.Wait(); err == nil {
		t.Errorf("the demo succeeded although it was stopped: %q", seen)
	}
	waitForGroup(t, cmd.Process.Pid)
}

// waitForGroup waits until no process of the group is left.
func waitForGroup(t *testing.T, group int) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) {
		select {
		case <-tick.C:
		case <-deadline:
			t.Error("workers outlive the demo")
			if err := syscall.Kill(-group, syscall.SIGKILL); err != nil {
				t.Log(err)
			}
			return
		}
	}
}
