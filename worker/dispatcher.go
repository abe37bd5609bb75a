package worker

import "sync"

// dispatcher keeps the messages that wait for a slot and starts executors for them: at most Concurrency goroutines,
// each of which works messages off until none may run.
type dispatcher struct {
	r *run

	mu      sync.Mutex
	limit   int
	waiting backlog
	groups  *groups  // waiting, on a FIFO queue; otherwise nil
	tenants *tenants // waiting, when tenants are capped; otherwise nil
	running int
	closed  bool
	idle    chan struct{} // closed once closed and nothing runs
}

func newDispatcher(r *run) *dispatcher {
	q := &dispatcher{r: r, limit: r.cfg.Concurrency, idle: make(chan struct{})}
	switch {
	case r.fifo:
		q.groups = newGroups()
		q.waiting = q.groups
	case r.cfg.TenantConcurrency > 0:
		q.tenants = newTenants(r.cfg.TenantConcurrency)
		q.waiting = q.tenants
	default:
		q.waiting = &line{}
	}
	return q
}

// push queues messages. After close they are handed back.
func (q *dispatcher) push(batch []*delivery) {
	if len(batch) == 0 {
		return
	}
	shared := 0
	var surplus []*delivery
	q.mu.Lock()
	closed := q.closed
	if !closed {
		for _, d := range batch {
			if q.tenants != nil && q.tenants.full(d) {
				surplus = append(surplus, d)
				continue
			}
			if !q.waiting.push(d) {
				shared++
			}
		}
		q.startLocked()
	}
	q.mu.Unlock()
	if closed {
		q.r.giveBack(q.r.handback.add(q.r, batch), 0, 0)
		q.r.slots.give(len(batch))
		return
	}
	q.r.slots.give(shared)
	q.r.giveBackSurplus(surplus)
}

// finished ends a message's turn among its tenant's.
func (q *dispatcher) finished(d *delivery) {
	if q.tenants == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.tenants.finish(d)
	if !q.closed {
		q.startLocked()
	}
}

// startLocked starts executors for what may run.
func (q *dispatcher) startLocked() {
	for n := min(q.waiting.ready(), q.limit-q.running); n > 0; n-- {
		q.running++
		go q.r.execute()
	}
}

// next takes the message that may run next, or ends the executor that asks.
func (q *dispatcher) next() *delivery {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.running > q.limit {
		q.leaveLocked()
		return nil
	}
	d := q.waiting.pop()
	if d == nil {
		q.leaveLocked()
	}
	return d
}

// resize changes how many executors there may be. Those beyond a lower limit end after their message.
func (q *dispatcher) resize(limit int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.limit = limit
	if !q.closed {
		q.startLocked()
	}
}

// left accounts for an executor whose handler called runtime.Goexit.
func (q *dispatcher) left() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.leaveLocked()
	q.startLocked()
}

func (q *dispatcher) leaveLocked() {
	q.running--
	if q.closed && q.running == 0 {
		close(q.idle)
	}
}

// take takes away everything that waits, and tells how many slots that frees; what runs goes on.
func (q *dispatcher) take() (unstarted []*delivery, slots int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting.takeAll()
}

// close takes away everything that waits, for good.
func (q *dispatcher) close() (unstarted []*delivery, slots int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	if q.running == 0 {
		close(q.idle)
	}
	return q.waiting.takeAll()
}

// stopGroup takes the messages that wait behind d in its group.
func (q *dispatcher) stopGroup(d *delivery) (tail []*delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.groups.stop(d)
}

// releaseGroup lets the group of d go on.
func (q *dispatcher) releaseGroup(d *delivery) {
	q.mu.Lock()
	done := q.groups.release(d)
	if !q.closed {
		q.startLocked()
	}
	q.mu.Unlock()
	if done {
		q.r.slots.give(1)
	}
}

func (q *dispatcher) counts() (waiting, running int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting.size(), q.running
}
