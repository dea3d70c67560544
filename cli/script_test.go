package cli_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/cli"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/sqlite"
)

var update = flag.Bool("update", false, "write what the commands print into testdata")

// TestScripts runs each file of testdata in a fresh directory. A line "$ pawl …" is a command, "% …" an act of the test
// itself; the lines up to the next of them are what is expected: standard output, standard error behind "! ", and the
// exit code if it is not 0. Ids, times, durations and keys are replaced by names.
func TestScripts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := newScript(t).play(string(want))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(got, string(want)); diff != "" {
				t.Errorf("output differs from %s (-got +want; -update writes it):\n%s", file, diff)
			}
		})
	}
}

// script is one running script.
type script struct {
	t      *testing.T
	world  *world
	dir    string
	defs   []pawl.Definition
	ids    []string // by their order of appearance
	keys   []string
	hashes []string // their first digits
}

func newScript(t *testing.T) *script {
	w := &world{}
	return &script{t: t, world: w, dir: t.TempDir(), defs: w.defs()}
}

func (s *script) db() string { return filepath.Join(s.dir, "pawl.db") }

func (s *script) play(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "# ") || line == "#":
			fmt.Fprintln(&out, line)
		case strings.HasPrefix(line, "$ pawl"):
			fmt.Fprintln(&out, line)
			out.WriteString(s.command(strings.TrimPrefix(line, "$ pawl")))
		case strings.HasPrefix(line, "% "):
			fmt.Fprintln(&out, line)
			s.act(strings.TrimPrefix(line, "% "))
		}
	}
	return out.String()
}

func (s *script) command(line string) string {
	args := words(s.t, s.restore(line))
	stdin := io.Reader(strings.NewReader(""))
	if i := len(args) - 2; i >= 0 && args[i] == "<" {
		stdin, args = strings.NewReader(args[i+1]), args[:i]
	}
	var stdout, stderr bytes.Buffer
	o := cli.Options{Name: "pawl", DB: s.db()}
	code := cli.Run(s.t.Context(), args, stdin, &stdout, &stderr, o, s.defs...)
	text := s.normal(stdout.String())
	for line := range strings.Lines(s.normal(stderr.String())) {
		text += strings.TrimRight("! "+strings.TrimSuffix(line, "\n"), " ") + "\n"
	}
	if code != 0 {
		text += fmt.Sprintf("[exit %d]\n", code)
	}
	return text
}

func (s *script) act(what string) {
	s.t.Helper()
	verb, arg, _ := strings.Cut(what, " ")
	switch verb {
	case "work":
		s.work()
	case "past":
		s.past(arg)
	case "break":
		s.world.broken.Store(true)
	case "mend":
		s.world.broken.Store(false)
	case "file":
		name, content, _ := strings.Cut(arg, " ")
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(content), 0o600); err != nil {
			s.t.Fatal(err)
		}
	default:
		s.t.Fatalf("unknown act %q", what)
	}
}

// past puts finished runs of ship into the database that ended that long ago: "3 48h", with a product key each.
func (s *script) past(what string) {
	s.t.Helper()
	n, age := 0, ""
	if _, err := fmt.Sscan(what, &n, &age); err != nil {
		s.t.Fatal(err)
	}
	ago, err := time.ParseDuration(age)
	if err != nil {
		s.t.Fatal(err)
	}
	store, err := sqlite.Open(s.db(), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	defer store.Close()
	rows := make([]pawl.RunRow, n)
	end := time.Now().Add(-ago)
	for i := range rows {
		id := uuid.Must(uuid.NewV7())
		for k := range 6 { // of that time
			id[k] = byte(end.Add(-time.Minute).UnixMilli() >> (40 - 8*k))
		}
		rows[i] = pawl.RunRow{ID: pawl.RunID(id.String()), Lineage: pawl.RunID(id.String()), Workflow: "ship", Version: "v1", KeyName: "ship",
			Queue: "ship", Key: pawl.Key(fmt.Sprint("past:", i)), State: pawl.Succeeded, Ended: end.UnixMicro(), Input: []byte(`{"No":1}`)}
	}
	if err := store.Update(s.t.Context(), func(ctx context.Context, tx pawl.Txn) error {
		for i := range rows {
			key := pawl.KeyRow{KeyName: "ship", Key: rows[i].Key, Lineage: rows[i].ID}
			if _, _, err := tx.ClaimKey(ctx, key); err != nil {
				return err
			}
			if err := tx.EndKey(ctx, &rows[i]); err != nil {
				return err
			}
		}
		return tx.InsertRuns(ctx, rows)
	}); err != nil {
		s.t.Fatal(err)
	}
}

// work runs `work` until no run is queued or running.
func (s *script) work() {
	s.t.Helper()
	store, err := sqlite.Open(s.db(), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	defer store.Close()
	ctx, stop := context.WithCancel(s.t.Context())
	defer stop()
	done := make(chan int, 1)
	var log bytes.Buffer
	go func() {
		done <- cli.Run(ctx, []string{"work", "--poll", "10ms"}, strings.NewReader(""), &log, &log, cli.Options{Name: "pawl", DB: s.db()}, s.defs...)
	}()
	await(s.t, func() bool {
		live, err := store.ListRuns(s.t.Context(), pawl.RunQuery{States: []pawl.RunState{pawl.Queued, pawl.Running}, Limit: 1})
		if err != nil {
			s.t.Fatal(err)
		}
		return len(live) == 0
	})
	stop()
	if code := <-done; code != 0 {
		s.t.Errorf("work ended with %d:\n%s", code, &log)
	}
}

// await waits for a condition.
func await(t *testing.T, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(30 * time.Second)
	defer end.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatal("the condition did not come true in 30 s")
		}
	}
}

var (
	uuids  = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	opKeys = regexp.MustCompile(`\b[a-z2-7]{52}\b`)
	short  = regexp.MustCompile(`\b[a-z2-7]{12}…`)
	times  = regexp.MustCompile(`[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}(\.[0-9]+)?Z`)
	spans  = regexp.MustCompile(`(^|[ (])([0-9]+h)?([0-9]+m)?[0-9]+(\.[0-9]+)?(ns|µs|ms|s)([ ).;,]|$)`)
	nanos  = regexp.MustCompile(`_ns": ?[0-9]+`)
	hashes = regexp.MustCompile(`\b[0-9a-f]{64}\b|[0-9a-f]{12}…|--hash [0-9a-f]{12}`)
	rates  = regexp.MustCompile(`\b[0-9.e+]+/s\b|("per_second": ?)[0-9.e+]+`)
	builds = regexp.MustCompile(`(exe-)?[0-9a-f]{12}\b`)
	digest = regexp.MustCompile(`"digest": ?"[0-9a-f]+"`)
	gaps   = regexp.MustCompile(`(\S) {2,}`)
)

// normal replaces what differs from run to run.
func (s *script) normal(text string) string {
	text = strings.ReplaceAll(text, s.dir, "<dir>")
	text = digest.ReplaceAllString(text, `"digest": "<digest>"`)
	text = uuids.ReplaceAllStringFunc(text, func(id string) string { return name(&s.ids, "id", id) })
	text = opKeys.ReplaceAllStringFunc(text, func(key string) string { return name(&s.keys, "key", key) })
	text = short.ReplaceAllStringFunc(text, func(key string) string {
		for i, k := range s.keys {
			if strings.HasPrefix(k, strings.TrimSuffix(key, "…")) {
				return fmt.Sprintf("<key%d…>", i+1)
			}
		}
		return "<key…>"
	})
	text = times.ReplaceAllString(text, "<time>")
	text = nanos.ReplaceAllString(text, `_ns": <n>`)
	text = hashes.ReplaceAllStringFunc(text, func(h string) string {
		h, flag := strings.CutPrefix(h, "--hash ")
		if flag {
			return "--hash " + name(&s.hashes, "hash", h)
		}
		return name(&s.hashes, "hash", h[:12])
	})
	text = rates.ReplaceAllString(text, "${1}<rate>")
	text = builds.ReplaceAllString(text, "<build>")
	var out strings.Builder
	for line := range strings.Lines(text) {
		line = gaps.ReplaceAllString(strings.TrimRight(line, "\n"), "$1  ")
		line = spans.ReplaceAllString(line, "${1}<span>$6")
		out.WriteString(spans.ReplaceAllString(line, "${1}<span>$6") + "\n")
	}
	return out.String()
}

func name(seen *[]string, what, value string) string {
	for i, v := range *seen {
		if v == value {
			return fmt.Sprintf("<%s%d>", what, i+1)
		}
	}
	*seen = append(*seen, value)
	return fmt.Sprintf("<%s%d>", what, len(*seen))
}

// restore puts ids and the directory back.
func (s *script) restore(line string) string {
	for i, id := range s.ids {
		line = strings.ReplaceAll(line, fmt.Sprintf("<id%d>", i+1), id)
	}
	for i, h := range s.hashes {
		line = strings.ReplaceAll(line, fmt.Sprintf("<hash%d>", i+1), h)
	}
	return strings.ReplaceAll(line, "<dir>", s.dir)
}

// words splits a line as a shell does, with single and double quotes.
func words(t *testing.T, line string) []string {
	t.Helper()
	var all []string
	word, in, quoted := "", false, rune(0)
	for _, r := range line {
		switch {
		case quoted != 0 && r == quoted:
			quoted = 0
		case quoted != 0:
			word += string(r)
		case r == '\'' || r == '"':
			quoted, in = r, true
		case r == ' ':
			if in {
				all = append(all, word)
			}
			word, in = "", false
		default:
			word, in = word+string(r), true
		}
	}
	if quoted != 0 {
		t.Fatalf("open quote in %q", line)
	}
	if in {
		all = append(all, word)
	}
	return all
}

// world is what the workflows of the scripts act on.
type world struct {
	broken atomic.Bool
}

type order struct {
	No   int
	Note string
}

func (w *world) defs() []pawl.Definition {
	report := pawl.Define("report", "v1", func(_ *pawl.Run, o order) (string, error) { return "report of " + o.Note, nil })
	return []pawl.Definition{
		report.Schedule("nightly", pawl.Cron("30 2 * * *", "Europe/Berlin"), func(at time.Time) order { return order{Note: at.Format(time.DateOnly)} }),
		pawl.Define("ship", "v1", w.ship),
		pawl.Define("ship", "v2", w.ship),
		pawl.Define("ship", "v10", w.ship),
		pawl.Define("score", "v1", w.score, pawl.BlockOnExhausted()),
		pawl.Define("repay", "v1", w.repay),
		pawl.Define("rows", "v1", w.rows),
		pawl.Define("countdown", "v1", w.countdown),
	}
}

// countdown continues with one less, down to 0.
func (w *world) countdown(run *pawl.Run, n int) (string, error) {
	if n == 0 {
		return "lift-off", nil
	}
	return pawl.ContinueAs[string](run, n-1)
}

// rows is a batch. While the world is broken, every third item fails.
func (w *world) rows(run *pawl.Run, n int) (int, error) {
	items := make([]int, n)
	for i := range items {
		items[i] = i
	}
	res, err := pawl.Batch(run, "load", items, func(i int) string { return fmt.Sprint("row-", i) }, func(run *pawl.Run, i int) (int, error) {
		return pawl.Keyed(run, "put", i, func(context.Context, pawl.OpKey, int) (int, error) {
			if w.broken.Load() && i%3 == 2 {
				return 0, fault.Invalid(errors.New("malformed row"))
			}
			return i, nil
		})
	})
	return res.Done, err
}

// ship prices an order, books it, and mails the customer. While the world is broken the price cannot be found, and what
// became of a mail is not known.
func (w *world) ship(run *pawl.Run, o order) (string, error) {
	price, err := pawl.Repeatable(run, "price", o, w.price, pawl.Paid())
	if err != nil {
		return "", err
	}
	if err := pawl.KeyedDo(run, "book", price, func(context.Context, pawl.OpKey, int) error { return nil }); err != nil {
		return "", err
	}
	return pawl.Once(run, "mail", o.Note, w.mail)
}

// repay asks before it pays, and pays what was approved.
func (w *world) repay(run *pawl.Run, o order) (string, error) {
	ok, err := pawl.Approve(run, "approve", o, pawl.Deciders("ann", "finance"), pawl.Expires(1000*time.Hour))
	if err != nil {
		return "", err
	}
	return pawl.Keyed(run, "pay", ok.Payload, func(_ context.Context, _ pawl.OpKey, o order) (string, error) {
		return fmt.Sprintf("paid %d %s", o.No, o.Note), nil
	}, pawl.Under(ok))
}

func (w *world) price(ctx context.Context, o order) (int, error) {
	if w.broken.Load() && o.Note == "" {
		return 0, fault.Invalid(errors.New("no price for \x1b[31mthis\x1b[0m order"))
	}
	pawl.Report(ctx, pawl.Usage{Provider: "oracle", Model: "m1", TokensIn: 10, TokensOut: 3, CostMicros: 1250})
	return o.No * 100, nil
}

func (w *world) mail(_ context.Context, _ pawl.Intent, note string) (string, error) {
	if w.broken.Load() {
		return "", errors.New("connection lost after DATA")
	}
	return "sent " + note, nil
}

func (w *world) score(run *pawl.Run, o order) (int, error) {
	return pawl.Repeatable(run, "rate", o, func(context.Context, order) (int, error) {
		if w.broken.Load() {
			return 0, &fault.Fault{Class: fault.Transient, Outcome: fault.OutcomeRejected, Message: "the rater is away"}
		}
		return o.No, nil
	}, pawl.Retry(pawl.RetryPolicy{Attempts: 1}))
}
