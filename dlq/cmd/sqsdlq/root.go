package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/spf13/cobra"
)

// session is what all commands share.
type session struct {
	*terminal
	profile, region, endpoint, output string
	config                            aws.Config
	client                            *sqs.Client
}

func newRoot(t *terminal) *cobra.Command {
	s := &session{terminal: t}
	root := &cobra.Command{
		Use:   "sqsdlq",
		Short: "Audit, repair, look at and redrive SQS dead-letter queues",
		Long: `Audit, repair, look at and redrive SQS dead-letter queues.

Queues are named by name, URL or ARN. Credentials and Region are found as by the AWS CLI.
On a terminal it prints tables and a progress bar, otherwise JSON, one object a line.

Exit codes:
  0    done
  1    failed
  2    wrong usage
  3    audit: findings at or above --fail-on; ensure --dry-run: there is something to change
  4    refused, nothing was done: what AWS or safety forbids, or the question was answered with no
  5    redrive: came to its end, and not everything could be moved
  130  interrupted`,
		SilenceErrors: true, SilenceUsage: true, SuggestionsMinimumDistance: 2,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			text := fmt.Sprintf("unknown command %q", args[0])
			if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
				text += ": did you mean " + strings.Join(similar, " or ") + "?"
			}
			return &usageError{errors.New(text)}
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if s.output != "auto" && s.output != "table" && s.output != "json" {
				return &usageError{fmt.Errorf("--output is %q: must be auto, table or json", s.output)}
			}
			s.json = s.output == "json" || s.output == "auto" && !s.isTerminal
			return nil
		},
	}
	f := root.PersistentFlags()
	f.StringVar(&s.profile, "profile", "", "profile of the shared AWS configuration")
	f.StringVar(&s.region, "region", "", "AWS Region; default as configured")
	f.StringVar(&s.endpoint, "endpoint-url", "", "endpoint of another server, such as http://localhost:4566 or http://localhost:9324")
	f.StringVarP(&s.output, "output", "o", "auto", "auto, table or json")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"auto", "table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.AddCommand(s.audit(), s.ensure(), s.peek(), s.redrive(), s.tasks(), s.cancel(), s.purge(), s.alarm())
	return root
}

// oneQueue takes exactly one argument, and completes it from the queues that there are.
func (s *session) oneQueue(cmd *cobra.Command) *cobra.Command {
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return &usageError{fmt.Errorf("%s takes one queue, not %d: its name, URL or ARN", cmd.Name(), len(args))}
		}
		return nil
	}
	cmd.ValidArgsFunction = s.completeQueue
	return cmd
}

func (s *session) completeQueue(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 || strings.Contains(prefix, ":") {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	c, err := s.connect(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	in := &sqs.ListQueuesInput{MaxResults: aws.Int32(100)}
	if prefix != "" {
		in.QueueNamePrefix = &prefix
	}
	out, err := c.ListQueues(cmd.Context(), in)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names := make([]string, len(out.QueueUrls))
	for i, u := range out.QueueUrls {
		names[i] = nameOf(u)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// connect loads the configuration, once.
func (s *session) connect(ctx context.Context) (*sqs.Client, error) {
	if s.client != nil {
		return s.client, nil
	}
	if ctx == nil {
		ctx = context.Background()
	}
	var options []func(*config.LoadOptions) error
	if s.profile != "" {
		options = append(options, config.WithSharedConfigProfile(s.profile))
	}
	if s.region != "" {
		options = append(options, config.WithRegion(s.region))
	}
	cfg, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, err
	}
	if cfg.Region == "" {
		if s.endpoint == "" {
			return nil, &usageError{fmt.Errorf("no Region: set --region, AWS_REGION or the profile's region")}
		}
		cfg.Region = "us-east-1" // another server doesn't mind
	}
	s.config = cfg
	s.client = sqs.NewFromConfig(cfg, func(o *sqs.Options) {
		if s.endpoint != "" {
			o.BaseEndpoint = &s.endpoint
		}
	})
	return s.client, nil
}

// queue resolves what the user named.
func (s *session) queue(ctx context.Context, named string) (c *sqs.Client, queueURL string, err error) {
	if c, err = s.connect(ctx); err != nil {
		return nil, "", err
	}
	if u, err := url.Parse(named); err == nil && u.Host != "" && strings.HasPrefix(u.Scheme, "http") {
		return c, named, nil
	}
	in := &sqs.GetQueueUrlInput{QueueName: &named}
	if parts := strings.Split(named, ":"); len(parts) == 6 && parts[0] == "arn" && parts[2] == "sqs" {
		if region := c.Options().Region; parts[3] != region && s.endpoint == "" {
			return nil, "", &usageError{fmt.Errorf("%s is in %s, the client in %s: use --region %s", named, parts[3], region, parts[3])}
		}
		in.QueueName, in.QueueOwnerAWSAccountId = &parts[5], &parts[4]
	}
	out, err := c.GetQueueUrl(ctx, in)
	if err != nil {
		return nil, "", fmt.Errorf("queue %s: %w", named, err)
	}
	return c, aws.ToString(out.QueueUrl), nil
}

func nameOf(queueURL string) string {
	queueURL = strings.TrimRight(queueURL, "/")
	return queueURL[strings.LastIndexAny(queueURL, "/:")+1:]
}
