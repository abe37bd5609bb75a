package worker

import (
	"errors"
	"fmt"
	"time"
)

// ErrNotRunning is what Healthy says before Run and after it.
var ErrNotRunning = errors.New("worker: not running")

// ErrStalled is what Healthy says when no receive has come to an end for longer than it could take: the one state that a
// restart of the process mends.
var ErrStalled = errors.New("worker: stalled")

// unhealthyAfter is how many failed receives in a row make a worker unhealthy.
const unhealthyAfter = 3

// Healthy is nil while the worker does what it should: it receives, or has no free slot to receive into, however long
// its handlers run; also while it drains. Otherwise it says what is wrong: receives are denied, the queue is gone, several
// receives in a row failed, none has come to an end for longer than it could take, no delete has got through for half a minute,
// or the [Breaker] isn't closed ([ErrBreakerOpen]:
// restarting the process won't mend that).
func (w *Worker) Healthy() error {
	r := w.current.Load()
	if r == nil || r.over.Load() {
		return ErrNotRunning
	}
	if r.stopping.Load() {
		return nil
	}
	if state, err := r.breaker.snapshot(); r.started.Load() && state != BreakerClosed {
		return fmt.Errorf("%w (%v): %w", ErrBreakerOpen, state, err)
	}
	if !r.started.Load() {
		return fmt.Errorf("worker: starting: the queue's attributes could not be read yet")
	}
	if err := r.poller.healthy(); err != nil {
		return err
	}
	return r.deleter.outage.err()
}

func (p *poller) healthy() error {
	failures := p.health.failures.Load()
	since := time.Since(time.Unix(0, p.health.lastOK.Load())).Round(time.Second)
	if f := p.health.lastErr.Load(); f != nil {
		switch {
		case f.kind == denied || f.kind == gone:
			return fmt.Errorf("worker: receiving has failed for %v (%v): %s", since, f.kind, describe(f.err))
		case failures >= unhealthyAfter:
			return fmt.Errorf("worker: %d receives in a row have failed, for %v (%v): %s", failures, since, f.kind, describe(f.err))
		}
	}
	if p.health.full.Load() {
		return nil
	}
	if limit := 2*(max(p.r.wait, 0)+receiveSlack) + time.Minute; since > limit {
		return fmt.Errorf("%w: no receive has come to an end for %v (limit %v)", ErrStalled, since, limit)
	}
	return nil
}
