package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// childArg is the first argument of this program when it measures for its parent. A process of its own for each
// measurement keeps memory and garbage of one from another.
const childArg = "measure-one"

// childMain runs the job that stands in the second argument and writes what came out to standard output.
func childMain(ctx context.Context, text string) error {
	go func() { // the parent holds the other end, and lets go of it by whatever death
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	switch j.Phase {
	case strand:
		if j.Workload == Batch {
			return strandItems(ctx, j)
		}
		p, err := openAs[resumer](ctx, j)
		if err != nil {
			return err
		}
		return p.strand(ctx, j.K, func() { fmt.Println(readyLine) })
	case fill:
		return fillIn(ctx, j)
	case measure:
		r, err := runJob(ctx, j)
		if err != nil {
			return err
		}
		r.RSS = largestRSS()
		return json.NewEncoder(os.Stdout).Encode(r)
	}
	return fmt.Errorf("there is no phase %q", j.Phase)
}

const readyLine = "ready"

// spawn prepares a child; what it says on standard error is copied to said. Its standard input must be kept open while it
// shall live.
func spawn(ctx context.Context, j job, said io.Writer) (*exec.Cmd, io.WriteCloser, error) {
	text, err := json.Marshal(j)
	if err != nil {
		return nil, nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.CommandContext(ctx, self, childArg, string(text))
	cmd.Stderr = io.MultiWriter(os.Stderr, said)
	in, err := cmd.StdinPipe()
	return cmd, in, err
}

// runChild runs a job in a child and returns its result; a job that only fills has none.
func runChild(ctx context.Context, j job) (r Result, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, childTimeout, errors.New("the measurement takes too long"))
	defer cancel()
	var said bytes.Buffer
	cmd, in, err := spawn(ctx, j, &said)
	if err != nil {
		return r, err
	}
	defer func() { _ = in.Close() }()
	out, err := cmd.Output()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		return r, cmpErr(context.Cause(ctx), fmt.Errorf("%w: %s", err, lines[len(lines)-1]))
	}
	if j.Phase != measure {
		return r, nil
	}
	err = json.Unmarshal(out, &r)
	return r, err
}

const childTimeout = 10 * time.Minute

// killed starts a child that strands a run, and kills it with SIGKILL when it says that it is ready.
func killed(ctx context.Context, j job) (err error) {
	j.Phase = strand
	cmd, in, err := spawn(ctx, j, io.Discard)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ready := false
	for lines := bufio.NewScanner(out); !ready && lines.Scan(); {
		ready = lines.Text() == readyLine
	}
	err = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	if !ready {
		return errors.New("the process that was to be killed ended by itself")
	}
	return err
}

// openAs opens the job's peer as something that can do what the workload needs.
func openAs[P any](ctx context.Context, j job) (peerP P, err error) {
	p, err := open(ctx, j)
	if err != nil {
		return peerP, err
	}
	can, ok := p.(P)
	if !ok {
		return peerP, errors.Join(fmt.Errorf("%s, %s: %w", j.Workload, j.name(), errCannot), p.close(ctx))
	}
	return can, nil
}
