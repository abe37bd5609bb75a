package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/logging"

	"github.com/sqsworker/sqsworker/worker"
)

// tellEvery is how often it tells how far it is, when that has changed.
const tellEvery = 10 * time.Second

// runRealQueue is the program with -queue-url: the same worker on a real queue, until ctx ends.
func runRealQueue(ctx context.Context, o options, out io.Writer) (status int, err error) {
	client, err := newMeter(ctx, o.queueURL)
	if err != nil {
		return exitUsage, err
	}
	workers := make([]*worker.Worker, o.workers)
	for i := range workers {
		if workers[i], err = newWorker(client, o.queueURL, fmt.Sprintf("worker %d", i+1), o); err != nil {
			return exitUsage, err
		}
	}
	n := newNarrator(out)
	n.say("working %s with %s; interrupt (ctrl-C) to stop, a second time to kill", o.queueURL, plural(len(workers), "worker"))
	n.say("what is handled is deleted; what is neither an order nor an S3 event notification is given back as a failure")
	if err = runWorkers(ctx, workers, n); err != nil && sum(workers).Received == 0 {
		return exitUsage, err // it could never work
	}
	printRealReport(out, sum(workers), client)
	if err != nil {
		return exitBad, err
	}
	return exitOK, nil
}

// runWorkers runs them until ctx ends or one can't go on, which stops the others too.
func runWorkers(ctx context.Context, workers []*worker.Worker, n *narrator) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, len(workers))
	for _, w := range workers {
		go func() {
			defer stop()
			ended <- w.Run(ctx)
		}()
	}
	tellUntilDone(ctx, workers, n)
	n.say("stopping: running handlers finish, and open long polls end by themselves, which takes up to their wait time")
	var errs []error
	for range workers {
		errs = append(errs, <-ended)
	}
	return errors.Join(errs...)
}

func tellUntilDone(ctx context.Context, workers []*worker.Worker, n *narrator) {
	ticker := time.NewTicker(tellEvery)
	defer ticker.Stop()
	told := int64(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if s := sum(workers); s.Received != told {
			told = s.Received
			n.say("%d received, %d handled, %d failed, %d running", s.Received, s.Succeeded, s.Failed, s.Running)
		}
	}
}

// meter is an *sqs.Client that counts what worker.Stats doesn't: the payload of receives, which is billed in chunks.
// Everything else goes straight through, with the options that the worker passes.
type meter struct {
	*sqs.Client
	chunks     atomic.Int64 // billed for receives
	attributes atomic.Int64 // GetQueueAttributes calls
}

// newMeter makes a client from the default AWS configuration, and finds out now, in plain words, what is missing in it.
func newMeter(ctx context.Context, queueURL string) (*meter, error) {
	u, err := url.Parse(queueURL)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, fmt.Errorf("-queue-url is %q: must be a queue's URL, such as https://sqs.eu-west-1.amazonaws.com/123456789012/orders", queueURL)
	}
	cfg, err := config.LoadDefaultConfig(ctx, config.WithLogger(logging.Nop{})) // what matters comes back as errors
	if err != nil {
		return nil, fmt.Errorf("AWS configuration: %w", err)
	}
	if cfg.Region == "" {
		return nil, errors.New("no AWS Region: set AWS_REGION to the queue's" + regionOf(u.Hostname()))
	}
	if cfg.Credentials == nil {
		return nil, errNoCredentials
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if _, err := cfg.Credentials.Retrieve(ctx); err != nil {
		return nil, fmt.Errorf("%w (%v)", errNoCredentials, err)
	}
	m := &meter{Client: sqs.NewFromConfig(cfg)}
	return m, m.look(ctx, queueURL)
}

// look asks for the queue. A worker would do it too, but waits for one that can't be reached, as a service should.
func (m *meter) look(ctx context.Context, queueURL string) error {
	_, err := m.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: &queueURL})
	var api smithy.APIError
	var network *net.OpError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &api) && strings.HasPrefix(api.ErrorCode(), "AccessDenied"):
		return nil // a worker can do without
	case errors.As(err, &api):
		return fmt.Errorf("-queue-url %s: %s: %s", queueURL, api.ErrorCode(), api.ErrorMessage())
	case errors.As(err, &network):
		return fmt.Errorf("-queue-url %s: %w", queueURL, network)
	}
	return fmt.Errorf("-queue-url %s: %w", queueURL, err)
}

var errNoCredentials = errors.New("no AWS credentials: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run it where there is a role")

// regionOf is ", eu-west-1" of sqs.eu-west-1.amazonaws.com.
func regionOf(host string) string {
	if parts := strings.Split(host, "."); len(parts) > 3 && parts[0] == "sqs" {
		return ", " + parts[1]
	}
	return ""
}

// ReceiveMessage counts what the answer's payload is billed as.
func (m *meter) ReceiveMessage(ctx context.Context, in *sqs.ReceiveMessageInput, opts ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error) {
	out, err := m.Client.ReceiveMessage(ctx, in, opts...)
	payload := 0
	if err == nil {
		for _, msg := range out.Messages {
			payload += len(aws.ToString(msg.Body))
			for name, v := range msg.MessageAttributes {
				payload += len(name) + len(aws.ToString(v.DataType)) + len(aws.ToString(v.StringValue)) + len(v.BinaryValue)
			}
		}
	}
	m.chunks.Add(int64(billed(payload)))
	return out, err
}

// GetQueueAttributes counts.
func (m *meter) GetQueueAttributes(ctx context.Context, in *sqs.GetQueueAttributesInput, opts ...func(*sqs.Options)) (*sqs.GetQueueAttributesOutput, error) {
	m.attributes.Add(1)
	return m.Client.GetQueueAttributes(ctx, in, opts...)
}

// printRealReport prints the table from what the workers count; what only the server knows isn't in it.
func printRealReport(out io.Writer, s worker.Stats, client *meter) {
	var t table
	t.row("MESSAGES", "", "")
	t.row("received", s.Received, "")
	t.row("handled", s.Succeeded, "")
	t.row("deleted", s.Deleted, "")
	t.row("retried", s.Retried, "given back after a failure")
	t.row("released at the stop", s.ReleasedUnstarted+s.Interrupted, "")
	t.row("leases lost", s.Lost, remark(s.Lost > 0, "others may have had them meanwhile"))
	t.row("handled, not deleted", s.Undeleted, remark(s.Undeleted > 0, "they come back"))
	t.row("not given back", s.ReleaseFailures, remark(s.ReleaseFailures > 0, "they come back when their visibility ends"))
	fmt.Fprintln(out)
	t.print(out)
	fmt.Fprintln(out)
	printUsage(out, []usage{
		{action: receiveAction, calls: int(s.Receives), requests: int(client.chunks.Load()), empty: int(s.EmptyReceives)},
		{action: deleteAction, calls: int(s.DeleteCalls), requests: int(s.DeleteCalls)},
		{action: visibilityAction, calls: int(s.Heartbeat.Calls), requests: int(s.Heartbeat.Calls)},
		{action: attributesAction, calls: int(client.attributes.Load()), requests: int(client.attributes.Load())},
	}, int(s.Succeeded))
}

// sum adds up what the workers count.
func sum(workers []*worker.Worker) (sum worker.Stats) {
	for _, w := range workers {
		s := w.Stats()
		sum.Running += s.Running
		sum.Received += s.Received
		sum.Succeeded += s.Succeeded
		sum.Failed += s.Failed
		sum.Deleted += s.Deleted
		sum.Retried += s.Retried
		sum.ReleasedUnstarted += s.ReleasedUnstarted
		sum.Interrupted += s.Interrupted
		sum.Lost += s.Lost
		sum.Undeleted += s.Undeleted
		sum.ReleaseFailures += s.ReleaseFailures
		sum.Receives += s.Receives
		sum.EmptyReceives += s.EmptyReceives
		sum.DeleteCalls += s.DeleteCalls
		sum.Heartbeat.Calls += s.Heartbeat.Calls
	}
	return sum
}
