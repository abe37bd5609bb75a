package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/heartbeat"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// mustNeverShorten: no visibility change of a running message left it less time than it had.
func (q *fixture) mustNeverShorten(id string) {
	q.t.Helper()
	var until time.Time
	for _, e := range q.events(id, sqsmodel.Received, sqsmodel.VisibilityChanged) {
		next := e.At.Add(e.VisibilityTimeout)
		if e.Kind == sqsmodel.VisibilityChanged && next.Before(until) {
			q.t.Errorf("message %s was shortened from %v to %v", id, until.Sub(e.At), e.VisibilityTimeout)
		}
		until = next
	}
}

func TestMessagesAreLeasedFromTheReceive(t *testing.T) {
	type waiting struct {
		visibility, takes, latency time.Duration
	}
	each(t, map[string]waiting{
		"4 s":          {4 * time.Second, time.Second, 0},
		"1 s":          {time.Second, time.Second, 0},
		"slow SQS":     {4 * time.Second, time.Second, 300 * time.Millisecond},
		"1 s, slow":    {time.Second, time.Second, 50 * time.Millisecond},
		"many minutes": {30 * time.Second, 10 * time.Minute, 12 * time.Millisecond},
	}, func(t *testing.T, c waiting) {
		q := newQueueAt(t, sqsmodel.Config{Latency: c.latency}, "VisibilityTimeout", fmt.Sprint(c.visibility.Seconds()))
		ids := q.send(10)
		var r runs
		w := q.start(r.handler(takes(c.takes)), worker.Config{Concurrency: 1, Prefetch: 9})
		q.mustEmpty(2*time.Minute + 11*c.takes)
		r.mustHaveRunOnce(t, ids)
		q.mustHaveHappened(sqsmodel.Received, 10)
		q.mustHaveHappened(sqsmodel.Expired, 0)
		q.mustWriteOnlyUnderLease()
		w.mustStop()
	})
}

// A long poll's wait isn't part of the visibility that the message gets at its end.
func TestMessageThatComesLateInALongPollRunsAtItsFirstReceive(t *testing.T) {
	type arrival struct{ visibility, after time.Duration }
	cases := map[string]arrival{}
	for _, v := range []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 30 * time.Second, time.Minute} {
		for _, after := range []time.Duration{500 * time.Millisecond, 4 * time.Second, 19500 * time.Millisecond} {
			cases[fmt.Sprintf("%v after %v", v, after)] = arrival{v, after}
		}
	}
	each(t, cases, func(t *testing.T, c arrival) {
		q := newQueue(t, "VisibilityTimeout", fmt.Sprint(c.visibility.Seconds()))
		var r runs
		w := q.start(r.handler(takes(10*time.Second)), worker.Config{})
		time.Sleep(c.after)
		ids := q.send(1)
		q.mustEmpty(time.Minute)
		r.mustHaveRunOnce(t, ids)
		q.mustHaveHappened(sqsmodel.Received, 1)
		w.mustStop()
	})
}

// An answer that comes after its messages' visibility has run out brings what may be somebody else's by now.
func TestMessagesOfALateAnswerAreNotRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "VisibilityTimeout", "4")
		q.Inject(sqsmodel.Fault{Action: receiveMessage, HoldAfter: 5 * time.Second, Times: 1})
		ids := q.send(10)
		var r runs
		w := q.start(r.handler(succeed), worker.Config{Concurrency: 10, WaitTime: time.Second})
		time.Sleep(5*time.Second + time.Millisecond)
		q.mustEmpty(30 * time.Second)
		for _, h := range r.list() {
			if h.receives == 1 {
				t.Errorf("message %s was run after its visibility had run out", h.id)
			}
		}
		r.mustHaveRunOnce(t, ids)
		q.mustWriteOnlyUnderLease()
		if n := w.Stats().Lost; n != 10 {
			t.Errorf("%d leases counted as lost, want 10", n)
		}
		w.mustStop()
	})
}

func TestQueueVisibilityHoldsUnlessConfigured(t *testing.T) {
	type visibility struct {
		queue  string
		config time.Duration
		want   int
		every  time.Duration
	}
	each(t, map[string]visibility{
		"queue's":    {"600", 0, 600, 200 * time.Second},
		"configured": {"600", 30 * time.Second, 30, 10 * time.Second},
		"longer":     {"30", 600 * time.Second, 600, 200 * time.Second},
		"default":    {"30", 0, 30, 10 * time.Second},
	}, func(t *testing.T, c visibility) {
		q := newQueue(t, "VisibilityTimeout", c.queue)
		id := q.send(1)[0]
		w := q.start(worker.HandlerFunc(takes(15*time.Minute)), worker.Config{Visibility: c.config})
		q.mustEmpty(16 * time.Minute)
		for _, call := range append(q.finished(receiveMessage), q.finished(visibilityBatch)...) {
			if v := call.VisibilityTimeouts; len(v) != 1 || v[0] != c.want {
				t.Errorf("%s asked for %v, want %d", call.Action, v, c.want)
			}
		}
		if n, want := q.Count(visibilityBatch), int64(15*time.Minute/c.every); n < want*8/10 || n > want+1 { // they may wait a little for company
			t.Errorf("%d renewals in 15 min, want %d", n, want)
		}
		q.mustNeverShorten(id)
		w.mustStop()
	})
}

func TestDeniedQueueAttributesFallBackToThirtySecondsWithAWarning(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueueWithDLQ(t, 3, "VisibilityTimeout", "600")
		q.Inject(sqsmodel.Fault{Action: queueAttributes, Code: "AccessDeniedException"})
		id := q.send(1)[0]
		w := q.start(worker.HandlerFunc(takes(2*time.Minute)), worker.Config{})
		q.mustEmpty(3 * time.Minute)
		if v := q.events(id, sqsmodel.Received)[0].VisibilityTimeout; v != 30*time.Second {
			t.Errorf("received for %v, want 30 s", v)
		}
		q.mustNeverShorten(id)
		q.mustHaveHappened(sqsmodel.Expired, 0)
		w.mustStop()
		if lines := w.log.atLeast(slog.LevelWarn); len(lines) != 1 || len(w.log.with("GetQueueAttributes is denied")) != 1 {
			t.Errorf("want one warning, of the denied call, got %q", lines)
		}
	})
}

// A renewal that overtakes the end of its message would undo it: hide a released message for minutes, or be refused
// because the message is deleted.
func TestHeartbeatIsStoppedAndJoinedBeforeTheMessageIsSettled(t *testing.T) {
	failure := errors.New("no")
	type end struct {
		result error
		hide   time.Duration // what the message is left with; below zero: it is deleted
		least  time.Duration // at least, where it is jittered
	}
	each(t, map[string]end{
		"success":     {nil, -1, 0},
		"failure":     {failure, 40 * time.Second, 20 * time.Second},
		"retry after": {worker.RetryAfter(7*time.Second, failure), 7 * time.Second, 7 * time.Second},
		"snooze":      {worker.Snooze(90 * time.Second), 90 * time.Second, 90 * time.Second},
		"give back":   {worker.Snooze(0), 0, 0},
	}, func(t *testing.T, c end) {
		for _, fault := range []sqsmodel.Fault{{Hold: 3 * time.Second}, {HoldAfter: 3 * time.Second}} {
			q := newQueue(t, "VisibilityTimeout", "30")
			fault.Action, fault.Times = visibilityBatch, 1
			q.Inject(fault) // the first renewal, at about 10 s, is under way when the handler returns
			id := q.send(1)[0]
			var r runs
			w := q.start(r.handler(func(ctx context.Context, m *worker.Message) error {
				if m.ReceiveCount > 1 {
					return takes(never)(ctx, m)
				}
				time.Sleep(12 * time.Second)
				return c.result
			}), worker.Config{Backoff: worker.Backoff{Min: 40 * time.Second}, WaitTime: time.Second})
			time.Sleep(16 * time.Second)
			if c.hide < 0 {
				q.mustBeEmpty()
			}
			events := q.events(id, sqsmodel.VisibilityChanged, sqsmodel.Deleted)
			if n := len(events); n != 2 || (events[1].Kind == sqsmodel.Deleted) != (c.hide < 0) {
				t.Fatalf("want a renewal and then the end, got %v", events)
			}
			if v := events[1].VisibilityTimeout; c.hide >= 0 && (v < c.least || v > c.hide) {
				t.Errorf("the message is hidden for %v, want from %v to %v", v, c.least, c.hide)
			}
			renewal, last := q.finished(visibilityBatch)[0], q.Calls()[len(q.Calls())-1]
			for _, call := range q.Calls() {
				if call.At.After(renewal.At) && (call.Action == deleteBatch || call.Action == visibilityBatch) {
					last = call
					break
				}
			}
			if last.At.Before(renewal.Done) {
				t.Errorf("the renewal was answered at %v, the next write left at %v", renewal.Done.Format("05.000"), last.At.Format("05.000"))
			}
			w.log.mustHaveNo(t, slog.LevelError)
			_ = w.stop()
			q.mustWriteOnlyUnderLease()
		}
	})
}

// Somebody else deletes the message, or purges the queue, while its handler runs.
func TestMessageThatIsDeletedMeanwhileIsALostLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "VisibilityTimeout", "30")
		var handle atomic.Value
		q.OnEvent(func(e sqsmodel.Event) {
			if e.Kind == sqsmodel.Received {
				handle.Store(e.Handle)
			}
		})
		id := q.send(1)[0]
		cause := make(chan error, 1)
		w := q.start(worker.HandlerFunc(func(ctx context.Context, _ *worker.Message) error {
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return nil
		}), worker.Config{})
		time.Sleep(5 * time.Second)
		h := handle.Load().(string)
		if _, err := q.Client().DeleteMessage(t.Context(), &sqs.DeleteMessageInput{QueueUrl: &q.url, ReceiptHandle: &h}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if err := <-cause; !errors.Is(err, worker.ErrLeaseLost) {
			t.Errorf("the handler's context ended with %v", err)
		}
		if n := q.Count(visibilityBatch) + q.Count(deleteBatch); n != 1 {
			t.Errorf("%d writes for a message that is gone, want the one renewal", n)
		}
		w.log.mustHaveNo(t, slog.LevelError)
		if lines := w.log.with("lease lost", id); len(lines) != 1 {
			t.Errorf("want one line about the lost lease, got %q", lines)
		}
		w.mustStop()
	})
}

// Every form in which SQS says that a receipt handle is no longer good.
func TestDeadReceiptHandleEndsTheLeaseOnce(t *testing.T) {
	const gone = "Value AQEB for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not available for visibility timeout change."
	const expired = "Value AQEB for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
	entry := func(code, text string) sqsmodel.Fault {
		return sqsmodel.Fault{FailEntries: func(sqsmodel.Call, int, string, string) *sqsmodel.EntryError {
			return &sqsmodel.EntryError{Code: code, Message: text, SenderFault: true}
		}}
	}
	faults := map[string]sqsmodel.Fault{
		"entry invalid":       entry("ReceiptHandleIsInvalid", "The receipt handle has expired"),
		"entry garbage":       entry("ReceiptHandleIsInvalid", `The input receipt handle "AQEB" is not a valid receipt handle.`),
		"entry not available": entry("InvalidParameterValue", gone),
		"entry not in flight": entry("AWS.SimpleQueueService.MessageNotInflight", ""),
		"entry, short code":   entry("MessageNotInflight", ""),
		"call invalid":        {Code: "ReceiptHandleIsInvalid"},
		"call not available":  {Code: "InvalidParameterValueException", Message: gone},
		"call expired":        {Code: "InvalidParameterValueException", Message: expired},
		"call not in flight":  {Code: "MessageNotInflight"},
	}
	type form struct {
		fault  sqsmodel.Fault
		noCode bool // SQS doesn't send the query protocol's code along
	}
	cases := map[string]form{}
	for name, f := range faults {
		cases[name] = form{f, false}
		cases[name+", JSON code"] = form{f, true}
	}
	each(t, cases, func(t *testing.T, c form) {
		q := newQueueAt(t, sqsmodel.Config{NoQueryErrorHeader: c.noCode}, "VisibilityTimeout", "30")
		c.fault.Action = visibilityBatch
		remove := q.Inject(c.fault)
		id := q.send(1)[0]
		var first, second runs
		causes := make(chan error, 2)
		w := q.start(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			if m.ReceiveCount > 1 {
				return second.handler(succeed).Handle(ctx, m)
			}
			return first.handler(func(ctx context.Context, _ *worker.Message) error {
				<-ctx.Done()
				causes <- context.Cause(ctx)
				return context.Cause(ctx)
			}).Handle(ctx, m)
		}), worker.Config{})
		time.Sleep(15 * time.Second)
		synctest.Wait()
		select {
		case err := <-causes:
			if !errors.Is(err, worker.ErrLeaseLost) {
				t.Errorf("the handler's context ended with %v", err)
			}
		default:
			t.Fatal("the handler wasn't told")
		}
		if n := q.Count(visibilityBatch); n != 1 {
			t.Errorf("%d calls for a dead handle, want 1", n)
		}
		remove()
		q.mustEmpty(time.Minute) // it comes back, and this time nothing is wrong
		if first.count() != 1 || second.count() != 1 {
			t.Errorf("ran %d and %d times, want once each", first.count(), second.count())
		}
		if s := w.Stats(); s.Lost != 1 || s.Heartbeat.Lost != 1 {
			t.Errorf("counted %d and %d lost leases, want one", s.Lost, s.Heartbeat.Lost)
		}
		w.log.mustHaveNo(t, slog.LevelError)
		if lines := w.log.with("lease lost: it comes back", id); len(lines) != 1 {
			t.Errorf("want one line about the lost lease, got %q", lines)
		}
		q.mustWriteOnlyUnderLease()
		w.mustStop()
	})
}

// Whatever a handler returns after its lease is lost: the message may be somebody else's, and nothing is written for it.
func TestNothingIsWrittenAfterALostLease(t *testing.T) {
	failure := errors.New("no")
	each(t, map[string]worker.HandlerFunc{
		"success":     succeed,
		"failure":     returns(failure),
		"retry after": returns(worker.RetryAfter(0, failure)),
		"permanent":   returns(worker.Permanent(failure)),
		"unavailable": returns(worker.Unavailable(failure)),
		"snooze":      returns(worker.Snooze(0)),
		"duplicate":   returns(worker.ErrDuplicate),
		"panic":       func(context.Context, *worker.Message) error { panic("no") },
		"goexit":      func(context.Context, *worker.Message) error { runtime.Goexit(); return nil },
		"extension": func(ctx context.Context, _ *worker.Message) error {
			if err := worker.ExtendVisibility(ctx, time.Minute); !errors.Is(err, worker.ErrLeaseLost) {
				panic(fmt.Sprintf("extended a lost lease: %v", err))
			}
			return nil
		},
	}, func(t *testing.T, end worker.HandlerFunc) {
		q := newQueue(t, "VisibilityTimeout", "5")
		remove := q.Inject(sqsmodel.Fault{Action: visibilityBatch, Code: "ServiceUnavailable"})
		q.send(1)
		lost := make(chan error, 1)
		w := q.start(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			<-ctx.Done()
			lost <- context.Cause(ctx)
			time.Sleep(10 * time.Second) // it doesn't stop
			return end(ctx, m)
		}), worker.Config{Concurrency: 1})
		time.Sleep(5*time.Second + time.Millisecond)
		if err := <-lost; !errors.Is(err, worker.ErrLeaseLost) {
			t.Errorf("the handler's context ended with %v", err)
		}
		// Another consumer has it now.
		out, err := q.Client().ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: &q.url, VisibilityTimeout: 600})
		if err != nil || len(out.Messages) != 1 {
			t.Fatalf("the message isn't back: %v", err)
		}
		remove()
		q.ResetCounts()
		time.Sleep(5 * time.Minute)
		if n := q.Count(visibilityBatch) + q.Count(deleteBatch); n != 0 {
			t.Errorf("%d writes after the lease was lost", n)
		}
		if st := q.state(); st.InFlight != 1 {
			t.Errorf("the other consumer's message is gone or visible: %+v", st)
		}
		if n := w.Stats().Lost; n != 1 {
			t.Errorf("%d leases counted as lost, want 1", n)
		}
		w.mustStop()
	})
}

func TestLostLeaseIsNotDeleted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "VisibilityTimeout", "5")
		ids := q.send(10)
		q.Inject(sqsmodel.Fault{Action: visibilityBatch, FailEntries: func(_ sqsmodel.Call, _ int, _, handle string) *sqsmodel.EntryError {
			if handle == q.message(ids[3]).Handle {
				return &sqsmodel.EntryError{Code: "ReceiptHandleIsInvalid", SenderFault: true}
			}
			return nil
		}, Times: 1})
		var told atomic.Int64
		var r runs
		w := q.start(r.handler(func(ctx context.Context, _ *worker.Message) error {
			time.Sleep(12 * time.Second)
			if errors.Is(context.Cause(ctx), worker.ErrLeaseLost) {
				told.Add(1)
			}
			return nil
		}), worker.Config{})
		time.Sleep(13 * time.Second)
		if n := len(q.events("", sqsmodel.Deleted)); n < 9 {
			t.Errorf("%d deleted, want the nine whose leases held", n)
		}
		if n := told.Load(); n != 1 {
			t.Errorf("%d handlers lost their lease, want one", n)
		}
		q.mustEmpty(time.Minute)
		r.mustHaveRunOnce(t, ids) // the lost one came back here, and was done already
		q.mustWriteOnlyUnderLease()
		w.mustStop()
	})
}

func TestExtensionsLeaveInBatchesOfTen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "VisibilityTimeout", "30")
		q.send(25)
		w := q.start(worker.HandlerFunc(takes(95*time.Second)), worker.Config{Concurrency: 25})
		q.mustEmpty(2 * time.Minute)
		entries := 0
		for _, c := range q.finished(visibilityBatch) {
			if c.Err != "" || c.Entries > 10 {
				t.Errorf("a call with %d entries ended with %q", c.Entries, c.Err)
			}
			entries += c.Entries
		}
		if n := q.Count(visibilityBatch); n > 27 { // nine times three
			t.Errorf("%d calls for %d extensions", n, entries)
		}
		if entries > 225 {
			t.Errorf("%d extensions, want one every 10 s", entries)
		}
		q.mustHaveHappened(sqsmodel.Expired, 0)
		w.mustStop()
	})
}

// The 12 hours that SQS lets a message be held, scaled down.
func TestHandlerIsToldBeforeTheCeiling(t *testing.T) {
	type ceiling struct {
		server sqsmodel.Config
		hold   time.Duration // what the worker knows
		heeds  bool
	}
	cases := map[string]ceiling{
		"heeded": {sqsmodel.Config{MaxHold: 20 * time.Second}, 20 * time.Second, true},
		"deaf":   {sqsmodel.Config{MaxHold: 20 * time.Second}, 20 * time.Second, false},
		// SQS's own is lower than we think, as where it counts from the first receive.
		"unknown": {sqsmodel.Config{MaxHold: 20 * time.Second}, 0, true},
		"request": {sqsmodel.Config{MaxHold: 20 * time.Second, Ceiling: sqsmodel.CeilingFromRequest}, 20 * time.Second, true},
		"lower":   {sqsmodel.Config{}, 20 * time.Second, true},
		"slow":    {sqsmodel.Config{MaxHold: 20 * time.Second, Latency: 200 * time.Millisecond}, 20 * time.Second, true},
	}
	each(t, cases, func(t *testing.T, c ceiling) {
		q := newQueueAt(t, c.server, "VisibilityTimeout", "6")
		id := q.send(1)[0]
		var toldAt time.Time
		var cause error
		var runs runs
		w := q.start(runs.handler(func(ctx context.Context, m *worker.Message) error {
			if m.ReceiveCount > 1 {
				return nil
			}
			<-ctx.Done()
			toldAt, cause = time.Now(), context.Cause(ctx)
			if !c.heeds {
				time.Sleep(30 * time.Second)
			}
			return cause
		}), worker.Config{MaxHold: c.hold})
		q.mustEmpty(3 * time.Minute)
		if !errors.Is(cause, heartbeat.ErrCeiling) {
			t.Errorf("the handler's context ended with %v", cause)
		}
		received := q.events(id, sqsmodel.Received)
		if !toldAt.Before(received[1].At) {
			t.Errorf("told at %v, received again at %v", toldAt.Format("05.000"), received[1].At.Format("05.000"))
		}
		if held := toldAt.Sub(received[0].At); held < 13*time.Second {
			t.Errorf("told after %v of 20 s", held)
		}
		for _, call := range q.finished(visibilityBatch) {
			if call.At.Add(time.Duration(call.VisibilityTimeouts[0])*time.Second).After(received[0].At.Add(20*time.Second)) && c.hold > 0 && call.At.Before(received[1].At) {
				t.Errorf("asked for %v s at %v, beyond the ceiling", call.VisibilityTimeouts, call.At.Sub(received[0].At))
			}
		}
		calls := 0
		for _, call := range q.finished(visibilityBatch) {
			if call.At.Before(received[1].At) {
				calls++
			}
		}
		if calls > 12 {
			t.Errorf("%d calls up to the ceiling", calls)
		}
		changes := q.events(id, sqsmodel.VisibilityChanged)
		if last := changes[len(changes)-1]; c.heeds && last.VisibilityTimeout > 2*time.Second {
			t.Error("it wasn't given back, but lapsed")
		}
		w.log.mustHaveNo(t, slog.LevelError)
		q.mustWriteOnlyUnderLease()
		w.mustStop()
	})
}

func TestHandlerMayRunForNearlyTwelveHours(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "VisibilityTimeout", "600")
		ids := q.send(1)
		var r runs
		w := q.start(r.handler(takes(12*time.Hour-90*time.Second)), worker.Config{})
		q.mustEmpty(12 * time.Hour)
		r.mustHaveRunOnce(t, ids)
		q.mustHaveHappened(sqsmodel.Received, 1)
		if n := q.Count(visibilityBatch); n > 12*18+1 {
			t.Errorf("%d renewals in 12 hours", n)
		}
		w.mustStop()
	})
}

func TestHandlersOwnExtensionIsHonoured(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "VisibilityTimeout", "30")
		id := q.send(1)[0]
		w := q.start(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			if err := worker.ExtendVisibility(ctx, 120*time.Second); err != nil {
				t.Error(err)
			}
			if left := time.Until(q.message(m.ID).VisibleAt); left != 120*time.Second {
				t.Errorf("after the extension %v are left", left)
			}
			if at, ok := worker.LeaseDeadline(ctx); !ok || time.Until(at) < 119*time.Second {
				t.Errorf("LeaseDeadline says %v, %v", at, ok)
			}
			time.Sleep(300 * time.Second)
			return nil
		}), worker.Config{})
		time.Sleep(79 * time.Second)
		if n := q.Count(visibilityBatch); n != 1 {
			t.Errorf("%d visibility changes, want the handler's one", n)
		}
		q.mustEmpty(5 * time.Minute)
		q.mustNeverShorten(id)
		q.mustHaveHappened(sqsmodel.Expired, 0)
		q.mustHaveHappened(sqsmodel.Received, 1)
		w.mustStop()
	})
}

func TestShorterExtensionChangesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "VisibilityTimeout", "600")
		id := q.send(1)[0]
		w := q.start(worker.HandlerFunc(func(ctx context.Context, _ *worker.Message) error {
			for _, d := range []time.Duration{0, time.Millisecond, 13 * time.Hour, -time.Second} {
				if worker.ExtendVisibility(ctx, d) == nil {
					t.Errorf("an extension of %v was accepted", d)
				}
			}
			return worker.ExtendVisibility(ctx, 30*time.Second)
		}), worker.Config{})
		q.mustEmpty(time.Second)
		if n := q.Count(visibilityBatch); n != 0 {
			t.Errorf("%d visibility changes", n)
		}
		q.mustNeverShorten(id)
		w.mustStop()
	})
}

func TestEachQueueKeepsItsOwnVisibility(t *testing.T) {
	bubble(t, func(t *testing.T) {
		short := newQueue(t, "VisibilityTimeout", "6")
		long := &fixture{Server: short.Server, t: t, url: short.MustCreateQueue("long", map[string]string{"VisibilityTimeout": "900"})}
		short.send(1)
		long.send(1)
		a := short.start(worker.HandlerFunc(takes(10*time.Minute)), worker.Config{})
		b := long.start(worker.HandlerFunc(takes(10*time.Minute)), worker.Config{})
		time.Sleep(11 * time.Minute)
		for _, c := range short.finished(visibilityBatch) {
			if want := map[string]int{testQueue: 6, "long": 900}[c.Queue]; c.VisibilityTimeouts[0] != want {
				t.Errorf("a renewal on queue %s asked for %v s", c.Queue, c.VisibilityTimeouts)
			}
		}
		short.mustHaveHappened(sqsmodel.Deleted, 2)
		short.mustHaveHappened(sqsmodel.Expired, 0)
		a.mustStop()
		b.mustStop()
	})
}

// Middleware decorates messages, replaces them, even changes them in place: the lease is the received message's.
func TestLeaseIsKeptWhateverBecomesOfTheMessageValue(t *testing.T) {
	each(t, map[string]worker.Middleware{
		"replaced": func(next worker.Handler) worker.Handler {
			return worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
				return next.Handle(ctx, &worker.Message{ID: "other-" + m.ID, Body: "decoded"})
			})
		},
		"changed in place": func(next worker.Handler) worker.Handler {
			return worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
				m.ID, m.Body, m.ReceiveCount, m.QueueURL = "other-"+m.ID, "decoded", 99, "elsewhere"
				return next.Handle(ctx, m)
			})
		},
	}, func(t *testing.T, decorate worker.Middleware) {
		q := newQueue(t, "VisibilityTimeout", "5")
		q.send(10)
		var r runs
		w := q.start(r.handler(takes(2*time.Second)), worker.Config{Concurrency: 1, Prefetch: 9, Middleware: []worker.Middleware{decorate}})
		q.mustEmpty(40 * time.Second)
		if n := r.count(); n != 10 {
			t.Errorf("%d runs, want 10", n)
		}
		q.mustHaveHappened(sqsmodel.Received, 10)
		q.mustHaveHappened(sqsmodel.Expired, 0)
		synctest.Wait()
		if s := w.Stats(); s.Held != 0 || s.Heartbeat.Held != 0 {
			t.Errorf("still held: %d messages, %d leases", s.Held, s.Heartbeat.Held)
		}
		w.mustStop()
	})
}

func TestFailedRenewalsAreTriedAgainWhileTheLeaseLasts(t *testing.T) {
	each(t, map[string]sqsmodel.Fault{
		"5xx": {Code: "ServiceUnavailable"}, "throttled": {Code: "RequestThrottled"}, "throttling": {Code: "ThrottlingException"},
		"KMS throttled": {Code: "KmsThrottled"}, "denied": {Code: "AccessDeniedException"}, "dropped": {DropBefore: true},
		"unanswered": {DropAfter: true}, "hanging": {Stall: true}, "expired token": {Code: "ExpiredTokenException"},
		"entries": {FailEntries: func(sqsmodel.Call, int, string, string) *sqsmodel.EntryError {
			return &sqsmodel.EntryError{Code: "InternalError"}
		}},
		"entries throttled": {FailEntries: func(sqsmodel.Call, int, string, string) *sqsmodel.EntryError {
			return &sqsmodel.EntryError{Code: "KMS.ThrottlingException", SenderFault: true}
		}},
	}, func(t *testing.T, fault sqsmodel.Fault) {
		q := newQueue(t, "VisibilityTimeout", "30")
		fault.Action, fault.Times = visibilityBatch, 3
		q.Inject(fault)
		ids := q.send(12)
		var r runs
		w := q.start(r.handler(takes(time.Minute)), worker.Config{Concurrency: 12})
		q.mustEmpty(2 * time.Minute)
		r.mustHaveRunOnce(t, ids)
		q.mustHaveHappened(sqsmodel.Expired, 0)
		q.mustHaveHappened(sqsmodel.Received, 12)
		if n := w.Stats().Lost; n != 0 {
			t.Errorf("%d leases counted as lost", n)
		}
		w.log.mustHaveNo(t, slog.LevelError)
		w.mustStop()
	})
}

// An outage of renewals is an event of the queue, not one of each message.
func TestRenewalOutageIsLoggedOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueueWithDLQ(t, 10, "VisibilityTimeout", "30")
		remove := q.Inject(sqsmodel.Fault{Action: visibilityBatch, Code: "ServiceUnavailable"})
		q.send(100)
		w := q.start(worker.HandlerFunc(takes(time.Minute)), worker.Config{Concurrency: 100})
		time.Sleep(25 * time.Second)
		remove()
		q.mustEmpty(2 * time.Minute)
		if lines := w.log.atLeast(slog.LevelWarn); len(lines) != 1 {
			t.Errorf("15 s of failing renewals made %d log lines: %q", len(lines), lines)
		}
		q.mustHaveHappened(sqsmodel.Expired, 0)
		w.mustStop()
	})
}

func TestOnlyTheFailedRenewalsAreSentAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "VisibilityTimeout", "30")
		ids := q.send(10)
		var failed, again []string
		q.Inject(sqsmodel.Fault{Action: visibilityBatch, Times: 1, FailEntries: func(_ sqsmodel.Call, entry int, _, handle string) *sqsmodel.EntryError {
			if entry == 3 {
				failed = append(failed, handle)
				return &sqsmodel.EntryError{Code: "InternalError"}
			}
			return nil
		}})
		w := q.start(worker.HandlerFunc(takes(15*time.Second)), worker.Config{})
		q.mustEmpty(20 * time.Second)
		calls := q.finished(visibilityBatch)
		if len(calls) != 2 {
			t.Fatalf("%d calls, want the batch and the repetition", len(calls))
		}
		if again = calls[1].ReceiptHandles; !slices.Equal(again, failed) {
			t.Errorf("sent again: %d entries, want the one that failed", len(again))
		}
		q.mustHaveHappened(sqsmodel.Deleted, len(ids))
		w.mustStop()
	})
}

func TestSlowRenewalsKeepTheirLeases(t *testing.T) {
	type slow struct{ visibility, latency time.Duration }
	each(t, map[string]slow{
		"200 ms of 1 s": {time.Second, 200 * time.Millisecond},
		"500 ms of 5 s": {5 * time.Second, 500 * time.Millisecond},
		"2 s of 15 s":   {15 * time.Second, 2 * time.Second},
		"5 s of 30 s":   {30 * time.Second, 5 * time.Second},
	}, func(t *testing.T, c slow) {
		q := newQueue(t, "VisibilityTimeout", fmt.Sprint(c.visibility.Seconds()))
		ids := q.send(50)
		var r runs
		q.Inject(sqsmodel.Fault{Action: visibilityBatch, Hold: c.latency})
		w := q.start(r.handler(takes(time.Minute)), worker.Config{Concurrency: 50})
		q.mustEmpty(2 * time.Minute)
		r.mustHaveRunOnce(t, ids)
		q.mustHaveHappened(sqsmodel.Expired, 0)
		w.mustStop()
	})
}

func TestWithoutHeartbeatTheVisibilityIsTheLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "VisibilityTimeout", "10")
		q.send(2)
		var cause error
		var r runs
		w := q.start(r.handler(func(ctx context.Context, m *worker.Message) error {
			if m.Body == "0" {
				return takes(9*time.Second)(ctx, m)
			}
			if m.ReceiveCount > 1 {
				return nil
			}
			<-ctx.Done()
			cause = context.Cause(ctx)
			return cause
		}), worker.Config{HeartbeatInterval: worker.NoHeartbeat})
		time.Sleep(9*time.Second + 500*time.Millisecond)
		q.mustHaveHappened(sqsmodel.Deleted, 1)
		q.mustEmpty(30 * time.Second)
		if !errors.Is(cause, worker.ErrLeaseLost) {
			t.Errorf("the slow handler's context ended with %v", cause)
		}
		if n := q.Count(visibilityBatch); n != 0 {
			t.Errorf("%d visibility changes with heartbeats off", n)
		}
		w.mustStop()
	})
}

// At-least-once delivery may bring a message again while it is held.
func TestDuplicateWithinTheVisibilityRunsOnce(t *testing.T) {
	failure := errors.New("no")
	type moment struct {
		prefetch int
		first    time.Duration // of the message before it, where it waits
		result   error
	}
	each(t, map[string]moment{
		"running":          {},
		"running, fails":   {result: failure},
		"running, snoozes": {result: worker.Snooze(5 * time.Second)},
		"waiting":          {prefetch: 1, first: time.Minute},
	}, func(t *testing.T, c moment) {
		q := newQueue(t, "VisibilityTimeout", "30")
		ids := q.send(1 + c.prefetch)
		id := ids[len(ids)-1]
		var r runs
		w := q.start(r.handler(func(ctx context.Context, m *worker.Message) error {
			if m.ID != id {
				return takes(c.first)(ctx, m)
			}
			time.Sleep(25 * time.Second)
			if m.ReceiveCount == 1 {
				return c.result
			}
			return nil
		}), worker.Config{Concurrency: 1, Prefetch: 5})
		for range 3 {
			time.Sleep(3 * time.Second)
			if !q.Duplicate(q.url, id) {
				t.Fatal("it isn't in flight")
			}
		}
		time.Sleep(time.Second)
		if n := len(q.events(id, sqsmodel.Received)); n != 4 {
			t.Fatalf("received %d times, want 4: the test would show nothing", n)
		}
		want := 1
		if c.result != nil {
			want = 2 // the failure, and the retry
		}
		q.mustEmpty(5 * time.Minute)
		if n := r.of()[id]; n != want {
			t.Errorf("ran %d times, want %d", n, want)
		}
		if r.most != 1 {
			t.Errorf("%d handlers at once", r.most)
		}
		if n := w.Stats().Duplicates; n != 3 {
			t.Errorf("%d duplicates counted, want 3", n)
		}
		w.mustStop()
	})
}

// A message may come again while its release hasn't got through. On a standard queue the older handle still works: its
// release would make the message visible under the newer receive.
func TestReleaseOfAnOlderReceiveDoesNotGiveAwayTheNewerOnes(t *testing.T) {
	each(t, map[string]error{"failed": errNo, "snoozed": worker.Snooze(0), "retry after": worker.RetryAfter(5*time.Second, errNo)}, func(t *testing.T, result error) {
		q := newQueue(t, "VisibilityTimeout", "30")
		id := q.send(1)[0]
		remove := q.Inject(sqsmodel.Fault{Action: visibilityBatch, Code: "ServiceUnavailable"})
		var r runs
		w := q.start(r.handler(func(_ context.Context, m *worker.Message) error {
			if m.ReceiveCount == 1 {
				return result
			}
			time.Sleep(20 * time.Second)
			return nil
		}), worker.Config{})
		time.Sleep(time.Second)
		if !q.Duplicate(q.url, id) {
			t.Fatal("it isn't in flight")
		}
		time.Sleep(2 * time.Second)
		remove()
		q.mustEmpty(time.Minute)
		if r.count() != 2 || r.most != 1 {
			t.Errorf("%d runs, %d at once, want 2, one after the other", r.count(), r.most)
		}
		q.mustHaveHappened(sqsmodel.Received, 2)
		q.mustHaveHappened(sqsmodel.Expired, 0)
		if n := w.Stats().ReleaseFailures; n != 0 {
			t.Errorf("%d failed releases counted", n)
		}
		w.mustStop()
	})
}
