package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

func TestTimeoutEndsTheContextOfOneHandler(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.MustSend(q.url, `{"type":"slow"}`, `{"type":"quick"}`)
		causes := map[string]error{}
		var mu sync.Mutex
		wait := worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			err := takes(time.Minute)(ctx, m)
			mu.Lock()
			causes[m.Body] = err
			mu.Unlock()
			if ctx.Err() != nil {
				return fmt.Errorf("calling the shop: %w", ctx.Err())
			}
			return nil
		})
		w := q.start(worker.Router{By: worker.ByJSONField("type"), Routes: map[string]worker.Handler{
			"slow": wait, "quick": worker.Timeout(5 * time.Second)(wait),
		}}, worker.Config{Backoff: worker.Backoff{Min: time.Hour, Max: time.Hour}})
		time.Sleep(2 * time.Minute)
		w.mustStop()
		if causes[`{"type":"slow"}`] != nil || !errors.Is(causes[`{"type":"quick"}`], worker.ErrHandlerTimeout) {
			t.Errorf("the causes are %v", causes)
		}
		q.mustHaveHappened(sqsmodel.Deleted, 1)
		if len(w.log.with("worker: handler timeout after 5s: calling the shop: context deadline exceeded")) != 1 {
			t.Error("the failure doesn't say that it was the timeout")
		}
	})
}

func TestTimeoutChangesNothingElse(t *testing.T) {
	own := errors.New("own")
	for name, c := range map[string]struct{ result, want error }{
		"success":      {nil, nil},
		"own error":    {own, own},
		"foreign time": {context.DeadlineExceeded, context.DeadlineExceeded}, // a deadline of the handler's own
	} {
		if err := handleBody(worker.Timeout(time.Minute)(returns(c.result)), ""); !errors.Is(err, c.want) || errors.Is(err, worker.ErrHandlerTimeout) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for _, d := range []time.Duration{0, -1, time.Microsecond, 13 * time.Hour} {
		if err := handleBody(worker.Timeout(d)(worker.HandlerFunc(succeed)), ""); err == nil || !strings.Contains(err.Error(), "must be from 1ms to 12h") {
			t.Errorf("%v: got %v", d, err)
		}
	}
}

func TestLoggingHasOneLineForEachMessageAndNoneOfItsContents(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		results := map[string]worker.HandlerFunc{
			"secret ok": succeed, "secret failed": returns(errors.New("no luck")), "secret permanent": returns(worker.Permanent(errors.New("never"))),
			"secret snooze": returns(worker.Snooze(time.Hour)), "secret duplicate": returns(worker.ErrDuplicate),
			"secret panic": func(context.Context, *worker.Message) error { panic("oops") },
		}
		for body := range results {
			q.MustSend(q.url, body)
		}
		own := &logbook{}
		w := q.start(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			time.Sleep(3 * time.Second)
			return results[m.Body](ctx, m)
		}), worker.Config{Middleware: []worker.Middleware{worker.Logging(slog.New(own), slog.LevelDebug)}, Backoff: worker.Backoff{Min: time.Hour, Max: time.Hour}})
		time.Sleep(10 * time.Second)
		w.mustStop()
		if n := len(own.with("message handled", "took=3s", "message.id=", "message.receive_count=1", "DEBUG")); n != 6 {
			t.Errorf("%d lines, want 6:\n%s", n, own)
		}
		for _, words := range [][]string{{"outcome=succeeded"}, {"outcome=failed", `error="no luck"`}, {`outcome="failed permanently"`, "never"}, {"outcome=snoozed"}, {"outcome=duplicate"}, {"outcome=panicked"}} {
			if n := len(own.with(words...)); n != 1 {
				t.Errorf("%d lines with %q", n, words)
			}
		}
		if lines := own.with("secret"); len(lines) > 0 {
			t.Errorf("a body was logged: %v", lines)
		}
		if s := w.Stats(); s.Panics != 1 {
			t.Errorf("%d panics were counted: Logging must let it through", s.Panics)
		}
	})
}

func TestRecoverMakesAPanicAnErrorForWhatIsOutsideOfIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueueWithDLQ(t, 10)
		q.MustSend(q.url, "a")
		var seen []error
		var stack string
		see := func(next worker.Handler) worker.Handler {
			return worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
				err := next.Handle(ctx, m)
				seen = append(seen, err)
				return err
			})
		}
		decide := worker.Recover(func(_ context.Context, m *worker.Message, value any, s []byte) error {
			stack = string(s)
			return worker.Permanent(fmt.Errorf("%s panicked: %v", m.ID, value))
		})
		sink := &sinkhole{}
		w := q.start(worker.HandlerFunc(func(context.Context, *worker.Message) error { panic("boom") }),
			worker.Config{Middleware: []worker.Middleware{see, decide}, DeadLetter: sink})
		q.mustEmpty(time.Minute)
		w.mustStop()
		if len(seen) != 1 || !isPermanent(seen[0]) || !strings.Contains(seen[0].Error(), "panicked: boom") || !strings.Contains(stack, "middleware_test.go") {
			t.Errorf("outside of it: %v; stack %d bytes", seen, len(stack))
		}
		if len(sink.reasons) != 1 || w.Stats().Panics != 1 {
			t.Errorf("%d dead letters, %d panics", len(sink.reasons), w.Stats().Panics)
		}
	})
}

// sinkhole is a dead-letter sink.
type sinkhole struct {
	mu      sync.Mutex
	reasons []string
	bodies  []string
	err     error
}

func (s *sinkhole) DeadLetter(_ context.Context, m *worker.Message, reason error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reasons = append(s.reasons, reason.Error())
	s.bodies = append(s.bodies, m.Body)
	return s.err
}

func TestAPanicStaysAFailureHoweverItIsDecided(t *testing.T) {
	panics := worker.HandlerFunc(func(context.Context, *worker.Message) error { panic("boom") })
	for name, m := range map[string]worker.Middleware{
		"undecided":   worker.Recover(nil),
		"decided nil": worker.Recover(func(context.Context, *worker.Message, any, []byte) error { return nil }),
	} {
		if err := handleBody(m(panics), ""); err == nil || !strings.Contains(err.Error(), "boom") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if err := handleBody(worker.Recover(nil)(worker.HandlerFunc(succeed)), ""); err != nil {
		t.Errorf("no panic: got %v", err)
	}
}

// byBody limits messages by their body's first byte.
func byBody(m *worker.Message) string { return m.Body[:1] }

func TestMessagesOfOneKeyRunOneAtATimeInOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		bodies := []string{"a1", "b1", "a2", "c1", "a3", "b2"}
		q.MustSend(q.url, bodies...)
		var mu sync.Mutex
		running, most := map[string]int{}, map[string]int{}
		var order []string
		w := q.start(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			key := byBody(m)
			mu.Lock()
			order = append(order, m.Body)
			running[key]++
			most[key] = max(most[key], running[key])
			mu.Unlock()
			time.Sleep(10 * time.Second)
			mu.Lock()
			running[key]--
			mu.Unlock()
			if m.Body == "a1" {
				panic("a panic gives its turn back")
			}
			return nil
		}), worker.Config{Middleware: []worker.Middleware{worker.ConcurrencyPerKey(worker.KeyLimit{Key: byBody})}, Backoff: worker.Backoff{Min: time.Hour, Max: time.Hour}})
		time.Sleep(35 * time.Second)
		w.mustStop()
		if fmt.Sprint(most) != "map[a:1 b:1 c:1]" || len(order) != 6 {
			t.Errorf("at once ran %v, in all %v", most, order)
		}
		if got := strings.Join(order, ""); !(strings.Index(got, "a1") < strings.Index(got, "a2") && strings.Index(got, "a2") < strings.Index(got, "a3")) {
			t.Errorf("the order was %v", order)
		}
		q.mustHaveHappened(sqsmodel.Deleted, 5)
		q.mustHaveHappened(sqsmodel.Received, 6)
	})
}

func TestKeyLimitLetsThroughAsManyAsItSays(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.MustSend(q.url, "a", "a", "a", "a", "a")
		var r runs
		w := q.start(r.handler(takes(10*time.Second)), worker.Config{Middleware: []worker.Middleware{worker.ConcurrencyPerKey(worker.KeyLimit{Key: byBody, Limit: 2})}})
		q.mustEmpty(time.Minute)
		w.mustStop()
		if r.most != 2 {
			t.Errorf("%d ran at once, want 2", r.most)
		}
	})
}

func TestMessagesWithoutAKeyHaveNoLimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.send(10)
		var r runs
		w := q.start(r.handler(takes(10*time.Second)), worker.Config{Middleware: []worker.Middleware{worker.ConcurrencyPerKey(worker.KeyLimit{Key: func(m *worker.Message) string { return m.GroupID }})}})
		time.Sleep(5 * time.Second)
		if r.now() != 10 {
			t.Errorf("%d run at once, want 10", r.now())
		}
		w.mustStop()
	})
}

func TestMessageThatWaitedInVainIsGivenBackWithoutAFailure(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.MustSend(q.url, "a1", "a2")
		w := q.start(takes(time.Minute), worker.Config{Middleware: []worker.Middleware{
			worker.ConcurrencyPerKey(worker.KeyLimit{Key: byBody, MaxWait: 5 * time.Second, Delay: 2 * time.Minute})}})
		time.Sleep(30 * time.Second)
		if s := w.Stats(); s.Snoozed != 1 || s.Failed != 0 || s.Running != 1 {
			t.Errorf("snoozed %d, failed %d, running %d", s.Snoozed, s.Failed, s.Running)
		}
		q.mustEmpty(10 * time.Minute)
		w.mustStop()
		q.mustHaveHappened(sqsmodel.Received, 3)
	})
}

func TestMessagesThatWaitForATurnAreGivenBackAtTheStop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.MustSend(q.url, "a1", "a2", "a3")
		w := q.start(takes(10*time.Second), worker.Config{WaitTime: time.Second, Middleware: []worker.Middleware{worker.ConcurrencyPerKey(worker.KeyLimit{Key: byBody})}})
		time.Sleep(5 * time.Second)
		w.mustStop()
		q.mustHaveHappened(sqsmodel.Deleted, 1)
		if st := q.state(); st.Visible != 2 || st.InFlight != 0 {
			t.Errorf("%d visible, %d in flight, want the two that waited to be back", st.Visible, st.InFlight)
		}
		if s := w.Stats(); s.Failed != 0 || s.Started != 3 {
			t.Errorf("failed %d, started %d", s.Failed, s.Started)
		}
	})
}

func TestATurnThatNobodyTakesIsPassedOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := worker.ConcurrencyPerKey(worker.KeyLimit{Key: byBody})(takes(10 * time.Second))
		results := make([]error, 4)
		ctx, cancel := context.WithCancelCause(context.Background())
		for i := range results {
			go func() {
				c := context.Background()
				if i == 1 || i == 2 {
					c = ctx
				}
				time.Sleep(time.Duration(i) * time.Millisecond)
				results[i] = h.Handle(c, &worker.Message{Body: "a"})
			}()
		}
		time.Sleep(5 * time.Second)
		cancel(worker.ErrLeaseLost)
		synctest.Wait()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if results[0] != nil || results[3] != nil || !errors.Is(results[1], worker.ErrLeaseLost) || !errors.Is(results[2], worker.ErrLeaseLost) {
			t.Errorf("got %v", results)
		}
	})
}

func TestATurnThatComesAsItsMessageGivesUpIsNotLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := worker.ConcurrencyPerKey(worker.KeyLimit{Key: byBody, MaxWait: time.Second})(takes(time.Second))
		for range 100 { // the turn and the end of the wait come at the same moment, and either may be seen first
			var both sync.WaitGroup
			for range 2 {
				both.Add(1)
				go func() {
					defer both.Done()
					_ = h.Handle(context.Background(), &worker.Message{Body: "a"})
				}()
			}
			both.Wait()
		}
		began := time.Now()
		if err := h.Handle(context.Background(), &worker.Message{Body: "a"}); err != nil || time.Since(began) != time.Second {
			t.Errorf("got %v after %v: a turn was lost", err, time.Since(began))
		}
	})
}

func TestKeyLimitMistakesAreReportedTogether(t *testing.T) {
	q := newQueue(t)
	_, err := worker.New(q.Client(), q.url, worker.HandlerFunc(succeed), worker.Config{Middleware: []worker.Middleware{
		worker.ConcurrencyPerKey(worker.KeyLimit{Limit: -2, MaxWait: time.Microsecond, Delay: time.Millisecond})}})
	for _, text := range []string{"KeyLimit.Key is missing", "KeyLimit.Limit is -2: must be from 1 to 100000", "KeyLimit.MaxWait is 1µs: must be from 1ms to 12h0m0s, or worker.WaitForTurn", "KeyLimit.Delay is 1ms: must be from 1s"} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%q isn't in %v", text, err)
		}
	}
}
