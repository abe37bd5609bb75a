package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sqsworker/sqsworker/dlq"
)

func (s *session) ensure() *cobra.Command {
	var spec dlq.Spec
	yes := false
	cmd := &cobra.Command{
		Use:   "ensure QUEUE",
		Short: "Create or repair a queue and its dead-letter queue with safe defaults",
		Long: `Create or repair a queue and its dead-letter queue: long polls of 20 s, 14 days of retention in the dead-letter queue, a
redrive policy with a maxReceiveCount of 5, and an allow policy that lists the queues which use it.

What is set up otherwise and is fine stays; what a flag says is made so. The difference is shown, and asked about, before it
is made. Doing it again changes nothing.`,
	}
	f := cmd.Flags()
	f.StringVar(&spec.DeadLetterQueue, "dlq", "", "the dead-letter queue's name; default the one that it has, or QUEUE-dlq")
	f.IntVar(&spec.MaxReceiveCount, "max-receive-count", 0, "from 1 to 1000; default 5, and one from 3 to 10 stays")
	f.DurationVar(&spec.DeadLetterRetention, "dlq-retention", 0, "for how long the dead-letter queue keeps messages; default 336h (14 days)")
	f.DurationVar(&spec.Retention, "retention", 0, "for how long the queue does; default as it is")
	f.DurationVar(&spec.Visibility, "visibility", 0, "the queue's visibility timeout; default as it is")
	f.DurationVar(&spec.Wait, "wait", 0, "the wait of long polls; default 20s where it is 0")
	f.StringToStringVar(&spec.Attributes, "attribute", nil, "further attributes of the queue, NAME=VALUE")
	f.StringToStringVar(&spec.DeadLetterAttributes, "dlq-attribute", nil, "further attributes of the dead-letter queue, NAME=VALUE")
	f.StringToStringVar(&spec.Tags, "tag", nil, "tags of queues that are created, NAME=VALUE")
	dryRun := f.Bool("dry-run", false, "show the difference and make none; exits with 3 if there is one")
	f.BoolVarP(&yes, "yes", "y", false, "don't ask")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		spec.Name = nameOf(args[0])
		c, err := s.connect(cmd.Context())
		if err != nil {
			return err
		}
		spec.DryRun = true
		plan, err := dlq.Ensure(cmd.Context(), c, spec)
		if err != nil {
			return err
		}
		if err := s.changes(plan); err != nil {
			return err
		}
		switch {
		case len(plan.Changes) == 0:
			return nil
		case *dryRun:
			return errFindings
		case !yes:
			if err := s.ask(fmt.Sprintf("Make these %d changes? [yes/no]", len(plan.Changes)), "yes"); err != nil {
				return err
			}
		}
		spec.DryRun = false
		done, err := dlq.Ensure(cmd.Context(), c, spec)
		if err != nil {
			return err
		}
		if s.json {
			return s.line(struct {
				Event string `json:"event"`
				*dlq.Ensured
			}{"ensured", done})
		}
		_, err = fmt.Fprintf(s.out, "done: %s and %s\n", done.QueueURL, done.DeadLetterQueueURL)
		return err
	}
	return s.oneQueue(cmd)
}

// changes shows a plan.
func (s *session) changes(plan *dlq.Ensured) error {
	if s.json {
		return s.line(struct {
			Event string `json:"event"`
			*dlq.Ensured
		}{"plan", plan})
	}
	if len(plan.Changes) == 0 {
		fmt.Fprintln(s.out, "nothing to change")
	}
	for _, c := range plan.Changes {
		fmt.Fprintln(s.out, visible(c.String()))
	}
	for _, n := range plan.Notes {
		fmt.Fprintln(s.out, "note:", visible(n))
	}
	return nil
}
