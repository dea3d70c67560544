package pawl_test

import (
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlrun/pawl"
)

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// between cuts out what stands between two texts.
func between(t *testing.T, text, begin, end string) string {
	t.Helper()
	_, rest, found := strings.Cut(text, begin)
	part, _, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("no text between %q and %q", begin, end)
	}
	return part
}

// README's program is the one in examples/hello, which is compiled.
func TestReadmeProgramCompiles(t *testing.T) {
	t.Parallel()
	got := between(t, readFile(t, "README.md"), "```go\n", "```")
	if diff := cmp.Diff(got, readFile(t, "examples/hello/main.go")); diff != "" {
		t.Errorf("README.md and examples/hello/main.go differ (-README +program):\n%s", diff)
	}
}

func TestReadmeIsShort(t *testing.T) {
	t.Parallel()
	if n := strings.Count(readFile(t, "README.md"), "\n"); n > 200 {
		t.Errorf("README.md has %d lines, at most 200", n)
	}
}

// Links to files of the repository lead somewhere.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)#:]+)\)`)
	for _, name := range []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"} {
		for _, m := range link.FindAllStringSubmatch(readFile(t, name), -1) {
			if _, err := os.Stat(m[1]); err != nil {
				t.Errorf("%s: link to %s: %v", name, m[1], err)
			}
		}
	}
}

// Only a Tx step may be called exactly once.
func TestWordsWeDoNotUse(t *testing.T) {
	t.Parallel()
	claim := regexp.MustCompile(`(?i)exactly[- ]once`)
	for name, allowed := range map[string]string{
		"README.md":        "effectively-once local terminal state, not exactly-once",
		"ARCHITECTURE.md":  "",
		"doc.go":           "",
		"CHANGELOG.md":     "",
		"docs/contract.md": "Nothing claims exactly-once inference",
		"step.go":          "effect happens exactly once. fn must not commit", // Tx
		"cli/cli.go":       "",
	} {
		text := strings.Join(strings.Fields(strings.ReplaceAll(readFile(t, name), "\n//", "\n")), " ")
		if allowed != "" {
			text = strings.ReplaceAll(text, allowed, "")
		}
		if found := claim.FindStringIndex(text); found != nil {
			t.Errorf("%s claims too much: …%s…", name, text[max(0, found[0]-60):min(len(text), found[1]+60)])
		}
	}
}

type state[S any] interface {
	~string
	CanBecome(S) bool
}

// diagram draws a transition table, one state a line.
func diagram[S state[S]](all []S, last func(S) bool) string {
	var b strings.Builder
	for _, from := range all {
		var to []string
		for _, next := range all {
			if from.CanBecome(next) {
				to = append(to, string(next))
			}
		}
		name := string(from)
		if last(from) {
			name += " *"
		}
		line := fmt.Sprintf("%-11s", name)
		if len(to) > 0 {
			line += "──▶ " + strings.Join(to, " | ")
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// The diagrams of ARCHITECTURE.md are drawn from the transition tables. `go test -run TestStateDiagrams -v` prints them.
func TestStateDiagrams(t *testing.T) {
	t.Parallel()
	want := "\nRun:\n\n```\n" + diagram(pawl.RunStates(), pawl.RunState.Terminal) + "```\n\nStep:\n\n```\n" +
		diagram(pawl.StepStates(), pawl.StepState.Finished) + "```\n\nGate, as stored:\n\n```\n" +
		diagram(pawl.GateStates(), pawl.GateState.Final) + "```\n\nInbox entry, by kind, with the answers it takes:\n\n```\n" +
		choices() + "```\n\n"
	t.Log(want)
	got := between(t, readFile(t, "ARCHITECTURE.md"), "<!-- states: begin -->", "<!-- states: end -->")
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("ARCHITECTURE.md differs from the tables (-page +tables):\n%s", diff)
	}
}

func choices() string {
	var b strings.Builder
	for _, k := range pawl.EntryKinds() {
		var c []string
		for _, choice := range k.Choices() {
			c = append(c, string(choice))
		}
		fmt.Fprintf(&b, "%-14s %s\n", k, strings.Join(c, " | "))
	}
	return b.String()
}

// docs/contract.md lists all 112 behaviours, and each test it names is there.
func TestContractNamesTests(t *testing.T) {
	t.Parallel()
	tests := testFunctions(t)
	row := regexp.MustCompile(`^\| C(\d+) \|[^|]+\|([^|]+)\|$`)
	named := regexp.MustCompile("`([A-Za-z0-9_/.]+\\.go)`((?:[ ,]*`(?:Test|Example|Fuzz)\\w*`)+)")
	name := regexp.MustCompile("`((?:Test|Example|Fuzz)\\w*)`")
	next := 1
	for line := range strings.Lines(readFile(t, "docs/contract.md")) {
		m := row.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		if m[1] != strconv.Itoa(next) {
			t.Errorf("C%s comes where C%d should", m[1], next)
		}
		next++
		found := named.FindAllStringSubmatch(m[2], -1)
		if len(found) == 0 && !strings.Contains(m[2], "later:") && !strings.Contains(m[2], "page:") {
			t.Errorf("C%s names no test, no page and no later capability: %s", m[1], m[2])
		}
		for _, f := range found {
			for _, n := range name.FindAllStringSubmatch(f[2], -1) {
				if !tests[f[1]+" "+n[1]] {
					t.Errorf("C%s: %s has no %s", m[1], f[1], n[1])
				}
			}
		}
	}
	if next != 113 {
		t.Errorf("docs/contract.md lists %d behaviours, want 112", next-1)
	}
}

// testFunctions lists the module's tests as "file name".
func testFunctions(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	fn := regexp.MustCompile(`(?m)^func ((?:Test|Example|Fuzz)\w*)\(`)
	err := fs.WalkDir(os.DirFS("."), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case d.IsDir(), !strings.HasSuffix(path, ".go"):
			return nil
		}
		for _, m := range fn.FindAllStringSubmatch(readFile(t, path), -1) {
			found[path+" "+m[1]] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
