package worker

import (
	"context"
	"sync"
)

// arrivals knows, of one run of a worker or one invocation under Lambda, whether a batch that is being gathered can still
// grow. It can't once every slot is taken by a message that is in a batch itself, nor once the worker is stopping. A
// message that is elsewhere in a handler may yet come to a batch, so it counts as one that can.
type arrivals struct {
	stopping <-chan struct{} // nil: never

	mu        sync.Mutex
	slots     int // messages that can be in handlers at once
	in        int // of them in batches
	gathering map[chan struct{}]struct{}
}

func newArrivals(slots int, stopping <-chan struct{}) *arrivals {
	return &arrivals{slots: slots, stopping: stopping, gathering: map[chan struct{}]struct{}{}}
}

type arrivalsKey struct{}

// arrivalsFrom returns those of the run or invocation that a handler's context belongs to, nil outside of both.
func arrivalsFrom(ctx context.Context) *arrivals {
	if d := deliveryFrom(ctx); d != nil {
		return d.run.arrivals
	}
	a, _ := ctx.Value(arrivalsKey{}).(*arrivals)
	return a
}

// enter counts a message that has joined a batch. hurry, of capacity 1, is told when no more can come.
func (a *arrivals) enter(hurry chan struct{}) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.in++
	a.gathering[hurry] = struct{}{}
	a.hurryLocked()
}

// gathered ends the interest of a batch that is full, or runs for another reason.
func (a *arrivals) gathered(hurry chan struct{}) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.gathering, hurry)
}

// leave counts n messages that are out of their batch.
func (a *arrivals) leave(n int) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.in -= n
}

// shrink takes a slot away for good.
func (a *arrivals) shrink() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.slots--
	a.hurryLocked()
}

// resize adds more slots, or takes them away.
func (a *arrivals) resize(more int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.slots += more
	a.hurryLocked()
}

func (a *arrivals) hurryLocked() {
	if a.in < a.slots {
		return
	}
	for hurry := range a.gathering {
		select {
		case hurry <- struct{}{}:
		default:
		}
	}
}

// stop is closed when the worker begins to stop.
func (a *arrivals) stop() <-chan struct{} {
	if a == nil {
		return nil
	}
	return a.stopping
}
