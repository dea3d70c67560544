package host

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// firstPIDNS is the pid namespace that the kernel boots with; its number is fixed (PROC_PID_INIT_INO).
const firstPIDNS = "pid:[4026531836]"

func self() Identity {
	id := Identity{Boot: BootID(), PID: os.Getpid()}
	// A /proc of another pid namespace (a host's, mounted into a container) shows other processes under our numbers.
	if seen, err := os.Readlink("/proc/self"); err != nil || seen != strconv.Itoa(id.PID) {
		return id
	}
	if st, err := readStat(id.PID); err == nil {
		id.Start = st.start
	}
	ns, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return id
	}
	if ns == firstPIDNS && !overlayRoot() {
		id.Machine = readWord("/etc/machine-id")
	}
	id.PIDNS = ns
	// Start times are shifted by the time namespace of whoever reads them. Kernels before 5.6 have none.
	switch timeNS, err := os.Readlink("/proc/self/ns/time"); {
	case err == nil:
		id.PIDNS += " " + timeNS
	case !errors.Is(err, os.ErrNotExist):
		id.PIDNS = ""
	}
	return id
}

// overlayRoot reports whether the root file system is one that container engines make, as a container may be in the
// host's pid namespace.
func overlayRoot() bool {
	var st unix.Statfs_t
	err := unix.Statfs("/", &st)
	return err != nil || uint32(st.Type) == unix.OVERLAYFS_SUPER_MAGIC
}

// ended reports whether there is surely no process pid of our pid namespace that started at start. The kernel is asked by
// signal 0 before /proc, because /proc may hide the processes of other users (hidepid) as if they were not there.
func ended(pid int, start string) bool {
	if errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
		return true
	}
	st, err := readStat(pid)
	if err != nil {
		return errors.Is(unix.Kill(pid, 0), unix.ESRCH) // it ended between the two, or it is hidden
	}
	return st.start != start || st.over()
}

// stat is what we need of /proc/PID/stat.
type stat struct {
	state   byte
	threads string
	start   string
}

// over reports whether the process has ended and is only waited for. A zombie with more than one thread is one whose first
// thread has ended while others run on.
func (s stat) over() bool {
	switch s.state {
	case 'X', 'x':
		return true
	case 'Z':
		return s.threads == "0" || s.threads == "1"
	}
	return false
}

func readStat(pid int) (stat, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	return parseStat(data)
}

// parseStat reads the fields after the command, which is in parentheses and may itself hold spaces, newlines and
// parentheses: it ends at the last one. See proc_pid_stat(5): the state is field 3, threads 20, start 22.
func parseStat(data []byte) (stat, error) {
	i := bytes.LastIndexByte(data, ')')
	if i < 0 {
		return stat{}, errors.New("/proc stat line without a command")
	}
	f := strings.Fields(string(data[i+1:]))
	if len(f) < 20 || len(f[0]) != 1 {
		return stat{}, errors.New("/proc stat line too short")
	}
	if _, err := strconv.ParseUint(f[19], 10, 64); err != nil {
		return stat{}, fmt.Errorf("/proc stat start time: %w", err)
	}
	return stat{state: f[0][0], threads: f[17], start: f[19]}, nil
}

// BootID returns the id that the kernel drew at boot, or "" if the system lacks it.
func BootID() string { return readWord("/proc/sys/kernel/random/boot_id") }

// BootTime returns the time since boot, counting what the machine slept, and true; or false if the system lacks such a
// clock. It never goes back or jumps within one boot; another boot (see [BootID]), or another time namespace, has
// nothing in common with it.
func BootTime() (time.Duration, bool) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0, false
	}
	return time.Duration(ts.Nano()), true
}

// readWord returns the one word in a small file, or "" if there is none or more.
func readWord(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	words := strings.Fields(string(data))
	if len(words) != 1 || words[0] == "uninitialized" { // machine-id(5): not set before the first boot is over
		return ""
	}
	return words[0]
}

// NetworkFS returns the name of path's file system and true if it is a network, cluster or user-space one, on which locks
// and memory maps cannot be relied upon. A path that does not exist is judged by where it would be made: the target of a dangling
// link, else the nearest directory above that exists. It is false for a local file system, an unknown one, and if the
// system does not tell. FUSE, which has one number for remote and local ones and for virtiofs, counts.
func NetworkFS(path string) (name string, yes bool) {
	if path == "" {
		return "", false
	}
	for range 255 { // an end for links that lead in circles
		var st unix.Statfs_t
		err := unix.Statfs(path, &st)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil {
			name = networkMagic(uint32(st.Type))
			return name, name != ""
		}
		if !errors.Is(err, unix.ENOENT) {
			return "", false
		}
		if to, err := os.Readlink(path); err == nil {
			if !filepath.IsAbs(to) {
				to = filepath.Dir(path) + "/" + to // not Join: cleaning a/link/.. would skip the link
			}
			path = to
			continue
		}
		up := filepath.Dir(path)
		if up == path {
			return "", false
		}
		path = up
	}
	return "", false
}

// networkMagic returns the name of a network file system by the number that statfs gives, or "" for all others.
func networkMagic(magic uint32) string { //nolint:cyclop // a table: one case per row
	switch magic {
	case unix.NFS_SUPER_MAGIC:
		return "NFS"
	case unix.CIFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC:
		return "SMB/CIFS"
	case unix.V9FS_MAGIC:
		return "9p"
	case unix.FUSE_SUPER_MAGIC:
		return "FUSE or virtiofs"
	case unix.AFS_SUPER_MAGIC, unix.AFS_FS_MAGIC:
		return "AFS"
	case unix.CEPH_SUPER_MAGIC:
		return "Ceph"
	case unix.CODA_SUPER_MAGIC:
		return "Coda"
	case unix.OCFS2_SUPER_MAGIC:
		return "OCFS2"
	}
	switch magic { // not in golang.org/x/sys; the numbers are those of coreutils stat
	case 0x01161970:
		return "GFS2"
	case 0x0BD00BD0:
		return "Lustre"
	case 0x47504653:
		return "GPFS"
	case 0x61636673:
		return "ACFS"
	case 0x19830326:
		return "BeeGFS"
	case 0x20030528:
		return "OrangeFS"
	case 0xAAD7AAEA:
		return "PanFS"
	case 0xBEEFDEAD:
		return "StorNext"
	case 0x013111A8:
		return "IBRIX"
	case 0x564C:
		return "NCP"
	case 0x786F4256:
		return "VirtualBox shared folder"
	case 0xBACBACBC:
		return "VMware shared folder"
	case 0x7C7C6673:
		return "Parallels shared folder"
	}
	return ""
}
