package dlq

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/worker"
)

// SinkClient is what a [Sink] calls. *sqs.Client has it. It needs sqs:SendMessage on the dead-letter queue, and
// sqs:GetQueueAttributes to know how large its messages may be.
type SinkClient interface {
	SendMessage(context.Context, *sqs.SendMessageInput, ...func(*sqs.Options)) (*sqs.SendMessageOutput, error)
	GetQueueAttributes(context.Context, *sqs.GetQueueAttributesInput, ...func(*sqs.Options)) (*sqs.GetQueueAttributesOutput, error)
}

const (
	maxMessageSize = 1 << 20 // since August 2025 (quotas-messages in the SQS developer guide)
	maxAttributes  = 10
	// maxReason is the most that a reason takes of a message.
	maxReason = 8 << 10
)

// SinkConfig tunes a [Sink]. The zero value is ready for production.
type SinkConfig struct {
	// Worker names the worker in reasons. Default none.
	Worker string
	// Describe makes the text of an error, for services whose errors hold what shouldn't be in a queue. Default: Error(). What is
	// longer than the message has room for, 8 KiB at most, is cut.
	Describe func(error) string
	// Logger takes a warning for a message that had no room for its reason. Default slog.Default().
	Logger *slog.Logger
}

// Sink sends messages that are beyond help to a dead-letter queue, along with why. It is safe for concurrent use.
type Sink struct {
	client SinkClient
	url    string
	fifo   bool
	cfg    SinkConfig

	mu      sync.Mutex
	largest limit
	sent    atomic.Int64
	bare    atomic.Int64
}

// limit is how large the queue's messages may be, and until when that is believed.
type limit struct {
	bytes int
	until time.Time
}

var _ worker.DeadLetterer = (*Sink)(nil)

// NewSink returns a worker's dead-letter sink, for worker.Config.DeadLetter; it makes no call. queueURL is the dead-letter queue: of
// the same type as the worker's, normally the one of its redrive policy.
//
// What it sends is the message as it was received, body and attributes, with its trace header and message group, and one attribute
// more, [ReasonAttribute]. Unlike a message that SQS's redrive policy moves, the copy is a new message: it has a MessageId of its own,
// it stays for the whole retention of the dead-letter queue, and SQS knows no source for it, so that a move task must be told the
// destination. A message with ten attributes, or with no room in its size, is sent without a reason, which is then logged.
//
// A message whose payload is in S3 is sent as a pointer to the same object. Give the sink the plain *sqs.Client then, and the worker
// the middleware or the ForWorker client of package extended; a worker with an extended client that loads payloads itself
// needs that client here.
//
// The worker deletes the message only once the copy is confirmed. If the answer is lost, the message comes back and is copied again:
// two copies have the same [Reason.ID]. On a FIFO queue SQS takes the second for the first, for five minutes.
func NewSink(c SinkClient, queueURL string, cfg SinkConfig) (*Sink, error) {
	var errs []error
	if isNil(c) {
		errs = append(errs, errNoClient)
	}
	errs = append(errs, checkURL(queueURL))
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if cfg.Describe == nil {
		cfg.Describe = error.Error
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Sink{client: c, url: queueURL, fifo: strings.HasSuffix(nameOf(queueURL), ".fifo"), cfg: cfg}, nil
}

// DeadLetter implements [worker.DeadLetterer]. When it returns nil, SQS has confirmed the copy.
func (s *Sink) DeadLetter(ctx context.Context, m *worker.Message, reason error) error {
	if nameOf(m.QueueURL) == nameOf(s.url) {
		return fmt.Errorf("dlq: message %s was received from %s, the sink's own queue: give this worker another sink", m.ID, nameOf(s.url))
	}
	if reason == nil {
		reason = errors.New("no reason given")
	}
	in := s.input(ctx, m, reason)
	_, err := s.client.SendMessage(ctx, in)
	switch {
	case err == nil:
		s.sent.Add(1)
		return nil
	case codeOf(err) == "InvalidParameterValue" && strings.Contains(err.Error(), "must be shorter"):
		return fmt.Errorf("dlq: message %s is too large for %s: set its MaximumMessageSize to the source's: %w", m.ID, nameOf(s.url), err)
	}
	return fmt.Errorf("message %s: %w", m.ID, explain(err, "SendMessage", s.url))
}

func (s *Sink) input(ctx context.Context, m *worker.Message, reason error) *sqs.SendMessageInput {
	in := &sqs.SendMessageInput{QueueUrl: &s.url, MessageBody: &m.Body, MessageAttributes: s.attributes(ctx, m, reason)}
	if m.GroupID != "" {
		in.MessageGroupId = &m.GroupID
	}
	if s.fifo {
		in.MessageDeduplicationId = aws.String(freshDeduplicationID("sink", m.ID))
		if m.GroupID == "" { // from a standard queue
			in.MessageGroupId = &m.ID
		}
	}
	if m.TraceHeader != "" {
		in.MessageSystemAttributes = traceHeader(m.TraceHeader)
	}
	return in
}

// attributes are the message's with the reason, if it has room for one.
func (s *Sink) attributes(ctx context.Context, m *worker.Message, reason error) map[string]types.MessageAttributeValue {
	_, own := readReason(m.Attributes) // of an earlier time
	if _, taken := own[ReasonAttribute]; !taken && len(own) < maxAttributes {
		room := min(s.messageLimit(ctx)-sizeOf(m.Body, own), maxReason)
		if value, ok := s.reason(m, reason).attribute(room); ok {
			all := maps.Clone(own)
			if all == nil {
				all = map[string]types.MessageAttributeValue{}
			}
			all[ReasonAttribute] = value
			return all
		}
	}
	s.bare.Add(1)
	s.cfg.Logger.Warn("a dead-lettered message has no room for its reason: it has ten attributes already, or is as large as messages may be",
		"message", m, "reason", s.cfg.Describe(reason), "attempts", m.Attempt)
	return own
}

func (s *Sink) reason(m *worker.Message, err error) Reason {
	return Reason{
		Error: s.cfg.Describe(err), Attempts: m.Attempt, Receives: m.ReceiveCount,
		SentAt: m.SentAt.UTC(), FirstAt: m.FirstReceivedAt.UTC(), LastAt: time.Now().UTC().Truncate(time.Millisecond),
		Worker: s.cfg.Worker, ID: m.ID, QueueURL: m.QueueURL, DeduplicationID: m.DeduplicationID,
	}
}

// messageLimit is the dead-letter queue's MaximumMessageSize. Where it can't be read SQS's own limit is tried.
func (s *Sink) messageLimit(ctx context.Context) int {
	s.mu.Lock()
	known := s.largest
	s.mu.Unlock()
	if time.Now().Before(known.until) {
		return known.bytes
	}
	found := limit{bytes: maxMessageSize, until: time.Now().Add(time.Minute)}
	const name = types.QueueAttributeNameMaximumMessageSize
	out, err := s.client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: &s.url, AttributeNames: []types.QueueAttributeName{name}})
	if err == nil {
		if n, err := strconv.Atoi(out.Attributes[string(name)]); err == nil && n > 0 {
			found = limit{bytes: n, until: time.Now().Add(5 * time.Minute)}
		}
	}
	s.mu.Lock()
	s.largest = found
	s.mu.Unlock()
	return found.bytes
}

// SinkStats counts since [NewSink].
type SinkStats struct {
	Sent          int64 // copies that SQS confirmed
	WithoutReason int64 // messages that had no room for it
}

// Stats returns the counts so far.
func (s *Sink) Stats() SinkStats { return SinkStats{Sent: s.sent.Load(), WithoutReason: s.bare.Load()} }

// freshDeduplicationID is the same whenever the same message is sent again for the same purpose, and no other message's: SQS
// swallows the repetition of a send whose answer was lost, and nothing else. The original's id would be swallowed for five
// minutes after it was sent first.
func freshDeduplicationID(purpose, messageID string) string {
	sum := sha256.Sum256([]byte("sqsworker/dlq/" + purpose + "\x00" + messageID))
	return hex.EncodeToString(sum[:])
}

// sizeOf is what SQS counts: the body, and name, type and value of each attribute.
func sizeOf(body string, attributes map[string]types.MessageAttributeValue) int {
	n := len(body)
	for name, v := range attributes {
		n += len(name) + len(aws.ToString(v.DataType)) + len(aws.ToString(v.StringValue)) + len(v.BinaryValue)
	}
	return n
}

func traceHeader(value string) map[string]types.MessageSystemAttributeValue {
	return map[string]types.MessageSystemAttributeValue{
		string(types.MessageSystemAttributeNameForSendsAWSTraceHeader): {DataType: aws.String("String"), StringValue: &value},
	}
}
