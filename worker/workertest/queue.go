package workertest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

// Options are the settings of a [Queue]. The zero value is a standard queue as one should be.
type Options struct {
	// FIFO makes it a FIFO queue, with deduplication by content for messages that name no deduplication id.
	FIFO bool
	// Visibility is the queue's visibility timeout, in whole seconds from 1 s to 12 h; default 30 s.
	Visibility time.Duration
	// MaxReceiveCount is how often a message is received before it goes to the dead-letter queue, from 1 to 1000; default 5.
	MaxReceiveCount int
	// NoDeadLetterQueue leaves it out: a message that always fails comes back until its retention is over.
	NoDeadLetterQueue bool
	// Attributes are further queue attributes by SQS's names, DelaySeconds say. They win over everything above.
	Attributes map[string]string
}

// Queue is an SQS queue in this process, with a dead-letter queue. Its methods are safe for concurrent use.
type Queue struct {
	// URL is the queue's.
	URL string
	// DeadLetterURL is its dead-letter queue's; empty without one.
	DeadLetterURL string

	tb     testing.TB
	server *sqsmodel.Server
	client *sqs.Client
}

// NewQueue makes a queue in an SQS of its own. It ends the test when SQS would refuse the options.
func NewQueue(tb testing.TB, o Options) *Queue {
	tb.Helper()
	q := &Queue{tb: tb, server: sqsmodel.New(sqsmodel.Config{})}
	q.client = q.server.Client()
	attributes := map[string]string{"ReceiveMessageWaitTimeSeconds": "20", "VisibilityTimeout": "30"}
	if o.Visibility != 0 {
		attributes["VisibilityTimeout"] = strconv.FormatFloat(o.Visibility.Seconds(), 'f', -1, 64)
	}
	name, dead := "test", "test-dead"
	kind := map[string]string{}
	if o.FIFO {
		name, dead = name+".fifo", dead+".fifo"
		kind["FifoQueue"] = "true"
		attributes["FifoQueue"], attributes["ContentBasedDeduplication"] = "true", "true"
	}
	if !o.NoDeadLetterQueue {
		kind["MessageRetentionPeriod"] = "1209600"
		q.DeadLetterURL = q.create(dead, kind)
		most := o.MaxReceiveCount
		if most == 0 {
			most = 5
		}
		attributes["RedrivePolicy"] = fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":%d}`, q.server.Queue(q.DeadLetterURL).ARN, most)
	}
	for k, v := range o.Attributes {
		attributes[k] = v
	}
	q.URL = q.create(name, attributes)
	return q
}

func (q *Queue) create(name string, attributes map[string]string) string {
	q.tb.Helper()
	out, err := q.client.CreateQueue(context.Background(), &sqs.CreateQueueInput{QueueName: &name, Attributes: attributes})
	if err != nil {
		q.tb.Fatalf("workertest: queue %s: %v", name, err)
	}
	return *out.QueueUrl
}

// Client is the SDK's own client, whose calls the queue's SQS answers. Code under test may use it for anything: sending,
// other queues, attributes.
func (q *Queue) Client() *sqs.Client { return q.client }

// Message is what is sent.
type Message struct {
	Body string
	// Attributes are string message attributes. For others, use [Queue.Client].
	Attributes map[string]string
	// GroupID is required on a FIFO queue; there, when it is empty, it is "test".
	GroupID string
	// DeduplicationID is for FIFO queues; empty means by content.
	DeduplicationID string
	// Delay makes it visible later, on a standard queue: whole seconds up to 15 minutes.
	Delay time.Duration
}

// Send sends messages with these bodies, and returns their ids.
func (q *Queue) Send(bodies ...string) (ids []string) {
	q.tb.Helper()
	for _, body := range bodies {
		ids = append(ids, q.SendMessage(Message{Body: body}))
	}
	return ids
}

// SendMessage sends a message and returns its id. It ends the test when SQS would refuse it.
func (q *Queue) SendMessage(m Message) (id string) {
	q.tb.Helper()
	in := &sqs.SendMessageInput{QueueUrl: &q.URL, MessageBody: &m.Body, DelaySeconds: int32(m.Delay / time.Second)}
	for name, value := range m.Attributes {
		if in.MessageAttributes == nil {
			in.MessageAttributes = map[string]types.MessageAttributeValue{}
		}
		in.MessageAttributes[name] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String(value)}
	}
	if m.GroupID == "" && q.fifo() {
		m.GroupID = "test"
	}
	if m.GroupID != "" {
		in.MessageGroupId = &m.GroupID
	}
	if m.DeduplicationID != "" {
		in.MessageDeduplicationId = &m.DeduplicationID
	}
	out, err := q.client.SendMessage(context.Background(), in)
	if err != nil {
		q.tb.Fatalf("workertest: sending: %v", err)
	}
	return *out.MessageId
}

func (q *Queue) fifo() bool { return strings.HasSuffix(q.URL, ".fifo") }

// Redeliver delivers a message of a standard queue once more while it is held or waits, as SQS now and then does: at least
// once isn't once. It reports false when the message isn't there any more.
func (q *Queue) Redeliver(id string) bool { return q.server.Duplicate(q.URL, id) }

// Fail makes the next calls of an action fail with an error code of SQS's, or break off without an answer when the code is
// empty. Action is the API's name, "DeleteMessageBatch" say; times 0 means all, until the function that is returned is called.
func (q *Queue) Fail(action string, times int, code string) (mend func()) {
	return q.server.Inject(sqsmodel.Fault{Action: action, Times: times, Code: code, DropBefore: code == ""})
}

// Fate is where a message is in its life.
type Fate int

const (
	// Visible: it waits to be received.
	Visible Fate = iota
	// Held: somebody has received it, and its visibility timeout runs; also how a message looks that was given back for later.
	Held
	// Delayed: it was sent with a delay that isn't over.
	Delayed
	// Deleted, by whoever received it.
	Deleted
	// DeadLettered: it is in the dead-letter queue, or was.
	DeadLettered
	// Expired: its retention was over.
	Expired
)

func (f Fate) String() string {
	return [...]string{"visible", "held", "delayed", "deleted", "dead-lettered", "expired"}[f]
}

// Standing is how a message stands.
type Standing struct {
	Fate Fate
	// Receives is how often it was received.
	Receives int
	// VisibleIn is how long it takes until it is visible, when it is held or delayed.
	VisibleIn time.Duration
}

// Look tells how a message stands. It ends the test when there was never one with that id.
func (q *Queue) Look(id string) (s Standing) {
	q.tb.Helper()
	known := false
	for _, e := range q.server.Journal() {
		if e.MessageID != id {
			continue
		}
		known = true
		s.Receives = max(s.Receives, e.ReceiveCount)
		switch e.Kind {
		case sqsmodel.Deleted, sqsmodel.Purged:
			s.Fate = Deleted
		case sqsmodel.DeadLettered:
			s.Fate = DeadLettered
		case sqsmodel.RetentionExpired:
			s.Fate = Expired
		}
	}
	for _, m := range q.server.Queue(q.URL).Messages {
		if m.ID != id {
			continue
		}
		known = true
		s.Fate = map[sqsmodel.State]Fate{sqsmodel.Visible: Visible, sqsmodel.InFlight: Held, sqsmodel.Delayed: Delayed}[m.State]
		s.Receives = m.ReceiveCount
		if s.Fate != Visible {
			s.VisibleIn = time.Until(m.VisibleAt)
		}
	}
	if !known {
		q.tb.Fatalf("workertest: there was never a message %s in %s", id, q.URL)
	}
	return s
}

// Bodies are those of the messages that are in the queue, in the order in which they were sent.
func (q *Queue) Bodies() []string { return bodies(q.server.Queue(q.URL)) }

// DeadLetters are the bodies of the messages in the dead-letter queue.
func (q *Queue) DeadLetters() []string {
	if q.DeadLetterURL == "" {
		return nil
	}
	return bodies(q.server.Queue(q.DeadLetterURL))
}

func bodies(s sqsmodel.QueueState) (all []string) {
	for _, m := range s.Messages {
		all = append(all, m.Body)
	}
	return all
}

// WaitEmpty waits until the queue has no message any more: all are deleted or dead-lettered. It ends the test when that takes
// longer than d, and names what is left.
func (q *Queue) WaitEmpty(d time.Duration) {
	q.tb.Helper()
	for until := time.Now().Add(d); ; {
		left := q.server.Queue(q.URL).Messages
		if len(left) == 0 {
			return
		}
		if !time.Now().Before(until) {
			var names []string
			for _, m := range left[:min(len(left), 5)] {
				names = append(names, fmt.Sprintf("%s (%v, received %d times)", m.ID, m.State, m.ReceiveCount))
			}
			q.tb.Fatalf("workertest: after %v the queue still has %d messages: %s", d, len(left), strings.Join(names, ", "))
		}
		time.Sleep(min(5*time.Millisecond, max(time.Until(until), 0)))
	}
}
