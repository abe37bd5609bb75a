package worker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// A handler that finds somebody else at its work, while its message's lease still holds.
func TestNothingIsWrittenForAMessageWhoseHandlerSaysThatItIsSomebodyElses(t *testing.T) {
	for _, err := range []error{
		fmt.Errorf("claim taken over: %w", worker.ErrLeaseLost),
		errors.Join(worker.ErrLeaseLost, worker.Permanent(errors.New("bad"))),
		errors.Join(worker.ErrLeaseLost, worker.RetryAfter(time.Second, errors.New("bad"))),
	} {
		bubble(t, func(t *testing.T) {
			q := newQueueWithDLQ(t, 5, "VisibilityTimeout", "10")
			id := q.send(1)[0]
			r := &runs{}
			began := time.Now()
			w := q.start(r.handler(func(context.Context, *worker.Message) error {
				if r.count() == 1 {
					return err
				}
				return nil
			}), worker.Config{Retries: worker.NoRetries})
			eventually(t, time.Minute, "it ran again", func() bool { return r.count() == 2 })
			if gap := time.Since(began); gap < 10*time.Second || gap > 12*time.Second {
				t.Errorf("it came back after %v, want when its visibility was over, 10s", gap)
			}
			if changes := q.events(id, sqsmodel.VisibilityChanged); len(changes) > 0 {
				t.Errorf("its visibility was changed: %+v", changes)
			}
			if s := w.Stats(); s.Failed != 0 || s.Lost != 1 || s.Retried != 0 {
				t.Errorf("failed %d, lost %d, retried %d: want 0, 1, 0", s.Failed, s.Lost, s.Retried)
			}
			q.mustEmpty(time.Minute)
		})
	}
}

func TestMiddlewareReadsAResultAsTheWorkerDoes(t *testing.T) {
	bad := errors.New("bad")
	stopping, stop := context.WithCancelCause(t.Context())
	stop(worker.ErrShutdown)
	for _, c := range []struct {
		ctx  context.Context
		err  error
		want worker.Outcome
		text string
	}{
		{t.Context(), nil, worker.OutcomeSucceeded, "succeeded"},
		{t.Context(), fmt.Errorf("x: %w", worker.ErrDuplicate), worker.OutcomeDuplicate, "duplicate"},
		{t.Context(), bad, worker.OutcomeFailed, "failed"},
		{t.Context(), worker.Permanent(bad), worker.OutcomeFailed, "failed"},
		{t.Context(), worker.RetryAfter(0, bad), worker.OutcomeFailed, "failed"},
		{t.Context(), worker.Snooze(0), worker.OutcomeSnoozed, "snoozed"},
		{t.Context(), worker.Unavailable(bad), worker.OutcomeUnavailable, "unavailable"},
		{t.Context(), worker.ErrLeaseLost, worker.OutcomeLost, "lost"},
		{stopping, bad, worker.OutcomeInterrupted, "interrupted"},
		{stopping, nil, worker.OutcomeSucceeded, "succeeded"},
	} {
		if got := worker.OutcomeOf(c.ctx, c.err); got != c.want || got.String() != c.text {
			t.Errorf("OutcomeOf(%v) is %v, want %v", c.err, got, c.want)
		}
	}
}
