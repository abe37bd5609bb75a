package worker

import "sync"

// slots counts what may still be received: Concurrency + Prefetch, less what is held and what open receives asked
// for. A receive takes its slots before it is sent, so that never more arrives than can be kept; each message
// returns its slot when its handler is done, whatever became of it.
type slots struct {
	total int
	freed chan struct{} // capacity 1: some came back

	mu   sync.Mutex
	free int
}

func newSlots(total int) *slots {
	return &slots{total: total, free: total, freed: make(chan struct{}, 1)}
}

// take takes n slots, or none and reports how many are free.
func (s *slots) take(n int) (ok bool, free int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free < n {
		return false, s.free
	}
	s.free -= n
	return true, s.free
}

func (s *slots) give(n int) {
	if n == 0 {
		return
	}
	s.mu.Lock()
	s.free += n
	s.mu.Unlock()
	select {
	case s.freed <- struct{}{}:
	default:
	}
}

func (s *slots) available() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.free
}
