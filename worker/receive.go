package worker

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"strings"
	"time"
	"unsafe"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
)

// maxReceive is the most that one ReceiveMessage returns.
const maxReceive = 10

var errCorrupt = errors.New("worker: the body doesn't match the MD5 that SQS sent with it")

// systemAttributes are what a receive asks for besides what the sender attached. SenderId is long, and few want it.
func systemAttributes(cfg Config) []types.MessageSystemAttributeName {
	names := []types.MessageSystemAttributeName{
		types.MessageSystemAttributeNameApproximateReceiveCount, types.MessageSystemAttributeNameApproximateFirstReceiveTimestamp,
		types.MessageSystemAttributeNameSentTimestamp, types.MessageSystemAttributeNameMessageGroupId,
		types.MessageSystemAttributeNameMessageDeduplicationId, types.MessageSystemAttributeNameSequenceNumber,
		types.MessageSystemAttributeNameAWSTraceHeader, types.MessageSystemAttributeNameDeadLetterQueueSourceArn,
	}
	if cfg.SenderID {
		names = append(names, types.MessageSystemAttributeNameSenderId)
	}
	return names
}

// receive makes one ReceiveMessage for n slots, passes what arrives to the dispatcher and gives back the slots that
// stayed empty. It runs in a goroutine of its own, started by the poller.
func (r *run) receive(a attempt) (got int, err error) {
	n := a.slots
	sent := time.Now()
	ctx, cancel := context.WithTimeout(r.polling, r.wait+receiveSlack)
	defer cancel()
	in := &sqs.ReceiveMessageInput{
		QueueUrl:                    &r.w.queueURL,
		MaxNumberOfMessages:         int32(n),
		WaitTimeSeconds:             int32(max(r.wait, 0) / time.Second),
		VisibilityTimeout:           int32(r.visibility / time.Second), // said, so that the lease is what we think it is
		MessageAttributeNames:       r.cfg.MessageAttributes,
		MessageSystemAttributeNames: r.systemAttributes,
	}
	if a.id != "" {
		in.ReceiveRequestAttemptId = &a.id
	}
	r.stats.receives.Add(1)
	out, err := r.client.ReceiveMessage(ctx, in, r.receiveOptions...)
	seen := r.tell.received(sent, out, err)
	if err != nil {
		r.stats.billed.Add(1)
		r.slots.give(n)
		if ambiguous(err) {
			r.stats.ambiguousReceives.Add(1)
		}
		return 0, err
	}
	got = len(out.Messages)
	r.slots.give(max(n-got, 0)) // a repeated attempt brings what the first one would have
	r.arrived(out.Messages, seen, sent, a.probe)
	return got, nil
}

// arrived takes in the messages of one receive, each on its own.
func (r *run) arrived(messages []types.Message, seen traces, sent time.Time, probe bool) {
	now := time.Now()
	granted := r.leaseStart(sent, now)
	r.stats.received.Add(int64(len(messages)))
	r.stats.billed.Add(billed(sizeOf(messages)))
	if r.fifo {
		r.order.Lock()
		defer r.order.Unlock()
	}
	batch := make([]*delivery, 0, len(messages))
	deliveries := make([]delivery, len(messages)) // one allocation for all
	for i := range messages {
		in, d := &messages[i], &deliveries[i]
		d.run, d.granted, d.corrupt, d.probe, d.trace = r, granted, corrupt(in), probe, seen.of(i)
		d.message.fill(in, r.w.queueURL, now)
		d.id, d.receives, d.group = d.message.ID, d.message.ReceiveCount, d.message.GroupID
		if r.admit(d, aws.ToString(in.ReceiptHandle)) {
			batch = append(batch, d)
		}
	}
	if probe && len(batch) == 0 {
		r.breaker.probed()
	}
	if !probe && r.breaker.isOpen() { // a receive that was open when the breaker opened
		r.putOffAll(batch, len(batch))
		return
	}
	r.dispatcher.push(batch)
}

// leaseStart is when the leases of a receive began. What is certain is that they did not before the request was sent.
// But a receive may have waited for its messages, longer even than the visibility lasts: then it is taken that the answer
// was on its way for at most a third of the visibility, which makes the first renewal due at once, so that SQS confirms it.
// An answer that came later than the wait can explain was held up, and its messages may be somebody else's.
func (r *run) leaseStart(sent, arrived time.Time) time.Time {
	took, transit := arrived.Sub(sent), r.visibility/3
	if took <= transit || took > max(r.wait, 0)+transit {
		return sent
	}
	return arrived.Add(-transit)
}

// admit reports whether the message is to be run; otherwise it has seen to it.
func (r *run) admit(d *delivery, handle string) bool {
	what, older := r.registry.admit(d, handle)
	if older != nil {
		older.lease.Supersede() // its release would give away what this receive holds
	}
	switch what {
	case admitAdopt:
		r.stats.duplicates.Add(1)
		r.slots.give(1)
		return false
	case admitQueue:
		r.stats.duplicates.Add(1)
		return false
	case admitDelete:
		r.stats.suppressed.Add(1)
		r.delete(d)
		r.slots.give(1)
		return false
	}
	r.noteNearLimit(d)
	return true
}

// noteNearLimit says when the redrive policy will take a message next time although this worker has seen it fail less often:
// deploys, lost Spot instances and looks in the console count as receives too.
func (r *run) noteNearLimit(d *delivery) {
	if m := &d.message; r.maxReceiveCount > 0 && m.ReceiveCount >= r.maxReceiveCount && m.Attempt < m.ReceiveCount {
		d.nearLimit = true
		r.stats.nearLimit.Add(1)
		r.log.Warn("the next receive of this message dead-letters it, though not all of its receives were failures", "message", m,
			"max_receive_count", r.maxReceiveCount, "attempt", m.Attempt)
	}
}

// noteUnfailed says when a message is given back by a drain, and that used up one of its last two receives: it nears the
// dead-letter queue without having failed. What became of it in other workers this one can't know, so it speaks of this receive.
func (r *run) noteUnfailed(d *delivery) {
	left := max(r.maxReceiveCount-d.receives, 0)
	if r.maxReceiveCount == 0 || left > 1 || d.nearLimit {
		return
	}
	d.nearLimit = true
	r.stats.nearLimit.Add(1)
	r.log.Warn("a message that didn't fail is given back near its redrive limit: raise maxReceiveCount if stops are this frequent", "message", d,
		"max_receive_count", r.maxReceiveCount, "receives_left", left)
}

// corrupt checks the body as the SDK would, which fails the whole receive for one bad message.
func corrupt(m *types.Message) bool {
	if m.Body == nil || m.MD5OfBody == nil {
		return false
	}
	sum := md5.Sum(unsafe.Slice(unsafe.StringData(*m.Body), len(*m.Body))) // read only; a conversion would copy the body
	var digits [2 * md5.Size]byte
	hex.Encode(digits[:], sum[:])
	return string(digits[:]) != *m.MD5OfBody
}

// ambiguous tells whether SQS may have handed out messages in an answer that never arrived; they come back when their
// visibility runs out.
func ambiguous(err error) bool {
	var api smithy.APIError
	return !errors.As(err, &api)
}

// describe is an error of SQS in one line: its code, and the first line of its text. Further lines would repeat the request,
// credentials included.
func describe(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		text, _, _ := strings.Cut(api.ErrorMessage(), "\n")
		return api.ErrorCode() + ": " + text
	}
	return err.Error()
}
