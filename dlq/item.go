package dlq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// Item is one message of a dead-letter queue. Printing or logging it shows its id and nothing of its contents.
type Item struct {
	// ID is its MessageId: the original's if SQS's redrive policy moved it, its own if a [Sink] copied it (then see Reason.ID).
	ID string
	// Body as it was sent; a pointer if Extended.
	Body string
	// Attributes are the sender's message attributes, without [ReasonAttribute].
	Attributes map[string]types.MessageAttributeValue
	// GroupID, DeduplicationID, SequenceNumber and TraceHeader are as SQS tells them; empty when it doesn't. SQS replaces the
	// deduplication id with the MessageId when it moves a message to a FIFO dead-letter queue.
	GroupID, DeduplicationID, SequenceNumber, TraceHeader string
	// ReceiveCount counts all receives, those from its source and this one included; after a [Sink], those of the copy.
	ReceiveCount int
	// SentAt is when it was sent. On a standard queue that is the first sending even after SQS has moved the message, on a FIFO
	// queue, and after a [Sink], when it came to this queue.
	SentAt time.Time
	// FirstReceivedAt is when anybody received it for the first time.
	FirstReceivedAt time.Time
	// ExpiresAt is when SQS deletes it: SentAt and the dead-letter queue's retention. See [Item.Age] and [Item.Left].
	ExpiresAt time.Time
	// QueueURL is the dead-letter queue.
	QueueURL string
	// SourceARN is the queue from which SQS moved it: DeadLetterQueueSourceArn. Empty when it was sent here directly, as by a [Sink].
	SourceARN string
	// Reason is what the sink wrote; nil for what came otherwise.
	Reason *Reason
	// Extended says that the payload is in S3: the message has one of the reserved attributes SQSLargePayloadSize and
	// ExtendedPayloadSize.
	Extended bool

	raw      types.Message // what Payload opens
	payloads Payloads
	held     *held
	delete   func(context.Context, *held) error // nil once it can't be any more
}

// Payloads reads payloads that are in S3. *extended.Client is one; it follows a pointer only to the places that it was configured for.
type Payloads interface {
	Open(context.Context, *types.Message) (io.ReadCloser, error)
}

// ErrNoPayloads says that a payload is in S3 and nothing was configured to read it with.
var ErrNoPayloads = errors.New("dlq: the payload is in S3: set Payloads to an *extended.Client")

// Payload reads the message's payload: its body, or what it points to in S3. It must be closed.
func (i *Item) Payload(ctx context.Context) (io.ReadCloser, error) {
	if !i.Extended {
		return io.NopCloser(strings.NewReader(i.Body)), nil
	}
	if i.payloads == nil {
		return nil, fmt.Errorf("%w: message %s", ErrNoPayloads, i.ID)
	}
	return i.payloads.Open(ctx, &i.raw)
}

// Age is how long ago it was sent; see SentAt for what that means.
func (i *Item) Age() time.Duration { return time.Since(i.SentAt) }

// Left is the time until SQS deletes it; negative when that is due.
func (i *Item) Left() time.Duration { return time.Until(i.ExpiresAt) }

// Original is the MessageId under which the message was known to its consumers.
func (i *Item) Original() string {
	if i.Reason != nil && i.SourceARN == "" && i.Reason.ID != "" {
		return i.Reason.ID
	}
	return i.ID
}

// SourceURL is the URL of the queue that it came from: by SQS's word, or else by the sink's. Empty when neither says.
func (i *Item) SourceURL() string {
	switch {
	case i.SourceARN != "":
		return siblingURL(i.QueueURL, nameOf(i.SourceARN))
	case i.Reason != nil:
		return i.Reason.QueueURL
	}
	return ""
}

// String names the message without its contents.
func (i *Item) String() string { return "message " + i.ID }

// Format is String for every verb: %+v must not print a body.
func (i *Item) Format(f fmt.State, _ rune) { fmt.Fprint(f, i.String()) }

// LogValue names the message without its contents.
func (i *Item) LogValue() slog.Value {
	return slog.GroupValue(slog.String("id", i.ID), slog.Int("receive_count", i.ReceiveCount))
}

// reservedAttributes mark a message whose payload is in S3, in the format of the SQS Extended Client libraries.
var reservedAttributes = [...]string{"SQSLargePayloadSize", "ExtendedPayloadSize"}

func isExtended(attributes map[string]types.MessageAttributeValue) bool {
	for _, name := range reservedAttributes {
		if _, ok := attributes[name]; ok {
			return true
		}
	}
	return false
}

func newItem(raw *types.Message, queueURL string, retention time.Duration) *Item {
	i := &Item{ID: aws.ToString(raw.MessageId), Body: aws.ToString(raw.Body), QueueURL: queueURL, raw: *raw}
	i.Reason, i.Attributes = readReason(raw.MessageAttributes)
	i.Extended = isExtended(i.Attributes)
	for name, value := range raw.Attributes {
		switch types.MessageSystemAttributeName(name) {
		case types.MessageSystemAttributeNameApproximateReceiveCount:
			i.ReceiveCount, _ = strconv.Atoi(value)
		case types.MessageSystemAttributeNameSentTimestamp:
			i.SentAt = milliseconds(value)
		case types.MessageSystemAttributeNameApproximateFirstReceiveTimestamp:
			i.FirstReceivedAt = milliseconds(value)
		case types.MessageSystemAttributeNameMessageGroupId:
			i.GroupID = value
		case types.MessageSystemAttributeNameMessageDeduplicationId:
			i.DeduplicationID = value
		case types.MessageSystemAttributeNameSequenceNumber:
			i.SequenceNumber = value
		case types.MessageSystemAttributeNameAWSTraceHeader:
			i.TraceHeader = value
		case types.MessageSystemAttributeNameDeadLetterQueueSourceArn:
			i.SourceARN = value
		}
	}
	i.ExpiresAt = i.SentAt.Add(retention)
	return i
}

func milliseconds(value string) time.Time {
	ms, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}
