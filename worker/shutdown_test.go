package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// timedStop stops a worker, and tells how long that took.
func (s *started) timedStop() (took time.Duration, err error) {
	began := time.Now()
	err = s.stop()
	return time.Since(began), err
}

// mustBeQuiet: once Run has returned, the worker calls SQS no more and has no goroutine left.
func (q *fixture) mustBeQuiet() {
	q.t.Helper()
	if stacks := ourGoroutines(); len(stacks) > 0 {
		q.t.Errorf("%d goroutines are left:\n%s", len(stacks), stacks[0])
	}
	before := q.Count("")
	time.Sleep(10 * time.Minute)
	if n := q.Count("") - before; n > 0 {
		q.t.Errorf("%d calls after Run had returned", n)
	}
}

// SQS may hand out messages to a receive that is open when the worker stops.
func TestStopGivesBackWhatAnOpenReceiveBrings(t *testing.T) {
	type arrival struct {
		cfg   sqsmodel.Config
		fault sqsmodel.Fault
		after time.Duration // from the stop until the messages are sent; negative: before
	}
	each(t, map[string]arrival{
		"sent after the stop":        {after: 3 * time.Second},
		"assigned, answer under way": {fault: sqsmodel.Fault{HoldAfter: 5 * time.Second}, after: -time.Second},
		"abandoned polls":            {cfg: sqsmodel.Config{AbandonedPolls: true}, after: 3 * time.Second},
		"slow SQS":                   {cfg: sqsmodel.Config{Latency: 300 * time.Millisecond}, after: 3 * time.Second},
	}, func(t *testing.T, c arrival) {
		q := newQueueAt(t, c.cfg)
		c.fault.Action = receiveMessage
		q.Inject(c.fault)
		var r runs
		w := q.start(r.handler(succeed), worker.Config{})
		time.Sleep(2 * time.Second)
		go func() {
			time.Sleep(time.Second + c.after)
			q.send(10)
		}()
		time.Sleep(time.Second)
		took, err := w.timedStop()
		if err != nil {
			t.Errorf("Run returned %v", err)
		}
		st := q.state()
		if st.InFlight != 0 || st.Visible != 10 {
			t.Errorf("visible %d, in flight %d, want all 10 visible", st.Visible, st.InFlight)
		}
		if r.count() != 0 {
			t.Error("a message was run that came after the stop")
		}
		if n := q.CountEvents(sqsmodel.Received); n > 10 {
			t.Errorf("%d receives of 10 messages", n)
		}
		if took > 20*time.Second {
			t.Errorf("the stop took %v", took)
		}
		q.mustBeQuiet()
	})
}

func TestReceiveIsBrokenOffOnlyWhenTheTimeIsOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.Inject(sqsmodel.Fault{Action: receiveMessage, Stall: true})
		w := q.start(worker.HandlerFunc(succeed), worker.Config{})
		time.Sleep(time.Second)
		took, err := w.timedStop()
		var drain *worker.DrainError
		if !errors.As(err, &drain) || drain.AbortedReceives != 1 || len(drain.Running) != 0 || len(drain.Unsettled) != 0 {
			t.Errorf("Run returned %v, want a DrainError with one receive broken off", err)
		}
		if took < 20*time.Second || took > 25*time.Second {
			t.Errorf("the receive was broken off after %v, want near the end of the 25 s", took)
		}
		q.mustBeQuiet()
	})
}

// Whatever the drain timeout: an idle worker stops in time, and without breaking off its long poll.
func TestIdleWorkerStopsCleanlyInTime(t *testing.T) {
	type stop struct {
		drain, latency, into time.Duration
	}
	cases := map[string]stop{}
	for _, drain := range []time.Duration{2, 3, 5, 10, 20, 22, 25, 60} {
		for _, latency := range []time.Duration{0, 50 * time.Millisecond} {
			for _, into := range []time.Duration{time.Millisecond, 500 * time.Millisecond, 7 * time.Second, 19 * time.Second} {
				drain := drain * time.Second
				cases[fmt.Sprintf("%v, %v a call, %v into a poll", drain, latency, into)] = stop{drain, latency, into}
			}
		}
	}
	each(t, cases, func(t *testing.T, c stop) {
		q := newQueueAt(t, sqsmodel.Config{Latency: c.latency})
		w := q.start(worker.HandlerFunc(succeed), worker.Config{DrainTimeout: c.drain})
		time.Sleep(c.latency + c.into)
		took, err := w.timedStop()
		if err != nil {
			t.Errorf("Run returned %v", err)
		}
		if took > min(c.drain, 20*time.Second+c.latency) {
			t.Errorf("the stop took %v", took)
		}
	})
}

func TestWaitTimeIsCutToTheDrainTimeout(t *testing.T) {
	each(t, map[string]time.Duration{"2 s": 2 * time.Second, "10 s": 10 * time.Second, "25 s": 25 * time.Second}, func(t *testing.T, drain time.Duration) {
		q := newQueue(t)
		w := q.start(worker.HandlerFunc(succeed), worker.Config{DrainTimeout: drain})
		time.Sleep(time.Minute)
		for _, c := range q.finished(receiveMessage) {
			if wait := time.Duration(c.WaitSeconds) * time.Second; wait >= drain || wait < min(drain/2, 20*time.Second) {
				t.Fatalf("a receive waited %v with a drain timeout of %v", wait, drain)
			}
		}
		w.mustStop()
	})
}

// A deploy stops workers in the middle of their work. On a queue whose maxReceiveCount is 1, a message that is given up
// goes to the dead-letter queue.
func TestRunningHandlersFinishInTheDrain(t *testing.T) {
	each(t, map[string]string{"30 s visibility": "30", "5 s visibility": "5", "1 s visibility": "1"}, func(t *testing.T, visibility string) {
		q := newQueueWithDLQ(t, 1, "VisibilityTimeout", visibility)
		ids := q.send(5)
		var r runs
		w := q.start(r.handler(takes(17*time.Second)), worker.Config{Concurrency: 5})
		time.Sleep(2 * time.Second)
		q.send(3) // come after the stop has begun, if at all
		took, err := w.timedStop()
		if err != nil {
			t.Errorf("Run returned %v", err)
		}
		if took < 15*time.Second || took > 15*time.Second+200*time.Millisecond {
			t.Errorf("the stop took %v, want as long as the handlers", took)
		}
		r.mustHaveRunOnce(t, ids)
		if n := r.count(); n != 5 {
			t.Errorf("%d runs, want 5: something was started after the stop", n)
		}
		q.mustHaveHappened(sqsmodel.Deleted, 5)
		q.mustHaveHappened(sqsmodel.Expired, 0)
		if n := len(q.Queue(testDLQ).Messages); n != 0 {
			t.Errorf("the stop dead-lettered %d messages", n)
		}
		if st := q.state(); st.InFlight != 0 {
			t.Errorf("%d messages in flight after the stop", st.InFlight)
		}
		q.mustBeQuiet()
	})
}

// What handlers return during the drain counts as ever: the context that settles isn't the one that has ended.
func TestResultsDuringTheDrainAreSettled(t *testing.T) {
	failure := errors.New("no")
	type result struct {
		err         error
		least, most time.Duration // how long the message stays away; negative: deleted
	}
	each(t, map[string]result{
		"success":     {nil, -1, -1},
		"failure":     {failure, time.Second, 2 * time.Second},
		"retry after": {worker.RetryAfter(77*time.Second, failure), 77 * time.Second, 77 * time.Second},
		"snooze":      {worker.Snooze(33 * time.Second), 33 * time.Second, 33 * time.Second},
		"give back":   {worker.Snooze(0), 0, 0},
		"permanent":   {worker.Permanent(failure), 15 * time.Minute, 15 * time.Minute},
	}, func(t *testing.T, c result) {
		q := newQueue(t)
		id := q.send(1)[0]
		w := q.start(worker.HandlerFunc(func(_ context.Context, m *worker.Message) error {
			time.Sleep(5 * time.Second)
			return c.err
		}), worker.Config{Concurrency: 1})
		time.Sleep(2 * time.Second)
		w.mustStop()
		events := q.events(id, sqsmodel.VisibilityChanged, sqsmodel.Deleted)
		if len(events) != 1 || (events[0].Kind == sqsmodel.Deleted) != (c.least < 0) {
			t.Fatalf("want one write, got %v", events)
		}
		if v := events[0].VisibilityTimeout; c.least >= 0 && (v < c.least || v > c.most) {
			t.Errorf("the message is hidden for %v, want %v to %v", v, c.least, c.most)
		}
		q.mustBeQuiet()
	})
}

// consumer is somebody else who receives from the queue until the test ends.
func (q *fixture) consumer(got func(id string, at time.Time)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c := q.Client()
		for ctx.Err() == nil {
			out, err := c.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &q.url, MaxNumberOfMessages: 10, WaitTimeSeconds: 20, VisibilityTimeout: 3600})
			if err != nil {
				continue
			}
			for _, m := range out.Messages {
				got(*m.MessageId, time.Now())
			}
		}
	}()
	return func() { cancel(); <-done }
}

func TestUnstartedMessagesAreGivenBackAtOnce(t *testing.T) {
	each(t, map[string]int{"slots full": 5, "receive open": 20}, func(t *testing.T, prefetch int) {
		q := newQueue(t)
		ids := q.send(10)
		var r runs
		w := q.start(r.handler(takes(10*time.Second)), worker.Config{Concurrency: 5, Prefetch: prefetch})
		time.Sleep(2 * time.Second)
		var others atomic.Int64
		stopConsumer := q.consumer(func(id string, at time.Time) {
			if !slices.Contains(ids[5:], id) {
				t.Errorf("somebody else got message %s, which was running", id)
			}
			others.Add(1)
		})
		go func() {
			time.Sleep(1100 * time.Millisecond)
			if n := others.Load(); n != 5 {
				t.Errorf("1.1 s after the stop, somebody else had %d of 5 unstarted messages", n)
			}
		}()
		w.mustStop()
		stopConsumer()
		r.mustHaveRunOnce(t, ids[:5])
		if r.count() != 5 {
			t.Errorf("%d runs, want 5", r.count())
		}
		// Each open receive of the worker's may have taken one back before it ended.
		if n := q.CountEvents(sqsmodel.Received); n > 15+2 {
			t.Errorf("%d receives, want 10 here and 5 there", n)
		}
		q.mustHaveHappened(sqsmodel.Deleted, 5)
		q.mustBeQuiet()
	})
}

// With nobody else there, the worker's own open receives would take back what it gives back, again and again.
func TestGivenBackMessagesAreNotTakenBackByOwnReceives(t *testing.T) {
	each(t, map[string]int{"one receive open": 15, "several": 300}, func(t *testing.T, prefetch int) {
		q := newQueueAt(t, sqsmodel.Config{Latency: 10 * time.Millisecond})
		w := q.start(worker.HandlerFunc(takes(10*time.Second)), worker.Config{Concurrency: 5, Prefetch: prefetch})
		time.Sleep(time.Second)
		q.send(20)
		time.Sleep(2 * time.Second)
		open := q.state().OpenPolls
		before := q.CountEvents(sqsmodel.Received)
		took, err := w.timedStop()
		if err != nil {
			t.Errorf("Run returned %v", err)
		}
		if n := q.CountEvents(sqsmodel.Received) - before; n > int64(open) {
			t.Errorf("%d messages were received again, with %d receives open at the stop", n, open)
		}
		if st := q.state(); st.InFlight != 0 {
			t.Errorf("%d messages in flight after the stop", st.InFlight)
		}
		if took > 20*time.Second {
			t.Errorf("the stop took %v", took)
		}
	})
}

func TestRestartsBurnNoReceives(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueueWithDLQ(t, 2)
		ids := q.send(50)
		var r runs
		for range 20 {
			w := q.start(r.handler(takes(10*time.Second)), worker.Config{Concurrency: 5})
			time.Sleep(3 * time.Second)
			w.mustStop()
		}
		q.mustBeEmpty()
		r.mustHaveRunOnce(t, ids)
		q.mustHaveHappened(sqsmodel.Received, 50)
		q.mustHaveHappened(sqsmodel.DeadLettered, 0)
	})
}

// At the end of its time the drain cancels what still runs. That is nobody's failure.
func TestInterruptedMessagesAreGivenBackAtOnceAndAreNoFailures(t *testing.T) {
	each(t, map[string]func(error) error{
		"cause":   func(cause error) error { return cause },
		"ctx.Err": func(error) error { return context.Canceled },
		"own":     func(error) error { return errors.New("connection closed") },
		"wrapped": func(cause error) error { return fmt.Errorf("job: %w", cause) },
		"panic":   func(error) error { panic("connection closed") },
	}, func(t *testing.T, result func(error) error) {
		q := newQueueWithDLQ(t, 2)
		q.send(5)
		var causes [5]error
		var n atomic.Int64
		w := q.start(worker.HandlerFunc(func(ctx context.Context, _ *worker.Message) error {
			<-ctx.Done()
			causes[n.Add(1)-1] = context.Cause(ctx)
			time.Sleep(2 * time.Second) // a checkpoint
			return result(context.Cause(ctx))
		}), worker.Config{Concurrency: 5})
		time.Sleep(time.Second)
		took, err := w.timedStop()
		if err != nil {
			t.Errorf("Run returned %v", err)
		}
		if want := 20 * time.Second; took < want || took > want+200*time.Millisecond { // 25 s less 5 s grace and 2 s reserve, and the handlers' 2 s
			t.Errorf("the stop took %v, want %v", took, want)
		}
		for _, cause := range causes {
			if !errors.Is(cause, worker.ErrShutdown) {
				t.Errorf("a handler's context ended with %v", cause)
			}
		}
		if st := q.state(); st.Visible != 5 {
			t.Errorf("%d of 5 messages are visible", st.Visible)
		}
		if s := w.Stats(); s.Interrupted != 5 || s.Failed != 0 || s.Retried != 0 {
			t.Errorf("counted %d interrupted, %d failed, %d retried", s.Interrupted, s.Failed, s.Retried)
		}
		q.mustBeQuiet()
	})
}

func TestWhatAHandlerFinishesInItsGraceIsSettledByItsResult(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		ids := q.send(3)
		w := q.start(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			<-ctx.Done()
			time.Sleep(4 * time.Second)
			switch m.Body {
			case "0":
				return nil
			case "1":
				return worker.RetryAfter(time.Minute, errors.New("checkpoint saved"))
			}
			return context.Cause(ctx)
		}), worker.Config{})
		time.Sleep(time.Second)
		w.mustStop()
		if q.message(ids[0]).ID != "" {
			t.Error("the one that succeeded isn't deleted")
		}
		if m := q.message(ids[1]); m.State != sqsmodel.InFlight || time.Until(m.VisibleAt) < 50*time.Second {
			t.Errorf("the one that said when comes back at %v", m.VisibleAt)
		}
		if m := q.message(ids[2]); m.State != sqsmodel.Visible {
			t.Error("the interrupted one isn't visible")
		}
	})
}

func TestHandlersThatDontReturnAreNamedAndTheirMessagesGivenBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "VisibilityTimeout", "30")
		ids := q.send(5)
		slices.Sort(ids)
		var r runs
		release := make(chan struct{})
		w := q.start(r.handler(func(context.Context, *worker.Message) error { <-release; return nil }), worker.Config{})
		time.Sleep(time.Second)
		took, err := w.timedStop()
		var drain *worker.DrainError
		if !errors.As(err, &drain) || !slices.Equal(drain.Running, ids) || len(drain.Unsettled) != 0 || drain.AbortedReceives != 0 {
			t.Fatalf("Run returned %v, want a DrainError that names the five", err)
		}
		if !strings.Contains(err.Error(), ids[0]) || !strings.Contains(err.Error(), "5 handlers") {
			t.Errorf("it says %q", err)
		}
		if took > 25*time.Second || took < 20*time.Second {
			t.Errorf("the stop took %v", took)
		}
		if st := q.state(); st.Visible != 5 {
			t.Errorf("%d of 5 messages are visible", st.Visible)
		}
		if err := w.Healthy(); !errors.Is(err, worker.ErrNotRunning) {
			t.Errorf("Healthy says %v", err)
		}
		calls := q.Count("")
		close(release) // the handlers return after all, and it's too late
		synctest.Wait()
		if n := q.Count("") - calls; n != 0 {
			t.Errorf("%d calls for late results", n)
		}
		if n := w.Stats().LateResults; n != 5 {
			t.Errorf("%d late results counted, want 5", n)
		}
		q.mustBeQuiet()
	})
}

func TestManyUnreturnedHandlersMakeAShortError(t *testing.T) {
	err := (&worker.DrainError{Running: slices.Repeat([]string{"a-message-id"}, 1000), Unsettled: slices.Repeat([]string{"another-id"}, 1000)}).Error()
	if len(err) > 400 || !strings.Contains(err, "1000 handlers") || !strings.Contains(err, "1000 messages") {
		t.Errorf("it says %q", err)
	}
}

// Run returns in time, whatever hangs, and names what it could not settle.
func TestRunReturnsInTimeWhateverHangs(t *testing.T) {
	failure := errors.New("no")
	type hang struct {
		faults    []sqsmodel.Fault
		handler   worker.HandlerFunc
		running   int // messages named in the error
		unsettled int
	}
	each(t, map[string]hang{
		"deletes":           {[]sqsmodel.Fault{{Action: deleteBatch, Stall: true}}, takes(2 * time.Second), 0, 20},
		"deletes fail":      {[]sqsmodel.Fault{{Action: deleteBatch, Code: "ServiceUnavailable"}}, takes(2 * time.Second), 0, 20},
		"releases":          {[]sqsmodel.Fault{{Action: visibilityBatch, Stall: true}}, func(context.Context, *worker.Message) error { time.Sleep(2 * time.Second); return failure }, 0, 20},
		"releases fail":     {[]sqsmodel.Fault{{Action: visibilityBatch, Code: "ServiceUnavailable"}}, takes(never), 0, 20},
		"releases dropped":  {[]sqsmodel.Fault{{Action: visibilityBatch, DropBefore: true}}, takes(never), 0, 20},
		"everything":        {[]sqsmodel.Fault{{Stall: true}}, takes(2 * time.Second), 0, 20},
		"handlers":          {nil, deaf(time.Hour), 20, 0},
		"handlers and SQS":  {[]sqsmodel.Fault{{Stall: true}}, deaf(time.Hour), 20, 20},
		"deletes are slow":  {[]sqsmodel.Fault{{Action: deleteBatch, Hold: time.Second}}, takes(2 * time.Second), 0, 0},
		"releases are slow": {[]sqsmodel.Fault{{Action: visibilityBatch, Hold: time.Second}}, takes(never), 0, 0},
	}, func(t *testing.T, c hang) {
		for _, timeout := range []time.Duration{0, 10 * time.Second} {
			q := newQueue(t, "VisibilityTimeout", "60")
			ids := q.send(20)
			slices.Sort(ids)
			w := q.start(c.handler, worker.Config{Concurrency: 20, DrainTimeout: timeout})
			time.Sleep(time.Second)
			for _, f := range c.faults {
				q.Inject(f)
			}
			took, err := w.timedStop()
			if most := 25 * time.Second; took > most || timeout > 0 && took > timeout {
				t.Errorf("the stop took %v with a timeout of %v", took, timeout)
			}
			drain := &worker.DrainError{}
			if err != nil && !errors.As(err, &drain) {
				t.Fatalf("Run returned %v", err)
			}
			if len(drain.Running) != c.running || len(drain.Unsettled) != c.unsettled {
				t.Errorf("the error names %d running and %d unsettled, want %d and %d", len(drain.Running), len(drain.Unsettled), c.running, c.unsettled)
			}
			if c.unsettled > 0 && !slices.Equal(drain.Unsettled, ids) {
				t.Error("the error names the wrong messages")
			}
			if c.running == 0 {
				q.mustBeQuiet()
			}
			time.Sleep(2 * time.Hour) // deaf handlers return
		}
	})
}

// Slots and settling are full of messages that can't be deleted: that must not keep Run.
func TestRunReturnsInTimeBehindAThousandUnsettledMessages(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "VisibilityTimeout", "600")
		q.send(1500)
		q.Inject(sqsmodel.Fault{Action: deleteBatch, Stall: true})
		w := q.start(worker.HandlerFunc(succeed), worker.Config{Concurrency: 10, DrainTimeout: 3 * time.Second})
		time.Sleep(time.Second)
		took, err := w.timedStop()
		var drain *worker.DrainError
		if !errors.As(err, &drain) || len(drain.Unsettled) < 1000 {
			t.Errorf("Run returned %v", err)
		}
		if took > 4*time.Second {
			t.Errorf("the stop took %v", took)
		}
		q.mustBeQuiet()
	})
}

func TestAfterDeleteThatIgnoresItsContextHoldsRunOnlyALittleLonger(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.send(1)
		w := q.start(worker.HandlerFunc(func(_ context.Context, m *worker.Message) error {
			m.AfterDelete(func(context.Context) error { time.Sleep(time.Hour); return nil })
			return nil
		}), worker.Config{DrainTimeout: 5 * time.Second})
		time.Sleep(time.Second)
		if took, _ := w.timedStop(); took > 6*time.Second {
			t.Errorf("the stop took %v", took)
		}
		time.Sleep(2 * time.Hour)
	})
}

func TestStopWaitsForWhatRunsAfterADeletion(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.send(1)
		var done atomic.Bool
		w := q.start(worker.HandlerFunc(func(_ context.Context, m *worker.Message) error {
			m.AfterDelete(func(ctx context.Context) error {
				err := takes(3*time.Second)(ctx, nil)
				done.Store(err == nil)
				return err
			})
			return nil
		}), worker.Config{WaitTime: time.Second})
		time.Sleep(time.Second)
		w.mustStop()
		if !done.Load() {
			t.Error("Run returned before it was done")
		}
	})
}

func TestStopEndsTheDeleteLinger(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "VisibilityTimeout", "120")
		q.send(3)
		w := q.start(worker.HandlerFunc(takes(1500*time.Millisecond)), worker.Config{DeleteLinger: 5 * time.Second, WaitTime: time.Second})
		time.Sleep(time.Second) // some running, and later some lingering
		q.send(1)
		time.Sleep(time.Second)
		took, err := w.timedStop()
		if err != nil || took > 1600*time.Millisecond {
			t.Errorf("the stop took %v and returned %v", took, err)
		}
		q.mustBeEmpty()
	})
}

// interruption is the cause of a context's end that says by when everything must be over.
type interruption struct{ at time.Time }

func (i interruption) Error() string       { return "spot instance interruption" }
func (i interruption) Deadline() time.Time { return i.at }

const noDeadline = 1000 * time.Hour

func TestInterruptionsDeadlineShortensTheDrain(t *testing.T) {
	type deadline struct {
		in, drain   time.Duration
		wrap        bool
		least, most time.Duration // until Run returns
	}
	each(t, map[string]deadline{
		"earlier": {10 * time.Second, 0, false, 5 * time.Second, 10 * time.Second},
		"wrapped": {10 * time.Second, 0, true, 5 * time.Second, 10 * time.Second},
		"later":   {2 * time.Minute, 0, false, 18 * time.Second, 25 * time.Second},
		"past":    {-time.Second, 0, false, 0, 1200 * time.Millisecond},
		"soon":    {2 * time.Second, time.Hour, false, 0, 100 * time.Millisecond}, // too little for anything but giving back
		"long":    {2 * time.Minute, time.Hour, false, 110 * time.Second, 2 * time.Minute},
		"none":    {noDeadline, 0, false, 18 * time.Second, 25 * time.Second},
	}, func(t *testing.T, c deadline) {
		q := newQueue(t)
		q.send(3)
		var cancelled atomic.Int64
		w := q.start(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			err := takes(never)(ctx, m)
			cancelled.Add(1)
			return err
		}), worker.Config{DrainTimeout: c.drain, Concurrency: 3})
		time.Sleep(time.Second)
		at := time.Now().Add(c.in)
		if c.in == noDeadline {
			at = time.Time{}
		}
		var cause error = interruption{at}
		if c.wrap {
			cause = fmt.Errorf("stopping: %w", cause)
		}
		began := time.Now()
		err := w.stopBecause(cause)
		if took := time.Since(began); took < c.least || took > c.most {
			t.Errorf("Run returned after %v, want %v to %v", took, c.least, c.most)
		}
		if err != nil && c.in > 0 {
			t.Errorf("Run returned %v", err)
		}
		if n := cancelled.Load(); n != 3 {
			t.Errorf("%d handlers were cancelled", n)
		}
	})
}

func TestHandlersCanAskForTheDrainDeadline(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.send(1)
		began := time.Now()
		w := q.start(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			if at, ok := worker.DrainDeadline(ctx); ok {
				t.Errorf("while running: %v", at)
			}
			time.Sleep(5 * time.Second)
			at, ok := worker.DrainDeadline(ctx)
			if want := began.Add(2*time.Second + 18*time.Second); !ok || !at.Equal(want) {
				t.Errorf("while stopping: %v %v, want %v", at, ok, want)
			}
			<-ctx.Done()
			if d := time.Since(at); d != 0 {
				t.Errorf("cancelled %v after the deadline that was told", d)
			}
			return context.Cause(ctx)
		}), worker.Config{})
		time.Sleep(2 * time.Second)
		w.mustStop()
		if _, ok := worker.DrainDeadline(t.Context()); ok {
			t.Error("there is a drain deadline outside of a handler")
		}
	})
}

func TestNoDrainCancelsAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.send(2)
		w := q.start(worker.HandlerFunc(takes(never)), worker.Config{Concurrency: 2, DrainTimeout: worker.NoDrain})
		time.Sleep(time.Second)
		took, err := w.timedStop()
		if err != nil || took > 100*time.Millisecond {
			t.Errorf("the stop took %v and returned %v", took, err)
		}
		if st := q.state(); st.Visible != 2 {
			t.Errorf("%d of 2 messages are visible", st.Visible)
		}
	})
}

func TestNoGraceDoesNotWaitForCancelledHandlers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		ids := q.send(2)
		w := q.start(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			<-ctx.Done()
			time.Sleep(time.Second)
			return nil
		}), worker.Config{Concurrency: 2, DrainTimeout: 10 * time.Second, CancelGrace: worker.NoGrace})
		time.Sleep(time.Second)
		took, err := w.timedStop()
		var drain *worker.DrainError
		if !errors.As(err, &drain) || len(drain.Running) != len(ids) {
			t.Errorf("Run returned %v", err)
		}
		if took < 8*time.Second || took > 8*time.Second+100*time.Millisecond {
			t.Errorf("the stop took %v, want 10 s less the reserve of 2 s", took)
		}
		if st := q.state(); st.Visible != 2 {
			t.Errorf("%d of 2 messages are visible", st.Visible)
		}
		time.Sleep(time.Minute)
	})
}

func TestFiftyStartsAndStopsLeaveNothingBehind(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		var r runs
		var ids []string
		w, err := worker.New(q.Client(), q.url, r.handler(takes(300*time.Millisecond)), worker.Config{WaitTime: time.Second, Logger: slog.New(&logbook{})})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 50 {
			ids = append(ids, q.send(i%7)...)
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+i*37%900)*time.Millisecond)
			if err := w.Run(ctx); err != nil {
				t.Errorf("run %d returned %v", i, err)
			}
			cancel()
			if stacks := ourGoroutines(); len(stacks) > 0 {
				t.Fatalf("run %d left %d goroutines:\n%s", i, len(stacks), stacks[0])
			}
			if st := q.state(); st.InFlight != 0 {
				t.Fatalf("run %d left %d messages in flight", i, st.InFlight)
			}
			calls := q.Count("")
			time.Sleep(time.Second)
			if n := q.Count("") - calls; n != 0 {
				t.Fatalf("%d calls after run %d had returned", n, i)
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
		q.mustBeEmpty()
		r.mustHaveRunOnce(t, ids)
	})
}

func TestThousandHeldMessagesAreGivenBackInTime(t *testing.T) {
	each(t, map[string]worker.HandlerFunc{"heed": takes(never), "deaf": deaf(time.Hour), "finish": takes(30 * time.Second)}, func(t *testing.T, h worker.HandlerFunc) {
		q := newQueueAt(t, sqsmodel.Config{Latency: 12 * time.Millisecond})
		q.send(1000)
		w := q.start(h, worker.Config{Concurrency: 500, Prefetch: 500, DrainTimeout: 8 * time.Second, CancelGrace: 5 * time.Second})
		eventually(t, 10*time.Second, "all held", func() bool { return q.state().InFlight == 1000 })
		time.Sleep(time.Second)
		stopped := time.Now()
		_ = w.stop()
		if st := q.state(); st.InFlight != 0 {
			t.Errorf("%d messages in flight after the stop", st.InFlight)
		}
		unstarted := 0
		for _, e := range q.events("", sqsmodel.VisibilityChanged) {
			if e.VisibilityTimeout == 0 && e.At.Sub(stopped) < time.Second {
				unstarted++
			}
		}
		if unstarted < 500 {
			t.Errorf("%d of 500 unstarted messages were given back within a second", unstarted)
		}
		if took := time.Since(stopped); took > 8*time.Second {
			t.Errorf("the stop took %v", took)
		}
		time.Sleep(2 * time.Hour)
	})
}

func TestDrainingWorkerIsHealthy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.send(1)
		w := q.start(worker.HandlerFunc(takes(30*time.Second)), worker.Config{DrainTimeout: time.Minute})
		time.Sleep(time.Second)
		q.Inject(sqsmodel.Fault{Action: receiveMessage, Code: "AccessDeniedException"})
		time.Sleep(20 * time.Second)
		if err := w.Healthy(); err == nil {
			t.Error("denied, and healthy")
		}
		go w.stop()
		time.Sleep(5 * time.Second)
		w.mustBeRunning()
		if err := w.Healthy(); err != nil { // it need not receive any more; restarting it would only cost it its work
			t.Errorf("while draining: %v", err)
		}
		<-w.done
	})
}

type contextKey struct{}

// The context that Run gets ends the run, not the work, and its values reach the handlers.
func TestHandlersContextHasTheValuesOfRunsAndNotItsEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.send(1)
		done := make(chan struct{})
		w, err := worker.New(q.Client(), q.url, worker.HandlerFunc(func(ctx context.Context, _ *worker.Message) error {
			defer close(done)
			if v := ctx.Value(contextKey{}); v != "value" {
				t.Errorf("the value is %v", v)
			}
			if at, ok := ctx.Deadline(); ok {
				t.Errorf("the handler has Run's deadline, %v", at)
			}
			return takes(5*time.Second)(ctx, nil)
		}), worker.Config{Logger: slog.New(&logbook{})})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), contextKey{}, "value"), time.Second)
		defer cancel()
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
		<-done
		q.mustBeEmpty()
	})
}
