package dlq_test

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/sqsworker/sqsworker/dlq"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// account is an SQS in this process; a service makes its client with sqs.NewFromConfig.
func account() *sqsmodel.Server { return sqsmodel.New(sqsmodel.Config{}) }

func ExampleAudit() {
	s := account()
	queueURL := s.MustCreateQueue("orders", map[string]string{"ReceiveMessageWaitTimeSeconds": "20"})

	findings, err := dlq.Audit(context.Background(), s.Client(), queueURL)
	if err != nil {
		fmt.Println(err)
	}
	for _, f := range findings {
		fmt.Println(f)
	}
	// Output:
	// warning: orders: no-redrive-policy: no redrive policy: a message that always fails comes back until it expires, and is then gone; give the queue a dead-letter queue with a maxReceiveCount of 5; dlq.Ensure does
}

// A worker that audits its queue at each start, and sends what is beyond help to the dead-letter queue along with why.
func ExampleNewSink() {
	s := account()
	client := s.Client()
	queues, err := dlq.Ensure(context.Background(), client, dlq.Spec{Name: "orders"})
	if err != nil {
		fmt.Println(err)
		return
	}
	auditor, err := dlq.NewAuditor(client, dlq.AuditConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	sink, err := dlq.NewSink(client, queues.DeadLetterQueueURL, dlq.SinkConfig{Worker: "orders-7"})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = worker.New(client, queues.QueueURL, worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
		return worker.Permanent(errors.New("no such customer"))
	}), worker.Config{DeadLetter: sink, Audit: auditor})
	fmt.Println(err)

	// What the worker does with a message that was permanently failed:
	m := &worker.Message{ID: "2a7d", Body: `{"order": 4521}`, QueueURL: queues.QueueURL, ReceiveCount: 1, Attempt: 1}
	fmt.Println(sink.DeadLetter(context.Background(), m, errors.New("no such customer")))

	for item, err := range dlq.Peek(context.Background(), client, queues.DeadLetterQueueURL, dlq.PeekConfig{}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s, which was %s: %s (%s, attempt %d)\n", item.Body, item.Original(), item.Reason.Error, item.Reason.Worker, item.Reason.Attempts)
	}
	// Output:
	// <nil>
	// <nil>
	// {"order": 4521}, which was 2a7d: no such customer (orders-7, attempt 1)
}

func ExampleEnsure() {
	s := account()
	spec := dlq.Spec{Name: "orders", DryRun: true}
	ensured, err := dlq.Ensure(context.Background(), s.Client(), spec)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range ensured.Changes[:3] {
		fmt.Println(c)
	}

	spec.DryRun = false
	if _, err = dlq.Ensure(context.Background(), s.Client(), spec); err != nil {
		fmt.Println(err)
		return
	}
	again, err := dlq.Ensure(context.Background(), s.Client(), spec)
	fmt.Println(len(again.Changes), err)
	// Output:
	// create orders-dlq: the dead-letter queue doesn't exist
	// orders-dlq: set MessageRetentionPeriod to 1209600: time to find out and repair: on a standard queue a message's age counts from its first sending
	// orders-dlq: set ReceiveMessageWaitTimeSeconds to 20: long polls: fewer requests, and no message overlooked
	// 0 <nil>
}

func ExamplePeek() {
	s := account()
	dlqURL := s.MustCreateQueue("orders-dlq", nil)
	s.MustSend(dlqURL, "first", "second")

	for item, err := range dlq.Peek(context.Background(), s.Client(), dlqURL, dlq.PeekConfig{Limit: 10}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(item.Body, item.ReceiveCount, item.SourceARN == "", item.Left() > 0)
	}
	// Output:
	// first 1 true true
	// second 1 true true
}

// Only what failed for a reason that is repaired now, a hundred a second, resumable.
func ExampleRedrive() {
	s := account()
	queueURL := s.MustCreateQueue("orders", nil)
	dlqURL := s.MustCreateQueue("orders-dlq", nil)
	s.MustSend(dlqURL, "order 1", "refund 2", "order 3")

	report, err := dlq.Redrive(context.Background(), s.Client(), dlqURL, dlq.RedriveConfig{
		Destination: queueURL,
		AnyQueue:    true, // here no redrive policy names orders-dlq
		Filter:      func(i *dlq.Item) bool { return strings.HasPrefix(i.Body, "order") },
		Rate:        100,
	})
	fmt.Println(report.Via, report.Moved, report.Skipped, err)
	// Output:
	// mover 2 1 <nil>
}

func ExampleOpenJournal() {
	journal, err := dlq.OpenJournal("/tmp/orders-redrive.journal")
	if err != nil {
		fmt.Println(err)
		return
	}
	s := account()
	queueURL, dlqURL := s.MustCreateQueue("orders", nil), s.MustCreateQueue("orders-dlq", nil)
	s.MustSend(dlqURL, "order 1")
	report, err := dlq.Redrive(context.Background(), s.Client(), dlqURL, dlq.RedriveConfig{Destination: queueURL, AnyQueue: true, Journal: journal})
	if err != nil {
		fmt.Println(err) // do it again with the same journal
		return
	}
	fmt.Println(report.Moved, len(report.Duplicates), journal.Remove())
	// Output:
	// 1 0 <nil>
}
