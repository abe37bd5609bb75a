package workertest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqsworker/sqsworker/worker"
	"github.com/sqsworker/sqsworker/worker/workertest"
)

var errBoom = errors.New("boom")

func returning(err error) worker.Handler {
	return worker.HandlerFunc(func(context.Context, *worker.Message) error { return err })
}

// sink takes what it is given.
type sink struct{ reasons []string }

func (s *sink) DeadLetter(_ context.Context, m *worker.Message, reason error) error {
	s.reasons = append(s.reasons, m.Body+": "+reason.Error())
	return nil
}

func TestHandleTellsWhatBecameOfTheMessage(t *testing.T) {
	dead := &sink{}
	for name, c := range map[string]struct {
		h       worker.Handler
		cfg     worker.Config
		fate    workertest.Fate
		outcome worker.Outcome
		least   time.Duration // that it stays away
		most    time.Duration
		tries   int
	}{
		"success":   {h: returning(nil), fate: workertest.Deleted, outcome: worker.OutcomeSucceeded},
		"duplicate": {h: returning(worker.ErrDuplicate), fate: workertest.Deleted, outcome: worker.OutcomeDuplicate},
		"failure": {h: returning(errBoom), cfg: worker.Config{Backoff: worker.Backoff{Min: 10 * time.Second, Max: time.Minute}},
			fate: workertest.Held, outcome: worker.OutcomeFailed, least: time.Second, most: 20 * time.Second},
		"retry after":                 {h: returning(worker.RetryAfter(5*time.Minute, errBoom)), fate: workertest.Held, outcome: worker.OutcomeFailed, least: 290 * time.Second, most: 300 * time.Second},
		"snooze":                      {h: returning(worker.Snooze(time.Hour)), fate: workertest.Held, outcome: worker.OutcomeSnoozed, least: 59 * time.Minute, most: time.Hour},
		"at once, for somebody else":  {h: returning(worker.Snooze(0)), fate: workertest.Visible, outcome: worker.OutcomeSnoozed},
		"permanent":                   {h: returning(worker.Permanent(errBoom)), cfg: worker.Config{DeadLetter: dead}, fate: workertest.Deleted, outcome: worker.OutcomeFailed},
		"panic":                       {h: worker.HandlerFunc(func(context.Context, *worker.Message) error { panic(errBoom) }), fate: workertest.Held, outcome: worker.OutcomeFailed, least: 1, most: time.Minute},
		"retries in process":          {h: returning(errBoom), cfg: worker.Config{Retries: 2, RetryDelay: time.Millisecond}, fate: workertest.Held, outcome: worker.OutcomeFailed, least: 1, most: time.Minute, tries: 3},
		"unavailable, breaker opened": {h: returning(worker.Unavailable(errBoom)), fate: workertest.Held, outcome: worker.OutcomeUnavailable, least: 1, most: time.Hour},
		"lease lost":                  {h: returning(worker.ErrLeaseLost), fate: workertest.Held, outcome: worker.OutcomeLost, least: 1, most: 30 * time.Second},
	} {
		check := func(t *testing.T) {
			r := workertest.Handle(t, c.h, workertest.Message{Body: "a job"}, c.cfg)
			if r.Fate != c.fate || r.Outcome != c.outcome || r.Receives != 1 {
				t.Errorf("%v, %v, received %d times; want %v, %v, once", r.Fate, r.Outcome, r.Receives, c.fate, c.outcome)
			}
			if r.VisibleIn < c.least || r.VisibleIn > c.most {
				t.Errorf("visible in %v, want %v to %v", r.VisibleIn, c.least, c.most)
			}
			if r.Tries != max(c.tries, 1) {
				t.Errorf("%d tries, want %d", r.Tries, max(c.tries, 1))
			}
			if (r.Err == nil) != (c.outcome == worker.OutcomeSucceeded) {
				t.Errorf("the error is %v", r.Err)
			}
		}
		t.Run(name, check)
		t.Run(name+", in a bubble", func(t *testing.T) { synctest.Test(t, check) })
	}
	if want := []string{"a job: boom", "a job: boom"}; !slices.Equal(dead.reasons, want) {
		t.Errorf("the dead-letter sink got %q, want %q", dead.reasons, want)
	}
}

func TestHandleGivesTheHandlerWhatWasSent(t *testing.T) {
	var got *worker.Message
	h := worker.HandlerFunc(func(_ context.Context, m *worker.Message) error {
		got = m
		return nil
	})
	workertest.Handle(t, h, workertest.Message{Body: "a job", GroupID: "tenant", Attributes: map[string]string{"type": "order"}}, worker.Config{})
	if got.Body != "a job" || got.GroupID != "tenant" || got.Attribute("type") != "order" || got.ReceiveCount != 1 {
		t.Errorf("got %q of %q, type %q, receive %d", got.Body, got.GroupID, got.Attribute("type"), got.ReceiveCount)
	}
}

func TestAFailingMessageGoesToTheDeadLetterQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := workertest.NewQueue(t, workertest.Options{MaxReceiveCount: 3})
		ids := q.Send("good", "bad")
		var runs atomic.Int64
		w := q.Start(worker.HandlerFunc(func(_ context.Context, m *worker.Message) error {
			runs.Add(1)
			if m.Body == "bad" {
				return errBoom
			}
			return nil
		}), worker.Config{})
		q.WaitEmpty(time.Hour)
		if got := q.DeadLetters(); !slices.Equal(got, []string{"bad"}) || runs.Load() != 4 {
			t.Errorf("dead letters %q after %d runs, want the bad one after 4", got, runs.Load())
		}
		if a, b := q.Look(ids[0]), q.Look(ids[1]); a.Fate != workertest.Deleted || b.Fate != workertest.DeadLettered || b.Receives < 3 {
			t.Errorf("the good one is %v, the bad one %v after %d receives", a.Fate, b.Fate, b.Receives)
		}
		if err := w.Stop(); err != nil {
			t.Error(err)
		}
		if s := w.Stats(); s.Failed != 3 {
			t.Errorf("%d failures counted, want 3", s.Failed)
		}
	})
}

func TestFIFOMessagesComeInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := workertest.NewQueue(t, workertest.Options{FIFO: true})
		var want, got []string
		for i := range 15 {
			want = append(want, fmt.Sprint("job ", i))
		}
		q.Send(want...)
		q.Start(worker.HandlerFunc(func(_ context.Context, m *worker.Message) error {
			got = append(got, m.Body) // one group: one at a time
			return nil
		}), worker.Config{})
		q.WaitEmpty(time.Minute)
		if !slices.Equal(got, want) {
			t.Errorf("got %q", got)
		}
	})
}

func TestSQSCanFailAndDeliverTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := workertest.NewQueue(t, workertest.Options{Visibility: 30 * time.Second})
		mend := q.Fail("DeleteMessageBatch", 0, "ServiceUnavailable")
		q.Fail("ReceiveMessage", 2, "")
		id := q.Send("a job")[0]
		var runs atomic.Int64
		w := q.Start(worker.HandlerFunc(func(context.Context, *worker.Message) error {
			runs.Add(1)
			return nil
		}), worker.Config{})
		time.Sleep(10 * time.Second)
		if !q.Redeliver(id) {
			t.Error("it isn't there any more")
		}
		time.Sleep(time.Minute)
		if s := q.Look(id); s.Fate != workertest.Held || s.Receives != 2 || s.VisibleIn <= 0 {
			t.Errorf("it is %v after %d receives, visible in %v", s.Fate, s.Receives, s.VisibleIn)
		}
		mend()
		q.WaitEmpty(time.Minute)
		if runs.Load() != 1 || w.Stats().Suppressed != 1 {
			t.Errorf("%d runs, %d suppressed, want 1 of each", runs.Load(), w.Stats().Suppressed)
		}
		if q.Redeliver(id) {
			t.Error("a deleted message was delivered again")
		}
	})
}

// strict notes what a test is told, instead of failing.
type strict struct {
	testing.TB
	fatal string
}

func (s *strict) Helper() {}
func (s *strict) Fatalf(format string, args ...any) {
	s.fatal = fmt.Sprintf(format, args...)
	panic(s)
}
func (s *strict) Fatal(args ...any) { s.Fatalf("%s", fmt.Sprint(args...)) }

func TestMistakesEndTheTestAndSayWhatIsWrong(t *testing.T) {
	for want, f := range map[string]func(tb testing.TB){
		"maxReceiveCount":   func(tb testing.TB) { workertest.NewQueue(tb, workertest.Options{MaxReceiveCount: 2000}) },
		"VisibilityTimeout": func(tb testing.TB) { workertest.NewQueue(tb, workertest.Options{Visibility: 13 * time.Hour}) },
		"Concurrency": func(tb testing.TB) {
			workertest.Handle(tb, returning(nil), workertest.Message{Body: "x"}, worker.Config{Concurrency: -1})
		},
		"sending":            func(tb testing.TB) { workertest.NewQueue(tb, workertest.Options{}).Send("") },
		"never a message no": func(tb testing.TB) { workertest.NewQueue(tb, workertest.Options{}).Look("no") },
		"still has 1 messages": func(tb testing.TB) {
			q := workertest.NewQueue(tb, workertest.Options{})
			q.Send("x")
			q.WaitEmpty(10 * time.Millisecond)
		},
		"needs an empty queue": func(tb testing.TB) {
			q := workertest.NewQueue(tb, workertest.Options{})
			q.Send("x")
			q.Handle(returning(nil), workertest.Message{Body: "y"}, worker.Config{})
		},
	} {
		s := &strict{TB: t}
		func() {
			defer func() {
				if v := recover(); v != nil && v != any(s) {
					panic(v)
				}
			}()
			f(s)
		}()
		if !strings.Contains(s.fatal, want) {
			t.Errorf("want %q in %q", want, s.fatal)
		}
	}
}
