//go:build unix

package pgtest

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// freeze stops a process in its tracks. When it returns the process has no fork under way, where /proc can tell.
func freeze(ctx context.Context, pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	return poll(ctx, func() (bool, error) {
		fields, err := procStat("/proc/" + strconv.Itoa(pid) + "/stat")
		return err != nil || len(fields) == 0 || strings.Contains("TtZX", fields[0]), nil
	})
}

// children returns the processes whose parent is pid: from /proc where there is one, else from ps.
func children(pid int) ([]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		return childrenByPS(pid)
	}
	var found []int
	for _, name := range stats {
		fields, err := procStat(name)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it ended meanwhile
		}
		if err != nil {
			return nil, err
		}
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			child, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			if err != nil {
				return nil, err // unreachable unless the pattern above is wrong
			}
			found = append(found, child)
		}
	}
	return found, nil
}

// procStat returns the fields of a stat file that follow the program's name: state, parent, and more. The name stands
// in parentheses and may contain anything, so the last one counts.
func procStat(name string) ([]string, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])), nil
}

func childrenByPS(pid int) ([]int, error) {
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
	if err != nil {
		return nil, err
	}
	var found []int
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) != 2 || fields[1] != strconv.Itoa(pid) {
			continue
		}
		child, err := strconv.Atoi(fields[0])
		if err != nil {
			return nil, err
		}
		found = append(found, child)
	}
	return found, nil
}

// alive reports whether a process still runs. One that ended but was not waited for by its new parent does not.
func alive(pid int) bool {
	fields, err := procStat("/proc/" + strconv.Itoa(pid) + "/stat")
	if err == nil && len(fields) > 0 {
		return fields[0] != "Z" && fields[0] != "X"
	}
	return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}
