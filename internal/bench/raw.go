package bench

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/worker"
)

// raw is the loop that a team writes by hand over the SDK: receive ten, handle them side by side, delete ten while the
// next receive is under way. It keeps nothing alive, and looks at errors only to count them.
type raw struct {
	client   worker.Client
	assigned assignment
	jobs     *jobs
	slots    chan struct{} // one for each handler that may run

	receiveErrors, deleteErrors atomic.Int64
}

// attributeSets are the system attributes that the raw loop may ask for; with them come all message attributes. "same" is
// what the worker asks for: everything but the sender's id.
var attributeSets = map[string][]types.MessageSystemAttributeName{
	"none": nil,
	"all":  {types.MessageSystemAttributeNameAll},
	"same": {
		types.MessageSystemAttributeNameApproximateReceiveCount, types.MessageSystemAttributeNameApproximateFirstReceiveTimestamp,
		types.MessageSystemAttributeNameSentTimestamp, types.MessageSystemAttributeNameMessageGroupId,
		types.MessageSystemAttributeNameMessageDeduplicationId, types.MessageSystemAttributeNameSequenceNumber,
		types.MessageSystemAttributeNameAWSTraceHeader, types.MessageSystemAttributeNameDeadLetterQueueSourceArn,
	},
}

func newRaw(a assignment, j *jobs) (subject, error) {
	// Two connections for each poller: its receive, and its delete.
	return &raw{client: newClient(a.Endpoint, 2*a.Receives), assigned: a, jobs: j, slots: make(chan struct{}, a.Concurrency)}, nil
}

func (c *raw) run(ctx context.Context) error {
	var pollers sync.WaitGroup
	for range c.assigned.Receives {
		pollers.Go(func() { c.poll(ctx) })
	}
	pollers.Wait()
	return nil
}

// poll deletes one batch while it receives the next, and waits for the delete before it begins another: what one poller
// holds is bounded by twenty.
func (c *raw) poll(ctx context.Context) {
	var deleting sync.WaitGroup
	defer deleting.Wait()
	for ctx.Err() == nil {
		messages := c.receive(ctx)
		if len(messages) == 0 {
			continue
		}
		done := c.handle(ctx, messages)
		deleting.Wait()
		deleting.Go(func() { c.delete(done) })
	}
}

func (c *raw) receive(ctx context.Context) []types.Message {
	in := &sqs.ReceiveMessageInput{QueueUrl: &c.assigned.QueueURL, MaxNumberOfMessages: 10, WaitTimeSeconds: 20}
	if set := attributeSets[c.assigned.Attributes]; len(set) > 0 {
		in.MessageSystemAttributeNames, in.MessageAttributeNames = set, []string{"All"}
	}
	out, err := c.client.ReceiveMessage(ctx, in)
	if err != nil {
		if ctx.Err() == nil {
			c.receiveErrors.Add(1)
			time.Sleep(100 * time.Millisecond)
		}
		return nil
	}
	return out.Messages
}

// handle runs a handler for each message and returns what succeeded.
func (c *raw) handle(ctx context.Context, messages []types.Message) []types.DeleteMessageBatchRequestEntry {
	succeeded := make([]bool, len(messages))
	var running sync.WaitGroup
	for i := range messages {
		c.slots <- struct{}{}
		running.Go(func() {
			succeeded[i] = c.jobs.do(ctx, *messages[i].MessageId, *messages[i].Body) == nil
			<-c.slots
		})
	}
	running.Wait()
	done := make([]types.DeleteMessageBatchRequestEntry, 0, len(messages))
	for i, ok := range succeeded {
		if ok {
			id := strconv.Itoa(i)
			done = append(done, types.DeleteMessageBatchRequestEntry{Id: &id, ReceiptHandle: messages[i].ReceiptHandle})
		}
	}
	return done
}

func (c *raw) delete(entries []types.DeleteMessageBatchRequestEntry) {
	if len(entries) == 0 {
		return
	}
	out, err := c.client.DeleteMessageBatch(context.Background(), &sqs.DeleteMessageBatchInput{QueueUrl: &c.assigned.QueueURL, Entries: entries})
	if err != nil {
		c.deleteErrors.Add(int64(len(entries)))
		return
	}
	c.deleteErrors.Add(int64(len(out.Failed)))
}

func (c *raw) describe(r *report) {
	r.Notes["receive errors"] = c.receiveErrors.Load()
	r.Notes["delete errors"] = c.deleteErrors.Load()
}
