//go:build !linux

package host

import (
	"os"
	"time"
)

// self knows the pid alone, so that nothing is ever known to be dead.
func self() Identity { return Identity{PID: os.Getpid()} }

// ended is never reached, as no boot id is known here.
func ended(int, string) bool { return false }

// BootID returns "": unknown on this system.
func BootID() string { return "" }

// BootTime returns false: unknown on this system.
func BootTime() (time.Duration, bool) { return 0, false }

// NetworkFS returns false: unknown on this system.
func NetworkFS(string) (name string, yes bool) { return "", false }
