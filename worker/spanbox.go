package worker

import (
	"sync/atomic"

	"go.opentelemetry.io/otel/trace"
)

// spanBox holds a span for goroutines that come by it: the executor sets it, calls that settle or renew read it.
type spanBox struct {
	at atomic.Pointer[trace.Span]
}

func (b *spanBox) set(span trace.Span) { b.at.Store(&span) }

func (b *spanBox) get() trace.Span {
	if span := b.at.Load(); span != nil {
		return *span
	}
	return nil
}
