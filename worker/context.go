package worker

import (
	"context"
	"errors"
	"time"
)

// handlerContext is a handler's context: the lease's, with the delivery in it.
type handlerContext struct {
	context.Context
	d *delivery
}

type deliveryKey struct{}

func (c *handlerContext) Value(key any) any {
	if key == (deliveryKey{}) {
		return c.d
	}
	return c.Context.Value(key)
}

func deliveryFrom(ctx context.Context) *delivery {
	d, _ := ctx.Value(deliveryKey{}).(*delivery)
	return d
}

// ErrNoLease is what functions about a message's lease return for a context that has none: one that isn't a handler's (pass
// on the one that the handler was given), or is that of a batch or of a handler under Lambda.
var ErrNoLease = errors.New("worker: there is no lease in this context: pass on the one that the handler was given; under Lambda there is none")

// ExtendVisibility makes the message's lease last for at least d from now, 1 s to 12 h: one long lease, for a handler
// that knows it will take long and wants no renewals meanwhile, or whose process may be suspended. It is never
// shortened by the heartbeat, which goes on when it comes to an end, and cut to the 12 hours from the receive. It
// returns when SQS has confirmed it.
func ExtendVisibility(ctx context.Context, d time.Duration) error {
	held := deliveryFrom(ctx)
	if held == nil {
		return ErrNoLease
	}
	return held.lease.Extend(ctx, d)
}

// OnRenew adds a function that is called before each renewal of the message's visibility, for another lease that must
// not end before it; see [heartbeat.Lease.OnRenew]. Middleware uses it.
func OnRenew(ctx context.Context, renew func(ctx context.Context, until time.Time) error) error {
	held := deliveryFrom(ctx)
	if held == nil {
		return ErrNoLease
	}
	held.lease.OnRenew(held.run.tell.renewing(held, renew))
	return nil
}

// LeaseDeadline is when the message's visibility ends unless it is renewed; false outside of a handler.
func LeaseDeadline(ctx context.Context) (time.Time, bool) {
	held := deliveryFrom(ctx)
	if held == nil {
		return time.Time{}, false
	}
	return held.lease.Deadline(), true
}

// DrainDeadline is when this handler's context will be cancelled because the worker is stopping: how long there is to
// finish or to save a checkpoint. False while the worker isn't stopping, and outside of a handler. It becomes earlier when a
// second interruption leaves less time than the first, so a handler that goes on asks again.
func DrainDeadline(ctx context.Context) (time.Time, bool) {
	held := deliveryFrom(ctx)
	if held == nil {
		return time.Time{}, false
	}
	at := held.run.cancelAt.Load()
	if at == nil {
		return time.Time{}, false
	}
	return *at, true
}
