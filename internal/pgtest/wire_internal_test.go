//go:build unix

package pgtest

import "testing"

// Internal, since a real client sends only some of these.
func TestIsCommit(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"commit": true, "COMMIT": true, " \n\tCommit ;": true, "commit work": true, "commit;select 1": true, "end": true,
		"": false, "committed": false, "select 'commit'": false, "begin; commit": false, "rollback": false,
		"endless": false, "/* commits */ insert": true, "/* or not */ insert": false,
	} {
		if got := isCommit(sql); got != want {
			t.Errorf("isCommit(%q) = %v, want %v", sql, got, want)
		}
	}
}
