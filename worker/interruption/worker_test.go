package interruption_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
	"github.com/sqsworker/sqsworker/worker/interruption"
)

// tap stands between one worker and SQS: it knows which receipt handles the worker got.
type tap struct {
	*sqs.Client
	mu      sync.Mutex
	handles map[string]bool
}

func newTap(s *sqsmodel.Server) *tap { return &tap{Client: s.Client(), handles: map[string]bool{}} }

func (c *tap) ReceiveMessage(ctx context.Context, in *sqs.ReceiveMessageInput, o ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error) {
	out, err := c.Client.ReceiveMessage(ctx, in, o...)
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, m := range out.Messages {
			c.handles[*m.ReceiptHandle] = true
		}
	}
	return out, err
}

// mustHaveGivenBackAll: of what the worker received, nothing is in flight; each message that it released was received again
// within a time. It returns how many were released.
func (c *tap) mustHaveGivenBackAll(t *testing.T, s *sqsmodel.Server, within time.Duration) (released int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	journal := s.Journal()
	for handle := range c.handles {
		i := slices.IndexFunc(journal, func(e sqsmodel.Event) bool {
			return e.Handle == handle && (e.Kind == sqsmodel.Deleted || e.Kind == sqsmodel.VisibilityChanged && e.VisibilityTimeout == 0)
		})
		if i < 0 {
			t.Fatalf("a message is neither deleted nor given back")
		}
		if journal[i].Kind == sqsmodel.Deleted {
			continue
		}
		released++
		id := journal[i].MessageID
		next := slices.IndexFunc(journal[i:], func(e sqsmodel.Event) bool { return e.Kind == sqsmodel.Received && e.MessageID == id })
		if next < 0 {
			t.Fatalf("message %s was not received again after its release", id)
		}
		if took := journal[i+next].At.Sub(journal[i].At); took > within {
			t.Errorf("message %s was received again %v after its release, want %v", id, took, within)
		}
	}
	return released
}

// Two hundred jobs run on two workers; one of them is told to go, and is killed at the end of its time.
func TestTheOtherWorkerGetsWhatAnInterruptedOneHeldWithinASecondOfItsRelease(t *testing.T) {
	type going struct {
		left  time.Duration // from the notice to the kill
		jobs  time.Duration
		deaf  bool // handlers ignore their context
		least int  // released at the least
	}
	each(t, map[string]going{
		"Spot notice, 120 s":              {2 * time.Minute, 5 * time.Minute, false, 50},
		"Spot notice, jobs that end":      {2 * time.Minute, 80 * time.Second, false, 0},
		"SIGTERM, 30 s, deaf handlers":    {30 * time.Second, 5 * time.Minute, true, 50},
		"docker stop, 10 s":               {10 * time.Second, 5 * time.Minute, false, 50},
		"docker stop, 10 s, deaf":         {10 * time.Second, 5 * time.Minute, true, 50},
		"late Spot notice, 4 s":           {4 * time.Second, 5 * time.Minute, false, 50},
		"late Spot notice, 4 s, deaf":     {4 * time.Second, 5 * time.Minute, true, 50},
		"hibernation: no time, they heed": {0, 5 * time.Minute, false, 50},
	}, func(t *testing.T, c going) {
		const messages = 200
		s := sqsmodel.New(sqsmodel.Config{Latency: 5 * time.Millisecond})
		queue := s.MustCreateQueue("jobs", map[string]string{"VisibilityTimeout": "30"})
		handle := func(ctx context.Context, m *worker.Message) error {
			took := c.jobs
			if m.ReceiveCount > 1 {
				took = time.Second
			}
			done := ctx.Done()
			if c.deaf {
				done = nil
			}
			select {
			case <-time.After(took):
				return nil
			case <-done:
				return context.Cause(ctx)
			}
		}
		log := &logbook{}
		start := func(ctx context.Context) (*tap, <-chan error) {
			client := newTap(s)
			w, err := worker.New(client, queue, worker.HandlerFunc(handle), worker.Config{Concurrency: messages, DrainTimeout: 10 * time.Minute, Logger: log.logger()})
			if err != nil {
				t.Fatal(err)
			}
			result := make(chan error, 1)
			go func() { result <- w.Run(ctx) }()
			return client, result
		}
		stays, stopStaying := context.WithCancel(context.Background())
		noticed := 30 * time.Second
		goes, stop := interruption.Watch(context.Background(), interruption.Func(func(ctx context.Context, report func(interruption.Notice)) {
			time.Sleep(noticed)
			report(interruption.Notice{Source: "test", Action: "terminate", Deadline: time.Now().Add(c.left)})
		}))
		defer stop()
		_, stayed := start(stays)
		first, went := start(goes)
		time.Sleep(time.Second)
		for i := range messages / 2 {
			s.MustSend(queue, fmt.Sprint(2*i), fmt.Sprint(2*i+1))
			time.Sleep(20 * time.Millisecond)
		}
		err := <-went
		if took := time.Since(causeOf(t, goes).Deadline()); took > 0 && c.left > 0 {
			t.Errorf("it returned %v after the deadline", took)
		}
		var drain *worker.DrainError
		if c.deaf != errors.As(err, &drain) || !c.deaf && err != nil || c.deaf && len(drain.Unsettled) > 0 {
			t.Errorf("Run returned %v", err)
		}
		time.Sleep(10 * time.Minute)
		if n := first.mustHaveGivenBackAll(t, s, time.Second); n < c.least {
			t.Errorf("%d messages were given back, want %d at the least", n, c.least)
		}
		if st := s.Queue("jobs"); len(st.Messages) != 0 {
			t.Errorf("%d messages are left", len(st.Messages))
		}
		if n := s.CountEvents(sqsmodel.Deleted); n != messages {
			t.Errorf("%d messages were deleted, want %d", n, messages)
		}
		if n := s.CountEvents(sqsmodel.Expired); n != 0 {
			t.Errorf("%d visibilities ran out", n)
		}
		stopStaying()
		if err := <-stayed; err != nil {
			t.Errorf("the other worker's Run returned %v", err)
		}
		if t.Failed() {
			t.Log(log.text.String())
		}
		time.Sleep(time.Hour)
	})
}

// Fifty deploys, one worker replaced by the next, on a queue that dead-letters after three receives.
func TestFiftyDeploysDeadLetterOnlyWhatThreeDrainsInterruptedAndSayWhichBefore(t *testing.T) {
	type deploys struct {
		every    time.Duration
		prefetch int
		deadMost int // messages that may be dead-lettered: those that three drains interrupted
	}
	each(t, map[string]deploys{
		"each five minutes":               {5 * time.Minute, 0, 0},
		"each five minutes, prefetching":  {5 * time.Minute, 20, 0},
		"each two minutes, prefetch of 5": {2 * time.Minute, 5, 0},
		"faster than the jobs, prefetch":  {50 * time.Second, 20, 20}, // of 630: three stops within one job's waiting and running
	}, func(t *testing.T, c deploys) {
		const rounds, maxReceives = 50, 3
		s := sqsmodel.New(sqsmodel.Config{Latency: 5 * time.Millisecond})
		s.MustCreateQueue("dead", map[string]string{"MessageRetentionPeriod": "1209600"})
		queue := s.MustCreateQueue("jobs", map[string]string{"VisibilityTimeout": "30",
			"RedrivePolicy": fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":"%d"}`, s.Queue("dead").ARN, maxReceives)})
		log := &logbook{}
		var nearLimit atomic.Int64
		var taps []*tap
		var running sync.WaitGroup
		deploy := func() (stop func()) {
			ctx, cancel := context.WithCancelCause(context.Background())
			watched, end := interruption.Watch(context.Background(), interruption.Func(func(_ context.Context, report func(interruption.Notice)) {
				<-ctx.Done()
				report(interruption.Notice{Source: "SIGTERM", Action: "stop", Deadline: time.Now().Add(27 * time.Second)})
			}))
			client := newTap(s)
			taps = append(taps, client)
			w, err := worker.New(client, queue, worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
				select {
				case <-time.After(time.Minute):
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}), worker.Config{Concurrency: 10, Prefetch: c.prefetch, Logger: log.logger()})
			if err != nil {
				t.Fatal(err)
			}
			running.Go(func() {
				if err := w.Run(watched); err != nil {
					t.Errorf("Run returned %v", err)
				}
				nearLimit.Add(w.Stats().NearLimit)
				end()
			})
			return func() { cancel(nil) }
		}
		stop := deploy()
		for i := range rounds {
			for j := range 40 {
				time.Sleep(c.every / 40)
				if j%3 == 0 && i < rounds-5 { // not more than it can work
					s.MustSend(queue, fmt.Sprint(i, j))
				}
			}
			next := deploy()
			stop()
			stop = next
		}
		time.Sleep(30 * time.Minute)
		stop()
		running.Wait()

		journal := s.Journal()
		receives, deadLettered := map[string]int{}, map[string]bool{}
		for _, e := range journal {
			switch {
			case e.Kind == sqsmodel.Received && e.Queue == "jobs":
				receives[e.MessageID]++
			case e.Kind == sqsmodel.DeadLettered:
				deadLettered[e.MessageID] = true
				if n := receives[e.MessageID]; n != maxReceives {
					t.Errorf("message %s was dead-lettered after %d receives", e.MessageID, n)
				}
			}
		}
		if sent, deleted := s.CountEvents(sqsmodel.Sent), s.CountEvents(sqsmodel.Deleted); deleted+int64(len(deadLettered)) != sent {
			t.Errorf("%d messages were sent, %d deleted and %d dead-lettered", sent, deleted, len(deadLettered))
		}
		if n := s.CountEvents(sqsmodel.Expired); n != 0 {
			t.Errorf("%d visibilities ran out: receives that nobody worked", n)
		}
		if n := len(deadLettered); n > c.deadMost {
			t.Errorf("%d of %d messages were dead-lettered, want %d at most", n, len(receives), c.deadMost)
		}
		mustHardlyTakeBack(t, journal, taps)
		for id := range deadLettered {
			if log.with(id, "max_receive_count=3") == 0 {
				t.Errorf("message %s was dead-lettered without a failure, and no line of the log had said so", id)
			}
		}
		if int(nearLimit.Load()) < len(deadLettered) {
			t.Errorf("NearLimit counted %d, %d messages were dead-lettered", nearLimit.Load(), len(deadLettered))
		}
		t.Logf("%d messages, %d dead-lettered, %d near the limit, receives %v", len(receives), len(deadLettered), nearLimit.Load(), histogram(receives))
		synctest.Wait()
	})
}

// mustHardlyTakeBack: a worker that gives a message back may get it again itself, by a receive that is still open. That is a
// receive for nothing: once for a message at most, and for one message in a stop or so.
func mustHardlyTakeBack(t *testing.T, journal []sqsmodel.Event, taps []*tap) {
	t.Helper()
	again := 0
	for _, tap := range taps {
		got := map[string]int{}
		for _, e := range journal {
			if e.Kind == sqsmodel.Received && tap.handles[e.Handle] {
				got[e.MessageID]++
			}
		}
		for id, n := range got {
			again += n - 1
			if n > 2 {
				t.Errorf("one worker received message %s %d times", id, n)
			}
		}
	}
	if again > len(taps) {
		t.Errorf("%d messages were taken back by the workers that had given them back, in %d stops", again, len(taps))
	}
}

func histogram(n map[string]int) map[int]int {
	h := map[int]int{}
	for _, v := range slices.Collect(maps.Values(n)) {
		h[v]++
	}
	return h
}

// The time line of the README, with handlers that would run for longer than there is time.
func TestTheTimeLineOfTheReadme(t *testing.T) {
	type timeLine struct {
		source         interruption.Source
		second         time.Duration // when a second notice comes, which leaves a minute; 0: none
		cancelled, end time.Duration
	}
	each(t, map[string]timeLine{
		"SIGTERM, 30 s":  {interruption.ECS(30 * time.Second), 0, 20 * time.Second, 27 * time.Second},
		"SIGTERM, 120 s": {interruption.ECS(interruption.FargateStopTimeout), 0, 108 * time.Second, 115 * time.Second},
		"120 s, then 60": {interruption.ECS(interruption.FargateStopTimeout), 30 * time.Second, 78 * time.Second, 85 * time.Second},
	}, func(t *testing.T, c timeLine) {
		s := sqsmodel.New(sqsmodel.Config{})
		queue := s.MustCreateQueue("jobs", map[string]string{"VisibilityTimeout": "60"})
		for i := range 20 {
			s.MustSend(queue, fmt.Sprint(i))
		}
		caught := make(chan os.Signal, 1)
		ctx, stop := interruption.Watch(context.Background(),
			interruption.Func(func(ctx context.Context, report func(interruption.Notice)) {
				interruption.Listen(ctx, c.source, caught, report)
			}),
			interruption.Func(func(_ context.Context, report func(interruption.Notice)) {
				if c.second > 0 {
					time.Sleep(time.Minute + c.second)
					report(interruption.Notice{Source: "EC2 Spot", Action: "terminate", Deadline: time.Now().Add(55 * time.Second)})
				}
			}))
		defer stop()
		var cancelled atomic.Int64
		var signalled atomic.Pointer[time.Time]
		w, err := worker.New(s.Client(), queue, worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			<-ctx.Done()
			cancelled.Store(int64(time.Since(*signalled.Load())))
			time.Sleep(time.Hour)
			return nil
		}), worker.Config{Concurrency: 10, Prefetch: 10, DrainTimeout: 2 * time.Minute, Logger: (&logbook{}).logger()})
		if err != nil {
			t.Fatal(err)
		}
		result := make(chan error, 1)
		go func() { result <- w.Run(ctx) }()
		time.Sleep(time.Minute)
		began := time.Now()
		signalled.Store(&began)
		caught <- syscall.SIGTERM
		err = <-result
		took := time.Since(began)
		var drain *worker.DrainError
		if !errors.As(err, &drain) || len(drain.Running) != 10 || len(drain.Unsettled) != 0 {
			t.Errorf("Run returned %v", err)
		}
		if took > c.end || took < c.end-3*time.Second {
			t.Errorf("Run returned after %v, want %v at the latest", took, c.end)
		}
		if at := time.Duration(cancelled.Load()); at != c.cancelled {
			t.Errorf("handlers were cancelled after %v, want %v", at, c.cancelled)
		}
		unstarted, forced := 0, 0
		for _, e := range s.Journal() {
			if e.Kind != sqsmodel.VisibilityChanged || e.VisibilityTimeout > 0 {
				continue
			}
			switch after := e.At.Sub(began); {
			case after < time.Second:
				unstarted++
			case after == c.end-2*time.Second:
				forced++
			default:
				t.Errorf("a message was given back after %v", after)
			}
		}
		if unstarted != 10 || forced != 10 {
			t.Errorf("%d messages were given back at once and %d by force, want 10 and 10", unstarted, forced)
		}
		time.Sleep(2 * time.Hour)
	})
}
