package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

// The sqsmodel scenario: how many SDK calls a second the in-process SQS does without a socket, as tests use it.

const leastModelRate = 10_000

func (d *director) model(ctx context.Context) error {
	t := table{title: "sqsmodel: SDK calls through the in-process client", head: []string{"calls", "calls/s", "CPU µs/call"}, left: 1}
	for _, batch := range []int{1, 10} {
		var rate, cpu []float64
		for range d.Rounds {
			r, err := d.modelOnce(ctx, batch)
			if err != nil {
				return err
			}
			rate, cpu = append(rate, r.CallsPerSecond), append(cpu, float64(r.Used.CPU.Microseconds())/float64(r.Handled))
		}
		name := "send, receive, delete: one message each"
		if batch > 1 {
			name = fmt.Sprintf("the batch forms: %d messages each", batch)
		}
		t.add(name, figure(median(rate)), figure(median(cpu)))
		if batch == 1 {
			d.atLeast(leastModelRate, median(rate), "/s", "SDK calls through the in-process client")
		}
	}
	t.print(d.out)
	return nil
}

func (d *director) modelOnce(ctx context.Context, batch int) (report, error) {
	c, err := startContestant(ctx, assignment{Contestant: "model", Concurrency: 4, Receives: batch})
	if err != nil {
		return report{}, err
	}
	defer c.end()
	if _, err := c.say("go"); err != nil {
		return report{}, err
	}
	time.Sleep(pick(d, 200*time.Millisecond, 3*time.Second))
	r, err := c.say("stop")
	if err == nil && r.RunError != "" {
		err = fmt.Errorf("bench: sqsmodel: %s", r.RunError)
	}
	return r, err
}

// modelLoad is the subject: goroutines that send, receive and delete.
type modelLoad struct {
	assigned assignment
	calls    atomic.Int64
	took     time.Duration
}

func newModelLoad(a assignment, _ *jobs) (subject, error) { return &modelLoad{assigned: a}, nil }

func (l *modelLoad) run(ctx context.Context) error {
	model := sqsmodel.New(sqsmodel.Config{})
	url := model.MustCreateQueue("jobs", nil)
	began := time.Now()
	var all sync.WaitGroup
	errs := make([]error, l.assigned.Concurrency)
	for i := range errs {
		all.Go(func() {
			client := model.Client()
			for ctx.Err() == nil && errs[i] == nil {
				errs[i] = l.cycle(client, url)
			}
		})
	}
	all.Wait()
	l.took = time.Since(began)
	return errors.Join(errs...)
}

// cycle sends messages, receives them and deletes them, in three calls.
func (l *modelLoad) cycle(client *sqs.Client, url string) error {
	ctx := context.Background() // a cycle that has begun is ended
	if err := l.send(ctx, client, url); err != nil {
		return err
	}
	out, err := client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &url, MaxNumberOfMessages: int32(l.assigned.Receives)})
	if err != nil {
		return err
	}
	l.calls.Add(2)
	if len(out.Messages) == 0 {
		return nil // another goroutine has it
	}
	if err := l.delete(ctx, client, url, out.Messages); err != nil {
		return err
	}
	l.calls.Add(1)
	return nil
}

func (l *modelLoad) send(ctx context.Context, client *sqs.Client, url string) error {
	body := stampedBody(time.Now(), bodySize)
	if l.assigned.Receives == 1 {
		_, err := client.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: &url, MessageBody: &body})
		return err
	}
	in := &sqs.SendMessageBatchInput{QueueUrl: &url}
	for i := range l.assigned.Receives {
		id := strconv.Itoa(i)
		in.Entries = append(in.Entries, types.SendMessageBatchRequestEntry{Id: &id, MessageBody: &body})
	}
	_, err := client.SendMessageBatch(ctx, in)
	return err
}

func (l *modelLoad) delete(ctx context.Context, client *sqs.Client, url string, messages []types.Message) error {
	if l.assigned.Receives == 1 {
		_, err := client.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: &url, ReceiptHandle: messages[0].ReceiptHandle})
		return err
	}
	in := &sqs.DeleteMessageBatchInput{QueueUrl: &url}
	for i, m := range messages {
		id := strconv.Itoa(i)
		in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: &id, ReceiptHandle: m.ReceiptHandle})
	}
	_, err := client.DeleteMessageBatch(ctx, in)
	return err
}

func (l *modelLoad) describe(r *report) {
	r.Handled = l.calls.Load()
	if l.took > 0 {
		r.CallsPerSecond = float64(r.Handled) / l.took.Seconds()
	}
}
