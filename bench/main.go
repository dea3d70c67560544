// Command bench measures Pawl beside floors written by hand, DBOS and River, and says which of Pawl's aims are met. What
// is measured and how is in method.md, which becomes part of docs/benchmarks.md. From the root, `make bench` runs all of
// it; here, `go run . -help` lists the flags.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if len(os.Args) == 3 && os.Args[1] == childArg {
		err = childMain(ctx, os.Args[2])
	} else {
		err = run(ctx, os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	selection
	rounds  int
	seconds float64
	quiet   float64
	json    string
	from    string
	write   string
	args    []string
}

func parseFlags(args []string) (o options, err error) {
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	work := f.String("workload", join(workloads), "what to measure")
	stores := f.String("store", "postgres,sqlite", "where")
	cs := f.String("c", "1,64,1000", "runs at once (steps) and workers (queue)")
	peers := f.String("peer", "", "which of floor, floor-batch, dbos, river, pawl (default all)")
	ks := f.String("k", "10,1000,5000", "finished steps of the run that is resumed")
	f.IntVar(&o.rounds, "rounds", 3, "how often each peer is measured, in turn with the others")
	f.Float64Var(&o.seconds, "seconds", 3.2, "how long a measured phase should last; nearly as long is long enough")
	f.IntVar(&o.finished, "finished", 1_000_000, "finished runs kept (backlog)")
	f.IntVar(&o.running, "running", 1_000, "running runs (memory)")
	f.IntVar(&o.queued, "queued", 10_000, "queued runs (memory)")
	f.IntVar(&o.items, "items", 100_000, "items of a batch (batch)")
	f.IntVar(&o.kills, "kills", 20, "kills of the process that works on it (batch)")
	f.IntVar(&o.asleep, "asleep", 100_000, "sleeping runs (waiting)")
	f.Float64Var(&o.quiet, "quiet", 0, "before each measurement wait, at most a minute, until others use fewer `cores`; 0 does not wait")
	f.StringVar(&o.json, "json", "", "write a JSON line for each measurement to this `file`")
	f.StringVar(&o.from, "from", "", "measure nothing, but read such `files` (comma-separated)")
	f.StringVar(&o.write, "write", "", "write the document to this `file`")
	quick := f.Bool("quick", false, "one short round of a selection: shows that everything works, measures little")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if *quick {
		set := make(map[string]bool)
		f.Visit(func(fl *flag.Flag) { set[fl.Name] = true })
		for name, value := range map[string]string{"rounds": "1", "seconds": "0.5", "c": "1,64", "k": "10,1000", "finished": "20000",
			"running": "200", "queued": "1000", "asleep": "2000", "items": "2000", "kills": "2"} {
			if !set[name] {
				err = errors.Join(err, f.Set(name, value))
			}
		}
	}
	f.Visit(func(fl *flag.Flag) { // but for names of files
		if fl.Name != "json" && fl.Name != "write" && fl.Name != "from" {
			o.args = append(o.args, "-"+fl.Name+"="+fl.Value.String())
		}
	})
	o.workloads, o.stores = split[Workload](*work), split[Store](*stores)
	o.peers = split[string](*peers)
	var err1, err2 error
	o.cs, err1 = numbers(*cs)
	o.ks, err2 = numbers(*ks)
	return o, errors.Join(err, err1, err2, o.check())
}

func (o options) check() error {
	for _, w := range o.workloads {
		if !slices.Contains(workloads, w) {
			return fmt.Errorf("-workload %s: want %s", w, join(workloads))
		}
	}
	for _, s := range o.stores {
		if s != Postgres && s != SQLite {
			return fmt.Errorf("-store %s: want postgres or sqlite", s)
		}
	}
	for _, p := range o.peers {
		if openers()[p] == nil {
			return fmt.Errorf("-peer %s: there is none", p)
		}
	}
	return nil
}

func split[S ~string](list string) (out []S) {
	for part := range strings.SplitSeq(list, ",") {
		if part != "" {
			out = append(out, S(part))
		}
	}
	return out
}

func join[S ~string](list []S) string {
	parts := make([]string, len(list))
	for i, s := range list {
		parts[i] = string(s)
	}
	return strings.Join(parts, ",")
}

func numbers(list string) (out []int, err error) {
	for _, part := range split[string](list) {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q: want whole numbers above 0", list)
		}
		out = append(out, n)
	}
	return out, nil
}

func run(ctx context.Context, args []string) error {
	o, err := parseFlags(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	rep := &report{}
	if o.from != "" {
		err = rep.read(split[string](o.from))
	} else {
		err = rep.measure(ctx, o)
	}
	if err != nil {
		return err
	}
	if err := rep.tables(os.Stdout); err != nil {
		return err
	}
	if o.write != "" {
		if err := rep.write(o.write); err != nil {
			return err
		}
	}
	if n := rep.failures(); n > 0 {
		return fmt.Errorf("%d measurements failed", n)
	}
	return nil
}

// measure fills the report, group by group; within a group the peers take turns, and each round begins with another.
func (r *report) measure(ctx context.Context, o options) (err error) {
	l, err := newLab(ctx, o.stores)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	if l.why != nil {
		fmt.Fprintf(os.Stderr, "bench: no PostgreSQL, its part is left out: %v\n", l.why)
		o.stores = slices.DeleteFunc(o.stores, func(s Store) bool { return s == Postgres })
		if len(o.stores) == 0 {
			return errors.New("nothing can be measured without PostgreSQL")
		}
	}
	r.Machine = describe(ctx, l, o)
	out, err := r.output(o.json)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	chosen := make(map[string]int)
	for _, group := range o.plan() {
		for round := range o.rounds {
			for i := range group {
				s := group[(i+round)%len(group)]
				s.Round, s.N = round+1, chosen[s.cell()]
				if o.quiet > 0 {
					quiet(ctx, o.quiet)
				}
				res := l.measure(ctx, s, o.seconds)
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if res.Error == "" && (s.Workload == Steps || s.Workload == Queue || s.Workload == Backlog) {
					chosen[s.cell()] = res.N
				}
				r.Results = append(r.Results, res)
				fmt.Fprintln(os.Stderr, time.Now().Format("15:04:05"), res)
				if err := json.NewEncoder(out).Encode(res); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
