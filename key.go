package pawl

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/pawlrun/pawl/internal/payload"
)

// RunID identifies a run: a UUID of version 7.
type RunID string

// EntryID identifies an inbox entry: a UUID of version 7.
type EntryID string

// WorkerID identifies one Work call of one process: a random UUID, never a configured name.
type WorkerID string

// Key is a product key, such as "ticket:42": the same key and input start one run. It is also a [StartOption].
type Key string

// OpKey is the key of one step's effect for the far end: 52 lower-case characters, the same for every attempt, resume
// and manual retry of the step.
type OpKey string

func newRunID() RunID { return RunID(uuid.Must(uuid.NewV7()).String()) }
func newWorkerID() WorkerID {
	return WorkerID(uuid.Must(uuid.NewRandom()).String())
}

var lowerBase32 = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// opKey derives the operation key. Each part is preceded by its length, so that no two lists of parts look alike. The
// attempt, the clock, chance and the payload are no parts of it.
func opKey(namespace, keyName, product, path string) OpKey {
	h := sha256.New()
	for _, part := range []string{namespace, keyName, product, path} {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		h.Write([]byte(part))
	}
	return OpKey(lowerBase32.EncodeToString(h.Sum(nil)))
}

// product is what stands for the thing the run is about: the product key, else the lineage. A fork with keys of its
// own stands for itself, and so does the lineage of a run that continues another one under the same product key.
func (r *RunRow) product() string {
	switch {
	case r.NewKeys:
		return string(r.ID)
	case r.Key != "" && r.Continues == "":
		return string(r.Key)
	default:
		return string(r.Lineage)
	}
}

// ownKeys gives the steps that a fork has given an operation key of its own, each with the run that it comes from.
func (r *RunRow) ownKeys() map[string]RunID {
	keys := make(map[string]RunID)
	for line := range strings.Lines(r.OwnKeys) {
		if id, path, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " "); ok {
			keys[path] = RunID(id)
		}
	}
	return keys
}

func (r *RunRow) setOwnKeys(keys map[string]RunID) {
	var b strings.Builder
	for _, path := range slices.Sorted(maps.Keys(keys)) {
		fmt.Fprintf(&b, "%s %s\n", keys[path], path)
	}
	r.OwnKeys = b.String()
}

// opKey is the operation key of the run's step. A retry has the keys of the run it retries.
func (r *RunRow) opKey(space, path string) OpKey {
	product := r.product()
	if r.OwnKeys != "" {
		if id, own := r.ownKeys()[path]; own {
			product = string(id)
		}
	}
	return opKey(space, r.KeyName, product, path)
}

var escaper = strings.NewReplacer("%", "%25", "/", "%2F")

// stepPath joins scope and name with "/", escaping a "/" inside either, so that different steps never share a path.
func stepPath(scope, name string) string {
	name = escaper.Replace(name)
	if scope == "" {
		return name
	}
	return scope + "/" + name
}

// checkName applies the one rule for names and keys.
func checkName(what, s string) error {
	if err := payload.CheckName(what, s); err != nil {
		return fmt.Errorf("pawl: %w", err)
	}
	return nil
}
