package pawl

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/pawlrun/pawl/internal/payload"
)

// MostPriority is the highest [Priority]; the lowest is as far below zero.
const MostPriority = 100

// Priority gives the run n minutes of head start over runs that became due at the same time; n below zero gives it to the
// others. So nobody waits for ever: a run goes before every other one that becomes due more than the difference of their
// priorities in minutes later. n is from -[MostPriority] to MostPriority, 0 by default. Use few different ones: each costs
// every claim a look-up.
func Priority(n int) StartOption { return startFunc(func(o *startOptions) { o.priority = n }) }

// Share says on whose behalf the run is, in its queue: the runs of different shares take turns, however many of one wait.
// Shares may be many. Once a run with a share has been started in a queue, those without one are together a share too.
func Share(k Key) StartOption { return startFunc(func(o *startOptions) { o.share = k }) }

// checkPlace refuses what says where a run waits, if that is not possible.
func (r *RunRow) checkPlace() error {
	if r.Priority < -MostPriority || r.Priority > MostPriority {
		return fmt.Errorf("pawl: Priority(%d): want -%d to %d", r.Priority, MostPriority, MostPriority)
	}
	if r.Share != "" {
		if err := checkName("Share", string(r.Share)); err != nil {
			return err
		}
	}
	return checkName("Queue", r.Queue)
}

// heed keeps starts in the queue from beginning at once, until it is worth a try again.
func (e *Engine) heed(queue string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heeded[queue] = time.Now().Add(e.o.lease() / 3)
}

// QueueSettings are the limits of a queue. They hold for the workers of all processes, over crashes: what is running is
// counted from the runs that are owned, and one whose worker is lost counts until it is taken over. A zero limit is none.
type QueueSettings struct {
	// MaxRunning bounds the runs of the queue that are running at once. A run that waits, or is parked between two
	// attempts, is not running.
	MaxRunning int `json:"max_running,omitempty"`
	// MaxPerShare is the same for the runs of one [Share], or of those that have none.
	MaxPerShare int `json:"max_per_share,omitempty"`
	// Rate bounds how many runs may begin, or go on after they have waited, in a time of Per. Over a long time that is the
	// mean; in no time of Per are there more than Rate and Burst together. Zero Per means one second.
	Rate int           `json:"rate,omitempty"`
	Per  time.Duration `json:"per_ns,omitempty"`
	// Burst is how many may begin at once after a while without any. Zero means Rate, 1 spreads them evenly.
	Burst int `json:"burst,omitempty"`
}

func (s *QueueSettings) check() error {
	switch {
	case s.MaxRunning < 0 || s.MaxPerShare < 0 || s.Rate < 0 || s.Burst < 0 || s.Per < 0:
		return errors.New("limits must not be negative: want 0 for none")
	case s.Rate == 0 && (s.Per != 0 || s.Burst != 0):
		return errors.New("a Per or a Burst needs a Rate")
	case max(s.MaxRunning, s.MaxPerShare, s.Rate, s.Burst) > math.MaxInt32:
		return fmt.Errorf("a limit is above %d: want 0 for none", math.MaxInt32)
	case s.Per > 366*24*time.Hour:
		return fmt.Errorf("the time Per is %v: want a year at most", s.Per)
	case s.Rate > 0 && s.per()/time.Duration(s.Rate) < time.Microsecond:
		return fmt.Errorf("a rate of %d in %v is above one in a microsecond: want 0 for none", s.Rate, s.per())
	}
	return nil
}

func (s *QueueSettings) per() time.Duration { return orDefault(s.Per, time.Second) }

// String is the settings in words, "no limits" if there are none.
func (s QueueSettings) String() string {
	var all []string
	if s.MaxRunning > 0 {
		all = append(all, fmt.Sprintf("%d running", s.MaxRunning))
	}
	if s.MaxPerShare > 0 {
		all = append(all, fmt.Sprintf("%d per share", s.MaxPerShare))
	}
	if s.Rate > 0 {
		all = append(all, fmt.Sprintf("%d in %v", s.Rate, s.per()))
	}
	if s.Burst > 0 {
		all = append(all, fmt.Sprintf("%d at once", s.Burst))
	}
	if len(all) == 0 {
		return "no limits"
	}
	return strings.Join(all, ", ")
}

// QueueInfo is a queue as people see it. Counts stop at 10,000 for each workflow version; More says that they did.
type QueueInfo struct {
	Name      string        `json:"name"`
	Settings  QueueSettings `json:"settings"`
	Paused    time.Time     `json:"paused,omitzero"` // since when; zero if it is not
	PausedBy  string        `json:"paused_by,omitempty"`
	PausedWhy string        `json:"paused_reason,omitempty"`
	Shared    bool          `json:"shared,omitempty"` // runs with shares have been started in it
	Due       int           `json:"due"`              // may be claimed
	Later     int           `json:"later"`            // wait for a time
	Running   int           `json:"running"`
	More      bool          `json:"more,omitempty"`
	Oldest    time.Time     `json:"oldest_due,omitzero"` // since when the first that may be claimed has been waiting for that
}

// LaneInfo is a lane that is held.
type LaneInfo struct {
	Name  string    `json:"name"`
	Until time.Time `json:"until"`
	Why   string    `json:"reason,omitempty"`
}

const countedMost = 10_000

// Queues lists the queues that have settings, or runs that are running or wait for a time, by name.
func (e *Engine) Queues(ctx context.Context) ([]QueueInfo, error) {
	var infos map[string]QueueInfo
	err := e.store.View(ctx, func(ctx context.Context, tx Txn) error {
		infos = make(map[string]QueueInfo)
		backlog, err := tx.Backlog(ctx, countedMost)
		if err != nil {
			return err
		}
		for name, b := range backlog {
			infos[name] = QueueInfo{Name: name, Due: b.Due, Later: b.Later, Running: b.Running, More: b.More, Oldest: micros(b.Oldest)}
		}
		rows, err := tx.Queues(ctx)
		for i := range rows {
			q := &rows[i]
			info := infos[q.Name]
			info.Name, info.Settings, info.Shared = q.Name, q.settings(), q.Shared
			info.Paused, info.PausedBy, info.PausedWhy = micros(q.PausedAt), q.PausedBy, q.PausedWhy
			infos[q.Name] = info
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list queues: %w", err)
	}
	var all []QueueInfo
	for _, name := range slices.Sorted(maps.Keys(infos)) {
		all = append(all, infos[name])
	}
	return all, nil
}

// Lanes lists the lanes that are held now, by name.
func (e *Engine) Lanes(ctx context.Context) (all []LaneInfo, err error) {
	err = e.store.View(ctx, func(ctx context.Context, tx Txn) error {
		all = nil
		rows, err := tx.Lanes(ctx)
		for _, l := range rows {
			all = append(all, LaneInfo{Name: l.Name, Until: micros(l.Until), Why: l.Why})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list lanes: %w", err)
	}
	return all, nil
}

// SetQueue replaces the limits of a queue, from the commit on and for all processes. Runs that are running go on, also if
// they are more than the new limit; so does one that begins at that moment. A pause stays as it is.
func (e *Engine) SetQueue(ctx context.Context, name string, s QueueSettings, a Act) error {
	if err := s.check(); err != nil {
		return fmt.Errorf("pawl: settings of queue %q: %w", name, err)
	}
	return e.changeQueue(ctx, name, a, "set queue", func(q *QueueRow, _ int64) string {
		q.MaxRunning, q.MaxPerShare, q.Rate, q.RatePer, q.Burst = s.MaxRunning, s.MaxPerShare, s.Rate, 0, s.Burst
		if s.Rate > 0 {
			q.RatePer = micro(s.per())
		}
		return s.String()
	})
}

// PauseQueue lets no run of the queue begin or go on, from the commit on and for all processes, until
// [Engine.ResumeQueue]. Runs that are running are not stopped; one whose worker is lost waits. Pausing what is paused is
// no error, and keeps who did it first.
func (e *Engine) PauseQueue(ctx context.Context, name string, a Act) error {
	return e.changeQueue(ctx, name, a, "pause queue", func(q *QueueRow, now int64) string {
		if q.PausedAt == 0 {
			q.PausedAt, q.PausedBy, q.PausedWhy = now, a.By, payload.Clean(a.Reason, 1000)
		}
		return ""
	})
}

// ResumeQueue ends a pause. Resuming what is not paused is no error.
func (e *Engine) ResumeQueue(ctx context.Context, name string, a Act) error {
	return e.changeQueue(ctx, name, a, "resume queue", func(q *QueueRow, _ int64) string {
		q.PausedAt, q.PausedBy, q.PausedWhy = 0, "", ""
		return ""
	})
}

func (e *Engine) changeQueue(ctx context.Context, name string, a Act, act string, change func(q *QueueRow, now int64) string) error {
	if err := checkName("queue", name); err != nil {
		return err
	}
	if err := checkName("By", a.By); err != nil {
		return err
	}
	err := e.update(ctx, func(ctx context.Context, tx Txn) error {
		q, err := tx.Queue(ctx, name)
		if err != nil {
			return err
		}
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		detail := strings.TrimSuffix(name+": "+change(q, now), ": ")
		if err := tx.SaveQueue(ctx, q); err != nil {
			return err
		}
		return tx.AddAudit(ctx, &AuditRow{Act: act, By: a.By, Why: payload.Clean(a.Reason, 1000), Detail: detail})
	})
	if err != nil {
		return fmt.Errorf("%s %q: %w", act, name, err)
	}
	e.nudge()
	e.hint(ctx)
	return nil
}

func (q *QueueRow) settings() QueueSettings {
	return QueueSettings{MaxRunning: q.MaxRunning, MaxPerShare: q.MaxPerShare, Rate: q.Rate, Per: time.Duration(q.RatePer) * time.Microsecond, Burst: q.Burst}
}

// Room is how many runs of the queue may begin at now while so many of it are running.
func (q *QueueRow) Room(running int, now int64) int {
	room := math.MaxInt32
	if q.PausedAt != 0 {
		return 0
	}
	if q.MaxRunning > 0 {
		room = min(room, q.MaxRunning-running)
	}
	if q.Rate > 0 {
		room = min(room, q.tokens(now))
	}
	return max(room, 0)
}

// every is how long one run uses the rate for, in microseconds.
func (q *QueueRow) every() int64 {
	return max((q.RatePer+int64(q.Rate)-1)/int64(q.Rate), 1)
}

func (q *QueueRow) burst() int64 {
	if q.Burst > 0 {
		return int64(q.Burst)
	}
	return int64(q.Rate)
}

// spent is until when the rate is used up. The store's clock may have been set back since: more than a full burst ahead
// it never was.
func (q *QueueRow) spent(now int64) int64 {
	return min(max(q.Spent, now), now+q.burst()*q.every())
}

func (q *QueueRow) tokens(now int64) int {
	return int((now + q.burst()*q.every() - q.spent(now)) / q.every())
}

// Spend notes that n runs begin at now.
func (q *QueueRow) Spend(n int, now int64) {
	q.Spent = q.spent(now) + int64(n)*q.every()
}

// Next is when the rate lets the next run begin, now at the earliest.
func (q *QueueRow) Next(now int64) int64 {
	if q.Rate == 0 || q.tokens(now) > 0 {
		return now
	}
	return q.spent(now) - (q.burst()-1)*q.every()
}
