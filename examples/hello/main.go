// Command hello scores a ticket, saves the score and sends a mail about it.
package main

import (
	"context"
	"fmt"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/cli"
)

type Ticket struct{ ID, Text string }

func enrich(run *pawl.Run, t Ticket) (string, error) {
	score, err := pawl.Repeatable(run, "score", t, rate, pawl.Paid())
	if err != nil {
		return "", err
	}
	ref, err := pawl.Keyed(run, "save", score, save)
	if err != nil {
		return "", err
	}
	return pawl.Once(run, "mail", ref, mail)
}

// rate calls a model: twice does no harm, but costs money.
func rate(_ context.Context, t Ticket) (int, error) { return len(t.Text), nil }

// save calls a service that does nothing twice under one key.
func save(_ context.Context, key pawl.OpKey, score int) (string, error) {
	return fmt.Sprintf("%.6s scored %d", key, score), nil
}

// mail sends an e-mail, which must not go out twice.
func mail(_ context.Context, it pawl.Intent, ref string) (string, error) { return "sent: " + ref, nil }

func main() { cli.Main(pawl.Define("enrich", "v1", enrich)) }
