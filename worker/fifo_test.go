package worker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// fifoScene is a FIFO queue with a worker on it, in a bubble. The handler is told by body.
type fifoScene struct {
	*sqsmodel.Server
	t     *testing.T
	queue string
	w     *worker.Worker
	stop  func() error

	mu      sync.Mutex
	started []string // bodies, in the order in which their handlers started
	at      map[string][]time.Time
	now     int // handlers running
	most    int
}

func onFIFO(t *testing.T, model sqsmodel.Config, attrs map[string]string, cfg worker.Config, handle func(*fifoScene, context.Context, *worker.Message) error, story func(*fifoScene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		sc := &fifoScene{Server: sqsmodel.New(model), t: t, at: map[string][]time.Time{}}
		all := map[string]string{"FifoQueue": "true", "VisibilityTimeout": "30"}
		for k, v := range attrs {
			all[k] = v
		}
		sc.MustCreateQueue("dead.fifo", map[string]string{"FifoQueue": "true"})
		sc.queue = sc.MustCreateQueue("orders.fifo", all)
		cfg.Logger = quiet()
		w, err := worker.New(sc.Client(), sc.queue, worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			sc.mu.Lock()
			sc.started = append(sc.started, m.Body)
			sc.at[m.Body] = append(sc.at[m.Body], time.Now())
			sc.now++
			sc.most = max(sc.most, sc.now)
			sc.mu.Unlock()
			defer func() {
				sc.mu.Lock()
				sc.now--
				sc.mu.Unlock()
			}()
			return handle(sc, ctx, m)
		}), cfg)
		if err != nil {
			t.Fatal(err)
		}
		sc.w = w
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		sc.stop = sync.OnceValue(func() error { cancel(); return <-done })
		story(sc)
		if err := sc.stop(); err != nil {
			t.Error(err)
		}
	})
}

func (sc *fifoScene) order() string {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	return strings.Join(sc.started, " ")
}

func redrive(maxReceiveCount int) map[string]string {
	return map[string]string{"RedrivePolicy": fmt.Sprintf(`{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:123456789012:dead.fifo","maxReceiveCount":%d}`, maxReceiveCount)}
}

func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestMessagesOfAGroupRunOneAfterTheOtherAndGroupsSideBySide(t *testing.T) {
	second := func(sc *fifoScene, ctx context.Context, m *worker.Message) error { time.Sleep(time.Second); return nil }
	onFIFO(t, sqsmodel.Config{Latency: 12 * time.Millisecond}, nil, worker.Config{Concurrency: 40}, second, func(sc *fifoScene) {
		for g := range 40 {
			for i := range 12 {
				sc.MustSendGroup(sc.queue, fmt.Sprint("group", g), fmt.Sprintf("%d/%d", g, i))
			}
		}
		settle(30 * time.Second)
		if sc.most != 40 {
			t.Errorf("%d groups ran side by side, want 40", sc.most)
		}
		next := make([]int, 40)
		for _, body := range sc.started {
			var g, i int
			fmt.Sscanf(body, "%d/%d", &g, &i)
			if i != next[g] {
				t.Fatalf("group %d: %d started, want %d", g, i, next[g])
			}
			next[g]++
		}
		if n := len(sc.started); n != 480 {
			t.Errorf("%d handlers started for 480 messages", n)
		}
		if q := sc.Queue(sc.queue); len(q.Messages) != 0 {
			t.Errorf("%d messages left", len(q.Messages))
		}
	})
}

func TestAfterAFailureTheRestOfTheGroupWaitsAndOtherGroupsGoOn(t *testing.T) {
	var mended atomic.Bool
	handle := func(sc *fifoScene, ctx context.Context, m *worker.Message) error {
		if m.Body == "A1" && !mended.Load() {
			return errors.New("boom")
		}
		return nil
	}
	cfg := worker.Config{Retries: worker.NoRetries, Backoff: worker.Backoff{Min: 10 * time.Second, Max: 10 * time.Second}}
	onFIFO(t, sqsmodel.Config{}, nil, cfg, handle, func(sc *fifoScene) {
		sc.MustSendGroup(sc.queue, "A", "A1", "A2", "A3")
		sc.MustSendGroup(sc.queue, "B", "B1", "B2")
		settle(4 * time.Second)
		if got := sc.order(); strings.Contains(got, "A2") || !strings.Contains(got, "B1") || !strings.Contains(got, "B2") {
			t.Fatalf("ran %s: A2 must not, B1 and B2 must have", got)
		}
		if q := sc.Queue(sc.queue); q.InFlight != 1 {
			t.Errorf("%d in flight, want only the failed head for its back-off: %+v", q.InFlight, q.Messages)
		}
		mended.Store(true)
		settle(20 * time.Second)
		if got := sc.order(); !strings.HasSuffix(got, "A1 A2 A3") {
			t.Errorf("ran %s: the group must go on from the failed message", got)
		}
	})
}

func TestAFailedHeadIsTriedInProcessBeforeItsGroupIsGivenBack(t *testing.T) {
	var tries atomic.Int64
	handle := func(sc *fifoScene, ctx context.Context, m *worker.Message) error {
		if m.Body == "A1" && tries.Add(1) <= 2 {
			return errors.New("boom")
		}
		return nil
	}
	onFIFO(t, sqsmodel.Config{}, map[string]string{"VisibilityTimeout": "2"}, worker.Config{RetryDelay: 5 * time.Second}, handle, func(sc *fifoScene) {
		sc.MustSendGroup(sc.queue, "A", "A1", "A2")
		settle(time.Minute)
		if got := sc.order(); got != "A1 A1 A1 A2" {
			t.Errorf("ran %s", got)
		}
		for _, e := range sc.Journal() {
			if e.Kind == sqsmodel.Received && e.ReceiveCount > 1 || e.Kind == sqsmodel.Expired {
				t.Errorf("a retry in process let the message go: %+v", e)
			}
		}
	})
}

func TestAPoisonedHeadDoesNotTakeTheMessagesBehindItToTheDeadLetterQueue(t *testing.T) {
	handle := func(sc *fifoScene, ctx context.Context, m *worker.Message) error {
		if m.Body == "A1" {
			return errors.New("boom")
		}
		return nil
	}
	onFIFO(t, sqsmodel.Config{}, redrive(3), worker.Config{Retries: worker.NoRetries}, handle, func(sc *fifoScene) {
		sc.MustSendGroup(sc.queue, "A", "A1", "A2", "A3", "A4")
		settle(5 * time.Minute)
		if got := sc.order(); got != "A1 A1 A1 A2 A3 A4" {
			t.Errorf("ran %s", got)
		}
		dead := sc.Queue("dead.fifo").Messages
		if len(dead) != 1 || dead[0].Body != "A1" {
			t.Errorf("dead-lettered: %+v", dead)
		}
	})
}

func TestAPoisonMessageComesAtGrowingGapsAndDelaysNobodyElse(t *testing.T) {
	handle := func(sc *fifoScene, ctx context.Context, m *worker.Message) error {
		if m.Body == "poison" {
			return errors.New("boom")
		}
		return nil
	}
	onFIFO(t, sqsmodel.Config{}, redrive(5), worker.Config{Retries: worker.NoRetries}, handle, func(sc *fifoScene) {
		sc.MustSendGroup(sc.queue, "bad", "poison")
		for i := range 60 {
			sc.MustSendGroup(sc.queue, fmt.Sprint("good", i), fmt.Sprint("good", i))
			settle(time.Second)
			if len(sc.at[fmt.Sprint("good", i)]) != 1 {
				t.Errorf("good%d waited", i)
			}
		}
		settle(5 * time.Minute)
		at := sc.at["poison"]
		if len(at) != 5 || len(sc.Queue("dead.fifo").Messages) != 1 {
			t.Fatalf("run %d times, %d dead-lettered", len(at), len(sc.Queue("dead.fifo").Messages))
		}
		for i := 2; i < len(at); i++ {
			if at[i].Sub(at[i-1]) < at[i-1].Sub(at[i-2]) {
				t.Errorf("gap %d is shorter than the one before: %v", i, at)
			}
		}
	})
}

func TestALostLeaseStopsItsGroupEvenWhileTheHandlerIsDeaf(t *testing.T) {
	handle := func(sc *fifoScene, ctx context.Context, m *worker.Message) error {
		if m.Body == "A1" && m.ReceiveCount == 1 {
			time.Sleep(10 * time.Minute) // ignores its context
		}
		return nil
	}
	onFIFO(t, sqsmodel.Config{}, map[string]string{"VisibilityTimeout": "10"}, worker.Config{}, handle, func(sc *fifoScene) {
		remove := sc.Inject(sqsmodel.Fault{Action: "ChangeMessageVisibilityBatch", Match: func(c sqsmodel.Call) bool {
			return len(c.VisibilityTimeouts) > 0 && c.VisibilityTimeouts[0] > 0 // renewals fail, releases don't
		}, Code: "InternalFailure"})
		sc.MustSendGroup(sc.queue, "A", "A1", "A2")
		settle(30 * time.Second)
		remove()
		if got := sc.order(); strings.Contains(got, "A2") && !strings.HasPrefix(got, "A1 A1 A2") {
			t.Errorf("ran %s: A2 before A1 was done", got)
		}
		settle(20 * time.Minute)
		if got := sc.order(); got != "A1 A1 A2" && got != "A1 A2" {
			t.Errorf("ran %s", got)
		}
		if q := sc.Queue(sc.queue); len(q.Messages) != 0 {
			t.Errorf("left: %+v", q.Messages)
		}
	})
}

func TestAnExpiredHandleOnDeleteIsALostLease(t *testing.T) {
	handle := func(sc *fifoScene, ctx context.Context, m *worker.Message) error { return nil }
	onFIFO(t, sqsmodel.Config{}, nil, worker.Config{}, handle, func(sc *fifoScene) {
		sc.Inject(sqsmodel.Fault{Action: "DeleteMessageBatch", Times: 1, FailEntries: func(sqsmodel.Call, int, string, string) *sqsmodel.EntryError {
			return &sqsmodel.EntryError{Code: "ReceiptHandleIsInvalid", Message: "The receipt handle has expired", SenderFault: true}
		}})
		sc.MustSendGroup(sc.queue, "A", "A1", "A2")
		settle(2 * time.Minute)
		if got := sc.order(); got != "A1 A2" {
			t.Errorf("ran %s: a completed message must be deleted on its redelivery, not run, and A2 only after it", got)
		}
		if sc.w.Stats().Undeleted != 1 || sc.w.Stats().Suppressed != 1 || len(sc.Queue(sc.queue).Messages) != 0 {
			t.Errorf("%+v", sc.w.Stats())
		}
	})
}

func TestAReceiveWhoseAnswerWasLostIsRepeatedWithItsAttemptID(t *testing.T) {
	handle := func(sc *fifoScene, ctx context.Context, m *worker.Message) error { return nil }
	onFIFO(t, sqsmodel.Config{}, map[string]string{"VisibilityTimeout": "600"}, worker.Config{}, handle, func(sc *fifoScene) {
		settle(time.Second)
		sc.Inject(sqsmodel.Fault{Action: "ReceiveMessage", Times: 1, DropAfter: true})
		sc.MustSendGroup(sc.queue, "A", "A1", "A2") // ends the open receive; its answer is lost
		settle(5 * time.Second)
		sc.MustSendGroup(sc.queue, "A", "A3")
		settle(time.Minute)
		if got := sc.order(); got != "A1 A2 A3" {
			t.Errorf("ran %q within a minute: orphans must come back at once, not after their visibility of ten minutes", got)
		}
		ids := map[string]int{}
		for _, c := range sc.Calls() {
			if c.Action == "ReceiveMessage" {
				if c.AttemptID == "" {
					t.Error("a receive without ReceiveRequestAttemptId")
				}
				ids[c.AttemptID]++
			}
		}
		again := 0
		for _, n := range ids {
			if n > 1 {
				again++
			}
		}
		if again != 1 {
			t.Errorf("%d attempt ids were used again, want exactly the lost one", again)
		}
	})
}

func TestStoppingAFIFOWorkerKeepsTheOrderForTheNextOne(t *testing.T) {
	slow := func(sc *fifoScene, ctx context.Context, m *worker.Message) error {
		select {
		case <-time.After(time.Minute):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	onFIFO(t, sqsmodel.Config{}, nil, worker.Config{DrainTimeout: 10 * time.Second}, slow, func(sc *fifoScene) {
		sc.MustSendGroup(sc.queue, "A", "A1", "A2", "A3")
		settle(2 * time.Second)
		if err := sc.stop(); err != nil {
			t.Error(err)
		}
		if q := sc.Queue(sc.queue); q.InFlight != 0 || q.Visible != 3 {
			t.Errorf("%d in flight, %d visible after the stop", q.InFlight, q.Visible)
		}
		if got := sc.order(); got != "A1" {
			t.Errorf("ran %s", got)
		}
	})
}

func TestSequenceNumbersCompareAsNumbersOf128Bits(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"18850496460467696128", "18850496460467696129", -1}, {"9", "10", -1}, {"0010", "10", 0},
		{"340282366920938463463374607431768211455", "99999999999999999999999999999999999999", 1}, {"", "5", 0}, {"0", "00", 0},
	} {
		if got := worker.CompareSequenceNumbers(c.a, c.b); got < 0 != (c.want < 0) || got > 0 != (c.want > 0) {
			t.Errorf("%s, %s: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }
