package sqsmodel_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

func TestLongPollTakesExactlyItsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sqsmodel.New(sqsmodel.Config{})
		url := s.MustCreateQueue("work", nil)
		start := time.Now()
		out, err := s.Client().ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: &url, WaitTimeSeconds: 20})
		if err != nil || len(out.Messages) != 0 {
			t.Fatalf("got %v, %v", out, err)
		}
		if d := time.Since(start); d != 20*time.Second {
			t.Errorf("took %v", d)
		}
	})
}

func TestLongPollEndsWithTheFirstMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sqsmodel.New(sqsmodel.Config{})
		url := s.MustCreateQueue("work", nil)
		c := s.Client()
		start := time.Now()
		go func() {
			time.Sleep(7 * time.Second)
			if _, err := c.SendMessage(context.Background(), &sqs.SendMessageInput{QueueUrl: &url, MessageBody: aws.String("hello \"\n")}); err != nil {
				t.Error(err)
			}
		}()
		out, err := c.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: &url, WaitTimeSeconds: 20})
		if err != nil || len(out.Messages) != 1 || *out.Messages[0].Body != "hello \"\n" {
			t.Fatalf("got %v, %v", out, err)
		}
		if d := time.Since(start); d != 7*time.Second {
			t.Errorf("took %v", d)
		}
		// not deleted: the next poll gets it when its visibility ends
		out, err = c.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: &url, WaitTimeSeconds: 20})
		if err != nil || len(out.Messages) != 0 {
			t.Fatalf("got %v, %v", out, err)
		}
		out, err = c.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: &url, WaitTimeSeconds: 20})
		if err != nil || len(out.Messages) != 1 {
			t.Fatalf("got %v, %v", out, err)
		}
		if d := time.Since(start); d != 37*time.Second {
			t.Errorf("took %v", d)
		}
		if n := s.CountEvents(sqsmodel.Expired); n != 1 {
			t.Errorf("expired %d", n)
		}
	})
}
