package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// isTerminal reports whether a person sits at the other end of a stream.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// ask puts a question on standard error and reads the answer. Only y and yes are a yes.
func (a *app) ask(question string) (bool, error) {
	if _, err := fmt.Fprintf(a.err, "%s [y/N] ", question); err != nil {
		return false, fmt.Errorf("ask: %w", err)
	}
	line, err := a.in.ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("read the answer: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return true, nil
	}
	return false, nil
}

// confirm lets an act go on if --yes was given or a person says yes.
func (a *app) confirm(cmd *cobra.Command, yes bool, question string) error {
	if yes {
		return nil
	}
	if a.prompt == nil {
		err := usage(cmd, "this is not done without --yes, because there is nobody to ask")
		err.next = "if it is what you want, repeat the command with --yes"
		return err
	}
	ok, err := a.prompt(question)
	if err == nil && !ok {
		err = &failure{exitFailed, errors.New("nothing was done"), "repeat the command and answer y to do it"}
	}
	return err
}
