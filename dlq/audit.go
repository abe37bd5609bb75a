package dlq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/worker"
)

// AuditClient is what an audit calls. *sqs.Client has it. A caller's permissions may be less than that: what is denied is a finding.
type AuditClient interface {
	PeekClient
	ListDeadLetterSourceQueues(context.Context, *sqs.ListDeadLetterSourceQueuesInput, ...func(*sqs.Options)) (*sqs.ListDeadLetterSourceQueuesOutput, error)
	ListMessageMoveTasks(context.Context, *sqs.ListMessageMoveTasksInput, ...func(*sqs.Options)) (*sqs.ListMessageMoveTasksOutput, error)
	ChangeMessageVisibility(context.Context, *sqs.ChangeMessageVisibilityInput, ...func(*sqs.Options)) (*sqs.ChangeMessageVisibilityOutput, error)
	DeleteMessage(context.Context, *sqs.DeleteMessageInput, ...func(*sqs.Options)) (*sqs.DeleteMessageOutput, error)
	SendMessageBatch(context.Context, *sqs.SendMessageBatchInput, ...func(*sqs.Options)) (*sqs.SendMessageBatchOutput, error)
}

// NoLook as [AuditConfig.Look]: no message is received.
const NoLook = -1

// AuditConfig tunes an [Auditor]. The zero value is ready for production.
type AuditConfig struct {
	// HandlerTimeout is the longest that consumers take for a message. With NoHeartbeats it must be below the queue's visibility.
	// Up to 12 h; default not known, and then not compared. A worker tells its own.
	HandlerTimeout time.Duration
	// NoHeartbeats says that consumers don't extend the visibility of what they work on. Default: they do, as worker does.
	NoHeartbeats bool

	// Look is how many messages of the dead-letter queue are received to see which expire soon, and then given back: each look
	// counts as a receive. From 1 to 10,000, or [NoLook]; default 100. The start of a worker never looks. A standard queue doesn't
	// hand out the oldest first for sure: with more messages than Look, some that expire soon may not be seen.
	Look int
	// Soon is how little time a message has left to be named. From 1 minute to 14 days; default 24 h.
	Soon time.Duration

	// Operator also tries the permissions that [Peek] and [Redrive] need; by default only those of a worker.
	Operator bool
	// NoProbes leaves permissions untried. By default they are tried with calls that can't have an effect: deleting and changing
	// the visibility of a receipt handle that doesn't exist, sending a batch without entries. SQS is thought to look at permissions
	// before it looks at those, but isn't documented to: what is found missing is missing, what isn't found may be missing too.
	// Receiving isn't tried; a worker or a redrive that isn't allowed to says so at once.
	NoProbes bool
}

func (c AuditConfig) withDefaults() (AuditConfig, error) {
	var errs []error
	bad := func(field string, value any, bound string) {
		errs = append(errs, fmt.Errorf("dlq: AuditConfig.%s is %v: must be %s", field, value, bound))
	}
	if c.HandlerTimeout < 0 || c.HandlerTimeout > 12*time.Hour {
		bad("HandlerTimeout", c.HandlerTimeout, "from 0s (not known) to 12h0m0s")
	}
	if c.Look != NoLook && (c.Look < 0 || c.Look > 10_000) {
		bad("Look", c.Look, "from 1 to 10000, or dlq.NoLook")
	}
	if c.Soon != 0 && (c.Soon < time.Minute || c.Soon > maxRetention) {
		bad("Soon", c.Soon, fmt.Sprintf("from 1m0s to %v", maxRetention))
	}
	setDefault(&c.Look, 100)
	setDefault(&c.Soon, 24*time.Hour)
	return c, errors.Join(errs...)
}

// Auditor audits queues. It is safe for concurrent use, and a [worker.Auditor].
type Auditor struct {
	client AuditClient
	cfg    AuditConfig
}

var _ worker.Auditor = (*Auditor)(nil)

// NewAuditor returns one. The error names everything that is wrong with the configuration.
func NewAuditor(c AuditClient, cfg AuditConfig) (*Auditor, error) {
	cfg, err := cfg.withDefaults()
	if isNil(c) {
		err = errors.Join(errNoClient, err)
	}
	if err != nil {
		return nil, err
	}
	return &Auditor{client: c, cfg: cfg}, nil
}

// Audit looks at a queue and its dead-letter queue with the defaults of [AuditConfig] and says what it found, the worst first. It
// changes nothing, but it receives up to 100 messages of the dead-letter queue and gives them back, and it tries permissions with calls
// that have no effect. The error is that the queue itself can't be looked at: it doesn't exist, or SQS doesn't answer.
func Audit(ctx context.Context, c AuditClient, queueURL string) (Findings, error) {
	a, err := NewAuditor(c, AuditConfig{})
	if err != nil {
		return nil, err
	}
	return a.Audit(ctx, queueURL)
}

// Audit is the function [Audit] with this auditor's configuration.
func (a *Auditor) Audit(ctx context.Context, queueURL string) (Findings, error) {
	found := &audit{client: a.client, cfg: a.cfg, url: queueURL}
	err := found.run(ctx)
	slices.SortStableFunc(found.findings, func(a, b Finding) int { return int(b.Severity) - int(a.Severity) })
	return found.findings, err
}

// AuditStart implements [worker.Auditor]: what is found is logged, each finding once. No message is received.
func (a *Auditor) AuditStart(ctx context.Context, s worker.Start) {
	cfg := a.cfg
	cfg.Look = NoLook
	cfg.NoHeartbeats = cfg.NoHeartbeats || s.NoHeartbeats
	if s.HandlerTimeout > 0 {
		cfg.HandlerTimeout = s.HandlerTimeout
	}
	found := &audit{client: a.client, cfg: cfg, url: s.QueueURL, visibility: s.Visibility, waits: true}
	if err := found.run(ctx); err != nil {
		s.Logger.Warn("the queue's settings could not be audited", "error", describe(err))
	}
	for _, f := range found.findings {
		log := s.Logger.Warn
		if f.Severity == Info {
			log = s.Logger.Info
		}
		log("queue audit: "+f.Seen, "finding", string(f.Code), "severity", f.Severity.String(), "about", f.Queue, "advice", f.Advice)
	}
}

// audit is one under way.
type audit struct {
	client     AuditClient
	cfg        AuditConfig
	url        string
	visibility time.Duration // that consumers ask for; zero means the queue's own
	waits      bool          // consumers ask for a long poll themselves

	source, dead *queue
	findings     Findings
}

func (a *audit) add(code Code, severity Severity, queue, seen, advice string) {
	a.findings = append(a.findings, Finding{Code: code, Severity: severity, Queue: queue, Seen: seen, Advice: advice})
}

// denied makes a finding of a denied call. It reports whether it was one.
func (a *audit) denied(err error, action, resource string) bool {
	if !isDenied(err) {
		return false
	}
	for _, f := range a.findings.Of(PermissionMissing) {
		if f.Seen == missingPermission(action, resource) {
			return true
		}
	}
	a.add(PermissionMissing, Critical, nameOf(resource), missingPermission(action, resource),
		fmt.Sprintf("allow %s on %s in the caller's IAM policy, and check that the queue's own policy doesn't deny it; on an encrypted queue kms:Decrypt, and kms:GenerateDataKey to send, too", action, resource))
	return true
}

func missingPermission(action, resource string) string {
	return fmt.Sprintf("%s on %s is denied", action, resource)
}

func (a *audit) run(ctx context.Context) (err error) {
	a.source, err = readQueue(ctx, a.client, a.url)
	if a.denied(err, "sqs:GetQueueAttributes", a.url) {
		return nil // nothing else can be known
	}
	if err != nil {
		return explain(err, "GetQueueAttributes", a.url)
	}
	a.checkQueue()
	if err := a.checkPolicy(ctx); err != nil {
		return err
	}
	if !a.cfg.NoProbes {
		a.probe(ctx)
	}
	return context.Cause(ctx)
}
