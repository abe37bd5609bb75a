package dlq

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// attributesClient reads a queue's settings. *sqs.Client has it.
type attributesClient interface {
	GetQueueAttributes(context.Context, *sqs.GetQueueAttributesInput, ...func(*sqs.Options)) (*sqs.GetQueueAttributesOutput, error)
}

// queue is a queue's settings as SQS tells them.
type queue struct {
	url, arn, name string
	fifo           bool
	attributes     map[string]string
}

// readQueue asks for all of them: GetQueueAttributes.
func readQueue(ctx context.Context, c attributesClient, url string) (*queue, error) {
	out, err := c.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: &url, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll},
	})
	if err != nil {
		return nil, err
	}
	q := &queue{url: url, arn: out.Attributes["QueueArn"], name: nameOf(url), attributes: out.Attributes}
	q.fifo = strings.HasSuffix(q.name, ".fifo")
	if q.arn == "" {
		return nil, fmt.Errorf("dlq: queue %s: the server doesn't tell its QueueArn", url)
	}
	return q, nil
}

func (q *queue) seconds(attribute string) time.Duration {
	n, _ := strconv.Atoi(q.attributes[attribute])
	return time.Duration(n) * time.Second
}

func (q *queue) retention() time.Duration { return q.seconds("MessageRetentionPeriod") }

// counts are the queue's approximate numbers of messages.
func (q *queue) counts() Counts {
	n := func(attribute string) int64 {
		v, _ := strconv.ParseInt(q.attributes[attribute], 10, 64)
		return v
	}
	return Counts{
		Visible: n("ApproximateNumberOfMessages"), InFlight: n("ApproximateNumberOfMessagesNotVisible"),
		Delayed: n("ApproximateNumberOfMessagesDelayed"),
	}
}

// Counts are a queue's numbers of messages as SQS estimates them. They lag: for about a minute after the last change, more on a large
// queue.
type Counts struct {
	Visible  int64 `json:"visible"`
	InFlight int64 `json:"inFlight"`
	Delayed  int64 `json:"delayed"`
}

// redrivePolicy is the queue attribute of that name. AWS takes maxReceiveCount as a number or a string.
type redrivePolicy struct {
	DeadLetterTargetArn string
	MaxReceiveCount     int
}

// defaultMaxReceiveCount is what SQS takes when the policy doesn't say (SetQueueAttributes in the SQS API reference).
const defaultMaxReceiveCount = 10

// redrivePolicy returns nil when the queue has none.
func (q *queue) redrivePolicy() (*redrivePolicy, error) {
	raw := q.attributes["RedrivePolicy"]
	if raw == "" {
		return nil, nil
	}
	var in struct {
		DeadLetterTargetArn string          `json:"deadLetterTargetArn"`
		MaxReceiveCount     json.RawMessage `json:"maxReceiveCount"`
	}
	if err := json.Unmarshal([]byte(raw), &in); err != nil {
		return nil, fmt.Errorf("isn't JSON: %w", err)
	}
	p := &redrivePolicy{DeadLetterTargetArn: in.DeadLetterTargetArn, MaxReceiveCount: defaultMaxReceiveCount}
	if len(in.MaxReceiveCount) > 0 {
		n, err := strconv.Atoi(strings.Trim(string(in.MaxReceiveCount), `"`))
		if err != nil {
			return nil, fmt.Errorf("its maxReceiveCount, %s, isn't a number", in.MaxReceiveCount)
		}
		p.MaxReceiveCount = n
	}
	if _, ok := parseARN(p.DeadLetterTargetArn); !ok {
		return nil, fmt.Errorf("its deadLetterTargetArn, %q, isn't a queue's ARN", p.DeadLetterTargetArn)
	}
	return p, nil
}

// allowPolicy is the attribute RedriveAllowPolicy of a dead-letter queue: who may name it as theirs.
type allowPolicy struct {
	Permission string   `json:"redrivePermission"`
	Sources    []string `json:"sourceQueueArns,omitempty"`
}

const (
	allowAll = "allowAll" // SQS's default: every queue of the account in the Region
	denyAll  = "denyAll"
	byQueue  = "byQueue"

	maxAllowedSources = 10 // SetQueueAttributes in the SQS API reference
)

func (q *queue) allowPolicy() (p allowPolicy, err error) {
	p.Permission = allowAll
	if raw := q.attributes["RedriveAllowPolicy"]; raw != "" {
		err = json.Unmarshal([]byte(raw), &p)
	}
	return p, err
}

func (p allowPolicy) allows(sourceARN string) bool {
	switch p.Permission {
	case denyAll:
		return false
	case byQueue:
		for _, s := range p.Sources {
			if s == sourceARN {
				return true
			}
		}
		return false
	}
	return true
}

// arn is a queue's Amazon Resource Name, taken apart.
type arn struct{ partition, region, account, name string }

func parseARN(s string) (arn, bool) {
	parts := strings.Split(s, ":")
	if len(parts) != 6 || parts[0] != "arn" || parts[2] != "sqs" || parts[5] == "" {
		return arn{}, false
	}
	return arn{partition: parts[1], region: parts[3], account: parts[4], name: parts[5]}, true
}

// nameOf is the queue's name in its URL or ARN.
func nameOf(urlOrARN string) string {
	urlOrARN = strings.TrimRight(urlOrARN, "/")
	return urlOrARN[strings.LastIndexAny(urlOrARN, "/:")+1:]
}

// siblingURL is the URL of another queue of the same account and Region, as which a dead-letter queue and its sources always are.
func siblingURL(url, name string) string {
	url = strings.TrimRight(url, "/")
	return url[:strings.LastIndexByte(url, '/')+1] + name
}

// sourcesClient tells whose dead-letter queue a queue is. *sqs.Client has it.
type sourcesClient interface {
	ListDeadLetterSourceQueues(context.Context, *sqs.ListDeadLetterSourceQueuesInput, ...func(*sqs.Options)) (*sqs.ListDeadLetterSourceQueuesOutput, error)
}

// sourcesOf returns the URLs of the queues whose redrive policies name this one: ListDeadLetterSourceQueues.
func sourcesOf(ctx context.Context, c sourcesClient, url string) ([]string, error) {
	var urls []string
	in := &sqs.ListDeadLetterSourceQueuesInput{QueueUrl: &url, MaxResults: aws.Int32(1000)}
	for {
		out, err := c.ListDeadLetterSourceQueues(ctx, in)
		if err != nil {
			return nil, err
		}
		urls = append(urls, out.QueueUrls...)
		if aws.ToString(out.NextToken) == "" {
			return urls, nil
		}
		in.NextToken = out.NextToken
	}
}
