package worker

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/sqsworker/sqsworker/heartbeat"
)

// What happens to a message group when its message is done otherwise than by a delete. SQS delivers no message of a group
// while an earlier one is invisible, so what is given back behind an invisible head stays in order.

// stopGroup gives back what waits behind d, unstarted, and calls then when that is over.
func (r *run) stopGroup(d *delivery, then func()) {
	r.order.Lock()
	tail := r.dispatcher.stopGroup(d)
	r.registry.giveUp(tail)
	r.order.Unlock()
	if len(tail) == 0 {
		then()
		return
	}
	var left atomic.Int64
	left.Store(int64(len(tail)))
	for i := len(tail) - 1; i >= 0; i-- {
		r.registry.excuse(tail[i])
		r.giveBackOne(tail[i], 0, &r.stats.releasedUnstarted, func() {
			if left.Add(-1) == 0 {
				then()
			}
		})
	}
}

// endGroup stops the group of a message about which nothing can be written any more.
func (r *run) endGroup(d *delivery) {
	if r.fifo {
		r.stopGroup(d, func() { r.dispatcher.releaseGroup(d) })
	}
}

// groupLost gives back what waits behind a message whose lease was lost while its handler still runs: nobody could work on
// the group until that handler returns.
func (r *run) groupLost(d *delivery) {
	if errors.Is(context.Cause(d.ctx), heartbeat.ErrLost) {
		r.stopGroup(d, func() {})
	}
}
