package bench

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/worker"
)

// BenchmarkWorkerAlone is what the worker itself does for a message, with a client that answers at once: the SDK, HTTP
// and the socket are left out, so that a change of a tenth of a microsecond shows on a busy machine too.
//
//	go test -run - -bench Alone -count 6 ./internal/bench
func BenchmarkWorkerAlone(b *testing.B) {
	for _, prefetch := range []int{0, 300} {
		b.Run(fmt.Sprintf("prefetch=%d", prefetch), func(b *testing.B) { benchmarkWorkerAlone(b, prefetch) })
	}
}

func benchmarkWorkerAlone(b *testing.B, prefetch int) {
	client := newInstantSQS(b.N)
	handler := worker.HandlerFunc(func(context.Context, *worker.Message) error { return nil })
	w, err := worker.New(client, "https://sqs.us-east-1.amazonaws.com/123456789012/jobs", handler, worker.Config{
		Concurrency: 100, Prefetch: prefetch, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.Fatal(err)
	}
	measureAlone(b, client, w.Run)
}

// measureAlone reports what run takes for a message, until all are deleted.
func measureAlone(b *testing.B, client *instantSQS, run func(context.Context) error) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		<-client.allDeleted
		stop()
	}()
	b.ReportAllocs()
	b.ResetTimer()
	before := cpuTime()
	if err := run(ctx); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64((cpuTime()-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
}

// BenchmarkRawAlone is the raw loop's own work in the same way: what a handler's goroutine, its bookkeeping and the
// client that answers at once take.
func BenchmarkRawAlone(b *testing.B) {
	client := newInstantSQS(b.N)
	a := assignment{Concurrency: 100, Receives: 10, Attributes: "same", QueueURL: "jobs"}
	loop := &raw{client: client, assigned: a, jobs: newJobs(job{}), slots: make(chan struct{}, a.Concurrency)}
	measureAlone(b, client, loop.run)
}

// instantSQS hands out n messages, ten at a time, and takes every delete.
type instantSQS struct {
	worker.Client // what it doesn't have isn't called

	left, undeleted atomic.Int64
	allDeleted      chan struct{}
}

func newInstantSQS(n int) *instantSQS {
	c := &instantSQS{allDeleted: make(chan struct{})}
	c.left.Store(int64(n))
	c.undeleted.Store(int64(n))
	return c
}

func (c *instantSQS) GetQueueAttributes(context.Context, *sqs.GetQueueAttributesInput, ...func(*sqs.Options)) (*sqs.GetQueueAttributesOutput, error) {
	return &sqs.GetQueueAttributesOutput{Attributes: map[string]string{"VisibilityTimeout": "30"}}, nil
}

var (
	instantBody = "hello"
	instantMD5  = "5d41402abc4b2a76b9719d911017c592"
)

func (c *instantSQS) ReceiveMessage(ctx context.Context, in *sqs.ReceiveMessageInput, _ ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error) {
	most := int64(in.MaxNumberOfMessages)
	left := c.left.Add(-most)
	n := min(most, left+most)
	if n <= 0 {
		select { // an empty long poll, cut short when the worker stops
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-c.allDeleted:
			return &sqs.ReceiveMessageOutput{}, nil
		}
	}
	out := &sqs.ReceiveMessageOutput{Messages: make([]types.Message, n)}
	now := strconv.FormatInt(time.Now().UnixMilli(), 10)
	for i := range out.Messages {
		id := strconv.FormatInt(left+int64(i), 10)
		out.Messages[i] = types.Message{
			MessageId: &id, ReceiptHandle: &id, Body: &instantBody, MD5OfBody: &instantMD5,
			Attributes: map[string]string{"ApproximateReceiveCount": "1", "SentTimestamp": now, "ApproximateFirstReceiveTimestamp": now},
		}
	}
	return out, nil
}

func (c *instantSQS) DeleteMessageBatch(_ context.Context, in *sqs.DeleteMessageBatchInput, _ ...func(*sqs.Options)) (*sqs.DeleteMessageBatchOutput, error) {
	out := &sqs.DeleteMessageBatchOutput{Successful: make([]types.DeleteMessageBatchResultEntry, len(in.Entries))}
	for i, e := range in.Entries {
		out.Successful[i].Id = e.Id
	}
	if c.undeleted.Add(-int64(len(in.Entries))) == 0 {
		close(c.allDeleted)
	}
	return out, nil
}
