package extended_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/extended"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// clients stand for sqs.NewFromConfig and s3.NewFromConfig: an SQS and an S3 in process.
func clients() (queue *sqs.Client, objects *s3.Client, queueURL string) {
	model := sqsmodel.New(sqsmodel.Config{})
	return model.Client(), newObjects(&testing.T{}).client(), model.MustCreateQueue("orders", nil)
}

func Example() {
	sqsClient, s3Client, queueURL := clients()
	client, err := extended.New(sqsClient, s3Client, extended.Config{Bucket: "payloads", KeyPrefix: "orders/"})
	if err != nil {
		log.Fatal(err)
	}

	// A producer sends as with *sqs.Client; 2 MiB go through S3.
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	_, err = client.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: &queueURL, MessageBody: aws.String(strings.Repeat("x", 2<<20))})
	if err != nil {
		log.Fatal(err)
	}

	// A worker gets the payload, inside the message's lease; the object goes when the message has been deleted.
	handle := func(_ context.Context, m *worker.Message) error {
		fmt.Println("handled", len(m.Body), "bytes")
		stop()
		return nil
	}
	w, err := worker.New(client.ForWorker(), queueURL, worker.HandlerFunc(handle), worker.Config{
		WaitTime: time.Second, Middleware: []worker.Middleware{client.Middleware()}, Logger: quietLog,
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := w.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("removed", client.Stats().Removed)
	// Output:
	// handled 2097152 bytes
	// removed 1
}

// Receiving by hand: the drop-in puts payloads back into bodies, and takes the receipt handles that it returned.
func ExampleClient_ReceiveMessage() {
	sqsClient, s3Client, queueURL := clients()
	client, err := extended.New(sqsClient, s3Client, extended.Config{Bucket: "payloads", AlwaysS3: true})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	if _, err := client.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: &queueURL, MessageBody: aws.String("hello")}); err != nil {
		log.Fatal(err)
	}
	out, err := client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &queueURL})
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range out.Messages {
		fmt.Println(*m.Body)
		if _, err := client.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: &queueURL, ReceiptHandle: m.ReceiptHandle}); err != nil {
			log.Fatal(err)
		}
	}
	// Output: hello
}

// A payload that is never in memory as a whole: sent from a reader, read as a stream.
func ExampleOpen() {
	sqsClient, s3Client, queueURL := clients()
	client, err := extended.New(sqsClient, s3Client, extended.Config{Bucket: "payloads", KeyPrefix: "videos/", Stream: true})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	upload := strings.NewReader(strings.Repeat("frame ", 1<<20))
	if _, err := client.Send(ctx, &sqs.SendMessageInput{QueueUrl: &queueURL}, upload); err != nil {
		log.Fatal(err)
	}
	handle := func(ctx context.Context, m *worker.Message) error {
		defer stop()
		r, err := extended.Open(ctx, m)
		if err != nil {
			return err // by its kind: permanent if the payload is gone, retried if S3 is in trouble
		}
		defer r.Close()
		n, err := io.Copy(io.Discard, r)
		fmt.Println("read", n, "bytes")
		return err
	}
	w, err := worker.New(client.ForWorker(), queueURL, worker.HandlerFunc(handle), worker.Config{
		WaitTime: time.Second, Middleware: []worker.Middleware{client.Middleware()}, Logger: quietLog,
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := w.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: read 6291456 bytes
}

// A service that only consumes keeps its *sqs.Client.
func ExampleMiddleware() {
	sqsClient, s3Client, queueURL := clients()
	handle := func(_ context.Context, m *worker.Message) error { return nil }
	_, err := worker.New(sqsClient, queueURL, worker.HandlerFunc(handle), worker.Config{
		Middleware: []worker.Middleware{extended.Middleware(s3Client, extended.Config{KeyPrefix: "orders/"})},
	})
	fmt.Println(err)
	// Output: extended: Config.Bucket is empty: name the bucket for payloads
}

// What was stored for a message that SQS may or may not have taken is kept, and says so.
func ExampleOrphanError() {
	sqsClient, s3Client, queueURL := clients()
	client, err := extended.New(sqsClient, s3Client, extended.Config{Bucket: "payloads", AlwaysS3: true, Logger: quietLog})
	if err != nil {
		log.Fatal(err)
	}
	broken := func(o *sqs.Options) { o.HTTPClient = brokenConnection{} }
	_, err = client.SendMessage(context.Background(), &sqs.SendMessageInput{QueueUrl: &queueURL, MessageBody: aws.String("hello")}, broken)
	var orphan *extended.OrphanError
	fmt.Println(errors.As(err, &orphan), orphan.Bucket, errors.Is(err, extended.ErrUncertain))
	// Output: true payloads true
}

// The rule for a bucket, to be added to those that it has.
func ExampleLifecycleRule() {
	const day = 24 * time.Hour
	rule := extended.LifecycleRule("orders/", extended.Retention{Source: 4 * day, DeadLetter: 14 * day})
	all := s3types.BucketLifecycleConfiguration{Rules: []s3types.LifecycleRule{rule}}
	text, err := json.Marshal(map[string]any{"id": all.Rules[0].ID, "days": all.Rules[0].Expiration.Days, "abort": all.Rules[0].AbortIncompleteMultipartUpload.DaysAfterInitiation})
	fmt.Println(string(text), err)
	// Output: {"abort":1,"days":23,"id":"sqs-payloads-orders"} <nil>
}
