package sqlstore

import (
	"slices"
	"time"

	"github.com/pawlrun/pawl"
)

// backlog is what a worker's last claim of everything has found: more than it could take, and all of it of one version. Until the
// next one the worker takes from there alone, from where it stopped. That makes two things cheaper: other versions are
// not looked at, and on PostgreSQL what was taken before is not passed over again, whose entries stay in the index until they
// are vacuumed.
//
// What is missed meanwhile is older, of another version, or a lost worker's; the next claim of everything finds it. Where
// priorities are, or queues of other names, there is always a claim of everything.
type backlog struct {
	way
	version pawl.VersionID
	due     int64 // of the last run that was taken
	until   time.Time
}

// backlogFor is how long a worker trusts in it. A run has waited longer than that where there is one.
const backlogFor = 100 * time.Millisecond

// backlogOf is what a claim may take from; nil if it has to look everywhere.
func (s *Store) backlogOf(c pawl.Claim) *backlog {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.backlogs[c.Worker]
	if b == nil || time.Now().After(b.until) || !slices.Contains(c.Has, b.version) {
		delete(s.backlogs, c.Worker)
		return nil
	}
	return b
}

// advanceBacklog notes how far b has been taken.
func (s *Store) advanceBacklog(id pawl.WorkerID, b *backlog, taken []pawl.Claimed) {
	next := *b
	for i := range taken {
		next.due = max(next.due, taken[i].Before)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.backlogs[id] == b {
		s.backlogs[id] = &next
	}
}

func (s *Store) forgetBacklog(id pawl.WorkerID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.backlogs, id)
}

// noteBacklog looks at what a claim of everything has taken.
func (s *Store) noteBacklog(c pawl.Claim, taken []pawl.Claimed) {
	var b *backlog
	if len(taken) == c.Limit {
		b = newBacklog(taken)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if b == nil {
		delete(s.backlogs, c.Worker)
	} else {
		s.backlogs[c.Worker] = b
	}
}

func newBacklog(taken []pawl.Claimed) *backlog {
	b := &backlog{until: time.Now().Add(backlogFor)}
	for i := range taken {
		r := &taken[i].Row
		in := way{r.Workflow, r.Queue, int64(r.Priority)}
		version := pawl.VersionID{Workflow: r.Workflow, Version: r.Version}
		if i == 0 {
			b.way, b.version = in, version
		}
		if taken[i].From == pawl.Running || in != b.way || version != b.version {
			return nil
		}
		b.due = max(b.due, taken[i].Before)
	}
	return b
}
