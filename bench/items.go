package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/pawlrun/pawl"
)

const (
	itemTakes   = 10 * time.Millisecond // an item's effect
	itemsAtOnce = 32
	itemsAsk    = 20 * time.Millisecond // how often the end of the batch is looked for
)

const itemsOpen = `SELECT EXISTS (SELECT 1 FROM pawl_runs WHERE workflow = 'items' AND ended IS NULL)`

// defineItems makes a workflow with a batch of items that are one Keyed step each, in a random order. Each effect adds a byte to a file, which counts the effects of all processes.
func (p *pawlPeer) defineItems() {
	p.items = pawl.Define("items", "v1", func(run *pawl.Run, n int) (string, error) {
		ids := rand.Perm(n)
		_, err := pawl.Batch(run, "items", ids, strconv.Itoa, func(run *pawl.Run, i int) (string, error) {
			return pawl.Keyed(run, "effect", i, func(context.Context, pawl.OpKey, int) (string, error) {
				time.Sleep(itemTakes)
				_, err := p.effects.Write([]byte{'.'})
				p.made.Add(1)
				return payload, err
			})
		}, pawl.AtOnce(itemsAtOnce))
		return "", err
	})
}

// batcher works on a batch of items.
type batcher interface {
	// begin starts the run, and returns when it is there.
	begin(ctx context.Context, n int) error
	// some works until so many effects more have been made, and goes on working.
	some(ctx context.Context, path string, n int) error
	// all works until the run has ended.
	all(ctx context.Context, path string) error
}

func (p *pawlPeer) begin(ctx context.Context, n int) error {
	_, err := p.items.Start(ctx, p.starter, n)
	return err
}

func (p *pawlPeer) open(path string) (err error) {
	p.effects, err = os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	return err
}

func (p *pawlPeer) some(ctx context.Context, path string, n int) error {
	if err := p.open(path); err != nil {
		return err
	}
	p.work(ctx)
	for p.made.Load() < int64(n) {
		select {
		case <-time.After(itemTakes):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (p *pawlPeer) all(ctx context.Context, path string) error {
	if err := p.open(path); err != nil {
		return err
	}
	p.work(ctx)
	for {
		var open bool
		if err := p.db.QueryRowContext(ctx, itemsOpen).Scan(&open); err != nil || !open {
			return errors.Join(err, p.effects.Close())
		}
		select {
		case <-time.After(itemsAsk):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// strandItems is the life of a process that is killed.
func strandItems(ctx context.Context, j job) error {
	p, err := openAs[batcher](ctx, j)
	if err == nil {
		err = p.some(ctx, j.Effects, j.K/(j.Kills+1))
	}
	if err == nil {
		fmt.Println(readyLine)
		<-ctx.Done()
	}
	return err
}

// runBatch measures a batch, from its start to its end, with all that its kills cost.
func runBatch(ctx context.Context, j job) (r Result, err error) {
	p, err := openAs[interface {
		peer
		batcher
	}](ctx, j)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, p.close(ctx)) }()
	f, err := os.CreateTemp("", "pawl-bench-effects-")
	if err != nil {
		return r, err
	}
	j.Effects = f.Name()
	defer func() { err = errors.Join(err, f.Close(), os.Remove(j.Effects)) }()
	if err := p.begin(ctx, j.K); err != nil {
		return r, err
	}
	start := time.Now()
	for range j.Kills {
		if err := killed(ctx, j); err != nil {
			return r, err
		}
	}
	if err := p.all(ctx, j.Effects); err != nil {
		return r, err
	}
	took := time.Since(start)
	effects, err := io.Copy(io.Discard, bufio.NewReader(f))
	if err != nil {
		return r, err
	}
	if err := mustHave(ctx, p, tally{finished: 1, steps: j.K + 1}); err != nil {
		return r, err
	}
	j.N = j.K
	working := took - time.Duration(j.Kills)*pawlLease
	return Result{Spec: j.Spec, Seconds: took.Seconds(), Working: working.Seconds(), Rate: float64(j.K) / working.Seconds(),
		Again: float64(effects - int64(j.K))}, nil
}

// itemState is what the workload batch keeps in a peer.
type itemState struct {
	items   *pawl.Workflow[int, string]
	effects *os.File
	made    atomic.Int64
}
