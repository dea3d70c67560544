//go:build unix

package torture_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
)

// op names an operation of a lineage: what must happen once, whichever of its runs does it.
type op struct {
	Lineage pawl.RunID
	Step    string
}

// effect is one request that reached the outside world and was carried out.
type effect struct {
	op
	Run     pawl.RunID
	Attempt int
	Key     pawl.OpKey
	PID     int
	Input   string
	Ref     string // what the caller is told; unique for each effect
	Fresh   bool   // not absorbed by its key
	Lost    bool   // the reply was thrown away
	At      time.Time
}

// effects is the outside world. It outlives the workers, does what it is asked to, and sometimes refuses, is
// slow to answer, or does not answer. Each request goes to a log file too, unsynced.
type effects struct {
	url  string
	log  *os.File
	late time.Duration // how long after the request an effect of a Once step comes, at most
	kind bool          // neither refuses nor is slow nor silent

	mu      sync.Mutex // guards all below
	rnd     *rand.Rand
	all     []effect
	byOp    map[op][]int          // indexes into all
	byKey   map[pawl.OpKey]int    // index of the fresh effect under a key that is honoured
	anyKey  map[pawl.OpKey]string // reference of the first effect under any key
	refused map[op]int
	calls   []service
}

// service is a call while it is under way.
type service struct {
	run      pawl.RunID
	from, to time.Time
}

func (o *effects) served(c service) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls = append(o.calls, c)
}

func newEffects(t *testing.T, dir string, seed uint64) *effects {
	o := &effects{
		rnd: rand.New(rand.NewPCG(seed, 1)), byOp: map[op][]int{}, byKey: map[pawl.OpKey]int{},
		anyKey: map[pawl.OpKey]string{}, refused: map[op]int{},
	}
	var err error
	if o.log, err = os.Create(filepath.Join(dir, "effects.jsonl")); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(o)
	t.Cleanup(func() {
		s.Close()
		_ = o.log.Close()
	})
	o.url = s.URL
	return o
}

// ServeHTTP does an effect, or answers a probe's question.
func (o *effects) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		_ = json.NewEncoder(w).Encode(o.find(pawl.OpKey(r.FormValue("key"))))
		return
	}
	var e effect
	raw, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(raw, &e)
	}
	if err != nil { // a caller that died while it sent: nothing was asked
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if o.late > 0 && isOnce(verbOf(e.Step)) {
		<-time.After(rand.N(o.late))
	}
	begun := time.Now()
	done, status, slow := o.record(e)
	select {
	case <-time.After(slow):
	case <-r.Context().Done(): // nobody waits for the answer any more
	}
	o.served(service{e.Run, begun, time.Now()})
	switch {
	case status != http.StatusOK:
		w.WriteHeader(status)
	case done.Lost:
		panic(http.ErrAbortHandler) // closes the connection without an answer
	default:
		_ = json.NewEncoder(w).Encode(done.Ref)
	}
}

// record decides what becomes of a request, and does it.
func (o *effects) record(e effect) (done effect, status int, slow time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	slow = time.Duration(o.rnd.Int64N(int64(25 * time.Millisecond)))
	switch verb := verbOf(e.Step); {
	case o.kind:
	case verb == "flaky" && o.refused[e.op] < 2: // fails the run, until it has been retried by hand twice
		o.refused[e.op]++
		return e, http.StatusUnprocessableEntity, slow
	case o.rnd.IntN(100) < 2:
		return e, http.StatusTooManyRequests, slow
	case isItem(e.Step):
		slow = time.Duration(o.rnd.Int64N(int64(200 * time.Millisecond)))
	case verb == "long" || kindOf(verb) == "Once" && o.rnd.IntN(6) == 0:
		slow = time.Duration(o.rnd.Int64N(int64(1200 * time.Millisecond)))
	}
	e.Ref, e.Fresh, e.Lost, e.At = fmt.Sprintf("e%d", len(o.all)), true, !o.kind && o.rnd.IntN(100) < 2, time.Now()
	if kindOf(e.Step) == "Keyed" {
		if i, ok := o.byKey[e.Key]; ok {
			e.Ref, e.Fresh = o.all[i].Ref, false
		} else {
			o.byKey[e.Key] = len(o.all)
		}
	}
	if _, ok := o.anyKey[e.Key]; !ok && e.Key != "" {
		o.anyKey[e.Key] = e.Ref
	}
	o.byOp[e.op] = append(o.byOp[e.op], len(o.all))
	o.all = append(o.all, e)
	line, _ := json.Marshal(e) // plain values always encode
	_, _ = o.log.Write(append(line, '\n'))
	return e, http.StatusOK, slow
}

// find returns the reference of the first effect under a key, "" if there is none.
func (o *effects) find(key pawl.OpKey) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.anyKey[key]
}

// of lists the effects of an operation, in order.
func (o *effects) of(p op) []effect {
	o.mu.Lock()
	defer o.mu.Unlock()
	some := make([]effect, 0, len(o.byOp[p]))
	for _, i := range o.byOp[p] {
		some = append(some, o.all[i])
	}
	return some
}

// ops lists the operations that had an effect, each once, in the order of their first.
func (o *effects) ops() []op {
	o.mu.Lock()
	defer o.mu.Unlock()
	var all []op
	for i := range o.all {
		if p := o.all[i].op; o.byOp[p][0] == i {
			all = append(all, p)
		}
	}
	return all
}
