package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/sqsworker/sqsworker/worker"
)

// invoice is a message. One with very many lines comes through S3.
type invoice struct {
	Invoice string `json:"invoice"`
	Lines   []struct {
		Cents int64 `json:"cents"`
	} `json:"lines"`
}

// settle is the work: put yours here. It looks at its context between pieces, so that a stop doesn't have to wait for it.
func settle(ctx context.Context, m *worker.Message, in invoice) error {
	if len(in.Lines) == 0 {
		return worker.Permanent(fmt.Errorf("invoice %s has no lines", in.Invoice))
	}
	var total int64
	for i, line := range in.Lines {
		if i%1000 == 0 && ctx.Err() != nil {
			return context.Cause(ctx) // given back at once, and no failure: the next worker begins again
		}
		if at, stopping := worker.DrainDeadline(ctx); stopping && time.Until(at) < time.Second {
			return worker.Snooze(0) // a job that can be taken up where it ended would save its place here
		}
		total += line.Cents
	}
	slog.InfoContext(ctx, "settled", "message", m, "lines", len(in.Lines), "cents", total)
	return nil
}
