package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/worker"
)

// Order is what these examples' messages are about.
type Order struct {
	Number int     `json:"number"`
	Amount float64 `json:"amount"`
}

// received is a message as a worker would hand it to its handler.
func received(body string) *worker.Message {
	return &worker.Message{ID: "2a7d", Body: body, ReceiveCount: 1, Attempt: 1}
}

func ExampleJSON() {
	h := worker.JSON(func(ctx context.Context, m *worker.Message, o Order) error {
		fmt.Printf("order %d: %.2f\n", o.Number, o.Amount)
		return nil
	})

	ctx := context.Background()
	fmt.Println(h.Handle(ctx, received(`{"number": 4521, "amount": 12.5}`)))
	fmt.Println(h.Handle(ctx, received(`{"number": 4521, "amount": "a lot"}`)))
	fmt.Println(h.Handle(ctx, received(`{"number": 4521, `)))
	// Output:
	// order 4521: 12.50
	// <nil>
	// permanent: worker: the body can't be read as worker_test.Order: field amount, at byte 27, is a string, must be a float64
	// permanent: worker: the body can't be read as worker_test.Order: at byte 17 it ends too early
}

func ExampleJSONWith() {
	h := worker.JSONWith(worker.JSONConfig{DisallowUnknownFields: true}, func(ctx context.Context, m *worker.Message, o Order) error {
		return nil
	})

	fmt.Println(h.Handle(context.Background(), received(`{"number": 1, "total": 2}`)))
	// Output:
	// permanent: worker: the body can't be read as worker_test.Order: at byte 23 it has a field that the type doesn't have
}

func ExampleRouter() {
	h := worker.Router{
		By: worker.ByJSONField("type"),
		Routes: map[string]worker.Handler{
			"order.created": worker.JSON(func(ctx context.Context, m *worker.Message, o Order) error {
				fmt.Println("created", o.Number)
				return nil
			}),
			"order.cancelled": worker.Timeout(30 * time.Second)(worker.JSON(func(ctx context.Context, m *worker.Message, o Order) error {
				fmt.Println("cancelled", o.Number)
				return nil
			})),
		},
		Ignore: []string{"order.viewed"}, // deleted, because somebody decided so
	}

	ctx := context.Background()
	fmt.Println(h.Handle(ctx, received(`{"type": "order.created", "number": 1}`)))
	fmt.Println(h.Handle(ctx, received(`{"type": "order.viewed", "number": 1}`)))
	fmt.Println(h.Handle(ctx, received(`{"type": "order.refunded", "number": 1}`)))
	// Output:
	// created 1
	// <nil>
	// <nil>
	// worker: no handler for messages of type "order.refunded": add it to Router.Routes, or to Router.Ignore if such messages are to be deleted
}

// An event's type is often an attribute, so that SNS can filter by it.
func ExampleByAttribute() {
	h := worker.Router{
		By:     worker.ByAttribute("type"),
		Routes: map[string]worker.Handler{"order": worker.HandlerFunc(func(context.Context, *worker.Message) error { return nil })},
		Fallback: worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			return worker.Permanent(errors.New("nobody will ever handle this"))
		}),
	}

	m := received("any text")
	m.Attributes = map[string]types.MessageAttributeValue{"type": {DataType: aws.String("String"), StringValue: aws.String("order")}}
	fmt.Println(h.Handle(context.Background(), m))
	fmt.Println(h.Handle(context.Background(), received("no attribute")))
	// Output:
	// <nil>
	// permanent: nobody will ever handle this
}

func ExampleSNS() {
	unwrap := worker.SNS("arn:aws:sns:eu-west-1:123456789012:orders")
	h := unwrap(worker.JSON(func(ctx context.Context, m *worker.Message, o Order) error {
		n, _ := worker.SNSNotificationFrom(ctx)
		fmt.Println("order", o.Number, "of type", m.Attribute("type"), "published as", n.MessageID)
		return nil
	}))

	err := h.Handle(context.Background(), received(`{
		"Type": "Notification",
		"MessageId": "95df01b4",
		"TopicArn": "arn:aws:sns:eu-west-1:123456789012:orders",
		"Message": "{\"number\": 4521}",
		"Timestamp": "2026-11-30T12:00:00.000Z",
		"MessageAttributes": {"type": {"Type": "String", "Value": "created"}}
	}`))
	fmt.Println(err)
	// Output:
	// order 4521 of type created published as 95df01b4
	// <nil>
}

func ExampleS3Events() {
	h := worker.S3Events(func(ctx context.Context, m *worker.Message, e worker.S3Event) error {
		if e.Created() {
			fmt.Printf("s3://%s/%s has %d bytes\n", e.Bucket, e.Key, e.Size)
		}
		return nil
	})

	ctx := context.Background()
	fmt.Println(h.Handle(ctx, received(`{"Records": [{"eventVersion": "2.1", "eventSource": "aws:s3", "eventName": "ObjectCreated:Put",
		"eventTime": "2026-11-30T12:00:00.000Z", "s3": {"bucket": {"name": "scans"}, "object": {"key": "in/page+1+%28new%29.png", "size": 2048}}}]}`)))
	fmt.Println(h.Handle(ctx, received(`{"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "scans"}`)))
	// Output:
	// s3://scans/in/page 1 (new).png has 2048 bytes
	// <nil>
	// <nil>
}

// One INSERT for up to 25 orders. All of them are stored or none, but those that break a rule are told apart.
func ExampleBatchJSON() {
	h := worker.BatchJSON(worker.BatchConfig{Size: 25, Linger: 500 * time.Millisecond}, func(ctx context.Context, batch []worker.BatchItem[Order]) []error {
		results := worker.AllResults(batch, nil)
		rows := 0
		for i, item := range batch {
			switch {
			case item.Context().Err() != nil: // its lease is lost: it may be somebody else's
				results[i] = context.Cause(item.Context())
			case item.Value.Amount < 0:
				results[i] = worker.Permanent(errors.New("negative amount"))
			default:
				rows++ // the row is added to the statement
			}
		}
		fmt.Println(rows, "rows inserted") // on an error: return worker.AllResults(batch, err)
		return results
	})

	fmt.Println(h.Handle(context.Background(), received(`{"number": 4521, "amount": 10}`)))
	// Output:
	// 1 rows inserted
	// <nil>
}

func ExampleBatch() {
	h := worker.Batch(worker.BatchConfig{}, func(ctx context.Context, batch []worker.BatchMessage) []error {
		fmt.Println("sending", len(batch))
		return worker.AllResults(batch, nil)
	})

	fmt.Println(h.Handle(context.Background(), received("line")))
	// Output:
	// sending 1
	// <nil>
}

func ExampleTimeout() {
	h := worker.Timeout(20 * time.Millisecond)(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
		<-ctx.Done()
		return ctx.Err()
	}))

	fmt.Println(h.Handle(context.Background(), received("")))
	// Output: worker: handler timeout after 20ms: context deadline exceeded
}

func ExampleLogging() {
	log := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "took" {
			return slog.Attr{} // for this example's output
		}
		return a
	}}))
	h := worker.Logging(log, slog.LevelInfo)(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
		return worker.RetryAfter(time.Minute, errors.New("the account is locked"))
	}))

	_ = h.Handle(context.Background(), received("never in a log"))
	// Output: level=INFO msg="message handled" message.id=2a7d message.receive_count=1 outcome=failed error="retry after 1m0s: the account is locked"
}

// A panic that would repeat itself goes to the dead-letter sink at once.
func ExampleRecover() {
	h := worker.Recover(func(ctx context.Context, m *worker.Message, value any, stack []byte) error {
		return worker.Permanent(fmt.Errorf("panic: %v", value))
	})(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
		panic("no such state")
	}))

	fmt.Println(h.Handle(context.Background(), received("")))
	// Output: permanent: panic: no such state
}

// Two messages about one account never run at once in this process.
func ExampleConcurrencyPerKey() {
	perAccount := worker.ConcurrencyPerKey(worker.KeyLimit{
		Key: func(m *worker.Message) string { return m.Attribute("account") },
	})
	h := perAccount(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
		fmt.Println("alone with this account")
		return nil
	}))

	fmt.Println(h.Handle(context.Background(), received("")))
	// Output:
	// alone with this account
	// <nil>
}

// The same handler in AWS Lambda: pass the function to lambda.Start of github.com/aws/aws-lambda-go/lambda. There is a whole
// program in examples/lambda.
func ExampleNewLambda() {
	function, err := worker.NewLambda(worker.JSON(func(ctx context.Context, m *worker.Message, o Order) error {
		if o.Amount < 0 {
			return errors.New("negative amount")
		}
		return nil
	}), worker.LambdaConfig{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println(err)
		return
	}

	answer, err := function.Invoke(context.Background(), []byte(`{"Records": [
		{"messageId": "a", "body": "{\"amount\": 1}", "eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:eu-west-1:123456789012:orders"},
		{"messageId": "b", "body": "{\"amount\": -1}", "eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:eu-west-1:123456789012:orders"}
	]}`))
	fmt.Println(string(answer), err)
	// Output: {"batchItemFailures":[{"itemIdentifier":"b"}]} <nil>
}

// Middleware that unpacks something hands on the same message with another body.
func ExampleMessage_WithBody() {
	trim := func(next worker.Handler) worker.Handler {
		return worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			return next.Handle(ctx, m.WithBody(m.Body[1:len(m.Body)-1]))
		})
	}
	h := trim(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
		fmt.Println(m, "has the body", m.Body)
		return nil
	}))

	_ = h.Handle(context.Background(), received("(hello)"))
	// Output: message 2a7d has the body hello
}
