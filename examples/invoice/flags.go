package main

import (
	"flag"
	"time"
)

type flags struct {
	db, no, from, to, smtp string
	loseReply, noSent      bool
	lease                  time.Duration
}

func parse(args []string) (f flags, err error) {
	set := flag.NewFlagSet("invoice", flag.ContinueOnError)
	set.StringVar(&f.db, "db", "pawl.db", "SQLite file")
	set.StringVar(&f.no, "no", "42", "number of the invoice; each is sent once")
	set.StringVar(&f.from, "from", "shop@example.com", "sender")
	set.StringVar(&f.to, "to", "customer@example.com", "recipient")
	set.StringVar(&f.smtp, "smtp", "", "host:port of a mail server (default one of its own on the loopback interface)")
	set.BoolVar(&f.loseReply, "lose-reply", false, "let the own mail server accept the mail and lose its reply")
	set.BoolVar(&f.noSent, "no-sent", false, "have no folder Sent to look into")
	set.DurationVar(&f.lease, "lease", 30*time.Second, "how long the runs of a killed worker stay its own")
	return f, set.Parse(args)
}
