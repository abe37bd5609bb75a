package idempotency_test

import (
	"context"
	"errors"
	"testing"

	"github.com/sqsworker/sqsworker/idempotency"
	"github.com/sqsworker/sqsworker/worker"
)

func TestResetWorkIsDoneAgainAndWorkUnderWayIsNot(t *testing.T) {
	for name, store := range map[string]idempotency.Store{"memory": &idempotency.MemoryStore{}, "minidyn": newDynamo().newTable(t, testTable)} {
		t.Run(name, func(t *testing.T) {
			guard, err := idempotency.New(store, idempotency.Config{Key: idempotency.JSONField("order"), CacheSize: 10})
			if err != nil {
				t.Fatal(err)
			}
			runs := 0
			var during error
			m := &worker.Message{ID: "1", Body: `{"order":4521}`, QueueURL: "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"}
			handler := guard.Middleware(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
				runs++
				during = guard.Reset(ctx, m)
				return nil
			}))
			handle := func() error { return handler.Handle(t.Context(), m) }
			if err := guard.Reset(t.Context(), m); err != nil {
				t.Errorf("nothing to reset: %v", err)
			}
			if err := handle(); err != nil {
				t.Fatal(err)
			}
			var refused *idempotency.RefusedError
			if !errors.As(during, &refused) {
				t.Errorf("reset of work that is under way: %v", during)
			}
			if err := handle(); !errors.Is(err, worker.ErrDuplicate) {
				t.Errorf("before the reset: %v", err)
			}
			if err := guard.Reset(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			if err := handle(); err != nil || runs != 2 {
				t.Errorf("after the reset: %v, %d runs", err, runs)
			}
		})
	}
}
