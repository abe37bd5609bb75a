package main

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// ledger keeps the truth about every message: what the server did with it, and when handlers ran it. Nothing in it is
// what a worker says about itself.
type ledger struct {
	mu        sync.Mutex
	queue     string // the source queue's name
	entries   map[string]*entry
	now       counts
	released  []string          // ids of messages given back with visibility 0
	moved     []string          // ids of messages that went to the dead-letter queue
	deletions []string          // ids of messages that were deleted
	failing   map[string]string // ids of messages whose first delete is to fail, by each receipt handle
	lastAt    time.Time

	killed   string // the worker that was killed
	killedAt time.Time
}

// entry is one message.
type entry struct {
	message message
	events  []sqsmodel.Event
	runs    []handlerRun
}

// handlerRun is one call of the handler.
type handlerRun struct {
	worker   string
	from, to time.Time // to is zero while it runs
	end      ending
}

// ending is how a run of the handler ended.
type ending int

const (
	failed      ending = iota
	succeeded          // the handler returned nil
	interrupted        // the worker stopped and couldn't wait
	cut                // its process was killed
)

func endingOf(err error) ending {
	switch {
	case err == nil:
		return succeeded
	case errors.Is(err, worker.ErrShutdown):
		return interrupted
	}
	return failed
}

// counts is how things stand now.
type counts struct {
	sent, received, deleted, dead int
}

func (c counts) done() int { return c.deleted + c.dead }

func newLedger(queue string) *ledger {
	return &ledger{queue: queue, entries: map[string]*entry{}, failing: map[string]string{}}
}

func (l *ledger) entry(id string) *entry {
	e := l.entries[id]
	if e == nil {
		e = &entry{}
		l.entries[id] = e
	}
	return e
}

// event takes down what the server did. It is called in the goroutine of the call that caused it.
func (l *ledger) event(ev sqsmodel.Event) {
	if ev.Queue != l.queue {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entry(ev.MessageID)
	e.events = append(e.events, ev)
	l.lastAt = ev.At
	switch ev.Kind {
	case sqsmodel.Sent:
		l.now.sent++
	case sqsmodel.Received:
		l.now.received++
		if e.message.job.deleteFails {
			l.failing[ev.Handle] = ev.MessageID
		}
	case sqsmodel.Deleted:
		l.now.deleted++
		l.deletions = append(l.deletions, ev.MessageID)
	case sqsmodel.DeadLettered:
		l.now.dead++
		l.moved = append(l.moved, ev.MessageID)
	case sqsmodel.VisibilityChanged:
		if ev.VisibilityTimeout == 0 { // a failure's back-off is a second at least, so this is a worker that stops
			l.released = append(l.released, ev.MessageID)
		}
	}
}

// sent takes down which message got which id.
func (l *ledger) sent(id string, m message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entry(id).message = m
}

// watch is a middleware that takes down when handlers run.
func (l *ledger) watch(name string) worker.Middleware {
	return func(next worker.Handler) worker.Handler {
		return worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			number := l.begin(name, m.ID, time.Now())
			err := next.Handle(ctx, m)
			l.end(m.ID, number, time.Now(), endingOf(err))
			return err
		})
	}
}

// begin takes down the start of a run, and returns its number among the message's runs.
func (l *ledger) begin(name, id string, at time.Time) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entry(id)
	e.runs = append(e.runs, handlerRun{worker: name, from: at})
	return len(e.runs) - 1
}

func (l *ledger) end(id string, number int, at time.Time, how ending) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &l.entry(id).runs[number]
	r.to, r.end = at, how
}

// kill takes down that a worker died; its runs end here.
func (l *ledger) kill(name string, at time.Time) (running int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.killed, l.killedAt = name, at
	for _, e := range l.entries {
		for i := range e.runs {
			if r := &e.runs[i]; r.worker == name && r.to.IsZero() {
				r.to, r.end = at, cut
				running++
			}
		}
	}
	return running
}

func (l *ledger) counts() counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

// lastEvent is when anything happened last.
func (l *ledger) lastEvent() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastAt
}

// job is what a message asked for.
func (l *ledger) job(id string) job {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.entry(id).message.job
}

func (l *ledger) size(id string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.entry(id).message.body)
}

// deadLettered are the ids of the messages that went to the dead-letter queue, after the first skip ones.
func (l *ledger) deadLettered(skip int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.moved[min(skip, len(l.moved)):])
}

// failingDelete is the id of the message that was received with a handle, if its first delete is to fail.
func (l *ledger) failingDelete(handle string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failing[handle]
}

// suppression is a message that was deleted without a run, because its work was done.
type suppression struct {
	name  string
	again bool // by an earlier delivery of the same message; else by another message
}

// suppressed are those among the deletions that weren't seen before.
func (l *ledger) suppressed(seen *int) (all []suppression) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range l.deletions[*seen:] {
		if e := l.entries[id]; e.suppressed() {
			all = append(all, suppression{e.message.job.name, e.succeeded()})
		}
	}
	*seen = len(l.deletions)
	return all
}

// failedLast tells whether the last run of a message that has ended was a failure.
func (l *ledger) failedLast(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	runs := l.entry(id).runs
	if len(runs) == 0 {
		return false
	}
	last := runs[len(runs)-1]
	return !last.to.IsZero() && last.end == failed
}

// comeback is how messages came back after they were given back, or lost to a crash.
type comeback struct {
	messages, back    int
	soonest, farthest time.Duration
}

func (c *comeback) add(took time.Duration) {
	if c.back == 0 || took < c.soonest {
		c.soonest = took
	}
	c.farthest = max(c.farthest, took)
	c.back++
}

// pickedUp says how the messages given back at the stop were received again.
func (l *ledger) pickedUp() comeback {
	l.mu.Lock()
	defer l.mu.Unlock()
	ids := slices.Clone(l.released)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	c := comeback{messages: len(ids)}
	for _, id := range ids {
		released := time.Time{}
		for _, ev := range l.entries[id].ordered() {
			switch {
			case ev.Kind == sqsmodel.VisibilityChanged && ev.VisibilityTimeout == 0:
				released = ev.At
			case ev.Kind == sqsmodel.Received && !released.IsZero():
				c.add(ev.At.Sub(released))
				released = time.Time{}
			case ev.Kind == sqsmodel.DeadLettered && !released.IsZero(): // it was its last chance, and nobody needs to take it up
				c.back++
				released = time.Time{}
			}
		}
	}
	return c
}

// since says when these messages first met with an event of a kind after a moment.
func (l *ledger) since(kind sqsmodel.EventKind, ids []string, at time.Time) comeback {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := comeback{messages: len(ids)}
	for _, id := range ids {
		for _, ev := range l.entries[id].ordered() {
			if ev.At.After(at) && ev.Kind == kind {
				c.add(ev.At.Sub(at))
				break
			}
		}
	}
	return c
}

// ordered are the events in the order in which the server applied them: calls that end together may tell them in another.
func (e *entry) ordered() []sqsmodel.Event {
	events := slices.Clone(e.events)
	slices.SortFunc(events, func(a, b sqsmodel.Event) int { return cmp.Compare(a.Seq, b.Seq) })
	return events
}

// putOff tells whether a message was given back and waits for its time.
func (l *ledger) putOff(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	events := l.entry(id).ordered()
	return len(events) > 0 && events[len(events)-1].Kind == sqsmodel.VisibilityChanged && !l.entry(id).running()
}

func (e *entry) running() bool {
	return slices.ContainsFunc(e.runs, func(r handlerRun) bool { return r.to.IsZero() })
}
