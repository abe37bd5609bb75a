package worker

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// Message is one received SQS message. A handler may read it freely and pass it on, but not change it while
// others use it. Printing or logging it shows its id and nothing of its contents.
type Message struct {
	// ID is SQS's MessageId. A redrive gives the message a new one.
	ID string
	// Body is the message's body as it was sent.
	Body string
	// Attributes are the message attributes of the sender.
	Attributes map[string]types.MessageAttributeValue
	// QueueURL is the queue that it came from.
	QueueURL string

	// ReceiveCount is ApproximateReceiveCount: how often SQS gave it to anybody, this time included. Releases at a
	// stop, lost leases, even a look in the console count, so it is not a count of failures.
	ReceiveCount int
	// Attempt is which attempt to handle the message this is, from 1: ReceiveCount, less the receives that this worker knows
	// to have ended without a failure (snoozed, given back unstarted or interrupted). Other workers' it can't know, so it is
	// an upper bound; an idempotency record that counts failures for all of them may set it in middleware. Back-off goes
	// by it.
	Attempt int
	// SentAt and FirstReceivedAt are SQS's own times, to the millisecond; zero when SQS didn't say.
	SentAt, FirstReceivedAt time.Time
	// ReceivedAt is when this receive's answer arrived, by the local clock.
	ReceivedAt time.Time

	// GroupID is MessageGroupId: the unit of order on a FIFO queue, the tenant on a standard one.
	GroupID string
	// DeduplicationID is MessageDeduplicationId; FIFO queues only.
	DeduplicationID string
	// SequenceNumber is SQS's 128-bit number, growing within a group; FIFO queues only.
	SequenceNumber string
	// SenderID is the IAM id of the sender; empty unless Config.SenderID asks for it.
	SenderID string
	// TraceHeader is the X-Ray header that came along, AWSTraceHeader.
	TraceHeader string
	// DeadLetterSource is the ARN of the queue that it was dead-lettered from, when this queue is a dead-letter queue.
	DeadLetterSource string

	origin      *Message // the received message, of which this is a copy with another body
	mu          sync.Mutex
	afterDelete []func(context.Context) error
}

// WithBody returns a copy with another body, for middleware that hands on what was packed in the one that was received. It
// is still the same message: its id, counts and times are copied, AfterDelete goes to the received one, and so does what
// the worker settles. Its Attributes are the same map: replace it, don't write to it. Middleware that wants a change of
// Attempt further in to count sets the received message's afterwards.
func (m *Message) WithBody(body string) *Message {
	origin := m
	if m.origin != nil {
		origin = m.origin
	}
	return &Message{
		ID: m.ID, Body: body, Attributes: m.Attributes, QueueURL: m.QueueURL,
		ReceiveCount: m.ReceiveCount, Attempt: m.Attempt,
		SentAt: m.SentAt, FirstReceivedAt: m.FirstReceivedAt, ReceivedAt: m.ReceivedAt,
		GroupID: m.GroupID, DeduplicationID: m.DeduplicationID, SequenceNumber: m.SequenceNumber,
		SenderID: m.SenderID, TraceHeader: m.TraceHeader, DeadLetterSource: m.DeadLetterSource,
		origin: origin,
	}
}

// Attribute returns the string value of a message attribute, empty when there is none of that name or it is binary.
func (m *Message) Attribute(name string) string {
	return aws.ToString(m.Attributes[name].StringValue)
}

// AfterDelete adds a function that runs once SQS has confirmed the deletion of this message, and never
// otherwise: the place to remove what only a redelivery would need. Functions run one after the other in the order in
// which they were added, on a context that outlives the handler's and is bounded by 10 s; an error is logged and
// counted, no more. Run returns after they have.
func (m *Message) AfterDelete(f func(context.Context) error) {
	if m.origin != nil {
		m = m.origin
	}
	m.mu.Lock()
	m.afterDelete = append(m.afterDelete, f)
	m.mu.Unlock()
}

func (m *Message) takeAfterDelete() afterDelete {
	m.mu.Lock()
	defer m.mu.Unlock()
	fs := m.afterDelete
	m.afterDelete = nil
	return fs
}

// String names the message without its contents.
func (m *Message) String() string { return "message " + m.ID }

// Format is String for every verb: %+v must not print a body.
func (m *Message) Format(f fmt.State, _ rune) { fmt.Fprint(f, m.String()) }

// LogValue names the message without its contents.
func (m *Message) LogValue() slog.Value { return identity(m.ID, m.ReceiveCount) }

func identity(id string, receives int) slog.Value {
	return slog.GroupValue(slog.String("id", id), slog.Int("receive_count", receives))
}

// fill takes over what SQS answered.
func (m *Message) fill(in *types.Message, queueURL string, receivedAt time.Time) {
	m.ID = aws.ToString(in.MessageId)
	m.Body = aws.ToString(in.Body)
	m.Attributes = in.MessageAttributes
	m.QueueURL = queueURL
	m.ReceivedAt = receivedAt
	for name, value := range in.Attributes {
		switch types.MessageSystemAttributeName(name) {
		case types.MessageSystemAttributeNameApproximateReceiveCount:
			m.ReceiveCount, _ = strconv.Atoi(value)
		case types.MessageSystemAttributeNameSentTimestamp:
			m.SentAt = milliseconds(value)
		case types.MessageSystemAttributeNameApproximateFirstReceiveTimestamp:
			m.FirstReceivedAt = milliseconds(value)
		case types.MessageSystemAttributeNameMessageGroupId:
			m.GroupID = value
		case types.MessageSystemAttributeNameMessageDeduplicationId:
			m.DeduplicationID = value
		case types.MessageSystemAttributeNameSequenceNumber:
			m.SequenceNumber = value
		case types.MessageSystemAttributeNameSenderId:
			m.SenderID = value
		case types.MessageSystemAttributeNameAWSTraceHeader:
			m.TraceHeader = value
		case types.MessageSystemAttributeNameDeadLetterQueueSourceArn:
			m.DeadLetterSource = value
		}
	}
	m.ReceiveCount = max(m.ReceiveCount, 1) // a server that leaves it out still received it
}

func milliseconds(value string) time.Time {
	ms, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}
