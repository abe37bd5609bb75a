package sqsmodel

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// outgoing is a message on its way in, alone or from a batch.
type outgoing struct {
	body             *string
	attrs            map[string]types.MessageAttributeValue
	system           map[string]types.MessageSystemAttributeValue
	delay            *int32
	groupID, dedupID *string
	trace            string // the HTTP header
}

// sendInput and sendBatchInput tell a DelaySeconds that was left out, for which
// the queue's delay holds, from 0.
type sendInput struct {
	sqs.SendMessageInput
	DelaySeconds *int32
}

type sendBatchInput struct {
	sqs.SendMessageBatchInput
	Entries []sendEntry
}

type sendEntry struct {
	types.SendMessageBatchRequestEntry
	DelaySeconds *int32
}

func (s *Server) sendMessage(x *exchange, in *sendInput) (reply, error) {
	done, err := s.send(x.queue, outgoing{
		body: in.MessageBody, attrs: in.MessageAttributes, system: in.MessageSystemAttributes,
		delay: in.DelaySeconds, groupID: in.MessageGroupId, dedupID: in.MessageDeduplicationId,
		trace: x.header.Get("X-Amzn-Trace-Id"),
	}, x.now)
	if err != nil {
		return nil, err
	}
	return done, nil
}

func (s *Server) sendMessageBatch(x *exchange, in *sendBatchInput) (reply, error) {
	if err := checkSendBatch(x, in); err != nil {
		return nil, err
	}
	return x.batch(func(i int) (*sent, *apiError) {
		e := in.Entries[i]
		return s.send(x.queue, outgoing{
			body: e.MessageBody, attrs: e.MessageAttributes, system: e.MessageSystemAttributes,
			delay: e.DelaySeconds, groupID: e.MessageGroupId, dedupID: e.MessageDeduplicationId,
			trace: x.header.Get("X-Amzn-Trace-Id"),
		}, x.now)
	}), nil
}

// checkSendBatch has what fails the whole call; on a FIFO queue that is also an
// entry without its group or deduplication id.
func checkSendBatch(x *exchange, in *sendBatchInput) *apiError {
	if err := checkBatch("SendMessageBatchRequestEntry", x.entryIDs); err != nil {
		return err
	}
	total := 0
	for _, e := range in.Entries {
		total += messageSize(value(e.MessageBody), e.MessageAttributes)
		if !x.queue.fifo {
			continue
		}
		if e.MessageGroupId == nil {
			return fail("InvalidParameterValue", "The request must contain the parameter MessageGroupId.")
		}
		if e.MessageDeduplicationId == nil && !x.queue.settings.contentDedup {
			return fail("InvalidParameterValue", noDedupID)
		}
	}
	if total > maxMessageSize {
		return fail("BatchRequestTooLong", "Batch requests cannot be longer than %d bytes. You have sent %d bytes.", maxMessageSize, total)
	}
	return nil
}

const noDedupID = "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"

func (s *Server) send(q *queue, o outgoing, now time.Time) (*sent, *apiError) {
	if err := o.check(q); err != nil {
		return nil, err
	}
	m := &message{
		body: *o.body, md5: md5Hex(*o.body), attrs: o.attrs, attrsMD5: md5OfAttributes(o.attrs),
		groupID: value(o.groupID), dedupID: o.dedup(q), sentAt: now,
	}
	done := &sent{md5: m.md5, attrsMD5: m.attrsMD5}
	m.trace, done.systemMD5 = o.traceHeader()
	if first := q.duplicateOf(m, now); first != nil {
		m.id, done.id, done.sequence = first.id, first.id, first.sequence
		s.emit(q, m, Deduplicated, now, "", 0)
		return done, nil
	}
	m.id = s.uuid()
	if q.fifo {
		m.sequence = s.sequenceNumber()
		q.dedup.add(q.dedupKey(m.groupID, m.dedupID), m, now.Add(s.cfg.DedupInterval))
	}
	if delay := o.delayed(q); delay > 0 {
		m.state, m.visibleAt = Delayed, now.Add(delay)
	}
	s.add(q, m)
	s.emit(q, m, Sent, now, "", 0)
	done.id, done.sequence = m.id, m.sequence
	return done, nil
}

// traceHeader is the message's AWSTraceHeader, or else the call's own header,
// which SQS copies into it.
func (o outgoing) traceHeader() (trace, systemMD5 string) {
	h, ok := o.system["AWSTraceHeader"]
	if !ok {
		return o.trace, ""
	}
	return value(h.StringValue), md5OfAttributes(map[string]types.MessageAttributeValue{
		"AWSTraceHeader": {DataType: h.DataType, StringValue: h.StringValue},
	})
}

// delayed is the message's own delay, or the queue's. A FIFO queue knows only
// the queue's.
func (o outgoing) delayed(q *queue) time.Duration {
	if !q.fifo && o.delay != nil {
		return time.Duration(*o.delay) * time.Second
	}
	return q.settings.delay
}

func (o outgoing) dedup(q *queue) string {
	if o.dedupID != nil {
		return *o.dedupID
	}
	if q.fifo && q.settings.contentDedup {
		sum := sha256.Sum256([]byte(*o.body))
		return hex.EncodeToString(sum[:])
	}
	return ""
}

func (o outgoing) check(q *queue) *apiError {
	if value(o.body) == "" {
		return missing("MessageBody")
	}
	if err := checkAttributes(o.attrs); err != nil {
		return err
	}
	if messageSize(*o.body, o.attrs) > q.settings.maxSize {
		return fail("InvalidParameterValue", "One or more parameters are invalid. Reason: Message must be shorter than %d bytes.", q.settings.maxSize)
	}
	if err := checkCharacters(*o.body); err != nil {
		return err
	}
	for _, name := range sortedKeys(o.system) {
		if err := checkSystemAttribute(name, o.system[name]); err != nil {
			return err
		}
	}
	if d := value(o.delay); d < 0 || d > maxDelay {
		return invalidValue(d, "DelaySeconds", "DelaySeconds must be >= 0 and <= 900.")
	}
	return o.checkFIFO(q)
}

func checkSystemAttribute(name string, v types.MessageSystemAttributeValue) *apiError {
	if name != "AWSTraceHeader" {
		return fail("InvalidParameterValue", "Message system attribute name '%s' is invalid.", name)
	}
	if value(v.DataType) != "String" || value(v.StringValue) == "" {
		return fail("InvalidParameterValue", "The message system attribute 'AWSTraceHeader' must contain a non-empty value of type 'String'.")
	}
	return checkCharacters(*v.StringValue)
}

func (o outgoing) checkFIFO(q *queue) *apiError {
	if o.groupID != nil {
		if err := checkToken("MessageGroupId", *o.groupID); err != nil {
			return err
		}
	}
	if !q.fifo {
		if o.dedupID != nil {
			return invalidValue(*o.dedupID, "MessageDeduplicationId", "The request includes a parameter that is not valid for this queue type.")
		}
		return nil
	}
	switch {
	case o.groupID == nil:
		return missing("MessageGroupId")
	case value(o.delay) > 0:
		return invalidValue(*o.delay, "DelaySeconds", "The request include parameter that is not valid for this queue type.")
	case o.dedupID != nil:
		return checkToken("MessageDeduplicationId", *o.dedupID)
	case !q.settings.contentDedup:
		return fail("InvalidParameterValue", noDedupID)
	}
	return nil
}
