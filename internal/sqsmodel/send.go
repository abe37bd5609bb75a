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
	delay            int32
	groupID, dedupID *string
	trace            string // the HTTP header
}

func (s *Server) sendMessage(x *exchange, in *sqs.SendMessageInput) (reply, error) {
	o := outgoing{
		body: in.MessageBody, attrs: in.MessageAttributes, system: in.MessageSystemAttributes,
		delay: in.DelaySeconds, groupID: in.MessageGroupId, dedupID: in.MessageDeduplicationId,
		trace: x.header.Get("X-Amzn-Trace-Id"),
	}
	done, err := s.send(x.queue, o, x.now)
	if err != nil {
		return nil, err
	}
	return done, nil
}

func (s *Server) sendMessageBatch(x *exchange, in *sqs.SendMessageBatchInput) (reply, error) {
	total := 0
	for _, e := range in.Entries {
		total += messageSize(value(e.MessageBody), e.MessageAttributes)
	}
	if total > maxMessageSize {
		return nil, fail("BatchRequestTooLong", "Batch requests cannot be longer than %d bytes. You have sent %d bytes.", maxMessageSize, total)
	}
	return x.batch("SendMessageBatchRequestEntry", func(i int) (*sent, *apiError) {
		e := in.Entries[i]
		return s.send(x.queue, outgoing{
			body: e.MessageBody, attrs: e.MessageAttributes, system: e.MessageSystemAttributes,
			delay: e.DelaySeconds, groupID: e.MessageGroupId, dedupID: e.MessageDeduplicationId,
			trace: x.header.Get("X-Amzn-Trace-Id"),
		}, x.now)
	})
}

func (s *Server) send(q *queue, o outgoing, now time.Time) (*sent, *apiError) {
	if err := o.check(q); err != nil {
		return nil, err
	}
	m := &message{
		body: *o.body, md5: md5Hex(*o.body), attrs: o.attrs, attrsMD5: md5OfAttributes(o.attrs),
		groupID: value(o.groupID), dedupID: o.dedup(q), sentAt: now,
	}
	done := &sent{md5: m.md5, attrsMD5: m.attrsMD5}
	if h, ok := o.system["AWSTraceHeader"]; ok {
		m.trace = value(h.StringValue)
		done.systemMD5 = md5OfAttributes(map[string]types.MessageAttributeValue{
			"AWSTraceHeader": {DataType: h.DataType, StringValue: h.StringValue},
		})
	} else {
		m.trace = o.trace
	}
	if q.fifo {
		key := q.dedupKey(m.groupID, m.dedupID)
		if first := q.dedup.find(key, now); first != nil {
			done.id, done.sequence = first.id, first.sequence
			m.id = first.id
			s.emit(q, m, Deduplicated, now, "", 0)
			return done, nil
		}
		m.sequence = s.sequenceNumber()
		m.id = s.uuid()
		q.dedup.add(key, m, now.Add(s.cfg.DedupInterval))
	} else {
		m.id = s.uuid()
	}
	if delay := o.delayed(q); delay > 0 {
		m.state, m.visibleAt = Delayed, now.Add(delay)
	}
	s.add(q, m)
	s.emit(q, m, Sent, now, "", 0)
	done.id, done.sequence = m.id, m.sequence
	return done, nil
}

// delayed is the message's own delay, or the queue's. A FIFO queue knows only
// the queue's.
func (o outgoing) delayed(q *queue) time.Duration {
	if !q.fifo && o.delay > 0 {
		return time.Duration(o.delay) * time.Second
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
	if o.delay < 0 || o.delay > maxDelay {
		return invalidValue(o.delay, "DelaySeconds", "DelaySeconds must be >= 0 and <= 900.")
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
	case o.delay > 0:
		return invalidValue(o.delay, "DelaySeconds", "The request include parameter that is not valid for this queue type.")
	case o.dedupID != nil:
		return checkToken("MessageDeduplicationId", *o.dedupID)
	case !q.settings.contentDedup:
		return fail("InvalidParameterValue", "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly")
	}
	return nil
}
