package dlq

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// maxRetention is the longest that SQS keeps a message (SetQueueAttributes in the SQS API reference).
const maxRetention = 14 * 24 * time.Hour

// checkQueue looks at what concerns the queue alone.
func (a *audit) checkQueue() {
	if a.source.seconds("ReceiveMessageWaitTimeSeconds") == 0 && !a.waits {
		a.add(ShortPolling, Warning, a.source.name, "ReceiveMessageWaitTimeSeconds is 0: a consumer that doesn't say otherwise polls short, which costs a request each time and may not see messages that are there",
			"set it to 20")
	}
	visibility := a.visibility
	if visibility == 0 {
		visibility = a.source.seconds("VisibilityTimeout")
	}
	if a.cfg.NoHeartbeats && a.cfg.HandlerTimeout >= visibility && a.cfg.HandlerTimeout > 0 {
		a.add(VisibilityShort, Critical, a.source.name,
			fmt.Sprintf("handlers may take %v, the visibility is %v and heartbeats are off: a message is handled twice at the same time, and is dead-lettered though it succeeds", a.cfg.HandlerTimeout, visibility),
			"set VisibilityTimeout above the handler timeout (six times it, for retries), or turn heartbeats on")
	}
}

// checkPolicy looks at the redrive policy and at the queue that it names.
func (a *audit) checkPolicy(ctx context.Context) error {
	policy, err := a.source.redrivePolicy()
	if err != nil {
		a.add(RedrivePolicyUnreadable, Critical, a.source.name, "the RedrivePolicy can't be read: "+err.Error(), "set it again")
		return nil
	}
	if policy == nil {
		return a.checkNoPolicy(ctx)
	}
	a.checkMaxReceiveCount(policy.MaxReceiveCount)
	if a.source.fifo {
		a.add(FIFOOrder, Info, a.source.name, "a FIFO queue with a dead-letter queue: when a message is moved there, those behind it in its group are delivered without it",
			"if a group must stop at its first failure, remove the redrive policy and repair in place; else make handlers bear a gap")
	}
	if !a.checkTarget(policy.DeadLetterTargetArn) {
		return nil
	}
	a.dead, err = readQueue(ctx, a.client, siblingURL(a.url, nameOf(policy.DeadLetterTargetArn)))
	switch {
	case isMissing(err):
		a.add(Missing, Critical, nameOf(policy.DeadLetterTargetArn), "the redrive policy names "+policy.DeadLetterTargetArn+", which doesn't exist: messages that used up their receives stay in the queue until they expire",
			"create it, or name another queue; dlq.Ensure does")
		return nil
	case a.denied(err, "sqs:GetQueueAttributes", policy.DeadLetterTargetArn):
		return nil
	case err != nil:
		return explain(err, "GetQueueAttributes", policy.DeadLetterTargetArn)
	}
	a.checkAllowPolicy()
	a.checkRetention()
	a.checkChain()
	return a.checkMessages(ctx)
}

// checkNoPolicy: for a dead-letter queue it is as it should be.
func (a *audit) checkNoPolicy(ctx context.Context) error {
	sources, err := sourcesOf(ctx, a.client, a.url)
	switch {
	case a.denied(err, "sqs:ListDeadLetterSourceQueues", a.source.arn):
	case err != nil:
		return explain(err, "ListDeadLetterSourceQueues", a.url)
	case len(sources) > 0:
		names := make([]string, len(sources))
		for i, url := range sources {
			names[i] = nameOf(url)
		}
		a.add(IsDeadLetterQueue, Info, a.source.name, "it is the dead-letter queue of "+strings.Join(names, ", "), "audit those")
		return nil
	}
	a.add(NoRedrivePolicy, Warning, a.source.name, "no redrive policy: a message that always fails comes back until it expires, and is then gone",
		"give the queue a dead-letter queue with a maxReceiveCount of 5; dlq.Ensure does")
	return nil
}

func (a *audit) checkMaxReceiveCount(n int) {
	seen := fmt.Sprintf("maxReceiveCount is %d", n)
	switch {
	case n <= 1:
		a.add(MaxReceiveCountOne, Critical, a.source.name, seen+": one crash, release or lost answer dead-letters a good message", "set 5")
	case n < 3:
		a.add(MaxReceiveCountLow, Warning, a.source.name, seen+": receives that are no failures (a deploy, a Spot interruption, a look in the console) dead-letter good messages", "set 5; at least 3")
	case n > 10:
		a.add(MaxReceiveCountHigh, Warning, a.source.name, seen+": a message that always fails costs that many runs, and is found late", "set 5; at most 10")
	}
}

// checkTarget holds the dead-letter queue's ARN against the source's: same type, account and Region. SQS refuses to set others;
// servers that don't, and policies from before it did, never move a message.
func (a *audit) checkTarget(target string) (same bool) {
	is, _ := parseARN(target) // redrivePolicy has
	want, ok := parseARN(a.source.arn)
	if !ok {
		return true
	}
	before := len(a.findings)
	const dead = ": messages that used up their receives aren't moved there"
	if fifo := strings.HasSuffix(is.name, ".fifo"); fifo != a.source.fifo {
		a.add(OtherType, Critical, is.name, fmt.Sprintf("the queue is %s, its dead-letter queue %s is %s", kindOf(a.source.fifo), is.name, kindOf(fifo))+dead, "name a dead-letter queue of the same type")
	}
	if is.account != want.account {
		a.add(OtherAccount, Critical, is.name, fmt.Sprintf("the queue is in account %s, its dead-letter queue in %s", want.account, is.account)+dead, "name a dead-letter queue of the same account")
	}
	if is.region != want.region {
		a.add(OtherRegion, Critical, is.name, fmt.Sprintf("the queue is in %s, its dead-letter queue in %s", want.region, is.region)+dead, "name a dead-letter queue of the same Region")
	}
	return len(a.findings) == before
}

func kindOf(fifo bool) string {
	if fifo {
		return "FIFO"
	}
	return "standard"
}

func (a *audit) checkAllowPolicy() {
	policy, err := a.dead.allowPolicy()
	switch {
	case err != nil:
		a.add(RedriveDenied, Critical, a.dead.name, "the RedriveAllowPolicy can't be read: "+err.Error(), "set it again")
	case !policy.allows(a.source.arn):
		a.add(RedriveDenied, Critical, a.dead.name, fmt.Sprintf("the RedriveAllowPolicy is %s and doesn't allow %s", policy.Permission, a.source.arn),
			"add the queue to its sourceQueueArns with redrivePermission byQueue; dlq.Ensure does")
	}
}

// checkRetention looks for the retention trap (Using dead-letter queues in the SQS developer guide).
func (a *audit) checkRetention() {
	source, dead := a.source.retention(), a.dead.retention()
	switch {
	case !a.source.fifo && dead <= source:
		a.add(RetentionTrap, Critical, a.dead.name,
			fmt.Sprintf("it keeps messages for %s, the queue for %s, and on a standard queue a message's age counts from its first sending: one that waited long is deleted soon after it was dead-lettered, or at once", days(dead), days(source)),
			"set the dead-letter queue's MessageRetentionPeriod to 1209600 (14 days), and the queue's below it")
	case dead < maxRetention:
		how := "counting from the first sending"
		if a.source.fifo {
			how = "counting from the move"
		}
		a.add(ShortRetention, Info, a.dead.name, fmt.Sprintf("it keeps messages for %s, %s", days(dead), how), "set MessageRetentionPeriod to 1209600 (14 days): time to find out and to repair")
	}
}

// days is a retention in words.
func days(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d == day:
		return "1 day"
	case d >= day && d%day == 0:
		return fmt.Sprintf("%d days", d/day)
	case d >= day:
		return fmt.Sprintf("%.1f days", float64(d)/float64(day))
	}
	return d.String()
}

func (a *audit) checkChain() {
	if policy, _ := a.dead.redrivePolicy(); policy != nil {
		a.add(Chained, Warning, a.dead.name, fmt.Sprintf("the dead-letter queue has a redrive policy itself: looking at a message counts as a receive, and after %d of them, those before included, it is moved to %s", policy.MaxReceiveCount, nameOf(policy.DeadLetterTargetArn)),
			"remove the dead-letter queue's RedrivePolicy")
	}
}

// checkMessages looks at what is in the dead-letter queue.
func (a *audit) checkMessages(ctx context.Context) error {
	counts := a.dead.counts()
	if counts.Visible+counts.InFlight+counts.Delayed == 0 {
		return nil
	}
	a.add(Waiting, Warning, a.dead.name, fmt.Sprintf("about %d messages are in it, of which %d in flight", counts.Visible+counts.InFlight+counts.Delayed, counts.InFlight),
		"look at them, repair, and redrive them; alarm on ApproximateNumberOfMessagesVisible > 0")
	if a.cfg.Look == NoLook {
		return nil
	}
	now := time.Now()
	var soon []Expiring
	for item, err := range Peek(ctx, a.client, a.dead.url, PeekConfig{Limit: a.cfg.Look}) {
		switch {
		case a.denied(err, "sqs:ReceiveMessage", a.dead.arn):
			return nil
		case item == nil:
			return err
		}
		if left := item.ExpiresAt.Sub(now); left <= a.cfg.Soon {
			soon = append(soon, Expiring{ID: item.ID, SentAt: item.SentAt, ExpiresAt: item.ExpiresAt, Left: max(left, 0)})
		}
	}
	if len(soon) == 0 {
		return nil
	}
	slices.SortFunc(soon, func(a, b Expiring) int { return a.ExpiresAt.Compare(b.ExpiresAt) })
	a.add(ExpiringSoon, Critical, a.dead.name, fmt.Sprintf("%d messages expire within %v, the first one, %s, in %v", len(soon), a.cfg.Soon, soon[0].ID, soon[0].Left.Round(time.Second)),
		"redrive them (that starts their retention anew), or save them, before that")
	a.findings[len(a.findings)-1].Expiring = soon
	return nil
}

// probe tries permissions with calls that can't have an effect.
func (a *audit) probe(ctx context.Context) {
	a.probeSettling(ctx, a.source)
	if !a.cfg.Operator || a.dead == nil {
		return
	}
	a.probeSettling(ctx, a.dead)
	_, err := a.client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: &a.url, Entries: []types.SendMessageBatchRequestEntry{}})
	a.denied(err, "sqs:SendMessage", a.source.arn)
	_, err = a.client.ListMessageMoveTasks(ctx, &sqs.ListMessageMoveTasksInput{SourceArn: &a.dead.arn})
	a.denied(err, "sqs:ListMessageMoveTasks", a.dead.arn)
	_, err = sourcesOf(ctx, a.client, a.dead.url)
	a.denied(err, "sqs:ListDeadLetterSourceQueues", a.dead.arn)
}

// probeSettling tries what a holder of a message does in the end, with a receipt handle that doesn't exist.
func (a *audit) probeSettling(ctx context.Context, q *queue) {
	handle := aws.String("sqsworker-permission-probe")
	_, err := a.client.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: &q.url, ReceiptHandle: handle})
	a.denied(err, "sqs:DeleteMessage", q.arn)
	_, err = a.client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{QueueUrl: &q.url, ReceiptHandle: handle, VisibilityTimeout: 30})
	a.denied(err, "sqs:ChangeMessageVisibility", q.arn)
}
