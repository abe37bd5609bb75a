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

// outage is a queue whose handlers depend on something that can be down.
type outage struct {
	*sqsmodel.Server
	t     *testing.T
	queue string
	w     *worker.Worker
	down  atomic.Bool
	runs  atomic.Int64
	met   atomic.Int64 // runs that met the outage
}

func duringAnOutage(t *testing.T, maxReceiveCount int, cfg worker.Config, failure func(error) error, story func(*outage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := &outage{Server: sqsmodel.New(sqsmodel.Config{Latency: 12 * time.Millisecond}), t: t}
		o.MustCreateQueue("dead", nil)
		o.queue = o.MustCreateQueue("work", map[string]string{"VisibilityTimeout": "30",
			"RedrivePolicy": fmt.Sprintf(`{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:123456789012:dead","maxReceiveCount":%d}`, maxReceiveCount)})
		cfg.Logger = quiet()
		w, err := worker.New(o.Client(), o.queue, worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			o.runs.Add(1)
			time.Sleep(100 * time.Millisecond)
			if o.down.Load() {
				o.met.Add(1)
				return failure(errors.New("database is down"))
			}
			return nil
		}), cfg)
		if err != nil {
			t.Fatal(err)
		}
		o.w = w
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		stop := sync.OnceFunc(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		story(o)
		stop()
	})
}

func TestAnOutageOfHalfAnHourDeadLettersNothing(t *testing.T) {
	duringAnOutage(t, 3, worker.Config{Concurrency: 10, Prefetch: 10}, worker.Unavailable, func(o *outage) {
		o.down.Store(true)
		for range 500 {
			o.MustSend(o.queue, "job")
		}
		settle(30 * time.Minute)
		if n := len(o.Queue("dead").Messages); n > 0 {
			t.Errorf("%d messages dead-lettered by an outage that isn't theirs", n)
		}
		if met, most := o.met.Load(), int64(10+15); met > most {
			t.Errorf("%d runs met the outage, want the first ten and a probe now and then", met)
		}
		if err := o.w.Healthy(); !errors.Is(err, worker.ErrBreakerOpen) {
			t.Errorf("healthy: %v", err)
		}
		if s := o.w.Stats(); s.Failed != 0 || s.Unavailable == 0 || s.Breaker == worker.BreakerClosed {
			t.Errorf("%+v", s)
		}
		o.down.Store(false)
		settle(45 * time.Minute) // what came near the limit stays away for half an hour
		if q := o.Queue(o.queue); len(q.Messages) != 0 || len(o.Queue("dead").Messages) != 0 {
			t.Errorf("%d left, %d dead-lettered after the outage", len(q.Messages), len(o.Queue("dead").Messages))
		}
		if err := o.w.Healthy(); err != nil {
			t.Error(err)
		}
	})
}

func TestAnOpenBreakerReceivesNothingAndHoldsNothingBack(t *testing.T) {
	duringAnOutage(t, 10, worker.Config{Concurrency: 2, Prefetch: 8, Breaker: worker.Breaker{Pause: time.Minute}}, worker.Unavailable, func(o *outage) {
		o.down.Store(true)
		for range 30 {
			o.MustSend(o.queue, "job")
		}
		settle(5 * time.Second)
		before := o.Count("ReceiveMessage")
		settle(50 * time.Second)
		if n := o.Count("ReceiveMessage") - before; n != 0 {
			t.Errorf("%d receives while open", n)
		}
		if s := o.w.Stats(); s.Held != 0 || s.FreeSlots != 10 {
			t.Errorf("still holds messages: %+v", s)
		}
		settle(10 * time.Second)
		if n := o.Count("ReceiveMessage") - before; n != 1 {
			t.Errorf("%d receives after the pause, want one probe", n)
		}
		for _, c := range o.Calls() {
			if c.Action == "ReceiveMessage" && c.At.After(time.Now().Add(-10*time.Second)) && c.MaxMessages != 1 {
				t.Errorf("the probe asked for %d messages", c.MaxMessages)
			}
		}
	})
}

func TestProbesThatMeetTheOutageAgainComeMoreAndMoreRarely(t *testing.T) {
	cfg := worker.Config{Concurrency: 1, Breaker: worker.Breaker{Pause: 10 * time.Second, MaxPause: 40 * time.Second}}
	duringAnOutage(t, 100, cfg, worker.Unavailable, func(o *outage) {
		o.down.Store(true)
		for range 100 {
			o.MustSend(o.queue, "job")
		}
		settle(10 * time.Minute)
		if n := o.met.Load(); n < 14 || n > 18 { // 10 s, 20 s, then every 40 s
			t.Errorf("%d runs in ten minutes", n)
		}
	})
}

func TestAFailureRateOpensTheBreakerOnlyWhenAskedTo(t *testing.T) {
	plain := func(err error) error { return err }
	for _, asked := range []bool{false, true} {
		cfg := worker.Config{Concurrency: 10}
		if asked {
			cfg.Breaker = worker.Breaker{FailureRate: 0.5, MinResults: 20}
		}
		duringAnOutage(t, 1000, cfg, plain, func(o *outage) {
			o.down.Store(true)
			for range 200 {
				o.MustSend(o.queue, "job")
			}
			settle(20 * time.Second)
			s := o.w.Stats()
			if opened := s.BreakerOpened > 0; opened != asked {
				t.Errorf("asked %v: opened %d times, %d failures", asked, s.BreakerOpened, s.Failed)
			}
			o.down.Store(false)
			settle(30 * time.Minute)
			if left := len(o.Queue(o.queue).Messages); left > 0 {
				t.Errorf("asked %v: %d left", asked, left)
			}
		})
	}
}

func TestALongHandlerThatBeganBeforeTheOutageNeitherHoldsUpTheProbeNorDecidesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sqsmodel.New(sqsmodel.Config{})
		queue := s.MustCreateQueue("work", nil)
		var down atomic.Bool
		handle := func(ctx context.Context, m *worker.Message) error {
			switch {
			case m.Body == "long":
				time.Sleep(2 * time.Hour)
			case down.Load():
				return worker.Unavailable(errors.New("down"))
			}
			return nil
		}
		w, err := worker.New(s.Client(), queue, worker.HandlerFunc(handle), worker.Config{Concurrency: 2, Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		s.MustSend(queue, "long")
		settle(time.Second)
		down.Store(true)
		s.MustSend(queue, "short")
		settle(time.Second)
		if w.Stats().Breaker != worker.BreakerOpen {
			t.Fatal("not open")
		}
		down.Store(false)
		settle(5 * time.Minute)
		if w.Stats().Breaker != worker.BreakerClosed {
			t.Error("no probe while the long handler runs")
		}
		settle(3 * time.Hour)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// takingSink is a dead-letter sink that can fail.
type takingSink struct {
	mu      sync.Mutex
	fail    error
	reasons map[string]string
}

func (s *takingSink) DeadLetter(_ context.Context, m *worker.Message, reason error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return s.fail
	}
	s.reasons[m.Body] = reason.Error()
	return nil
}

func TestAPermanentFailureGoesToTheSinkAndIsDeletedOnlyAfterThat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sqsmodel.New(sqsmodel.Config{})
		queue := s.MustCreateQueue("work", nil)
		to := &takingSink{reasons: map[string]string{}, fail: errors.New("sink is down")}
		w, err := worker.New(s.Client(), queue, worker.HandlerFunc(func(context.Context, *worker.Message) error {
			return worker.Permanent(errors.New("no such customer"))
		}), worker.Config{DeadLetter: to, Logger: quiet(), Backoff: worker.Backoff{Max: time.Minute}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		s.MustSend(queue, "order")
		settle(30 * time.Second)
		if len(s.Queue(queue).Messages) != 1 || w.Stats().DeadLetterFailures != 1 {
			t.Fatalf("a message that the sink didn't take must stay: %+v", w.Stats())
		}
		to.mu.Lock()
		to.fail = nil
		to.mu.Unlock()
		settle(2 * time.Minute)
		if to.reasons["order"] != "no such customer" || len(s.Queue(queue).Messages) != 0 || w.Stats().DeadLettered != 1 {
			t.Errorf("reasons %v, %d left, %+v", to.reasons, len(s.Queue(queue).Messages), w.Stats())
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestSnoozesAndReleasesDontCountAsAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sqsmodel.New(sqsmodel.Config{})
		queue := s.MustCreateQueue("work", nil)
		var attempts []string
		w, err := worker.New(s.Client(), queue, worker.HandlerFunc(func(_ context.Context, m *worker.Message) error {
			attempts = append(attempts, fmt.Sprintf("%d of %d", m.Attempt, m.ReceiveCount))
			switch m.ReceiveCount {
			case 1, 2, 4:
				return worker.Snooze(time.Second)
			case 3:
				return errors.New("boom")
			}
			return nil
		}), worker.Config{Concurrency: 1, Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		s.MustSend(queue, "order")
		settle(time.Minute)
		if got := fmt.Sprint(attempts); got != "[1 of 1 1 of 2 1 of 3 2 of 4 2 of 5]" {
			t.Errorf("attempts %s", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
