package sqsmodel_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

// BenchmarkCalls says how many SDK calls a second the model takes, in process,
// from as many goroutines as there are processors.
func BenchmarkCalls(b *testing.B) {
	for name, round := range map[string]func(context.Context, *sqs.Client, *string) (int, error){
		"single": roundOfOne, "batched": roundOfTen,
	} {
		b.Run(name, func(b *testing.B) {
			s := sqsmodel.New(sqsmodel.Config{})
			s.RecordCalls(false)
			s.RecordJournal(false)
			c := s.Client()
			url := s.MustCreateQueue("work", nil)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := round(b.Context(), c, &url); err != nil {
						b.Error(err)
						return
					}
				}
			})
			calls := float64(s.Count(""))
			b.ReportMetric(calls/b.Elapsed().Seconds(), "calls/s")
		})
	}
}

func roundOfOne(ctx context.Context, c *sqs.Client, url *string) (int, error) {
	if _, err := c.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: url, MessageBody: aws.String("body")}); err != nil {
		return 0, err
	}
	out, err := c.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: url, WaitTimeSeconds: 1})
	if err != nil {
		return 0, err
	}
	for _, m := range out.Messages {
		if _, err := c.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: url, ReceiptHandle: m.ReceiptHandle}); err != nil {
			return 0, err
		}
	}
	return len(out.Messages), nil
}

func roundOfTen(ctx context.Context, c *sqs.Client, url *string) (int, error) {
	in := &sqs.SendMessageBatchInput{QueueUrl: url}
	for i := range 10 {
		in.Entries = append(in.Entries, types.SendMessageBatchRequestEntry{Id: aws.String(fmt.Sprint(i)), MessageBody: aws.String("body")})
	}
	if _, err := c.SendMessageBatch(ctx, in); err != nil {
		return 0, err
	}
	out, err := c.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: url, WaitTimeSeconds: 1, MaxNumberOfMessages: 10})
	if err != nil || len(out.Messages) == 0 {
		return 0, err
	}
	del := &sqs.DeleteMessageBatchInput{QueueUrl: url}
	for i, m := range out.Messages {
		del.Entries = append(del.Entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(fmt.Sprint(i)), ReceiptHandle: m.ReceiptHandle})
	}
	_, err = c.DeleteMessageBatch(ctx, del)
	return len(out.Messages), err
}

// BenchmarkServer is the model's own share: no SDK, one receive of an empty
// queue and one send with 100,000 messages in flight.
func BenchmarkServer(b *testing.B) {
	s := sqsmodel.New(sqsmodel.Config{InFlightLimit: 1 << 30})
	s.RecordCalls(false)
	s.RecordJournal(false)
	url := s.MustCreateQueue("work", nil)
	bodies := make([]string, 100_000)
	for i := range bodies {
		bodies[i] = "m"
	}
	s.MustSend(url, bodies...)
	do := func(action, body string) {
		req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, "https://sqs/", strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		req.Header.Set("X-Amz-Target", "AmazonSQS."+action)
		if res, err := s.Do(req); err != nil || res.StatusCode != http.StatusOK {
			b.Fatal(res, err)
		}
	}
	for range len(bodies) / 10 {
		do("ReceiveMessage", `{"QueueUrl":"`+url+`","MaxNumberOfMessages":10,"VisibilityTimeout":43200}`)
	}
	b.ReportAllocs()
	for b.Loop() {
		do("SendMessage", `{"QueueUrl":"`+url+`","MessageBody":"m"}`)
		do("ReceiveMessage", `{"QueueUrl":"`+url+`"}`)
	}
}
