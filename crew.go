package pawl

import "sync"

// crew runs functions, each in a goroutine of its own for as long as it takes. A goroutine that is done waits for the next one:
// its stack has grown by then, which for a short run costs a tenth of all there is to do. As with the requests of one HTTP
// connection, what a function does to its goroutine and does not undo, such as [runtime.LockOSThread], is there for the next.
type crew struct {
	busy  sync.WaitGroup // functions
	all   sync.WaitGroup // goroutines
	tasks chan func()    // received from by those that wait
	home  chan struct{}  // closed when none is to wait any more
}

func newCrew() *crew { return &crew{tasks: make(chan func()), home: make(chan struct{})} }

// do runs fn and does not wait for it.
func (c *crew) do(fn func()) {
	c.busy.Add(1)
	select {
	case c.tasks <- fn:
	default:
		c.all.Go(func() { c.work(fn) })
	}
}

func (c *crew) work(fn func()) {
	for {
		c.one(fn)
		select {
		case fn = <-c.tasks:
		case <-c.home:
			return
		}
		if fn == nil {
			return
		}
	}
}

// shed sends those home that wait now.
func (c *crew) shed() {
	for {
		select {
		case c.tasks <- nil:
		default:
			return
		}
	}
}

// one runs a function, which may end the goroutine by Goexit.
func (c *crew) one(fn func()) {
	defer c.busy.Done()
	fn()
}

// leave sends the goroutines home, once they are done. With wait, all functions have returned, and it returns when the goroutines
// are gone.
func (c *crew) leave(wait bool) {
	close(c.home)
	if wait {
		c.all.Wait()
	}
}
