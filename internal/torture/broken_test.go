//go:build unix && pawlbroken

package torture_test

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pawlrun/pawl/internal/hooks"
)

// brokenRules are the rules of the protocol that can be left out, with a torture that tells, and what it says then.
var brokenRules = []struct {
	rule  hooks.Rule
	args  string
	tells string
	lacks string // why it is not shown
}{
	{rule: hooks.W1, lacks: "other guards stand behind it: the attempt that a row has, and the row's primary key"},
	{rule: hooks.W2, args: "-test.run ^TestLostClaimReply$", tells: "not yet the case: the run has ended"},
	{rule: hooks.W3, args: "-test.run ^TestTorture$ -store sqlite -with none -acts kill -chaos 20s", tells: "happened [23] times|stranded"},
	{rule: hooks.W4, lacks: "other guards stand behind it: the state that a released run has, and the next claim's token"},
	{rule: hooks.W5, args: "-test.run ^TestFrozenBeforeEffect$", tells: "happened 2 times"},
	{rule: hooks.W6, args: "-test.run ^TestTorture$ -store sqlite -with none -chaos 20s", tells: "both been accepted|live runs|happened 2 times"},
	{rule: hooks.W7, args: "-test.run ^TestGivenUp$", tells: "happened 2 times"},
	{rule: hooks.W8, args: "-test.run ^TestTorture$ -store sqlite -with none -acts kill -chaos 20s", tells: "nobody knows whether step"},
	{rule: hooks.W9, args: "-test.run ^TestAnsweredMeanwhile$", tells: "not yet the case: the run has ended"},
	{rule: hooks.W10, args: "-test.run ^TestOldEvidence$", tells: "happened 2 times"},
	{rule: hooks.W13, lacks: "leases then expire early, and runs are taken over as after a crash: no requirement breaks"},
	{rule: hooks.W14, lacks: "it needs a failover that loses commits, which makes an epoch come twice"},
	{rule: hooks.R1, args: "-test.run ^TestLostBetweenSteps$", tells: "was called with"},
}

// TestBroken leaves out one rule at a time, and expects the torture to fail for that reason; with all rules kept, to pass.
func TestBroken(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range brokenRules {
		t.Run(string(b.rule), func(t *testing.T) {
			if b.lacks != "" {
				t.Skip(b.lacks)
			}
			begun := time.Now()
			text, ok := torturedBy(t, exe, b.args, b.rule)
			if ok || !regexp.MustCompile(b.tells).MatchString(text) {
				t.Errorf("without %s the torture does not say %q: -seed %d\n%.4000s", b.rule, b.tells, *seed, text)
				return
			}
			for line := range strings.Lines(text) {
				if regexp.MustCompile(b.tells).MatchString(line) {
					t.Logf("after %v: %.300s", time.Since(begun).Round(time.Second), strings.TrimSpace(line))
					break
				}
			}
		})
	}
	for _, args := range []string{"-test.run ^(TestOldEvidence|TestFrozenBeforeEffect|TestGivenUp|TestAnsweredMeanwhile|TestLostBetweenSteps)$", "-test.run ^TestTorture$ -store sqlite -with none -acts freeze -chaos 30s"} {
		t.Run("none", func(t *testing.T) {
			if text, ok := torturedBy(t, exe, args, ""); !ok {
				t.Errorf("with all rules kept the torture fails:\n%.4000s", text)
			}
		})
	}
}

func torturedBy(t *testing.T, exe, args string, rule hooks.Rule) (text string, ok bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, append(strings.Fields(args), "-test.v", "-patience", "40s", "-seed", "11")...)
	cmd.Env = append(os.Environ(), "PAWL_BROKEN="+string(rule))
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}
