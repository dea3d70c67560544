package deptest_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pawlrun/pawl/internal/deptest"
)

const (
	module   = "github.com/pawlrun/pawl"
	maxDepth = 6
)

// rules are the arrows between the packages: stores import the root, never the reverse; wiring is in cli and cmd alone.
// What the root may import of internal cannot import the root, or the compiler would object.
func rules() []deptest.Rule {
	return []deptest.Rule{
		{
			Packages: ".",
			Module:   []string{"fault", "internal/...", "!internal/sqlstore/...", "!internal/pgtest", "!internal/deptest"},
			Others:   []string{"github.com/google/uuid", "github.com/google/jsonschema-go/jsonschema"},
		},
		{Packages: "fault/smtpfault", Module: []string{"fault"}, Others: []string{"github.com/wneessen/go-mail/smtp"}},
		{Packages: "fault/..."}, // nothing but the standard library
		{
			Packages: "internal/sqlstore/...",
			Module:   []string{".", "fault", "internal/...", "!internal/pgtest", "!internal/deptest"},
			Others:   []string{"github.com/google/uuid", "github.com/pressly/goose/v3/..."},
		},
		{
			Packages: "postgres",
			Module:   []string{".", "fault", "internal/...", "!internal/pgtest", "!internal/deptest"},
			Others:   []string{"github.com/jackc/pgx/v5/...", "golang.org/x/sys/...", "github.com/pressly/goose/v3/..."},
		},
		{
			Packages: "sqlite",
			Module:   []string{".", "fault", "internal/...", "!internal/pgtest", "!internal/deptest"},
			Others:   []string{"modernc.org/sqlite/...", "golang.org/x/sys/...", "github.com/pressly/goose/v3/..."},
		},
		{
			Packages: "storetest",
			Module:   []string{".", "fault", "internal/...", "!internal/sqlstore/...", "!internal/pgtest", "!internal/deptest"},
			Others:   append(testModules(), "github.com/google/uuid"),
		},
		{Packages: "pawltest", Module: []string{".", "fault", "sqlite", "internal/hooks"}},
		{Packages: "cli/...", Module: []string{"...", "!cmd/...", "!examples/...", "!bench/..."}, Others: []string{"..."}},
		{Packages: "cmd/pawl", Module: []string{".", "cli", "internal/demo"}, Others: []string{"github.com/spf13/cobra"}},
		{
			Packages: "internal/demo",
			Module:   []string{"...", "!cmd/...", "!examples/..."},
			Others:   []string{"github.com/spf13/cobra", "github.com/emersion/go-smtp", "github.com/wneessen/go-mail"},
		},
		{Packages: "examples/...", Module: []string{"...", "!cmd/...", "!internal/..."}, Others: []string{"..."}},
		{Packages: "bench/...", Module: []string{"...", "!cmd/..."}, Others: []string{"..."}},
		{Packages: "internal/pgtest", Others: []string{"github.com/jackc/pgx/v5/..."}},
		{Packages: "internal/deptest"},
		{Packages: "internal/cron", Others: []string{"github.com/netresearch/go-cron"}},
		// Leaves, which the root may import.
		{
			Packages: "internal/...",
			Module:   []string{"fault", "internal/...", "!internal/sqlstore/...", "!internal/pgtest", "!internal/deptest"},
			Others:   []string{"github.com/google/uuid", "golang.org/x/sys/..."},
		},
	}
}

// testModules is what any test may import of others' code, besides real drivers, clients and servers.
func testModules() []string {
	return []string{"github.com/google/go-cmp/...", "pgregory.net/rapid"}
}

func TestImportArrows(t *testing.T) {
	t.Parallel()
	tests := append(testModules(), "github.com/jackc/pgx/v5/...", "modernc.org/sqlite/...", "github.com/emersion/go-smtp",
		"github.com/emersion/go-sasl", "github.com/wneessen/go-mail", "github.com/google/uuid")
	for _, line := range deptest.Arrows(module, rules(), tests, list(t)) {
		t.Error(line)
	}
}

func TestImportDepth(t *testing.T) {
	t.Parallel()
	chain := deptest.Depth(list(t))
	if got := len(chain) - 1; got > maxDepth {
		t.Errorf("import depth %d, at most %d: %s", got, maxDepth, strings.Join(chain, " -> "))
	}
}

// TestSizes leaves out tests, whose tables are long by nature.
func TestSizes(t *testing.T) {
	t.Parallel()
	budget := deptest.Budget{File: 600, Function: 80}
	root := os.DirFS("../..")
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return fs.SkipDir
		}
		if d.IsDir() || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		source, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		lines, err := budget.Check(name, source)
		for _, line := range lines {
			t.Error(line)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// list returns the module's packages.
func list(t *testing.T) []deptest.Package {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = "../.."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	var packages []deptest.Package
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p deptest.Package
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages
		}
		if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}
