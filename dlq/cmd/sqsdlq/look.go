package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/spf13/cobra"

	"github.com/sqsworker/sqsworker/dlq"
	"github.com/sqsworker/sqsworker/extended"
)

func (s *session) audit() *cobra.Command {
	var cfg dlq.AuditConfig
	failOn := "warning"
	cmd := &cobra.Command{
		Use:   "audit QUEUE",
		Short: "Say what will hurt one day about a queue and its dead-letter queue",
		Long: `Say what will hurt one day about a queue and its dead-letter queue, the worst first.

It changes nothing. To find messages that expire soon it receives up to --look messages of the dead-letter queue and gives them back,
which counts as a receive of each. Permissions are tried with calls that can't have an effect.`,
	}
	f := cmd.Flags()
	f.DurationVar(&cfg.HandlerTimeout, "handler-timeout", 0, "the longest that consumers take for a message")
	f.BoolVar(&cfg.NoHeartbeats, "no-heartbeats", false, "consumers don't extend the visibility of what they work on")
	f.IntVar(&cfg.Look, "look", 100, "how many messages are looked at; 0 for none")
	f.DurationVar(&cfg.Soon, "soon", 24*time.Hour, "how little time a message has left to be named")
	f.BoolVar(&cfg.NoProbes, "no-probes", false, "don't try permissions")
	f.StringVar(&failOn, "fail-on", failOn, "exit with 3 if there is a finding of this severity: info, warning, critical or never")
	_ = cmd.RegisterFlagCompletionFunc("fail-on", cobra.FixedCompletions([]string{"info", "warning", "critical", "never"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		limit := dlq.Critical + 1
		if failOn != "never" {
			if err := limit.UnmarshalText([]byte(failOn)); err != nil || limit == 0 {
				return &usageError{fmt.Errorf("--fail-on is %q: must be info, warning, critical or never", failOn)}
			}
		}
		if cfg.Look == 0 {
			cfg.Look = dlq.NoLook
		}
		cfg.Operator = true
		c, url, err := s.queue(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		auditor, err := dlq.NewAuditor(c, cfg)
		if err != nil {
			return &usageError{err}
		}
		found, err := auditor.Audit(cmd.Context(), url)
		if err := errors.Join(s.findings(found), err); err != nil {
			return err
		}
		if found.Worst() >= limit {
			return errFindings
		}
		return nil
	}
	return s.oneQueue(cmd)
}

func (s *session) findings(found dlq.Findings) error {
	if s.json {
		for _, f := range found {
			if err := s.line(f); err != nil {
				return err
			}
		}
		return nil
	}
	if len(found) == 0 {
		_, err := fmt.Fprintln(s.out, "nothing found")
		return err
	}
	for _, f := range found {
		if err := s.table([]string{f.Severity.String(), f.Queue, string(f.Code)}, []string{"", "seen", f.Seen}, []string{"", "do", f.Advice}); err != nil {
			return err
		}
		for i, e := range f.Expiring {
			if i == 10 {
				fmt.Fprintf(s.out, "  and %d more; --output json names them\n", len(f.Expiring)-i)
				break
			}
			fmt.Fprintf(s.out, "  %s expires in %v, at %s\n", visible(e.ID), e.Left.Round(time.Second), e.ExpiresAt.UTC().Format(time.RFC3339))
		}
	}
	return nil
}

func (s *session) peek() *cobra.Command {
	var cfg dlq.PeekConfig
	bodies, noBodies := 0, false
	bucket, prefix := "", ""
	cmd := &cobra.Command{
		Use:   "peek QUEUE",
		Short: "Look at the messages of a dead-letter queue and give them back",
		Long: `Look at the messages of a dead-letter queue and give them back.

There is no other way to see a message than to receive it: each look raises its receive count. While it lasts the messages are
invisible to others. With --bucket, payloads that are in S3 are shown instead of the pointers to them, up to --body bytes or 256 KiB; only
those in that bucket under --prefix, since anybody who may send can write a pointer.`,
	}
	cmd.Flags().IntVar(&cfg.Limit, "limit", 20, "how many messages, at most 100000")
	cmd.Flags().IntVar(&bodies, "body", 0, "bytes of each body to show; 0 for a line's worth in a table and all in JSON")
	cmd.Flags().BoolVar(&noBodies, "no-body", false, "show no bodies")
	cmd.Flags().StringVar(&bucket, "bucket", "", "bucket of payloads that are in S3")
	cmd.Flags().StringVar(&prefix, "prefix", "", "prefix of their keys")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cfg.Limit < 1 {
			return &usageError{fmt.Errorf("--limit is %d: must be from 1 to 100000", cfg.Limit)}
		}
		c, url, err := s.queue(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		cfg.Logger = s.logger()
		if bucket != "" {
			if cfg.Payloads, err = s.payloads(c, bucket, prefix); err != nil {
				return &usageError{err}
			}
		}
		rows := [][]string{{"ID", "RECEIVED", "AGE", "LEFT", "SOURCE", "REASON", "BODY"}}
		for item, err := range dlq.Peek(cmd.Context(), c, url, cfg) {
			if item == nil {
				return err
			}
			body := ""
			if !noBodies {
				var e error
				body, e = bodyOf(cmd.Context(), item, cfg.Payloads, bodies)
				err = errors.Join(err, e)
			}
			if s.json {
				if err := s.line(asLine(item, cut(body, bodies), err)); err != nil {
					return err
				}
				continue
			}
			rows = append(rows, asRow(item, body, bodies, err))
		}
		if s.json {
			return nil
		}
		if len(rows) == 1 {
			_, err := fmt.Fprintln(s.out, "no messages")
			return err
		}
		return s.table(rows...)
	}
	return s.oneQueue(cmd)
}

func asRow(i *dlq.Item, body string, most int, err error) []string {
	reason, source := "", nameOf(i.SourceURL())
	if i.Reason != nil {
		reason = fmt.Sprintf("%s (attempt %d)", i.Reason.Error, i.Reason.Attempts)
	}
	if err != nil {
		reason = err.Error()
	}
	if most == 0 {
		most = 60
	}
	return []string{i.ID, fmt.Sprint(i.ReceiveCount), i.Age().Round(time.Second).String(), i.Left().Round(time.Second).String(), source, cut(reason, 60), cut(body, most)}
}

// payloads reads what is in S3.
func (s *session) payloads(c *sqs.Client, bucket, prefix string) (dlq.Payloads, error) {
	return extended.New(c, s3.NewFromConfig(s.config, func(o *s3.Options) {
		if s.endpoint != "" {
			o.BaseEndpoint, o.UsePathStyle = &s.endpoint, true
		}
	}), extended.Config{Bucket: bucket, KeyPrefix: prefix, KeepPayloads: true})
}

// bodyOf is the body, or the beginning of the payload if that is in S3 and can be read.
func bodyOf(ctx context.Context, i *dlq.Item, payloads dlq.Payloads, most int) (string, error) {
	if !i.Extended || payloads == nil {
		return i.Body, nil
	}
	if most <= 0 {
		most = 256 << 10
	}
	r, err := i.Payload(ctx)
	if err != nil {
		return i.Body, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, int64(most)+1))
	return string(b), err
}

// cut shortens a text to n bytes, between two characters; 0 leaves it.
func cut(s string, n int) string {
	if n <= 0 || len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// messageLine is a message as one line of JSON.
type messageLine struct {
	ID              string            `json:"id"`
	OriginalID      string            `json:"originalId"`
	ReceiveCount    int               `json:"receiveCount"`
	SentAt          time.Time         `json:"sentAt"`
	FirstReceivedAt time.Time         `json:"firstReceivedAt"`
	ExpiresAt       time.Time         `json:"expiresAt"`
	LeftSeconds     int64             `json:"leftSeconds"`
	SourceARN       string            `json:"sourceArn,omitempty"`
	SourceURL       string            `json:"sourceUrl,omitempty"`
	GroupID         string            `json:"groupId,omitempty"`
	DeduplicationID string            `json:"deduplicationId,omitempty"`
	Reason          *dlq.Reason       `json:"reason,omitempty"`
	Extended        bool              `json:"extended,omitempty"`
	Attributes      map[string]string `json:"attributes,omitempty"`
	Body            string            `json:"body,omitempty"`
	Error           string            `json:"error,omitempty"`
}

func asLine(i *dlq.Item, body string, err error) messageLine {
	l := messageLine{
		ID: i.ID, OriginalID: i.Original(), ReceiveCount: i.ReceiveCount, SentAt: i.SentAt.UTC(), FirstReceivedAt: i.FirstReceivedAt.UTC(),
		ExpiresAt: i.ExpiresAt.UTC(), LeftSeconds: int64(i.Left() / time.Second), SourceARN: i.SourceARN, SourceURL: i.SourceURL(),
		GroupID: i.GroupID, DeduplicationID: i.DeduplicationID, Reason: i.Reason, Extended: i.Extended, Body: body,
	}
	for name, v := range i.Attributes {
		if l.Attributes == nil {
			l.Attributes = map[string]string{}
		}
		switch {
		case v.StringValue != nil:
			l.Attributes[name] = *v.StringValue
		default:
			b, _ := json.Marshal(v.BinaryValue) // base64
			l.Attributes[name] = string(b[1 : len(b)-1])
		}
	}
	if err != nil {
		l.Error = err.Error()
	}
	return l
}
