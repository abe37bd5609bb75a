package extended

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/worker"
)

// injector writes the context of the span in a send's ctx into its message, so that whoever receives it can link to it. It leaves room
// for the reserved attribute, and doesn't send a message through S3 that is small enough without.
func (c *Client) injector(ctx context.Context, queueURL string) worker.Injector {
	return worker.Injector{MaxAttributes: maxAttributes - 1, MaxMessageSize: c.threshold(ctx, queueURL)}
}

// traced is the message with that context; the caller's is left as it is.
func (c *Client) traced(ctx context.Context, in *sqs.SendMessageInput) *sqs.SendMessageInput {
	message := *in
	if message.QueueUrl != nil {
		c.injector(ctx, *message.QueueUrl).Message(ctx, &message)
	}
	return &message
}

// tracedBatch does so for every entry.
func (c *Client) tracedBatch(ctx context.Context, in *sqs.SendMessageBatchInput) *sqs.SendMessageBatchInput {
	batch := *in
	if batch.QueueUrl != nil {
		c.injector(ctx, *batch.QueueUrl).Batch(ctx, &batch)
	}
	return &batch
}
