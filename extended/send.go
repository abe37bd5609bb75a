package extended

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// SendMessage sends a message, its payload through S3 if body and attributes together are above [Config.Threshold]. The
// digests in the answer are of the message as it was given, with the context of the span in ctx if there is one: see
// [worker.Injector], which keeps to SQS's limits and to the threshold.
//
// What SQS would refuse is refused before any call ([ErrInvalid], all reasons at once). If SQS refuses the message, its
// object is removed again. If the answer was lost, SQS may have accepted the message: then the object is kept, and an
// [OrphanError] is joined to the error. On a FIFO queue, a message without a deduplication id gets the SHA-256 of its body as
// content-based deduplication would make it, because the pointer is another each time.
func (c *Client) SendMessage(ctx context.Context, in *sqs.SendMessageInput, optFns ...func(*sqs.Options)) (*sqs.SendMessageOutput, error) {
	if in == nil {
		return c.Client.SendMessage(ctx, in, optFns...)
	}
	in = c.traced(ctx, in)
	queueURL := aws.ToString(in.QueueUrl)
	m := outgoing{body: aws.ToString(in.MessageBody), attributes: in.MessageAttributes, delay: in.DelaySeconds, fifo: isFIFO(queueURL)}
	through, err := c.route(ctx, queueURL, &m)
	if err != nil {
		return nil, err
	}
	if !through {
		return c.Client.SendMessage(ctx, in, optFns...)
	}
	at, err := c.payloads.put(ctx, m.body)
	if err != nil {
		return nil, err
	}
	sum := func() string { return deduplicationID(m.body) }
	out, err := c.sendPointer(ctx, in, at, sum, optFns)
	if out != nil {
		out.MD5OfMessageBody = bodyMD5(m.body)
	}
	return out, err
}

// route decides whether a message goes through S3, and refuses what SQS would.
func (c *Client) route(ctx context.Context, queueURL string, m *outgoing) (throughS3 bool, err error) {
	threshold := c.threshold(ctx, queueURL)
	throughS3 = c.payloads.cfg.AlwaysS3 || len(m.body)+attributesSize(m.attributes) > threshold
	if err := m.invalid(throughS3); err != nil {
		return false, err
	}
	if throughS3 {
		return true, c.pointerFits(m.attributes, int64(len(m.body)), threshold)
	}
	return false, nil
}

// pointerFits checks that a message isn't too large by its attributes alone.
func (c *Client) pointerFits(attributes map[string]types.MessageAttributeValue, size int64, threshold int) error {
	most := MaxMessage
	if c.payloads.cfg.Threshold == QueueLimit {
		most = threshold
	}
	if n := c.pointerSize(attributes, size); n > most {
		return fmt.Errorf("%w: the message's attributes and pointer have %d bytes, SQS takes %d: move what is large into the body", ErrTooLarge, n, most)
	}
	return nil
}

// pointerSize is how large a message is when its payload goes through S3, our own attribute included.
func (c *Client) pointerSize(attributes map[string]types.MessageAttributeValue, size int64) int {
	cfg := &c.payloads.cfg
	body := cfg.Form.body(Pointer{Bucket: cfg.Bucket, Key: cfg.KeyPrefix})
	const uuid = 36
	return len(body) + uuid + attributesSize(attributes) + attributeSize(cfg.Form.attribute(), cfg.Form.size(size))
}

// sendPointer sends the message of a payload that has been stored.
func (c *Client) sendPointer(ctx context.Context, in *sqs.SendMessageInput, at Pointer, sum func() string, optFns []func(*sqs.Options)) (*sqs.SendMessageOutput, error) {
	form := c.payloads.cfg.Form
	message := *in
	message.MessageBody = aws.String(form.body(at))
	message.MessageAttributes = with(in.MessageAttributes, form.attribute(), form.size(at.Size))
	if isFIFO(aws.ToString(in.QueueUrl)) && in.MessageDeduplicationId == nil {
		message.MessageDeduplicationId = aws.String(sum())
	}
	var watch attempts
	out, err := c.Client.SendMessage(ctx, &message, watch.options(optFns)...)
	if err != nil {
		return nil, errors.Join(err, c.payloads.notSent(ctx, at, watch.mayHaveBeenTaken()))
	}
	out.MD5OfMessageAttributes = attributesMD5(in.MessageAttributes)
	return out, nil
}

// notSent sees to the object of a message whose send failed.
func (p *payloads) notSent(ctx context.Context, at Pointer, uncertain bool) error {
	if uncertain {
		return p.orphaned(at, ErrUncertain)
	}
	return p.compensate(ctx, at)
}

// with copies attributes and adds one.
func with(attributes map[string]types.MessageAttributeValue, name string, value types.MessageAttributeValue) map[string]types.MessageAttributeValue {
	all := make(map[string]types.MessageAttributeValue, len(attributes)+1)
	maps.Copy(all, attributes)
	all[name] = value
	return all
}

func isFIFO(queueURL string) bool { return strings.HasSuffix(queueURL, ".fifo") }

// deduplicationID is what content-based deduplication goes by: the SHA-256 of the body, and of nothing else.
func deduplicationID(body string) string {
	sum := sha256.Sum256([]byte(body))
	return hex.EncodeToString(sum[:])
}
