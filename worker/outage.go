package worker

import (
	"fmt"
	"sync"
	"time"

	"github.com/sqsworker/sqsworker/heartbeat"
)

// deleteOutage knows since when no DeleteMessageBatch gets through. What completes meanwhile stays held until one does, and
// when too much is held the worker stops: that must be seen.
type deleteOutage struct {
	mu    sync.Mutex
	since time.Time // zero while deletes work
	last  error
	calls int
}

// note hears how a call went as a whole, and says when deletes begin to fail and when they work again.
func (o *deleteOutage) note(r *run, err error) {
	o.mu.Lock()
	began := err != nil && o.calls == 0
	ended := err == nil && o.calls > 0
	took, calls := time.Since(o.since), o.calls
	switch {
	case err == nil:
		o.since, o.last, o.calls = time.Time{}, nil, 0
	default:
		if began {
			o.since = time.Now()
		}
		o.last = err
		o.calls++
	}
	o.mu.Unlock()
	switch {
	case r.settling.Err() != nil:
	case began:
		r.log.Warn("deletes are failing; completed messages stay held until one gets through", "kind", failureOf(err).String(), "error", heartbeat.Code(err))
	case ended:
		r.log.Info("deletes work again", "failed_calls", calls, "after", took.Round(time.Millisecond))
	}
}

// err is nil, or says that deletes have been failing for longer than a passing fault does.
func (o *deleteOutage) err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.calls < unhealthyAfter || time.Since(o.since) < deletesUnhealthyAfter {
		return nil
	}
	return fmt.Errorf("worker: %d calls to delete in a row have failed, for %v (%v): %s; completed messages stay held until one gets through",
		o.calls, time.Since(o.since).Round(time.Second), failureOf(o.last), heartbeat.Code(o.last))
}

// deletesUnhealthyAfter is how long deletes must have been failing to make a worker unhealthy.
const deletesUnhealthyAfter = 30 * time.Second
