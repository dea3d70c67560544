package pawl_test

import (
	"errors"
	"testing"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/hooks"
)

// While the transaction that ends a run and gives its key and its callers to the successor is not committed, a start under
// the key, a caller that looks for it, and the cancel of a caller that waits for it wait too, and then find the successor.
func TestContinueWhileItIsLookedFor(t *testing.T) {
	t.Parallel()
	for _, cancel := range []bool{false, true} {
		c := openCounter(t)
		release := make(chan struct{})
		k := flow("kid", "v1", func(run *pawl.Run, in string) (string, error) {
			if in == "last" {
				return pawl.Await(run, "pay", paid, pawl.Key("kid"))
			}
			<-release
			return pawl.ContinueAs[string](run, "last")
		})
		w := flow("caller", "v1", func(run *pawl.Run, in string) (string, error) {
			return pawl.Child(run, "kid", k, in, pawl.Key("one"))
		})
		at, reached, open := gate()
		c.work(nil, w)
		first := c.begin(w)
		eventually(t, "a run waits for the child", func() bool { return c.count(`SELECT count(*) FROM pawl_calls`) == 1 })
		c.work(func(p hooks.Point, run, step string) {
			if run != string(first.ID()) {
				at(p, run, step)
			}
		}, k)
		close(release)
		<-reached
		found := make(chan pawl.RunID, 1)
		go func() {
			h, err := k.Start(t.Context(), c.desk, "o1", pawl.Key("one"))
			if err != nil {
				t.Error(err)
				close(found)
				return
			}
			found <- h.ID()
		}()
		second, stopped := (*pawl.Handle[string])(nil), make(chan error, 1)
		if cancel {
			go func() { _, err := c.desk.Cancel(t.Context(), first.ID(), ann); stopped <- err }()
		} else {
			second = c.begin(w)
			stopped <- nil
		}
		c.queues("both wait for the end of the transaction", 2)
		close(open)
		if err := <-stopped; err != nil {
			t.Fatal(err)
		}
		next := <-found
		if n := c.count(`SELECT count(*) FROM pawl_runs WHERE workflow = 'kid'`); n != 2 {
			t.Errorf("%d runs, want the run and its successor", n)
		}
		if n := c.count(`SELECT count(*) FROM pawl_runs WHERE continues IS NOT NULL AND id = '` + string(next) + `'`); n != 1 {
			t.Errorf("the start found %s, which is not the successor", next)
		}
		if cancel {
			if _, err := first.Result(t.Context()); !errors.Is(err, pawl.ErrCancelled) {
				t.Errorf("the caller that was cancelled gave %v", err)
			}
			_, err := k.Handle(c.desk, next).Result(t.Context())
			if !errors.Is(err, pawl.ErrCancelled) {
				t.Errorf("the successor of its child gave %v, want it cancelled", err)
			}
			continue
		}
		if err := paid.Send(t.Context(), c.desk, pawl.Key("kid"), "last"); err != nil {
			t.Fatal(err)
		}
		c.result(first, "last")
		c.result(second, "last")
	}
}
