package pawl_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

// C40, C43, C44: a retry that ends before its body comes to the batch hands the items on that it has inherited: the next one runs
// none of them again.
func TestBatchRetryOfARetryThatNeverBegan(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		var fixed atomic.Bool
		s.on("write i0003", func(context.Context, int) (string, error) {
			if !fixed.Load() {
				return "", fault.Rejected(fault.Invalid(errors.New("broken row")))
			}
			return "i0003 at last", nil
		})
		w := s.batched(fault.KindOnce, func() []string { return numbered(6) })
		p := s.spawn("b1", w)
		id := begin(s, w, "x")
		s.reach(id, pawl.Failed)
		p.kill()
		unbegun := s.retry(id)
		if _, err := s.desk.Cancel(t.Context(), unbegun, ann); err != nil {
			t.Fatal(err)
		}
		s.reach(unbegun, pawl.Cancelled)
		plan := s.plan(unbegun, pawl.PlanOptions{Mode: pawl.PlanRetry})
		if len(plan.Steps) != 1 || plan.Steps[0].Fate != pawl.Rerun || !strings.Contains(plan.Steps[0].Why, "5 items are reused") {
			t.Errorf("the plan is %+v", plan.Steps)
		}
		fork := s.plan(unbegun, pawl.PlanOptions{Mode: pawl.PlanFork, FromStart: true})
		if len(fork.Refusals) != 1 || fork.Steps[0].Fate != pawl.Refused {
			t.Errorf("a fork from the start is planned as %+v, refused by %q", fork.Steps, fork.Refusals)
		}
		fixed.Store(true)
		next := s.retry(unbegun)
		s.spawn("b1", w)
		result(t, s.reach(next, pawl.Succeeded), "6+0+0~0-0 "+strings.Join(numbered(6), " "))
		s.want(map[string]int{"write i0000": 1, "write i0001": 1, "write i0003": 2, "write i0005": 1})
	})
}
