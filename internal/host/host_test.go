package host_test

import (
	"testing"

	"github.com/pawlrun/pawl/internal/host"
)

func TestWeAreAlive(t *testing.T) {
	t.Parallel()
	if me := host.Self(); host.Dead(me) {
		t.Errorf("this process is said to be dead: %+v", me)
	}
	if host.Dead(host.Identity{}) {
		t.Error("an identity that says nothing is said to be dead")
	}
	if a, b := host.Self(), host.Self(); a != b {
		t.Errorf("the identity changes: %+v, %+v", a, b)
	}
}

func TestBootTimeRunsOn(t *testing.T) {
	t.Parallel()
	a, ok := host.BootTime()
	b, again := host.BootTime()
	if ok != again || b < a || ok && a <= 0 {
		t.Errorf("BootTime: %v %v, then %v %v", a, ok, b, again)
	}
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	if host.Describe() == "" {
		t.Error("Describe says nothing")
	}
}
