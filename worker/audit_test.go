package worker_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/sqsworker/sqsworker/worker"
)

// auditor is a worker.Auditor.
type auditor func(context.Context, worker.Start)

func (f auditor) AuditStart(ctx context.Context, s worker.Start) { f(ctx, s) }

func TestAuditorHearsOfEachStartInsteadOfTheWorkersOwnChecks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "VisibilityTimeout", "300") // without a dead-letter queue, of which the worker itself would warn
		q.send(1)
		var starts []worker.Start
		w := q.start(worker.HandlerFunc(succeed), worker.Config{
			HandlerTimeout: time.Minute, HeartbeatInterval: worker.NoHeartbeat, Retries: 1, RetryDelay: 10 * time.Second,
			Audit: auditor(func(ctx context.Context, s worker.Start) {
				starts = append(starts, s)
				if n := q.Count(receiveMessage); n != 0 {
					t.Errorf("%d receives before the audit", n)
				}
				s.Logger.Warn("found something")
				<-ctx.Done() // hangs
			}),
		})
		q.mustEmpty(16 * time.Second)
		w.mustStop()
		if len(starts) != 1 {
			t.Fatalf("asked %d times", len(starts))
		}
		s := starts[0]
		if s.QueueURL != q.url || s.Visibility != 5*time.Minute || s.HandlerTimeout < 2*time.Minute+10*time.Second || !s.NoHeartbeats {
			t.Errorf("it heard %+v", s)
		}
		if lines := w.log.atLeast(slog.LevelWarn); len(lines) != 1 || !strings.Contains(lines[0], "found something") {
			t.Errorf("logged %q", lines)
		}
	})
}

func TestAuditorThatPanicsDoesNotKeepTheWorkerFromStarting(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.send(1)
		w := q.start(worker.HandlerFunc(succeed), worker.Config{Audit: auditor(func(context.Context, worker.Start) { panic("boom") })})
		q.mustEmpty(time.Second)
		w.mustStop()
		if len(w.log.with("level=WARN", "audit failed")) != 1 {
			t.Errorf("logged %s", w.log)
		}
	})
}
