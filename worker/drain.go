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

func (e *DrainError) empty() bool {
	return len(e.Running) == 0 && len(e.Unsettled) == 0 && e.AbortedReceives == 0
}

func few(ids []string) string {
	if len(ids) > 5 {
		return strings.Join(ids[:5], ", ") + ", …"
	}
	return strings.Join(ids, ", ")
}

// drain ends the run, in the order that Run's documentation gives. polled is closed when the poller has ended.
func (r *run) drain(ctx context.Context, polled <-chan struct{}) error {
	began := time.Now()
	s := r.scheduleFrom(began, context.Cause(ctx))
	r.cancelAt.Store(&s.cancel)
	table := newTimetable(s)
	defer r.follow(ctx, table)()
	r.stopping.Store(true)
	r.leftBehind.begin()
	r.unsettled.lift()
	close(r.stopPolling)
	_, running := r.dispatcher.counts()
	unstarted, slots := r.dispatcher.close()
	r.log.Info("draining", "running", running, "unstarted", len(unstarted), "until", s.end.Sub(began).Round(time.Millisecond), "cause", context.Cause(ctx))
	r.deleter.hurry()
	defer r.abortPollsInTime(polled, table)()
	if !s.cancel.After(began) {
		r.cancelWork(ErrShutdown) // no time at all: don't wait for the releases of what wasn't started
	}
	handedBack := r.giveBackUnstarted(unstarted, polled, table)
	r.slots.give(slots)

	result := &DrainError{}
	if !table.await(r.dispatcher.idle, byCancel) {
		r.cancelWork(ErrShutdown)
		if !table.await(r.dispatcher.idle, byForce) {
			result.Running = r.abandonRunning()
		}
	}
	<-polled // ends by itself, or is broken off in time
	handedBack()
	result.AbortedReceives = int(r.stats.abortedReceives.Load())
	result.Unsettled = append(r.waitSettled(table), r.leftBehind.ids...)
	slices.Sort(result.Unsettled)
	result.Unsettled = slices.Compact(result.Unsettled)
	r.heartbeat.Close()
	r.tell.drained(time.Since(began), result.empty())
	r.log.Info("drained", "took", time.Since(began).Round(time.Millisecond), "unreturned", len(result.Running), "unsettled", len(result.Unsettled))
	if result.empty() {
		return nil
	}
	return result
}

// abortPollsInTime breaks off the receives that are still open when the time for them is over. stop ends its goroutine.
func (r *run) abortPollsInTime(polled <-chan struct{}, t *timetable) (stop func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if !t.await(polled, byAbort) {
			r.abortPolls()
		}
	}()
	return func() { <-done } // polled is closed by then
}

// abandonRunning gives back the messages whose handlers don't return.
func (r *run) abandonRunning() (ids []string) {
	for _, d := range r.registry.abandon() {
		ids = append(ids, d.id)
		r.noteUnfailed(d)
		r.giveBackOne(d, 0, &r.stats.interrupted, nil)
		if d.successor != nil {
			r.giveBackOne(d.successor, 0, &r.stats.releasedUnstarted, nil)
		}
	}
	slices.Sort(ids)
	return ids
}

// waitSettled waits until nothing is being deleted or given back, at most until the end, and names what still is.
func (r *run) waitSettled(t *timetable) []string {
	settled := make(chan struct{})
	go func() {
		r.unsettled.all.Wait()
		close(settled)
	}()
	if t.await(settled, byEnd) {
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
