package worker

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

const (
	defaultVisibility = 30 * time.Second // SQS's own
	// startGrace is how long a queue may be missing at the start: a new one can be used a second after its creation.
	startGrace = 3 * time.Second
)

// attributes reads the queue's attributes. It ends in an error when the worker can't work: no such queue. A passing
// failure is tried again until ctx ends; attributes that may not be read are done without.
func (r *run) attributes(ctx context.Context) (map[string]string, error) {
	in := &sqs.GetQueueAttributesInput{QueueUrl: &r.w.queueURL, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}}
	began := time.Now()
	for failures := 1; ; failures++ {
		attempt, cancel := context.WithTimeout(ctx, 10*time.Second)
		out, err := r.client.GetQueueAttributes(attempt, in, r.otherOptions...)
		cancel()
		if err == nil {
			return out.Attributes, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		switch kind := failureOf(err); {
		case kind == gone && time.Since(began) >= startGrace:
			return nil, r.hopelessf("queue", err, "check the name, the account, and that the client's Region is the queue's")
		case kind == denied && isAccess(err):
			r.log.Warn("sqs:GetQueueAttributes is denied: allow it, or set Config.Visibility; going on without the queue's settings", "error", describe(err))
			return nil, nil
		case kind == denied:
			return nil, r.hopelessf("queue", err, "check the client's credentials")
		}
		if failures&(failures-1) == 0 {
			r.log.Warn("the queue's attributes can't be read yet, trying again", "attempts", failures, "error", describe(err))
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(receiveBackoff(failures)):
		}
	}
}

// isAccess tells a missing permission from credentials that are no good at all.
func isAccess(err error) bool {
	text := describe(err)
	return strings.HasPrefix(text, "AccessDenied") || strings.HasPrefix(text, "AuthFailure")
}

// visibilityOf is the visibility that receives ask for: the configured one, or the queue's own.
func (r *run) visibilityOf(attributes map[string]string) time.Duration {
	if r.cfg.Visibility > 0 {
		return r.cfg.Visibility
	}
	seconds, err := strconv.Atoi(attributes["VisibilityTimeout"])
	switch {
	case err == nil && seconds > 0:
		return time.Duration(seconds) * time.Second
	case err == nil:
		r.log.Warn("the queue's VisibilityTimeout is 0: using 30 s; set one on the queue or in Config.Visibility")
	case attributes != nil:
		r.log.Warn("the server doesn't tell the queue's VisibilityTimeout: using 30 s")
	}
	return defaultVisibility
}

// redrivePolicy is the queue attribute of that name.
type redrivePolicy struct {
	DeadLetterTargetArn string      `json:"deadLetterTargetArn"`
	MaxReceiveCount     json.Number `json:"maxReceiveCount"`
}

func redrivePolicyOf(attributes map[string]string) (policy redrivePolicy, err error) {
	if raw := attributes["RedrivePolicy"]; raw != "" {
		err = json.Unmarshal([]byte(raw), &policy)
	}
	return policy, err
}

// checkQueue logs, once each, settings that will hurt one day.
func (r *run) checkQueue(ctx context.Context, attributes map[string]string) {
	if r.cfg.Audit != nil {
		r.audit(ctx)
		return
	}
	if attributes == nil {
		return
	}
	if total := r.cfg.handlingAtMost(r.retries); r.cfg.HeartbeatInterval == NoHeartbeat && total >= r.visibility {
		r.log.Warn("heartbeats are off and HandlerTimeout, with all retries in process, isn't below the visibility: messages will be handled twice at the same time",
			"handler_timeout", r.cfg.HandlerTimeout, "with_retries", total, "visibility", r.visibility)
	}
	if attributes["RedrivePolicy"] == "" {
		r.log.Warn("the queue has no dead-letter queue: a message that always fails comes back until its retention is over; set a RedrivePolicy")
		return
	}
	policy, err := redrivePolicyOf(attributes)
	if err != nil {
		r.log.Warn("the queue's RedrivePolicy can't be read", "error", err)
		return
	}
	if policy.MaxReceiveCount == "1" {
		r.log.Warn("the queue's maxReceiveCount is 1: a single release, crash or lost answer dead-letters a good message; set 3 or more")
	}
	r.checkRetention(ctx, attributes, policy)
}

// checkRetention looks for the retention trap: on a standard queue a dead-lettered message keeps its original age.
func (r *run) checkRetention(ctx context.Context, attributes map[string]string, policy redrivePolicy) {
	name := policy.DeadLetterTargetArn[strings.LastIndexByte(policy.DeadLetterTargetArn, ':')+1:]
	dlqURL := strings.TrimSuffix(r.w.queueURL, queueName(r.w.queueURL)) + name
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := r.client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: &dlqURL, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameMessageRetentionPeriod},
	}, r.otherOptions...)
	if err != nil {
		r.log.Debug("the dead-letter queue's attributes can't be read", "error", describe(err))
		return
	}
	source, err1 := strconv.Atoi(attributes["MessageRetentionPeriod"])
	dead, err2 := strconv.Atoi(out.Attributes["MessageRetentionPeriod"])
	if err1 == nil && err2 == nil && dead <= source && !strings.HasSuffix(name, ".fifo") {
		r.log.Warn("the dead-letter queue's retention isn't longer than the queue's: a dead-lettered message keeps its age, and may expire unseen; set it to 14 days",
			"queue_retention", time.Duration(source)*time.Second, "dlq_retention", time.Duration(dead)*time.Second)
	}
}
