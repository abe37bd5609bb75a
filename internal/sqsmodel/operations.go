package sqsmodel

import (
	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

// operation is an action of the protocol: how its request is read, what the
// recorded Call says about it, and what it does.
type operation struct {
	onQueue bool // the request has a QueueUrl
	decode  func(x *exchange, body []byte) error
	apply   func(s *Server, x *exchange) (reply, error)
}

func action[T any](describe func(*exchange, *T), apply func(*Server, *exchange, *T) (reply, error)) operation {
	return operation{
		decode: func(x *exchange, body []byte) error {
			in := new(T)
			if err := decodeJSON(body, in); err != nil {
				return err
			}
			x.in, x.call.Input = in, in
			if describe != nil {
				describe(x, in)
			}
			return nil
		},
		apply: func(s *Server, x *exchange) (reply, error) { return apply(s, x, x.in.(*T)) },
	}
}

func onQueue[T any](describe func(*exchange, *T), apply func(*Server, *exchange, *T) (reply, error)) operation {
	op := action(describe, apply)
	op.onQueue = true
	return op
}

var operations map[string]operation

func init() { // not an initializer: the operations refer to the table
	operations = map[string]operation{
		"CreateQueue":        action(nil, (*Server).createQueue),
		"DeleteQueue":        onQueue(func(x *exchange, in *sqs.DeleteQueueInput) { x.queueURL = in.QueueUrl }, (*Server).deleteQueue),
		"GetQueueUrl":        action(nil, (*Server).getQueueURL),
		"ListQueues":         action(nil, (*Server).listQueues),
		"PurgeQueue":         onQueue(func(x *exchange, in *sqs.PurgeQueueInput) { x.queueURL = in.QueueUrl }, (*Server).purgeQueue),
		"GetQueueAttributes": onQueue(func(x *exchange, in *sqs.GetQueueAttributesInput) { x.queueURL = in.QueueUrl }, (*Server).getQueueAttributes),
		"SetQueueAttributes": onQueue(func(x *exchange, in *sqs.SetQueueAttributesInput) { x.queueURL = in.QueueUrl }, (*Server).setQueueAttributes),

		"SendMessage":      onQueue(describeSend, (*Server).sendMessage),
		"SendMessageBatch": onQueue(describeSendBatch, (*Server).sendMessageBatch),
		"ReceiveMessage":   onQueue(describeReceive, (*Server).receiveMessage),

		"DeleteMessage":                onQueue(describeDelete, (*Server).deleteMessage),
		"DeleteMessageBatch":           onQueue(describeDeleteBatch, (*Server).deleteMessageBatch),
		"ChangeMessageVisibility":      onQueue(describeVisibility, (*Server).changeMessageVisibility),
		"ChangeMessageVisibilityBatch": onQueue(describeVisibilityBatch, (*Server).changeMessageVisibilityBatch),

		"ListDeadLetterSourceQueues": onQueue(func(x *exchange, in *sqs.ListDeadLetterSourceQueuesInput) { x.queueURL = in.QueueUrl }, (*Server).listDeadLetterSourceQueues),
		"StartMessageMoveTask":       action(nil, (*Server).startMessageMoveTask),
		"ListMessageMoveTasks":       action(nil, (*Server).listMessageMoveTasks),
		"CancelMessageMoveTask":      action(nil, (*Server).cancelMessageMoveTask),

		"TagQueue":         onQueue(func(x *exchange, in *sqs.TagQueueInput) { x.queueURL = in.QueueUrl }, (*Server).tagQueue),
		"UntagQueue":       onQueue(func(x *exchange, in *sqs.UntagQueueInput) { x.queueURL = in.QueueUrl }, (*Server).untagQueue),
		"ListQueueTags":    onQueue(func(x *exchange, in *sqs.ListQueueTagsInput) { x.queueURL = in.QueueUrl }, (*Server).listQueueTags),
		"AddPermission":    onQueue(func(x *exchange, in *sqs.AddPermissionInput) { x.queueURL = in.QueueUrl }, (*Server).addPermission),
		"RemovePermission": onQueue(func(x *exchange, in *sqs.RemovePermissionInput) { x.queueURL = in.QueueUrl }, (*Server).removePermission),
	}
}

func describeSend(x *exchange, in *sendInput) {
	x.queueURL = in.QueueUrl
	in.SendMessageInput.DelaySeconds = value(in.DelaySeconds)
	x.call.Input = &in.SendMessageInput
}

func describeSendBatch(x *exchange, in *sendBatchInput) {
	x.queueURL, x.call.Entries = in.QueueUrl, len(in.Entries)
	sdk := &in.SendMessageBatchInput
	for _, e := range in.Entries {
		e.SendMessageBatchRequestEntry.DelaySeconds = value(e.DelaySeconds)
		sdk.Entries = append(sdk.Entries, e.SendMessageBatchRequestEntry)
		x.entryIDs = append(x.entryIDs, value(e.Id))
		x.subjects = append(x.subjects, value(e.MessageBody))
	}
	x.call.Input = sdk
}

func describeReceive(x *exchange, in *receiveInput) {
	x.queueURL = in.QueueUrl
	x.call.AttemptID = value(in.ReceiveRequestAttemptId)
	sdk := &in.ReceiveMessageInput
	sdk.MaxNumberOfMessages = value(in.MaxNumberOfMessages)
	sdk.VisibilityTimeout = value(in.VisibilityTimeout)
	sdk.WaitTimeSeconds = value(in.WaitTimeSeconds)
	x.call.MaxMessages, x.call.WaitSeconds = int(sdk.MaxNumberOfMessages), int(sdk.WaitTimeSeconds)
	if in.VisibilityTimeout != nil {
		x.call.VisibilityTimeouts = []int{int(sdk.VisibilityTimeout)}
	}
	x.call.Input = sdk
}

func describeDelete(x *exchange, in *sqs.DeleteMessageInput) {
	x.queueURL = in.QueueUrl
	x.call.ReceiptHandles = []string{value(in.ReceiptHandle)}
}

func describeDeleteBatch(x *exchange, in *sqs.DeleteMessageBatchInput) {
	x.queueURL, x.call.Entries = in.QueueUrl, len(in.Entries)
	for _, e := range in.Entries {
		x.entryIDs = append(x.entryIDs, value(e.Id))
		x.call.ReceiptHandles = append(x.call.ReceiptHandles, value(e.ReceiptHandle))
	}
	x.subjects = x.call.ReceiptHandles
}

func describeVisibility(x *exchange, in *visibilityInput) {
	x.queueURL = in.QueueUrl
	sdk := &in.ChangeMessageVisibilityInput
	sdk.VisibilityTimeout = value(in.VisibilityTimeout)
	x.call.ReceiptHandles = []string{value(in.ReceiptHandle)}
	x.call.VisibilityTimeouts = []int{int(sdk.VisibilityTimeout)}
	x.call.Input = sdk
}

func describeVisibilityBatch(x *exchange, in *sqs.ChangeMessageVisibilityBatchInput) {
	x.queueURL, x.call.Entries = in.QueueUrl, len(in.Entries)
	for _, e := range in.Entries {
		x.entryIDs = append(x.entryIDs, value(e.Id))
		x.call.ReceiptHandles = append(x.call.ReceiptHandles, value(e.ReceiptHandle))
		x.call.VisibilityTimeouts = append(x.call.VisibilityTimeouts, int(e.VisibilityTimeout))
	}
	x.subjects = x.call.ReceiptHandles
}

func value[T any](p *T) T {
	var zero T
	if p == nil {
		return zero
	}
	return *p
}
