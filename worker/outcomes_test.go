package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

var errNo = errors.New("no")

func TestFailedMessageComesBackInGrowingGapsMeasuredFromTheFailure(t *testing.T) {
	each(t, map[string]time.Duration{"fast handler": 0, "slow handler": 45 * time.Second}, func(t *testing.T, takes time.Duration) {
		q := newQueueWithDLQ(t, 6)
		q.send(1)
		var r runs
		w := q.start(r.handler(func(context.Context, *worker.Message) error {
			time.Sleep(takes)
			return errNo
		}), worker.Config{Backoff: worker.Backoff{Min: 4 * time.Second, Max: 20 * time.Second}})
		eventually(t, 10*time.Minute, "dead-lettered", func() bool { return len(q.Queue(testDLQ).Messages) == 1 })
		list := r.list()
		if len(list) != 6 {
			t.Fatalf("%d runs before the dead-letter queue, want 6", len(list))
		}
		step := 4 * time.Second
		for i := range list[1:] {
			gap := list[i+1].started.Sub(list[i].ended)
			// Jittered over the step's upper half, and SQS counts whole seconds.
			if gap < step/2 || gap > step+time.Second {
				t.Errorf("gap %d is %v, want %v to %v", i+1, gap, step/2, step)
			}
			step = min(2*step, 20*time.Second)
		}
		w.mustStop()
	})
}

func TestMessagesThatFailTogetherComeBackApart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.send(50)
		w := q.start(worker.HandlerFunc(returns(errNo)), worker.Config{Concurrency: 50, Backoff: worker.Backoff{Min: 60 * time.Second}})
		time.Sleep(10 * time.Second)
		delays := map[time.Duration]bool{}
		for _, e := range q.events("", sqsmodel.VisibilityChanged) {
			delays[e.VisibilityTimeout] = true
		}
		if len(delays) < 15 {
			t.Errorf("50 failures have %d different delays", len(delays))
		}
		w.mustStop()
	})
}

// A count of receives isn't one of failures: a message that was snoozed isn't punished for it.
func TestBackoffCountsFailuresNotReceives(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		id := q.send(1)[0]
		var attempts []int
		w := q.start(worker.HandlerFunc(func(_ context.Context, m *worker.Message) error {
			attempts = append(attempts, m.Attempt)
			if m.ReceiveCount <= 8 {
				return worker.Snooze(time.Second)
			}
			return errNo
		}), worker.Config{Backoff: worker.Backoff{Min: 10 * time.Second}})
		eventually(t, time.Minute, "failed", func() bool { return w.Stats().Retried == 1 })
		changes := q.events(id, sqsmodel.VisibilityChanged)
		if last := changes[len(changes)-1].VisibilityTimeout; last > 10*time.Second {
			t.Errorf("the first failure keeps the message away for %v, want at most 10 s", last)
		}
		if !slices.Equal(attempts, slices.Repeat([]int{1}, 9)) {
			t.Errorf("attempts were counted as %v", attempts)
		}
		w.mustStop()
	})
}

func TestOutcomeDecidesWhenTheMessageComesBack(t *testing.T) {
	type outcome struct {
		err         error
		least, most time.Duration
		failed      bool
	}
	wrap := func(err error) error { return fmt.Errorf("charging order 7: %w", err) }
	each(t, map[string]outcome{
		"retry after":           {worker.RetryAfter(77*time.Second, errNo), 77 * time.Second, 77 * time.Second, true},
		"retry after, wrapped":  {wrap(worker.RetryAfter(77*time.Second, errNo)), 77 * time.Second, 77 * time.Second, true},
		"retry after, joined":   {errors.Join(errNo, worker.RetryAfter(77*time.Second, errNo)), 77 * time.Second, 77 * time.Second, true},
		"retry after half a s":  {worker.RetryAfter(500*time.Millisecond, errNo), time.Second, time.Second, true},
		"retry after 1.5 s":     {worker.RetryAfter(1500*time.Millisecond, errNo), 2 * time.Second, 2 * time.Second, true},
		"retry at once":         {worker.RetryAfter(0, errNo), 0, 0, true},
		"retry in the past":     {worker.RetryAfter(-time.Hour, errNo), 0, 0, true},
		"snooze":                {worker.Snooze(90 * time.Second), 90 * time.Second, 90 * time.Second, false},
		"snooze, wrapped":       {wrap(worker.Snooze(90 * time.Second)), 90 * time.Second, 90 * time.Second, false},
		"snooze at once":        {worker.Snooze(0), 0, 0, false},
		"snooze in the past":    {worker.Snooze(-time.Hour), 0, 0, false},
		"snooze for a moment":   {worker.Snooze(time.Millisecond), time.Second, time.Second, false},
		"failure":               {errNo, time.Second, 2 * time.Second, true},
		"canceled":              {context.Canceled, time.Second, 2 * time.Second, true},
		"deadline":              {context.DeadlineExceeded, time.Second, 2 * time.Second, true},
		"shutdown, which isn't": {worker.ErrShutdown, time.Second, 2 * time.Second, true},
		"permanent":             {worker.Permanent(errNo), 15 * time.Minute, 15 * time.Minute, true},
		"permanent, wrapped":    {wrap(worker.Permanent(errNo)), 15 * time.Minute, 15 * time.Minute, true},
		// Beyond what SQS allows: cut to what is left, not refused.
		"retry after a day": {worker.RetryAfter(24*time.Hour, errNo), sqsMaxVisibility - time.Minute, sqsMaxVisibility, true},
		"snooze for a week": {worker.Snooze(7 * 24 * time.Hour), sqsMaxVisibility - time.Minute, sqsMaxVisibility, false},
	}, func(t *testing.T, c outcome) {
		q := newQueueAt(t, sqsmodel.Config{Ceiling: sqsmodel.CeilingFromRequest})
		w := q.start(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			if m.ReceiveCount > 1 {
				return takes(never)(ctx, m)
			}
			time.Sleep(3 * time.Second)
			return c.err
		}), worker.Config{})
		time.Sleep(5 * time.Second)
		id := q.send(1)[0]
		time.Sleep(3*time.Second + 100*time.Millisecond)
		changes := q.events(id, sqsmodel.VisibilityChanged)
		if len(changes) != 1 {
			t.Fatalf("%d visibility changes, want one", len(changes))
		}
		if v := changes[0].VisibilityTimeout; v < c.least || v > c.most {
			t.Errorf("it comes back after %v, want %v to %v", v, c.least, c.most)
		}
		if s := w.Stats(); (s.Failed == 1) != c.failed || (s.Snoozed == 1) == c.failed {
			t.Errorf("counted %d failed, %d snoozed", s.Failed, s.Snoozed)
		}
		if n := len(w.log.with("handler failed", "order 7")); !c.failed && n > 0 {
			t.Error("a snooze was logged as a failure")
		}
		w.log.mustHaveNo(t, slog.LevelError)
		_ = w.stop()
	})
}

// The back-off's own delay can't pass the ceiling either.
func TestLongBackoffLateInAHoldIsCutToTheCeiling(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "VisibilityTimeout", "600")
		id := q.send(1)[0]
		w := q.start(worker.HandlerFunc(func(context.Context, *worker.Message) error {
			time.Sleep(11 * time.Hour)
			return errNo
		}), worker.Config{Backoff: worker.Backoff{Min: 10 * time.Hour, Max: 12 * time.Hour}})
		time.Sleep(11*time.Hour + time.Minute)
		m := q.message(id)
		if left := m.VisibleAt.Sub(m.FirstReceivedAt); left > sqsMaxVisibility || left < sqsMaxVisibility-time.Minute {
			t.Errorf("it comes back %v after its receive, want as late as SQS allows", left)
		}
		if n := w.Stats().ReleaseFailures; n != 0 {
			t.Errorf("%d releases failed", n)
		}
		w.mustStop()
	})
}

func TestOneBadMessageFailsAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueueWithDLQ(t, 3)
		ids := q.send(10)
		var r runs
		w := q.start(r.handler(func(_ context.Context, m *worker.Message) error {
			if m.Body == "4" {
				return errNo
			}
			return nil
		}), worker.Config{})
		eventually(t, time.Minute, "dead-lettered", func() bool { return len(q.Queue(testDLQ).Messages) == 1 })
		if n := r.of()[ids[4]]; n != 3 {
			t.Errorf("the bad one ran %d times, want 3", n)
		}
		r.mustHaveRunOnce(t, append(slices.Clone(ids[:4]), ids[5:]...))
		w.mustStop()
	})
}

func TestPanicIsAFailureWithItsStackLogged(t *testing.T) {
	each(t, map[string]any{"string": "kaboom", "error": errors.New("kaboom"), "runtime": nil}, func(t *testing.T, value any) {
		q := newQueue(t)
		q.send(3)
		w := q.start(worker.HandlerFunc(func(_ context.Context, m *worker.Message) error {
			if m.ReceiveCount > 1 {
				return nil
			}
			if value == nil {
				var list []int
				_ = list[m.ReceiveCount] // index out of range
			}
			panic(value)
		}), worker.Config{Concurrency: 1})
		q.mustEmpty(time.Minute)
		if s := w.Stats(); s.Panics != 3 || s.Failed != 3 || s.Succeeded != 3 {
			t.Errorf("counted %d panics, %d failed, %d succeeded, want 3 each", s.Panics, s.Failed, s.Succeeded)
		}
		lines := w.log.atLeast(slog.LevelError)
		if len(lines) != 3 {
			t.Fatalf("want an error line for each panic, got %q", lines)
		}
		if !strings.Contains(lines[0], "outcomes_test.go") || value != nil && !strings.Contains(lines[0], "kaboom") {
			t.Errorf("the line doesn't say what and where: %s", lines[0])
		}
		w.mustStop()
	})
}

// runtime.Goexit ends the goroutine, as t.FailNow does in a helper: it must not take a slot along.
func TestGoexitIsAFailureAndTakesNoSlotAlong(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		ids := q.send(20)
		var r runs
		w := q.start(r.handler(func(_ context.Context, m *worker.Message) error {
			if m.ReceiveCount == 1 {
				runtime.Goexit()
			}
			time.Sleep(100 * time.Millisecond)
			return nil
		}), worker.Config{Concurrency: 2, Prefetch: 8})
		q.mustEmpty(time.Minute)
		for _, id := range ids {
			if n := r.of()[id]; n != 2 {
				t.Errorf("message %s ran %d times, want 2", id, n)
			}
		}
		if r.most != 2 {
			t.Errorf("%d handlers at once, want 2", r.most)
		}
		if s := w.Stats(); s.Failed != 20 || s.Succeeded != 20 {
			t.Errorf("counted %d failed, %d succeeded", s.Failed, s.Succeeded)
		}
		w.mustStop()
	})
}

func TestHandlerTimeoutEndsTheContextAndTheResultDecides(t *testing.T) {
	type timeout struct {
		after   error // what the handler makes of it
		deleted bool
	}
	each(t, map[string]timeout{"fails": {worker.ErrHandlerTimeout, false}, "finishes": {nil, true}}, func(t *testing.T, c timeout) {
		q := newQueue(t, "VisibilityTimeout", "5")
		id := q.send(1)[0]
		w := q.start(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			if at, ok := ctx.Deadline(); !ok || time.Until(at) != 10*time.Second {
				t.Errorf("the context's deadline is %v, %v", at, ok)
			}
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, worker.ErrHandlerTimeout) {
				t.Errorf("the context ended with %v", cause)
			}
			return c.after
		}), worker.Config{HandlerTimeout: 10 * time.Second})
		time.Sleep(11 * time.Second)
		if got := len(q.events(id, sqsmodel.Deleted)) == 1; got != c.deleted {
			t.Errorf("deleted: %v, want %v", got, c.deleted)
		}
		if s := w.Stats(); s.Lost != 0 || (s.Failed == 1) == c.deleted {
			t.Errorf("counted %d lost, %d failed", s.Lost, s.Failed)
		}
		_ = w.stop()
	})
}

// A handler that ignores its context is reported, and its message is kept from others until it returns.
func TestOverdueHandlerIsReportedAndKeepsItsMessage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueueWithDLQ(t, 3, "VisibilityTimeout", "5")
		ids := q.send(2)
		var r runs
		w := q.start(r.handler(deaf(time.Minute)), worker.Config{HandlerTimeout: 10 * time.Second, Concurrency: 1})
		time.Sleep(14 * time.Second)
		if n := w.Stats().Overdue; n != 0 {
			t.Errorf("%d reported before their time", n)
		}
		time.Sleep(2 * time.Second)
		if n, lines := w.Stats().Overdue, w.log.with("level=WARN", ids[0]); n != 1 || len(lines) != 1 {
			t.Errorf("%d reported, in the lines %q", n, lines)
		}
		q.mustEmpty(3 * time.Minute)
		r.mustHaveRunOnce(t, ids)
		q.mustHaveHappened(sqsmodel.Expired, 0)
		w.mustStop()
	})
}

// A retry in process sleeps beyond the visibility: the message stays held.
func TestRetryInProcessKeepsTheLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "VisibilityTimeout", "5")
		q.send(1)
		var calls []time.Time
		w := q.start(worker.HandlerFunc(func(_ context.Context, m *worker.Message) error {
			calls = append(calls, time.Now())
			if len(calls) < 3 {
				return errNo
			}
			return nil
		}), worker.Config{Retries: 3, RetryDelay: 10 * time.Second})
		q.mustEmpty(time.Minute)
		if len(calls) != 3 {
			t.Fatalf("called %d times, want 3", len(calls))
		}
		for i, least := range []time.Duration{5 * time.Second, 10 * time.Second} {
			if gap := calls[i+1].Sub(calls[i]); gap < least || gap > 2*least {
				t.Errorf("retry %d came after %v, want %v to %v", i+1, gap, least, 2*least)
			}
		}
		q.mustHaveHappened(sqsmodel.Received, 1)
		q.mustHaveHappened(sqsmodel.Expired, 0)
		if s := w.Stats(); s.Failed != 0 || s.Succeeded != 1 {
			t.Errorf("counted %d failed, %d succeeded", s.Failed, s.Succeeded)
		}
		w.mustStop()
	})
}

func TestStopEndsTheWaitForARetryInProcess(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.send(1)
		var r runs
		w := q.start(r.handler(returns(errNo)), worker.Config{Retries: 3, RetryDelay: time.Hour, Concurrency: 1})
		time.Sleep(time.Second)
		took, err := w.timedStop()
		if err != nil || took > 19*time.Second {
			t.Errorf("the stop took %v and returned %v", took, err)
		}
		if st := q.state(); st.Visible != 1 || r.count() != 1 {
			t.Errorf("%d visible after %d runs, want 1 and 1", st.Visible, r.count())
		}
	})
}

// sink is a dead-letter sink that may fail.
type sink struct {
	mu   sync.Mutex
	got  map[string]string
	fail func(ctx context.Context) error
}

func (s *sink) DeadLetter(ctx context.Context, m *worker.Message, reason error) error {
	if s.fail != nil {
		if err := s.fail(ctx); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.got == nil {
		s.got = map[string]string{}
	}
	s.got[m.ID] = m.Body + ": " + reason.Error()
	return nil
}

func TestPermanentFailureIsDeletedOnceTheSinkHasIt(t *testing.T) {
	each(t, map[string]time.Duration{"fast": 0, "slower than the visibility": 12 * time.Second}, func(t *testing.T, takes time.Duration) {
		q := newQueueWithDLQ(t, 2, "VisibilityTimeout", "5")
		ids := q.send(3)
		s := &sink{fail: func(context.Context) error { time.Sleep(takes); return nil }}
		var r runs
		w := q.start(r.handler(func(_ context.Context, m *worker.Message) error {
			return fmt.Errorf("order: %w", worker.Permanent(errors.New("no such customer")))
		}), worker.Config{DeadLetter: s})
		q.mustEmpty(30 * time.Second)
		r.mustHaveRunOnce(t, ids)
		if len(s.got) != 3 || s.got[ids[1]] != "1: no such customer" {
			t.Errorf("the sink has %v", s.got)
		}
		if st := w.Stats(); st.DeadLettered != 3 || st.Failed != 3 {
			t.Errorf("counted %d dead-lettered, %d failed", st.DeadLettered, st.Failed)
		}
		q.mustHaveHappened(sqsmodel.DeadLettered, 0)
		q.mustHaveHappened(sqsmodel.Expired, 0)
		w.mustStop()
	})
}

func TestPermanentFailureStaysWhileTheSinkFails(t *testing.T) {
	each(t, map[string]func(ctx context.Context) error{
		"error": func(context.Context) error { return errNo },
		"panic": func(context.Context) error { panic("no") },
		"hangs": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	}, func(t *testing.T, fail func(context.Context) error) {
		q := newQueueWithDLQ(t, 2, "VisibilityTimeout", "30")
		ids := q.send(3)
		w := q.start(worker.HandlerFunc(returns(worker.Permanent(errNo))), worker.Config{
			DeadLetter: &sink{fail: fail}, Backoff: worker.Backoff{Min: time.Second, Max: 20 * time.Second},
		})
		eventually(t, 10*time.Minute, "the queue's own redrive policy has them", func() bool { return len(q.Queue(testDLQ).Messages) == len(ids) })
		q.mustHaveHappened(sqsmodel.Deleted, 0)
		if st := w.Stats(); st.DeadLettered != 0 || st.DeadLetterFailures != 6 {
			t.Errorf("counted %d dead-lettered, %d failures of the sink", st.DeadLettered, st.DeadLetterFailures)
		}
		w.mustStop()
	})
}

func TestOtherFailuresDontGoToTheSink(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueueWithDLQ(t, 3)
		q.send(1)
		s := &sink{}
		w := q.start(worker.HandlerFunc(returns(errNo)), worker.Config{DeadLetter: s})
		eventually(t, time.Minute, "dead-lettered by the queue", func() bool { return len(q.Queue(testDLQ).Messages) == 1 })
		if len(s.got) != 0 {
			t.Errorf("the sink has %v", s.got)
		}
		w.mustStop()
	})
}

func TestDuplicateResultDeletesWithoutASuccess(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.send(3)
		w := q.start(worker.HandlerFunc(returns(fmt.Errorf("order 7: %w", worker.ErrDuplicate))), worker.Config{})
		q.mustEmpty(10 * time.Second)
		if s := w.Stats(); s.Suppressed != 3 || s.Succeeded != 0 || s.Failed != 0 || s.Deleted != 3 {
			t.Errorf("counted %d suppressed, %d succeeded, %d failed, %d deleted", s.Suppressed, s.Succeeded, s.Failed, s.Deleted)
		}
		w.mustStop()
	})
}

func TestMiddlewareRunsInTheOrderListedAndItsResultCounts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		ids := q.send(2)
		var order []string
		layer := func(name string, f func(m *worker.Message, err error) error) worker.Middleware {
			return func(next worker.Handler) worker.Handler {
				return worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
					if m.Body == "0" {
						order = append(order, name)
					}
					return f(m, next.Handle(ctx, m))
				})
			}
		}
		pass := func(_ *worker.Message, err error) error { return err }
		swallow := func(m *worker.Message, err error) error {
			if m.ID == ids[1] {
				return nil
			}
			return err
		}
		w := q.start(worker.HandlerFunc(func(_ context.Context, m *worker.Message) error {
			if m.Body == "0" {
				order = append(order, "handler")
				return nil
			}
			return errNo
		}), worker.Config{Concurrency: 1, Middleware: []worker.Middleware{layer("first", swallow), layer("second", pass), layer("third", pass)}})
		q.mustEmpty(5 * time.Second)
		if !slices.Equal(order, []string{"first", "second", "third", "handler"}) {
			t.Errorf("ran in the order %v", order)
		}
		if s := w.Stats(); s.Succeeded != 2 {
			t.Errorf("%d succeeded", s.Succeeded)
		}
		w.mustStop()
	})
}

func TestHandlerFunctionsRefuseAnyOtherContext(t *testing.T) {
	if err := worker.ExtendVisibility(t.Context(), time.Minute); err == nil || errors.Is(err, worker.ErrLeaseLost) {
		t.Errorf("ExtendVisibility: %v", err)
	}
	if err := worker.OnRenew(t.Context(), func(context.Context, time.Time) error { return nil }); err == nil {
		t.Error("OnRenew has nothing to renew")
	}
	if at, ok := worker.LeaseDeadline(t.Context()); ok {
		t.Errorf("LeaseDeadline: %v", at)
	}
}

// What rides along with the visibility is renewed before it, and its loss is the message's.
func TestOnRenewRunsBeforeEachRenewal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "VisibilityTimeout", "30")
		q.send(1)
		var renewed atomic.Int64
		var cause error
		w := q.start(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			if m.ReceiveCount > 1 {
				return nil
			}
			err := worker.OnRenew(ctx, func(ctx context.Context, until time.Time) error {
				if left := q.message(m.ID).VisibleAt; until.Before(left) {
					t.Errorf("renewed until %v, the visibility lasts until %v", until, left)
				}
				if q.Count(visibilityBatch) != renewed.Load() {
					t.Error("the visibility was renewed first")
				}
				if renewed.Add(1) == 3 {
					return fmt.Errorf("claim: %w", worker.ErrLeaseLost)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			cause = context.Cause(ctx)
			return nil
		}), worker.Config{})
		q.mustEmpty(5 * time.Minute)
		if renewed.Load() != 3 || !errors.Is(cause, worker.ErrLeaseLost) {
			t.Errorf("renewed %d times, ended with %v", renewed.Load(), cause)
		}
		q.mustWriteOnlyUnderLease()
		w.mustStop()
	})
}
