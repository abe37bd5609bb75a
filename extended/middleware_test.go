package extended_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/extended"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// work runs a worker with the middleware and a client for it.
func (w *world) work(c *extended.Client, h worker.HandlerFunc, cfg worker.Config) (stop func()) {
	return w.run(c.ForWorker(), c.Middleware(), h, cfg)
}

func TestAHandlerGetsThePayloadAndItsObjectGoesWithTheMessage(t *testing.T) {
	clients := map[string]func(w *world, c *extended.Client) worker.Client{
		"the client for workers": func(_ *world, c *extended.Client) worker.Client { return c.ForWorker() },
		"a plain SQS client":     func(w *world, _ *extended.Client) worker.Client { return w.Client() },
		"the drop-in":            func(_ *world, c *extended.Client) worker.Client { return c },
	}
	each(t, clients, func(w *world, for_ func(*world, *extended.Client) worker.Client) {
		c := w.client(extended.Config{})
		want := map[string]bool{w.send(c, large(300_000)): true, w.send(c, "small"): true}
		var done atomic.Int32
		stop := w.run(for_(w, c), c.Middleware(), func(_ context.Context, m *worker.Message) error {
			if n := len(m.Body); !want[m.ID] || (n != 300_000 && n != 5) || len(m.Attributes) > 0 {
				w.t.Errorf("%d bytes, attributes %v", n, m.Attributes)
			}
			done.Add(1)
			return nil
		}, worker.Config{})
		time.Sleep(5 * time.Second)
		stop()
		if done.Load() != 2 || w.left() > 0 || len(w.s3.keys(bucket)) > 0 {
			w.t.Errorf("%d handled, %d left, objects %v", done.Load(), w.left(), w.s3.keys(bucket))
		}
		if s := c.Stats(); s.InMemory != 0 {
			w.t.Errorf("%+v", s)
		}
	})
}

func TestAPayloadIsFetchedOnlyWhenItsSlotIsFree(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{})
		for i := range 10 {
			w.send(c, large(300_000+i))
		}
		w.s3.forgetCalls()
		stop := w.work(c, func(context.Context, *worker.Message) error { time.Sleep(10 * time.Second); return nil }, worker.Config{Concurrency: 2, Prefetch: 8})
		time.Sleep(5 * time.Second)
		if n := len(w.s3.called("GetObject")); n != 2 || w.Queue(w.url).InFlight != 10 {
			t.Errorf("%d payloads fetched, %d messages held", n, w.Queue(w.url).InFlight)
		}
		time.Sleep(60 * time.Second)
		stop()
		if w.left() > 0 {
			t.Errorf("%d left", w.left())
		}
	})
}

func TestAFetchIsInsideTheLease(t *testing.T) {
	bubble(t, func(w *world) {
		w.url = w.MustCreateQueue("short", map[string]string{"VisibilityTimeout": "3"})
		c := w.client(extended.Config{})
		w.send(c, large(300_000))
		w.s3.fails(fault{op: "GetObject", hold: 9 * time.Second})
		var runs atomic.Int32
		stop := w.work(c, func(context.Context, *worker.Message) error { runs.Add(1); time.Sleep(9 * time.Second); return nil }, worker.Config{})
		time.Sleep(30 * time.Second)
		stop()
		if n := w.CountEvents(sqsmodel.Received); n != 1 || runs.Load() != 1 || w.left() > 0 {
			t.Errorf("received %d times, run %d times, %d left", n, runs.Load(), w.left())
		}
	})
}

func TestARenewalOfTheDropInsMessagesHasTheRawHandle(t *testing.T) {
	bubble(t, func(w *world) {
		w.url = w.MustCreateQueue("short", map[string]string{"VisibilityTimeout": "3"})
		c := w.client(extended.Config{})
		w.send(c, large(300_000))
		stop := w.run(c, c.Middleware(), func(context.Context, *worker.Message) error { time.Sleep(9 * time.Second); return nil }, worker.Config{})
		time.Sleep(20 * time.Second)
		stop()
		if n := w.CountEvents(sqsmodel.Received); n != 1 || w.CountEvents(sqsmodel.VisibilityChanged) == 0 || w.left() > 0 || len(w.s3.keys(bucket)) > 0 {
			t.Errorf("received %d times, renewed %d times, %d left", n, w.CountEvents(sqsmodel.VisibilityChanged), w.left())
		}
	})
}

func TestAPayloadsFailureIsItsMessagesByKind(t *testing.T) {
	type failure struct {
		pointer   string
		size      int
		fault     fault
		want      error
		permanent bool
	}
	mine := pointerTo(bucket, prefix+"x")
	each(t, map[string]failure{
		"missing":         {pointerTo(bucket, prefix+"none"), 1, fault{}, extended.ErrMissing, true},
		"foreign":         {pointerTo(foreign, prefix+"x"), 1, fault{}, extended.ErrForeign, true},
		"malformed":       {`["x"]`, 1, fault{}, extended.ErrMalformed, true},
		"another size":    {mine, 2, fault{}, extended.ErrSize, true},
		"smaller":         {mine, 0, fault{}, extended.ErrSize, true},
		"above the cap":   {mine, 1 << 40, fault{}, extended.ErrTooLarge, true},
		"denied":          {mine, 1, fault{op: "GetObject", status: 403, code: "AccessDenied"}, nil, false},
		"throttled":       {mine, 1, fault{op: "GetObject", status: 503, code: "SlowDown"}, nil, false},
		"broken":          {mine, 1, fault{op: "GetObject", status: 500, code: "InternalError"}, nil, false},
		"no connection":   {mine, 1, fault{op: "GetObject", drop: true}, nil, false},
		"archived":        {mine, 1, fault{op: "GetObject", status: 403, code: "InvalidObjectState"}, nil, false},
		"no bucket":       {mine, 1, fault{op: "GetObject", status: 404, code: "NoSuchBucket"}, nil, false},
		"KMS key is gone": {mine, 1, fault{op: "GetObject", status: 400, code: "KMS.DisabledException"}, nil, false},
	}, func(w *world, f failure) {
		for _, stream := range []bool{false, true} {
			w.url = w.MustCreateQueue(fmt.Sprint("kind-", stream), nil)
			c := w.client(extended.Config{Stream: stream})
			w.s3.mend()
			w.s3.put(bucket, prefix+"x", "x")
			bad := w.sendRaw(f.pointer, reserved(f.size))
			good := w.send(c, large(300_000))
			if f.fault.op != "" {
				f.fault.key = prefix + "x"
				w.s3.fails(f.fault)
			}
			results := map[string]error{}
			var mu sync.Mutex
			note := func(next worker.Handler) worker.Handler {
				return worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
					err := next.Handle(ctx, m)
					mu.Lock()
					results[m.ID] = err
					mu.Unlock()
					return err
				})
			}
			stop := w.run(c.ForWorker(), func(next worker.Handler) worker.Handler { return note(c.Middleware()(next)) },
				func(ctx context.Context, m *worker.Message) error {
					r, err := extended.Open(ctx, m)
					if err != nil {
						return fmt.Errorf("handler: %w", err)
					}
					defer r.Close()
					_, err = io.Copy(io.Discard, r)
					return err
				}, worker.Config{Backoff: worker.Backoff{Min: time.Hour}})
			time.Sleep(2 * time.Minute)
			stop()
			err := results[bad]
			if err == nil || results[good] != nil || f.want != nil && !errors.Is(err, f.want) {
				w.t.Errorf("stream %v: bad: %v, good: %v", stream, err, results[good])
			}
			if got := strings.Contains(err.Error(), "permanent:"); got != f.permanent {
				w.t.Errorf("stream %v: permanent %v: %v", stream, got, err)
			}
			if w.left() != 1 {
				w.t.Errorf("stream %v: %d messages left, want the bad one", stream, w.left())
			}
			if keys := w.s3.keys(bucket); !slices.Equal(keys, []string{prefix + "x"}) {
				w.t.Errorf("stream %v: objects %v", stream, keys)
			}
		}
	})
}

func TestAMissingObjectIsCompletedBeforeIfConfiguredSo(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{IgnoreMissing: true})
		w.sendRaw(pointerTo(bucket, prefix+"none"), reserved(1))
		stop := w.work(c, func(context.Context, *worker.Message) error { t.Error("handled"); return nil }, worker.Config{})
		time.Sleep(5 * time.Second)
		stop()
		if w.left() > 0 {
			t.Errorf("%d left", w.left())
		}
	})
}

func TestAnObjectStaysAsLongAsItsMessage(t *testing.T) {
	fails := func(err error) func(context.Context, *worker.Message) error {
		return func(context.Context, *worker.Message) error { return err }
	}
	each(t, map[string]error{
		"failed": errors.New("no"), "permanent": worker.Permanent(errors.New("no")), "snoozed": worker.Snooze(time.Hour), "retry": worker.RetryAfter(time.Hour, errors.New("no")),
	}, func(w *world, err error) {
		c := w.client(extended.Config{})
		w.send(c, large(300_000))
		stop := w.work(c, fails(err), worker.Config{Backoff: worker.Backoff{Min: time.Hour}})
		time.Sleep(time.Minute)
		stop()
		if w.left() != 1 || len(w.s3.keys(bucket)) != 1 {
			w.t.Errorf("%d messages, %d objects", w.left(), len(w.s3.keys(bucket)))
		}
	})
}

// sink is a dead-letter sink that keeps what it was given.
type sink struct{ taken []*worker.Message }

func (s *sink) DeadLetter(_ context.Context, m *worker.Message, _ error) error {
	s.taken = append(s.taken, m)
	return nil
}

func TestADeadLetteredMessagesObjectIsKeptAndItsCopyPointsToIt(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{})
		w.send(c, large(300_000))
		dead := &sink{}
		stop := w.work(c, func(context.Context, *worker.Message) error { return worker.Permanent(errors.New("no")) }, worker.Config{DeadLetter: dead})
		time.Sleep(time.Minute)
		stop()
		keys := w.s3.keys(bucket)
		if w.left() != 0 || len(dead.taken) != 1 || len(keys) != 1 {
			t.Fatalf("%d messages, %d dead-lettered, objects %v", w.left(), len(dead.taken), keys)
		}
		at, ok := extended.PointerOf(dead.taken[0])
		if want := (extended.Pointer{Bucket: bucket, Key: keys[0], Size: 300_000}); !ok || at != want {
			t.Errorf("the copy points to %v", at)
		}
	})
}

func TestRemovalsShareCallsAndFollowConfirmedDeletions(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{AlwaysS3: true})
		var stuck string
		for i := range 40 {
			stuck = w.send(c, fmt.Sprint("payload ", i))
		}
		mend := w.Inject(sqsmodel.Fault{Action: "DeleteMessageBatch", FailEntries: func(_ sqsmodel.Call, _ int, _, handle string) *sqsmodel.EntryError {
			for _, m := range w.Queue(w.url).Messages {
				if m.ID == stuck && m.Handle == handle {
					return &sqsmodel.EntryError{Code: "InternalError"}
				}
			}
			return nil
		}})
		stop := w.work(c, func(context.Context, *worker.Message) error { return nil }, worker.Config{Concurrency: 40})
		time.Sleep(5 * time.Second)
		if keys := w.s3.keys(bucket); len(keys) != 1 || w.left() != 1 {
			t.Errorf("%d objects, %d messages", len(keys), w.left())
		}
		if s := c.Stats(); s.Removed != 39 || s.RemoveCalls > 4 {
			t.Errorf("%d removed in %d calls", s.Removed, s.RemoveCalls)
		}
		mend()
		time.Sleep(10 * time.Second)
		stop()
		if keys := w.s3.keys(bucket); len(keys) != 0 || w.left() != 0 {
			t.Errorf("then %d objects, %d messages", len(keys), w.left())
		}
	})
}

func TestAFailedRemovalIsCountedAndTheMessageIsDone(t *testing.T) {
	each(t, map[string]fault{
		"denied": {op: "DeleteObjects", status: 403, code: "AccessDenied"}, "hangs": {op: "DeleteObjects", hold: time.Hour},
	}, func(w *world, f fault) {
		c := w.client(extended.Config{})
		w.send(c, large(300_000))
		w.s3.fails(f)
		stop := w.work(c, func(context.Context, *worker.Message) error { return nil }, worker.Config{})
		time.Sleep(30 * time.Second)
		stop()
		if s := c.Stats(); s.RemoveFailures != 1 || w.left() != 0 {
			w.t.Errorf("%+v, %d messages", s, w.left())
		}
	})
}

func TestAPartlyFailedRemovalIsCountedForItsObject(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{AlwaysS3: true})
		for range 5 {
			w.send(c, "payload")
		}
		bad := w.s3.keys(bucket)[2]
		w.s3.partlyFails(bad)
		stop := w.work(c, func(context.Context, *worker.Message) error { return nil }, worker.Config{})
		time.Sleep(30 * time.Second)
		stop()
		if s := c.Stats(); s.RemoveFailures != 1 || s.Removed != 4 {
			t.Errorf("%+v", s)
		}
	})
}

func TestPayloadsInMemoryStayWithinTheBudget(t *testing.T) {
	bubble(t, func(w *world) {
		w.url = w.MustCreateQueue("short", map[string]string{"VisibilityTimeout": "5"})
		c := w.client(extended.Config{MemoryBudget: 1 << 20})
		for i := range 10 {
			w.send(c, large(400_000+i))
		}
		var most, now atomic.Int64
		stop := w.work(c, func(ctx context.Context, m *worker.Message) error {
			n := now.Add(int64(len(m.Body)))
			for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
			}
			if used := c.Stats().InMemory; used > 1<<20 {
				t.Errorf("%d bytes in memory", used)
			}
			time.Sleep(10 * time.Second) // longer than the visibility: those who wait are held by their heartbeat
			now.Add(-int64(len(m.Body)))
			return nil
		}, worker.Config{Concurrency: 10})
		time.Sleep(time.Second)
		if s := c.Stats(); s.Waiting != 8 {
			t.Errorf("%d wait, want 8", s.Waiting)
		}
		time.Sleep(time.Minute)
		stop()
		if most.Load() > 1<<20 || most.Load() < 800_000 || w.CountEvents(sqsmodel.Received) != 10 || w.left() > 0 {
			t.Errorf("%d bytes at most, %d receives, %d left", most.Load(), w.CountEvents(sqsmodel.Received), w.left())
		}
	})
}

func TestAPayloadLargerThanTheBudgetIsAloneAndAboveTheCapRefused(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{MemoryBudget: 500_000, MaxBody: 2_000_000})
		w.send(c, large(300_000))
		w.send(c, large(1_000_000))
		w.send(c, large(300_001))
		refused := w.send(c, large(2_000_001))
		var running atomic.Int32
		stop := w.work(c, func(ctx context.Context, m *worker.Message) error {
			if n := running.Add(1); n > 1 {
				t.Errorf("%d at once", n)
			}
			time.Sleep(5 * time.Second)
			running.Add(-1)
			return nil
		}, worker.Config{})
		time.Sleep(time.Minute)
		stop()
		if ms := w.Queue(w.url).Messages; len(ms) != 1 || ms[0].ID != refused || !strings.Contains(w.log.String(), "Config.MaxBody is 2000000; raise it, or read the payload with Config.Stream") {
			t.Errorf("left %d\n%s", len(ms), w.log)
		}
	})
}

func TestWaitingForRoomEndsWithTheDrain(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{MemoryBudget: 500_000})
		w.send(c, large(400_000))
		w.send(c, large(400_001))
		stop := w.work(c, func(ctx context.Context, m *worker.Message) error { <-ctx.Done(); return context.Cause(ctx) }, worker.Config{})
		time.Sleep(5 * time.Second)
		if c.Stats().Waiting != 1 {
			t.Errorf("%+v", c.Stats())
		}
		stop()
		if q := w.Queue(w.url); q.Visible != 2 || c.Stats().InMemory != 0 || c.Stats().Waiting != 0 {
			t.Errorf("%d visible, %+v", q.Visible, c.Stats())
		}
	})
}

func TestABadConfigurationFailsWorkerNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sqsmodel.Config{}, "work", nil)
		_, err := worker.New(w.Client(), w.url, worker.HandlerFunc(func(context.Context, *worker.Message) error { return nil }), worker.Config{
			Middleware: []worker.Middleware{extended.Middleware(w.s3.client(), extended.Config{})},
		})
		if err == nil || !strings.Contains(err.Error(), "Config.Bucket is empty") {
			t.Errorf("%v", err)
		}
	})
}

func TestAWorkerThatAsksForSomeAttributesGetsTheReservedOnes(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{})
		w.send(c, large(300_000))
		var body string
		stop := w.work(c, func(_ context.Context, m *worker.Message) error { body = m.Body; return nil }, worker.Config{MessageAttributes: []string{"mine"}})
		time.Sleep(5 * time.Second)
		stop()
		if len(body) != 300_000 {
			t.Errorf("%d bytes", len(body))
		}
	})
}

func TestAWorkerThatDoesntAskForTheReservedAttributesIsWarnedOnce(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{})
		w.send(c, large(300_000))
		w.send(c, large(300_001))
		w.s3.forgetCalls()
		stop := w.run(w.Client(), c.Middleware(), func(_ context.Context, m *worker.Message) error { return errors.New("no JSON of mine") },
			worker.Config{MessageAttributes: []string{"mine"}, Backoff: worker.Backoff{Min: time.Hour}})
		time.Sleep(5 * time.Second)
		stop()
		if n := strings.Count(w.log.String(), "add SQSLargePayloadSize"); n != 1 || c.Stats().LookAlikes != 2 || len(w.s3.called("")) > 0 {
			t.Errorf("warned %d times, %+v", n, c.Stats())
		}
	})
}

func TestOpenWithoutMiddlewareSaysWhatToDo(t *testing.T) {
	m := &worker.Message{Body: pointerTo(bucket, prefix+"x"), Attributes: reserved(1)}
	if _, err := extended.Open(context.Background(), m); err == nil || !strings.Contains(err.Error(), "extended.Middleware") {
		t.Error(err)
	}
	r, err := extended.Open(context.Background(), &worker.Message{Body: "small", Attributes: map[string]types.MessageAttributeValue{}})
	if body, _ := io.ReadAll(r); err != nil || string(body) != "small" {
		t.Error(err)
	}
	if at, ok := extended.PointerOf(m); !ok || at != (extended.Pointer{Bucket: bucket, Key: prefix + "x", Size: 1}) {
		t.Errorf("%v, %v", at, ok)
	}
}
