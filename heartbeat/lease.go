package heartbeat

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Lease is the hold on one received message. Its methods are safe for concurrent use.
//
// A goroutine of its own, turn, decides everything that time decides: when a renewal is due, when the holder is
// told of the ceiling, when the lease has run out. It is there whenever there is something to decide, never twice, and
// not in between: a parked goroutine would take several times the memory of the lease. Calls report back by changing the
// state under mu and poking it.
type Lease struct {
	h      *Heartbeat
	cancel context.CancelCauseFunc
	id     string
	owner  any

	next, previous *Lease // among those that are held; the heartbeat's mutex guards them

	index   int       // place in the batcher's heap, -1 outside; the batcher's mutex guards both
	leaveBy time.Time // latest moment to wait for company

	mu         sync.Mutex
	turning    bool        // its goroutine is there
	again      bool        // something changed meanwhile: look again
	timer      *time.Timer // starts it when time changes something
	handle     string
	generation int       // counts handles: an answer about an older one says nothing about this one
	granted    time.Time // when the current lease began
	deadline   time.Time // when it ends
	ceiling    time.Time // no deadline beyond this
	told       bool      // the holder knows of the ceiling
	ended      error     // why the lease is over; nil while it is held
	pending    bool      // submitted to the batcher, or in a hook or call
	failures   int       // failed attempts in a row
	retryAt    time.Time
	lastErr    error
	inCall     chan struct{} // closed when the hook or call that has this lease is over
	hooks      []func(context.Context, time.Time) error

	want     time.Duration // an extension that the holder asked for
	wantDone chan error
	final    *final
}

// final is the last visibility of a message that is given back.
type final struct {
	visibility time.Duration
	done       func(error)
}

// grant starts the lease that a receive gave.
func (l *Lease) grant(r Receipt) {
	l.handle = r.Handle
	l.generation++
	l.granted = r.RequestedAt
	l.ceiling = r.RequestedAt.Add(l.h.cfg.MaxHold)
	l.deadline = r.RequestedAt.Add(r.Visibility)
	if l.deadline.After(l.ceiling) {
		l.deadline = l.ceiling
	}
}

// Deadline is when the lease ends unless it is renewed. Nothing may be written for the message after it.
func (l *Lease) Deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline
}

// Err is nil while the message is held, otherwise why it no longer is.
func (l *Lease) Err() error {
	l.mu.Lock()
	ended := l.ended
	if ended == nil && !time.Now().Before(l.deadline) {
		ended = l.lapseLocked() // its own goroutine hasn't come to it yet
	}
	l.mu.Unlock()
	if ended != nil {
		l.lose(ended) // does nothing when it is over already
	}
	return ended
}

// Handle is the newest receipt handle of the message.
func (l *Lease) Handle() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.handle
}

// OnRenew adds a function that runs before each renewal, in the lease's own goroutine, so that another
// lease (an idempotency claim) is renewed first and never ends before the visibility does. until is when
// the renewed visibility will end at the latest; ctx ends with the lease as it is now. When the function fails with an error that
// wraps [ErrLost] the lease is lost at once; any other error is tried again until the lease ends.
func (l *Lease) OnRenew(renew func(ctx context.Context, until time.Time) error) {
	l.mu.Lock()
	l.hooks = append(l.hooks, renew)
	l.mu.Unlock()
}

// Adopt takes over a newer receive of the same message: on a standard queue only the newest handle is
// sure to delete it. It reports false, and changes nothing, when the lease is over.
func (l *Lease) Adopt(r Receipt) bool {
	if r.Visibility == 0 {
		r.Visibility = l.h.cfg.Visibility
	}
	l.mu.Lock()
	if l.ended != nil || l.final != nil {
		l.mu.Unlock()
		return false
	}
	l.grant(r)
	l.failures, l.retryAt = 0, time.Time{}
	l.mu.Unlock()
	l.poke()
	return true
}

// Extend makes the lease last for at least d from now, once, in whole seconds, and returns when SQS has
// confirmed it. A lease that lasts longer already is left alone, and renewals won't shorten it; they go on
// when it comes to an end. What would go over the ceiling is cut to it. It fails with [ErrLost] and the
// like when the lease is over, and with ctx's error, upon which the extension may still come about.
func (l *Lease) Extend(ctx context.Context, d time.Duration) error {
	if d < time.Second || d > MaxVisibility {
		return fmt.Errorf("heartbeat: extension of %v: must be from 1s to 12h", d)
	}
	for {
		l.mu.Lock()
		switch {
		case l.ended != nil:
			defer l.mu.Unlock()
			return l.ended
		case l.final != nil:
			defer l.mu.Unlock()
			return ErrSettled
		case !time.Now().Add(d).After(l.deadline):
			l.mu.Unlock()
			return nil
		}
		mine := l.wantDone == nil
		if mine {
			l.want, l.wantDone = d, make(chan error, 1)
		}
		done := l.wantDone
		l.mu.Unlock()
		if mine {
			l.poke()
		}
		select {
		case err, first := <-done:
			if first {
				close(done) // others that wait look again
			}
			if first && (mine || err != nil) {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Settle ends the lease without writing anything: the holder deletes the message, or has nothing more to
// do with it. When Settle returns, no renewal is in flight or will be sent. It reports nil when the message
// was held until now, otherwise why it wasn't. Calling it again reports the same.
func (l *Lease) Settle() error {
	_ = l.Err() // one that has run out is lost, even if its own goroutine hasn't come to it yet
	inCall, err := l.finish(ErrSettled)
	if inCall != nil {
		<-inCall
	}
	return err
}

// Supersede ends the lease without writing anything more: the message has been received again, under another lease. On a
// standard queue a handle that a newer receive has replaced still works, and a release by it would give the message away
// under that lease. A call in flight can't be taken back. Unlike Settle, it doesn't wait.
func (l *Lease) Supersede() { l.finish(ErrSuperseded) }

// finish ends the lease for a reason, unless it is over already; it reports how it stood before.
func (l *Lease) finish(reason error) (inCall chan struct{}, before error) {
	l.mu.Lock()
	inCall, before = l.inCall, l.ended
	pending := l.pending
	if before == nil {
		l.endLocked(reason)
	}
	if errors.Is(before, ErrSettled) {
		before = nil
	}
	answer := l.answerLocked(reason)
	l.mu.Unlock()
	l.cancel(reason)
	if pending {
		l.h.batch.withdraw(l)
	}
	answer()
	return inCall, before
}

// Release gives the message back: no more renewals, and its visibility becomes d from the moment the call
// is made (zero: at once visible to others), cut to the ceiling. The change is retried until the lease ends; but once
// an answer was lost, not beyond the moment from which on it would have made the message somebody else's.
// The holder's context is left alone until then. done, which may be nil, hears once how it went: nil when SQS
// confirmed it; otherwise the message comes back when its visibility ends. It is called from another goroutine,
// or from this one when the lease is over already, and must not block.
func (l *Lease) Release(d time.Duration, done func(error)) {
	if done == nil {
		done = func(error) {}
	}
	l.mu.Lock()
	ended := l.ended
	if ended == nil && l.final != nil {
		ended = ErrSettled
	}
	if ended == nil {
		l.final = &final{visibility: d, done: done}
		l.failures, l.retryAt = 0, time.Time{}
	}
	l.mu.Unlock()
	if ended != nil {
		done(ended)
		return
	}
	l.h.batch.hurry(l)
	l.poke()
}

// begin starts the lease, under mu.
func (l *Lease) begin() {
	l.timer = time.AfterFunc(time.Until(l.nextLookLocked()), l.turn)
}

// poke says that the state has changed: what is due now is done now, and the rest when its time has come.
func (l *Lease) poke() {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.ended != nil:
	case l.turning:
		l.again = true
	default:
		l.waitLocked()
	}
}

// waitLocked has the lease's goroutine come when time next changes something.
func (l *Lease) waitLocked() {
	if wait := time.Until(l.nextLookLocked()); wait > 0 {
		l.timer.Reset(wait)
	} else {
		go l.turn()
	}
}

// turn is the message's own goroutine.
func (l *Lease) turn() {
	if !l.claim() {
		return
	}
	defer l.h.leases.Done()
	for !l.look() && !l.rest() {
	}
}

// claim makes the goroutine that asks the lease's own; false when it has one, or is over.
func (l *Lease) claim() bool {
	l.mu.Lock()
	if l.ended != nil || l.turning {
		l.again = l.turning
		l.mu.Unlock()
		return false
	}
	l.turning = l.h.enter()
	closed := !l.turning
	l.mu.Unlock()
	if closed {
		l.finish(ErrSettled)
	}
	return !closed
}

// rest ends the goroutine until there is something to do again; false when there is already.
func (l *Lease) rest() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.ended != nil:
	case l.again || time.Until(l.nextLookLocked()) <= 0:
		l.again = false
		return false
	default:
		l.turning = false
		l.waitLocked()
	}
	return true
}

// endLocked ends the lease for a reason.
func (l *Lease) endLocked(reason error) {
	l.ended = reason
	l.timer.Stop()
	l.h.delist(l)
	l.h.count.held.Add(-1)
}

// nextLookLocked is when time alone changes something.
func (l *Lease) nextLookLocked() time.Time {
	next := l.deadline
	if due, ok := l.dueLocked(); ok && due.Before(next) {
		next = due
	}
	if tell := l.tellLocked(); !l.told && tell.Before(next) {
		next = tell
	}
	return next
}

// dueLocked is when the next call for this lease may be submitted; false when there's nothing to submit.
func (l *Lease) dueLocked() (time.Time, bool) {
	var due time.Time
	switch {
	case l.pending || l.ended != nil:
		return due, false
	case l.final != nil || l.want > 0:
		return l.retryAt, true
	case l.h.cfg.Interval == Never || l.ceiling.Sub(l.deadline) < time.Second:
		return due, false
	}
	lease := l.deadline.Sub(l.granted)
	reserve := l.h.reserve
	if lease < l.h.cfg.Visibility { // a shorter lease is renewed at the same part of it
		reserve = time.Duration(float64(lease) * float64(reserve) / float64(l.h.cfg.Visibility))
	}
	due = l.deadline.Add(-reserve)
	if l.retryAt.After(due) {
		due = l.retryAt
	}
	return due, true
}

func (l *Lease) tellLocked() time.Time { return l.ceiling.Add(-l.h.cfg.CeilingMargin) }

// look does what is due now and reports whether the lease is over.
func (l *Lease) look() (over bool) {
	l.mu.Lock()
	now := time.Now()
	if l.ended != nil {
		l.mu.Unlock()
		return true
	}
	if !now.Before(l.deadline) {
		cause := l.lapseLocked()
		l.mu.Unlock()
		l.lose(cause)
		return true
	}
	tell := !l.told && !now.Before(l.tellLocked())
	l.told = l.told || tell
	due, ok := l.dueLocked()
	submit := ok && !now.Before(due)
	var hooks []func(context.Context, time.Time) error
	if submit {
		l.pending = true
		if l.final == nil {
			hooks = l.hooks
		}
	}
	leaveBy := l.leaveByLocked(now)
	l.mu.Unlock()

	if tell {
		l.h.count.ceilings.Add(1)
		l.cancel(ErrCeiling)
	}
	if submit && (len(hooks) == 0 || l.runHooks(hooks)) {
		l.h.batch.submit(l, leaveBy)
	}
	return false
}

// leaveByLocked: an extension that the holder waits for, and a message given back, hardly wait for company.
func (l *Lease) leaveByLocked(now time.Time) time.Time {
	wait := min(l.h.cfg.gather(), l.deadline.Sub(now)/10)
	if l.final != nil || l.want > 0 {
		wait = min(wait, 2*time.Millisecond)
	}
	return now.Add(wait)
}

// lapseLocked says why the time ran out.
func (l *Lease) lapseLocked() error {
	switch {
	case l.final != nil && l.failures > 0:
		return fmt.Errorf("%w: message %s: giving it back failed %d times, the last one with %s", ErrLost, l.id, l.failures, Code(l.lastErr))
	case l.h.cfg.Interval == Never:
		return fmt.Errorf("%w: message %s: the visibility timeout ran out and heartbeats are off", ErrLost, l.id)
	case l.lastErr != nil && l.failures > 0:
		return fmt.Errorf("%w: message %s: the visibility timeout ran out; %d attempts to renew it failed, the last one with %s", ErrLost, l.id, l.failures, Code(l.lastErr))
	case l.told:
		return fmt.Errorf("%w: message %s: %w", ErrLost, l.id, ErrCeiling)
	}
	return fmt.Errorf("%w: message %s: the visibility timeout ran out before a renewal got through", ErrLost, l.id)
}

// lose ends the lease as lost, once.
func (l *Lease) lose(cause error) {
	l.mu.Lock()
	if l.ended != nil {
		l.mu.Unlock()
		return
	}
	l.endLocked(cause)
	if l.final == nil { // what is given back isn't anybody's loss
		l.h.count.lost.Add(1)
	}
	answer := l.answerLocked(cause)
	l.mu.Unlock()
	l.h.batch.withdraw(l)
	l.cancel(cause)
	answer()
}

// answerLocked takes whoever waits for an extension or a release, and returns what tells them, to be
// called without the mutex.
func (l *Lease) answerLocked(err error) func() {
	wantDone, final := l.wantDone, l.final
	l.want, l.wantDone, l.final = 0, nil, nil
	return func() {
		if wantDone != nil {
			wantDone <- err
		}
		if final != nil {
			final.done(err)
		}
	}
}

// runHooks renews what rides along, before the visibility. It reports whether the renewal may go on.
func (l *Lease) runHooks(hooks []func(context.Context, time.Time) error) bool {
	l.mu.Lock()
	if l.ended != nil {
		l.mu.Unlock()
		return false
	}
	busy := make(chan struct{})
	l.inCall = busy
	asked := max(l.want, l.h.cfg.Visibility)
	deadline, ceiling := l.deadline, l.ceiling
	l.mu.Unlock()

	until := time.Now().Add(asked + l.h.cfg.gather())
	if until.After(ceiling) {
		until = ceiling
	}
	ctx, cancel := context.WithDeadline(l.h.ctx, deadline)
	var err error
	for _, renew := range hooks {
		if err = renew(ctx, until); err != nil {
			break
		}
	}
	cancel()

	lost := err != nil && errors.Is(err, ErrLost)
	l.mu.Lock()
	l.inCall = nil
	if err != nil && !lost {
		l.retryLocked(err)
	}
	l.mu.Unlock()
	close(busy)
	if lost {
		l.lose(fmt.Errorf("message %s: %w", l.id, err))
	}
	return err == nil
}

// retryLocked sets the next attempt after a failure that can pass: soon at first, and always early
// enough that several more fit into what is left of the lease.
func (l *Lease) retryLocked(err error) {
	l.pending = false
	l.failures++
	l.lastErr = err
	backoff := min(50*time.Millisecond<<min(l.failures-1, 10), 5*time.Second, time.Until(l.deadline)/4)
	backoff = max(backoff, 10*time.Millisecond)
	l.retryAt = time.Now().Add(backoff/2 + rand.N(backoff/2+1))
}
