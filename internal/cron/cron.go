// Package cron gives the instants of a cron expression in a time zone.
//
// A parser that is well kept reads the expression and finds which readings of a clock it names; this package says which
// instants those readings are where the clock jumps, because no library agrees with another one about that:
//
//   - An expression that names its hours (0 2 * * *) means readings of the clock: each happens once. One that the clock
//     jumps over happens right after the jump, at most once for the whole jump; one that comes twice happens the first time.
//   - An expression whose hour field begins with * (*/15 * * * *) means a pace: it happens whenever the clock reads so,
//     twice in an hour that is repeated, and not in one that is left out.
package cron

import (
	"errors"
	"fmt"
	"strings"
	"time"

	library "github.com/netresearch/go-cron"
)

// parser takes 5 fields, 6 with the seconds first, or a name like @daily. Where day of month and day of week are both
// given, either will do, as in crontab(5). February 29 that is a given weekday is found within 40 years.
var parser = library.MustNewParser(library.SecondOptional | library.Minute | library.Hour | library.Dom | library.Month | library.Dow |
	library.Descriptor | library.DowOrDom).WithMaxSearchYears(searchYears)

const searchYears = 40

// lastYear is the last one in which instants are looked for: beyond, stored times overflow sooner or later.
const lastYear = 9999

// Expression is a parsed expression in a zone. It is immutable.
type Expression struct {
	spec  library.Schedule
	zone  *time.Location
	clock bool // it names its hours
}

// Parse reads an expression: minute, hour, day of month, month and day of week, with the seconds before them if there are
// six fields, or @yearly, @annually, @monthly, @weekly, @daily, @midnight or @hourly. zone is an IANA name such as
// Europe/Berlin, or UTC. What can never be due, like February 30, is refused.
func Parse(expr, zone string) (*Expression, error) {
	loc, err := location(zone)
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(expr)
	switch {
	case len(fields) == 0:
		return nil, errors.New("empty cron expression: want five fields, like 0 2 * * *, or @daily")
	case strings.Contains(fields[0], "TZ="):
		return nil, fmt.Errorf("cron expression %q names a zone: give it as the zone and not in the expression", expr)
	case strings.HasPrefix(fields[0], "@every"):
		return nil, fmt.Errorf("cron expression %q is an interval: use Every", expr)
	case fields[0] == "@reboot":
		return nil, fmt.Errorf("cron expression %q is no time", expr)
	case fields[0][0] != '@' && len(fields) != 5 && len(fields) != 6:
		return nil, fmt.Errorf("cron expression %q has %d fields: want 5 (minute hour day month weekday), or 6 with the seconds first", expr, len(fields))
	}
	spec, err := parser.Parse(strings.Join(fields, " "))
	if err != nil {
		return nil, fmt.Errorf("cron expression %q: %w", expr, err)
	}
	e := &Expression{spec: spec, zone: loc, clock: namesHours(fields)}
	if e.spec.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, fmt.Errorf("cron expression %q is never due: no month has such a day", expr)
	}
	return e, nil
}

func namesHours(fields []string) bool {
	if len(fields) == 1 {
		return fields[0] != "@hourly"
	}
	return !strings.HasPrefix(fields[len(fields)-4], "*")
}

// location finds a time zone by its IANA name.
func location(name string) (*time.Location, error) {
	switch name {
	case "":
		return nil, errors.New("no time zone: want an IANA name such as Europe/Berlin, or UTC")
	case "Local":
		return nil, errors.New(`time zone "Local" is another one on each machine: want an IANA name such as Europe/Berlin, or UTC`)
	}
	loc, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("time zone %q is not known here: want an IANA name such as Europe/Berlin, or UTC "+
			"(a machine without zone files needs a program that imports time/tzdata)", name)
	}
	return loc, nil
}

// Zone is the expression's.
func (e *Expression) Zone() *time.Location { return e.zone }

// Next is the first instant after t, in UTC; the zero time if there is none before the year 10000.
func (e *Expression) Next(t time.Time) time.Time {
	if e.clock {
		return e.nextReading(t)
	}
	return e.nextPace(t)
}

// reading is what the clock reads at t, as a time in UTC.
func (e *Expression) reading(t time.Time) time.Time {
	_, offset := t.In(e.zone).Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

// nextReading is Next for an expression that names its hours. Later readings have no earlier instants.
func (e *Expression) nextReading(t time.Time) time.Time {
	for r := e.reading(t); ; {
		if r = e.spec.Next(r); r.IsZero() || r.Year() > lastYear {
			return time.Time{}
		}
		if at := e.instant(r); at.After(t) {
			return at
		}
	}
}

// instant is when the clock reads r for the first time, or, if it never does, when it jumps over it.
func (e *Expression) instant(r time.Time) time.Time {
	near := time.Date(r.Year(), r.Month(), r.Day(), r.Hour(), r.Minute(), r.Second(), 0, e.zone)
	start, end := near.ZoneBounds()
	periods := []time.Time{near}
	if !start.IsZero() {
		periods = []time.Time{start.Add(-time.Nanosecond), near}
	}
	if !end.IsZero() {
		periods = append(periods, end)
	}
	var jump time.Time
	for _, in := range periods { // in their order, so that the first reading is found first
		_, offset := in.Zone()
		at := r.Add(-time.Duration(offset) * time.Second)
		from, to := in.ZoneBounds()
		switch {
		case !from.IsZero() && at.Before(from): // read before this period, and not in the one before it
			if jump.IsZero() {
				jump = from
			}
		case to.IsZero() || at.Before(to):
			return at
		}
	}
	return jump.UTC()
}

// nextPace is Next for an expression that means a pace: in a period of one offset, instants and readings go side by side.
func (e *Expression) nextPace(t time.Time) time.Time {
	after := e.reading(t)
	for t.Year() <= lastYear {
		r := e.spec.Next(after)
		if r.IsZero() {
			break
		}
		_, offset := t.In(e.zone).Zone()
		at := r.Add(-time.Duration(offset) * time.Second)
		_, end := t.In(e.zone).ZoneBounds()
		switch {
		case !end.IsZero() && !at.Before(end):
			t, after = end, e.reading(end).Add(-time.Nanosecond) // the new offset counts, from its first instant on
		case at.Year() > lastYear:
			return time.Time{}
		default:
			return at
		}
	}
	return time.Time{}
}
