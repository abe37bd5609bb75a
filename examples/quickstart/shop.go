package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sqsworker/sqsworker/worker"
)

// shop is what the messages are for: it ships orders and takes in uploads.
type shop struct {
	slow time.Duration // how long a slow job takes
}

var (
	errRefund  = errors.New("a refund isn't an order")
	errPayment = errors.New("the payment service didn't answer")
)

// handle works one message. What it returns decides: nil deletes the message, an error gives it back for another try
// after the back-off, until the queue's redrive policy has had enough.
func (s shop) handle(ctx context.Context, m *worker.Message) error {
	j, err := parse(m.Body)
	if err != nil {
		return worker.Permanent(err)
	}
	if err := s.work(ctx, s.time(j)); err != nil {
		return err
	}
	switch {
	case j.alwaysFails:
		return fmt.Errorf("%s: %w", j.name, errRefund)
	case j.failsOnce && m.ReceiveCount == 1:
		return fmt.Errorf("%s: %w", j.name, errPayment)
	}
	return nil
}

func (s shop) time(j job) time.Duration {
	if j.slow {
		return s.slow
	}
	return s.slow / 20
}

// work takes d. It returns early when the worker stops and can't wait any longer, as a handler should. It doesn't when
// the message's lease is lost, as a card that is being charged can't be un-charged half-way: that is the work which
// heartbeats protect. (Where a handler can stop, it should stop for that too: it needs no more than ctx.Done.)
func (s shop) work(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	done := ctx.Done()
	for {
		select {
		case <-timer.C:
			return nil
		case <-done:
			if cause := context.Cause(ctx); errors.Is(cause, worker.ErrShutdown) {
				return cause
			}
			done = nil
		}
	}
}
