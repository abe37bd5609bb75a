package worker

import (
	"fmt"
	"sync"
)

// concurrency is how many handlers may run at once in a run; it can change.
type concurrency struct {
	mu sync.Mutex
	n  int
}

// Concurrency is how many handlers run at once at most: Config.Concurrency, or what SetConcurrency made of it.
func (w *Worker) Concurrency() int { return int(w.concurrency.Load()) }

// SetConcurrency changes how many handlers run at once, from 1 to 100,000, for the run under way and later ones: to leave
// new work to others when this instance may soon be taken away, or to follow what a dependency bears. A lower number
// interrupts nothing: what is held is worked off first, and nothing is received until there is a free slot again. A
// higher one is used at once; the client's connections were sized for Config.Concurrency, so far beyond it some calls dial anew.
func (w *Worker) SetConcurrency(n int) error {
	if n < 1 || n > maxConcurrency {
		return fmt.Errorf("worker: SetConcurrency(%d): must be from 1 to %d; to stop working, end Run's context", n, maxConcurrency)
	}
	if old := w.concurrency.Swap(int64(n)); old == int64(n) {
		return nil
	}
	if r := w.current.Load(); r != nil && !r.over.Load() {
		r.resize()
		r.log.Info("concurrency changed", "to", n)
	}
	return nil
}

// resize makes the run's slots and executors as many as the worker is set to.
func (r *run) resize() {
	r.concurrency.mu.Lock()
	defer r.concurrency.mu.Unlock()
	n := r.w.Concurrency()
	r.arrivals.resize(n - r.concurrency.n)
	r.concurrency.n = n
	r.slots.resize(n + r.cfg.Prefetch)
	r.dispatcher.resize(n)
}
