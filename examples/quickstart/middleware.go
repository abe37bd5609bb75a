package main

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/sqsworker/sqsworker/extended"
	"github.com/sqsworker/sqsworker/idempotency"
	"github.com/sqsworker/sqsworker/worker"
)

const (
	tableName  = "handled-orders"
	bucketName = "attachments"
	keyPrefix  = "orders/" // of its own for each queue: it bounds where a pointer may lead
)

// shared is what the workers share beside the queue.
type shared struct {
	dynamo *dynamodb.Client // the table that says which orders have been handled
	s3     *s3.Client       // the bucket of what is too large for SQS
}

// newShared makes the clients. A service makes them from its AWS configuration.
func newShared(endpoint string, client interface {
	Do(*http.Request) (*http.Response, error)
}) shared {
	return shared{
		dynamo: dynamodb.New(dynamodb.Options{Region: "us-east-1", BaseEndpoint: &endpoint, HTTPClient: client, Credentials: credentials}),
		s3:     s3.New(s3.Options{Region: "us-east-1", BaseEndpoint: &endpoint, HTTPClient: client, Credentials: credentials, UsePathStyle: true}),
	}
}

var credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
	return aws.Credentials{AccessKeyID: "none", SecretAccessKey: "needed"}, nil
})

// middleware is what stands between a worker and its handler, outermost first: an attachment is fetched before the order
// is looked at, and an order is looked up before it is charged. innermost keeps the books.
func (s shared) middleware(o options, innermost worker.Middleware) ([]worker.Middleware, error) {
	large := extended.Middleware(s.s3, attachments(o.logger))
	if !o.idempotency {
		return []worker.Middleware{large, innermost}, nil
	}
	store, err := idempotency.NewDynamoStore(s.dynamo, tableName, idempotency.DynamoConfig{})
	if err != nil {
		return nil, err
	}
	once := idempotency.Middleware(store, idempotency.Config{
		Key:    orderNumber,
		Skew:   idempotency.NoSkew, // one machine, one clock
		Logger: o.logger,
	})
	return []worker.Middleware{large, once, innermost}, nil
}

// attachments is the configuration for payloads in S3, the same for the producer and the workers.
func attachments(logger *slog.Logger) extended.Config {
	return extended.Config{Bucket: bucketName, KeyPrefix: keyPrefix, Logger: logger}
}

var numberField = idempotency.JSONField("order")

// orderNumber is the key: what makes two messages the same work. An order that is sent twice is two messages with two ids, so that
// only the order's own number tells. An S3 event notification has none; the message's id finds those that SQS delivers
// again.
func orderNumber(m *worker.Message) (string, error) {
	number, missing := numberField(m)
	if missing != nil {
		if j, err := parse(m.Body); err == nil && j.event {
			return idempotency.MessageID(m)
		}
	}
	return number, missing
}
