package worker

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/sqsworker/sqsworker/heartbeat"
)

// settle decides what becomes of a message whose handler is done. It runs in the executor's goroutine and waits only
// when too much is unsettled already; the calls are made by others.
func (r *run) settle(d *delivery, o outcome) {
	stage := releasing
	if o.done() {
		stage = deleting
	}
	successor, ok := r.registry.finish(d, stage)
	if !ok {
		r.stats.lateResults.Add(1)
		r.log.Warn("a handler returned after its message had been given back", "message", d, "outcome", o.kind.String())
		return
	}
	r.logOutcome(d, o)
	opened := r.breaker.result(d, o)
	switch cause := d.lease.Err(); {
	case cause != nil:
		r.settleLost(d, o, cause)
	case o.kind == lost:
		r.settleLost(d, o, o.err)
	case o.kind == succeeded:
		r.stats.succeeded.Add(1)
		r.delete(d)
	case o.kind == duplicate:
		r.stats.suppressed.Add(1)
		r.delete(d)
	case o.kind == failed:
		r.fail(d, o)
	case o.kind == unavailable:
		delay := r.breaker.delay()
		if r.nearLimit(d) { // once more as a probe, and the redrive policy takes it for an outage that isn't its fault
			delay = max(delay, 6*r.cfg.Breaker.MaxPause)
		}
		r.putOff(d, delay, &r.stats.unavailable)
	case o.kind == snoozed:
		r.putOff(d, o.delay, &r.stats.snoozed)
	case o.kind == interrupted:
		r.noteUnfailed(d)
		r.putOff(d, 0, &r.stats.interrupted)
	}
	if successor != nil {
		r.settleSuccessor(successor, o)
	}
	if opened {
		r.putOffWaiting()
	}
}

// nearLimit tells whether the message may be received only once more before the queue's redrive policy moves it.
func (r *run) nearLimit(d *delivery) bool {
	return r.maxReceiveCount > 0 && d.message.ReceiveCount >= r.maxReceiveCount-1
}

// putOff gives back a message that didn't fail.
func (r *run) putOff(d *delivery, delay time.Duration, count *atomic.Int64) {
	r.registry.excuse(d)
	r.release(d, delay, count)
}

// putOffWaiting gives back what is held and not started, because the breaker has opened.
func (r *run) putOffWaiting() {
	r.order.Lock()
	waiting, slots := r.dispatcher.take()
	r.registry.giveUp(waiting)
	r.order.Unlock()
	r.putOffAll(waiting, slots)
}

func (r *run) putOffAll(waiting []*delivery, slots int) {
	for _, d := range waiting {
		r.registry.excuse(d)
		r.breaker.forgive(d)
		r.giveBackOne(d, r.breaker.delay(), &r.stats.unavailable, nil)
	}
	r.slots.give(slots)
}

// settleLost: nothing is written for a message that may be somebody else's. One whose handler succeeded is remembered,
// so that it is deleted and not run when it comes back to this worker.
func (r *run) settleLost(d *delivery, o outcome, lost error) {
	d.lease.Settle()
	switch o.kind {
	case succeeded:
		r.stats.succeeded.Add(1)
		r.stats.undeleted.Add(1)
	case failed:
		r.stats.failed.Add(1)
	}
	r.registry.forget(d, o.done())
	r.noteLost(d, lost)
	r.endGroup(d)
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
	r.breaker.forgive(d)
	r.noteLost(d, lost)
	r.endGroup(d)
	r.retire()
}

func (r *run) noteLost(d *delivery, lost error) {
	if errors.Is(lost, heartbeat.ErrSettled) {
		return
	}
	r.stats.lost.Add(1)
	r.log.Warn("message lease lost: it comes back, here or elsewhere", "message", d, "cause", lost)
}

// fail sees to a failed message: to the dead-letter sink when it is beyond help and there is one, otherwise back with its
// back-off.
func (r *run) fail(d *delivery, o outcome) {
	r.stats.failed.Add(1)
	var permanent *permanentError
	if !errors.As(o.err, &permanent) {
		delay := o.delay
		if delay < 0 {
			delay = r.cfg.Backoff.delay(d.message.Attempt)
		}
		r.release(d, delay, &r.stats.retried)
		return
	}
	if r.cfg.DeadLetter != nil && r.deadLetter(d, permanent.err) {
		r.stats.deadLettered.Add(1)
		r.registry.complete(d)
		r.delete(d)
		return
	}
	r.release(d, r.cfg.Backoff.Max, &r.stats.retried) // the redrive policy will take it
}

// deadLetter sends a message to the sink, while its lease is still renewed.
func (r *run) deadLetter(d *delivery, reason error) bool {
	ctx, cancel := context.WithTimeout(r.tell.within(context.WithoutCancel(d.ctx), d), deadLetterTimeout)
	defer cancel()
	defer context.AfterFunc(r.settling, cancel)()
	err := protect(func() error { return r.cfg.DeadLetter.DeadLetter(ctx, &d.message, reason) })
	if err == nil {
		err = d.lease.Err() // it came too late: somebody else has the message
	}
	if err != nil {
		r.stats.deadLetterFailures.Add(1)
		r.log.Error("a message could not be sent to the dead-letter sink: it comes back", "message", d, "error", err)
	}
	return err == nil
}

// deadLetterTimeout bounds one call of the dead-letter sink.
const deadLetterTimeout = 30 * time.Second

// release gives a message back; it is visible to others after delay. On a FIFO queue everything behind it goes first.
func (r *run) release(d *delivery, delay time.Duration, count *atomic.Int64) {
	if !r.fifo {
		r.giveBackOne(d, delay, count, nil)
		return
	}
	since := time.Now()
	r.registry.setTrouble(d, since.Add(delay+r.visibility+maxWait))
	r.stopGroup(d, func() {
		r.giveBackOne(d, max(delay-time.Since(since), 0), count, func() { r.dispatcher.releaseGroup(d) })
	})
}

// giveBackOne gives back one message, and calls then when that is over, however it went.
func (r *run) giveBackOne(d *delivery, delay time.Duration, count *atomic.Int64, then func()) {
	r.unsettled.enter()
	d.lease.Release(delay, func(err error) {
		defer r.unsettled.leave()
		r.registry.forget(d, false)
		switch {
		case err == nil, errors.Is(err, heartbeat.ErrSuperseded): // in the latter case it is back already
			count.Add(1)
		default:
			r.stats.releaseFailures.Add(1)
			r.leftBehind.add(d.id)
			r.log.Warn("a message could not be given back: it comes back when its visibility ends", "message", d, "error", heartbeat.Code(err))
		}
		if then != nil {
			then()
		}
	})
}

// giveBack gives back messages that were never started, and frees their slots.
func (r *run) giveBack(batch []*delivery, delay time.Duration, slots int) {
	for _, d := range batch {
		r.registry.excuse(d)
		r.breaker.forgive(d)
		r.noteUnfailed(d)
		r.giveBackOne(d, delay, &r.stats.releasedUnstarted, nil)
	}
	r.slots.give(slots)
}

// giveBackSurplus gives back what a tenant has more than it may, for a few seconds: others may have room for it.
func (r *run) giveBackSurplus(surplus []*delivery) {
	for _, d := range surplus {
		r.registry.excuse(d)
		r.breaker.forgive(d)
		r.giveBackOne(d, time.Second+rand.N(4*time.Second), &r.stats.tenantSurplus, nil)
	}
	r.slots.give(len(surplus))
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
	d.deletion = deletion{delivery: d, lease: d.lease, handle: d.lease.Handle(), deadline: deadline, since: time.Now()}
	r.deleter.add(&d.deletion)
}

// deleted hears how a delete went.
func (r *run) deleted(d *delivery, err error) {
	if err == nil {
		r.stats.deleted.Add(1)
		after := r.registry.forget(d, false)
		if r.fifo {
			r.registry.setTrouble(d, time.Time{})
			r.dispatcher.releaseGroup(d)
		}
		if len(after) > 0 {
			go r.afterDelete(d, after)
			return
		}
		r.unsettled.leave()
		return
	}
	r.stats.undeleted.Add(1)
	r.registry.forget(d, true)
	r.leftBehind.add(d.id)
	r.endGroup(d)
	r.unsettled.leave()
	r.log.Warn("a completed message could not be deleted: it comes back, and is deleted without a run if it comes to this worker",
		"message", d, "error", heartbeat.Code(err))
}

// afterDelete runs what waited for the deletion.
func (r *run) afterDelete(d *delivery, fs afterDelete) {
	defer r.unsettled.leave()
	ctx, cancel := context.WithTimeout(r.tell.within(r.settling, d), 10*time.Second)
	defer cancel()
	for _, f := range fs {
		if err := protect(func() error { return f(ctx) }); err != nil {
			r.stats.afterDeleteFailures.Add(1)
			r.log.Warn("a function to run after a message's deletion failed", "message", d, "error", err)
		}
	}
}

// protect makes an error of a panic in somebody else's function.
func protect(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{value: v}
		}
	}()
	return f()
}
