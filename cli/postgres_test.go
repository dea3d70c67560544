//go:build unix

package cli_test

import (
	"strings"
	"testing"

	"github.com/pawlrun/pawl/internal/pgtest"
)

// TestPostgres: nothing but migrate makes tables there.
func TestPostgres(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	run := func(args ...string) result { return runOn(t, "", append(args, "--db", url), (&world{}).defs()...) }
	for _, args := range [][]string{{"runs", "list"}, {"start", "ship", `{"No":1}`}, {"work"}} {
		run(args...).want(t, 1, "no Pawl tables", "pawl migrate")
	}
	run("migrate").want(t, 0, "postgres schema has been brought up to date: version ")
	run("migrate").want(t, 0, "postgres schema is up to date: version ")
	r := run("start", "ship", `{"No":1}`)
	r.want(t, 0)
	id := strings.TrimSpace(r.out)
	run("runs", "list", "-o", "jsonl").want(t, 0, id)
	run("runs", "show", id[:30]).want(t, 0, `{"No":1,"Note":""}`)
	run("doctor").want(t, 0)
	run("runs", "cancel", id, "--as", "ann").want(t, 0, "cancelled")
	runOn(t, "", []string{"migrate", "--tx-table", url}).want(t, 0, "pawl_tx is there")
}
