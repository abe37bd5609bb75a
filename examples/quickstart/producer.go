package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/extended"
)

const (
	batchEntries = 10      // of one SendMessageBatch
	batchBytes   = 1 << 20 // and its bodies together
)

// send sends the messages, as many in a call as SQS takes, what is too large for that through S3, and tells sent the id that each one got.
func send(ctx context.Context, client *extended.Client, queueURL string, messages []message, sent func(id string, m message)) error {
	for len(messages) > 0 {
		n := batch(messages)
		if err := sendBatch(ctx, client, queueURL, messages[:n], sent); err != nil {
			return err
		}
		messages = messages[n:]
	}
	return nil
}

// batch is how many of the messages fit into one call. Of one with an attachment only a pointer goes to SQS, no longer than
// its line by much.
func batch(messages []message) int {
	n, size := 0, 0
	for n < len(messages) && n < batchEntries && size+len(messages[n].body) <= batchBytes {
		size += len(messages[n].body)
		n++
	}
	return n
}

func sendBatch(ctx context.Context, client *extended.Client, queueURL string, messages []message, sent func(id string, m message)) error {
	in := &sqs.SendMessageBatchInput{QueueUrl: &queueURL}
	for i, m := range messages {
		in.Entries = append(in.Entries, types.SendMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), MessageBody: aws.String(m.text())})
	}
	out, err := client.SendMessageBatch(ctx, in)
	if err != nil {
		return fmt.Errorf("sending: %w", err)
	}
	for _, ok := range out.Successful {
		i, err := strconv.Atoi(aws.ToString(ok.Id))
		if err != nil || i >= len(messages) {
			return fmt.Errorf("sending: SQS answered for an entry %q that wasn't in the call", aws.ToString(ok.Id))
		}
		sent(aws.ToString(ok.MessageId), messages[i])
	}
	for _, failed := range out.Failed { // the call is a success all the same: who doesn't look here loses messages
		return fmt.Errorf("sending: SQS refused a message: %s: %s", aws.ToString(failed.Code), aws.ToString(failed.Message))
	}
	return nil
}
