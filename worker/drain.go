package worker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// DrainError is what Run returns when the time was over before everything was settled.
type DrainError struct {
	// Running are the ids of messages whose handlers had not returned. The messages were given back, unless they are
	// in Unsettled too; the handlers may still be running.
	Running []string
	// Unsettled are the ids of messages that could be neither deleted nor given back in time. They come back when
	// their visibility ends.
	Unsettled []string
	// AbortedReceives counts receives that were broken off. SQS may have handed out messages to them, which come back
	// when their visibility ends.
	AbortedReceives int
}

func (e *DrainError) Error() string {
	var parts []string
	if n := len(e.Running); n > 0 {
		parts = append(parts, fmt.Sprintf("%d handlers didn't return within CancelGrace (messages %s)", n, few(e.Running)))
	}
	if n := len(e.Unsettled); n > 0 {
		parts = append(parts, fmt.Sprintf("%d messages were neither deleted nor given back (%s)", n, few(e.Unsettled)))
	}
	if e.AbortedReceives > 0 {
		parts = append(parts, fmt.Sprintf("%d open receives were broken off", e.AbortedReceives))
	}
	return "worker: drain incomplete: " + strings.Join(parts, "; ")
}

func few(ids []string) string {
	if len(ids) > 5 {
		return strings.Join(ids[:5], ", ") + ", …"
	}
	return strings.Join(ids, ", ")
}

// schedule is when each part of a drain ends.
type schedule struct {
	cancel time.Time // running handlers are cancelled
	force  time.Time // what still runs is given back all the same
	end    time.Time // Run returns
}

// scheduleFrom fits the drain into the configured time and the interruption's own deadline, whichever is earlier.
func (r *run) scheduleFrom(now time.Time, cause error) schedule {
	budget, grace := r.cfg.DrainTimeout, r.cfg.CancelGrace
	if budget == NoDrain {
		budget = grace + settleReserve(10*time.Second)
	}
	if at, ok := deadlineOf(cause); ok && at.Before(now.Add(budget)) {
		budget = max(at.Sub(now), 0)
		grace = min(grace, budget/4)
	}
	s := schedule{end: now.Add(budget)}
	s.force = s.end.Add(-settleReserve(budget))
	s.cancel = s.force.Add(-grace)
	if r.cfg.DrainTimeout == NoDrain {
		s.cancel = now
	}
	return s
}

// deadlineOf asks the cause of a context's end by when everything must be over.
func deadlineOf(cause error) (time.Time, bool) {
	for cause != nil {
		if d, ok := cause.(interface{ Deadline() time.Time }); ok {
			at := d.Deadline()
			return at, !at.IsZero()
		}
		u, ok := cause.(interface{ Unwrap() error })
		if !ok {
			break
		}
		cause = u.Unwrap()
	}
	return time.Time{}, false
}

// drain ends the run, in the order that Run's documentation gives. polled is closed when the poller has ended.
func (r *run) drain(ctx context.Context, polled <-chan struct{}) error {
	began := time.Now()
	s := r.scheduleFrom(began, context.Cause(ctx))
	r.cancelAt.Store(&s.cancel)
	r.stopping.Store(true)
	r.leftBehind.begin()
	r.unsettled.lift()
	close(r.stopPolling)
	_, running := r.dispatcher.counts()
	unstarted, slots := r.dispatcher.close()
	r.log.Info("draining", "running", running, "unstarted", len(unstarted), "until", s.end.Sub(began).Round(time.Millisecond), "cause", context.Cause(ctx))
	r.deleter.hurry()
	r.giveBackUnstarted(unstarted, polled, s.cancel)
	r.slots.give(slots)

	abort := time.AfterFunc(time.Until(s.force), r.abortPolls)
	defer abort.Stop()
	result := &DrainError{}
	if !waitUntil(r.dispatcher.idle, s.cancel) {
		r.cancelWork(ErrShutdown)
		if !waitUntil(r.dispatcher.idle, s.force) {
			result.Running = r.abandonRunning()
		}
	}
	<-polled // ends by itself, or is broken off at s.force
	result.AbortedReceives = int(r.stats.abortedReceives.Load())
	result.Unsettled = append(r.waitSettled(s.end), r.leftBehind.ids...)
	slices.Sort(result.Unsettled)
	result.Unsettled = slices.Compact(result.Unsettled)
	r.heartbeat.Close()
	r.log.Info("drained", "took", time.Since(began).Round(time.Millisecond), "unreturned", len(result.Running), "unsettled", len(result.Unsettled))
	if len(result.Running) == 0 && len(result.Unsettled) == 0 && result.AbortedReceives == 0 {
		return nil
	}
	return result
}

// giveBackUnstarted releases what was never started. A receive of our own that is still open would take released
// messages right back, at the price of a receive more on their count. While one is, messages are released one at a time:
// each goes to somebody else, or ends an open receive of ours.
func (r *run) giveBackUnstarted(unstarted []*delivery, polled <-chan struct{}, by time.Time) {
	giveUp := time.Now().Add(time.Second)
	if by.Before(giveUp) {
		giveUp = by
	}
	for len(unstarted) > 0 && time.Now().Before(giveUp) && !waitUntil(polled, time.Now().Add(50*time.Millisecond)) {
		r.giveBack(unstarted[:1], 0, 0)
		unstarted = unstarted[1:]
	}
	r.giveBack(unstarted, 0, 0)
}

// abandonRunning gives back the messages whose handlers don't return.
func (r *run) abandonRunning() (ids []string) {
	for _, d := range r.registry.abandon() {
		ids = append(ids, d.id)
		r.giveBackOne(d, 0, &r.stats.interrupted, nil)
		if d.successor != nil {
			r.giveBackOne(d.successor, 0, &r.stats.releasedUnstarted, nil)
		}
	}
	slices.Sort(ids)
	return ids
}

// waitSettled waits until nothing is being deleted or given back, at most until end, and names what still is.
func (r *run) waitSettled(end time.Time) []string {
	settled := make(chan struct{})
	go func() {
		r.unsettled.all.Wait()
		close(settled)
	}()
	if waitUntil(settled, end) {
		return nil
	}
	ids := r.registry.ids()
	r.stopSettle()
	r.heartbeat.Close()                             // answers every release that is still under way
	waitUntil(settled, time.Now().Add(time.Second)) // only a function of AfterDelete that ignores its context takes longer
	return ids
}

// waitUntil reports whether done was closed before the time.
func waitUntil(done <-chan struct{}, at time.Time) bool {
	select {
	case <-done:
		return true
	default:
	}
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// leftBehind collects, during a drain, the ids of messages that could be neither deleted nor given back.
type leftBehind struct {
	mu    sync.Mutex
	begun bool
	ids   []string
}

func (l *leftBehind) begin() {
	l.mu.Lock()
	l.begun = true
	l.mu.Unlock()
}

func (l *leftBehind) add(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.begun { // before the drain nobody is told: the message comes back, and is counted
		l.ids = append(l.ids, id)
	}
}
