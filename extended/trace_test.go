package extended_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/sqsworker/sqsworker/extended"
	"github.com/sqsworker/sqsworker/worker"
)

// spying is an S3 that notes the span of each call's context.
type spying struct {
	extended.S3
	mu    sync.Mutex
	spans map[string]trace.SpanContext
}

func (s *spying) note(call string, ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spans[call] = trace.SpanContextFromContext(ctx)
}

func (s *spying) GetObject(ctx context.Context, in *s3.GetObjectInput, o ...func(*s3.Options)) (*s3.GetObjectOutput, error) {
	s.note("GetObject", ctx)
	return s.S3.GetObject(ctx, in, o...)
}

func (s *spying) PutObject(ctx context.Context, in *s3.PutObjectInput, o ...func(*s3.Options)) (*s3.PutObjectOutput, error) {
	s.note("PutObject", ctx)
	return s.S3.PutObject(ctx, in, o...)
}

func TestThePayloadsFetchIsUnderTheProcessSpanAndThatLinksToTheProducers(t *testing.T) {
	bubble(t, func(w *world) {
		spans := tracetest.NewInMemoryExporter()
		provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
		spy := &spying{S3: w.s3.client(), spans: map[string]trace.SpanContext{}}
		c, err := extended.New(w.Client(), spy, w.config(extended.Config{}))
		if err != nil {
			t.Fatal(err)
		}
		ctx, producer := provider.Tracer("producer").Start(context.Background(), "checkout")
		if _, err := c.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: &w.url, MessageBody: aws.String(large(300_000))}); err != nil {
			t.Fatal(err)
		}
		producer.End()
		var got int
		stop := w.run(c.ForWorker(), c.Middleware(), func(_ context.Context, m *worker.Message) error {
			got = len(m.Body)
			return nil
		}, worker.Config{Telemetry: worker.Telemetry{TracerProvider: provider}})
		time.Sleep(time.Minute)
		stop()
		var process tracetest.SpanStub
		for _, s := range spans.GetSpans() {
			if s.Name == "process work" {
				process = s
			}
		}
		if got != 300_000 || spy.spans["PutObject"].SpanID() != producer.SpanContext().SpanID() || spy.spans["GetObject"].SpanID() != process.SpanContext.SpanID() {
			t.Errorf("%d bytes arrived; spans of the calls: %v", got, spy.spans)
		}
		if len(process.Links) != 1 || process.Links[0].SpanContext.SpanID() != producer.SpanContext().SpanID() {
			t.Errorf("the process span links to %v", process.Links)
		}
	})
}

func TestTheContextOfASpanKeepsToTheLimitsOfAMessage(t *testing.T) {
	ctx, _ := sdktrace.NewTracerProvider().Tracer("producer").Start(context.Background(), "checkout")
	attributes := func(n int) map[string]types.MessageAttributeValue {
		all := map[string]types.MessageAttributeValue{}
		for i := range n {
			all[fmt.Sprint("name", i)] = text("value")
		}
		return all
	}
	each(t, map[string]struct {
		attributes, body int
		traceparent      bool
		throughS3        bool
	}{
		"room":                              {0, 100, true, false},
		"room, through S3":                  {8, 300_000, true, true},
		"nine attributes and the pointer's": {9, 300_000, false, true},
		"ten attributes":                    {10, 100, false, false},
		"just small enough for SQS":         {0, extended.DefaultThreshold, false, false},
	}, func(w *world, c struct {
		attributes, body int
		traceparent      bool
		throughS3        bool
	}) {
		client := w.client(extended.Config{})
		own := attributes(c.attributes)
		entry := types.SendMessageBatchRequestEntry{Id: aws.String("0"), MessageBody: aws.String(large(c.body)), MessageAttributes: own}
		if _, err := client.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: &w.url, MessageBody: entry.MessageBody, MessageAttributes: own}); err != nil {
			w.t.Fatal(err)
		}
		out, err := client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: &w.url, Entries: []types.SendMessageBatchRequestEntry{entry}})
		if err != nil || len(out.Failed) > 0 {
			w.t.Fatal(err, out)
		}
		if len(own) != c.attributes || entry.MessageSystemAttributes != nil {
			w.t.Error("what the caller passed was written to")
		}
		sent := 2
		if c.body != extended.DefaultThreshold { // a stream's size isn't known when the context is written
			sent++
			if _, err := client.Send(ctx, &sqs.SendMessageInput{QueueUrl: &w.url, MessageAttributes: own}, strings.NewReader(large(c.body))); err != nil {
				w.t.Fatal(err)
			}
		}
		for range sent {
			received, err := w.Client().ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &w.url, MessageAttributeNames: []string{"All"},
				MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll}})
			if err != nil || len(received.Messages) != 1 {
				w.t.Fatal(err, received)
			}
			m := received.Messages[0]
			if _, ok := m.MessageAttributes["traceparent"]; ok != c.traceparent {
				w.t.Errorf("traceparent is there: %v, want %v", ok, c.traceparent)
			}
			if through := len(*m.Body) != c.body; through != c.throughS3 {
				w.t.Errorf("through S3: %v, want %v", through, c.throughS3)
			}
			if m.Attributes["AWSTraceHeader"] == "" {
				w.t.Error("the message has no X-Ray header")
			}
		}
	})
}
