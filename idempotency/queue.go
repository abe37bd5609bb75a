package idempotency

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// QueueClient is what [Guard.CheckQueue] calls. *sqs.Client has it.
type QueueClient interface {
	GetQueueAttributes(context.Context, *sqs.GetQueueAttributesInput, ...func(*sqs.Options)) (*sqs.GetQueueAttributesOutput, error)
}

// CheckQueue looks, at a service's start, whether records are kept for longer than a message can live: its time in the queue,
// then in its dead-letter queue, from which a redrive brings it back. A dead-letter queue whose attributes may not be read is
// taken to keep messages for 14 days, the longest that SQS does.
func (g *Guard) CheckQueue(ctx context.Context, client QueueClient, queueURL string) error {
	attributes, err := queueAttributes(ctx, client, queueURL)
	if err != nil {
		return fmt.Errorf("idempotency: queue %s's attributes can't be read (allow sqs:GetQueueAttributes): %w", queueURL, err)
	}
	total := retentionOf(attributes)
	text := fmt.Sprintf("%v in the queue", total)
	if name := deadLetterQueue(attributes); name != "" {
		dead := queueRetention
		if a, err := queueAttributes(ctx, client, queueURL[:strings.LastIndexByte(queueURL, '/')+1]+name); err == nil {
			dead = retentionOf(a)
		}
		total += dead
		text += fmt.Sprintf(" and %v in its dead-letter queue %s", dead, name)
	}
	if g.cfg.Retention < total {
		return fmt.Errorf("idempotency: Config.Retention is %v, but a message of %s can live for %s: set at least %v, or a duplicate can run after its record is gone", g.cfg.Retention, queueURL, text, total)
	}
	return nil
}

func queueAttributes(ctx context.Context, client QueueClient, url string) (map[string]string, error) {
	out, err := client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}})
	if err != nil {
		return nil, err
	}
	return out.Attributes, nil
}

func retentionOf(attributes map[string]string) time.Duration {
	seconds, err := strconv.Atoi(attributes[string(types.QueueAttributeNameMessageRetentionPeriod)])
	if err != nil || seconds <= 0 {
		return queueRetention
	}
	return time.Duration(seconds) * time.Second
}

// deadLetterQueue is the name of the queue in the redrive policy, empty without one.
func deadLetterQueue(attributes map[string]string) string {
	var policy struct {
		DeadLetterTargetArn string `json:"deadLetterTargetArn"`
	}
	if json.Unmarshal([]byte(attributes[string(types.QueueAttributeNameRedrivePolicy)]), &policy) != nil {
		return ""
	}
	return policy.DeadLetterTargetArn[strings.LastIndexByte(policy.DeadLetterTargetArn, ':')+1:]
}

// queueRetention is the longest that SQS keeps a message.
const queueRetention = 14 * 24 * time.Hour
