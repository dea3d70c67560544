package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

var errClosed = errors.New("the store is closed")

// Hint is the dialect's, see [pawl.Hints]. Where others see commits by themselves, it tells those who listen at this store.
func (s *Store) Hint(ctx context.Context) error {
	if s.d.Hint == nil {
		s.ears.Range(func(wake, _ any) bool {
			(*wake.(*func()))()
			return true
		})
		return nil
	}
	if err := s.d.Hint(ctx, s.write); err != nil {
		return fmt.Errorf("hint at due runs: %w", err)
	}
	return nil
}

const (
	listenAgain = 100 * time.Millisecond // the first pause before listening begins again, …
	listenPause = 5 * time.Second        // … the longest, …
	listenGood  = 30 * time.Second       // … and how long it must have gone well for the pauses to be short again
)

// Listen lets the dialect listen, again and again until ctx ends or the store is closed, see [pawl.Hints].
func (s *Store) Listen(ctx context.Context, wake func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.ears.Store(&wake, nil)
	defer s.ears.Delete(&wake)
	go func() {
		select {
		case <-s.closed:
			cancel(errClosed)
		case <-ctx.Done():
		}
	}()
	if s.d.Listen == nil {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	for try := 0; ; try++ {
		begun := time.Now()
		err := s.d.Listen(ctx, s.others, wake)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, errors.ErrUnsupported):
			return fmt.Errorf("listen for hints: %w", err)
		case time.Since(begun) >= listenGood:
			try = 0
		}
		most := min(listenAgain<<min(try, 10), listenPause)
		t := time.NewTimer(most/2 + rand.N(most/2))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}
