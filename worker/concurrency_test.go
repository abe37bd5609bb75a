package worker_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

func TestConcurrencyCanBeLoweredAndRaisedWhileTheWorkerRuns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueueAt(t, sqsmodel.Config{Latency: 5 * time.Millisecond}, "VisibilityTimeout", "60")
		ids := q.send(400)
		var r runs
		w := q.start(r.handler(takes(time.Second)), worker.Config{Concurrency: 40})
		time.Sleep(500 * time.Millisecond)
		if n := r.now(); n != 40 {
			t.Errorf("%d handlers run, want 40", n)
		}
		if err := w.SetConcurrency(4); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond)
		if n := r.now(); n != 40 {
			t.Errorf("%d handlers run after it was lowered: what runs is not interrupted", n)
		}
		for range 20 {
			time.Sleep(700 * time.Millisecond)
			if n, s := r.now(), w.Stats(); n > 4 || s.Held-s.Unsettled > 4 {
				t.Fatalf("%d handlers run, %d are held of which %d are being settled, want at most 4", n, s.Held, s.Unsettled)
			}
		}
		for _, n := range []int{60, 2, 100} {
			if err := w.SetConcurrency(n); err != nil {
				t.Fatal(err)
			}
			if got := w.Concurrency(); got != n {
				t.Errorf("it is %d, want %d", got, n)
			}
			time.Sleep(1500 * time.Millisecond)
		}
		if n := r.now(); n < 50 {
			t.Errorf("%d handlers run after it was raised to 100", n)
		}
		q.mustEmpty(time.Minute)
		r.mustHaveRunOnce(t, ids)
		w.mustStop()
		if s := w.Stats(); s.FreeSlots != 100 {
			t.Errorf("%d slots are free at the end, want 100", s.FreeSlots)
		}
	})
}

func TestLoweredConcurrencyKeepsOrderInGroups(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := &fixture{Server: sqsmodel.New(sqsmodel.Config{}), t: t}
		q.url = q.MustCreateQueue("work.fifo", map[string]string{"FifoQueue": "true"})
		for i := range 200 {
			q.MustSendGroup(q.url, string(rune('A'+i%20)), strings.Repeat("x", i+1))
		}
		var mu sync.Mutex
		last := map[string]int{}
		done := 0
		w := q.start(worker.HandlerFunc(func(_ context.Context, m *worker.Message) error {
			time.Sleep(300 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			if len(m.Body) < last[m.GroupID] {
				t.Errorf("group %s goes back from %d to %d", m.GroupID, last[m.GroupID], len(m.Body))
			}
			last[m.GroupID] = len(m.Body)
			done++
			return nil
		}), worker.Config{Concurrency: 10})
		for _, n := range []int{3, 20, 1, 7} {
			time.Sleep(time.Second)
			if err := w.SetConcurrency(n); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, 2*time.Minute, "all done", func() bool { mu.Lock(); defer mu.Unlock(); return done == 200 })
		w.mustStop()
		if s := w.Stats(); s.FreeSlots != 7 {
			t.Errorf("%d slots are free at the end, want 7", s.FreeSlots)
		}
	})
}

func TestConcurrencyIsKeptForTheNextRunAndBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "VisibilityTimeout", "60")
		q.send(20)
		var r runs
		w, err := worker.New(q.Client(), q.url, r.handler(takes(never)), worker.Config{Concurrency: 5, Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{0, -1, 100_001} {
			if err := w.SetConcurrency(n); err == nil || !strings.Contains(err.Error(), "from 1 to 100000") {
				t.Errorf("SetConcurrency(%d): %v", n, err)
			}
		}
		if err := w.SetConcurrency(7); err != nil {
			t.Fatal(err)
		}
		s := run(t, w, &logbook{})
		time.Sleep(time.Second)
		synctest.Wait()
		if n := r.now(); n != 7 {
			t.Errorf("%d handlers run, want 7", n)
		}
		s.mustStop()
		if err := w.SetConcurrency(3); err != nil {
			t.Error(err)
		}
	})
}
