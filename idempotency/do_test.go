package idempotency_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqsworker/sqsworker/idempotency"
	"github.com/sqsworker/sqsworker/worker"
)

type receipt struct {
	Number int
	Text   string
}

func newGuard(t testing.TB, s idempotency.Store, cfg idempotency.Config) *idempotency.Guard {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = silent
	}
	g, err := idempotency.New(s, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func charge(n *atomic.Int32) func(context.Context) (receipt, error) {
	return func(context.Context) (receipt, error) { return receipt{int(n.Add(1)), "paid"}, nil }
}

func TestDoReplaysTheFirstResult(t *testing.T) {
	for name, cacheSize := range map[string]int{"from the table": 0, "from the cache": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGuard(t, newDynamo().newTable(t, testTable), idempotency.Config{CacheSize: cacheSize})
				var n atomic.Int32
				for range 3 {
					got, err := idempotency.Do(t.Context(), g, idempotency.Call{Key: "o1", Payload: []byte("a")}, charge(&n))
					if err != nil || got != (receipt{1, "paid"}) {
						t.Errorf("got %v, %v", got, err)
					}
				}
				var mismatch *idempotency.MismatchError
				if _, err := idempotency.Do(t.Context(), g, idempotency.Call{Key: "o1", Payload: []byte("b")}, charge(&n)); !errors.As(err, &mismatch) {
					t.Errorf("another payload: got %v, want a MismatchError", err)
				}
				if _, err := idempotency.Do(t.Context(), g, idempotency.Call{}, charge(&n)); err == nil {
					t.Error("a call without a key was made")
				}
				if n.Load() != 1 {
					t.Errorf("ran %d times, want once", n.Load())
				}
			})
		})
	}
}

func TestOfAHundredCallsAtOnceOneRuns(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) idempotency.Store{
		"memory": func(*testing.T) idempotency.Store { return &idempotency.MemoryStore{} },
		"dynamo": func(t *testing.T) idempotency.Store { return newDynamo().newTable(t, testTable) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGuard(t, open(t), idempotency.Config{CacheSize: 10})
				var ran, refused atomic.Int32
				var all sync.WaitGroup
				for range 100 {
					all.Go(func() {
						_, err := idempotency.Do(t.Context(), g, idempotency.Call{Key: "k"}, func(context.Context) (int, error) {
							time.Sleep(time.Minute) // two leases
							return int(ran.Add(1)), nil
						})
						var busy *idempotency.InProgressError
						if errors.As(err, &busy) {
							refused.Add(1)
							if left := time.Until(busy.Until); left <= 0 || left > 33*time.Second {
								t.Errorf("in progress for %v more, want up to lease and skew, 32s", left)
							}
						} else if err != nil {
							t.Error(err)
						}
					})
				}
				all.Wait()
				if ran.Load() != 1 || refused.Load() != 99 {
					t.Errorf("%d ran, %d were told that it is in progress: want 1, 99", ran.Load(), refused.Load())
				}
			})
		})
	}
}

func TestAFailureIsNotAResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, &idempotency.MemoryStore{}, idempotency.Config{CacheSize: 5})
		declined := errors.New("declined")
		for try := range 3 {
			_, err := idempotency.Do(t.Context(), g, idempotency.Call{Key: "k"}, func(ctx context.Context) (int, error) {
				c, _ := idempotency.FromContext(ctx)
				if c.Failures() != try {
					t.Errorf("failures %d, want %d", c.Failures(), try)
				}
				return 0, declined
			})
			if !errors.Is(err, declined) {
				t.Errorf("got %v", err)
			}
		}
		got, err := idempotency.Do(t.Context(), g, idempotency.Call{Key: "k"}, func(context.Context) (int, error) { return 7, nil })
		if got != 7 || err != nil {
			t.Errorf("got %d, %v", got, err)
		}
	})
}

func TestAPanicGivesTheClaimUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &idempotency.MemoryStore{}
		g := newGuard(t, store, idempotency.Config{})
		func() {
			defer func() {
				if v := recover(); v != "boom" {
					t.Errorf("recovered %v, want the panic as it was", v)
				}
			}()
			_, _ = idempotency.Do(t.Context(), g, idempotency.Call{Key: "k"}, func(context.Context) (int, error) { panic("boom") })
		}()
		if r := get(t, store, "#k"); r.Owner != "" || r.Failures != 1 {
			t.Errorf("record %+v, want given up and a failure counted", r)
		}
	})
}

func TestACallersCancellationIsAnInterruption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &idempotency.MemoryStore{}
		g := newGuard(t, store, idempotency.Config{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := idempotency.Do(ctx, g, idempotency.Call{Key: "k"}, func(ctx context.Context) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if r := get(t, store, "#k"); r.Owner != "" || r.Failures != 0 || r.Interruptions != 1 {
			t.Errorf("record %+v, want given up and an interruption counted", r)
		}
	})
}

func TestAClaimOutsideOfAWorkerIsRenewedUntilItCannotBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDynamo()
		store := d.newTable(t, testTable)
		g := newGuard(t, store, idempotency.Config{Lease: 9 * time.Second})
		began := time.Now()
		_, err := idempotency.Do(t.Context(), g, idempotency.Call{Key: "k"}, func(ctx context.Context) (int, error) {
			time.Sleep(time.Minute)
			if ctx.Err() != nil {
				t.Errorf("cancelled after %v: %v", time.Since(began), context.Cause(ctx))
			}
			remove := d.inject(fault{op: "UpdateItem", dropBefore: true})
			defer remove()
			last := get(t, store, "#k").Lease
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), idempotency.ErrClaimLost) || time.Now().After(last.Add(time.Millisecond)) {
				t.Errorf("cancelled with %v, %v after the lease had ended", context.Cause(ctx), time.Since(last))
			}
			return 0, ctx.Err()
		})
		if !errors.Is(err, idempotency.ErrClaimLost) || !errors.Is(err, worker.ErrLeaseLost) {
			t.Errorf("got %v, want ErrClaimLost", err)
		}
		if n := d.count("UpdateItem"); n < 21 || n > 120 {
			t.Errorf("%d calls, want 20 renewals, and then several tries of up to four calls each", n)
		}
	})
}

func TestALapsedClaimThatNobodyTookCanStillBeCompleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDynamo()
		g := newGuard(t, d.newTable(t, testTable), idempotency.Config{Lease: 3 * time.Second})
		got, err := idempotency.Do(t.Context(), g, idempotency.Call{Key: "k"}, func(ctx context.Context) (int, error) {
			remove := d.inject(fault{dropBefore: true})
			<-ctx.Done()
			remove()
			return 5, nil
		})
		if got != 5 || err != nil {
			t.Errorf("got %d, %v", got, err)
		}
	})
}

func TestAResultThatIsTooLargeIsNotKeptAndSaidSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDynamo().newTable(t, testTable)
		g := newGuard(t, store, idempotency.Config{})
		big := strings.Repeat("x", idempotency.MaxResultSize)
		got, err := idempotency.Do(t.Context(), g, idempotency.Call{Key: "k"}, func(context.Context) (string, error) { return big, nil })
		if got != big || err != nil {
			t.Errorf("the first call got %d bytes, %v", len(got), err)
		}
		var omitted *idempotency.ResultOmittedError
		if _, err := idempotency.Do(t.Context(), g, idempotency.Call{Key: "k"}, func(context.Context) (string, error) { return "again", nil }); !errors.As(err, &omitted) || omitted.Size != len(big)+2 {
			t.Errorf("the second call got %v, want a ResultOmittedError of %d bytes", err, len(big)+2)
		}
		fits := strings.Repeat("y", idempotency.MaxResultSize-2)
		for range 2 {
			if got, err := idempotency.Do(t.Context(), g, idempotency.Call{Key: "k2"}, func(context.Context) (string, error) { return fits, nil }); got != fits || err != nil {
				t.Errorf("the largest result that fits: got %d bytes, %v", len(got), err)
			}
		}
	})
}

func TestAResultThatCannotBeEncodedOrDecodedIsSaidSo(t *testing.T) {
	var log bytes.Buffer
	g := newGuard(t, &idempotency.MemoryStore{}, idempotency.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if _, err := idempotency.Do(t.Context(), g, idempotency.Call{Key: "k"}, func(context.Context) (func(), error) { return func() {}, nil }); err != nil {
		t.Errorf("got %v: it is done", err)
	}
	if !strings.Contains(log.String(), "can't be encoded") {
		t.Errorf("log: %s", log.String())
	}
	if _, err := idempotency.Do(t.Context(), g, idempotency.Call{Key: "k"}, func(context.Context) (int, error) { return 1, nil }); !errors.Is(err, idempotency.ErrNoResult) {
		t.Errorf("got %v, want ErrNoResult", err)
	}
	if _, err := idempotency.Do(t.Context(), g, idempotency.Call{Key: "k"}, func(context.Context) (struct{}, error) { return struct{}{}, nil }); err != nil {
		t.Errorf("who wants no result got %v", err)
	}
	_, _ = idempotency.Do(t.Context(), g, idempotency.Call{Key: "s"}, func(context.Context) (string, error) { return "text", nil })
	if _, err := idempotency.Do(t.Context(), g, idempotency.Call{Key: "s"}, func(context.Context) (int, error) { return 1, nil }); err == nil || !strings.Contains(err.Error(), "doesn't fit") {
		t.Errorf("a text as an int: %v", err)
	}
}

func TestAResultThatCouldNotBeRecordedIsReturnedWithTheError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDynamo()
		g := newGuard(t, d.newTable(t, testTable), idempotency.Config{})
		got, err := idempotency.Do(t.Context(), g, idempotency.Call{Key: "k"}, func(context.Context) (int, error) {
			d.inject(fault{dropBefore: true})
			return 3, nil
		})
		var store *idempotency.StoreError
		if got != 3 || !errors.As(err, &store) || store.Op != "complete" {
			t.Errorf("got %d, %v", got, err)
		}
	})
}

// In a worker's handler, what Do returns may be returned: each error says what is to become of the message.
func TestDoInAHandlerRidesTheMessagesLeaseAndItsErrorsAreOutcomes(t *testing.T) {
	play(t, func(s *scene) {
		d := newDynamo()
		store := d.newTable(s.t, testTable)
		var charged atomic.Int32
		var results sync.Map
		g := newGuard(s.t, store, idempotency.Config{Namespace: "payments", Lease: time.Second})
		w, err := worker.New(s.Client(), s.url, worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			got, err := idempotency.Do(ctx, g, idempotency.Call{Key: "o1"}, func(ctx context.Context) (receipt, error) {
				time.Sleep(45 * time.Second)
				if ctx.Err() != nil {
					t.Errorf("cancelled: %v", context.Cause(ctx))
				}
				return charge(&charged)(ctx)
			})
			if err == nil {
				results.Store(m.ID, got)
			}
			return err
		}), worker.Config{Logger: silent})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		over := make(chan error)
		go func() { over <- w.Run(ctx) }()
		ids := s.MustSend(s.url, order(1), order(1))
		s.untilEmpty(5 * time.Minute)
		cancel()
		<-over
		for _, id := range ids {
			if got, _ := results.Load(id); got != (receipt{1, "paid"}) {
				t.Errorf("message %s got %v", id, got)
			}
		}
		if st := w.Stats(); charged.Load() != 1 || st.Failed != 0 || st.Snoozed == 0 {
			t.Errorf("charged %d times, failed %d, snoozed %d: want 1, 0, some", charged.Load(), st.Failed, st.Snoozed)
		}
	})
}

func TestAStableKeyIsTheSameForEveryAttemptAndTheFenceGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, newDynamo().newTable(t, testTable), idempotency.Config{Namespace: "n"})
		keys, fences := map[string]bool{}, []int64{}
		for range 3 {
			_, _ = idempotency.Do(t.Context(), g, idempotency.Call{Key: "secret-4111"}, func(ctx context.Context) (int, error) {
				c, _ := idempotency.FromContext(ctx)
				keys[c.Key()] = true
				fences = append(fences, c.Fence())
				if s := fmt.Sprintf("%v %+v %s", c, c, c); strings.Contains(s, "4111") {
					t.Errorf("printing a claim shows its key: %s", s)
				}
				return 0, errors.New("again")
			})
		}
		if len(keys) != 1 || fences[1] <= fences[0] || fences[2] <= fences[1] {
			t.Errorf("keys %v, fences %v", keys, fences)
		}
		for k := range keys {
			if len(k) != 64 || strings.Contains(k, "4111") {
				t.Errorf("key %q", k)
			}
		}
		if _, ok := idempotency.FromContext(t.Context()); ok {
			t.Error("a claim where there is none")
		}
	})
}

func TestARenewalUnderWayHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDynamo()
		g := newGuard(t, d.newTable(t, testTable), idempotency.Config{Lease: 9 * time.Second})
		began := time.Now()
		_, err := idempotency.Do(t.Context(), g, idempotency.Call{Key: "k"}, func(context.Context) (int, error) {
			d.inject(fault{op: "UpdateItem", times: 1, hold: 2 * time.Second}) // the renewal after 3 s
			time.Sleep(4 * time.Second)
			return 0, nil
		})
		if took := time.Since(began); err != nil || took != 4*time.Second {
			t.Errorf("got %v after %v, want 4s", err, took)
		}
		calls := d.count("UpdateItem")
		time.Sleep(time.Minute)
		if n := d.count("UpdateItem"); n != calls {
			t.Errorf("%d calls after the end", n-calls)
		}
	})
}

// racing is a store whose refusals have come to nothing by the time its record is read.
type racing struct {
	idempotency.MemoryStore
	left int
}

func (s *racing) Acquire(ctx context.Context, r idempotency.AcquireRequest) (idempotency.Record, error) {
	if s.left--; s.left >= 0 {
		return idempotency.Record{}, &idempotency.RefusedError{}
	}
	return s.MemoryStore.Acquire(ctx, r)
}

func TestARecordThatWasGivenUpBetweenTheRefusalAndTheLookIsClaimedAgain(t *testing.T) {
	for left, ran := range map[int]bool{3: true, 1000: false} {
		got, err := idempotency.Do(t.Context(), newGuard(t, &racing{left: left}, idempotency.Config{}), idempotency.Call{Key: "k"}, func(context.Context) (int, error) { return 1, nil })
		var busy *idempotency.InProgressError
		if ran && (got != 1 || err != nil) || !ran && !errors.As(err, &busy) {
			t.Errorf("%d refusals: got %d, %v", left, got, err)
		}
	}
}

func TestAnotherPayloadsOutcomeIsNotThisOnes(t *testing.T) {
	store := &idempotency.MemoryStore{}
	_, err := idempotency.Do(t.Context(), newGuard(t, store, idempotency.Config{}), idempotency.Call{Key: "k", Payload: []byte("a")}, func(ctx context.Context) (int, error) {
		c, _ := idempotency.FromContext(ctx)
		must(t, store.Release(ctx, "#k", c.Owner(), idempotency.PutOff))
		mustAcquire(t, store, request("#k", "intruder", time.Minute))
		return 1, store.Complete(ctx, "#k", "intruder", done("2"))
	})
	var mismatch *idempotency.MismatchError
	if !errors.As(err, &mismatch) {
		t.Errorf("got %v, want a MismatchError", err)
	}
}

func TestARefusedCallOfTheTableIsNotFollowedByAnother(t *testing.T) {
	d := newDynamo()
	g := newGuard(t, d.newTable(t, testTable), idempotency.Config{})
	d.inject(fault{code: "AccessDeniedException"})
	_, err := idempotency.Do(t.Context(), g, idempotency.Call{Key: "k"}, func(context.Context) (int, error) { return 1, nil })
	if n := d.count("UpdateItem"); err == nil || n != 1 {
		t.Errorf("got %v after %d calls, want an error after 1", err, n)
	}
}

// A handler may go on after a part of its work was found to be another's.
func TestAPartThatWasOvertakenDoesNotTakeTheMessageAway(t *testing.T) {
	play(t, func(s *scene) {
		s.dynamo.newTable(s.t, "effects")
		g := newGuard(s.t, s.store, idempotency.Config{})
		w, err := worker.New(s.Client(), s.url, worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			_, err := idempotency.Do(ctx, g, idempotency.Call{Key: "part"}, func(ctx context.Context) (int, error) {
				c, _ := idempotency.FromContext(ctx)
				must(t, s.store.Release(ctx, "#part", c.Owner(), idempotency.PutOff))
				_, err := s.store.Acquire(ctx, request("#part", "intruder", time.Hour))
				must(t, err)
				return 0, c.Commit(ctx, add("effects", "a"))
			})
			if !errors.Is(err, idempotency.ErrClaimLost) {
				t.Errorf("got %v", err)
			}
			time.Sleep(time.Minute)
			return context.Cause(ctx)
		}), worker.Config{Logger: silent})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		over := make(chan error)
		go func() { over <- w.Run(ctx) }()
		s.MustSend(s.url, order(1))
		s.untilEmpty(2 * time.Minute)
		cancel()
		<-over
		if st := w.Stats(); st.Succeeded != 1 || st.Lost != 0 {
			t.Errorf("succeeded %d, lost %d: want 1, 0", st.Succeeded, st.Lost)
		}
	})
}
