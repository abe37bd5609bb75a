package worker

import (
	"sync/atomic"

	"go.opentelemetry.io/otel/trace"
)

// spanBox holds a span for goroutines that come by it: the executor sets it once, calls that settle or renew read it.
type spanBox struct {
	set  atomic.Bool
	span trace.Span // not written any more once set is true
}

func (b *spanBox) put(span trace.Span) {
	b.span = span
	b.set.Store(true)
}

// get returns nil until there is a span.
func (b *spanBox) get() trace.Span {
	if !b.set.Load() {
		return nil
	}
	return b.span
}
