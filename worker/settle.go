package worker

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sqsworker/sqsworker/heartbeat"
)

// settle decides what becomes of a message whose handler is done. It runs in the executor's goroutine and waits only
// when too much is unsettled already; the calls are made by others.
func (r *run) settle(d *delivery, ctx context.Context, err error) {
	o := outcomeOf(ctx, err)
	stage := releasing
	if o.done() {
		stage = deleting
	}
	successor, ok := r.registry.finish(d, stage)
	if !ok {
		r.stats.lateResults.Add(1)
		r.log.Warn("a handler returned after its message had been given back", "message", &d.message, "outcome", o.kind.String())
		return
	}
	r.logOutcome(d, o)
	switch lost := d.lease.Err(); {
	case lost != nil:
		r.settleLost(d, o, lost, successor != nil)
	case o.kind == succeeded:
		r.stats.succeeded.Add(1)
		r.delete(d)
	case o.kind == duplicate:
		r.stats.suppressed.Add(1)
		r.delete(d)
	case o.kind == failed:
		r.fail(d, o)
	case o.kind == snoozed:
		r.registry.excuse(d)
		r.release(d, o.delay, &r.stats.snoozed)
	case o.kind == interrupted:
		r.registry.excuse(d)
		r.release(d, 0, &r.stats.interrupted)
	}
	if successor != nil {
		r.settleSuccessor(successor, o)
	}
}

// settleLost: nothing is written for a message that may be somebody else's. One whose handler succeeded is remembered,
// so that it is deleted and not run when it comes back to this worker.
func (r *run) settleLost(d *delivery, o outcome, lost error, again bool) {
	d.lease.Settle()
	switch o.kind {
	case succeeded:
		r.stats.succeeded.Add(1)
		r.stats.undeleted.Add(1)
	case failed:
		r.stats.failed.Add(1)
	}
	r.registry.forget(d, o.done() && !again)
	r.noteLost(d, lost)
}

// settleSuccessor takes up the newer receive that came while the handler of a lost one ran on.
func (r *run) settleSuccessor(d *delivery, o outcome) {
	if o.done() {
		r.stats.suppressed.Add(1)
		r.delete(d)
		r.slots.give(1)
		return
	}
	r.dispatcher.push([]*delivery{d})
}

// drop ends a delivery whose lease was lost before it started.
func (r *run) drop(d *delivery, lost error) {
	d.lease.Settle()
	r.registry.forget(d, false)
	r.noteLost(d, lost)
	r.slots.give(1)
}

func (r *run) noteLost(d *delivery, lost error) {
	if errors.Is(lost, heartbeat.ErrSettled) {
		return
	}
	r.stats.lost.Add(1)
	r.log.Warn("message lease lost: it comes back, here or elsewhere", "message", &d.message, "cause", lost)
}

// fail gives a failed message back with its back-off.
func (r *run) fail(d *delivery, o outcome) {
	r.stats.failed.Add(1)
	delay := o.delay
	if delay < 0 {
		delay = r.cfg.Backoff.delay(d.message.Attempt)
		var permanent *permanentError
		if errors.As(o.err, &permanent) {
			delay = r.cfg.Backoff.Max
		}
	}
	r.release(d, delay, &r.stats.retried)
}

// release gives a message back; it is visible to others after delay.
func (r *run) release(d *delivery, delay time.Duration, count *atomic.Int64) {
	r.unsettled.enter()
	d.lease.Release(delay, func(err error) {
		defer r.unsettled.leave()
		r.registry.forget(d, false)
		if err == nil {
			count.Add(1)
			return
		}
		r.stats.releaseFailures.Add(1)
		r.leftBehind.add(d.message.ID)
		r.log.Warn("a message could not be given back: it comes back when its visibility ends", "message", &d.message, "error", heartbeat.Code(err))
	})
}

// giveBack releases messages that were never started.
func (r *run) giveBack(batch []*delivery) {
	for _, d := range batch {
		r.release(d, 0, &r.stats.releasedUnstarted)
		r.slots.give(1)
	}
}

// delete hands a completed message to the deleter, its heartbeat stopped and joined first: a renewal that overtook the
// delete would be refused.
func (r *run) delete(d *delivery) {
	r.unsettled.enter()
	deadline := d.lease.Deadline()
	if d.lease.Settle() != nil {
		r.deleted(d, heartbeat.ErrLost)
		return
	}
	r.deleter.add(&deletion{delivery: d, handle: d.lease.Handle(), deadline: deadline, since: time.Now()})
}

// deleted hears how a delete went.
func (r *run) deleted(d *delivery, err error) {
	if err == nil {
		r.stats.deleted.Add(1)
		r.registry.forget(d, false)
		if after := d.message.takeAfterDelete(); len(after) > 0 {
			go r.afterDelete(d, after)
			return
		}
		r.unsettled.leave()
		return
	}
	r.stats.undeleted.Add(1)
	r.registry.forget(d, true)
	r.leftBehind.add(d.message.ID)
	r.unsettled.leave()
	r.log.Warn("a completed message could not be deleted: it comes back, and is deleted without a run if it comes to this worker",
		"message", &d.message, "error", heartbeat.Code(err))
}

// afterDelete runs what waited for the deletion.
func (r *run) afterDelete(d *delivery, fs []func(context.Context) error) {
	defer r.unsettled.leave()
	ctx, cancel := context.WithTimeout(r.settling, 10*time.Second)
	defer cancel()
	for _, f := range fs {
		if err := protect(ctx, f); err != nil {
			r.stats.afterDeleteFailures.Add(1)
			r.log.Warn("a function to run after a message's deletion failed", "message", &d.message, "error", err)
		}
	}
}

func protect(ctx context.Context, f func(context.Context) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{value: v}
		}
	}()
	return f(ctx)
}

// unsettled counts the messages that are being deleted or given back. It bounds them: behind a slow SQS, executors wait
// here, so that memory and what a crash would repeat stay bounded.
type unsettled struct {
	room chan struct{}
	all  sync.WaitGroup
}

func newUnsettled(most int) *unsettled { return &unsettled{room: make(chan struct{}, most)} }

func (u *unsettled) enter() {
	u.all.Add(1)
	u.room <- struct{}{}
}

func (u *unsettled) leave() {
	<-u.room
	u.all.Done()
}

func (u *unsettled) count() int { return len(u.room) }
