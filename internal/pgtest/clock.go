//go:build unix

package pgtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// errNoFakeTime says what to do.
var errNoFakeTime = errors.New("libfaketime is not installed: as root `apt-get install libfaketime` (Debian, Ubuntu)")

// FakeTime returns the library that fakes a program's clock, or an error that says what to install.
func FakeTime() (string, error) {
	for _, pattern := range []string{"/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1", "/usr/local/lib/faketime/libfaketime.so.1"} {
		found, err := filepath.Glob(pattern)
		if err == nil && len(found) > 0 {
			return slices.Min(found), nil
		}
	}
	return "", errNoFakeTime
}

// FakeClock gives a private server a clock that [Server.SetClock] sets. It needs [FakeTime].
func FakeClock() Option {
	return func(s *settings) { s.faked = true }
}

// SetClock sets the clock of a server with [FakeClock] to the machine's plus offset, for all its processes at once. Its
// monotonic clock goes on. Elsewhere it does nothing.
func (s *Server) SetClock(offset time.Duration) error {
	if s.faked == "" {
		return nil
	}
	next := s.clockFile() + ".next"
	if err := s.write(next, fmt.Sprintf("%+.6f\n", offset.Seconds())); err != nil {
		return fmt.Errorf("set the server's clock: %w", err)
	}
	return os.Rename(next, s.clockFile()) // who reads it meanwhile gets the one or the other
}

func (s *Server) clockFile() string { return filepath.Join(s.dir, "clock") }

// fakeEnv makes the server read its offset each time it asks for the time.
func (s *Server) fakeEnv() []string {
	if s.faked == "" {
		return nil
	}
	return []string{
		"LD_PRELOAD=" + s.faked, "FAKETIME_TIMESTAMP_FILE=" + s.clockFile(), "FAKETIME_NO_CACHE=1",
		"DONT_FAKE_MONOTONIC=1", "FAKETIME_DONT_FAKE_MONOTONIC=1", "FAKETIME_DISABLE_SHM=1",
	}
}
