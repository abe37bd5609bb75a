package idempotency

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"time"

	"github.com/sqsworker/sqsworker/worker"
)

// Guard sees to it that work happens once. It is safe for concurrent use.
type Guard struct {
	store Store
	cfg   Config
	cache *cache
	count counters
}

// New returns a Guard on a store. Every mistake in the configuration is in the error.
func New(store Store, cfg Config) (*Guard, error) {
	cfg, err := cfg.withDefaults()
	if store == nil {
		err = errors.Join(errors.New("idempotency: no store: pass a *DynamoStore or a *MemoryStore"), err)
	}
	if err != nil {
		return nil, err
	}
	return &Guard{store: store, cfg: cfg, cache: newCache(cfg.CacheSize)}, nil
}

// once does the work under a claim of the record, or finds that it was done: then the record is returned. begin sees the claim
// before the work does.
func (g *Guard) once(ctx context.Context, id, payload string, begin func(*Claim), work func(context.Context) ([]byte, error)) (done *Record, err error) {
	if done, err := g.remembered(id, payload); done != nil || err != nil {
		return done, err
	}
	c, done, err := g.claim(ctx, id, payload)
	if c == nil {
		return done, err
	}
	if begin != nil {
		begin(c)
	}
	return c.run(ctx, work)
}

// remembered asks the cache, which knows completed records only.
func (g *Guard) remembered(id, payload string) (*Record, error) {
	r, ok := g.cache.get(id)
	if !ok {
		return nil, nil
	}
	done, err := g.completedBefore(r, payload)
	if err == nil {
		g.count.cached.Add(1)
	}
	return done, err
}

// completedBefore is what a completed record means for a payload.
func (g *Guard) completedBefore(r Record, payload string) (*Record, error) {
	if !samePayload(r.Payload, payload) {
		g.count.mismatches.Add(1)
		return nil, worker.Permanent(&MismatchError{Key: r.ID})
	}
	g.count.duplicates.Add(1)
	g.cache.put(r)
	return &r, nil
}

// looksAgain is how often a record is claimed again that was refused, but by the look after it could have been claimed.
const looksAgain = 3

// claim acquires the record, or says why not: it was completed, is in progress elsewhere, or the store doesn't answer.
func (g *Guard) claim(ctx context.Context, id, payload string) (c *Claim, done *Record, err error) {
	lease, inWorker := worker.LeaseDeadline(ctx)
	if !inWorker {
		lease = time.Now().Add(g.cfg.Lease)
	}
	c = &Claim{g: g, id: id, owner: newOwner(), payload: payload, lease: lease, inWorker: inWorker}
	call, cancel := context.WithDeadline(ctx, earlier(lease, time.Now().Add(g.cfg.CallTimeout)))
	defer cancel()
	for try := 0; ; try++ {
		now := time.Now()
		record, err := g.store.Acquire(call, AcquireRequest{
			ID: id, Owner: c.owner, Payload: payload, Lease: lease, Expires: now.Add(g.cfg.Retention), Skew: g.cfg.Skew,
		})
		refused, isRefused := refusal(err)
		switch {
		case err == nil:
			c.claimed(record)
			return c, nil, nil
		case !isRefused:
			return nil, nil, g.unclaimed(ctx, c, err)
		case refused.heldBy(c.owner): // an answer was lost: this is what it said
			c.claimed(refused)
			return c, nil, nil
		case refused.Claimable(now, g.cfg.Skew):
			if try < looksAgain {
				continue
			}
			g.count.deferred.Add(1)
			return nil, nil, inProgress(now)
		case refused.Status == Completed:
			done, err := g.completedBefore(refused, payload)
			return nil, done, err
		default:
			g.count.deferred.Add(1)
			return nil, nil, inProgress(refused.Lease.Add(g.cfg.Skew))
		}
	}
}

// unclaimed ends an attempt that doesn't know whether it has the claim. If it has, others would wait for the lease to end.
func (g *Guard) unclaimed(ctx context.Context, c *Claim, err error) error {
	g.count.storeErrors.Add(1)
	var answer interface{ HTTPStatusCode() int }
	if said := errors.As(err, &answer) && answer.HTTPStatusCode()/100 == 4; !said && time.Now().Before(c.lease) {
		c.release(ctx, PutOff)
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause // the work was never begun: ErrShutdown, ErrLeaseLost, …
	}
	return storeError("acquire", err)
}

// refusal takes the record out of a refused write.
func refusal(err error) (Record, bool) {
	var refused *RefusedError
	if errors.As(err, &refused) {
		return refused.Record, true
	}
	return Record{}, false
}

func newOwner() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
