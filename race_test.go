//go:build race

package pawl_test

import (
	"os"
	"runtime"
	"testing"
)

// In a synctest bubble a timer that is due may run in the goroutine that looks at it, and all of a bubble's timers are one
// thread to the race detector: two at once, on two processors, break it (golang/go#78156). It needs no second processor
// to find a race.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1)
	os.Exit(m.Run())
}
