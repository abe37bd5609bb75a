package idempotency

import (
	"context"
	"time"
)

// Steps of an attempt, one store call each, for tests that put other attempts and faults between them.

func (g *Guard) TryClaim(ctx context.Context, id, payload string) (*Claim, *Record, error) {
	c, done, err := g.claim(ctx, id, payload)
	if c != nil {
		_, c.cancel = context.WithCancelCause(context.Background())
		c.lapse = time.AfterFunc(time.Hour, func() {})
		c.lapse.Stop()
	}
	return c, done, err
}

func (c *Claim) Owner() string { return c.owner }

func (c *Claim) Renew(ctx context.Context, until time.Time) error { return c.renew(ctx, until) }

// Settle is what happens once the work has returned.
func (c *Claim) Settle(ctx context.Context, result []byte, err error) (*Record, error) {
	c.stopRenewing()
	return c.settle(ctx, result, err)
}

// Copy is the claim as it is, moved in time.
func (c *Claim) Copy(shift time.Duration) *Claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := &Claim{g: c.g, id: c.id, owner: c.owner, payload: c.payload, fence: c.fence, attempts: c.attempts, failures: c.failures,
		interruptions: c.interruptions, stage: c.stage, lease: c.lease.Add(shift), why: c.why, returned: c.returned, tx: c.tx}
	_, n.cancel = context.WithCancelCause(context.Background())
	n.lapse = time.AfterFunc(time.Hour, func() {})
	n.lapse.Stop()
	return n
}
