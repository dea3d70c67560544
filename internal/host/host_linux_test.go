package host_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pawlrun/pawl/internal/host"
)

// child starts a process that runs until it is killed, with this comm, and returns it with its identity.
func child(t *testing.T, comm string) (*exec.Cmd, host.Identity) {
	t.Helper()
	me := host.Self()
	if me.PIDNS == "" || me.Boot == "" || me.Start == "" {
		t.Skipf("this system tells too little: %+v", me)
	}
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip(err)
	}
	link := filepath.Join(t.TempDir(), comm)
	if err := os.Symlink(sleep, link); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(link, "600")
	cmd.Args[0] = sleep // for binaries that go by their name
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	id := me
	id.PID = cmd.Process.Pid
	id.Start = startOf(t, id.PID)
	return cmd, id
}

// startOf reads the start time in another way than the package: the 22nd field, where comm has none of its own ")".
func startOf(t *testing.T, pid int) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(data), ") ")
	return strings.Split(parts[len(parts)-1], " ")[19]
}

func TestLivingChildIsAlive(t *testing.T) {
	t.Parallel()
	for _, comm := range []string{"sleep", "a) Z 1 (b", "x\ny) Z"} {
		if _, id := child(t, comm); host.Dead(id) {
			t.Errorf("the living child %q is said to be dead: %+v", comm, id)
		}
	}
}

func TestKilledChildIsDead(t *testing.T) {
	t.Parallel()
	cmd, id := child(t, "sleep")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// Until we wait for it, it is a zombie: WNOWAIT returns once it is one, and leaves it.
	for {
		err := unix.Waitid(unix.P_PID, id.PID, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", id.PID)); err != nil || !strings.Contains(string(data), ") Z ") {
		t.Fatalf("no zombie: %s, %v", data, err)
	}
	if !host.Dead(id) {
		t.Errorf("a zombie is not known to be dead: %+v", id)
	}
	_ = cmd.Wait()
	if !host.Dead(id) {
		t.Errorf("a killed child is not known to be dead: %+v", id)
	}
	id.Machine = ""
	if !host.Dead(id) {
		t.Error("without a machine id, the equal boot id does not suffice")
	}
}

func TestWhatIsUnknownIsAlive(t *testing.T) {
	t.Parallel()
	cmd, gone := child(t, "sleep")
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if !host.Dead(gone) {
		t.Fatalf("not dead: %+v", gone)
	}
	for what, change := range map[string]func(*host.Identity){
		"no boot":                    func(id *host.Identity) { id.Boot = "" },
		"no pid namespace":           func(id *host.Identity) { id.PIDNS = "" },
		"another pid namespace":      func(id *host.Identity) { id.PIDNS = "pid:[1]" },
		"no pid":                     func(id *host.Identity) { id.PID = 0 },
		"a negative pid":             func(id *host.Identity) { id.PID = -id.PID },
		"no start":                   func(id *host.Identity) { id.Start = "" },
		"another boot, no machine":   func(id *host.Identity) { id.Machine, id.Boot = "", "other" },
		"another boot and machine":   func(id *host.Identity) { id.Machine, id.Boot = "other", "other" },
		"no machine, no boot either": func(id *host.Identity) { id.Machine, id.Boot = "", "" },
	} {
		id := gone
		change(&id)
		if host.Dead(id) {
			t.Errorf("%s: said to be dead: %+v", what, id)
		}
	}
	if gone.Machine != "" {
		gone.Machine = "other"
		if host.Dead(gone) {
			t.Error("a process of another machine is said to be dead")
		}
	}
}

func TestReusedPIDIsDead(t *testing.T) {
	t.Parallel()
	_, id := child(t, "sleep")
	start, err := strconv.Atoi(id.Start)
	if err != nil {
		t.Fatal(err)
	}
	id.Start = strconv.Itoa(start - 1)
	if !host.Dead(id) {
		t.Errorf("another process has this pid now, but the first is not known to be dead: %+v", id)
	}
}

func TestAnotherBootOfThisMachineIsDead(t *testing.T) {
	t.Parallel()
	id := host.Self()
	if id.Machine == "" {
		t.Skip("the machine id is not known here (a container, or none set)")
	}
	id.Boot = "other"
	if !host.Dead(id) {
		t.Error("a process from before the boot is not known to be dead")
	}
}

func TestNetworkFS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join("nowhere", "file"), filepath.Join(dir, "dangling")); err != nil {
		t.Fatal(err)
	}
	for _, l := range []string{"a", "b"} {
		if err := os.Symlink(string('a'+'b'-l[0]), filepath.Join(dir, l)); err != nil {
			t.Fatal(err)
		}
	}
	want, wantYes := host.NetworkFS(dir)
	for _, p := range []string{"new.db", "not/there/new.db", "dangling"} {
		if got, yes := host.NetworkFS(filepath.Join(dir, p)); got != want || yes != wantYes {
			t.Errorf("NetworkFS(%s) = %q %v, its directory %q %v", p, got, yes, want, wantYes)
		}
	}
	for _, p := range []string{"", "/proc/self/stat", "/proc/nothing", filepath.Join(dir, "a"), "\x00"} {
		if got, yes := host.NetworkFS(p); yes || got != "" {
			t.Errorf("NetworkFS(%q) = %q %v, want false", p, got, yes)
		}
	}
}
