package workertest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqsworker/sqsworker/worker"
	"github.com/sqsworker/sqsworker/worker/workertest"
)

type order struct {
	Order  int `json:"order"`
	Amount int `json:"amount"`
}

// charge is the handler under test.
var charge = worker.JSON(func(_ context.Context, _ *worker.Message, o order) error {
	if o.Amount < 0 {
		return worker.Permanent(errors.New("a negative amount"))
	}
	return nil
})

func ExampleHandle() {
	// func TestOrdersAreCharged(t *testing.T) {
	var t *testing.T

	r := workertest.Handle(t, charge, workertest.Message{Body: `{"order":4521,"amount":500}`}, worker.Config{})
	if r.Fate != workertest.Deleted {
		t.Errorf("%v: %v", r.Fate, r.Err)
	}
}

func ExampleNewQueue() {
	// func TestABadOrderEndsInTheDeadLetterQueue(t *testing.T) {
	var t *testing.T

	synctest.Test(t, func(t *testing.T) { // an hour of back-offs takes no time
		q := workertest.NewQueue(t, workertest.Options{MaxReceiveCount: 3})
		q.Send(`{"order":4521,"amount":500}`, `{"order":4522,"amount":-1}`)
		q.Start(charge, worker.Config{})
		q.WaitEmpty(time.Hour)
		if got := q.DeadLetters(); len(got) != 1 {
			t.Errorf("dead letters: %q", got)
		}
	})
}
