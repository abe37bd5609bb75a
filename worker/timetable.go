package worker

import (
	"context"
	"errors"
	"sync"
	"time"
)

// schedule is when each part of a drain ends.
type schedule struct {
	cancel time.Time // running handlers are cancelled
	force  time.Time // what still runs is given back all the same
	abort  time.Time // open receives are broken off
	risk   time.Time // what was kept back from them is given back all the same
	end    time.Time // Run returns
}

const (
	// hurried is what a drain must have left for running handlers to go on. With less, everything is given back at once.
	hurried = 5 * time.Second
	// leastDrain is what a drain takes for its releases even when its deadline is past: until it is killed it may as well.
	leastDrain = time.Second
)

// configuredSchedule is DrainTimeout's.
func (c Config) configuredSchedule(now time.Time) schedule {
	budget, grace := c.DrainTimeout, c.CancelGrace
	if budget == NoDrain {
		budget = grace + settleReserve(10*time.Second)
	}
	s := fit(now, budget, grace)
	if c.DrainTimeout == NoDrain {
		s.cancel = now
	}
	return s
}

// scheduleBy fits the drain into an interruption's own deadline.
func (c Config) scheduleBy(now, deadline time.Time) schedule {
	budget := max(deadline.Sub(now), leastDrain)
	grace := min(c.CancelGrace, budget/4)
	s := fit(now, budget, grace)
	if budget < hurried {
		s.cancel, s.force, s.risk = now, now.Add(grace), now
	}
	return s
}

func fit(now time.Time, budget, grace time.Duration) schedule {
	s := schedule{end: now.Add(budget)}
	s.force = s.end.Add(-settleReserve(budget))
	s.cancel, s.abort, s.risk = s.force.Add(-grace), s.force, s.end // by which receives have been broken off
	return s
}

// earlier takes the earlier of each.
func (s schedule) earlier(t schedule) schedule {
	return schedule{first(s.cancel, t.cancel), first(s.force, t.force), first(s.abort, t.abort), first(s.risk, t.risk), first(s.end, t.end)}
}

func first(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// scheduleFrom fits the drain into the configured time and the interruption's own deadline, whichever is earlier.
func (r *run) scheduleFrom(now time.Time, cause error) schedule {
	s := r.cfg.configuredSchedule(now)
	if at, ok := deadlineOf(cause); ok && at.Before(s.end) {
		s = s.earlier(r.cfg.scheduleBy(now, at))
	}
	return s
}

// deadlineOf asks the cause of a context's end by when everything must be over.
func deadlineOf(cause error) (time.Time, bool) {
	var d interface{ Deadline() time.Time }
	if !errors.As(cause, &d) {
		return time.Time{}, false
	}
	at := d.Deadline()
	return at, !at.IsZero()
}

// timetable is the schedule of the drain under way. A second interruption may tighten it: a Spot notice after SIGTERM.
type timetable struct {
	mu        sync.Mutex
	current   schedule
	tightened chan struct{} // closed when current becomes earlier, and replaced
}

func newTimetable(s schedule) *timetable {
	return &timetable{current: s, tightened: make(chan struct{})}
}

func (t *timetable) now() (schedule, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.current, t.tightened
}

// tighten reports whether the schedule has become earlier.
func (t *timetable) tighten(s schedule) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !s.end.Before(t.current.end) {
		return false
	}
	t.current = t.current.earlier(s)
	close(t.tightened)
	t.tightened = make(chan struct{})
	return true
}

// await reports whether done was closed before the schedule's time for it.
func (t *timetable) await(done <-chan struct{}, when func(schedule) time.Time) bool {
	for {
		s, tightened := t.now()
		select {
		case <-done:
			return true
		default:
		}
		timer := time.NewTimer(time.Until(when(s)))
		select {
		case <-done:
			timer.Stop()
			return true
		case <-timer.C:
			return false
		case <-tightened:
			timer.Stop()
		}
	}
}

func byCancel(s schedule) time.Time { return s.cancel }
func byForce(s schedule) time.Time  { return s.force }
func byAbort(s schedule) time.Time  { return s.abort }
func byRisk(s schedule) time.Time   { return s.risk }
func byEnd(s schedule) time.Time    { return s.end }

// follow keeps to a cause whose deadline becomes earlier while the worker drains. stop ends that, and waits for it.
func (r *run) follow(ctx context.Context, t *timetable) (stop func()) {
	var cause interface {
		Deadline() time.Time
		Tightened() <-chan struct{}
	}
	if !errors.As(context.Cause(ctx), &cause) {
		return func() {}
	}
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var before <-chan struct{}
		for {
			again := cause.Tightened() // before the deadline is read, so that no change falls between
			if again == before {
				return // it was closed and isn't replaced: nothing more will be said
			}
			before = again
			r.tighten(cause.Deadline(), t)
			select {
			case <-again:
			case <-over:
				return
			}
		}
	}()
	return func() { close(over); <-done }
}

func (r *run) tighten(deadline time.Time, t *timetable) {
	now := time.Now()
	if deadline.IsZero() || !t.tighten(r.cfg.scheduleBy(now, deadline)) {
		return
	}
	s, _ := t.now()
	r.cancelAt.Store(&s.cancel)
	r.log.Info("the drain's deadline has become earlier", "left", s.end.Sub(now).Round(time.Millisecond))
}
