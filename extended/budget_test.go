package extended

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestTheBudgetIsFairAndLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(100)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(b.acquire(t.Context(), 60))
		var mu sync.Mutex
		var order []int64
		enter := func(ctx context.Context, bytes int64) {
			go func() {
				if b.acquire(ctx, bytes) == nil {
					mu.Lock()
					order = append(order, bytes)
					mu.Unlock()
					time.Sleep(time.Second)
					b.release(bytes)
				}
			}()
			synctest.Wait()
		}
		ctx, cancel := context.WithCancelCause(context.Background())
		enter(ctx, 90)                  // gives up
		enter(context.Background(), 99) // large: those behind don't overtake it
		enter(context.Background(), 1)
		enter(context.Background(), 500) // more than all of it: alone
		enter(context.Background(), 2)
		if used, waiting := b.now(); used != 60 || waiting != 5 {
			t.Errorf("%d used, %d wait", used, waiting)
		}
		cancel(errors.New("enough"))
		synctest.Wait()
		b.release(60)
		time.Sleep(10 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(order[2:], []int64{500, 2}) || order[0]+order[1] != 100 {
			t.Errorf("order %v", order)
		}
		if used, waiting := b.now(); used != 0 || waiting != 0 {
			t.Errorf("%d used, %d wait", used, waiting)
		}
		if err := b.acquire(ctx, 1); err == nil || err.Error() != "enough" {
			t.Errorf("%v", err)
		}
	})
}

func TestGivingUpLetsThoseBehindIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(100)
		_ = b.acquire(t.Context(), 60)
		ctx, cancel := context.WithCancel(context.Background())
		go func() { _ = b.acquire(ctx, 100) }()
		synctest.Wait()
		in := make(chan error, 1)
		go func() { in <- b.acquire(context.Background(), 40) }()
		synctest.Wait()
		cancel()
		if err := <-in; err != nil {
			t.Error(err)
		}
		if used, _ := b.now(); used != 100 {
			t.Errorf("%d used", used)
		}
	})
}

func TestTheBudgetUnderEverybodyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(100)
		var all sync.WaitGroup
		for i := range 500 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i%7+1)*20*time.Millisecond)
				defer cancel()
				bytes := int64(i%120 + 1)
				if b.acquire(ctx, bytes) != nil {
					return
				}
				if used, _ := b.now(); used > 100 {
					t.Errorf("%d used", used)
				}
				time.Sleep(time.Millisecond)
				b.release(bytes)
			})
		}
		all.Wait()
		if used, waiting := b.now(); used != 0 || waiting != 0 {
			t.Errorf("%d used, %d wait", used, waiting)
		}
	})
}

func TestRemovalsOutliveTheirLeader(t *testing.T) {
	// The one that would make the call is stopped while it waits for company: the others' removals are made all the same.
	synctest.Test(t, func(t *testing.T) {
		s := &deletes{}
		p, err := newPayloads(s, Config{Bucket: "b"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		results := make(chan error, 2)
		go func() { results <- p.remover.remove(ctx, Pointer{Bucket: "b", Key: "first"}) }()
		synctest.Wait()
		go func() { results <- p.remover.remove(context.Background(), Pointer{Bucket: "b", Key: "second"}) }()
		synctest.Wait()
		cancel()
		a, b := <-results, <-results
		if (a == nil) == (b == nil) || !slices.Contains(s.keys, "second") {
			t.Errorf("%v, %v, removed %v", a, b, s.keys)
		}
	})
}

func TestRemovalsLeaveInCallsOfAThousand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &deletes{}
		p, err := newPayloads(s, Config{Bucket: "b"})
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 2500 {
			all.Go(func() {
				if err := p.remover.remove(context.Background(), Pointer{Bucket: "b", Key: p.cfg.newKey()}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if len(s.keys) != 2500 || s.calls != 3 || s.most > 1000 {
			t.Errorf("%d removed in %d calls of at most %d", len(s.keys), s.calls, s.most)
		}
	})
}
