package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/idempotency"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

func TestAFreshMessageCostsTwoWritesADuplicateOneACachedOneNone(t *testing.T) {
	play(t, func(s *scene) {
		var ran tally
		cfg := byOrder()
		handle := func(_ context.Context, m *worker.Message) error { ran.add(m.Body); return nil }
		p := s.run(handle, cfg, worker.Config{})
		s.MustSend(s.url, order(1))
		s.untilEmpty(time.Minute)
		if n := s.dynamo.writes(); n != 2 {
			t.Errorf("a fresh message cost %d writes, want 2", n)
		}
		s.MustSend(s.url, order(1)) // the producer sends again: another MessageId
		s.untilEmpty(time.Minute)
		if n := s.dynamo.writes(); n != 3 {
			t.Errorf("a duplicate cost %d writes, want 1", n-2)
		}
		p.stop()
		cfg.CacheSize = 10
		cached := s.run(handle, cfg, worker.Config{})
		s.MustSend(s.url, order(1)) // fills the cache
		s.untilEmpty(time.Minute)
		before := s.dynamo.writes()
		s.MustSend(s.url, order(1))
		s.untilEmpty(time.Minute)
		if n := s.dynamo.writes(); n != before {
			t.Errorf("a cached duplicate cost %d writes, want none", n-before)
		}
		if reads := s.dynamo.count("GetItem"); reads != 0 {
			t.Errorf("%d reads, want none", reads)
		}
		ran.want(t, order(1), 1)
		if a, b := p.Stats().Suppressed, cached.Stats().Suppressed; a != 1 || b != 2 {
			t.Errorf("suppressed %d and %d, want 1 and 2", a, b)
		}
		if st := cached.guard.Stats(); st.Cached != 1 || st.Duplicates != 2 {
			t.Errorf("stats %+v, want 1 cached of 2 duplicates", st)
		}
	})
}

func TestADuplicateOfOneInProgressIsDeferredByTheRemainingLeaseAndNotFailed(t *testing.T) {
	play(t, func(s *scene) {
		var ran tally
		handle := func(ctx context.Context, m *worker.Message) error {
			ran.add(m.Body)
			time.Sleep(15 * time.Second)
			return nil
		}
		a := s.run(handle, byOrder(), worker.Config{})
		b := s.run(handle, byOrder(), worker.Config{})
		s.MustSend(s.url, order(1))
		s.until(time.Second, "one runs", func() bool { return ran.of(order(1)) == 1 })
		again := s.MustSend(s.url, order(1))[0]
		s.untilEmpty(3 * time.Minute)
		ran.want(t, order(1), 1)
		deferred := 0
		for _, e := range s.Journal() {
			if e.MessageID != again || e.Kind != sqsmodel.VisibilityChanged {
				continue
			}
			deferred++
			if e.VisibilityTimeout < 30*time.Second || e.VisibilityTimeout > 45*time.Second { // lease 30 s, skew 2 s, jitter
				t.Errorf("deferred by %v, want the remaining lease, skew and jitter: 33s to 38s", e.VisibilityTimeout)
			}
		}
		if deferred != 1 {
			t.Errorf("deferred %d times, want once", deferred)
		}
		if f, sn := a.Stats().Failed+b.Stats().Failed, a.Stats().Snoozed+b.Stats().Snoozed; f != 0 || sn != 1 {
			t.Errorf("failed %d, snoozed %d: want 0, 1", f, sn)
		}
	})
}

func TestOfTwoDeliveriesAtOnceOneRunsAndTheOtherIsNotDeletedBeforeItIsDone(t *testing.T) { // check-then-act charged twice
	play(t, func(s *scene) {
		var ran tally
		var completed atomic.Bool
		handle := func(ctx context.Context, m *worker.Message) error {
			ran.add(m.Body)
			time.Sleep(10 * time.Second)
			completed.Store(true)
			return nil
		}
		remove := s.OnEvent(func(e sqsmodel.Event) {
			if e.Kind == sqsmodel.Deleted && !completed.Load() {
				t.Errorf("message %s was deleted before anybody had done its work", e.MessageID)
			}
		})
		defer remove()
		s.run(handle, byOrder(), worker.Config{})
		s.run(handle, byOrder(), worker.Config{})
		s.MustSend(s.url, order(1), order(1))
		s.untilEmpty(3 * time.Minute)
		ran.want(t, order(1), 1)
	})
}

func TestACrashLeavesAClaimThatOthersTakeOverWhenItsLeaseIsOver(t *testing.T) { // never refused until the TTL, never deleted as done
	play(t, func(s *scene) {
		var ran tally
		var first *process
		var took time.Duration
		began := time.Now()
		handle := func(ctx context.Context, m *worker.Message) error {
			c, _ := idempotency.FromContext(ctx)
			if ran.add(m.Body) == 1 {
				first.kill()
				<-ctx.Done()
				return ctx.Err()
			}
			took = time.Since(began)
			if c.Vanished() != 1 || c.Failures() != 0 || m.Attempt != 1 {
				t.Errorf("vanished %d, failures %d, attempt %d: want 1, 0, 1", c.Vanished(), c.Failures(), m.Attempt)
			}
			return nil
		}
		first = s.run(handle, byOrder(), worker.Config{DrainTimeout: 2 * time.Second})
		s.MustSend(s.url, order(1))
		s.until(time.Second, "it has been killed", func() bool { return ran.of(order(1)) == 1 })
		s.run(handle, byOrder(), worker.Config{})
		s.untilEmpty(3 * time.Minute)
		ran.want(t, order(1), 2)
		if took > 70*time.Second {
			t.Errorf("taken over after %v, want within two visibilities of 30s", took)
		}
		if r := s.record("1"); r.Status != idempotency.Completed {
			t.Errorf("record %+v", r)
		}
	})
}

func TestTheClaimIsRenewedWithTheVisibilityWhileWorkGoesOn(t *testing.T) { // claim expires while work continues: double effect
	play(t, func(s *scene) {
		var ran tally
		handle := func(ctx context.Context, m *worker.Message) error {
			ran.add(m.Body)
			for range 100 { // 100 s, three leases
				time.Sleep(time.Second)
				deadline, _ := worker.LeaseDeadline(ctx)
				if r := s.record("1"); r.Lease.Before(deadline.Add(-time.Millisecond)) {
					t.Errorf("the claim ends %v before the visibility", deadline.Sub(r.Lease))
				}
			}
			return nil
		}
		s.run(handle, byOrder(), worker.Config{})
		s.run(handle, byOrder(), worker.Config{})
		s.MustSend(s.url, order(1))
		s.until(time.Second, "one runs", func() bool { return ran.of(order(1)) == 1 })
		s.MustSend(s.url, order(1))
		s.untilEmpty(5 * time.Minute)
		ran.want(t, order(1), 1)
	})
}

func TestAHandlerIsCancelledBeforeEitherLeaseRunsOutWhenTheClaimCannotBeRenewed(t *testing.T) {
	faults := map[string]fault{"no answer": {op: "UpdateItem", stall: true}, "refused": {op: "UpdateItem", code: "AccessDeniedException"}, "broken": {op: "UpdateItem", dropBefore: true}}
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *scene) {
				var ran tally
				handle := func(ctx context.Context, m *worker.Message) error {
					if ran.add(m.Body) > 1 {
						return nil
					}
					remove := s.dynamo.inject(f)
					<-ctx.Done()
					if cause := context.Cause(ctx); !errors.Is(cause, worker.ErrLeaseLost) {
						t.Errorf("the context ended with %v", cause)
					}
					remove()
					now := time.Now()
					if r := s.record("1"); now.After(r.Lease) {
						t.Errorf("cancelled %v after the claim had ended", now.Sub(r.Lease))
					}
					for _, m := range s.Queue("orders").Messages {
						if m.State != sqsmodel.InFlight {
							t.Errorf("cancelled after the visibility had ended")
						}
					}
					return context.Cause(ctx)
				}
				p := s.run(handle, byOrder(), worker.Config{})
				s.MustSend(s.url, order(1))
				s.untilEmpty(3 * time.Minute)
				ran.want(t, order(1), 2)
				if st := p.Stats(); st.Lost != 1 || st.Failed != 0 {
					t.Errorf("lost %d, failed %d: want 1, 0", st.Lost, st.Failed)
				}
			})
		})
	}
}

func TestATakenOverAttemptIsCancelledAtOnceAndItsMessageIsNotDeleted(t *testing.T) {
	play(t, func(s *scene) {
		var ran tally
		handle := func(ctx context.Context, m *worker.Message) error {
			if ran.add(m.Body) > 1 {
				return nil
			}
			s.takeOver(order(1))
			began := time.Now()
			<-ctx.Done()
			if after := time.Since(began); after > 11*time.Second { // renewals come every 10 s
				t.Errorf("cancelled after %v, want at the next renewal", after)
			}
			if !errors.Is(context.Cause(ctx), worker.ErrLeaseLost) {
				t.Errorf("the context ended with %v", context.Cause(ctx))
			}
			return nil // it didn't notice
		}
		p := s.run(handle, byOrder(), worker.Config{})
		s.MustSend(s.url, order(1))
		s.until(20*time.Second, "the first attempt is over", func() bool { return p.Stats().Lost == 1 })
		if st := p.Stats(); st.Deleted != 0 || st.Succeeded != 0 || st.Failed != 0 {
			t.Errorf("deleted %d, succeeded %d, failed %d: want none", st.Deleted, st.Succeeded, st.Failed)
		}
		if r := s.record("1"); r.Owner != "intruder" || r.Status != idempotency.InProgress {
			t.Errorf("the record is %+v", r)
		}
		s.untilEmpty(5 * time.Minute) // the intruder's lease ends
		ran.want(t, order(1), 2)
	})
}

// takeOver puts another owner into the record, as a process with a fast clock would.
func (s *scene) takeOver(body string) {
	s.t.Helper()
	ctx := context.Background()
	owner := s.record("1").Owner
	if err := s.store.Extend(ctx, "orders#1", owner, time.Now().Add(-time.Hour), time.Now().Add(time.Hour)); err != nil {
		s.t.Error(err)
	}
	now := time.Now()
	if _, err := s.store.Acquire(ctx, idempotency.AcquireRequest{ID: "orders#1", Owner: "intruder", Payload: "-", Lease: now.Add(time.Minute), Expires: now.Add(time.Hour)}); err != nil {
		s.t.Error(err)
	}
}

func TestASuccessWhoseCompletionIsRefusedIsNotDeleted(t *testing.T) {
	play(t, func(s *scene) {
		var ran tally
		handle := func(ctx context.Context, m *worker.Message) error {
			if ran.add(m.Body) == 1 {
				s.takeOver(order(1))
			}
			return nil
		}
		p := s.run(handle, byOrder(), worker.Config{})
		id := s.MustSend(s.url, order(1))[0]
		s.until(20*time.Second, "it has been refused", func() bool { return p.guard.Stats().Lost == 1 })
		synctest.Wait()
		for _, e := range s.Journal() {
			if e.MessageID == id && (e.Kind == sqsmodel.Deleted || e.Kind == sqsmodel.VisibilityChanged) {
				t.Errorf("%v was written", e.Kind)
			}
		}
		if st := p.Stats(); st.Failed != 0 || st.Lost != 1 {
			t.Errorf("failed %d, lost %d: want 0, 1", st.Failed, st.Lost)
		}
		s.untilEmpty(5 * time.Minute)
		ran.want(t, order(1), 2)
	})
}

func TestASuccessThatMeetsAnothersOutcomeIsADuplicate(t *testing.T) { // lease lost, the other has completed
	play(t, func(s *scene) {
		handle := func(ctx context.Context, m *worker.Message) error {
			s.takeOver(order(1))
			return s.store.Complete(context.Background(), "orders#1", "intruder", idempotency.Completion{Expires: time.Now().Add(time.Hour)})
		}
		p := s.run(handle, byOrder(), worker.Config{})
		s.MustSend(s.url, order(1))
		s.untilEmpty(5 * time.Second)
		if st := p.Stats(); st.Suppressed != 1 {
			t.Errorf("suppressed %d, want 1", st.Suppressed)
		}
		if r := s.record("1"); r.Owner != "intruder" {
			t.Errorf("the outcome changed hands: %+v", r)
		}
	})
}

func TestALostAnswerDoesNotMakeARivalOfOneself(t *testing.T) { // conditional put applied, answer lost, the retry sees its own record
	for _, c := range []struct {
		name string
		skip int // UpdateItem calls before the one whose answer is lost
	}{{"claim", 0}, {"completion", 1}} {
		t.Run(c.name, func(t *testing.T) {
			play(t, func(s *scene) {
				var calls atomic.Int32
				s.dynamo.inject(fault{op: "UpdateItem", times: 1, dropAfter: true, match: func(string) bool { return int(calls.Add(1)) == c.skip+1 }})
				var ran tally
				p := s.run(func(_ context.Context, m *worker.Message) error { ran.add(m.Body); return nil }, byOrder(), worker.Config{})
				s.MustSend(s.url, order(1))
				s.untilEmpty(5 * time.Second)
				ran.want(t, order(1), 1)
				if st := p.Stats(); st.Failed+st.Snoozed+st.Unavailable != 0 || st.Succeeded != 1 {
					t.Errorf("stats %+v", st)
				}
				if r := s.record("1"); r.Status != idempotency.Completed {
					t.Errorf("record %+v", r)
				}
			})
		})
	}
}

func TestADeleteThatFailedIsMadeUpForWithoutARun(t *testing.T) { // dies between completion and delete; here and in another process
	play(t, func(s *scene) {
		var ran tally
		handle := func(_ context.Context, m *worker.Message) error { ran.add(m.Body); return nil }
		remove := s.Inject(sqsmodel.Fault{Action: "DeleteMessageBatch", DropBefore: true})
		first := s.run(handle, byOrder(), worker.Config{})
		s.MustSend(s.url, order(1))
		s.until(time.Second, "it has run", func() bool { return ran.of(order(1)) == 1 })
		first.kill()
		remove()
		second := s.run(handle, byOrder(), worker.Config{})
		s.untilEmpty(2 * time.Minute)
		ran.want(t, order(1), 1)
		if n := second.Stats().Suppressed; n != 1 {
			t.Errorf("suppressed %d, want 1", n)
		}
	})
}

func TestARedriveFromTheDeadLetterQueueIsKnownByItsBusinessKey(t *testing.T) {
	play(t, func(s *scene) {
		var ran tally
		s.run(func(_ context.Context, m *worker.Message) error { ran.add(m.Body); return nil }, byOrder(), worker.Config{})
		s.MustSend(s.url, order(1))
		s.untilEmpty(time.Minute)
		s.MustSend(s.Queue("orders-dead").URL, order(1)) // a delete that came too late: it was dead-lettered meanwhile
		arn := s.Queue("orders-dead").ARN
		if _, err := s.Client().StartMessageMoveTask(context.Background(), &sqs.StartMessageMoveTaskInput{SourceArn: &arn, DestinationArn: ptr(s.Queue("orders").ARN)}); err != nil {
			t.Fatal(err)
		}
		s.until(time.Minute, "it has been moved and deleted", func() bool {
			return len(s.Queue("orders-dead").Messages) == 0 && len(s.Queue("orders").Messages) == 0
		})
		ran.want(t, order(1), 1)
	})
}

func ptr[T any](v T) *T { return &v }

func TestTheSameKeyWithAnotherPayloadIsAPermanentFailure(t *testing.T) {
	for _, cached := range []int{0, 10} {
		play(t, func(s *scene) {
			var ran tally
			sink := &sink{}
			cfg := byOrder()
			cfg.CacheSize = cached
			s.run(func(_ context.Context, m *worker.Message) error { ran.add(m.Body); return nil }, cfg, worker.Config{DeadLetter: sink})
			s.MustSend(s.url, order(1))
			s.untilEmpty(time.Minute)
			other := `{"order":1,"amount":999}`
			s.MustSend(s.url, other)
			s.untilEmpty(time.Minute)
			ran.want(t, other, 0)
			var mismatch *idempotency.MismatchError
			if reason := sink.reason(); !errors.As(reason, &mismatch) || mismatch.Key != "orders#1" {
				t.Errorf("dead-lettered with %v, want a MismatchError", reason)
			}
		})
	}
}

// sink is a dead-letter sink.
type sink struct {
	mu      sync.Mutex
	reasons []error
}

func (s *sink) DeadLetter(_ context.Context, _ *worker.Message, reason error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reasons = append(s.reasons, reason)
	return nil
}

func (s *sink) reason() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.reasons) == 0 {
		return nil
	}
	return s.reasons[len(s.reasons)-1]
}

func TestOnlyTheChosenFieldsOfAPayloadAreCompared(t *testing.T) {
	play(t, func(s *scene) {
		var runs atomic.Int32
		cfg := byOrder()
		cfg.Payload = idempotency.Fields("amount", "lines")
		p := s.run(func(context.Context, *worker.Message) error { runs.Add(1); return nil }, cfg, worker.Config{})
		s.MustSend(s.url, `{"order":1,"amount":5.0,"lines":[{"a":1,"b":2}],"sent":"10:00"}`)
		s.untilEmpty(time.Minute)
		s.MustSend(s.url, `{"sent":"10:05", "lines":[{"b":2,"a":1}], "amount":5.0, "order":1}`)
		s.untilEmpty(time.Minute)
		if n := runs.Load(); n != 1 || p.guard.Stats().Mismatches != 0 {
			t.Errorf("%d runs, %d mismatches: want 1, 0", n, p.guard.Stats().Mismatches)
		}
	})
}

func TestAnUnreachableTableStopsTheWorkAndOpensTheBreaker(t *testing.T) {
	for name, f := range map[string]fault{
		"connection refused": {dropBefore: true},
		"no answer":          {stall: true},
		"no such table":      {code: "ResourceNotFoundException"},
		"access denied":      {code: "AccessDeniedException"},
		"throttled":          {code: "ProvisionedThroughputExceededException"},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *scene) {
				var ran tally
				remove := s.dynamo.inject(f)
				p := s.run(func(_ context.Context, m *worker.Message) error { ran.add(m.Body); return nil }, byOrder(), worker.Config{})
				s.MustSend(s.url, order(1))
				s.until(time.Minute, "the breaker is open", func() bool { return p.Stats().Unavailable > 0 })
				if n := ran.of(order(1)); n != 0 || p.Stats().Failed != 0 {
					t.Errorf("ran %d times, failed %d: want neither", n, p.Stats().Failed)
				}
				remove()
				s.untilEmpty(10 * time.Minute)
				ran.want(t, order(1), 1)
			})
		})
	}
}

func TestAnAmbiguousClaimIsGivenUpSoThatTheNextAttemptNeedNotWait(t *testing.T) {
	play(t, func(s *scene) {
		s.dynamo.inject(fault{op: "UpdateItem", times: 4, dropAfter: true}) // the SDK's four attempts
		var ran tally
		p := s.run(func(_ context.Context, m *worker.Message) error { ran.add(m.Body); return nil }, byOrder(), worker.Config{})
		s.MustSend(s.url, order(1))
		s.until(10*time.Second, "it is unavailable", func() bool { return p.Stats().Unavailable == 1 })
		if r := s.record("1"); r.Owner != "" || r.Attempts != 0 || !r.Lease.IsZero() {
			t.Errorf("the record is still claimed: %+v", r)
		}
		s.untilEmpty(5 * time.Minute)
		ran.want(t, order(1), 1)
	})
}

func TestFailuresAreCountedInTheRecordAndReleasesAndStopsAreNot(t *testing.T) {
	play(t, func(s *scene) {
		var attempts []int
		var failures, interruptions []int
		var mu sync.Mutex
		handle := func(ctx context.Context, m *worker.Message) error {
			c, ok := idempotency.FromContext(ctx)
			if !ok {
				t.Error("no claim in the handler's context")
			}
			mu.Lock()
			defer mu.Unlock()
			attempts, failures, interruptions = append(attempts, m.Attempt), append(failures, c.Failures()), append(interruptions, c.Interruptions())
			switch len(attempts) {
			case 1:
				return errors.New("no")
			case 2:
				return worker.Snooze(time.Second)
			case 3:
				return worker.RetryAfter(time.Second, errors.New("no"))
			case 4:
				return worker.Unavailable(errors.New("down"))
			case 5:
				panic("no")
			case 6:
				return worker.Permanent(errors.New("no"))
			}
			return nil
		}
		// A fresh worker for each attempt: what the record counts, all of them share.
		s.MustSend(s.url, order(1))
		for n := 1; n <= 7; n++ {
			p := s.run(handle, byOrder(), worker.Config{Backoff: worker.Backoff{Min: time.Second, Max: time.Second}, DrainTimeout: 2 * time.Second})
			s.until(10*time.Minute, fmt.Sprint("attempt ", n), func() bool { mu.Lock(); defer mu.Unlock(); return len(attempts) == n })
			p.stop()
		}
		if got, want := fmt.Sprint(attempts, failures, interruptions), "[1 2 2 3 3 4 5] [0 1 1 2 2 3 4] [0 0 0 0 1 1 1]"; got != want {
			t.Errorf("attempts, failures, interruptions %s, want %s", got, want)
		}
		if r := s.record("1"); r.Status != idempotency.Completed || r.Failures != 0 {
			t.Errorf("record %+v", r)
		}
	})
}

func TestAHandlerThatAStopInterruptsGivesItsClaimBackAndHasNotFailed(t *testing.T) {
	play(t, func(s *scene) {
		var ran tally
		handle := func(ctx context.Context, m *worker.Message) error {
			if ran.add(m.Body) > 1 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}
		p := s.run(handle, byOrder(), worker.Config{DrainTimeout: 10 * time.Second})
		s.MustSend(s.url, order(1))
		s.until(time.Second, "it runs", func() bool { return ran.of(order(1)) == 1 })
		p.stop()
		if p.err != nil {
			t.Errorf("Run returned %v", p.err)
		}
		if r := s.record("1"); r.Interruptions != 1 || r.Failures != 0 || r.Owner != "" {
			t.Errorf("record %+v, want one interruption and no owner", r)
		}
		began := time.Now()
		s.run(handle, byOrder(), worker.Config{})
		s.untilEmpty(10 * time.Second)
		ran.want(t, order(1), 2)
		if took := time.Since(began); took > time.Second {
			t.Errorf("the next attempt waited %v, want none", took)
		}
	})
}

func TestAStopIsNotHeldUpByATableThatIsDown(t *testing.T) {
	play(t, func(s *scene) {
		var ran tally
		handle := func(ctx context.Context, m *worker.Message) error {
			ran.add(m.Body)
			s.dynamo.inject(fault{stall: true})
			<-ctx.Done()
			return nil // done, just in time; but that can't be recorded
		}
		p := s.run(handle, byOrder(), worker.Config{DrainTimeout: 20 * time.Second})
		s.MustSend(s.url, order(1))
		s.until(time.Second, "it runs", func() bool { return ran.of(order(1)) == 1 })
		began := time.Now()
		p.stop()
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("the drain took %v, want at most 20s", took)
		}
		if n := len(s.Queue("orders").Messages); n != 1 {
			t.Errorf("%d messages left, want the one whose outcome isn't recorded", n)
		}
	})
}

func TestACompletionIsTriedAgainWhileTheLeaseLasts(t *testing.T) {
	for name, f := range map[string]fault{
		"table down for a while":   {op: "UpdateItem", times: 20, dropBefore: true},
		"conflict with a transact": {op: "UpdateItem", times: 3, code: "TransactionConflictException"},
		"replication conflict":     {op: "UpdateItem", times: 3, code: "ReplicatedWriteConflictException"},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *scene) {
				var ran tally
				handle := func(_ context.Context, m *worker.Message) error {
					ran.add(m.Body)
					s.dynamo.inject(f)
					return nil
				}
				p := s.run(handle, byOrder(), worker.Config{})
				s.MustSend(s.url, order(1))
				s.untilEmpty(30 * time.Second)
				ran.want(t, order(1), 1)
				if st := p.Stats(); st.Succeeded != 1 || st.Unavailable != 0 {
					t.Errorf("stats %+v", st)
				}
			})
		})
	}
}

func TestAnExpiredRecordIsNewWorkAlthoughDynamoDBHasNotRemovedIt(t *testing.T) { // TTL deletion lags by days
	play(t, func(s *scene) {
		var ran tally
		cfg := byOrder()
		cfg.Retention = time.Hour
		cfg.CacheSize = 10
		s.run(func(_ context.Context, m *worker.Message) error { ran.add(m.Body); return nil }, cfg, worker.Config{})
		s.MustSend(s.url, order(1))
		s.untilEmpty(time.Minute)
		time.Sleep(59 * time.Minute)
		s.MustSend(s.url, order(1))
		s.untilEmpty(time.Minute)
		ran.want(t, order(1), 1)
		time.Sleep(2 * time.Minute)
		s.MustSend(s.url, order(1))
		s.untilEmpty(time.Minute)
		ran.want(t, order(1), 2)
	})
}

func TestDuplicatesOnAFIFOQueueAfterItsFiveMinutesAreSuppressed(t *testing.T) { // an expired handle: the delete fails, the message comes again
	synctest.Test(t, func(t *testing.T) {
		server := sqsmodel.New(sqsmodel.Config{})
		url := server.MustCreateQueue("orders.fifo", map[string]string{"FifoQueue": "true", "ContentBasedDeduplication": "true", "VisibilityTimeout": "2"})
		var ran tally
		mw := idempotency.Middleware(&idempotency.MemoryStore{}, idempotency.Config{Key: idempotency.DeduplicationID, Skew: idempotency.NoSkew})
		cfg := worker.Config{Middleware: []worker.Middleware{mw}, HeartbeatInterval: worker.NoHeartbeat, Logger: silent}
		w, err := worker.New(server.Client(), url, worker.HandlerFunc(func(_ context.Context, m *worker.Message) error {
			if ran.add(m.Body) == 1 {
				time.Sleep(3 * time.Second) // beyond the visibility: the handle expires
			}
			return nil
		}), cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error)
		go func() { over <- w.Run(ctx) }()
		server.MustSendGroup(url, "g", order(1))
		time.Sleep(20 * time.Second)
		if n := len(server.Queue(url).Messages); n != 0 {
			t.Errorf("%d messages left", n)
		}
		ran.want(t, order(1), 1)
		cancel()
		<-over
	})
}

func TestAMessageWithoutItsKeyIsAPermanentFailureThatDoesNotQuoteTheBody(t *testing.T) {
	secret := "4111-1111-1111-1111"
	for name, c := range map[string]struct {
		key  idempotency.KeyFunc
		body string
	}{
		"no such field":      {idempotency.JSONField("order"), `{"card":"` + secret + `"}`},
		"null":               {idempotency.JSONField("order"), `{"order":null,"card":"` + secret + `"}`},
		"empty":              {idempotency.JSONField("order"), `{"order":"","card":"` + secret + `"}`},
		"not JSON":           {idempotency.JSONField("order"), secret},
		"more than one":      {idempotency.JSONField("order"), `{"order":1} ` + `"` + secret + `"`},
		"no attribute":       {idempotency.Attribute("order"), secret},
		"no deduplication":   {idempotency.DeduplicationID, secret},
		"a key that's empty": {func(*worker.Message) (string, error) { return "", nil }, secret},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := idempotency.New(&idempotency.MemoryStore{}, idempotency.Config{Key: c.key})
			must(t, err)
			h := g.Middleware(worker.HandlerFunc(func(context.Context, *worker.Message) error { t.Error("it ran"); return nil }))
			err = h.Handle(t.Context(), &worker.Message{ID: "m", Body: c.body, QueueURL: "https://sqs/1/orders"})
			if err == nil || !strings.HasPrefix(err.Error(), "permanent: idempotency: no key: ") || strings.Contains(err.Error(), "4111") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestWorkerNewReportsTheMiddlewaresMistakes(t *testing.T) {
	cfg := idempotency.Config{Namespace: "a#b", Retention: time.Second, Skew: time.Hour, Lease: time.Millisecond, CallTimeout: time.Hour, MaxResult: -1, CacheSize: -1}
	_, err := worker.New(sqsmodel.New(sqsmodel.Config{}).Client(), "https://sqs.us-east-1.amazonaws.com/1/q", worker.HandlerFunc(func(context.Context, *worker.Message) error { return nil }),
		worker.Config{Middleware: []worker.Middleware{idempotency.Middleware(nil, cfg)}})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, field := range []string{"no store", "Namespace", "Retention", "Skew", "Lease", "CallTimeout", "MaxResult", "CacheSize"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("says nothing of %s: %v", field, err)
		}
	}
}
