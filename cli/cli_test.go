package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/cli"
	"github.com/pawlrun/pawl/sqlite"
)

// result is what a command did.
type result struct {
	code     int
	out, err string
}

func runOn(t *testing.T, db string, args []string, defs ...pawl.Definition) result {
	t.Helper()
	var out, errs bytes.Buffer
	code := cli.Run(t.Context(), args, strings.NewReader(""), &out, &errs, cli.Options{Name: "pawl", DB: db}, defs...)
	return result{code, out.String(), errs.String()}
}

// want checks exit code, that the error names each of texts, and that what failed says what to do next.
func (r result) want(t *testing.T, code int, texts ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d\n%s%s", r.code, code, r.out, r.err)
	}
	for _, text := range texts {
		if !strings.Contains(r.out+r.err, text) {
			t.Errorf("output has no %q:\n%s%s", text, r.out, r.err)
		}
	}
	if code != 0 && !strings.Contains(r.err, "\n  ") {
		t.Errorf("the error does not say what to do next:\n%s", r.err)
	}
}

func TestDatabaseFromEnvironment(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PAWL_DB", filepath.Join(dir, "env.db"))
	runOn(t, filepath.Join(dir, "default.db"), []string{"migrate"}).want(t, 0)
	if _, err := os.Stat(filepath.Join(dir, "env.db")); err != nil {
		t.Errorf("PAWL_DB goes before the default: %v", err)
	}
	runOn(t, "", []string{"migrate", "--db", filepath.Join(dir, "flag.db")}).want(t, 0)
	if _, err := os.Stat(filepath.Join(dir, "flag.db")); err != nil {
		t.Errorf("--db goes before PAWL_DB: %v", err)
	}
	// What is suggested reaches the same database.
	runOn(t, "", []string{"runs", "show", "0", "--db", filepath.Join(dir, "flag.db")}).want(t, 3, "pawl runs list --db "+filepath.Join(dir, "flag.db"))
}

func TestLookingCreatesNoFile(t *testing.T) {
	t.Parallel()
	db := filepath.Join(t.TempDir(), "pawl.db")
	for _, args := range [][]string{{"runs", "list"}, {"runs", "show", "0"}, {"runs", "cancel", "0"}, {"runs", "resume", "0"}, {"runs", "retry", "0"},
		{"inbox"}, {"inbox", "show", "0"}, {"resolve", "0", "--give-up"}, {"doctor"}, {"doctor", "--after-restore", "--yes"}} {
		runOn(t, db, args).want(t, 3, "there is no database")
		if _, err := os.Stat(db); err == nil {
			t.Fatalf("%v created the file", args)
		}
	}
}

func TestUnusableDatabase(t *testing.T) {
	t.Parallel()
	list := []string{"runs", "list"}
	t.Run("newer schema", func(t *testing.T) {
		t.Parallel()
		db := filepath.Join(t.TempDir(), "pawl.db")
		s, err := sqlite.Open(db, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.DB().ExecContext(t.Context(), `INSERT INTO pawl_schema (version_id, is_applied) VALUES (999, 1)`)
		if err := errors.Join(err, s.Close()); err != nil {
			t.Fatal(err)
		}
		runOn(t, db, list).want(t, 1, "version 999", "newer build")
		runOn(t, db, []string{"migrate"}).want(t, 1, "version 999", "newer build")
	})
	t.Run("directory", func(t *testing.T) {
		t.Parallel()
		runOn(t, t.TempDir(), list).want(t, 1, "directory")
	})
	t.Run("missing directory", func(t *testing.T) {
		t.Parallel()
		runOn(t, filepath.Join(t.TempDir(), "no", "pawl.db"), []string{"migrate"}).want(t, 1, "does not exist")
	})
	t.Run("other file", func(t *testing.T) {
		t.Parallel()
		db := filepath.Join(t.TempDir(), "pawl.db")
		if err := os.WriteFile(db, []byte("this is no database, whatever its name says"), 0o600); err != nil {
			t.Fatal(err)
		}
		runOn(t, db, list).want(t, 1, "not a SQLite database")
	})
	t.Run("read-only file", func(t *testing.T) {
		t.Parallel()
		if os.Geteuid() == 0 {
			t.Skip("root may write to any file")
		}
		db := filepath.Join(t.TempDir(), "pawl.db")
		runOn(t, db, []string{"migrate"}).want(t, 0)
		if err := os.Chmod(db, 0o400); err != nil {
			t.Fatal(err)
		}
		runOn(t, db, list).want(t, 1, "permission")
	})
	t.Run("no server", func(t *testing.T) {
		t.Parallel()
		for _, args := range [][]string{list, {"migrate"}, {"migrate", "--tx-table", "postgres://app:hunter2@127.0.0.1:1/shop"}} {
			r := runOn(t, "postgres://pawl:hunter2@127.0.0.1:1/pawl", args)
			r.want(t, 1)
			if strings.Contains(r.err, `\n`) {
				t.Errorf("the error has lines in it: %s", r.err)
			}
			if strings.Contains(r.out+r.err, "hunter2") {
				t.Errorf("%v prints the password: %s", args, r.err)
			}
		}
	})
	t.Run("mistyped URL", func(t *testing.T) {
		t.Parallel()
		for _, url := range []string{"postgress://a:hunter2@h/d", "postgres:/a:hunter2@h/d", "postgres://a:hunter2@h:port/d", "postgres://a:hun%zzter2@h/d",
			"host=h password=hunter2", "user=a\tpassword = hunter2", "mysql://a:hunter2@h/d",
			"a:hunter2@127.0.0.1:1/d", "//a:hunter2@h/d", "a:hunter2/x@h", "a@hunter2:5432/d"} {
			for _, args := range [][]string{{"runs", "list", "--db", url}, {"migrate", "--tx-table", url}, {"migrate", "--db", url},
				{"inbox", "0199", "--db", url}, {"start", "ship", `{"No":1}`, "--db", url}} {
				r := runOn(t, "", args, (&world{}).defs()...)
				if r.code != 2 || strings.Contains(r.out+r.err, "hunter2") || strings.Contains(r.out+r.err, "hun%zzter2") {
					t.Errorf("%v: exit code %d, output %s", args, r.code, r.err)
				}
			}
		}
	})
}

// TestStoredTextIsHarmless: nothing that a workflow stores reaches a terminal as a control character.
func TestStoredTextIsHarmless(t *testing.T) {
	t.Parallel()
	s := newScript(t)
	const evil = "\x1b]0;owned\x07\u009b31m\u202egnp.exe\x7f"
	nasty := pawl.Define("nasty", "v1", func(run *pawl.Run, in string) (string, error) {
		_, err := pawl.Once(run, "send", in, func(context.Context, pawl.Intent, string) (string, error) { return "", errors.New(in) })
		return in, err
	})
	s.defs = append(s.defs, nasty)
	input, err := json.Marshal(evil)
	if err != nil {
		t.Fatal(err)
	}
	r := runOn(t, s.db(), []string{"start", "nasty", string(input)}, s.defs...)
	r.want(t, 0)
	id := strings.TrimSpace(r.out)
	s.work()
	runOn(t, s.db(), []string{"runs", "cancel", id, "--as", "ann", "--reason", evil}).want(t, 5)
	for _, args := range [][]string{{"runs", "show", id, "--values"}, {"runs", "show", id, "-o", "json"}, {"inbox"}, {"inbox", "-o", "jsonl"},
		{"runs", "list"}, {"runs", "retry", id}, {"start", "nasty", string(input), "--key", "k"}, {"runs", "show", evil}, {"runs", evil}} {
		r := runOn(t, s.db(), args, s.defs...)
		for _, c := range r.out + r.err {
			if c != '\n' && (c < 0x20 || c >= 0x7f && c < 0xa0 || c == 0x202e) {
				t.Errorf("%q prints %U:\n%q", args, c, r.out+r.err)
				break
			}
		}
		if args[len(args)-1] == "json" && !json.Valid([]byte(r.out)) {
			t.Errorf("%q: no JSON: %s", args, r.out)
		}
	}
}

func TestExtraCommand(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	o := cli.Options{Name: "pawl", Commands: []*cobra.Command{{Use: "extra", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		cmd.Print("from extra")
		return errors.New("did not work")
	}}}}
	code := cli.Run(t.Context(), []string{"extra"}, strings.NewReader(""), &out, &errs, o)
	if code != 1 || out.String() != "from extra" || errs.String() != "pawl: did not work\n" {
		t.Errorf("exit code %d, output %q, errors %q", code, &out, &errs)
	}
	if code := cli.Run(t.Context(), []string{"extra", "x"}, strings.NewReader(""), &out, &errs, o); code != 2 {
		t.Errorf("an argument too many: exit code %d, errors %q", code, &errs)
	}
}

func TestEngineOptions(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	o := cli.Options{Name: "pawl", DB: filepath.Join(t.TempDir(), "pawl.db"), Engine: pawl.Options{MaxPayload: 10}}
	code := cli.Run(t.Context(), []string{"start", "ship", `{"No":1,"Note":"too long for ten bytes"}`}, strings.NewReader(""), &out, &errs, o, (&world{}).defs()...)
	if code != 2 || !strings.Contains(errs.String(), "exceed the limit of 10") {
		t.Errorf("exit code %d, errors %q", code, &errs)
	}
}

// TestWaitEndsWithContext: waiting is not working, and can be broken off.
func TestWaitEndsWithContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var out, errs bytes.Buffer
	o := cli.Options{Name: "pawl", DB: filepath.Join(t.TempDir(), "pawl.db")}
	done := make(chan int, 1)
	go func() {
		done <- cli.Run(ctx, []string{"start", "ship", `{"No":1}`, "--wait"}, strings.NewReader(""), &out, &errs, o, (&world{}).defs()...)
	}()
	await(t, func() bool {
		_, err := os.Stat(o.DB)
		return err == nil && strings.Contains(runOn(t, o.DB, []string{"runs", "list"}).out, "queued")
	})
	cancel()
	if code := <-done; code != 1 || !strings.Contains(errs.String(), "context canceled") {
		t.Errorf("exit code %d, errors %q", code, &errs)
	}
}

func TestTxTable(t *testing.T) {
	t.Parallel()
	shop := filepath.Join(t.TempDir(), "shop.db")
	if err := os.WriteFile(shop, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	runOn(t, "", []string{"migrate", "--tx-table", shop, "-o", "jsonl"}).want(t, 0, `{"store":"sqlite","table":"pawl_tx"}`)
	runOn(t, "", []string{"migrate", "--tx-table", shop, "-o", "jsonl", "--print"}).want(t, 0, `"sql":"CREATE TABLE`)
	for range 2 { // again does no harm
		runOn(t, "", []string{"migrate", "--tx-table", shop}).want(t, 0, "pawl_tx is there")
	}
	info, err := os.Stat(shop)
	if err != nil || info.Size() == 0 {
		t.Errorf("nothing was written: %v", err)
	}
}

// TestInputThatCannotBe: what a command line can never mean is wrong usage, not a failure.
func TestInputThatCannotBe(t *testing.T) {
	t.Parallel()
	db := filepath.Join(t.TempDir(), "pawl.db")
	runOn(t, db, []string{"migrate"}).want(t, 0)
	big := filepath.Join(t.TempDir(), "big.json")
	if err := os.WriteFile(big, []byte(`{"Note":"`+strings.Repeat("x", 1<<20)+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"start", "ship", "{\"Note\":\"\xff\xfe\"}"},
		{"start", "ship", "@" + big},
		{"start", "ship", `{"No":1}`, "--key", "a\x01b"},
		{"start", "ship", `{"No":1}`, "--key", strings.Repeat("k", 201)},
		{"resolve", "0199", "--happened", "\"\xff\""},
		{"runs", "list", "--after", "zzz"},
		{"inbox", "--after", "zzz"},
		{"doctor", "--as", "ann"},
		{"doctor", "--yes"},
		{"help", "nope"},
		{"help", "runs", "nope"},
	} {
		r := runOn(t, db, args, (&world{}).defs()...)
		r.want(t, 2)
		if strings.Contains(r.err, "list runs: list runs") {
			t.Errorf("%.80q: %s", args, r.err)
		}
	}
	runOn(t, db, []string{"runs", "list"}).want(t, 0, "no such runs")
	runOn(t, db, []string{"help", "runs", "list"}).want(t, 0, "Usage:\n  pawl runs list")
}

// TestAfterRestoreNeedsStoppedWorkers: a worker that is at work with its lease would undo what after-restore does.
func TestAfterRestoreNeedsStoppedWorkers(t *testing.T) {
	t.Parallel()
	db := filepath.Join(t.TempDir(), "pawl.db")
	began, end := make(chan struct{}), make(chan struct{})
	slow := pawl.Define("slow", "v1", func(run *pawl.Run, _ int) (int, error) {
		return pawl.Repeatable(run, "wait", 0, func(context.Context, int) (int, error) {
			close(began)
			<-end
			return 1, nil
		})
	})
	runOn(t, db, []string{"start", "slow", "1"}, slow).want(t, 0)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() {
		var log bytes.Buffer
		done <- cli.Run(ctx, []string{"work", "--poll", "10ms"}, strings.NewReader(""), &log, &log, cli.Options{Name: "pawl", DB: db}, slow)
	}()
	<-began
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	runOn(t, db, []string{"doctor", "--after-restore", "--yes"}).want(t, 4, "1 worker with a living lease", host, "--force")
	close(end)
	await(t, func() bool { return strings.Contains(runOn(t, db, []string{"runs", "list"}).out, "succeeded") })
	stop()
	if code := <-done; code != 0 {
		t.Errorf("work ended with %d", code)
	}
	runOn(t, db, []string{"doctor", "--after-restore", "--yes"}).want(t, 0, "0 open runs", "idle worker cannot be seen")
}

func TestHelp(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"work", "start", "runs list", "runs show", "runs resume", "runs retry", "runs fork", "runs move", "runs cancel",
		"inbox", "inbox show", "resolve", "doctor", "migrate", "version"} {
		runOn(t, "", append(strings.Fields(name), "--help")).want(t, 0, "Usage:\n  pawl "+name, "Examples:\n  pawl ")
	}
	runOn(t, "", []string{"completion", "bash"}).want(t, 0, "pawl")
	runOn(t, "", []string{"__complete", "start", ""}, (&world{}).defs()...).want(t, 0, "ship\nscore\n")
	runOn(t, "", []string{"version"}, (&world{}).defs()...).want(t, 0, "pawl: pawl ", "  ship       v10\n")
	runOn(t, "", []string{"version", "-o", "json"}, (&world{}).defs()...).want(t, 0, `"workflow": "score"`)
}
