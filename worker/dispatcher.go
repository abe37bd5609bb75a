package worker

import "sync"

// dispatcher keeps the messages that wait for a slot and starts executors for them: at most Concurrency goroutines,
// each of which works messages off until none waits.
type dispatcher struct {
	r     *run
	limit int

	mu      sync.Mutex
	queue   []*delivery // from head on
	head    int
	running int
	closed  bool
	idle    chan struct{} // closed once closed and nothing runs
}

func newDispatcher(r *run) *dispatcher {
	return &dispatcher{r: r, limit: r.cfg.Concurrency, idle: make(chan struct{})}
}

// push queues messages. After close it gives them back.
func (q *dispatcher) push(batch []*delivery) {
	if len(batch) == 0 {
		return
	}
	q.mu.Lock()
	closed := q.closed
	if !closed {
		q.queue = append(q.queue, batch...)
		for n := min(len(batch), q.limit-q.running); n > 0; n-- {
			q.running++
			go q.r.execute()
		}
	}
	q.mu.Unlock()
	if closed {
		q.r.giveBack(batch)
	}
}

// next takes the message that waited longest, or ends the executor that asks.
func (q *dispatcher) next() *delivery {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head == len(q.queue) {
		q.leaveLocked()
		return nil
	}
	d := q.queue[q.head]
	q.queue[q.head] = nil
	if q.head++; q.head == len(q.queue) {
		q.queue, q.head = q.queue[:0], 0
	}
	return d
}

// left accounts for an executor whose handler called runtime.Goexit, and replaces it.
func (q *dispatcher) left() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head < len(q.queue) {
		go q.r.execute()
		return
	}
	q.leaveLocked()
}

func (q *dispatcher) leaveLocked() {
	q.running--
	if q.closed && q.running == 0 {
		close(q.idle)
	}
}

// close takes away everything that waits; what runs goes on.
func (q *dispatcher) close() (unstarted []*delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	unstarted = q.queue[q.head:]
	q.queue, q.head = nil, 0
	q.closed = true
	if q.running == 0 {
		close(q.idle)
	}
	return unstarted
}

func (q *dispatcher) counts() (waiting, running int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.queue) - q.head, q.running
}
