package main

import (
	"context"
	"errors"
	"sync"
)

// opKind is one write of the floor.
type opKind uint8

const (
	opInsert opKind = iota
	opStep
	opFinish
	opLast // step and finish
)

// op waits to be written.
type op struct {
	kind opKind
	id   jobID
	seq  int
	done chan error // capacity 1
}

// grouper is a group commit without waiting: a committer that is free takes all that waits.
type grouper struct {
	commit func(context.Context, []*op) error
	wake   chan struct{} // capacity 1
	quit   chan struct{}
	wg     sync.WaitGroup

	mu    sync.Mutex // guards queue
	queue []*op
}

func newGrouper(ctx context.Context, committers int, commit func(context.Context, []*op) error) *grouper {
	g := &grouper{commit: commit, wake: make(chan struct{}, 1), quit: make(chan struct{})}
	for range committers {
		g.wg.Go(func() { g.run(context.WithoutCancel(ctx)) })
	}
	return g
}

func (g *grouper) stop() {
	close(g.quit)
	g.wg.Wait()
}

var errStopped = errors.New("the committer has stopped")

// do returns when o is durable.
func (g *grouper) do(ctx context.Context, o op) error {
	o.done = make(chan error, 1)
	g.mu.Lock()
	g.queue = append(g.queue, &o)
	g.mu.Unlock()
	g.nudge()
	select {
	case err := <-o.done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-g.quit:
		return errStopped
	}
}

func (g *grouper) nudge() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

func (g *grouper) run(ctx context.Context) {
	for {
		select {
		case <-g.wake:
		case <-g.quit:
			return
		}
		for {
			g.mu.Lock()
			ops := g.queue
			g.queue = nil
			g.mu.Unlock()
			if len(ops) == 0 {
				break
			}
			err := g.commit(ctx, ops)
			for _, o := range ops {
				o.done <- err
			}
		}
	}
}

// openBatch opens the floor with group commit.
func openBatch(ctx context.Context, s Spec, t target) (peer, error) {
	p, err := newFloor(ctx, s, t)
	if err != nil {
		return nil, err
	}
	p.atOnce = claimSize
	if t.URL != "" {
		p.ledger, err = openPGBatch(ctx, t)
	} else {
		p.ledger, err = openLiteBatch(ctx, t)
	}
	if err != nil {
		return nil, errors.Join(err, p.db.Close())
	}
	return p, nil
}

const (
	claimSize = 1000 // jobs that floor-batch claims at once
	batchSize = 1000 // jobs in one transaction of a bulk enqueue
)
