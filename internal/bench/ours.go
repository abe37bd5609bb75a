package bench

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/sqsworker/sqsworker/worker"
)

// ours is the worker, configured as little as the scenario allows.
type ours struct{ w *worker.Worker }

// Drain of ours in every scenario but one: short, so that the wait before handlers are cancelled is.
const (
	drainTimeout = 5 * time.Second
	cancelGrace  = time.Second
)

func newOurs(a assignment, j *jobs) (subject, error) {
	return newOursWith(a, j, worker.Telemetry{})
}

func newOursWith(a assignment, j *jobs, to worker.Telemetry) (subject, error) {
	cfg := worker.Config{
		Telemetry:   to,
		Concurrency: a.Concurrency, Prefetch: a.Prefetch,
		DrainTimeout: 25 * time.Second,
		Logger:       slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	}
	if a.Job.UntilCancel {
		cfg.DrainTimeout, cfg.CancelGrace = drainTimeout, cancelGrace
	}
	if a.NoDrain {
		cfg.DrainTimeout = worker.NoDrain
	}
	handler := worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error { return j.do(ctx, m.ID, m.Body) })
	// The SDK's own HTTP client, as it comes: the worker makes a copy with as many connections as it needs.
	w, err := worker.New(newClient(a.Endpoint, 0), a.QueueURL, handler, cfg)
	if err != nil {
		return nil, err
	}
	return &ours{w}, nil
}

func (c *ours) run(ctx context.Context) error { return c.w.Run(ctx) }

func (c *ours) describe(r *report) {
	s := c.w.Stats()
	r.Notes["receive errors"] = s.ReceiveErrors
	r.Notes["ambiguous receives"] = s.AmbiguousReceives
	r.Notes["delete errors"] = s.DeleteFailures
	r.Notes["undeleted"] = s.Undeleted
	r.Notes["lost leases"] = s.Lost
	r.Notes["duplicates"] = s.Duplicates
	r.Notes["failed releases"] = s.ReleaseFailures
}
