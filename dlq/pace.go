package dlq

import (
	"context"
	"sync"
	"time"
)

// pace lets messages go at a rate. Each takes the next free moment; time in which nobody came isn't made up for, so that the rate is never
// exceeded, not even for a second.
type pace struct {
	each time.Duration // between two messages; zero is no limit

	mu   sync.Mutex
	next time.Time
}

func newPace(perSecond int) *pace {
	p := &pace{}
	if perSecond > 0 {
		p.each = time.Second / time.Duration(perSecond)
	}
	return p
}

// batch is how many messages go at once at most: a tenth of a second's worth, so that a low rate isn't a burst now and then.
func (p *pace) batch() int {
	if p.each == 0 {
		return batchSize
	}
	return int(min(max(100*time.Millisecond/p.each, 1), batchSize))
}

// wait returns when n more messages may go; false when ctx ends before.
func (p *pace) wait(ctx context.Context, n int) bool {
	if p.each == 0 {
		return ctx.Err() == nil
	}
	p.mu.Lock()
	now := time.Now()
	at := p.next
	if at.Before(now) {
		at = now
	}
	p.next = at.Add(time.Duration(n) * p.each)
	p.mu.Unlock()
	if !at.After(now) {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(at.Sub(now))
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
