package extended

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// attributesSize is what SQS counts: name, type and value of each.
func attributesSize(attributes map[string]types.MessageAttributeValue) (n int) {
	for name, value := range attributes {
		n += attributeSize(name, value)
	}
	return n
}

func attributeSize(name string, value types.MessageAttributeValue) int {
	return len(name) + len(aws.ToString(value.DataType)) + len(aws.ToString(value.StringValue)) + len(value.BinaryValue)
}

// limits answers what a queue takes.
type limits struct {
	mu    sync.Mutex
	known map[string]limit
}

type limit struct {
	bytes int
	until time.Time
}

// limitFor is how long a queue's MaximumMessageSize is believed; limitForFailure how long a failure to read it.
const (
	limitFor        = 5 * time.Minute
	limitForFailure = 30 * time.Second
)

// threshold is the size above which a message to this queue goes through S3.
func (c *Client) threshold(ctx context.Context, queueURL string) int {
	if c.payloads.cfg.Threshold != QueueLimit {
		return c.payloads.cfg.Threshold
	}
	c.limits.mu.Lock()
	known, ok := c.limits.known[queueURL]
	c.limits.mu.Unlock()
	if ok && time.Now().Before(known.until) {
		return known.bytes
	}
	found := c.askLimit(ctx, queueURL)
	c.limits.mu.Lock()
	c.limits.known[queueURL] = found
	c.limits.mu.Unlock()
	return found.bytes
}

// askLimit reads MaximumMessageSize. A queue that doesn't tell is taken to be as small as queues were before 2025.
func (c *Client) askLimit(ctx context.Context, queueURL string) limit {
	const name = types.QueueAttributeNameMaximumMessageSize
	out, err := c.Client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: &queueURL, AttributeNames: []types.QueueAttributeName{name},
	})
	if err == nil {
		if n, err := strconv.Atoi(out.Attributes[string(name)]); err == nil && n > 0 {
			return limit{min(n, MaxMessage), time.Now().Add(limitFor)}
		}
	}
	c.payloads.cfg.Logger.Warn("the queue's MaximumMessageSize can't be read, using the default threshold: allow sqs:GetQueueAttributes, or set Config.Threshold",
		"threshold", DefaultThreshold, "error", code(err))
	return limit{DefaultThreshold, time.Now().Add(limitForFailure)}
}
