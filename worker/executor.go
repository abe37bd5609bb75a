package worker

import (
	"context"
	"errors"
	"fmt"
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

var errGoexit = errors.New("worker: the handler ended its goroutine (runtime.Goexit)")

// handle runs one message and hands its result to settling, whatever way the handler ends.
func (r *run) handle(d *delivery) {
	if err := d.lease.Err(); err != nil {
		r.drop(d, err)
		return
	}
	r.registry.start(d)
	r.stats.started.Add(1)
	started := time.Now()
	ctx := context.Context(&handlerContext{d.ctx, d})
	err := errGoexit
	defer func() {
		r.stats.handled(time.Since(started))
		r.settle(d, ctx, err)
		r.slots.give(1)
	}()
	err = r.invoke(ctx, &d.message)
}

// invoke calls the handler; a panic becomes an error.
func (r *run) invoke(ctx context.Context, m *Message) (err error) {
	if timeout := r.cfg.HandlerTimeout; timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, ErrHandlerTimeout)
		defer cancel()
		overdue := time.AfterFunc(timeout+overdueAfter, func() { r.reportOverdue(m, timeout) })
		defer overdue.Stop()
	}
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{v, debug.Stack()}
		}
	}()
	return r.w.handler.Handle(ctx, m)
}

// overdueAfter is how long after its timeout a handler that hasn't returned is reported.
const overdueAfter = 5 * time.Second

func (r *run) reportOverdue(m *Message, timeout time.Duration) {
	r.stats.overdue.Add(1)
	r.log.Warn("a handler is past its timeout and hasn't returned: it ignores its context; its message stays held", "message", m, "timeout", timeout)
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
