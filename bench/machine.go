package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"
)

// Machine says where the figures come from.
type Machine struct {
	CPU        string   `json:"cpu"`
	Cores      int      `json:"cores"`
	MemoryGB   float64  `json:"memory_gb"`
	Kernel     string   `json:"kernel"`
	FileSystem string   `json:"file_system"`
	Sync       float64  `json:"fdatasync_us"` // of 8 kB, the median
	Date       string   `json:"date"`
	Commands   []string `json:"commands"`
	Versions   []string `json:"versions"`
	Postgres   string   `json:"postgres,omitempty"`
	Settings   []string `json:"settings,omitempty"` // of PostgreSQL, that are not the defaults
}

func describe(ctx context.Context, l *lab, o options) Machine {
	m := Machine{CPU: valueIn("/proc/cpuinfo", "model name"), Cores: runtime.NumCPU(), Date: time.Now().UTC().Format(time.DateOnly),
		Commands: []string{strings.Join(append([]string{"go run ."}, o.args...), " ")}, Versions: versions(), FileSystem: fileSystem(l.dir)}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
	}
	var kb float64
	if _, err := fmt.Sscanf(valueIn("/proc/meminfo", "MemTotal"), "%f kB", &kb); err == nil {
		m.MemoryGB = kb / (1 << 20)
	}
	var err error
	if m.Sync, err = syncTime(l.dir); err != nil {
		fmt.Fprintln(os.Stderr, "bench: the disk's syncs cannot be measured:", err)
	}
	if l.server != nil {
		if err := m.askServer(ctx, l.server.URL()); err != nil {
			fmt.Fprintln(os.Stderr, "bench: PostgreSQL's settings cannot be read:", err)
		}
	}
	return m
}

// valueIn finds the first line "name : value" of a file in /proc.
func valueIn(file, name string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(text)) {
		key, value, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// fileSystem is the type of the mount that dir is on.
func fileSystem(dir string) string {
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "unknown"
	}
	kind, longest := "unknown", 0
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) > 2 && len(f[1]) >= longest && (f[1] == "/" || dir == f[1] || strings.HasPrefix(dir, f[1]+"/")) {
			kind, longest = f[2], len(f[1])
		}
	}
	return kind
}

// syncTime writes 8 kB over and over to the same place, as pg_test_fsync does, and gives the median time of a write and
// its fdatasync in microseconds.
func syncTime(dir string) (us float64, err error) {
	f, err := os.Create(filepath.Join(dir, "sync"))
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }() // it is removed with its directory
	block := make([]byte, 8192)
	var took []time.Duration
	for range 500 {
		t := time.Now()
		if _, err := f.WriteAt(block, 0); err != nil {
			return 0, err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return 0, err
		}
		took = append(took, time.Since(t))
	}
	return quantile(took, 0.5) * 1000, nil
}

// versions are those of Go and of the modules that matter.
func versions() (out []string) {
	out = append(out, runtime.Version())
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return out
	}
	want := []string{"github.com/dbos-inc/dbos-transact-golang", "github.com/riverqueue/river", "github.com/jackc/pgx/v5", "modernc.org/sqlite"}
	for _, d := range info.Deps {
		if slices.Contains(want, d.Path) {
			out = append(out, d.Path+" "+d.Version)
		}
	}
	return out
}

func (m *Machine) askServer(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	if err := conn.QueryRow(ctx, `SELECT split_part(version(), ' on ', 1)`).Scan(&m.Postgres); err != nil {
		return err
	}
	rows, err := conn.Query(ctx, `SELECT name || ' = ' || setting FROM pg_settings
		WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes', 'shared_buffers', 'max_wal_size', 'checkpoint_timeout',
			'commit_delay', 'wal_sync_method', 'wal_compression', 'autovacuum', 'jit', 'max_connections') ORDER BY name`)
	if err != nil {
		return err
	}
	m.Settings, err = pgx.CollectRows(rows, pgx.RowTo[string])
	return err
}
