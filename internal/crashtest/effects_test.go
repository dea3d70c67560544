//go:build unix

package crashtest_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
)

// effect is one call that reached the outside world.
type effect struct {
	Run     pawl.RunID
	Step    string
	Attempt int
	Key     pawl.OpKey
	PID     int
	Input   string
	Ref     string // what the caller got
	Fresh   bool   // not absorbed by its key
}

// effects is the outside world: it records every call in order, and absorbs the second one of a keyed step by its key.
type effects struct {
	url  string
	slow time.Duration // the longest time that a reply takes after its effect

	mu  sync.Mutex // guards all
	all []effect
}

func newEffects(t *testing.T, slow time.Duration) *effects {
	o := &effects{slow: slow}
	s := httptest.NewServer(o)
	t.Cleanup(s.Close)
	o.url = s.URL
	return o
}

func (o *effects) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var ref string
	if r.Method == http.MethodGet {
		attempt, _ := strconv.Atoi(r.FormValue("attempt"))
		ref = o.find(func(e *effect) bool { return string(e.Key) == r.FormValue("key") && e.Attempt == attempt })
	} else {
		var e effect
		if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		ref = o.record(e)
		<-time.After(rand.N(o.slow + 1))
	}
	_ = json.NewEncoder(w).Encode(ref)
}

func (o *effects) record(e effect) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	e.Ref, e.Fresh = fmt.Sprintf("%s#%d", e.Step, len(o.all)), true
	for i := range o.all {
		if f := &o.all[i]; absorbed(e.Step) && f.Key == e.Key && f.Fresh {
			e.Ref, e.Fresh = f.Ref, false
		}
	}
	o.all = append(o.all, e)
	return e.Ref
}

// absorbed reports whether the outside world honours the keys of a step.
func absorbed(step string) bool {
	return path.Base(step) == "item" || step == "keyed" || slices.Contains(keyedSteps, step)
}

// find returns the reference of the first effect that fits, "" if none does.
func (o *effects) find(fits func(*effect) bool) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range o.all {
		if fits(&o.all[i]) {
			return o.all[i].Ref
		}
	}
	return ""
}

// of lists the effects of a run's step.
func (o *effects) of(run pawl.RunID, step string) []effect {
	o.mu.Lock()
	defer o.mu.Unlock()
	var some []effect
	for _, e := range o.all {
		if e.Run == run && e.Step == step {
			some = append(some, e)
		}
	}
	return some
}
