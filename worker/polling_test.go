package worker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// broken is an HTTP client that fails receives on the way, while it is told to.
type broken struct {
	next *sqsmodel.Server
	on   atomic.Bool
	fail func(*http.Request) (*http.Response, error)
}

func (b *broken) Do(r *http.Request) (*http.Response, error) {
	if b.on.Load() && strings.HasSuffix(r.Header.Get("X-Amz-Target"), receiveMessage) {
		return b.fail(r)
	}
	return b.next.Do(r)
}

func answers(status int, body string) func(*http.Request) (*http.Response, error) {
	return func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
	}
}

func TestReceiveContinuesAfterEveryKindOfReceiveError(t *testing.T) {
	code := func(code string) sqsmodel.Fault { return sqsmodel.Fault{Code: code} }
	type failure struct {
		fault sqsmodel.Fault
		fail  func(*http.Request) (*http.Response, error)
	}
	cases := map[string]failure{
		"connection reset before": {fault: sqsmodel.Fault{DropBefore: true}},
		"connection reset after":  {fault: sqsmodel.Fault{DropAfter: true}},
		"no answer":               {fault: sqsmodel.Fault{Stall: true}},
		"unknown code":            {fault: sqsmodel.Fault{Code: "SomethingNew", Status: 418}},
		"DNS": {fail: func(*http.Request) (*http.Response, error) {
			return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "sqs", IsNotFound: true}}
		}},
		"garbage":         {fail: answers(http.StatusOK, "<html>captive portal</html>")},
		"garbage error":   {fail: answers(http.StatusBadGateway, "<html>proxy</html>")},
		"truncated":       {fail: answers(http.StatusOK, `{"Messages":[{"Mess`)},
		"empty body":      {fail: answers(http.StatusServiceUnavailable, "")},
		"not even a type": {fail: answers(http.StatusBadRequest, `{}`)},
	}
	for _, c := range []string{
		"InternalFailure", "ServiceUnavailable", "RequestThrottled", "ThrottlingException", "OverLimit", "QueueDoesNotExist",
		"InvalidAddress", "InvalidSecurity", "AccessDeniedException", "ExpiredTokenException", "InvalidSignatureException",
		"UnrecognizedClientException", "InvalidParameterValueException", "UnsupportedOperation",
		"KmsThrottled", "KmsAccessDenied", "KmsDisabled", "KmsInvalidState", "KmsNotFound", "KmsOptInRequired",
	} {
		cases[c] = failure{fault: code(c)}
	}
	each(t, cases, func(t *testing.T, c failure) {
		q := newQueue(t, "VisibilityTimeout", "30")
		line := &broken{next: q.Server, fail: c.fail}
		var r runs
		w := q.startWith(q.Client(func(o *sqs.Options) { o.HTTPClient = line }), r.handler(succeed), worker.Config{})
		first := q.send(1)
		q.mustEmpty(time.Second)

		remove := func() { line.on.Store(false) }
		if c.fail != nil {
			line.on.Store(true)
		} else {
			c.fault.Action = receiveMessage
			remove = q.Inject(c.fault)
		}
		time.Sleep(5 * time.Minute)
		second := q.send(2)
		time.Sleep(20 * time.Second)
		w.mustBeRunning()
		if w.Stats().ReceiveErrors == 0 {
			t.Error("no receive error was counted")
		}
		if w.Healthy() == nil {
			t.Error("healthy, although nothing has been received for minutes")
		}

		remove()
		q.mustEmpty(2 * time.Minute)
		r.mustHaveRunOnce(t, append(first, second...))
		eventually(t, 41*time.Second, "healthy again", func() bool { return w.Healthy() == nil })
		w.mustStop()
	})
}

func TestOutageMakesFewCallsAndFewLogLines(t *testing.T) {
	each(t, map[string]int{"one receive": 1, "many receives": 1000}, func(t *testing.T, concurrency int) {
		q := newQueueWithDLQ(t, 3)
		line := &breaking{next: q.Server, open: make(chan struct{})}
		w := q.startWith(q.Client(func(o *sqs.Options) { o.HTTPClient = line }), worker.HandlerFunc(succeed), worker.Config{Concurrency: concurrency})
		q.send(2 * concurrency) // opens as many receives as there may be
		q.mustEmpty(10 * time.Second)

		remove := q.Inject(sqsmodel.Fault{Action: receiveMessage, Code: "ServiceUnavailable"})
		q.ResetCounts()
		line.breakAll()
		time.Sleep(10 * time.Second)
		if n := q.Count(receiveMessage); n > 10 {
			t.Errorf("%d receives in 10 s of an outage", n)
		}
		time.Sleep(time.Hour)
		if n := q.Count(receiveMessage); n > 400 {
			t.Errorf("%d receives in an hour of an outage", n)
		}
		if lines := w.log.atLeast(slog.LevelWarn); len(lines) > 12 {
			t.Errorf("an hour's outage made %d log lines", len(lines))
		}
		remove()
		eventually(t, 41*time.Second, "receiving again", func() bool { return w.Healthy() == nil })
		w.mustStop()
	})
}

func TestBackoffGrowsAndResetsOnSuccess(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		w := q.start(worker.HandlerFunc(succeed), worker.Config{})
		time.Sleep(time.Second)
		for range 3 { // each outage begins with a short pause again
			remove := q.Inject(sqsmodel.Fault{Action: receiveMessage, Code: "InternalFailure"})
			q.ResetCounts()
			q.send(1) // ends the open receive
			time.Sleep(5 * time.Minute)
			var failed []time.Time
			for _, c := range q.finished(receiveMessage) {
				if c.Err != "" {
					failed = append(failed, c.At)
				}
			}
			least := 50 * time.Millisecond
			for i := range failed[1:] {
				if d := failed[i+1].Sub(failed[i]); d < least || d > 2*least {
					t.Errorf("pause %d is %v, want from %v to %v", i+1, d, least, 2*least)
				}
				least = min(2*least, 10*time.Second)
			}
			remove()
			eventually(t, 41*time.Second, "received", func() bool { return w.Healthy() == nil })
		}
		w.mustStop()
	})
}

// breaking is an HTTP client whose open calls can be made to fail, as when a connection or a NAT gateway breaks.
type breaking struct {
	next *sqsmodel.Server
	mu   sync.Mutex
	open chan struct{} // closed by breakAll
}

func (b *breaking) Do(r *http.Request) (*http.Response, error) {
	b.mu.Lock()
	open := b.open
	b.mu.Unlock()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-open:
			cancel()
		case <-stop:
		}
	}()
	res, err := b.next.Do(r.WithContext(ctx))
	if err != nil && r.Context().Err() == nil {
		err = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	}
	return res, err
}

func (b *breaking) breakAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.open)
	b.open = make(chan struct{})
}

// A connection that breaks takes all open receives with it: that is one failure, not many in a row.
func TestOneHiccupOfManyReceivesIsOneFailure(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueueWithDLQ(t, 3)
		line := &breaking{next: q.Server, open: make(chan struct{})}
		w := q.startWith(q.Client(func(o *sqs.Options) { o.HTTPClient = line }), worker.HandlerFunc(succeed), worker.Config{Concurrency: 200})
		time.Sleep(time.Second)
		q.send(2000)
		q.mustEmpty(10 * time.Second)
		if n := w.Stats().OpenReceives; n < 10 {
			t.Fatalf("only %d receives are open: the test would show nothing", n)
		}
		line.breakAll()
		time.Sleep(time.Second)
		if err := w.Healthy(); err != nil {
			t.Errorf("after one hiccup the worker says %v", err)
		}
		q.send(1)
		q.mustEmpty(time.Second)
		w.mustStop()
	})
}

func TestEmptyReceivesAreNoErrors(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueueWithDLQ(t, 3)
		w := q.start(worker.HandlerFunc(succeed), worker.Config{})
		time.Sleep(time.Hour)
		if s := w.Stats(); s.ReceiveErrors != 0 || s.EmptyReceives == 0 {
			t.Errorf("%d errors in %d empty receives", s.ReceiveErrors, s.EmptyReceives)
		}
		if err := w.Healthy(); err != nil {
			t.Errorf("idle, and the worker says %v", err)
		}
		w.mustStop()
		w.log.mustHaveNo(t, slog.LevelWarn)
	})
}

func TestIdleWorkerMakesThreeReceivesAMinute(t *testing.T) {
	type size struct{ concurrency, prefetch, burst int }
	each(t, map[string]size{
		"1": {concurrency: 1}, "10": {concurrency: 10}, "15": {concurrency: 15}, "100": {concurrency: 100}, "5000": {concurrency: 5000},
		"prefetch":      {concurrency: 10, prefetch: 100},
		"after a burst": {concurrency: 100, burst: 2000},
	}, func(t *testing.T, c size) {
		q := newQueueWithDLQ(t, 3)
		w := q.start(worker.HandlerFunc(succeed), worker.Config{Concurrency: c.concurrency, Prefetch: c.prefetch})
		if c.burst > 0 {
			q.send(c.burst)
			q.mustEmpty(time.Minute)
			time.Sleep(2 * time.Minute) // the receives that it took end
		}
		time.Sleep(time.Second)
		q.ResetCounts()
		time.Sleep(time.Hour)
		if n := q.Count(receiveMessage); n != 180 {
			t.Errorf("%d receives in an idle hour, want 180", n)
		}
		if n := q.Count(""); n != 180 {
			t.Errorf("%d calls in an idle hour, want 180", n)
		}
		w.mustStop()
	})
}

func TestReceiveAsksOnlyForWhatCanStart(t *testing.T) {
	type size struct{ concurrency, prefetch int }
	each(t, map[string]size{"1": {1, 0}, "2": {2, 0}, "7": {7, 0}, "25": {25, 0}, "prefetch": {2, 3}}, func(t *testing.T, c size) {
		q := newQueue(t, "VisibilityTimeout", "2")
		var r runs
		var held, most atomic.Int64 // received, and not handled yet
		q.OnEvent(func(e sqsmodel.Event) {
			if e.Kind == sqsmodel.Received {
				most.Store(max(most.Load(), held.Add(1)))
			}
		})
		ids := q.send(50)
		w := q.start(r.handler(func(context.Context, *worker.Message) error {
			time.Sleep(time.Second)
			held.Add(-1)
			return nil
		}), worker.Config{Concurrency: c.concurrency, Prefetch: c.prefetch})
		q.mustEmpty(2 * time.Minute)
		r.mustHaveRunOnce(t, ids)
		for _, h := range r.list() {
			if h.receives != 1 {
				t.Errorf("message %s ran at its receive %d", h.body, h.receives)
			}
		}
		if r.most != c.concurrency {
			t.Errorf("%d handlers at once, want %d", r.most, c.concurrency)
		}
		if n := most.Load(); n > int64(c.concurrency+c.prefetch) {
			t.Errorf("%d messages held at once, want at most %d", n, c.concurrency+c.prefetch)
		}
		for _, call := range q.finished(receiveMessage) {
			if call.MaxMessages > min(10, c.concurrency+c.prefetch) {
				t.Errorf("a receive asked for %d messages", call.MaxMessages)
			}
		}
		w.mustStop()
	})
}

// Behind slow deletes more is in flight than runs, but not without bound.
func TestOwnInFlightIsBoundedBehindSlowDeletes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.Inject(sqsmodel.Fault{Action: deleteBatch, Stall: true})
		w := q.start(worker.HandlerFunc(succeed), worker.Config{Concurrency: 10, DrainTimeout: 2 * time.Second})
		q.send(2000)
		time.Sleep(time.Second)
		if n := q.state().InFlight; n < 1000 || n > 1000+10+10 {
			t.Errorf("%d messages in flight behind deletes that hang", n)
		}
		_ = w.stop()
	})
}

func TestSlotIsFilledAgainWithoutDelay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		ids := q.send(100)
		var r runs
		began := time.Now()
		w := q.start(r.handler(takes(time.Second)), worker.Config{Concurrency: 1})
		q.mustEmpty(5 * time.Minute)
		r.mustHaveRunOnce(t, ids)
		if took := time.Since(began); took > 111*time.Second {
			t.Errorf("100 s of work for one slot took %v", took)
		}
		w.mustStop()
	})
}

// With ten slots and more, a receive waits a little for a fuller batch, but only a little of what handlers take.
func TestSlotsDontStandIdleForAFullerBatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		ids := q.send(200)
		var r runs
		var n atomic.Int64
		w := q.start(r.handler(func(context.Context, *worker.Message) error {
			time.Sleep(time.Duration(500+100*(n.Add(1)%10)) * time.Millisecond) // slots come back one by one
			return nil
		}), worker.Config{})
		began := time.Now()
		q.mustEmpty(time.Minute)
		r.mustHaveRunOnce(t, ids)
		const ideal = 200 * 950 * time.Millisecond / 10
		if took := time.Since(began); took > ideal+ideal/8 {
			t.Errorf("took %v, with every slot busy all the time it would be %v", took, ideal)
		}
		if calls := q.Count(receiveMessage); calls > 150 {
			t.Errorf("%d receives for 200 messages", calls)
		}
		w.mustStop()
	})
}

func TestPollersScaleWithTheWork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueueAt(t, sqsmodel.Config{Latency: 10 * time.Millisecond})
		w := q.start(worker.HandlerFunc(takes(10*time.Millisecond)), worker.Config{Concurrency: 100})
		time.Sleep(time.Second)
		if n := w.Stats().OpenReceives; n != 1 {
			t.Errorf("%d receives open while idle", n)
		}
		q.ResetCounts()
		began := time.Now()
		q.send(2000)
		q.mustEmpty(20 * time.Second)
		// 100 slots at 10 ms a job and 10 ms a receive: 5,000 a second at best.
		if took := time.Since(began); took > time.Second {
			t.Errorf("2,000 messages took %v", took)
		}
		if n := q.Count(""); n > 420 {
			t.Errorf("%d calls for 2,000 messages, want at most 0.21 each", n)
		}
		w.mustStop()
	})
}

func TestSlotsComeBackOnEveryPath(t *testing.T) {
	type path struct {
		handler worker.HandlerFunc
		fault   sqsmodel.Fault
		cfg     worker.Config
	}
	corrupt := func(string) bool { return true }
	each(t, map[string]path{
		"success":       {handler: succeed},
		"error":         {handler: returns(errors.New("undecodable"))},
		"permanent":     {handler: returns(worker.Permanent(errors.New("undecodable")))},
		"snooze":        {handler: returns(worker.Snooze(time.Second))},
		"retry after":   {handler: returns(worker.RetryAfter(time.Second, errors.New("later")))},
		"panic":         {handler: func(context.Context, *worker.Message) error { panic("undecodable") }},
		"goexit":        {handler: func(context.Context, *worker.Message) error { runtime.Goexit(); return nil }},
		"timeout":       {handler: takes(never), cfg: worker.Config{HandlerTimeout: time.Second}},
		"lost":          {handler: takes(never), cfg: worker.Config{HeartbeatInterval: worker.NoHeartbeat}},
		"corrupt":       {handler: succeed, fault: sqsmodel.Fault{Action: receiveMessage, CorruptMD5: corrupt}},
		"receive error": {handler: succeed, fault: sqsmodel.Fault{Action: receiveMessage, Code: "InternalFailure"}},
		"lost answers":  {handler: succeed, fault: sqsmodel.Fault{Action: receiveMessage, DropAfter: true}},
		"late answers":  {handler: succeed, fault: sqsmodel.Fault{Action: receiveMessage, HoldAfter: 7 * time.Second}},
		"no delete":     {handler: succeed, fault: sqsmodel.Fault{Action: deleteBatch, Code: "AccessDeniedException"}},
		"no release":    {handler: returns(errors.New("no")), fault: sqsmodel.Fault{Action: visibilityBatch, Code: "AccessDeniedException"}},
		"no renewal":    {handler: takes(time.Minute), fault: sqsmodel.Fault{Action: visibilityBatch, Code: "ReceiptHandleIsInvalid"}},
	}, func(t *testing.T, c path) {
		q := newQueue(t, "VisibilityTimeout", "5")
		var good atomic.Bool
		var r runs
		bad, block := c.handler, make(chan struct{})
		unblock := sync.OnceFunc(func() { close(block) })
		t.Cleanup(unblock)
		c.cfg.Concurrency = 10
		w := q.start(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			if !good.Load() {
				return bad(ctx, m)
			}
			return r.handler(func(context.Context, *worker.Message) error { <-block; return nil }).Handle(ctx, m)
		}), c.cfg)
		remove := func() {}
		if c.fault.Action != "" {
			remove = q.Inject(c.fault)
		}
		q.send(12)
		time.Sleep(30 * time.Second)
		w.mustBeRunning()
		remove()
		good.Store(true)
		q.send(25)
		eventually(t, 30*time.Minute, "all ten slots run again", func() bool { return r.now() == 10 })
		unblock()
		q.mustEmpty(30 * time.Minute)
		w.mustStop()
		if s := w.Stats(); s.FreeSlots != 10 || s.Held != 0 || s.Unsettled != 0 || s.Heartbeat.Held != 0 {
			t.Errorf("something is kept after the stop: %+v", s)
		}
	})
}

func TestCorruptMessageFailsAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		ids := q.send(10)
		remove := q.Inject(sqsmodel.Fault{Action: receiveMessage, CorruptMD5: func(id string) bool { return id == ids[4] }})
		var r runs
		w := q.start(r.handler(succeed), worker.Config{})
		eventually(t, time.Second, "nine are deleted", func() bool { return q.CountEvents(sqsmodel.Deleted) == 9 })
		if r.of()[ids[4]] != 0 {
			t.Error("a message was run whose body doesn't match its MD5")
		}
		eventually(t, 100*time.Millisecond, "the corrupt one is given back with a delay", func() bool {
			changes := q.events(ids[4], sqsmodel.VisibilityChanged)
			return len(changes) == 1 && changes[0].VisibilityTimeout > 0 && changes[0].VisibilityTimeout <= 2*time.Second
		})
		if w.Stats().Corrupt == 0 {
			t.Error("it isn't counted")
		}
		remove()
		q.mustEmpty(time.Minute)
		r.mustHaveRunOnce(t, ids)
		w.mustStop()
	})
}

func TestCorruptMessageReachesTheDeadLetterQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueueWithDLQ(t, 3)
		ids := q.send(2)
		q.Inject(sqsmodel.Fault{Action: receiveMessage, Queue: testQueue, CorruptMD5: func(id string) bool { return id == ids[0] }})
		var r runs
		w := q.start(r.handler(succeed), worker.Config{})
		eventually(t, 10*time.Minute, "dead-lettered", func() bool { return len(q.Queue(testDLQ).Messages) == 1 })
		q.mustBeEmpty()
		if n := r.count(); n != 1 {
			t.Errorf("%d runs, want the good message's only", n)
		}
		w.mustStop()
	})
}

func TestFailingSettlesDontStopReceives(t *testing.T) {
	type failure struct {
		action string
		fault  sqsmodel.Fault
	}
	cases := map[string]failure{}
	for _, action := range []string{deleteBatch, visibilityBatch} {
		for name, fault := range map[string]sqsmodel.Fault{
			"500": {Code: "InternalFailure"}, "400": {Code: "InvalidParameterValueException", Message: "no"}, "denied": {Code: "AccessDeniedException"},
			"dropped": {DropBefore: true}, "unanswered": {DropAfter: true}, "hanging": {Stall: true}, "throttled": {Code: "RequestThrottled"},
			"gone": {Code: "QueueDoesNotExist"}, "bad handle": {Code: "ReceiptHandleIsInvalid"},
			"entries": {FailEntries: func(sqsmodel.Call, int, string, string) *sqsmodel.EntryError {
				return &sqsmodel.EntryError{Code: "InternalError"}
			}},
		} {
			cases[action+" "+name] = failure{action, fault}
		}
	}
	each(t, cases, func(t *testing.T, c failure) {
		q := newQueue(t)
		c.fault.Action = c.action
		q.Inject(c.fault)
		var r runs
		w := q.start(r.handler(func(_ context.Context, m *worker.Message) error {
			if c.action == visibilityBatch {
				return errors.New("give it back")
			}
			return nil
		}), worker.Config{Concurrency: 2})
		for i := range 20 {
			q.send(1)
			time.Sleep(100 * time.Millisecond)
			if n := len(r.of()); n != i+1 {
				t.Fatalf("%d of %d messages were run", n, i+1)
			}
		}
		w.mustBeRunning()
		if err := w.Healthy(); err != nil {
			t.Errorf("receives work, and the worker says %v", err)
		}
		_ = w.stop()
	})
}

// At its in-flight limit SQS answers long polls as if the queue were empty, or refuses them.
func TestInFlightLimit(t *testing.T) {
	each(t, map[string]bool{"looks like an empty queue": false, "is refused": true}, func(t *testing.T, refuse bool) {
		q := newQueueAt(t, sqsmodel.Config{InFlightLimit: 5, OverLimitOnLongPoll: refuse}, "VisibilityTimeout", "120")
		q.send(10)
		other := q.Client()
		if _, err := other.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: &q.url, MaxNumberOfMessages: 5}); err != nil {
			t.Fatal(err)
		}
		var r runs
		w := q.start(r.handler(succeed), worker.Config{})
		time.Sleep(100 * time.Second)
		w.mustBeRunning()
		if n := q.Count(receiveMessage); n > 30 {
			t.Errorf("%d receives against the limit in 100 s", n)
		}
		if over := w.Stats().OverLimit; (over > 0) != refuse {
			t.Errorf("counted %d times over the limit", over)
		}
		if r.count() != 0 {
			t.Error("something was received over the limit")
		}
		q.mustEmpty(2 * time.Minute) // once the other consumer's visibility has run out
		if n := len(r.of()); n != 10 {
			t.Errorf("%d messages were run, want 10", n)
		}
		w.mustStop()
	})
}

func TestReceiveWithoutAnAnswerIsGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.Inject(sqsmodel.Fault{Action: receiveMessage, Stall: true, Times: 1})
		var r runs
		w := q.start(r.handler(succeed), worker.Config{})
		ids := q.send(1)
		time.Sleep(29 * time.Second) // the wait of 20 s and some slack
		if r.count() != 0 {
			t.Fatal("the receive didn't hang")
		}
		q.mustEmpty(2 * time.Second)
		r.mustHaveRunOnce(t, ids)
		if s := w.Stats(); s.ReceiveErrors != 1 || s.AmbiguousReceives != 1 {
			t.Errorf("counted %d errors, %d of them ambiguous", s.ReceiveErrors, s.AmbiguousReceives)
		}
		w.mustStop()
	})
}

// The SDK's own retries would hide failures and multiply receives, each of which can strand a batch of messages.
func TestReceivesAreNotRetriedInsideTheSDK(t *testing.T) {
	each(t, map[string]sqsmodel.Fault{
		"throttled": {Code: "RequestThrottled"}, "5xx": {Code: "ServiceUnavailable"}, "reset": {DropBefore: true},
	}, func(t *testing.T, fault sqsmodel.Fault) {
		q := newQueue(t)
		fault.Action = receiveMessage
		q.Inject(fault)
		w := q.start(worker.HandlerFunc(succeed), worker.Config{})
		time.Sleep(time.Minute)
		if made, counted := q.Count(receiveMessage), w.Stats().Receives; made != counted {
			t.Errorf("%d receives arrived, the worker made %d", made, counted)
		}
		w.mustStop()
	})
}

// The SDK has one retry quota for a client: an outage of receives would use up what deletes need.
func TestDeletesAreRetriedWhateverReceivesUsedUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		var r runs
		w := q.start(r.handler(succeed), worker.Config{Concurrency: 1})
		time.Sleep(time.Second)
		remove := q.Inject(sqsmodel.Fault{Action: receiveMessage, Code: "ServiceUnavailable"})
		time.Sleep(2 * time.Hour)
		remove()
		q.Inject(sqsmodel.Fault{Action: deleteBatch, Code: "ServiceUnavailable", Times: 5})
		q.send(1)
		q.mustEmpty(40 * time.Second)
		if r.count() != 1 {
			t.Errorf("%d runs, want 1", r.count())
		}
		w.mustStop()
	})
}

func TestShortPollSendsZero(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "ReceiveMessageWaitTimeSeconds", "20") // what SQS uses when the zero is left out
		w := q.start(worker.HandlerFunc(succeed), worker.Config{WaitTime: worker.ShortPoll})
		time.Sleep(10 * time.Second)
		calls := q.finished(receiveMessage)
		if n := len(calls); n < 90 || n > 101 {
			t.Errorf("%d short polls of an empty queue in 10 s, want ten a second", n)
		}
		for _, c := range calls {
			if c.Err != "" || c.Done.Sub(c.At) != 0 {
				t.Fatalf("a short poll took %v and ended with %q", c.Done.Sub(c.At), c.Err)
			}
		}
		q.send(1)
		q.mustEmpty(time.Second)
		w.mustStop()
	})
}

func TestWaitTimeIsSent(t *testing.T) {
	each(t, map[string]worker.Config{"20": {}, "1": {WaitTime: time.Second}, "7": {WaitTime: 7 * time.Second}}, func(t *testing.T, cfg worker.Config) {
		q := newQueue(t, "ReceiveMessageWaitTimeSeconds", "3")
		w := q.start(worker.HandlerFunc(succeed), cfg)
		time.Sleep(time.Minute)
		want := 20
		if cfg.WaitTime > 0 {
			want = int(cfg.WaitTime / time.Second)
		}
		for _, c := range q.finished(receiveMessage) {
			if c.WaitSeconds != want {
				t.Fatalf("a receive waited %d s, want %d", c.WaitSeconds, want)
			}
		}
		w.mustStop()
	})
}

func TestPrefetchedMessagesStartAtOnce(t *testing.T) {
	type prefetch struct {
		n     int
		least time.Duration
		most  time.Duration
	}
	each(t, map[string]prefetch{
		"none": {0, 30 * time.Second, never}, // each job waits for a receive
		"ten":  {10, 0, 12 * time.Second},
	}, func(t *testing.T, c prefetch) {
		q := newQueueAt(t, sqsmodel.Config{Latency: 200 * time.Millisecond})
		ids := q.send(100)
		var r runs
		w := q.start(r.handler(takes(100*time.Millisecond)), worker.Config{Concurrency: 1, Prefetch: c.n})
		began := time.Now()
		eventually(t, 2*time.Minute, "all run", func() bool { return r.count() == 100 && r.now() == 0 })
		if took := time.Since(began); took < c.least || took > c.most {
			t.Errorf("took %v, want from %v to %v", took, c.least, c.most)
		}
		r.mustHaveRunOnce(t, ids)
		for i, h := range r.list() {
			if h.body != fmt.Sprint(i) {
				t.Errorf("the %d-th to start was message %s", i, h.body)
				break
			}
		}
		if r.most != 1 {
			t.Errorf("%d handlers at once", r.most)
		}
		w.mustStop()
	})
}

func TestLongHandlersAreHealthy(t *testing.T) {
	each(t, map[string]int{"every slot": 10, "one slot": 1, "more than can run": 25}, func(t *testing.T, n int) {
		q := newQueue(t, "VisibilityTimeout", "600")
		q.send(n)
		w := q.start(worker.HandlerFunc(takes(2*time.Hour)), worker.Config{Concurrency: 10})
		for range 60 {
			time.Sleep(time.Minute)
			if err := w.Healthy(); err != nil {
				t.Fatalf("handlers run, and the worker says %v", err)
			}
		}
		_ = w.stop()
	})
}

// deafClient is a client whose receives ignore their context: nothing in the worker can end them.
type deafClient struct {
	*sqs.Client
	block chan struct{}
}

func (c *deafClient) ReceiveMessage(ctx context.Context, in *sqs.ReceiveMessageInput, o ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error) {
	<-c.block
	return c.Client.ReceiveMessage(ctx, in, o...)
}

func TestStalledPollerIsUnhealthy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		c := &deafClient{q.Client(), make(chan struct{})}
		w := q.startWith(c, worker.HandlerFunc(succeed), worker.Config{})
		time.Sleep(30 * time.Second)
		if err := w.Healthy(); err != nil {
			t.Errorf("after 30 s: %v", err)
		}
		time.Sleep(5 * time.Minute)
		if err := w.Healthy(); err == nil {
			t.Error("no receive has ended for minutes, and the worker is healthy")
		}
		close(c.block)
		eventually(t, time.Minute, "healthy again", func() bool { return w.Healthy() == nil })
		w.mustStop()
	})
}

func TestHealthFollowsTheReceives(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		log := &logbook{}
		unstarted, err := worker.New(q.Client(), q.url, worker.HandlerFunc(succeed), worker.Config{Logger: slog.New(log)})
		if err != nil {
			t.Fatal(err)
		}
		if err := unstarted.Healthy(); !errors.Is(err, worker.ErrNotRunning) {
			t.Errorf("before Run: %v", err)
		}
		w := run(t, unstarted, log)
		time.Sleep(time.Second)
		if err := w.Healthy(); err != nil {
			t.Errorf("idle: %v", err)
		}
		remove := q.Inject(sqsmodel.Fault{Action: receiveMessage, Code: "ServiceUnavailable"})
		q.send(1) // ends the open receive; the next one fails
		time.Sleep(10 * time.Millisecond)
		if err := w.Healthy(); err != nil || w.Stats().ReceiveErrors != 1 {
			t.Errorf("after %d failed receives that may pass: %v", w.Stats().ReceiveErrors, err)
		}
		time.Sleep(20 * time.Second)
		if err := w.Healthy(); err == nil {
			t.Error("many receives in a row have failed, and the worker is healthy")
		}
		remove()
		eventually(t, 41*time.Second, "healthy again", func() bool { return w.Healthy() == nil })
		remove = q.Inject(sqsmodel.Fault{Action: receiveMessage, Code: "AccessDeniedException"})
		failed := w.Stats().ReceiveErrors
		q.send(1)
		time.Sleep(10 * time.Millisecond)
		if err := w.Healthy(); err == nil || !strings.Contains(err.Error(), "AccessDenied") || w.Stats().ReceiveErrors != failed+1 {
			t.Errorf("denied once: %v", err)
		}
		remove()
		w.mustStop()
		synctest.Wait()
		if err := w.Healthy(); !errors.Is(err, worker.ErrNotRunning) {
			t.Errorf("after Run: %v", err)
		}
	})
}

// SQS sends the query protocol's code beside the JSON shape's name, or it doesn't: an error means the same either way.
func TestErrorMeansTheSameInBothFormsOfItsCode(t *testing.T) {
	each(t, map[string]string{
		"QueueDoesNotExist": "no such queue", "InvalidAddress": "no such queue", "AccessDeniedException": "denied", "ExpiredTokenException": "denied",
		"UnrecognizedClientException": "denied", "InvalidSignatureException": "denied", "InvalidSecurity": "denied", "KmsAccessDenied": "denied",
		"KmsDisabled": "denied", "KmsNotFound": "denied", "KmsInvalidState": "denied", "KmsInvalidKeyUsage": "denied", "KmsOptInRequired": "denied",
		"KmsThrottled": "passing", "RequestThrottled": "passing", "InternalFailure": "passing", "OverLimit": "over the in-flight limit",
	}, func(t *testing.T, kind string) {
		code := t.Name()[strings.LastIndexByte(t.Name(), '/')+1:]
		for _, noCode := range []bool{false, true} {
			q := newQueueAt(t, sqsmodel.Config{NoQueryErrorHeader: noCode})
			w := q.start(worker.HandlerFunc(succeed), worker.Config{})
			time.Sleep(time.Second)
			q.Inject(sqsmodel.Fault{Action: receiveMessage, Code: code})
			time.Sleep(2 * time.Minute)
			if err := w.Healthy(); err == nil || !strings.Contains(err.Error(), "("+kind+")") {
				t.Errorf("JSON code only: %v: Healthy says %v, want it to be %s", noCode, err, kind)
			}
			if loud := len(w.log.atLeast(slog.LevelError)) > 0; loud != (kind == "denied" || kind == "no such queue") {
				t.Errorf("JSON code only: %v: logged as an error: %v", noCode, loud)
			}
			w.mustStop()
		}
	})
}
