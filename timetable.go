package pawl

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pawlrun/pawl/internal/cron"
)

// Timetable says at which instants a schedule is due: [Cron], [Every] or [OneOff]. The zero value is none.
type Timetable struct {
	kind tableKind
	expr string
	zone string
	cron *cron.Expression
	step time.Duration
	at   time.Time
}

type tableKind uint8

const (
	noTable tableKind = iota
	cronTable
	stepTable
	onceTable
)

// Cron is due at the instants of a cron expression in an IANA time zone, such as Europe/Berlin, or in UTC: five fields,
// six with the seconds first, or a name like @daily. Where clocks jump, an expression that names its hours is due once for
// each reading of the clock that it names: right after the jump if that leaves the reading out, the first time if it comes
// twice. One whose hour field begins with * goes on at its pace. It panics if either is wrong; [ParseTimetable] does not.
func Cron(expr, zone string) Timetable { return must(parseCron(expr, zone)) }

// Every is due at the multiples of d since 1970 in UTC, whenever workers or the schedule were started; a d of 24 h is
// midnight UTC. It panics if d is not at least one second and a whole number of seconds.
func Every(d time.Duration) Timetable { return must(parseEvery(d)) }

// OneOff is due once. It panics if at is zero or after the year 9999.
func OneOff(at time.Time) Timetable { return must(parseOneOff(at)) }

func must(t Timetable, err error) Timetable {
	if err != nil {
		panic(fmt.Errorf("pawl: %w", err)) //nolint:forbidigo // at registration
	}
	return t
}

func parseCron(expr, zone string) (Timetable, error) {
	e, err := cron.Parse(expr, zone)
	return Timetable{kind: cronTable, expr: strings.Join(strings.Fields(expr), " "), zone: zone, cron: e}, err
}

func parseEvery(d time.Duration) (Timetable, error) {
	switch {
	case d <= 0:
		return Timetable{}, fmt.Errorf("an interval of %v: want a positive one", d)
	case d%time.Second != 0:
		return Timetable{}, fmt.Errorf("an interval of %v: want whole seconds", d)
	}
	return Timetable{kind: stepTable, zone: "UTC", step: d}, nil
}

func parseOneOff(at time.Time) (Timetable, error) {
	if at.Year() < 1970 || at.Year() > 9999 {
		return Timetable{}, fmt.Errorf("a one-off at %v: want a time from 1970 to 9999", at)
	}
	return Timetable{kind: onceTable, zone: "UTC", at: at.UTC().Truncate(time.Microsecond)}, nil
}

// ParseTimetable reads what [Timetable.String] gives: "cron 0 2 * * * in Europe/Berlin", "every 10m" or
// "at 2026-01-02T15:04:05Z".
func ParseTimetable(text string) (Timetable, error) {
	kind, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	switch kind {
	case "cron":
		expr, zone, found := strings.Cut(rest, " in ")
		if !found {
			return Timetable{}, fmt.Errorf("timetable %q has no zone: want one like %q", text, "cron 0 2 * * * in Europe/Berlin")
		}
		return parseCron(expr, zone)
	case "every":
		d, err := time.ParseDuration(rest)
		if err != nil {
			return Timetable{}, fmt.Errorf("timetable %q: %w", text, err)
		}
		return parseEvery(d)
	case "at":
		at, err := time.Parse(time.RFC3339, rest)
		if err != nil {
			return Timetable{}, fmt.Errorf("timetable %q: want a time such as 2026-01-02T15:04:05Z: %w", text, err)
		}
		return parseOneOff(at)
	}
	return Timetable{}, fmt.Errorf("timetable %q: want %q, %q or %q", text, "cron 0 2 * * * in Europe/Berlin", "every 10m", "at 2026-01-02T15:04:05Z")
}

// String is the timetable in words.
func (t Timetable) String() string {
	switch t.kind {
	case cronTable:
		return "cron " + t.expr + " in " + t.zone
	case stepTable:
		return "every " + t.step.String()
	case onceTable:
		return "at " + t.at.Format(time.RFC3339Nano)
	case noTable:
	}
	return ""
}

// MarshalText gives String.
func (t Timetable) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText is [ParseTimetable].
func (t *Timetable) UnmarshalText(text []byte) (err error) {
	*t, err = ParseTimetable(string(text))
	return err
}

// Next is the first instant after after, in UTC; zero if there is none before the year 10000.
func (t Timetable) Next(after time.Time) time.Time {
	switch t.kind {
	case cronTable:
		return t.cron.Next(after)
	case stepTable:
		step := t.step.Microseconds()
		n := after.UnixMicro() / step
		if after.UnixMicro() < n*step { // Go rounds towards zero
			n--
		}
		return time.UnixMicro((n + 1) * step).UTC()
	case onceTable:
		if t.at.After(after) {
			return t.at
		}
	case noTable:
	}
	return time.Time{}
}

// Location is the zone of a cron expression, and UTC for the others.
func (t Timetable) Location() *time.Location {
	if t.cron != nil {
		return t.cron.Zone()
	}
	return time.UTC
}

var errNoTimetable = errors.New("no timetable: want Cron, Every or OneOff")

// jitter is by how much the instant of a schedule is put off: always the same, less than most.
func jitter(name string, at int64, most time.Duration) int64 {
	if most <= 0 {
		return 0
	}
	var instant [8]byte
	binary.BigEndian.PutUint64(instant[:], uint64(at)) //nolint:gosec // any bits will do
	sum := sha256.Sum256(append([]byte(name+"\x00"), instant[:]...))
	return int64(binary.BigEndian.Uint64(sum[:]) % uint64(most.Microseconds())) //nolint:gosec // below most
}
