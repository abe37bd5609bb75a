package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/sqsworker/sqsworker/dlq"
)

// redriveFlags are the command's.
type redriveFlags struct {
	cfg                     dlq.RedriveConfig
	via, match, not, errors string
	ids, attributes         []string
	source                  string
	olderThan, newerThan    time.Duration
	journal                 string
	each, yes               bool
}

func (s *session) redrive() *cobra.Command {
	var r redriveFlags
	cmd := &cobra.Command{
		Use:   "redrive QUEUE",
		Short: "Send the messages of a dead-letter queue to where they came from, or elsewhere",
		Long: `Send the messages of a dead-letter queue to where they came from, or to --to.

SQS's own move task does it unless something is asked for that it can't do: a filter, a limit, a journal, a dry run. Then messages
are moved by this process, which deletes each only after its sending was confirmed; if it is killed, nothing is lost, and with
--journal the next run goes on where it was and names what may have been sent twice.

A redriven message has a new MessageId: consumers whose idempotency records go by it run it again, those that go by a business key
don't if their record says that it is done.`,
	}
	f := cmd.Flags()
	f.StringVar(&r.cfg.Destination, "to", "", "the queue to send to; default where each message came from")
	f.StringSliceVar(&r.cfg.Sources, "trust", nil, "further queues to which a sink's reason may send messages back")
	f.BoolVar(&r.cfg.AnyQueue, "any-queue", false, "QUEUE need not be the dead-letter queue of another")
	f.IntVar(&r.cfg.Rate, "rate", 0, "messages a second at most; default as fast as it goes")
	f.StringVar(&r.via, "via", "auto", "who moves: auto, task (SQS) or mover (this process)")
	f.BoolVar(&r.cfg.Detach, "detach", false, "return when the task has started; see tasks and cancel")
	f.BoolVar(&r.cfg.DryRun, "dry-run", false, "move nothing, and tell what would be")
	f.IntVar(&r.cfg.Limit, "limit", 0, "how many messages are moved at most")
	f.StringVar(&r.match, "match", "", "only messages whose body matches this regular expression")
	f.StringVar(&r.not, "not", "", "only messages whose body doesn't match this regular expression")
	f.StringVar(&r.errors, "error", "", "only messages whose reason's error matches this regular expression")
	f.StringSliceVar(&r.ids, "id", nil, "only messages with these ids")
	f.StringArrayVar(&r.attributes, "attribute", nil, "only messages with this message attribute, NAME=VALUE; all of them if repeated")
	f.StringVar(&r.source, "source", "", "only messages that came from this queue")
	f.DurationVar(&r.olderThan, "older-than", 0, "only messages that were sent longer ago")
	f.DurationVar(&r.newerThan, "newer-than", 0, "only messages that were sent less long ago")
	f.StringVar(&r.journal, "journal", "", "file to resume from after a crash; removed when nothing is left to resume")
	f.BoolVar(&r.each, "each", false, "print a line for each message")
	f.BoolVarP(&r.yes, "yes", "y", false, "don't ask")
	_ = cmd.RegisterFlagCompletionFunc("via", cobra.FixedCompletions([]string{"auto", "task", "mover"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return s.runRedrive(cmd.Context(), args[0], &r) }
	return s.oneQueue(cmd)
}

func (s *session) runRedrive(ctx context.Context, queue string, r *redriveFlags) (err error) {
	if err := r.prepare(); err != nil {
		return &usageError{err}
	}
	c, url, err := s.queue(ctx, queue)
	if err != nil {
		return err
	}
	if r.cfg.Destination != "" {
		if _, r.cfg.Destination, err = s.queue(ctx, r.cfg.Destination); err != nil {
			return fmt.Errorf("%w: %w", dlq.ErrNoDestination, err)
		}
	}
	if !r.yes && !r.cfg.DryRun {
		to := "where they came from"
		if r.cfg.Destination != "" {
			to = nameOf(r.cfg.Destination)
		}
		if err := s.ask(fmt.Sprintf("Move messages of %s to %s? [yes/no]", nameOf(url), to), "yes"); err != nil {
			return err
		}
	}
	if r.journal != "" && !r.cfg.DryRun {
		j, err := dlq.OpenJournal(r.journal)
		if err != nil {
			return err
		}
		r.cfg.Journal = j
		defer func() {
			if err == nil {
				_ = j.Remove()
			} else {
				_ = j.Close()
			}
		}()
	}
	progress := &bar{t: s.terminal}
	r.cfg.Progress, r.cfg.Logger = progress.show, s.logger()
	if r.each {
		r.cfg.OnMessage = s.message
	}
	report, err := dlq.Redrive(ctx, c, url, r.cfg)
	progress.end()
	if report != nil {
		if e := s.report(report); e != nil {
			return errors.Join(err, e)
		}
	}
	if err != nil && r.journal != "" {
		if _, e := os.Stat(r.journal); e == nil || !errors.Is(e, fs.ErrNotExist) {
			fmt.Fprintf(s.err, "sqsdlq: the journal %s is kept: the same command goes on from there\n", r.journal)
		}
		return err
	}
	return err
}

// prepare makes a filter of the flags.
func (r *redriveFlags) prepare() (err error) {
	switch r.via {
	case "auto":
	case "task":
		r.cfg.Via = dlq.MoveTask
	case "mover":
		r.cfg.Via = dlq.Mover
	default:
		return fmt.Errorf("--via is %q: must be auto, task or mover", r.via)
	}
	var conditions []func(*dlq.Item) bool
	expression := func(flag, text string, condition func(*regexp.Regexp) func(*dlq.Item) bool) {
		if text == "" || err != nil {
			return
		}
		re, e := regexp.Compile(text)
		if e != nil {
			err = fmt.Errorf("--%s: %w", flag, e)
			return
		}
		conditions = append(conditions, condition(re))
	}
	expression("match", r.match, func(re *regexp.Regexp) func(*dlq.Item) bool {
		return func(i *dlq.Item) bool { return re.MatchString(i.Body) }
	})
	expression("not", r.not, func(re *regexp.Regexp) func(*dlq.Item) bool {
		return func(i *dlq.Item) bool { return !re.MatchString(i.Body) }
	})
	expression("error", r.errors, func(re *regexp.Regexp) func(*dlq.Item) bool {
		return func(i *dlq.Item) bool { return i.Reason != nil && re.MatchString(i.Reason.Error) }
	})
	if len(r.ids) > 0 {
		conditions = append(conditions, func(i *dlq.Item) bool { return slices.Contains(r.ids, i.ID) || slices.Contains(r.ids, i.Original()) })
	}
	for _, a := range r.attributes {
		name, value, ok := cutPair(a)
		if !ok {
			return fmt.Errorf("--attribute is %q: must be NAME=VALUE", a)
		}
		conditions = append(conditions, func(i *dlq.Item) bool { v := i.Attributes[name].StringValue; return v != nil && *v == value })
	}
	if r.source != "" {
		conditions = append(conditions, func(i *dlq.Item) bool { return i.SourceURL() != "" && nameOf(i.SourceURL()) == nameOf(r.source) })
	}
	if r.olderThan > 0 {
		conditions = append(conditions, func(i *dlq.Item) bool { return i.Age() > r.olderThan })
	}
	if r.newerThan > 0 {
		conditions = append(conditions, func(i *dlq.Item) bool { return i.Age() < r.newerThan })
	}
	if len(conditions) > 0 {
		r.cfg.Filter = func(i *dlq.Item) bool {
			return !slices.ContainsFunc(conditions, func(c func(*dlq.Item) bool) bool { return !c(i) })
		}
	}
	return err
}

func cutPair(s string) (name, value string, ok bool) {
	for i := range s {
		if s[i] == '=' {
			return s[:i], s[i+1:], i > 0
		}
	}
	return "", "", false
}

// message prints what became of one.
func (s *session) message(r dlq.Result) {
	text := ""
	if r.Err != nil {
		text = r.Err.Error()
	}
	if s.json {
		_ = s.line(struct {
			Event       string      `json:"event"`
			ID          string      `json:"id"`
			Outcome     dlq.Outcome `json:"outcome"`
			Destination string      `json:"destination,omitempty"`
			NewID       string      `json:"newId,omitempty"`
			Error       string      `json:"error,omitempty"`
		}{"message", r.Item.ID, r.Outcome, r.Destination, r.NewID, text})
		return
	}
	if s.hasBar {
		fmt.Fprint(s.err, "\r\x1b[K")
	}
	fmt.Fprintln(s.out, visible(fmt.Sprintf("%s %s %s %s", r.Item.ID, r.Outcome, r.NewID, text)))
}

func (s *session) report(r *dlq.RedriveReport) error {
	if s.json {
		return s.line(struct {
			Event string `json:"event"`
			*dlq.RedriveReport
		}{"report", r})
	}
	if r.Task == "RUNNING" {
		_, err := fmt.Fprintln(s.out, "the move task has started: see sqsdlq tasks, and cancel")
		return err
	}
	rows := [][]string{}
	add := func(name string, n int64) {
		if n > 0 {
			rows = append(rows, []string{name, fmt.Sprint(n)})
		}
	}
	rows = append(rows, []string{"moved", fmt.Sprint(r.Moved)})
	add("would be moved", r.WouldMove)
	add("sent by an earlier run, deleted now", r.AlreadyMoved)
	add("left by the filter", r.Skipped)
	add("failed again and came back", r.Returned)
	add("failed to be moved", r.Failed)
	add("held back behind those in their groups", r.HeldBack)
	add("given back untouched", r.Untouched)
	add("moved, but not deleted", int64(len(r.Undeleted)))
	add("may be at the destination twice", int64(len(r.Duplicates)))
	add("left in the queue, about", r.Remaining.Visible)
	for i, d := range r.Duplicates {
		if i == 10 {
			rows = append(rows, []string{"", fmt.Sprintf("and %d more; --output json names them", len(r.Duplicates)-i)})
			break
		}
		rows = append(rows, []string{"possible duplicate", fmt.Sprintf("%s as %s: %s", d.ID, d.NewID, d.Why)})
	}
	for i, f := range r.Failures {
		if i == 10 {
			rows = append(rows, []string{"", fmt.Sprintf("and %d more; --output json names them", len(r.Failures)-i)})
			break
		}
		rows = append(rows, []string{"failure", f.ID + ": " + f.Error})
	}
	return s.table(rows...)
}
