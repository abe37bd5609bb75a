package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"
)

// execute is an executor's goroutine: it runs waiting messages one after the other until none is left.
func (r *run) execute() {
	ended := false
	defer func() {
		if !ended {
			r.dispatcher.left() // the handler called runtime.Goexit
		}
	}()
	for {
		d := r.dispatcher.next()
		if d == nil {
			ended = true
			return
		}
		r.handle(d)
	}
}

// retryDelay doubles with each try, jittered over its upper half.
func retryDelay(first time.Duration, try int) time.Duration {
	d := longestRetryDelay(first, try)
	return d/2 + rand.N(d/2+1)
}

func longestRetryDelay(first time.Duration, try int) time.Duration { return first << min(try-1, 10) }

var errGoexit = errors.New("worker: the handler ended its goroutine (runtime.Goexit)")

// handle runs one message and hands its result to settling, whatever way the handler ends.
func (r *run) handle(d *delivery) {
	defer r.dispatcher.finished(d)
	if err := d.lease.Err(); err != nil {
		r.drop(d, err)
		return
	}
	if !d.probe && r.breaker.isOpen() { // it has opened since this message was taken from those that wait
		r.putOff(d, r.breaker.delay(), &r.stats.unavailable)
		r.retire()
		return
	}
	if !r.registry.start(d) {
		r.stats.suppressed.Add(1)
		r.breaker.forgive(d)
		r.delete(d)
		r.retire()
		return
	}
	d.handler = handlerContext{r.tell.handling(d), d}
	ctx := context.Context(&d.handler)
	err := errGoexit
	started := time.Now()
	defer func() {
		o, took := outcomeOf(ctx, err), time.Since(started)
		r.stats.handled(took)
		r.tell.handled(d, o, took)
		r.w.history.Load().handled(o)
		r.settle(d, o)
		r.retire()
	}()
	if r.fifo {
		stop := context.AfterFunc(d.ctx, func() { r.groupLost(d) })
		defer stop()
	}
	if d.corrupt {
		r.stats.corrupt.Add(1)
		err = errCorrupt
		return
	}
	r.stats.started.Add(1)
	err = r.attempt(ctx, d)
}

// retire frees the slot of a message that is off the executor's hands. On a FIFO queue the slot is the group's.
func (r *run) retire() {
	if !r.fifo {
		r.slots.give(1)
	}
}

// attempt calls the handler, and again in process while Retries allow it: the message stays held meanwhile, and its receive
// count where it is. Only a failure that says nothing of itself is tried again.
func (r *run) attempt(ctx context.Context, d *delivery) error {
	for try := 1; ; try++ {
		err := r.invoke(ctx, d)
		if try > r.retries || !plain(err) || ctx.Err() != nil {
			return err
		}
		r.stats.retriedInProcess.Add(1)
		r.log.Info("handler failed, trying again in process", "message", d, "try", try, "error", err)
		r.tell.retrying(d, try, err)
		timer := time.NewTimer(retryDelay(r.cfg.RetryDelay, try))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// invoke calls the handler; a panic becomes an error.
func (r *run) invoke(ctx context.Context, d *delivery) (err error) {
	if timeout := r.cfg.HandlerTimeout; timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, ErrHandlerTimeout)
		defer cancel()
		overdue := time.AfterFunc(timeout+overdueAfter, func() { r.reportOverdue(d, timeout) })
		defer overdue.Stop()
	}
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{v, debug.Stack()}
		}
	}()
	return r.w.handler.Handle(ctx, &d.message)
}

// overdueAfter is how long after its timeout a handler that hasn't returned is reported.
const overdueAfter = 5 * time.Second

func (r *run) reportOverdue(d *delivery, timeout time.Duration) {
	r.stats.overdue.Add(1)
	r.log.Warn("a handler is past its timeout and hasn't returned: it ignores its context; its message stays held", "message", d, "timeout", timeout)
}

// panicError is a handler's panic as an error.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("worker: handler panicked: %v", e.value) }
func (e *panicError) Unwrap() error {
	err, _ := e.value.(error)
	return err
}
