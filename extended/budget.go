package extended

import (
	"container/list"
	"context"
	"sync"
)

// budget is how many bytes of payloads may be in memory at once: first come, first served, so that a large one isn't
// starved by small ones. One that is larger than all of it is let in alone.
type budget struct {
	size int64

	mu      sync.Mutex
	used    int64
	waiters list.List // of *waiter, in the order in which they came
}

type waiter struct {
	bytes int64
	ready chan struct{} // closed once the room is theirs
}

func newBudget(size int64) *budget { return &budget{size: size} }

// acquire waits for room until ctx ends, whose cause it then returns.
func (b *budget) acquire(ctx context.Context, bytes int64) error {
	bytes = min(bytes, b.size)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	b.mu.Lock()
	if b.waiters.Len() == 0 && b.used+bytes <= b.size {
		b.used += bytes
		b.mu.Unlock()
		return nil
	}
	w := &waiter{bytes, make(chan struct{})}
	place := b.waiters.PushBack(w)
	b.mu.Unlock()
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		b.leave(w, place)
		return context.Cause(ctx)
	}
}

// leave gives up waiting, or the room if it has come meanwhile; those behind may fit now.
func (b *budget) leave(w *waiter, place *list.Element) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-w.ready:
		b.used -= w.bytes
	default:
		b.waiters.Remove(place)
	}
	b.admitLocked()
}

// release gives room back.
func (b *budget) release(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= min(bytes, b.size)
	b.admitLocked()
}

func (b *budget) admitLocked() {
	for first := b.waiters.Front(); first != nil; first = b.waiters.Front() {
		w := first.Value.(*waiter)
		if b.used+w.bytes > b.size {
			return
		}
		b.used += w.bytes
		b.waiters.Remove(first)
		close(w.ready)
	}
}

func (b *budget) now() (used int64, waiting int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used, b.waiters.Len()
}
