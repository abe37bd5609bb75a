package worker

import (
	"context"
	"log/slog"
	"time"
)

// Auditor looks at a queue's settings when a worker starts on it, further than the worker's own few checks, and instead of them. Package
// dlq has one: dlq.NewAuditor.
type Auditor interface {
	// AuditStart logs what it finds. It is called once in each Run, before the first receive, and ctx bounds it; it can't keep the worker from
	// starting.
	AuditStart(ctx context.Context, s Start)
}

// Start is what a worker is about to begin.
type Start struct {
	QueueURL string
	// Visibility is what receives and renewals ask for.
	Visibility time.Duration
	// HandlerTimeout is the longest that handlers can have a message, retries in process included; zero when there is no timeout.
	HandlerTimeout time.Duration
	// NoHeartbeats says that visibility isn't renewed.
	NoHeartbeats bool
	// Logger is the worker's, with its name and queue.
	Logger *slog.Logger
}

// auditTimeout bounds an audit, which is a handful of calls.
const auditTimeout = 15 * time.Second

func (r *run) audit(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, auditTimeout)
	defer cancel()
	start := Start{
		QueueURL: r.w.queueURL, Visibility: r.visibility, HandlerTimeout: r.cfg.handlingAtMost(r.retries),
		NoHeartbeats: r.cfg.HeartbeatInterval == NoHeartbeat, Logger: r.log,
	}
	err := protect(func() error { r.cfg.Audit.AuditStart(ctx, start); return nil })
	if err != nil {
		r.log.Warn("the queue's audit failed", "error", err)
	}
}
