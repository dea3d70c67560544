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
	version pawl.VersionID // whose runs are in the queue of the workflow's name, at priority 0
	due     int64          // of the last run that was taken
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
		return nil
	}
	return b
}

// keepBacklog notes what the worker's next claim may take from; nil is nothing.
func (s *Store) keepBacklog(id pawl.WorkerID, b *backlog) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b == nil {
		delete(s.backlogs, id)
	} else {
		s.backlogs[id] = b
	}
}

// newBacklog looks at what a claim of everything has taken.
func newBacklog(c pawl.Claim, taken []pawl.Claimed) *backlog {
	if len(taken) < c.Limit {
		return nil
	}
	version := func(r *pawl.RunRow) pawl.VersionID { return pawl.VersionID{Workflow: r.Workflow, Version: r.Version} }
	b := &backlog{version: version(&taken[0].Row), until: time.Now().Add(backlogFor)}
	for i := range taken {
		if taken[i].From == pawl.Running || version(&taken[i].Row) != b.version {
			return nil
		}
	}
	return b.after(taken)
}

// after is what is left of the backlog once these were taken from it.
func (b backlog) after(taken []pawl.Claimed) *backlog {
	for i := range taken {
		b.due = max(b.due, taken[i].Before)
	}
	return &b
}
