package sqlstore

import (
	"slices"
	"strings"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/payload"
)

// sink takes the fields of a row one after the other. A zero value is NULL, but for must.
type sink interface {
	text(v string)
	num(v int64)
	must(v int64)
	time(v int64) // may be relative, see pawl.AtWrite
	flag(v bool)
	data(v []byte)
}

// stepNames are the columns of pawl_steps in the order of putStep.
var stepNames = strings.FieldsFunc(`run, name, batch, item, items, kind, `+stepChanging+`, `+usageColumns+`, value, input`,
	func(r rune) bool { return strings.ContainsRune(", \t\n", r) })

// putStep gives a step's fields to the sink.
func putStep(s *pawl.StepRow, to sink) error {
	to.text(string(s.Run))
	to.text(s.Name)
	batch, item := s.Item()
	to.text(batch)
	to.text(item)
	to.num(int64(s.Items))
	to.text(s.Kind.String())
	return putMoved(s, to)
}

// putMoved leaves out what never changes, and what only MarkStep does.
func putMoved(s *pawl.StepRow, to sink) error {
	failure, err := faultText(s.Fault)
	if err != nil {
		return err
	}
	to.text(string(s.State))
	to.must(int64(s.Attempt))
	to.must(s.Epoch)
	to.text(string(s.Key))
	to.flag(s.Paid)
	to.flag(s.Foreign)
	to.text(string(s.Worker))
	to.time(s.Begun)
	to.time(s.Ended)
	to.time(s.Deadline)
	to.num(s.Settle)
	to.time(s.FirstIntent)
	to.num(s.KeyTTL)
	to.time(s.NextAt)
	to.time(s.FirstTry)
	to.num(int64(s.Unknown))
	to.num(int64(s.Round))
	to.num(s.Told)
	to.num(s.ProbeAfter)
	to.time(s.NextProbe)
	to.num(int64(s.Probes))
	to.flag(s.UseStored)
	to.flag(s.Orphaned)
	to.text(string(s.Inherited))
	to.text(s.TakenFrom)
	to.text(failure)
	to.data(s.InputHash)
	to.data(s.OtherHash)
	putUsage(s, to)
	to.data(s.Value)
	to.data(s.Input)
	return nil
}

func putUsage(s *pawl.StepRow, to sink) {
	u := &s.Usage
	to.text(clean(u.Provider))
	to.text(clean(u.Model))
	to.text(clean(u.RequestID))
	to.num(u.TokensIn)
	to.num(u.TokensOut)
	to.num(u.CostMicros)
	to.num(u.Latency.Microseconds())
	to.text(sentText(s.Sent))
}

// clean makes text that nobody has checked fit to be stored.
func clean(s string) string {
	if s == "" {
		return ""
	}
	return payload.Clean(s, 4096)
}

// shape says which columns of a row have a value, a bit for each, and which of these are relative times. Rows of one shape
// share a statement that names no other column: most columns of most rows are NULL.
type shape struct{ set, relative uint64 }

// columns gives the positions of the columns that have a value.
func (sh shape) columns() []int {
	var at []int
	for i := range stepNames {
		if sh.set&(1<<i) != 0 {
			at = append(at, i)
		}
	}
	return at
}

func (sh shape) late(i int) bool { return sh.relative&(1<<i) != 0 }

// types are those of the columns, see arrayTypes. Intents begin when they are written, all of a batch at once.
func (sh shape) types() string {
	var b strings.Builder
	for _, at := range sh.columns() {
		of := stepTypes[at]
		if stepNames[at] == "begun" && sh.set&(1<<intentAt) != 0 {
			of = 'N'
		}
		b.WriteByte(of)
	}
	return b.String()
}

// intentAt is the column that only rows with an intent have.
var intentAt = slices.Index(stepNames, "settle")

// stepTypes are the types of the columns in stepNames. Those that are alike in most rows of a batch have a capital letter.
var stepTypes = func() []byte {
	types := make([]byte, len(stepNames))
	for i, name := range stepNames {
		switch name {
		case "worker":
			types[i] = 'U'
		case "run", "inherited":
			types[i] = 'u'
		case "kind", "state":
			types[i] = 'T'
		case "name", "batch", "item", "op_key", "taken_from", "provider", "model", "request_id", "sent", "fault":
			types[i] = 't'
		case "attempt", "epoch", "ended", "deadline", "settle", "first_intent", "first_try", "key_ttl":
			types[i] = 'N'
		case "paid", "foreign_tx", "use_stored", "orphaned":
			types[i] = 'o'
		case "input_hash", "other_hash", "value", "input":
			types[i] = 'b'
		default:
			types[i] = 'n'
		}
	}
	return types
}()

// shaper finds the shape of a row.
type shaper struct {
	shape
	at int
}

func (s *shaper) put(set bool) {
	if set {
		s.set |= 1 << s.at
	}
	s.at++
}

func (s *shaper) text(v string) { s.put(v != "") }

func (s *shaper) num(v int64) { s.put(v != 0) }

func (s *shaper) time(v int64) {
	if v > pawl.AtWrite/2 {
		s.relative |= 1 << s.at
	}
	s.put(v != 0)
}

func (s *shaper) must(int64)    { s.put(true) }
func (s *shaper) flag(v bool)   { s.put(v) }
func (s *shaper) data(v []byte) { s.put(v != nil) }

// args collects fields as the parameters of a statement.
type args struct {
	all   []any
	short bool // leave out what is NULL
}

func (a *args) put(v any) {
	if v != nil || !a.short {
		a.all = append(a.all, v)
	}
}

func (a *args) text(v string) { a.put(str(v)) }
func (a *args) num(v int64)   { a.put(num(v)) }
func (a *args) time(v int64)  { a.put(num(v)) }
func (a *args) must(v int64)  { a.put(v) }
func (a *args) flag(v bool)   { a.put(truth(v)) }
func (a *args) data(v []byte) { a.put(raw(v)) }
