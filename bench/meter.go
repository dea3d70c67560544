package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"
)

// clock times the measured phase of one child, and reads around it what the phase cost.
type clock struct {
	conn       *pgx.Conn // nil on SQLite
	postmaster int

	began   time.Time
	elapsed time.Duration
	from    usage
	spent   usage
	err     error
}

// usage is what has been used up to a moment.
type usage struct {
	lsn    int64         // bytes of WAL
	client time.Duration // CPU of this process
	server time.Duration // CPU of all of PostgreSQL's processes
	busy   time.Duration // CPU of the whole machine
}

// begin starts the clock. What a peer does before it does not count.
func (c *clock) begin(ctx context.Context) {
	c.from = c.read(ctx)
	c.began = time.Now()
}

// end stops the clock; the first call counts.
func (c *clock) end(ctx context.Context) {
	if c.elapsed > 0 {
		return
	}
	c.elapsed = time.Since(c.began)
	now := c.read(ctx)
	c.spent = usage{now.lsn - c.from.lsn, now.client - c.from.client, now.server - c.from.server, now.busy - c.from.busy}
}

func (c *clock) read(ctx context.Context) usage {
	u := usage{client: clientCPU(), busy: machineCPU()}
	if c.postmaster > 0 {
		u.server = serverCPU(c.postmaster)
	}
	if c.conn != nil {
		if err := c.conn.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&u.lsn); err != nil {
			c.err = fmt.Errorf("read the WAL position: %w", err)
		}
	}
	return u
}

// report divides what was spent by the number of steps or jobs.
func (c *clock) report(r *Result, unit int) {
	r.Unit, r.Seconds = unit, c.elapsed.Seconds()
	per := float64(max(unit, 1))
	r.WAL = float64(c.spent.lsn) / per
	r.ClientCPU = micros(c.spent.client) / per
	r.ServerCPU = micros(c.spent.server) / per
	if c.elapsed > 0 {
		r.Foreign = max(0, (c.spent.busy-c.spent.client-c.spent.server).Seconds()/c.elapsed.Seconds())
	}
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
func millis(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// counters are the server's own. Sessions report to them when they end, so they are read before a peer connects and
// after it has closed.
type counters struct{ commits, syncs, buffers int64 }

const selectCounters = `SELECT
	(SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()),
	(SELECT wal_sync FROM pg_stat_wal),
	(SELECT blks_hit + blks_read FROM pg_stat_database WHERE datname = current_database())`

// readCounters waits for all sessions to end before it reads.
func readCounters(ctx context.Context, t target) (counters, error) { return countersOf(ctx, t, true) }

// readCountersNow does not wait: what open sessions have not reported yet is missing.
func readCountersNow(ctx context.Context, t target) (counters, error) {
	return countersOf(ctx, t, false)
}

func countersOf(ctx context.Context, t target, wait bool) (n counters, err error) {
	if t.URL == "" {
		return n, nil
	}
	conn, err := pgx.Connect(ctx, t.URL)
	if err != nil {
		return n, err
	}
	defer func() { _ = conn.Close(ctx) }()
	// The statistics of a session that has just ended come with its last breath.
	for try := 0; wait && try < 100; try++ {
		var others int
		err = conn.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'`).Scan(&others)
		if err != nil || others == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err == nil {
		err = conn.QueryRow(ctx, selectCounters).Scan(&n.commits, &n.syncs, &n.buffers)
	}
	if err != nil {
		return n, fmt.Errorf("read the server's counters: %w", err)
	}
	return n, nil
}

func (n counters) minus(o counters) counters {
	return counters{n.commits - o.commits, n.syncs - o.syncs, n.buffers - o.buffers}
}

// clientCPU is this process's user and system time.
func clientCPU() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

const tick = time.Second / 100 // of the figures in /proc

// serverCPU adds up the postmaster, its children, and the children it has waited for. 0 without a /proc.
func serverCPU(postmaster int) time.Duration {
	own := procStat(postmaster)
	if own == nil {
		return 0
	}
	sum := field(own, 14) + field(own, 15) + field(own, 16) + field(own, 17)
	for _, pid := range children(postmaster) {
		stat := procStat(pid)
		sum += field(stat, 14) + field(stat, 15)
	}
	return time.Duration(sum) * tick
}

func children(parent int) (pids []int) {
	names, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil
	}
	for _, name := range names {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err == nil && field(procStat(pid), 4) == int64(parent) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// procStat gives the fields of /proc/PID/stat; the name, which may hold spaces, counts as one.
func procStat(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	i := strings.LastIndexByte(string(text), ')')
	if i < 0 {
		return nil
	}
	return append([]string{"pid", "name"}, strings.Fields(string(text[i+1:]))...)
}

// field gives a number by its position in proc(5), which counts from 1.
func field(stat []string, n int) int64 {
	if len(stat) < n {
		return 0
	}
	v, err := strconv.ParseInt(stat[n-1], 10, 64)
	if err != nil {
		return 0
	}
	return v
}

// machineCPU is the time that the machine's processors were not idle.
func machineCPU() time.Duration {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	f := strings.Fields(line) // cpu user nice system idle iowait irq softirq steal
	if len(f) < 9 {
		return 0
	}
	sum := int64(0)
	for _, i := range []int{1, 2, 3, 6, 7} {
		sum += field(f, i+1)
	}
	return time.Duration(sum) * tick
}

// largestRSS is the most memory that this process ever had, in MB.
func largestRSS() float64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			if err != nil {
				return 0
			}
			return kb / 1024
		}
	}
	return 0
}
