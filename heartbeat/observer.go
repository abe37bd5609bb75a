package heartbeat

import (
	"context"
	"time"

	"github.com/aws/smithy-go/middleware"
)

// Observer watches the calls of a [Heartbeat], for traces and metrics. It is called concurrently.
type Observer interface {
	// Calling is told of a ChangeMessageVisibilityBatch that is about to be sent; the call is made with the context that
	// it returns, which must derive from ctx. done is called once, before the leases learn of the answer, when each
	// change's Err and Left are set; err is that of the call as a whole.
	Calling(ctx context.Context, changes []Change) (_ context.Context, done func(answer middleware.Metadata, err error))
}

// Change is one entry of a call.
type Change struct {
	// Owner is the [Receipt]'s.
	Owner any
	// Visibility is what is asked for.
	Visibility time.Duration
	// Release tells the end of a hold from a renewal.
	Release bool
	// Err is how it went; nil when SQS confirmed it.
	Err error
	// Left is what was left of the lease when the answer came.
	Left time.Duration
}

// observe tells the observer of a call, if there is one.
func (b *batcher) observe(ctx context.Context, entries []entry) (context.Context, func(middleware.Metadata, error)) {
	if b.h.cfg.Observer == nil {
		return ctx, func(middleware.Metadata, error) {}
	}
	changes := make([]Change, len(entries))
	for i, e := range entries {
		changes[i] = Change{Owner: e.lease.owner, Visibility: time.Duration(e.seconds) * time.Second, Release: e.final}
	}
	ctx, done := b.h.cfg.Observer.Calling(ctx, changes)
	return ctx, func(answer middleware.Metadata, err error) {
		for i := range entries {
			changes[i].Err, changes[i].Left = entries[i].result, time.Until(entries[i].lease.Deadline())
		}
		done(answer, err)
	}
}
