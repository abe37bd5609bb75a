package bench

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// job is what a handler does, the same for every contestant.
type job struct {
	Takes       time.Duration // sleeps so long, whatever its context says; 0 = nothing
	UntilCancel bool          // waits for its context's end and returns its error
	Stamped     bool          // notes how long ago the message was sent
	Names       bool          // counts messages that are started again
}

// jobs are the handlers of one contestant and what they saw.
type jobs struct {
	job
	handled, running, again atomic.Int64
	firstCancel             atomic.Pointer[time.Time]

	mu    sync.Mutex
	lags  []time.Duration
	names map[string]bool
}

func newJobs(j job) *jobs { return &jobs{job: j, names: map[string]bool{}} }

// do is the handler.
func (j *jobs) do(ctx context.Context, id, body string) error {
	if j.job == (job{}) {
		j.handled.Add(1)
		return nil
	}
	j.running.Add(1)
	defer j.running.Add(-1)
	j.see(id, body)
	if j.Takes > 0 {
		time.Sleep(j.Takes)
	}
	if j.UntilCancel {
		<-ctx.Done()
		now := time.Now()
		j.firstCancel.CompareAndSwap(nil, &now)
		return ctx.Err()
	}
	j.handled.Add(1)
	return nil
}

func (j *jobs) see(id, body string) {
	now := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.Stamped {
		j.lags = append(j.lags, now.Sub(stampOf(body)))
	}
	if j.Names {
		if j.names[id] {
			j.again.Add(1)
		}
		j.names[id] = true
	}
}

func (j *jobs) cancelledAt() time.Time {
	if at := j.firstCancel.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

func (j *jobs) describe(r *report) {
	r.Handled, r.Again, r.Running = j.handled.Load(), j.again.Load(), j.running.Load()
	j.mu.Lock()
	defer j.mu.Unlock()
	r.P50, r.P99 = percentile(j.lags, 50), percentile(j.lags, 99)
}
