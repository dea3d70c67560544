package main

import "fmt"

// Workload is what is measured.
type Workload string

// The workloads.
const (
	Steps   Workload = "steps"
	Queue   Workload = "queue"
	Latency Workload = "latency"
	Resume  Workload = "resume"
	Backlog Workload = "backlog"
	Memory  Workload = "memory"
	Waiting Workload = "waiting"
	Batch   Workload = "batch"
)

var workloads = []Workload{Steps, Queue, Latency, Resume, Backlog, Memory, Waiting, Batch}

// Store is the database that a peer keeps its rows in.
type Store string

// The stores.
const (
	Postgres Store = "postgres"
	SQLite   Store = "sqlite"
)

// stepsPerRun is how many steps a run of the workload steps has.
const stepsPerRun = 10

// Spec says what one child process does. It travels as JSON.
type Spec struct {
	Workload Workload `json:"workload"`
	Store    Store    `json:"store"`
	Peer     string   `json:"peer"`
	Variant  string   `json:"variant,omitempty"`
	C        int      `json:"c,omitempty"`        // runs at once; workers of a queue
	K        int      `json:"k,omitempty"`        // finished steps of the run that is resumed; items of the batch
	Kills    int      `json:"kills,omitempty"`    // of the process that works on the batch
	Finished int      `json:"finished,omitempty"` // finished runs that are kept (backlog)
	Queued   int      `json:"queued,omitempty"`   // queued runs (memory), sleeping ones (waiting)
	N        int      `json:"n,omitempty"`        // runs, jobs or samples; 0 lets the child choose
	Round    int      `json:"round"`
}

// name is how a peer and its variant are called in tables.
func (s Spec) name() string {
	if s.Variant == "" {
		return s.Peer
	}
	return s.Peer + ", " + s.Variant
}

// group is what all peers have in common that are compared with each other.
func (s Spec) group() string {
	return fmt.Sprintf("%s/%s/%d/%d", s.Workload, s.Store, s.C, s.K)
}

// cell is what the rounds of one row of a table have in common.
func (s Spec) cell() string {
	return fmt.Sprintf("%s/%s/%s/%d/%d", s.group(), s.Peer, s.Variant, s.Finished, s.Kills)
}

// job is a spec with what the child needs besides.
type job struct {
	Spec
	Phase   phase   `json:"phase"`
	Target  target  `json:"target"`
	Effects string  `json:"effects,omitempty"` // file to which each effect of an item adds a byte
	Seconds float64 `json:"seconds"`           // how long the measured phase should last
}

// phase is what a child process is for.
type phase string

const (
	measure phase = "measure"
	strand  phase = "strand" // make K steps, say so, and wait to be killed
	fill    phase = "fill"   // leave rows behind for the measurement
)

// target is the fresh database.
type target struct {
	URL        string `json:"url,omitempty"`        // PostgreSQL
	Path       string `json:"path,omitempty"`       // SQLite
	Postmaster int    `json:"postmaster,omitempty"` // process id; 0 if it is not ours to look at
}

// Result is one line of the JSON file. A figure that a workload or store does not have is 0 or left out.
type Result struct {
	Spec
	Error string `json:"error,omitempty"`

	Seconds float64 `json:"seconds,omitempty"` // of the measured phase
	Rate    float64 `json:"rate,omitempty"`    // steps or jobs a second
	Enqueue float64 `json:"enqueue_rate,omitempty"`
	P50     float64 `json:"p50_ms,omitempty"` // of a run, from its start to its end; of a pick-up
	P99     float64 `json:"p99_ms,omitempty"`
	Done50  float64 `json:"done_p50_ms,omitempty"`

	Recovery float64 `json:"recovery_ms,omitempty"` // worker start to step K+1
	Replay   float64 `json:"replay_ms,omitempty"`   // first line of the body to step K+1

	Working float64 `json:"working_s,omitempty"` // seconds of a batch without the leases of the killed processes
	Again   float64 `json:"again,omitempty"`     // effects of items that were made again

	Woken float64 `json:"woken_ms,omitempty"` // from the moment they are due until the last of 1,000 sleepers goes on
	Jobs  float64 `json:"jobs_ms,omitempty"`  // how long 1,000 jobs take, from their start to the last finished row

	Unit      int     `json:"unit,omitempty"` // how many steps or jobs the figures below are divided by
	Commits   float64 `json:"commits,omitempty"`
	WAL       float64 `json:"wal_bytes,omitempty"`
	Syncs     float64 `json:"wal_syncs,omitempty"`
	ClientCPU float64 `json:"client_cpu_us,omitempty"`
	ServerCPU float64 `json:"server_cpu_us,omitempty"`

	IdleCommits float64 `json:"idle_commits_per_s,omitempty"` // of a worker that has nothing to do
	IdleBuffers float64 `json:"idle_buffers_per_s,omitempty"`

	RSS     float64 `json:"rss_mb,omitempty"`            // the process's largest resident set
	Foreign float64 `json:"foreign_cpu_cores,omitempty"` // used by others meanwhile
}
