package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// The floor is the least that a journal in SQL can do: no fence, no lease, no attempts, no errors. A run is a row that
// is inserted and updated, a step is a row, a job of a queue is claimed in a commit of its own.

// jobID is a run's id. Version 7, so that new rows go to the end of the index.
type jobID = [16]byte

func newID() jobID { return jobID(uuid.Must(uuid.NewV7())) }

// States of the floor's runs.
const (
	floorQueued  = 0
	floorRunning = 1
	floorDone    = 2
)

// ledger is how the floor writes; each call returns when its rows are durable.
type ledger interface {
	insert(ctx context.Context, id jobID, state int) error
	// tell is insert, and wakes the listener with the same commit.
	tell(ctx context.Context, id jobID) error
	step(ctx context.Context, id jobID, seq int) error
	finish(ctx context.Context, id jobID) error
	// last is step and finish in one commit.
	last(ctx context.Context, id jobID) error
	// claim takes up to n queued jobs; fewer, or none, if there are no more.
	claim(ctx context.Context, n int) ([]jobID, error)
	bulk(ctx context.Context, n int) error
	// heard blocks until a tell may have happened.
	heard(ctx context.Context) error
	// find reads the one run that is not finished, and the results of its steps.
	find(ctx context.Context) (jobID, [][]byte, error)
	close(ctx context.Context) error
}

// floorPeer runs the workloads on a ledger.
type floorPeer struct {
	ledger
	s      Spec
	db     *sql.DB // for counting
	atOnce int     // how many jobs are claimed at once; 1 but for floor-batch
}

var result = []byte(strconv.Quote(payload))

// floorQueue is the index that a queue needs. Without it the end of a run is a HOT update.
const floorQueue = `CREATE INDEX IF NOT EXISTS runs_queued ON runs (id) WHERE state = 0`

const floorCount = `SELECT count(CASE WHEN state = 2 THEN 1 END), count(CASE WHEN state <> 2 THEN 1 END),
	(SELECT count(*) FROM steps) FROM runs`

func openFloor(ctx context.Context, s Spec, t target) (peer, error) {
	p, err := newFloor(ctx, s, t)
	if err != nil {
		return nil, err
	}
	if t.URL != "" {
		p.ledger, err = openPGLedger(ctx, t)
	} else {
		p.ledger, err = openLiteLedger(ctx, t)
	}
	if err != nil {
		return nil, errors.Join(err, p.db.Close())
	}
	return p, nil
}

func newFloor(ctx context.Context, s Spec, t target) (*floorPeer, error) {
	db, err := openSQL(t, 2)
	if err != nil {
		return nil, err
	}
	schema := floorSchemaPG
	if t.URL == "" {
		schema = floorSchemaLite
	}
	if s.Workload != Steps {
		schema = append(slices.Clone(schema), floorQueue)
	}
	if err := execAll(ctx, db, schema...); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &floorPeer{s: s, db: db, atOnce: 1}, nil
}

func (p *floorPeer) close(ctx context.Context) error {
	return errors.Join(p.ledger.close(ctx), p.db.Close())
}

func (p *floorPeer) count(ctx context.Context) (tally, error) {
	return countRows(ctx, p.db, floorCount)
}

func (p *floorPeer) steps(ctx context.Context, ck *clock, n, c int) ([]time.Duration, error) {
	ck.begin(ctx)
	took, err := eachOf(ctx, n, c, func(ctx context.Context, _ int) error {
		id := newID()
		err := p.insert(ctx, id, floorRunning)
		for i := 0; i < stepsPerRun && err == nil; i++ {
			err = p.step(ctx, id, i)
		}
		if err == nil {
			err = p.finish(ctx, id)
		}
		return err
	})
	ck.end(ctx)
	return took, err
}

func (p *floorPeer) enqueue(ctx context.Context, n int) error {
	for _, part := range batches(n, batchSize) {
		if err := p.bulk(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

func (p *floorPeer) drain(ctx context.Context, ck *clock, n, w int) error {
	ck.begin(ctx)
	err := p.work(ctx, n, w)
	ck.end(ctx)
	return err
}

// work executes n jobs with w workers. Each claims for itself, or one claims for all in batches.
func (p *floorPeer) work(ctx context.Context, n, w int) error {
	if p.atOnce == 1 {
		_, err := eachOf(ctx, n, w, func(ctx context.Context, _ int) error {
			got, err := p.claim(ctx, 1)
			if err != nil {
				return err
			}
			if len(got) == 0 { // others have taken the rest
				return nil
			}
			return p.last(ctx, got[0])
		})
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	jobs := make(chan jobID, p.atOnce)
	go func() {
		defer close(jobs)
		for left := n; left > 0; {
			got, err := p.claim(ctx, p.atOnce)
			if err != nil || len(got) == 0 {
				cancel(cmpErr(err, errors.New("the queue is empty too soon")))
				return
			}
			left -= len(got)
			for _, id := range got {
				jobs <- id
			}
		}
	}()
	_, err := eachOf(ctx, n, w, func(ctx context.Context, _ int) error {
		id, ok := <-jobs
		if !ok {
			return context.Cause(ctx)
		}
		return p.last(ctx, id)
	})
	return err
}

func cmpErr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// sample has a worker in this process that sleeps until it hears of a job. Variant local inserts jobs that are claimed
// already, and executes them itself.
func (p *floorPeer) sample(ctx context.Context, next func() bool) (picks, dones []time.Duration, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	began, ended := make(chan time.Time, 1), make(chan time.Time, 1)
	listens := make(chan struct{})
	if p.s.Variant != floorLocal {
		go func() {
			if err := p.listen(ctx, listens, began, ended); err != nil {
				cancel(err)
			}
		}()
		select {
		case <-listens:
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
	for next() {
		id, t := newID(), time.Now()
		if p.s.Variant == floorLocal {
			if err := p.insert(ctx, id, floorRunning); err != nil {
				return nil, nil, err
			}
			picks = append(picks, time.Since(t))
			if err := p.last(ctx, id); err != nil {
				return nil, nil, err
			}
			dones = append(dones, time.Since(t))
			continue
		}
		if err := p.tell(ctx, id); err != nil {
			return nil, nil, err
		}
		select {
		case end := <-ended:
			picks, dones = append(picks, (<-began).Sub(t)), append(dones, end.Sub(t))
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
	return picks, dones, nil
}

const floorLocal = "in process"

// listen claims and executes one job after each wake-up.
func (p *floorPeer) listen(ctx context.Context, listens chan struct{}, began, ended chan time.Time) error {
	for first := true; ; first = false {
		got, err := p.claim(ctx, 1)
		if err != nil {
			return err
		}
		if first { // the claim connection is warm now; the listener is there since the ledger was opened
			close(listens)
		}
		if len(got) == 0 {
			if err := p.heard(ctx); err != nil {
				return err
			}
			continue
		}
		began <- time.Now()
		if err := p.last(ctx, got[0]); err != nil {
			return err
		}
		ended <- time.Now()
	}
}

func (p *floorPeer) strand(ctx context.Context, k int, ready func()) error {
	id := newID()
	if err := p.insert(ctx, id, floorRunning); err != nil {
		return err
	}
	for i := range k {
		if err := p.step(ctx, id, i); err != nil {
			return err
		}
	}
	ready()
	<-ctx.Done()
	return context.Cause(ctx)
}

func (p *floorPeer) patience() time.Duration { return 0 }

// resume finds the open run and reads its journal in one SELECT.
func (p *floorPeer) resume(ctx context.Context, k int) (recovery, replay time.Duration, err error) {
	start := time.Now()
	_, journal, err := p.find(ctx)
	if err != nil {
		return 0, 0, err
	}
	read := time.Now()
	for _, text := range journal {
		if _, err := strconv.Unquote(string(text)); err != nil {
			return 0, 0, err
		}
	}
	if len(journal) != k {
		return 0, 0, fmt.Errorf("the journal has %d steps, want %d", len(journal), k)
	}
	return time.Since(start), time.Since(read), nil
}
