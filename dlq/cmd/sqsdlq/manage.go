package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/spf13/cobra"

	"github.com/sqsworker/sqsworker/dlq"
)

func (s *session) tasks() *cobra.Command {
	cmd := &cobra.Command{Use: "tasks QUEUE", Short: "List the last move tasks of a dead-letter queue, the newest first"}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, url, err := s.queue(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		tasks, err := dlq.Tasks(cmd.Context(), c, url)
		if err != nil {
			return err
		}
		rows := [][]string{{"STARTED", "STATUS", "MOVED", "OF ABOUT", "RATE", "DESTINATION", "REASON"}}
		for _, t := range tasks {
			if s.json {
				if err := s.line(t); err != nil {
					return err
				}
				continue
			}
			rate, to := "", "where they came from"
			if t.Rate > 0 {
				rate = fmt.Sprintf("%d/s", t.Rate)
			}
			if t.Destination != "" {
				to = nameOf(t.Destination)
			}
			rows = append(rows, []string{t.StartedAt.UTC().Format(time.RFC3339), t.Status, fmt.Sprint(t.Moved), fmt.Sprint(t.ToMove), rate, to, t.FailureReason})
		}
		if s.json {
			return nil
		}
		return s.table(rows...)
	}
	return s.oneQueue(cmd)
}

func (s *session) cancel() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cancel QUEUE",
		Short: "Cancel the running move task of a dead-letter queue",
		Long:  "Cancel the running move task of a dead-letter queue. What it has moved stays moved. Exits with 4 if none is running.",
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, url, err := s.queue(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		moved, err := dlq.CancelTask(cmd.Context(), c, url)
		if err != nil {
			return err
		}
		if s.json {
			return s.line(struct {
				Event string `json:"event"`
				Moved int64  `json:"moved"`
			}{"cancelled", moved})
		}
		_, err = fmt.Fprintf(s.out, "cancelled; about %d messages were moved before\n", moved)
		return err
	}
	return s.oneQueue(cmd)
}

func (s *session) purge() *cobra.Command {
	dryRun, name := false, ""
	cmd := &cobra.Command{
		Use:   "purge QUEUE",
		Short: "Delete all messages of a queue, for good",
		Long: `Delete all messages of a queue, for good: this can't be undone. Those in flight go too. It takes up to 60 seconds, in which
messages that are sent may be deleted as well, and it can be done once in 60 seconds. On a FIFO queue the deduplication ids are
forgotten too.

Asks for the queue's name. --yes=NAME answers it.`,
	}
	cmd.Flags().StringVarP(&name, "yes", "y", "", "the queue's name: don't ask")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be deleted, and delete nothing")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, url, err := s.queue(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		out, err := c.GetQueueAttributes(cmd.Context(), &sqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}})
		if err != nil {
			return fmt.Errorf("queue %s: %w", nameOf(url), err)
		}
		p := purged{
			Event: "would-purge", Queue: nameOf(url), Visible: out.Attributes["ApproximateNumberOfMessages"],
			InFlight: out.Attributes["ApproximateNumberOfMessagesNotVisible"], Delayed: out.Attributes["ApproximateNumberOfMessagesDelayed"],
		}
		switch {
		case dryRun:
			return s.purged(p)
		case name != "" && name != p.Queue:
			return &usageError{fmt.Errorf("--yes is %q: must be the queue's name, %s", name, p.Queue)}
		case name == "":
			question := fmt.Sprintf("All messages of %s will be deleted: about %s visible, %s in flight, %s delayed. This can't be undone, and takes up to 60 s.\nType the queue's name to go on:", p.Queue, p.Visible, p.InFlight, p.Delayed)
			if err := s.ask(question, p.Queue); err != nil {
				return err
			}
		}
		if _, err := c.PurgeQueue(cmd.Context(), &sqs.PurgeQueueInput{QueueUrl: &url}); err != nil {
			return fmt.Errorf("purge of %s: %w", p.Queue, err)
		}
		p.Event = "purged"
		return s.purged(p)
	}
	return s.oneQueue(cmd)
}

// purged is what a purge deletes, by SQS's approximate counts.
type purged struct {
	Event    string `json:"event"`
	Queue    string `json:"queue"`
	Visible  string `json:"visible"`
	InFlight string `json:"inFlight"`
	Delayed  string `json:"delayed"`
}

func (s *session) purged(p purged) error {
	if s.json {
		return s.line(p)
	}
	text := "is being purged; that takes up to 60 s"
	if p.Event == "would-purge" {
		text = "would be purged"
	}
	_, err := fmt.Fprintf(s.out, "%s %s: about %s visible, %s in flight, %s delayed\n", p.Queue, text, p.Visible, p.InFlight, p.Delayed)
	return err
}

func (s *session) alarm() *cobra.Command {
	format, topic, name := "both", "", ""
	cmd := &cobra.Command{
		Use:   "alarm QUEUE",
		Short: "Print a CloudWatch alarm on messages in a dead-letter queue",
		Long: `Print a CloudWatch alarm on messages in a dead-letter queue, as CloudFormation and as a line for the AWS CLI. Nothing is made.

The alarm is on ApproximateNumberOfMessagesVisible. NumberOfMessagesSent won't do: what SQS moves to a dead-letter queue by itself
isn't counted there. Missing data is no alarm: SQS stops sending metrics of a queue that was idle for six hours. A look at the
messages hides them for a while, and can end the alarm and start it anew. QUEUE is a name and isn't looked up.`,
	}
	cmd.Flags().StringVar(&format, "format", format, "cloudformation, cli or both")
	cmd.Flags().StringVar(&topic, "topic", "", "ARN of the SNS topic to notify")
	cmd.Flags().StringVar(&name, "name", "", "the alarm's name; default QUEUE-not-empty")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"cloudformation", "cli", "both"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		queue := nameOf(args[0])
		if name == "" {
			name = queue + "-not-empty"
		}
		switch format {
		case "cloudformation", "both":
			text, err := cloudFormation(name, queue, topic)
			if err != nil {
				return err
			}
			fmt.Fprintln(s.out, text)
		case "cli":
		default:
			return &usageError{fmt.Errorf("--format is %q: must be cloudformation, cli or both", format)}
		}
		if format != "cloudformation" {
			fmt.Fprintln(s.out, alarmCommand(name, queue, topic))
		}
		return nil
	}
	return s.oneQueue(cmd)
}

const alarmText = "Messages are in the dead-letter queue: look at them, repair, redrive"

// cloudFormation is a template of one resource, in JSON, which CloudFormation takes like YAML.
func cloudFormation(name, queue, topic string) (string, error) {
	properties := map[string]any{
		"AlarmName": name, "AlarmDescription": alarmText,
		"Namespace": "AWS/SQS", "MetricName": "ApproximateNumberOfMessagesVisible",
		"Dimensions": []any{map[string]string{"Name": "QueueName", "Value": queue}},
		"Statistic":  "Maximum", "Period": 60, "EvaluationPeriods": 1, "Threshold": 0,
		"ComparisonOperator": "GreaterThanThreshold", "TreatMissingData": "notBreaching",
	}
	if topic != "" {
		properties["AlarmActions"] = []string{topic}
		properties["OKActions"] = []string{topic}
	}
	b, err := json.MarshalIndent(map[string]any{
		"Resources": map[string]any{"DeadLetterQueueNotEmpty": map[string]any{"Type": "AWS::CloudWatch::Alarm", "Properties": properties}},
	}, "", "  ")
	return string(b), err
}

func alarmCommand(name, queue, topic string) string {
	words := []string{
		"aws cloudwatch put-metric-alarm", "--alarm-name", quoted(name), "--alarm-description", quoted(alarmText),
		"--namespace AWS/SQS --metric-name ApproximateNumberOfMessagesVisible", "--dimensions", quoted("Name=QueueName,Value=" + queue),
		"--statistic Maximum --period 60 --evaluation-periods 1 --threshold 0",
		"--comparison-operator GreaterThanThreshold --treat-missing-data notBreaching",
	}
	if topic != "" {
		words = append(words, "--alarm-actions", quoted(topic), "--ok-actions", quoted(topic))
	}
	return strings.Join(words, " ")
}

// quoted is a word of a shell.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
