package cron_test

import (
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the table holds also where the machine has no zone files

	"github.com/pawlrun/pawl/internal/cron"
)

// TestInstants shows the table that docs/schedules.md prints: which instants an expression has where clocks jump.
func TestInstants(t *testing.T) {
	for _, c := range cases {
		t.Run(c.What, func(t *testing.T) {
			e, err := cron.Parse(c.Expr, c.Zone)
			if err != nil {
				t.Fatal(err)
			}
			at, err := time.Parse(time.RFC3339, c.After)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s in %s, after %s", c.Expr, c.Zone, c.After)
			for _, want := range c.Want {
				at = e.Next(at)
				if got := at.Format(time.RFC3339); got != want {
					t.Errorf("got %s, want %s", got, want)
				} else {
					t.Logf("  %s  local %s", got, local(t, at, c.Zone))
				}
			}
		})
	}
}

func local(t *testing.T, at time.Time, zone string) string {
	loc, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	return at.In(loc).Format("2006-01-02 15:04:05 -0700")
}

// TestWalkMinuteByMinute compares Next with a walk over every minute around the jumps, by the definition: FR-064.
func TestWalkMinuteByMinute(t *testing.T) {
	for _, zone := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "Africa/Cairo",
		"Pacific/Apia", "Asia/Kathmandu", "America/St_Johns", "UTC"} {
		loc, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		for _, expr := range []string{"30 1 * * *", "*/15 * * * *", "0 0 * * *", "30 2 * * 0", "*/20 1-3 * * *", "17 */2 * * *"} {
			e, err := cron.Parse(expr, zone)
			if err != nil {
				t.Fatal(err)
			}
			for _, year := range []int{2011, 2026} {
				from := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
				for at, n := from, 0; at.Year() == year; n++ {
					next := e.Next(at)
					if !next.After(at) {
						t.Fatalf("%s in %s: after %s comes %s", expr, zone, at, next)
					}
					// asked from anywhere between, the answer is the same
					between := [...]time.Time{at.Add(next.Sub(at) / 2), next.Add(-time.Nanosecond), at.Add(time.Nanosecond)}[n%3]
					if got := e.Next(between); !got.Equal(next) {
						t.Fatalf("%s in %s: after %s comes %s, but after %s, %s", expr, zone, at, next, between, got)
					}
					at = next
				}
			}
			if strings.HasPrefix(expr, "*/15") {
				pace(t, e, loc)
			}
		}
	}
}

// pace checks that an expression of every hour is due at each quarter that the clock reads, and at no other time.
func pace(t *testing.T, e *cron.Expression, loc *time.Location) {
	t.Helper()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for next := e.Next(at.Add(-time.Minute)); at.Year() == 2026; at = at.Add(time.Minute) {
		due := at.In(loc).Minute()%15 == 0
		if due != at.Equal(next) {
			t.Fatalf("at %s, which reads %s: next is %s", at, at.In(loc), next)
		}
		if due {
			next = e.Next(at)
		}
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct{ expr, zone, says string }{
		{"0 0 30 2 *", "UTC", "is never due"},
		{"0 0 31 4,6,9,11 *", "UTC", "is never due"},
		{"", "UTC", "empty"},
		{"* * * *", "UTC", "has 4 fields"},
		{"* * * * * * *", "UTC", "has 7 fields"},
		{"61 * * * *", "UTC", "61"},
		{"a * * * *", "UTC", `"a * * * *"`},
		{"*/0 * * * *", "UTC", `"*/0 * * * *"`},
		{"@every 5m", "UTC", "use Every"},
		{"@reboot", "UTC", "no time"},
		{"@sometimes", "UTC", "@sometimes"},
		{"TZ=Asia/Tokyo 0 1 * * *", "UTC", "names a zone"},
		{"0 0 * * *", "", "no time zone"},
		{"0 0 * * *", "Local", "another one on each machine"},
		{"0 0 * * *", "Europe/Atlantis", `"Europe/Atlantis" is not known`},
		{"0 0 * * *", "../etc/passwd", "is not known"},
	} {
		_, err := cron.Parse(c.expr, c.zone)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q in %q: error %v, want one that says %q", c.expr, c.zone, err, c.says)
		}
	}
}

// FuzzNext looks for an expression whose next instant is not later, or takes long to find.
func FuzzNext(f *testing.F) {
	f.Add("0 2 * * *", int64(1_774_000_000))
	f.Add("59 59 23 29 2 1", int64(0))
	f.Add("* * 29 2 *", int64(4_100_000_000))
	f.Fuzz(func(t *testing.T, expr string, unix int64) {
		e, err := cron.Parse(expr, "Australia/Lord_Howe")
		if err != nil {
			return
		}
		at := time.Unix(unix%5_000_000_000, 0)
		began := time.Now()
		next := e.Next(at)
		if took := time.Since(began); took > 500*time.Millisecond {
			t.Errorf("%q took %v", expr, took)
		}
		if !next.IsZero() && !next.After(at) {
			t.Errorf("%q: after %s comes %s", expr, at, next)
		}
	})
}

func BenchmarkNext(b *testing.B) {
	for _, expr := range []string{"* * * * *", "30 2 * * *", "0 0 29 2 *"} {
		e, err := cron.Parse(expr, "Europe/Berlin")
		if err != nil {
			b.Fatal(err)
		}
		b.Run(expr, func(b *testing.B) {
			at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			for b.Loop() {
				at = e.Next(at)
				if at.Year() > 2090 {
					at = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
				}
			}
		})
	}
}
