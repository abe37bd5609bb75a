package worker_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// moving is the cause of a context's end whose deadline can become earlier.
type moving struct {
	mu        sync.Mutex
	at        time.Time
	tightened chan struct{}
}

func (m *moving) Error() string { return "going away" }

func (m *moving) Deadline() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.at
}

func (m *moving) Tightened() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tightened
}

func (m *moving) move(at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at = at
	close(m.tightened)
	m.tightened = make(chan struct{})
}

// A drain under way keeps to the earliest deadline that it hears of.
func TestASecondInterruptionTightensTheDrain(t *testing.T) {
	type second struct {
		first       time.Duration // deadline of the first, from the stop; 0: none
		after       time.Duration // when the second one comes
		in          time.Duration // how long it leaves
		cancelled   time.Duration // from the stop until handlers are cancelled
		wrap        bool
		heed        bool
		least, most time.Duration // from the stop until Run returns
	}
	each(t, map[string]second{
		"no deadline first":          {0, 10 * time.Second, 30 * time.Second, 33 * time.Second, false, true, 33 * time.Second, 34 * time.Second},
		"two minutes become thirty":  {2 * time.Minute, 10 * time.Second, 30 * time.Second, 33 * time.Second, false, true, 33 * time.Second, 34 * time.Second},
		"wrapped":                    {2 * time.Minute, 10 * time.Second, 30 * time.Second, 33 * time.Second, true, true, 33 * time.Second, 34 * time.Second},
		"handlers ignore it":         {2 * time.Minute, 10 * time.Second, 30 * time.Second, 33 * time.Second, false, false, 38 * time.Second, 40 * time.Second},
		"later changes nothing":      {30 * time.Second, 10 * time.Second, 2 * time.Minute, 23 * time.Second, false, true, 23 * time.Second, 24 * time.Second},
		"less than five seconds":     {2 * time.Minute, 10 * time.Second, 4 * time.Second, 10 * time.Second, false, true, 10 * time.Second, 11 * time.Second},
		"five seconds and deaf":      {2 * time.Minute, 10 * time.Second, 4 * time.Second, 10 * time.Second, false, false, 11 * time.Second, 14 * time.Second},
		"past":                       {2 * time.Minute, 10 * time.Second, -time.Minute, 10 * time.Second, false, true, 10 * time.Second, 11 * time.Second},
		"after handlers' own cancel": {30 * time.Second, 24 * time.Second, 2 * time.Second, 23 * time.Second, false, false, 24 * time.Second, 26 * time.Second},
	}, func(t *testing.T, c second) {
		q := newQueue(t, "VisibilityTimeout", "30")
		q.send(3)
		var mu sync.Mutex
		var cancelled []time.Time
		var told atomic.Pointer[time.Time]
		w := q.start(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			<-ctx.Done()
			at, _ := worker.DrainDeadline(ctx)
			told.Store(&at)
			mu.Lock()
			cancelled = append(cancelled, time.Now())
			mu.Unlock()
			if !c.heed {
				time.Sleep(time.Hour)
			}
			return context.Cause(ctx)
		}), worker.Config{Concurrency: 3, DrainTimeout: time.Hour})
		time.Sleep(time.Second)
		stopped := time.Now()
		m := &moving{tightened: make(chan struct{})}
		if c.first > 0 {
			m.at = stopped.Add(c.first)
		}
		time.AfterFunc(c.after, func() {
			if c.in < c.first || c.first == 0 {
				m.move(time.Now().Add(c.in))
			}
		})
		var cause error = m
		if c.wrap {
			cause = fmt.Errorf("stopping: %w", errors.Join(errors.New("something else"), m))
		}
		err := w.stopBecause(cause)
		took := time.Since(stopped)
		if took < c.least || took > c.most {
			t.Errorf("Run returned after %v, want %v to %v", took, c.least, c.most)
		}
		var drain *worker.DrainError
		if c.heed && err != nil || !c.heed && (!errors.As(err, &drain) || len(drain.Running) != 3) {
			t.Errorf("Run returned %v", err)
		}
		mu.Lock()
		defer mu.Unlock()
		if len(cancelled) != 3 {
			t.Fatalf("%d handlers were cancelled", len(cancelled))
		}
		for _, at := range cancelled {
			if at.Sub(stopped) != c.cancelled {
				t.Errorf("a handler was cancelled after %v, want %v", at.Sub(stopped), c.cancelled)
			}
		}
		if told.Load().After(cancelled[0]) {
			t.Errorf("a handler was told %v, and cancelled %v before", told.Load(), told.Load().Sub(cancelled[0]))
		}
		if st := q.state(); st.Visible != 3 {
			t.Errorf("%d of 3 messages are visible at the return", st.Visible)
		}
		time.Sleep(2 * time.Hour)
	})
}

// With less than five seconds there is nothing to wait for: what was started and what wasn't goes back at once.
func TestWithLessThanFiveSecondsLeftEverythingIsGivenBackAtOnce(t *testing.T) {
	each(t, map[string]time.Duration{"4.9 s": 4900 * time.Millisecond, "2 s": 2 * time.Second, "past": -time.Minute}, func(t *testing.T, left time.Duration) {
		q := newQueueAt(t, sqsmodel.Config{Latency: 12 * time.Millisecond})
		q.send(100)
		w := q.start(worker.HandlerFunc(takes(never)), worker.Config{Concurrency: 50, Prefetch: 50})
		eventually(t, 10*time.Second, "all held", func() bool { return q.state().InFlight == 100 })
		stopped := time.Now()
		if err := w.stopBecause(interruption{stopped.Add(left)}); err != nil {
			t.Errorf("Run returned %v", err)
		}
		for _, e := range q.events("", sqsmodel.VisibilityChanged) {
			if e.VisibilityTimeout == 0 && e.At.Sub(stopped) > 100*time.Millisecond {
				t.Fatalf("a message was given back %v after the stop", e.At.Sub(stopped))
			}
		}
		if st := q.state(); st.Visible != 100 {
			t.Errorf("%d of 100 messages are visible", st.Visible)
		}
		q.mustBeQuiet()
	})
}

// An open receive may have been handed messages already; even in a hurry it isn't broken off before the last moment.
func TestAnOpenReceiveIsKeptUntilTheLastSecondOfAHurriedDrain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		w := q.start(worker.HandlerFunc(succeed), worker.Config{})
		time.Sleep(time.Second)
		stopped := time.Now()
		time.AfterFunc(3*time.Second, func() { q.send(1) })
		err := w.stopBecause(interruption{stopped.Add(4 * time.Second)})
		if took := time.Since(stopped); err != nil || took < 3*time.Second || took > 4*time.Second {
			t.Errorf("Run returned %v after %v", err, took)
		}
		synctest.Wait()
		if st := q.state(); st.Visible != 1 {
			t.Errorf("the message that came meanwhile isn't visible")
		}
	})
}

// stuck is a cause that says it once, and keeps the closed channel.
type stuck struct{ moving }

func (s *stuck) Tightened() <-chan struct{} { return s.tightened }

func TestACauseWhoseChannelStaysClosedIsNotAskedForEver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.send(1)
		w := q.start(worker.HandlerFunc(takes(30*time.Second)), worker.Config{Concurrency: 1, DrainTimeout: time.Minute})
		time.Sleep(time.Second)
		s := &stuck{moving{tightened: make(chan struct{})}}
		close(s.tightened)
		if err := w.stopBecause(s); err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
}
