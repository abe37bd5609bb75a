package idempotency

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/sqsworker/sqsworker/worker"
)

// keepRenewed keeps the record's lease alive, with the message's visibility in a worker and in a goroutine elsewhere, until
// stop. stop returns when no renewal is under way any more. cancel ends the work's context.
func (c *Claim) keepRenewed(ctx context.Context, cancel context.CancelCauseFunc) (stop func()) {
	c.mu.Lock()
	c.cancel = cancel
	c.lapse = time.AfterFunc(time.Until(c.lease), c.lapsed)
	c.mu.Unlock()
	if c.inWorker {
		_ = worker.OnRenew(ctx, c.renew) // fails only outside of a worker
		return c.stopRenewing
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		c.renewAlone(context.WithoutCancel(ctx), quit)
	}()
	return func() {
		close(quit)
		c.stopRenewing()
		<-done
	}
}

// renewAlone renews at a third of the lease, and a failed renewal again while the lease lasts.
func (c *Claim) renewAlone(ctx context.Context, quit <-chan struct{}) {
	wait := c.g.cfg.Lease / 3
	for failures := 0; ; {
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-quit:
			timer.Stop()
			return
		}
		c.mu.Lock()
		lease, over := c.lease, c.stage != held
		c.mu.Unlock()
		if over || !time.Now().Before(lease) {
			return
		}
		call, cancel := context.WithDeadline(ctx, lease)
		err := c.renew(call, time.Now().Add(c.g.cfg.Lease))
		cancel()
		if wait = c.g.cfg.Lease / 3; err != nil {
			wait = min(backoff(failures), max(time.Until(lease)/4, 10*time.Millisecond))
			failures++
		} else {
			failures = 0
		}
	}
}

// renew extends the record's lease. The heartbeat calls it before it renews the visibility, and again after an error, until the
// visibility ends; an error that wraps [worker.ErrLeaseLost] ends it at once.
func (c *Claim) renew(ctx context.Context, until time.Time) error {
	timeout := c.g.cfg.CallTimeout
	if deadline, ok := ctx.Deadline(); ok { // leave time for another try
		timeout = min(timeout, max(time.Until(deadline)/3, 50*time.Millisecond))
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	e := &extension{cancel: cancel, done: make(chan struct{})}
	defer close(e.done)
	if begun, err := c.beginExtension(e); !begun {
		return err
	}
	err := c.g.store.Extend(ctx, c.id, c.owner, until, time.Now().Add(c.g.cfg.Retention))
	return c.endExtension(until, err)
}

func (c *Claim) beginExtension(e *extension) (begun bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.stage == gone && !c.returned: // a commit has found out
		return false, c.why
	case c.stage != held:
		return false, nil
	}
	c.extending = e
	return true, nil
}

func (c *Claim) endExtension(until time.Time, err error) error {
	refused, isRefused := refusal(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.extending = nil
	switch {
	case err == nil:
		c.lease = until
		if c.stage == held {
			c.lapse.Reset(time.Until(until))
		}
		return nil
	case c.stage != held: // settled meanwhile; nobody waits for this
		return nil
	case !isRefused:
		c.g.count.storeErrors.Add(1)
		return storeError("extend", err)
	case refused.Status == Completed && refused.Owner == c.owner: // a commit whose answer is on its way
		return nil
	}
	return c.loseLocked(lost("another attempt has taken over"))
}

// loseLocked: the record is another attempt's.
func (c *Claim) loseLocked(why error) error {
	c.stage, c.why = gone, why
	c.lapse.Stop()
	c.cancel(why)
	return why
}

// lapsed ends the work's context when its lease is over. Another attempt may have the record by now; if none has, the work can
// still be completed.
func (c *Claim) lapsed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stage == held && !time.Now().Before(c.lease) {
		c.cancel(lost("its lease ran out before a renewal got through"))
	}
}

// stopRenewing ends renewals and waits for the one under way.
func (c *Claim) stopRenewing() {
	c.mu.Lock()
	c.returned = true
	if c.stage == held {
		c.stage = settling
	}
	c.lapse.Stop()
	e := c.extending
	c.mu.Unlock()
	if e != nil {
		e.cancel()
		<-e.done
	}
}

// backoff grows from 50 ms to a second, with jitter.
func backoff(failures int) time.Duration {
	step := min(50*time.Millisecond<<min(failures, 5), time.Second)
	return step/2 + rand.N(step/2+1)
}
