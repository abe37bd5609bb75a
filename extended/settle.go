package extended

import (
	"context"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

// SQS knows its own receipt handles only, so every call sends the raw one. A deletion removes the object afterwards, and only
// what SQS has confirmed.

// DeleteMessage deletes a message, and then its object, unless [Config.KeepPayloads] is set. A failure to remove the object
// is not the call's: the message is gone. It is counted, logged, and left to the lifecycle rule.
func (c *Client) DeleteMessage(ctx context.Context, in *sqs.DeleteMessageInput, optFns ...func(*sqs.Options)) (*sqs.DeleteMessageOutput, error) {
	if in == nil || in.ReceiptHandle == nil {
		return c.Client.DeleteMessage(ctx, in, optFns...)
	}
	raw, at, found := split(*in.ReceiptHandle)
	message := *in
	message.ReceiptHandle = &raw
	out, err := c.Client.DeleteMessage(ctx, &message, optFns...)
	if err == nil && found {
		c.payloads.removeAll(ctx, []Pointer{at})
	}
	return out, err
}

// DeleteMessageBatch deletes messages, and then the objects of those that SQS has confirmed, as [Client.DeleteMessage] does.
func (c *Client) DeleteMessageBatch(ctx context.Context, in *sqs.DeleteMessageBatchInput, optFns ...func(*sqs.Options)) (*sqs.DeleteMessageBatchOutput, error) {
	if in == nil {
		return c.Client.DeleteMessageBatch(ctx, in, optFns...)
	}
	batch := *in
	batch.Entries = slices.Clone(in.Entries)
	pointers := map[string]Pointer{}
	for i := range batch.Entries {
		e := &batch.Entries[i]
		raw, at, found := split(aws.ToString(e.ReceiptHandle))
		if !found {
			continue
		}
		e.ReceiptHandle = &raw
		pointers[aws.ToString(e.Id)] = at
	}
	out, err := c.Client.DeleteMessageBatch(ctx, &batch, optFns...)
	if err != nil {
		return out, err
	}
	var confirmed []Pointer
	for _, s := range out.Successful {
		if at, ok := pointers[aws.ToString(s.Id)]; ok {
			confirmed = append(confirmed, at)
		}
	}
	c.payloads.removeAll(ctx, confirmed)
	return out, err
}

// ChangeMessageVisibility is SQS's, for handles of [Client.ReceiveMessage].
func (c *Client) ChangeMessageVisibility(ctx context.Context, in *sqs.ChangeMessageVisibilityInput, optFns ...func(*sqs.Options)) (*sqs.ChangeMessageVisibilityOutput, error) {
	if in == nil || in.ReceiptHandle == nil {
		return c.Client.ChangeMessageVisibility(ctx, in, optFns...)
	}
	raw, _, _ := split(*in.ReceiptHandle)
	message := *in
	message.ReceiptHandle = &raw
	return c.Client.ChangeMessageVisibility(ctx, &message, optFns...)
}

// ChangeMessageVisibilityBatch is SQS's, for handles of [Client.ReceiveMessage].
func (c *Client) ChangeMessageVisibilityBatch(ctx context.Context, in *sqs.ChangeMessageVisibilityBatchInput, optFns ...func(*sqs.Options)) (*sqs.ChangeMessageVisibilityBatchOutput, error) {
	if in == nil {
		return c.Client.ChangeMessageVisibilityBatch(ctx, in, optFns...)
	}
	batch := *in
	batch.Entries = slices.Clone(in.Entries)
	for i := range batch.Entries {
		if e := &batch.Entries[i]; e.ReceiptHandle != nil {
			raw, _, _ := split(*e.ReceiptHandle)
			e.ReceiptHandle = &raw
		}
	}
	return c.Client.ChangeMessageVisibilityBatch(ctx, &batch, optFns...)
}
