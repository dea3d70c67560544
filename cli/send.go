package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/payload"
)

func (a *app) sendCmd() *cobra.Command {
	var id string
	cmd := &cobra.Command{
		Use:   "send EVENT ABOUT [JSON | - | @FILE]",
		Short: "Send an event to the runs that await it",
		Long: `Send an event. EVENT is its name and ABOUT the product key or the run's id that it is about, both as the runs that await
it say them. The value is JSON from the argument, from standard input (-) or from a file (@FILE); without it, null. It must be
of the type that the runs expect: one that is not blocks them with a question.

Each run that awaits the event goes on; one that comes to await it later finds it, for 30 days. With --id, sending again is no
second event.`,
		Example: "  " + a.o.name() + ` send paid order:42 '{"cents":9900}' --id stripe:evt_1`,
		Args:    takes(2, "EVENT", "ABOUT", "JSON"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.send(cmd, id, args)
		},
	}
	cmd.Flags().StringVar(&id, "id", "", "what tells this event from others about the same thing: sent again, it is the same event")
	return cmd
}

// sentEvent is what send prints as JSON.
type sentEvent struct {
	Event string `json:"event"`
	About string `json:"about"`
	ID    string `json:"id,omitempty"`
}

func (a *app) send(cmd *cobra.Command, id string, args []string) error {
	names := [][2]string{{"EVENT", args[0]}, {"ABOUT", args[1]}}
	var opts []pawl.SendOption
	if cmd.Flags().Changed("id") {
		names, opts = append(names, [2]string{"--id", id}), append(opts, pawl.EventID(id))
	}
	for _, n := range names {
		if err := payload.CheckName(n[0], n[1]); err != nil {
			return usage(cmd, "%w", err)
		}
	}
	value, err := a.input(cmd, args[2:])
	if err != nil {
		return err
	}
	return a.with(cmd, write, func(ctx context.Context, s *session) error {
		if err := pawl.SendJSON(ctx, s, args[0], pawl.Key(args[1]), value, opts...); err != nil {
			return badInput(cmd, err)
		}
		if a.format != text {
			return a.printJSON(sentEvent{args[0], args[1], id})
		}
		return a.say("sent %s about %s", args[0], args[1])
	})
}
