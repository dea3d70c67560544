package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// child is a worker process. It dies with the context it was started with, and with this process: it watches its
// standard input, which nobody else holds open.
type child struct {
	cmd     *exec.Cmd
	stdin   io.Closer
	stderr  tail
	ready   chan struct{} // closed when it has opened its store and begins to work
	reached chan struct{} // closed when it stands at its crash point
	done    chan struct{} // closed when the process is gone and waited for
	err     error         // how it ended; to be read after done
}

// start runs this executable as a worker, tells it what to do and waits until it begins.
func (c *control) start(ctx context.Context, s scenario) (*child, error) {
	w := &child{cmd: exec.CommandContext(ctx, c.exe, c.args...), ready: make(chan struct{}), reached: make(chan struct{}),
		done: make(chan struct{})}
	w.cmd.Stderr = &w.stderr
	w.cmd.WaitDelay = 5 * time.Second
	stdin, err := w.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	w.stdin = stdin
	stdout, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := w.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	go w.watch(stdout)
	if err := json.NewEncoder(stdin).Encode(s); err != nil {
		w.kill()
		return nil, fmt.Errorf("tell a worker what to do: %w", errors.Join(err, w.failure()))
	}
	select {
	case <-w.ready:
		return w, nil
	case <-w.done:
		return nil, fmt.Errorf("the worker ended before it began: %w", w.failure())
	}
}

// watch reads what the worker says until it ends, and waits for the process.
func (w *child) watch(stdout io.Reader) {
	defer close(w.done)
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		switch lines.Text() { // a worker says each once
		case readyLine:
			close(w.ready)
		case reachedLine:
			close(w.reached)
		}
	}
	w.err = w.cmd.Wait()
}

// kill is kill -9. It returns when the process is gone, so that the next worker finds it so.
func (w *child) kill() {
	_ = w.cmd.Process.Kill() // it has ended already
	<-w.done
	_ = w.stdin.Close()
}

// stop lets the worker take its leave.
func (w *child) stop() {
	_ = w.stdin.Close()
	<-w.done
}

// failure says how the worker ended, nil if all was well. It blocks until then.
func (w *child) failure() error {
	<-w.done
	if w.err == nil {
		return nil
	}
	return fmt.Errorf("worker: %w: %s", w.err, w.stderr.text())
}

// tail keeps the end of what is written to it.
type tail struct {
	mu sync.Mutex // guards b
	b  []byte
}

// tailSize is enough for a few lines of log.
const tailSize = 4096

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	t.b = t.b[max(0, len(t.b)-tailSize):]
	return len(p), nil
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.b))
}
