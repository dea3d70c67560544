// Package cli gives a program the commands of Pawl: it becomes its own worker and its own tool.
//
//	func main() { cli.Main(enrich, refund) }
//
// Such a program executes its workflows with `work`, starts them with `start`, and looks at and decides about all runs
// of the database with `runs`, `inbox`, `resolve`, `queues`, `schedules`, `prune` and `doctor`. What a program prints on its standard output is for
// people, or with -o json for machines; logs, questions and errors go to standard error. It exits with 0 for ok, 1 for
// failed, 2 for wrong usage, 3 for not found, 4 for a conflict or something stale, 5 if a person must do something.
package cli

import (
	"bufio"
	"cmp"
	"context"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/spf13/cobra"

	"github.com/pawlrun/pawl"
)

// Options configures [MainWith] and [Run]. The zero value is valid.
type Options struct {
	// Name is what the program calls itself in help and in the commands it suggests. Empty means the base name of
	// os.Args[0].
	Name string
	// DB is the database if neither --db nor PAWL_DB names one. Empty means pawl.db.
	DB string
	// Engine is what every command's engine gets; the flags of `work` replace its fields. A nil Logger means text on
	// standard error.
	Engine pawl.Options
	// Commands are added to the program's own.
	Commands []*cobra.Command
}

func (o Options) name() string { return cmp.Or(o.Name, filepath.Base(os.Args[0])) }

// Main runs the command that the program's arguments name and ends the process with its exit code.
func Main(defs ...pawl.Definition) { MainWith(Options{}, defs...) }

// MainWith is [Main] with options.
func MainWith(o Options, defs ...pawl.Definition) {
	os.Exit(Run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr, o, defs...))
}

// Run runs one command and returns its exit code. It asks questions only if stdin and stderr are terminals. When ctx
// ends, `work` drains and returns, as it does at SIGINT and SIGTERM, and other commands fail.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, o Options, defs ...pawl.Definition) int {
	a := &app{o: o, defs: defs, in: bufio.NewReader(stdin), out: stdout, err: &shared{w: stderr}, format: text}
	if isTerminal(stdin) && isTerminal(stderr) {
		a.prompt = a.ask
	}
	return a.run(ctx, args)
}

// app is one execution of the program.
type app struct {
	o        Options
	defs     []pawl.Definition
	in       *bufio.Reader
	out, err io.Writer
	// prompt puts a question to the person and tells whether the answer is yes; nil if there is nobody to ask.
	prompt func(question string) (bool, error)

	db     string // --db
	format format // -o
	opened bool   // the database could be opened
}

// shared is standard error, to which logs and notes are written at the same time.
type shared struct {
	mu sync.Mutex // held while writing
	w  io.Writer
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

func (a *app) run(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	err := root.ExecuteContext(ctx)
	if err != nil {
		a.report(err)
	}
	return codeOf(err)
}

func (a *app) root() *cobra.Command {
	name := a.o.name()
	root := &cobra.Command{
		Use:   name,
		Short: "Durable runs of many steps: work on them, look at them, decide about them",
		Long: `Durable runs of many steps: work on them, look at them, decide about them.

  flag          variable   default   meaning
  --db          PAWL_DB    pawl.db   the database: a SQLite file or a postgres:// URL
  -o, --output             text      text, json or jsonl

Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict or stale, 5 needs a person.`,
		Example:       "  " + name + " inbox\n  " + name + " runs show 0199",
		Version:       a.build().String(),
		Args:          cobra.ArbitraryArgs, // an unknown command is reported by RunE
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          group,
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usage(cmd, "%w", err) })
	root.PersistentFlags().StringVar(&a.db, "db", "", "database: a SQLite file or a postgres:// URL (default $PAWL_DB, else "+a.o.db()+")")
	root.PersistentFlags().VarP(&a.format, "output", "o", "output: text, json or jsonl")
	root.AddCommand(a.workCmd(), a.startCmd(), a.sendCmd(), a.runsCmd(), a.inboxCmd(), a.resolveCmd(), a.approveCmd(), a.rejectCmd(), a.editCmd(), a.revokeCmd(), a.queuesCmd(), a.lanesCmd(), a.schedulesCmd(), a.doctorCmd(), a.pruneCmd(), a.migrateCmd(), a.faultsCmd(), a.versionCmd())
	root.AddCommand(a.o.Commands...)
	for _, cmd := range a.o.Commands {
		argsAreUsage(cmd)
	}
	root.SetHelpCommand(a.helpCmd())
	return root
}

// argsAreUsage makes a wrong number of arguments a usage error in a command that is not ours, and in those below it.
func argsAreUsage(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usage(cmd, "%w", err)
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		argsAreUsage(sub)
	}
}

func (a *app) helpCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Help about any command",
		Example: "  " + a.o.name() + " help runs list",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			switch {
			case err != nil:
				return usage(cmd, "%w", err)
			case len(rest) > 0:
				return group(about, rest)
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

// group is what a command does that only groups others: it shows its help, or says that there is no such command.
func group(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	err := usage(cmd, "unknown command %q", args[0])
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		err.next = "did you mean " + cmd.CommandPath() + " " + near[0] + "?"
	}
	return err
}

// takes checks the number of arguments; names are theirs, those in brackets may be left out.
func takes(least int, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usage(cmd, "missing argument %s", names[len(args)])
		case len(args) > len(names):
			return usage(cmd, "unexpected argument %q", args[len(names)])
		}
		return nil
	}
}
