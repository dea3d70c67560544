//go:build unix

package pgtest

import (
	"cmp"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// oldest is the first major version of PostgreSQL that Pawl supports.
const oldest = 15

// errNoBinaries is one line, and says what to do.
var errNoBinaries = errors.New("no PostgreSQL 15 or later is installed: run scripts/need-postgres as root " +
	"(Debian, Ubuntu), or `brew install postgresql`, or set PAWL_TEST_POSTGRES to the URL of a server " +
	"(which is not enough for the tests that stop and kill a server of their own)")

// findBinaries returns the directory that has initdb and postgres.
func findBinaries(ctx context.Context) (string, error) {
	for _, dir := range candidates(ctx) {
		if majorVersion(ctx, dir) >= oldest {
			return dir, nil
		}
	}
	return "", errNoBinaries
}

// candidates lists directories to look in, best first: what PATH says, then the newest of what distributions install.
func candidates(ctx context.Context) []string {
	var dirs []string
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		dirs = append(dirs, filepath.Dir(path))
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",
		"/usr/pgsql-*/bin",
		"/opt/homebrew/opt/postgresql@*/bin",
		"/usr/local/opt/postgresql@*/bin",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			continue // unreachable unless a pattern above is malformed
		}
		slices.SortFunc(found, func(a, b string) int { return cmp.Compare(numberIn(b), numberIn(a)) })
		dirs = append(dirs, found...)
	}
	return append(dirs, "/usr/local/bin", "/usr/local/pgsql/bin", "/opt/homebrew/bin", "/usr/bin")
}

// majorVersion is 0 where dir has no usable server.
func majorVersion(ctx context.Context, dir string) int {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return 0
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return 0
	}
	return numberIn(string(out))
}

// numberIn returns the first number in s, or 0.
func numberIn(s string) int {
	n, err := strconv.Atoi(regexp.MustCompile(`[0-9]+`).FindString(s))
	if err != nil {
		return 0
	}
	return n
}
