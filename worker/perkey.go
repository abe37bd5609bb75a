package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sqsworker/sqsworker/heartbeat"
)

// KeyLimit tunes [ConcurrencyPerKey].
type KeyLimit struct {
	// Key is what messages are told apart by: an order's number, an account. An empty key has no limit. Required.
	Key func(*Message) string
	// Limit is how many messages of a key run at once in this process. From 1 to 100,000; default 1.
	Limit int
	// MaxWait is how long a message waits for its turn; then it is given back as by [Snooze], for Delay. From 1 ms to 12 h;
	// default [WaitForTurn], because giving back costs a receive, and receives count towards the queue's maxReceiveCount.
	MaxWait time.Duration
	// Delay is how long a message that waited in vain stays away. From 1 s to 12 h; default 10 s.
	Delay time.Duration
}

// WaitForTurn as [KeyLimit.MaxWait]: wait for as long as the message can be held.
const WaitForTurn time.Duration = -1

// ConcurrencyPerKey is middleware that runs at most Limit messages of one key at once, such as one for each account, in
// the order in which they came here. Other processes have limits of their own: it keeps messages from treading on each
// other's toes, and is no lock.
//
// A message that waits is held and takes one of the worker's slots: this is for keys of which two messages rarely meet. With
// few keys that have much to do, all slots would come to wait for them; a FIFO queue, with the key as its message group,
// has no such trouble. A message that waits when the worker begins to stop is given back at once.
func ConcurrencyPerKey(limit KeyLimit) Middleware {
	wrong := limit.check()
	setDefault(&limit.Limit, 1)
	setDefault(&limit.MaxWait, WaitForTurn)
	setDefault(&limit.Delay, 10*time.Second)
	turns := &turns{limit: limit.Limit, keys: map[string]*turn{}} // one for all that the middleware wraps
	return func(next Handler) Handler {
		return &layer{"ConcurrencyPerKey", next, wrong, func(ctx context.Context, m *Message) error {
			key := limit.Key(m)
			if key == "" {
				return next.Handle(ctx, m)
			}
			if err := turns.take(ctx, key, limit); err != nil {
				return err
			}
			defer turns.give(key)
			return next.Handle(ctx, m)
		}}
	}
}

func (l KeyLimit) check() error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf("worker: KeyLimit."+format, args...)) }
	if l.Key == nil {
		add("Key is missing: it must tell a message's key")
	}
	if l.Limit < 0 || l.Limit > maxConcurrency {
		add("Limit is %d: must be from 1 to %d", l.Limit, maxConcurrency)
	}
	if l.MaxWait != 0 && l.MaxWait != WaitForTurn && (l.MaxWait < time.Millisecond || l.MaxWait > heartbeat.MaxVisibility) {
		add("MaxWait is %v: must be from 1ms to %v, or worker.WaitForTurn", l.MaxWait, heartbeat.MaxVisibility)
	}
	if l.Delay != 0 && (l.Delay < time.Second || l.Delay > heartbeat.MaxVisibility) {
		add("Delay is %v: must be from 1s to %v", l.Delay, heartbeat.MaxVisibility)
	}
	return errors.Join(errs...)
}

// turns counts who runs, by key, and knows who waits.
type turns struct {
	limit int

	mu   sync.Mutex
	keys map[string]*turn // those of which something runs
}

type turn struct {
	running int
	waiting []chan struct{} // first come first served; closed when it is theirs
}

// take waits for a turn. An error is what becomes of the message instead.
func (t *turns) take(ctx context.Context, key string, limit KeyLimit) error {
	mine := t.ask(key)
	if mine == nil {
		return nil
	}
	var over <-chan time.Time
	if limit.MaxWait != WaitForTurn {
		timer := time.NewTimer(limit.MaxWait)
		defer timer.Stop()
		over = timer.C
	}
	var result error
	select {
	case <-mine:
		return nil
	case <-arrivalsFrom(ctx).stop():
		result = Snooze(0)
	case <-over:
		result = Snooze(limit.Delay)
	case <-ctx.Done():
		result = context.Cause(ctx)
	}
	if !t.withdraw(key, mine) {
		t.give(key) // it came in the same moment, and isn't used
	}
	return result
}

// ask takes a turn that is free, and otherwise returns what is closed when one is.
func (t *turns) ask(key string) (mine chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.keys[key]
	if k == nil {
		k = &turn{}
		t.keys[key] = k
	}
	if k.running < t.limit {
		k.running++
		return nil
	}
	mine = make(chan struct{})
	k.waiting = append(k.waiting, mine)
	return mine
}

// withdraw reports false when the turn has come already.
func (t *turns) withdraw(key string, mine chan struct{}) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.keys[key]
	if k == nil {
		return false
	}
	for i, w := range k.waiting {
		if w == mine {
			k.waiting = append(k.waiting[:i], k.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// give passes a turn on, or frees it.
func (t *turns) give(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.keys[key]
	if len(k.waiting) > 0 {
		close(k.waiting[0])
		k.waiting = k.waiting[1:]
		return
	}
	if k.running--; k.running == 0 {
		delete(t.keys, key)
	}
}
