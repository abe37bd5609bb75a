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
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// batches records the calls of a batch function.
type batches struct {
	mu    sync.Mutex
	sizes []int
	at    []time.Time
}

func (b *batches) note(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sizes = append(b.sizes, n)
	b.at = append(b.at, time.Now())
}

func (b *batches) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return fmt.Sprint(b.sizes)
}

// all is a batch function that takes d and succeeds.
func (b *batches) all(d time.Duration) func(context.Context, []worker.BatchMessage) []error {
	return func(ctx context.Context, batch []worker.BatchMessage) []error {
		b.note(len(batch))
		time.Sleep(d)
		return worker.AllResults(batch, nil)
	}
}

func TestFullBatchesRunAtOnceAndAPartialOneAfterItsLinger(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		ids := q.send(23)
		var b batches
		began := time.Now()
		w := q.start(worker.Batch(worker.BatchConfig{Size: 10, Linger: 3 * time.Second}, b.all(0)), worker.Config{Concurrency: 30})
		q.mustEmpty(time.Minute)
		if got := b.String(); got != "[10 10 3]" {
			t.Errorf("batches of %s, want [10 10 3]", got)
		}
		if d := b.at[1].Sub(began); d > time.Second {
			t.Errorf("the second full batch ran after %v", d)
		}
		if d := b.at[2].Sub(began); d < 3*time.Second || d > 4*time.Second {
			t.Errorf("the partial batch ran after %v, want its linger of 3 s", d)
		}
		w.mustStop()
		q.mustHaveHappened(sqsmodel.Deleted, len(ids))
		if s := w.Stats(); s.Succeeded != 23 || s.Failed != 0 {
			t.Errorf("%d succeeded, %d failed: each message must count", s.Succeeded, s.Failed)
		}
	})
}

func TestPartialBatchDoesNotLingerWhenNoMoreCanCome(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.send(15)
		var b batches
		began := time.Now()
		// All 15 slots are taken: 10 by a batch that runs for a minute, 5 by one that can't grow meanwhile.
		w := q.start(worker.Batch(worker.BatchConfig{Size: 10, Linger: 5 * time.Minute}, b.all(time.Minute)), worker.Config{Concurrency: 15})
		time.Sleep(5 * time.Second)
		if got := b.String(); got != "[10 5]" || b.at[1].Sub(began) > 2*time.Second {
			t.Errorf("batches of %s, at %v", got, b.at)
		}
		q.mustEmpty(10 * time.Minute)
		w.mustStop()
	})
}

func TestTwoBatchHandlersDoNotWaitForSlotsThatTheOtherHas(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		for i := range 10 {
			q.MustSend(q.url, fmt.Sprintf(`{"type": "%c"}`, 'a'+i%2))
		}
		var a, b batches
		cfg := worker.BatchConfig{Size: 10, Linger: 5 * time.Minute}
		w := q.start(worker.Router{By: worker.ByJSONField("type"), Routes: map[string]worker.Handler{
			"a": worker.Batch(cfg, a.all(0)), "b": worker.Batch(cfg, b.all(0)),
		}}, worker.Config{})
		q.mustEmpty(10 * time.Second)
		if a.String() != "[5]" || b.String() != "[5]" {
			t.Errorf("batches of %s and %s, want 5 each", &a, &b)
		}
		w.mustStop()
	})
}

func TestAMessageOnItsWayToABatchIsWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.send(10)
		var b batches
		slow := func(next worker.Handler) worker.Handler { // such as a look into a database
			return worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
				if m.Body != "0" {
					time.Sleep(time.Duration(m.Body[0]-'0') * 100 * time.Millisecond)
				}
				return next.Handle(ctx, m)
			})
		}
		w := q.start(worker.Batch(worker.BatchConfig{Size: 10, Linger: time.Minute}, b.all(0)), worker.Config{Middleware: []worker.Middleware{slow}})
		q.mustEmpty(10 * time.Second)
		if b.String() != "[10]" {
			t.Errorf("batches of %s, want one of 10", &b)
		}
		w.mustStop()
	})
}

func TestStopDoesNotWaitForALinger(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.send(4)
		var b batches
		w := q.start(worker.Batch(worker.BatchConfig{Linger: 5 * time.Minute}, b.all(time.Second)), worker.Config{WaitTime: time.Second})
		time.Sleep(10 * time.Second)
		if b.String() != "[]" {
			t.Fatalf("batches of %s before the stop", &b)
		}
		began := time.Now()
		w.mustStop()
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("the stop took %v", took)
		}
		if b.String() != "[4]" {
			t.Errorf("batches of %s, want the four that were held", &b)
		}
		q.mustBeEmpty()
	})
}

func TestEachMessageOfABatchIsSettledByItsOwnResult(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueueWithDLQ(t, 3)
		ids := q.send(10)
		first := true
		w := q.start(worker.Batch(worker.BatchConfig{}, func(_ context.Context, batch []worker.BatchMessage) []error {
			results := worker.AllResults(batch, nil)
			if !first {
				return results
			}
			first = false
			for i, m := range batch {
				switch m.Body {
				case "3":
					results[i] = errors.New("bad item")
				case "5":
					results[i] = worker.Snooze(time.Minute)
				case "7":
					results[i] = worker.RetryAfter(time.Hour, errors.New("later"))
				}
			}
			return results
		}), worker.Config{Backoff: worker.Backoff{Max: 10 * time.Second}})
		time.Sleep(2 * time.Second)
		if got := len(q.state().Messages); got != 3 {
			t.Errorf("%d messages are left, want the three that didn't succeed", got)
		}
		q.mustEmpty(2 * time.Hour)
		w.mustStop()
		s := w.Stats()
		if s.Failed != 2 || s.Snoozed != 1 || s.Succeeded != 10 {
			t.Errorf("failed %d, snoozed %d, succeeded %d", s.Failed, s.Snoozed, s.Succeeded)
		}
		for i, id := range ids {
			want := 1
			if i == 3 || i == 5 || i == 7 {
				want = 2
			}
			if got := len(q.events(id, sqsmodel.Received)); got != want {
				t.Errorf("message %d was received %d times, want %d", i, got, want)
			}
		}
	})
}

func TestResultsBelongToTheSliceAsTheFunctionLeavesIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		ids := q.send(10)
		w := q.start(worker.Batch(worker.BatchConfig{}, func(_ context.Context, batch []worker.BatchMessage) []error {
			slices.SortFunc(batch, func(a, b worker.BatchMessage) int { return strings.Compare(b.Body, a.Body) })
			results := worker.AllResults(batch, nil)
			for i, m := range batch {
				if m.Body == "2" {
					results[i] = errors.New("this one")
				}
			}
			return results
		}), worker.Config{Backoff: worker.Backoff{Min: time.Hour, Max: time.Hour}})
		time.Sleep(5 * time.Second)
		if left := q.state().Messages; len(left) != 1 || left[0].ID != ids[2] {
			t.Errorf("left are %v, want message 2", left)
		}
		w.mustStop()
	})
}

func TestResultsThatDoNotFitDeleteNothing(t *testing.T) {
	type function = func(context.Context, []worker.BatchMessage) []error
	each(t, map[string]function{
		"none":    func(context.Context, []worker.BatchMessage) []error { return nil },
		"too few": func(_ context.Context, b []worker.BatchMessage) []error { return make([]error, len(b)-1) },
		"extra":   func(_ context.Context, b []worker.BatchMessage) []error { return make([]error, len(b)+1) },
		"slice changed": func(_ context.Context, b []worker.BatchMessage) []error {
			b[0] = b[1]
			return make([]error, len(b))
		},
		"messages cleared": func(_ context.Context, b []worker.BatchMessage) []error {
			clear(b)
			return make([]error, len(b))
		},
		"panics":             func(context.Context, []worker.BatchMessage) []error { panic("at the disco") },
		"panics with nil":    func(context.Context, []worker.BatchMessage) []error { panic(error(nil)) },
		"ends its goroutine": func(context.Context, []worker.BatchMessage) []error { runtime.Goexit(); return nil },
	}, func(t *testing.T, f function) {
		q := newQueue(t)
		q.send(5)
		var b batches
		w := q.start(worker.Batch(worker.BatchConfig{}, func(ctx context.Context, batch []worker.BatchMessage) []error {
			b.note(len(batch))
			if len(b.sizes) > 1 {
				return worker.AllResults(batch, nil)
			}
			return f(ctx, batch)
		}), worker.Config{})
		time.Sleep(1500 * time.Millisecond)
		q.mustHaveHappened(sqsmodel.Deleted, 0)
		if s := w.Stats(); s.Failed != 5 {
			t.Errorf("%d failed, want all five", s.Failed)
		}
		q.mustEmpty(time.Minute)
		w.mustStop()
	})
}

func TestAPanicFailsItsBatchAloneAndIsLoggedWithOneStack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.send(10)
		w := q.start(worker.Batch(worker.BatchConfig{Size: 5}, func(_ context.Context, batch []worker.BatchMessage) []error {
			for _, m := range batch {
				if m.Body == "0" && m.ReceiveCount == 1 {
					panic("boom")
				}
			}
			return worker.AllResults(batch, nil)
		}), worker.Config{})
		time.Sleep(time.Second)
		q.mustHaveHappened(sqsmodel.Deleted, 5)
		stacks := 0
		for _, line := range w.log.atLeast(slog.LevelError) {
			if strings.Contains(line, "batch_test.go") {
				stacks++
			}
		}
		if s := w.Stats(); s.Failed != 5 || stacks != 1 {
			t.Errorf("%d failed, %d stacks logged, want 5 and 1", s.Failed, stacks)
		}
		q.mustEmpty(time.Minute)
		w.mustStop()
	})
}

func TestMessagesOfABatchAreHeldWhileItWaitsAndRuns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "VisibilityTimeout", "4")
		q.send(7)
		var b batches
		w := q.start(worker.Batch(worker.BatchConfig{Linger: 30 * time.Second}, b.all(time.Minute)), worker.Config{})
		q.mustEmpty(5 * time.Minute)
		w.mustStop()
		q.mustHaveHappened(sqsmodel.Received, 7)
		q.mustHaveHappened(sqsmodel.Expired, 0)
		q.mustWriteOnlyUnderLease()
	})
}

// refuse fails every visibility change of one message from now on.
func (q *fixture) refuse(id string) {
	handle := q.message(id).Handle
	q.Inject(sqsmodel.Fault{Action: visibilityBatch, FailEntries: func(_ sqsmodel.Call, _ int, _ string, h string) *sqsmodel.EntryError {
		if h != handle {
			return nil
		}
		return &sqsmodel.EntryError{Code: "ReceiptHandleIsInvalid", Message: "The receipt handle has expired", SenderFault: true}
	}})
}

func TestALostLeaseIsSeenByTheBatchFunctionAndLeavesTheOthersAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "VisibilityTimeout", "6")
		ids := q.send(3)
		q.refuseSoon(t, ids[1])
		causes := map[string]string{}
		var batchErr error
		w := q.start(worker.Batch(worker.BatchConfig{Linger: time.Second}, func(ctx context.Context, batch []worker.BatchMessage) []error {
			if len(batch) == 1 { // its next delivery
				return worker.AllResults(batch, nil)
			}
			time.Sleep(20 * time.Second)
			for _, m := range batch { // in whatever order they came
				causes[m.ID] = fmt.Sprint(context.Cause(m.Context()))
			}
			batchErr = ctx.Err()
			return worker.AllResults(batch, nil)
		}), worker.Config{})
		time.Sleep(30 * time.Second)
		w.mustStop()
		for i, want := range []string{"<nil>", worker.ErrLeaseLost.Error(), "<nil>"} {
			if got := causes[ids[i]]; !strings.Contains(got, want) {
				t.Errorf("message %d: its context's cause is %q, want %q", i, got, want)
			}
		}
		if batchErr != nil {
			t.Errorf("the batch's context ended: %v", batchErr)
		}
		if got := len(q.events(ids[0], sqsmodel.Deleted)) + len(q.events(ids[2], sqsmodel.Deleted)); got != 2 {
			t.Errorf("%d of the others were deleted, want both", got)
		}
		q.mustWriteOnlyUnderLease()
	})
}

// refuseSoon refuses a message's visibility changes once it has been received.
func (q *fixture) refuseSoon(t *testing.T, id string) {
	once := sync.OnceFunc(func() { go q.refuse(id) })
	t.Cleanup(q.OnEvent(func(e sqsmodel.Event) {
		if e.MessageID == id && e.Kind == sqsmodel.Received {
			once()
		}
	}))
}

func TestALostLeaseTakesItsMessageOutOfAGatheringBatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "VisibilityTimeout", "6")
		ids := q.send(3)
		q.refuseSoon(t, ids[1])
		var seen []string
		w := q.start(worker.Batch(worker.BatchConfig{Linger: 5 * time.Second}, func(_ context.Context, batch []worker.BatchMessage) []error {
			if len(seen) == 0 {
				for _, m := range batch {
					seen = append(seen, m.ID)
				}
			}
			return worker.AllResults(batch, nil)
		}), worker.Config{})
		time.Sleep(5500 * time.Millisecond)
		synctest.Wait()
		want := []string{ids[0], ids[2]}
		slices.Sort(want)
		if slices.Sort(seen); !slices.Equal(seen, want) {
			t.Errorf("the batch had %v, want %v", seen, want)
		}
		q.mustEmpty(time.Minute)
		w.mustStop()
	})
}

func TestBatchContextEndsWithTheLastOfItsMessages(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.send(5)
		var cause, extend error
		var bounded bool
		w := q.start(worker.Batch(worker.BatchConfig{Size: 5}, func(ctx context.Context, batch []worker.BatchMessage) []error {
			extend = errors.Join(worker.ExtendVisibility(batch[0].Context(), time.Hour))
			if err := worker.ExtendVisibility(ctx, time.Hour); !errors.Is(err, worker.ErrNoLease) {
				t.Errorf("ExtendVisibility with the batch's context: %v", err)
			}
			_, bounded = ctx.Deadline()
			<-ctx.Done()
			cause = context.Cause(ctx)
			return worker.AllResults(batch, cause)
		}), worker.Config{DrainTimeout: 10 * time.Second, WaitTime: time.Second})
		time.Sleep(5 * time.Second)
		w.mustStop()
		if !errors.Is(cause, worker.ErrShutdown) || extend != nil || bounded {
			t.Errorf("the cause is %v, extending one message: %v, a deadline: %v", cause, extend, bounded)
		}
		if s := w.Stats(); s.Interrupted != 5 || s.Failed != 0 {
			t.Errorf("%d interrupted, %d failed: an interrupted batch is no failure", s.Interrupted, s.Failed)
		}
	})
}

func TestBatchContextHasTheDeadlineOfItsMessages(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.send(2)
		began := time.Now()
		var at time.Time
		w := q.start(worker.Batch(worker.BatchConfig{Size: 2}, func(ctx context.Context, batch []worker.BatchMessage) []error {
			at, _ = ctx.Deadline()
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), worker.ErrHandlerTimeout) {
				t.Errorf("the cause is %v", context.Cause(ctx))
			}
			return worker.AllResults(batch, nil)
		}), worker.Config{HandlerTimeout: time.Minute})
		q.mustEmpty(2 * time.Minute)
		w.mustStop()
		if d := at.Sub(began); d != time.Minute {
			t.Errorf("the deadline is after %v, want 1 minute", d)
		}
	})
}

func TestBatchJSONKeepsUndecodableMessagesOut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueueWithDLQ(t, 1)
		q.MustSend(q.url, `{"number": 1}`, `{"number": "x"}`, `{"number": 3}`)
		var sum, calls int
		w := q.start(worker.BatchJSON(worker.BatchConfig{Linger: time.Second}, func(_ context.Context, batch []worker.BatchItem[order]) []error {
			calls++
			for _, item := range batch {
				sum += item.Value.Number
				if fmt.Sprintf("%+v", item) != "message "+item.ID {
					t.Errorf("an item prints as %+v", item)
				}
			}
			return worker.AllResults(batch, nil)
		}), worker.Config{Backoff: worker.Backoff{Max: time.Second}})
		time.Sleep(5 * time.Second)
		w.mustStop()
		if sum != 4 || calls != 1 {
			t.Errorf("%d calls, a sum of %d, want 1 and 4", calls, sum)
		}
		q.mustHaveHappened(sqsmodel.Deleted, 2)
	})
}

func TestWorkersThatShareABatchHandlerHaveBatchesOfTheirOwn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var b batches
		h := worker.Batch(worker.BatchConfig{Linger: time.Minute, Size: 10}, b.all(0))
		q1, q2 := newQueue(t), newQueue(t)
		w1, w2 := q1.start(h, worker.Config{}), q2.start(h, worker.Config{})
		q1.send(5)
		q2.send(5)
		time.Sleep(10 * time.Second)
		w1.mustStop() // runs its own five; the other's wait on
		if b.String() != "[5]" {
			t.Errorf("batches of %s after one worker stopped", &b)
		}
		w2.mustStop()
		q1.mustBeEmpty()
		q2.mustBeEmpty()
	})
}

func TestFIFOBatchHasOneMessageOfEachGroup(t *testing.T) {
	bubble(t, func(t *testing.T) {
		server := sqsmodel.New(sqsmodel.Config{})
		url := server.MustCreateQueue("work.fifo", map[string]string{"FifoQueue": "true"})
		for _, group := range []string{"a", "b", "c"} {
			server.MustSendGroup(url, group, group+"1", group+"2", group+"3")
		}
		var mu sync.Mutex
		var order []string
		w, err := worker.New(server.Client(), url, worker.Batch(worker.BatchConfig{Size: 10}, func(_ context.Context, batch []worker.BatchMessage) []error {
			groups := map[string]bool{}
			mu.Lock()
			defer mu.Unlock()
			for _, m := range batch {
				if groups[m.GroupID] {
					t.Errorf("two messages of group %s in one batch", m.GroupID)
				}
				groups[m.GroupID] = true
				order = append(order, m.Body)
			}
			return worker.AllResults(batch, nil)
		}), worker.Config{Logger: slog.New(&logbook{})})
		if err != nil {
			t.Fatal(err)
		}
		s := run(t, w, &logbook{})
		eventually(t, time.Minute, "all are handled", func() bool { return len(server.Queue(url).Messages) == 0 })
		s.mustStop()
		for _, group := range []string{"a", "b", "c"} {
			own := slices.DeleteFunc(slices.Clone(order), func(body string) bool { return !strings.HasPrefix(body, group) })
			if !slices.IsSorted(own) || len(own) != 3 {
				t.Errorf("group %s ran as %v", group, own)
			}
		}
	})
}

func TestBatchConfigIsCheckedAgainstTheWorkers(t *testing.T) {
	q := newQueue(t)
	f := func(_ context.Context, b []worker.BatchMessage) []error { return worker.AllResults(b, nil) }
	for name, c := range map[string]struct {
		batch worker.BatchConfig
		cfg   worker.Config
		err   string
	}{
		"too few slots":          {worker.BatchConfig{Size: 25}, worker.Config{}, "BatchConfig.Size is 25: must be at most Config.Concurrency, 10, as each message of a batch takes a slot; set Concurrency to 25, or to 50 for two batches side by side"},
		"default and few slots":  {worker.BatchConfig{}, worker.Config{Concurrency: 4}, "BatchConfig.Size is 10: must be at most Config.Concurrency, 4"},
		"too large":              {worker.BatchConfig{Size: 10_001}, worker.Config{Concurrency: 100_000}, "BatchConfig.Size is 10001: must be from 1 to 10000"},
		"negative":               {worker.BatchConfig{Size: -1, Linger: -1}, worker.Config{}, "BatchConfig.Linger is -1ns: must be from 1ms to 5m0s"},
		"lingers into a timeout": {worker.BatchConfig{Linger: time.Minute}, worker.Config{HandlerTimeout: time.Minute}, "BatchConfig.Linger is 1m0s: must be less than Config.HandlerTimeout"},
		"without heartbeats":     {worker.BatchConfig{Linger: time.Minute}, worker.Config{HeartbeatInterval: worker.NoHeartbeat, Visibility: 30 * time.Second}, "because heartbeats are off"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, h := range []worker.Handler{worker.Batch(c.batch, f), worker.Router{By: worker.ByAttribute("x"), Fallback: worker.Logging(nil, 0)(worker.Batch(c.batch, f))}} {
				if _, err := worker.New(q.Client(), q.url, h, c.cfg); err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("got %v, want %q", err, c.err)
				}
			}
		})
	}
	if _, err := worker.New(q.Client(), q.url, worker.Batch(worker.BatchConfig{}, f), worker.Config{}); err != nil {
		t.Errorf("the zero configuration: %v", err)
	}
	if err := handleBody(worker.Batch(worker.BatchConfig{Size: -1}, f), "x"); err == nil {
		t.Error("a message was handled under a bad configuration")
	}
}

func TestBatchOutsideOfAWorkerLingers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var b batches
		h := worker.Batch(worker.BatchConfig{Linger: time.Second}, b.all(0))
		for range 12 {
			go func() {
				if err := handleBody(h, "x"); err != nil {
					t.Error(err)
				}
			}()
		}
		synctest.Wait()
		if b.String() != "[10]" {
			t.Errorf("batches of %s", &b)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if b.String() != "[10 2]" {
			t.Errorf("batches of %s", &b)
		}
	})
}
