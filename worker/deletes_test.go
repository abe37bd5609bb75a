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
	"testing/synctest"
	"time"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

func TestSucceededMessagesAreDeletedOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		ids := q.send(100)
		var r runs
		w := q.start(r.handler(succeed), worker.Config{})
		q.mustEmpty(10 * time.Second)
		r.mustHaveRunOnce(t, ids)
		entries := 0
		for _, c := range q.finished(deleteBatch) {
			entries += c.Entries
		}
		if entries != 100 {
			t.Errorf("%d entries to delete 100 messages", entries)
		}
		w.mustStop()
	})
}

func TestFullDeleteBatchLeavesAtOnceAndAnotherAfterALinger(t *testing.T) {
	type batch struct {
		messages int
		linger   time.Duration
		after    time.Duration // when the last is deleted
		calls    int
	}
	each(t, map[string]batch{
		"full":           {10, 2 * time.Second, 0, 1},
		"one":            {1, 2 * time.Second, 2 * time.Second, 1},
		"twelve":         {12, 2 * time.Second, 2 * time.Second, 2},
		"default linger": {3, 0, 100 * time.Millisecond, 1},
		"no linger":      {3, worker.NoLinger, 0, 3},
	}, func(t *testing.T, c batch) {
		q := newQueue(t, "VisibilityTimeout", "60")
		q.send(c.messages)
		w := q.start(worker.HandlerFunc(succeed), worker.Config{Concurrency: 20, DeleteLinger: c.linger})
		time.Sleep(c.after)
		synctest.Wait()
		if n := len(q.finished(deleteBatch)); n != c.calls {
			t.Errorf("%d calls after %v, want %d", n, c.after, c.calls)
		}
		deleted := q.events("", sqsmodel.Deleted)
		if len(deleted) != c.messages {
			t.Fatalf("%d deleted after %v", len(deleted), c.after)
		}
		if last := deleted[len(deleted)-1].At; last.Sub(q.events("", sqsmodel.Received)[0].At) != c.after {
			t.Errorf("the last one was deleted at %v", last.Format("05.000"))
		}
		w.mustStop()
	})
}

// A linger doesn't cost a lease: with a short visibility the delete leaves earlier.
func TestDeleteLingerEndsBeforeTheLease(t *testing.T) {
	each(t, map[string]time.Duration{"1 s": time.Second, "5 s": 5 * time.Second, "6 s": 6 * time.Second}, func(t *testing.T, visibility time.Duration) {
		q := newQueue(t, "VisibilityTimeout", fmt.Sprint(visibility.Seconds()))
		ids := q.send(1)
		var r runs
		w := q.start(r.handler(succeed), worker.Config{DeleteLinger: 5 * time.Second})
		q.mustEmpty(10 * time.Second)
		r.mustHaveRunOnce(t, ids)
		q.mustHaveHappened(sqsmodel.Received, 1)
		q.mustWriteOnlyUnderLease()
		w.mustStop()
	})
}

// SQS answers a batch with 200 although some of its entries failed.
func TestOnlyTheFailedDeletesAreSentAgain(t *testing.T) {
	each(t, map[string]string{"InternalError": "InternalError", "throttled": "RequestThrottled", "KMS": "KMS.ThrottlingException"}, func(t *testing.T, code string) {
		q := newQueue(t)
		ids := q.send(10)
		var mu sync.Mutex
		var third, seventh string
		q.Inject(sqsmodel.Fault{Action: deleteBatch, Times: 1, FailEntries: func(_ sqsmodel.Call, entry int, _, handle string) *sqsmodel.EntryError {
			mu.Lock()
			defer mu.Unlock()
			switch entry {
			case 3:
				third = handle
				return &sqsmodel.EntryError{Code: code, Message: "try again", SenderFault: code != "InternalError"}
			case 7:
				seventh = handle
				return &sqsmodel.EntryError{Code: "ReceiptHandleIsInvalid", Message: "The receipt handle has expired", SenderFault: true}
			}
			return nil
		}})
		var r runs
		w := q.start(r.handler(succeed), worker.Config{})
		time.Sleep(5 * time.Second)
		calls := q.finished(deleteBatch)
		if len(calls) != 2 || calls[0].Entries != 10 || !slices.Equal(calls[1].ReceiptHandles, []string{third}) {
			t.Errorf("want a batch of ten and a repetition of the one that failed in passing; got %d calls", len(calls))
		}
		if st := q.state(); len(st.Messages) != 1 || st.Messages[0].Handle != seventh {
			t.Errorf("left in the queue: %d messages, want the one whose lease was lost", len(st.Messages))
		}
		q.mustEmpty(time.Minute) // it comes back, and is deleted
		r.mustHaveRunOnce(t, ids)
		if s := w.Stats(); s.Succeeded != 10 || s.Suppressed != 1 || s.Undeleted != 1 {
			t.Errorf("counted %d succeeded, %d suppressed, %d undeleted, want 10, 1, 1", s.Succeeded, s.Suppressed, s.Undeleted)
		}
		w.log.mustHaveNo(t, slog.LevelError)
		w.mustStop()
	})
}

func TestFailedDeletesAreTriedAgainWhileTheLeaseLasts(t *testing.T) {
	each(t, map[string]sqsmodel.Fault{
		"5xx": {Code: "ServiceUnavailable"}, "throttled": {Code: "RequestThrottled"}, "throttling": {Code: "ThrottlingException"},
		"KMS throttled": {Code: "KmsThrottled"}, "denied": {Code: "AccessDeniedException"}, "dropped": {DropBefore: true},
		"unanswered": {DropAfter: true}, "hanging": {Stall: true}, "expired token": {Code: "ExpiredTokenException"},
		"no queue": {Code: "QueueDoesNotExist"},
	}, func(t *testing.T, fault sqsmodel.Fault) {
		q := newQueue(t, "VisibilityTimeout", "30")
		fault.Action, fault.Times = deleteBatch, 4
		q.Inject(fault)
		ids := q.send(12)
		var r runs
		w := q.start(r.handler(succeed), worker.Config{Concurrency: 12})
		q.mustEmpty(29 * time.Second)
		time.Sleep(time.Minute)
		r.mustHaveRunOnce(t, ids)
		q.mustHaveHappened(sqsmodel.Received, 12)
		q.mustHaveHappened(sqsmodel.Deleted, 12)
		if s := w.Stats(); s.Deleted != 12 || s.Undeleted != 0 {
			t.Errorf("counted %d deleted, %d undeleted", s.Deleted, s.Undeleted)
		}
		w.mustStop()
	})
}

// The handler's work is done: a delete that failed is no failed handler. However long deletes fail, the message stays held: no
// receive takes it nearer to the dead-letter queue.
func TestCompletedMessagesStayHeldUntilTheyCanBeDeleted(t *testing.T) {
	each(t, map[string]sqsmodel.Fault{
		"5xx": {Code: "ServiceUnavailable"}, "dropped": {DropBefore: true}, "hanging": {Stall: true}, "denied": {Code: "AccessDeniedException"},
		"no queue": {Code: "QueueDoesNotExist"}, "slow failure": {Hold: 3 * time.Second, Code: "InternalFailure"},
		"entries": {FailEntries: func(sqsmodel.Call, int, string, string) *sqsmodel.EntryError {
			return &sqsmodel.EntryError{Code: "InternalError"}
		}},
		"throttled entries": {FailEntries: func(sqsmodel.Call, int, string, string) *sqsmodel.EntryError {
			return &sqsmodel.EntryError{Code: "KMS.ThrottlingException", SenderFault: true}
		}},
	}, func(t *testing.T, fault sqsmodel.Fault) {
		q := newQueueWithDLQ(t, 2, "VisibilityTimeout", "10")
		fault.Action = deleteBatch
		remove := q.Inject(fault)
		ids := q.send(8)
		var r runs
		w := q.start(r.handler(succeed), worker.Config{Concurrency: 10})
		time.Sleep(time.Minute) // six times the visibility
		if s := w.Stats(); s.Unsettled != 8 || s.Held != 8 {
			t.Errorf("%d unsettled, %d held during the outage, want 8 of each", s.Unsettled, s.Held)
		}
		remove()
		q.mustEmpty(20 * time.Second)
		r.mustHaveRunOnce(t, ids)
		q.mustHaveHappened(sqsmodel.Received, 8)
		if n := len(q.Queue(testDLQ).Messages); n != 0 {
			t.Errorf("%d completed messages were dead-lettered", n)
		}
		q.mustWriteOnlyUnderLease()
		if s := w.Stats(); s.Succeeded != 8 || s.Deleted != 8 || s.Failed != 0 || s.Undeleted != 0 || s.Lost != 0 {
			t.Errorf("counted %d succeeded, %d deleted, %d failed, %d undeleted, %d lost", s.Succeeded, s.Deleted, s.Failed, s.Undeleted, s.Lost)
		}
		w.mustStop()
	})
}

// What can't stay held comes back, and is deleted without a run.
func TestCompletedMessageIsDeletedOnRedeliveryAndNotRunAgain(t *testing.T) {
	each(t, map[string]struct {
		deletes, renewals sqsmodel.Fault
		cfg               worker.Config
	}{
		"renewals fail too": {deletes: sqsmodel.Fault{Code: "ServiceUnavailable"}, renewals: sqsmodel.Fault{Action: visibilityBatch, Code: "ServiceUnavailable"}},
		"no heartbeat":      {deletes: sqsmodel.Fault{DropBefore: true}, cfg: worker.Config{HeartbeatInterval: worker.NoHeartbeat}},
		"bad handle":        {deletes: sqsmodel.Fault{Code: "ReceiptHandleIsInvalid"}},
		"unknown fault of the entry": {deletes: sqsmodel.Fault{FailEntries: func(sqsmodel.Call, int, string, string) *sqsmodel.EntryError {
			return &sqsmodel.EntryError{Code: "Peculiar", SenderFault: true}
		}}},
	}, func(t *testing.T, c struct {
		deletes, renewals sqsmodel.Fault
		cfg               worker.Config
	}) {
		q := newQueueWithDLQ(t, 2, "VisibilityTimeout", "10")
		c.deletes.Action = deleteBatch
		removes := []func(){q.Inject(c.deletes)}
		if c.renewals.Action != "" {
			removes = append(removes, q.Inject(c.renewals))
		}
		ids := q.send(5)
		var r runs
		w := q.start(r.handler(succeed), c.cfg)
		time.Sleep(10500 * time.Millisecond) // they are back
		for _, remove := range removes {
			remove()
		}
		q.mustEmpty(time.Minute)
		r.mustHaveRunOnce(t, ids)
		q.mustHaveHappened(sqsmodel.Received, 10)
		if n := len(q.Queue(testDLQ).Messages); n != 0 {
			t.Errorf("%d completed messages were dead-lettered", n)
		}
		for _, e := range q.events("", sqsmodel.VisibilityChanged) {
			if e.VisibilityTimeout < 10*time.Second {
				t.Errorf("a completed message was given back")
			}
		}
		q.mustWriteOnlyUnderLease()
		if s := w.Stats(); s.Succeeded != 5 || s.Deleted != 5 || s.Failed != 0 {
			t.Errorf("counted %d succeeded, %d deleted, %d failed", s.Succeeded, s.Deleted, s.Failed)
		}
		w.mustStop()
	})
}

func TestAWorkerWhoseDeletesKeepFailingIsUnhealthyUntilTheyWork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "VisibilityTimeout", "10")
		remove := q.Inject(sqsmodel.Fault{Action: deleteBatch, Code: "AccessDeniedException"})
		q.send(3)
		w := q.start(worker.HandlerFunc(succeed), worker.Config{})
		time.Sleep(10 * time.Second)
		if err := w.Healthy(); err != nil {
			t.Errorf("after ten seconds: %v", err)
		}
		time.Sleep(50 * time.Second)
		if err := w.Healthy(); err == nil || !strings.Contains(err.Error(), "delete") || !strings.Contains(err.Error(), "AccessDenied") {
			t.Errorf("after a minute: %v, want an error that names the deletes and what SQS said", err)
		}
		remove()
		q.mustEmpty(10 * time.Second)
		if err := w.Healthy(); err != nil {
			t.Errorf("after the outage: %v", err)
		}
		if n, m := len(w.log.with("level=WARN", "deletes are failing")), len(w.log.with("level=INFO", "deletes work again")); n != 1 || m != 1 {
			t.Errorf("the outage was logged %d times and its end %d times, want once each", n, m)
		}
		w.mustStop()
	})
}

// The bound on what is unsettled stops a worker that can't delete, and it goes on once it can.
func TestAWorkerThatCannotDeleteStopsReceivingAtABound(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "VisibilityTimeout", "30")
		remove := q.Inject(sqsmodel.Fault{Action: deleteBatch, Code: "ServiceUnavailable"})
		ids := q.send(1100)
		var r runs
		w := q.start(r.handler(succeed), worker.Config{Concurrency: 20})
		time.Sleep(90 * time.Second) // three times the visibility
		if s := w.Stats(); s.Unsettled != 1000 || s.Held > 1020 || s.Lost != 0 {
			t.Errorf("%d unsettled, %d held, %d lost; want 1000, at most 1020, 0", s.Unsettled, s.Held, s.Lost)
		}
		remove()
		q.mustEmpty(time.Minute)
		r.mustHaveRunOnce(t, ids)
		q.mustHaveHappened(sqsmodel.Received, 1100)
		w.mustStop()
	})
}

// Batch ids are positions: one message can be in a batch twice.
func TestSameMessageTwiceInOneDeleteBatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		ids := q.send(2)
		var r runs
		w := q.start(r.handler(succeed), worker.Config{DeleteLinger: 2 * time.Second})
		time.Sleep(time.Second) // both are completed and wait for company
		if !q.Duplicate(q.url, ids[0]) {
			t.Fatal("it isn't in flight")
		}
		time.Sleep(3 * time.Second)
		calls := q.finished(deleteBatch)
		if len(calls) != 1 || calls[0].Entries != 3 || calls[0].Err != "" || calls[0].FailedEntries != 0 {
			t.Errorf("want one call with three good entries, got %+v", calls)
		}
		q.mustBeEmpty()
		r.mustHaveRunOnce(t, ids)
		w.mustStop()
	})
}

// A delete with an older receipt handle is answered with 200 and deletes nothing.
func TestNewestReceiptHandleDeletes(t *testing.T) {
	each(t, map[string]string{"within the visibility": "duplicate", "after the lease was lost": "lost"}, func(t *testing.T, how string) {
		q := newQueue(t, "VisibilityTimeout", "5")
		remove := func() {}
		if how == "lost" {
			remove = q.Inject(sqsmodel.Fault{Action: visibilityBatch, Code: "ServiceUnavailable"})
		}
		ids := q.send(1)
		var r runs
		w := q.start(r.handler(deaf(12*time.Second)), worker.Config{})
		if how == "duplicate" {
			time.Sleep(3 * time.Second)
			q.Duplicate(q.url, ids[0])
		}
		time.Sleep(7 * time.Second)
		remove()
		if n := len(q.events(ids[0], sqsmodel.Received)); n != 2 {
			t.Fatalf("received %d times: the test would show nothing", n)
		}
		newest := q.message(ids[0]).Handle
		time.Sleep(6 * time.Second)
		q.mustBeEmpty()
		r.mustHaveRunOnce(t, ids)
		if calls := q.finished(deleteBatch); len(calls) != 1 || !slices.Equal(calls[0].ReceiptHandles, []string{newest}) {
			t.Error("the delete didn't use the newest handle")
		}
		w.mustStop()
	})
}

// A handler that always takes longer than the visibility, with nothing to extend it: attempts are SQS's receives, so that
// the redrive policy ends it, and each lost lease is counted.
func TestHandlerThatIsAlwaysTooSlowEndsInTheDeadLetterQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueueWithDLQ(t, 3, "VisibilityTimeout", "5")
		q.send(1)
		w := q.start(worker.HandlerFunc(func(context.Context, *worker.Message) error {
			time.Sleep(12 * time.Second)
			return errors.New("too late")
		}), worker.Config{HeartbeatInterval: worker.NoHeartbeat})
		eventually(t, 10*time.Minute, "dead-lettered", func() bool { return len(q.Queue(testDLQ).Messages) == 1 })
		if n := w.Stats().Lost; n == 0 {
			t.Error("no lost lease was counted")
		}
		if len(w.log.with("level=WARN", "lease lost")) == 0 {
			t.Error("no lost lease was logged")
		}
		eventually(t, time.Minute, "nothing is held", func() bool { return w.Stats().Held == 0 })
		w.mustStop()
	})
}

// The same handler, but it succeeds: its message is deleted by a later delivery's handle instead of looping.
func TestSlowSuccessIsDeletedByALaterDelivery(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueueWithDLQ(t, 10, "VisibilityTimeout", "5")
		ids := q.send(1)
		var r runs
		w := q.start(r.handler(deaf(12*time.Second)), worker.Config{HeartbeatInterval: worker.NoHeartbeat})
		q.mustEmpty(time.Minute)
		r.mustHaveRunOnce(t, ids)
		if n := len(q.Queue(testDLQ).Messages); n != 0 {
			t.Error("a completed message was dead-lettered")
		}
		w.mustStop()
	})
}

// A handler may spread its work over goroutines: the message stays until the handler returns, whatever finishes first.
func TestMessageIsDeletedOnlyAfterItsHandlerReturned(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "VisibilityTimeout", "5")
		q.send(1)
		var last time.Time
		w := q.start(worker.HandlerFunc(func(context.Context, *worker.Message) error {
			var parts sync.WaitGroup
			for i := range 5 {
				parts.Go(func() { time.Sleep(time.Duration(i) * 3 * time.Second) })
				time.Sleep(time.Second) // the first is done before the second has begun
			}
			parts.Wait()
			last = time.Now()
			return nil
		}), worker.Config{DeleteLinger: worker.NoLinger})
		q.mustEmpty(time.Minute)
		if deleted := q.events("", sqsmodel.Deleted)[0].At; deleted.Before(last) {
			t.Errorf("deleted %v before its work was done", last.Sub(deleted))
		}
		q.mustHaveHappened(sqsmodel.Received, 1)
		w.mustStop()
	})
}

func TestMessageIsDeletedOnlyWhenItsHandlerSucceeded(t *testing.T) {
	failure := errors.New("no")
	each(t, map[string]worker.HandlerFunc{
		"error":            returns(failure),
		"canceled":         returns(context.Canceled),
		"wrapped canceled": returns(fmt.Errorf("call: %w", context.Canceled)),
		"deadline":         returns(context.DeadlineExceeded),
		"lease lost":       returns(worker.ErrLeaseLost),
		"shutdown":         returns(worker.ErrShutdown),
		"permanent":        returns(worker.Permanent(failure)),
		"permanent nil":    returns(worker.Permanent(nil)),
		"unavailable":      returns(worker.Unavailable(failure)),
		"unavailable nil":  returns(worker.Unavailable(nil)),
		"retry after":      returns(worker.RetryAfter(time.Second, failure)),
		"retry after nil":  returns(worker.RetryAfter(time.Second, nil)),
		"snooze":           returns(worker.Snooze(time.Second)),
		"joined":           returns(errors.Join(failure, worker.Snooze(0))),
		"panic":            func(context.Context, *worker.Message) error { panic("no") },
		"panic error":      func(context.Context, *worker.Message) error { panic(failure) },
		"panic nil":        func(context.Context, *worker.Message) error { panic(nil) },
		"goexit":           func(context.Context, *worker.Message) error { runtime.Goexit(); return nil },
	}, func(t *testing.T, h worker.HandlerFunc) {
		q := newQueueWithDLQ(t, 3)
		ids := q.send(3)
		var r runs
		w := q.start(r.handler(h), worker.Config{})
		time.Sleep(10 * time.Minute)
		w.mustStop()
		if n := q.Count(deleteBatch); n != 0 {
			t.Errorf("%d deletes", n)
		}
		q.mustHaveHappened(sqsmodel.Deleted, 0)
		if n := len(q.state().Messages) + len(q.Queue(testDLQ).Messages); n != len(ids) {
			t.Errorf("%d messages are left, want all %d", n, len(ids))
		}
	})
}

// The functions of AfterDelete remove what a redelivery would need: they run after the deletion, and only then.
func TestAfterDeleteRunsOnceTheDeletionIsConfirmed(t *testing.T) {
	type deletion struct {
		fault sqsmodel.Fault
		after time.Duration // at least
	}
	each(t, map[string]deletion{
		"at once":    {sqsmodel.Fault{}, 0},
		"slow":       {sqsmodel.Fault{Hold: 2 * time.Second}, 2 * time.Second},
		"retried":    {sqsmodel.Fault{Code: "ServiceUnavailable", Times: 5}, 200 * time.Millisecond},
		"unanswered": {sqsmodel.Fault{DropAfter: true, Times: 1}, 20 * time.Millisecond},
		"entry": {sqsmodel.Fault{Times: 1, FailEntries: func(sqsmodel.Call, int, string, string) *sqsmodel.EntryError {
			return &sqsmodel.EntryError{Code: "InternalError"}
		}}, 20 * time.Millisecond},
	}, func(t *testing.T, c deletion) {
		q := newQueue(t)
		c.fault.Action = deleteBatch
		q.Inject(c.fault)
		var ran []string
		var done time.Time
		q.send(1)
		w := q.start(worker.HandlerFunc(func(_ context.Context, m *worker.Message) error {
			done = time.Now()
			for _, name := range []string{"first", "second"} {
				m.AfterDelete(func(ctx context.Context) error {
					q.mustBeEmpty()
					if ctx.Err() != nil {
						t.Errorf("its context is over: %v", context.Cause(ctx))
					}
					if d := time.Since(done); d < c.after {
						t.Errorf("it ran %v after the handler", d)
					}
					ran = append(ran, name)
					return nil
				})
			}
			return nil
		}), worker.Config{DeleteLinger: worker.NoLinger})
		time.Sleep(20 * time.Second)
		w.mustStop()
		if !slices.Equal(ran, []string{"first", "second"}) {
			t.Errorf("ran %v", ran)
		}
	})
}

func TestAfterDeleteDoesNotRunWithoutADeletion(t *testing.T) {
	type failure struct {
		result error
		fault  sqsmodel.Fault
	}
	each(t, map[string]failure{
		"failed handler": {result: errors.New("no")},
		"snoozed":        {result: worker.Snooze(time.Hour)},
		"failed delete":  {fault: sqsmodel.Fault{Code: "ServiceUnavailable"}},
		"failed entry": {fault: sqsmodel.Fault{FailEntries: func(sqsmodel.Call, int, string, string) *sqsmodel.EntryError {
			return &sqsmodel.EntryError{Code: "InternalError"}
		}}},
		"bad handle": {fault: sqsmodel.Fault{Code: "ReceiptHandleIsInvalid"}},
	}, func(t *testing.T, c failure) {
		q := newQueue(t, "VisibilityTimeout", "5")
		c.fault.Action = deleteBatch
		q.Inject(c.fault)
		q.send(1)
		var ran atomic.Int64
		w := q.start(worker.HandlerFunc(func(_ context.Context, m *worker.Message) error {
			m.AfterDelete(func(context.Context) error { ran.Add(1); return nil })
			return c.result
		}), worker.Config{})
		time.Sleep(20 * time.Second)
		_ = w.stop()
		if n := ran.Load(); n != 0 {
			t.Errorf("it ran %d times", n)
		}
	})
}

// The deletion that a redelivery brought about is the deletion of the message.
func TestAfterDeleteRunsWhenTheMessageIsDeletedOnRedelivery(t *testing.T) {
	each(t, map[string]sqsmodel.Fault{
		"delete failed": {Action: deleteBatch, Code: "ServiceUnavailable"},
		"lease lost":    {Action: visibilityBatch, Code: "ServiceUnavailable"},
	}, func(t *testing.T, fault sqsmodel.Fault) {
		q := newQueue(t, "VisibilityTimeout", "5")
		remove := q.Inject(fault)
		q.send(1)
		var ran atomic.Int64
		w := q.start(worker.HandlerFunc(func(_ context.Context, m *worker.Message) error {
			m.AfterDelete(func(context.Context) error { ran.Add(1); return nil })
			time.Sleep(7 * time.Second)
			return nil
		}), worker.Config{})
		time.Sleep(14 * time.Second)
		remove()
		q.mustEmpty(time.Minute)
		w.mustStop()
		if n := ran.Load(); n != 1 {
			t.Errorf("it ran %d times, want once", n)
		}
	})
}

func TestAfterDeleteThatFailsHarmsNothing(t *testing.T) {
	each(t, map[string]func(context.Context) error{
		"error": func(context.Context) error { return errors.New("no") },
		"panic": func(context.Context) error { panic("no") },
		"hangs": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	}, func(t *testing.T, f func(context.Context) error) {
		q := newQueue(t)
		q.send(5)
		var ran atomic.Int64
		w := q.start(worker.HandlerFunc(func(_ context.Context, m *worker.Message) error {
			m.AfterDelete(f)
			m.AfterDelete(func(context.Context) error { ran.Add(1); return nil })
			return nil
		}), worker.Config{})
		time.Sleep(15 * time.Second)
		if n := ran.Load(); n != 5 && !strings.Contains(t.Name(), "hangs") {
			t.Errorf("the next function ran %d times, want 5", n)
		}
		if n := w.Stats().AfterDeleteFailures; n < 5 {
			t.Errorf("%d failures counted, want 5", n)
		}
		if s := w.Stats(); s.Held != 0 || s.Unsettled != 0 {
			t.Errorf("still held: %+v", s)
		}
		w.mustStop()
	})
}

// A server that refuses a whole batch for one bad handle says nothing about the nine others.
func TestOneBadHandleDoesNotCondemnItsBatch(t *testing.T) {
	each(t, map[string]string{"deletes": deleteBatch, "renewals": visibilityBatch}, func(t *testing.T, action string) {
		for _, code := range []string{"ReceiptHandleIsInvalid", "MessageNotInflight"} {
			q := newQueue(t, "VisibilityTimeout", "30")
			ids := q.send(10)
			q.Inject(sqsmodel.Fault{Action: action, Code: code, Times: 1})
			var r runs
			w := q.start(r.handler(takes(15*time.Second)), worker.Config{})
			q.mustEmpty(25 * time.Second)
			r.mustHaveRunOnce(t, ids)
			q.mustHaveHappened(sqsmodel.Received, 10)
			if s := w.Stats(); s.Lost != 0 || s.Deleted != 10 {
				t.Errorf("%d lost, %d deleted", s.Lost, s.Deleted)
			}
			w.mustStop()
		}
	})
}
